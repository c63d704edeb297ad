//! `semel send`: hands a message to the daemon; with `--wait` until the broker has it.

use std::io::Read;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use semel_core::clock::{Clock, SystemClock};
use semel_core::code::Code;
use semel_core::limits::BODY_BYTES_MAX;
use serde_json::{Map, Value, json};

use super::{Daemon, Local, unsure};
use crate::exit::{Exit, Failure};
use crate::system::mint;

const META: &str = r#"--meta '{"build": 17}'"#;

/// How often a row is looked at while somebody waits for it.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Send a message, once
///
/// The message is on disk when this command returns; the daemon delivers it when it can. A command
/// that is repeated with the same --key and the same message sends nothing again.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  semel send '#builds' 'build 17 is green' --key build-17
  semel send @alice 'lunch?' --wait
  tar c . | semel send queue:work --stdin")]
pub(crate) struct Arguments {
    /// `#topic`, `@name`, `queue:name`, or a public key in hex
    to: String,
    /// The message
    #[arg(required_unless_present = "stdin")]
    message: Option<String>,
    /// Read the message from stdin
    #[arg(long, conflicts_with = "message")]
    stdin: bool,
    /// Id under which the message is sent once; default: a generated one
    #[arg(long, value_name = "ID")]
    key: Option<String>,
    /// now, next or low
    #[arg(long)]
    priority: Option<String>,
    /// JSON object to send with the message
    #[arg(long, value_name = "JSON")]
    meta: Option<String>,
    /// The broker_message_id of the message to which this one replies
    #[arg(long, value_name = "ID")]
    reply_to: Option<String>,
    /// Wait until the broker has accepted or refused the message, at most this long (30s without a
    /// time)
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "30s",
          require_equals = true, value_parser = crate::duration::parse)]
    wait: Option<Duration>,
    #[command(flatten)]
    local: Local,
}

pub(crate) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let body = body(arguments)?;
    let daemon = arguments.local.daemon().await?;
    // Made here, so that it can be named when the answer is lost.
    let made = || mint().client_message_id().to_string();
    let key = arguments.key.clone().unwrap_or_else(made);
    let answer = daemon.client.post("/v1/send", &body, Some(&key)).await;
    let mut answer = answer.map_err(|error| {
        let again = format!("to send it once in any case: the same command with --key {key}");
        unsure(&error, &daemon.start, &again)
    })?;
    if answer.code() == Some(Code::OutcomeUnknown.as_str()) {
        let named = answer.body.as_object_mut();
        named.map(|body| body.insert("client_message_id".to_owned(), json!(key)));
    }
    let accepted = daemon.checked(answer)?;
    match arguments.wait {
        None => daemon.show(&accepted, shown),
        Some(limit) => wait(&daemon, &accepted, limit).await,
    }
}

fn body(arguments: &Arguments) -> Result<Value, Failure> {
    let usage = |text: String| Failure::new(Exit::Usage, format!("error: {text}"));
    let mut body = Map::new();
    body.insert("to".to_owned(), json!(arguments.to));
    match &arguments.message {
        Some(message) => body.insert("message".to_owned(), json!(message)),
        None => {
            let mut bytes = Vec::new();
            let limit = BODY_BYTES_MAX as u64 + 1;
            let read = std::io::stdin().take(limit).read_to_end(&mut bytes);
            read.map_err(|error| usage(format!("stdin: {error}")))?;
            match String::from_utf8(bytes) {
                Ok(text) => body.insert("message".to_owned(), json!(text)),
                Err(error) => {
                    let encoded = STANDARD.encode(error.as_bytes());
                    body.insert("body_base64".to_owned(), json!(encoded))
                }
            }
        }
    };
    if let Some(meta) = &arguments.meta {
        let meta: Value = serde_json::from_str(meta)
            .map_err(|error| usage(format!("--meta is not JSON: {error}\nfor example: {META}")))?;
        body.insert("meta".to_owned(), meta);
    }
    if let Some(priority) = &arguments.priority {
        body.insert("priority".to_owned(), json!(priority));
    }
    if let Some(reply_to) = &arguments.reply_to {
        body.insert("reply_to_id".to_owned(), json!(reply_to));
    }
    Ok(Value::Object(body))
}

fn shown(accepted: &Value) -> String {
    let text = |name: &str| accepted.get(name).and_then(Value::as_str).unwrap_or("–").to_owned();
    match accepted.get("duplicate") {
        Some(Value::Bool(true)) => {
            let (id, broker_id) = (text("client_message_id"), text("broker_message_id"));
            format!("{id} was sent before, as {broker_id}\n")
        }
        _ => format!("{} is {}\n", text("client_message_id"), text("status")),
    }
}

/// Looks at the row until the broker's answer is in it.
async fn wait(daemon: &Daemon, accepted: &Value, limit: Duration) -> Result<(), Failure> {
    if accepted.get("duplicate") == Some(&Value::Bool(true)) {
        return daemon.show(accepted, shown);
    }
    let id = accepted.get("client_message_id").and_then(Value::as_str).unwrap_or_default();
    let path = format!("/v1/outbox/{}", semel_wire::path::encode(id));
    let clock = SystemClock::new();
    loop {
        let row = daemon.get(&path).await?;
        let status = row.get("status").and_then(Value::as_str).unwrap_or_default();
        match status {
            "done" => {
                return daemon.show(&row, |row| {
                    let sent = row.get("broker_message_id").and_then(Value::as_str);
                    format!("{id} was sent as {}\n", sent.unwrap_or("–"))
                });
            }
            "dead" | "aborted" => {
                let why = row.get("last_error").and_then(Value::as_str).unwrap_or("–");
                let why = semel_core::shown::shown(why);
                let outcome = row.get("outcome").and_then(Value::as_str).unwrap_or("–");
                let exit = if why.starts_with("409") { Exit::Conflict } else { Exit::Failed };
                let text = format!("error: {id} is {status} ({outcome}): {why}");
                return Err(Failure::new(exit, text));
            }
            _ if clock.monotonic() >= limit => {
                let text = format!("error: {id} is {status}; it stays queued and is sent later");
                return Err(Failure::new(Exit::Unavailable, text));
            }
            _ => tokio::time::sleep(LOOK_INTERVAL).await,
        }
    }
}
