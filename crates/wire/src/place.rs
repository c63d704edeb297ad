//! Where a broker is: the one reading of its address, and the one decision about plain text. An
//! address is `http://`, `https://`, `ws://` or `wss://`, and all four mean the same place: the
//! WebSocket and the HTTP API have one port.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use semel_core::code::Code;
use semel_core::refusal::Refusal;

use crate::limits::BROKER_URL_BYTES_MAX;

/// Where the WebSocket is.
const WEBSOCKET_PATH: &str = "/v1/mesh";

/// A broker's place, and whether it speaks TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerPlace {
    secure: bool,
    /// Without brackets.
    host: String,
    port: u16,
}

/// Who may be spoken to in plain text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Plain {
    /// This machine alone.
    #[default]
    LoopbackOnly,
    /// Anybody: somebody has said so.
    Allowed,
}

/// Whether anything may be said to this address, or by it, in plain text.
pub fn may_be_plain(ip: IpAddr, plain: Plain) -> bool {
    match plain {
        Plain::Allowed => true,
        Plain::LoopbackOnly => ip.to_canonical().is_loopback(),
    }
}

impl BrokerPlace {
    /// Reads an address with any of the four schemes. It has no user, no query and no fragment,
    /// and no path but that of the WebSocket.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let (secure, rest) = schemed(text).ok_or_else(|| refusal("starts with no scheme"))?;
        if text.len() > BROKER_URL_BYTES_MAX {
            return Err(refusal("is too long"));
        }
        let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if !["", "/", WEBSOCKET_PATH].contains(&path) {
            return Err(refusal("has a path, a query or a fragment"));
        }
        if authority.contains('@') {
            return Err(refusal("names a user"));
        }
        let (host, port) = split(authority).ok_or_else(|| refusal("names no host"))?;
        let port = match port {
            None => usual_port(secure),
            Some(digits) => number(digits).ok_or_else(|| refusal("has an invalid port"))?,
        };
        Ok(Self { secure, host: host.to_owned(), port })
    }

    /// The same of an address that starts with `http://` or `https://`, as people write it.
    pub fn parse_http(text: &str) -> Result<Self, Refusal> {
        match text.starts_with("http") {
            true => Self::parse(text),
            false => Err(refusal("starts with neither http:// nor https://")),
        }
    }

    /// The same of an address that starts with `ws://` or `wss://`, as homes keep it.
    pub fn parse_websocket(text: &str) -> Result<Self, Refusal> {
        match text.starts_with("ws") {
            true => Self::parse(text),
            false => Err(refusal("starts with neither ws:// nor wss://")),
        }
    }

    /// The address of the HTTP API, without a slash at its end.
    pub fn http(&self) -> String {
        let scheme = if self.secure { "https" } else { "http" };
        format!("{scheme}://{}", self.authority())
    }

    /// The address of the WebSocket.
    pub fn websocket(&self) -> String {
        let scheme = if self.secure { "wss" } else { "ws" };
        format!("{scheme}://{}{WEBSOCKET_PATH}", self.authority())
    }

    /// `HOST`, or `HOST:PORT` where the port is not the usual one; an IPv6 address in brackets.
    pub fn authority(&self) -> String {
        let host = match self.host.contains(':') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        };
        match self.port == usual_port(self.secure) {
            true => host,
            false => format!("{host}:{}", self.port),
        }
    }

    /// Whether it speaks TLS.
    pub fn is_secure(&self) -> bool {
        self.secure
    }

    /// The name or the address, without brackets: what a certificate names.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address, where the host is written as one.
    pub fn literal(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// Refuses plain text to a place that is written as the address of another machine. A name is
    /// judged when it is resolved.
    pub fn refuse_plain(&self, plain: Plain) -> Result<(), Refusal> {
        match self.literal() {
            Some(ip) if !self.secure && !may_be_plain(ip, plain) => Err(in_plain_text(ip)),
            Some(_) | None => Ok(()),
        }
    }

    /// The same, also for names of other machines: for an address that is told to others.
    pub fn refuse_plain_for_others(&self, plain: Plain) -> Result<(), Refusal> {
        self.refuse_plain(plain)?;
        let is_elsewhere = self.literal().is_none() && !self.host.eq_ignore_ascii_case("localhost");
        match !self.secure && is_elsewhere && plain == Plain::LoopbackOnly {
            true => Err(in_plain_text(&self.host)),
            false => Ok(()),
        }
    }
}

impl fmt::Display for BrokerPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.authority())
    }
}

/// Tokens, keys and messages are not said where others can hear them.
pub fn in_plain_text(whom: impl fmt::Display) -> Refusal {
    let detail = format!(
        "{whom} is not on this machine, and the connection would be plain text: nothing was sent"
    );
    Refusal::new(Code::PlainTextRefused, detail)
}

fn refusal(what: &str) -> Refusal {
    let detail = format!("the broker's address {what}; it must be like https://HOST:PORT");
    Refusal::new(Code::InvalidField, detail)
}

fn schemed(text: &str) -> Option<(bool, &str)> {
    let (scheme, rest) = text.split_once("://")?;
    match scheme {
        "https" | "wss" => Some((true, rest)),
        "http" | "ws" => Some((false, rest)),
        _ => None,
    }
}

const fn usual_port(secure: bool) -> u16 {
    if secure { 443 } else { 80 }
}

/// Host without brackets, and what stands behind its colon.
fn split(authority: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        host.parse::<Ipv6Addr>().ok()?;
        return match rest {
            "" => Some((host, None)),
            rest => Some((host, Some(rest.strip_prefix(':')?))),
        };
    }
    let (host, port) = match authority.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (authority, None),
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    (!host.is_empty() && host.bytes().all(is_plain)).then_some((host, port))
}

