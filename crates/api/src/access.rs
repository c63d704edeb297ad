//! Who may call (daemon.md, "Access"): a pure decision on a request's head.

use hyper::header::{AUTHORIZATION, HOST, HeaderMap, ORIGIN};
use hyper::{Method, Uri};
use semel_core::code::Code;
use semel_core::refusal::Refusal;
use semel_core::status;

use crate::field::unescape;

status! {
    /// How a call came in.
    pub enum Door {
        /// Over the Unix socket: the file's mode and the peer's uid say who it is.
        Socket = "socket",
        /// Over loopback TCP: a token does.
        Tcp = "tcp",
    }
}

/// Knows the tokens that are valid now. A rotated one is for a while.
pub trait Tokens: Send + Sync {
    /// The number of the token that was presented, or `None` when it is not valid. Compares in
    /// constant time.
    fn number_of(&self, presented: &str) -> Option<u64>;

    /// Replaces the token, on disk first. Blocks while it is written. `false` when it could not be,
    /// and the old one stays.
    fn rotate(&self) -> bool {
        false
    }
}

/// What the decision rests on besides the head itself.
pub(crate) struct Rules<'a> {
    /// Origins whose pages may call.
    pub(crate) origins: &'a [String],
    /// `/v1/health` needs no token.
    pub(crate) public_health_check: bool,
    /// The valid tokens.
    pub(crate) tokens: &'a dyn Tokens,
}

/// Names under which a token might be put into an address.
const TOKEN_NAMES: &[&str] =
    &["token", "access_token", "local_token", "auth_token", "bearer", "authorization", "api_key"];

/// Lets a call in, with the number of its token if it has one, or says why not.
pub(crate) fn judge(
    door: Door,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    rules: &Rules<'_>,
) -> Result<Option<u64>, Refusal> {
    if method == Method::OPTIONS {
        let detail = "pages of other origins may not call the local API";
        return Err(Refusal::new(Code::PreflightRefused, detail));
    }
    if uri.query().is_some_and(|query| has_token(query, rules.tokens)) {
        tracing::warn!(security = true, %door, path = uri.path(), "a token came in an address");
        let detail = "a token belongs in the header Authorization, never in an address";
        return Err(Refusal::new(Code::TokenInQuery, detail));
    }
    let mut hosts = headers.get_all(HOST).iter().map(|host| host.to_str().unwrap_or("?"));
    if !hosts.all(is_local) || !uri.authority().is_none_or(|host| is_local(host.as_str())) {
        let detail = "the host must be localhost, 127.0.0.1 or [::1]";
        return Err(Refusal::new(Code::HostNotAllowed, detail));
    }
    let mut origins = headers.get_all(ORIGIN).iter();
    if !origins.all(|origin| rules.origins.iter().any(|allowed| origin == allowed.as_str())) {
        let detail = "pages of this origin may not call the local API";
        return Err(Refusal::new(Code::OriginNotAllowed, detail));
    }
    let is_health = ["/v1/health", "/v1/metrics"].contains(&uri.path());
    if door == Door::Socket || (rules.public_health_check && is_health) {
        return Ok(None);
    }
    match bearer(headers).and_then(|token| rules.tokens.number_of(token)) {
        Some(number) => Ok(Some(number)),
        None => Err(Refusal::new(Code::Unauthorised, "a valid bearer token is needed")),
    }
}

/// `localhost`, `127.0.0.1` or `[::1]` with any port, or nothing.
fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => {
            if !port.bytes().all(|byte| byte.is_ascii_digit()) {
                return false;
            }
            name
        }
        _ => host,
    };
    matches!(name, "" | "127.0.0.1" | "[::1]") || name.eq_ignore_ascii_case("localhost")
}

fn has_token(query: &str, tokens: &dyn Tokens) -> bool {
    query.split('&').any(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or(("", pair));
        let named = unescape(name)
            .is_some_and(|name| TOKEN_NAMES.iter().any(|token| name.eq_ignore_ascii_case(token)));
        named || unescape(value).is_some_and(|value| tokens.number_of(&value).is_some())
    })
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (given.next(), given.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_are_this_machine() {
        for good in ["", "localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:7118", "[::1]:1"] {
            assert!(is_local(good), "{good}");
        }
        for bad in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil",
            "127.0.0.1:80@evil",
            "[::1]evil",
            "[::2]",
            "0.0.0.0",
            "localhost:80x",
            "user@localhost",
            "?",
        ] {
            assert!(!is_local(bad), "{bad}");
        }
    }
}
