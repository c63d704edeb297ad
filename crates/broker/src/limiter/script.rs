//! One take as one script, so that nobody else gets in between, on the server's own clock.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, RedisResult, Script, ServerErrorKind};

use super::{LimitRequest, Verdict};

/// The sorted set of one sender: member = id, score = when it was counted, in microseconds.
///
/// The server's clock is a calendar: set back, it leaves entries in the future, which would block
/// their sender for as long as the step was. They count from now instead. Numbers are formatted by
/// hand because Lua keeps 14 digits of a number that it turns into text, and these have 16. An
/// expiry is a millisecond longer than the window because it is reckoned from a clock cut to whole
/// milliseconds, and must not take the last entry away early.
const TAKE: &str = r"
local key, id = KEYS[1], ARGV[1]
local limit, window = tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local expiry = math.ceil(window / 1000) + 1
local function text(number) return string.format('%.0f', number) end

redis.call('ZREMRANGEBYSCORE', key, '-inf', text(now - window))
local ahead = redis.call('ZRANGEBYSCORE', key, '(' .. text(now), '+inf')
for _, early in ipairs(ahead) do
  redis.call('ZADD', key, text(now), early)
end
if #ahead > 0 then
  redis.call('PEXPIRE', key, text(expiry))
end

if redis.call('ZSCORE', key, id) then
  return {'free', 0}
end
local count = redis.call('ZCARD', key)
if count < limit then
  redis.call('ZADD', key, text(now), id)
  redis.call('PEXPIRE', key, text(expiry))
  return {'counted', 0}
end
local last_to_leave = redis.call('ZRANGE', key, count - limit, count - limit, 'WITHSCORES')
if last_to_leave[2] then
  return {'denied', last_to_leave[2] + window - now}
end
return {'denied', window}
";

const KEY_PREFIX: &str = "semel:limit:";

pub(super) struct TakeScript(Script);

impl TakeScript {
    pub(super) fn new() -> Self {
        Self(Script::new(TAKE))
    }

    /// `EVALSHA`, and `EVAL` where the server lost the script (traps.md 47): it restarted, failed
    /// over, or somebody flushed it. Loading the script and asking again by its hash would leave a
    /// gap for the next flush.
    pub(super) async fn run(
        &self,
        connection: &mut MultiplexedConnection,
        request: &LimitRequest<'_>,
    ) -> RedisResult<Verdict> {
        let by_hash = command("EVALSHA", self.0.get_hash(), request);
        let answer = match by_hash.query_async(connection).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                command("EVAL", TAKE, request).query_async(connection).await
            }
            answer => answer,
        };
        let (word, wait_us): (String, u64) = answer?;
        match word.as_str() {
            "counted" => Ok(Verdict::Counted),
            "free" => Ok(Verdict::Free),
            "denied" => Ok(Verdict::Denied { retry_after: Duration::from_micros(wait_us) }),
            _ => Err(RedisError::from((ErrorKind::UnexpectedReturnType, "not a verdict"))),
        }
    }
}

fn command(name: &str, script: &str, request: &LimitRequest<'_>) -> redis::Cmd {
    let window_us = u64::try_from(request.window().as_micros()).unwrap_or(u64::MAX);
    let mut command = redis::cmd(name);
    command
        .arg(script)
        .arg(1)
        .arg(format!("{KEY_PREFIX}{}", request.key()))
        .arg(request.client_message_id)
        .arg(request.limit)
        .arg(window_us);
    command
}