fn number(digits: &str) -> Option<u16> {
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    let port = is_number.then(|| digits.parse().ok())??;
    (port != 0).then_some(port)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn four_schemes_mean_one_place() {
        for (text, http, websocket, host, port) in [
            ("http://a:7117", "http://a:7117", "ws://a:7117/v1/mesh", "a", 7117),
            ("ws://a:7117/v1/mesh", "http://a:7117", "ws://a:7117/v1/mesh", "a", 7117),
            (
                "https://a.example/",
                "https://a.example",
                "wss://a.example/v1/mesh",
                "a.example",
                443,
            ),
            ("wss://a:80", "https://a:80", "wss://a:80/v1/mesh", "a", 80),
            ("https://[::1]:9", "https://[::1]:9", "wss://[::1]:9/v1/mesh", "::1", 9),
            ("ws://[::1]/v1/mesh", "http://[::1]", "ws://[::1]/v1/mesh", "::1", 80),
            ("http://127.0.0.1:80", "http://127.0.0.1", "ws://127.0.0.1/v1/mesh", "127.0.0.1", 80),
        ] {
            let place = BrokerPlace::parse(text).unwrap();
            let found = (place.http(), place.websocket(), place.host(), place.port());
            assert_eq!(found, (http.to_owned(), websocket.to_owned(), host, port), "{text}");
            assert_eq!(place.is_secure(), text.starts_with("https") || text.starts_with("wss"));
        }
    }

    #[test]
    fn what_is_no_place_is_refused() {
        for text in [
            "",
            "broker:7117",
            "ftp://a",
            "HTTPS://a",
            "https://",
            "https:///v1/mesh",
            "https://u@a",
            "https://u:p@a:1",
            "https://a/other",
            "https://a/v1/mesh/",
            "https://a?x=1",
            "https://a/?x",
            "https://a#x",
            "https://a\\b",
            "https://a:",
            "https://a:0",
            "https://a:+1",
            "https://a:65536",
            "https://a:1:2",
            "https://::1",
            "https://[::1",
            "https://[::1]7",
            "https://[a]",
            "https://[fe80::1%eth0]",
            "https://a b",
            "https://a\u{7f}",
            "https://a\r\nHost: b",
            "https://ä.example",
        ] {
            assert!(BrokerPlace::parse(text).is_err(), "{text:?}");
        }
        assert!(BrokerPlace::parse(&format!("https://{}", "a".repeat(5000))).is_err());
        assert!(BrokerPlace::parse_http("ws://a").is_err());
        assert!(BrokerPlace::parse_websocket("http://a").is_err());
    }

    #[test]
    fn plain_text_is_for_this_machine() {
        for (ip, own) in [
            ("127.0.0.1", true),
            ("127.9.9.9", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("0.0.0.0", false),
            ("::", false),
            ("10.0.0.1", false),
            ("::ffff:10.0.0.1", false),
            ("192.0.2.1", false),
            ("2001:db8::1", false),
        ] {
            let ip = ip.parse().unwrap();
            assert_eq!(may_be_plain(ip, Plain::LoopbackOnly), own, "{ip}");
            assert!(may_be_plain(ip, Plain::Allowed), "{ip}");
        }
        for (text, dialled, told) in [
            ("http://127.0.0.1:1", true, true),
            ("http://localhost:1", true, true),
            ("http://broker.example", true, false),
            ("http://192.0.2.1", false, false),
            ("ws://[2001:db8::1]", false, false),
            ("https://192.0.2.1", true, true),
            ("wss://broker.example", true, true),
        ] {
            let place = BrokerPlace::parse(text).unwrap();
            let is_let = |refused: Result<(), Refusal>| match refused {
                Ok(()) => true,
                Err(refusal) => {
                    assert_eq!(refusal.code, Code::PlainTextRefused);
                    false
                }
            };
            assert_eq!(is_let(place.refuse_plain(Plain::LoopbackOnly)), dialled, "{text}");
            assert_eq!(is_let(place.refuse_plain_for_others(Plain::LoopbackOnly)), told, "{text}");
            assert!(place.refuse_plain_for_others(Plain::Allowed).is_ok(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_it_writes_is_read_as_the_same_place(
            secure: bool,
            host in "[a-zA-Z0-9._-]{1,40}|\\[[0-9a-f]{1,4}::[0-9a-f]{1,4}\\]|\\[::1\\]",
            port in 1u16..,
        ) {
            let scheme = if secure { "wss" } else { "ws" };
            let place = BrokerPlace::parse(&format!("{scheme}://{host}:{port}")).unwrap();
            prop_assert_eq!(place.port(), port);
            prop_assert_eq!(place.host(), host.trim_matches(['[', ']']));
            let read = BrokerPlace::parse_http(&place.http());
            prop_assert_eq!(read.as_ref(), Ok(&place));
            let read = BrokerPlace::parse_websocket(&place.websocket());
            prop_assert_eq!(read.as_ref(), Ok(&place));
            prop_assert_eq!(place.http().starts_with("https://"), secure);
        }

        #[test]
        fn nothing_makes_it_panic(
            text in "(https?|wss?)://[a-z0-9:@/\\[\\]?#.%]{0,40}|\\PC{0,80}",
        ) {
            if let Ok(place) = BrokerPlace::parse(&text) {
                prop_assert!(!place.host().is_empty());
                prop_assert_eq!(BrokerPlace::parse(&place.http()), Ok(place));
            }
        }
    }
}
