//! Which addresses may be reached, decided after names were resolved and on every connection
//! (trap 36): a name is only what its owner says today.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::limits::{ADDRESSES_MAX, CONNECT_TIMEOUT};

/// A host in one spelling: a name without the full stop at its end, an address as the network reads
/// it. `127.1`, `2130706433`, `0x7f.1` and `[::ffff:127.0.0.1]` are one place.
pub fn canonical(host: &str) -> String {
    let host = host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
    let host = host.to_ascii_lowercase();
    let address = host.parse::<Ipv6Addr>().map(|address| address.to_canonical());
    let address = address.ok().or_else(|| numbers(&host).map(IpAddr::V4));
    address.map_or(host, |address| address.to_string())
}

/// An address as the resolver of the system takes it: one to four numbers, each decimal, octal or
/// hexadecimal, of which the last one fills what is left.
fn numbers(host: &str) -> Option<Ipv4Addr> {
    let parts: Vec<&str> = host.split('.').collect();
    let (last, first) = parts.split_last().filter(|(_, first)| first.len() <= 3)?;
    let mut address = 0_u32;
    for part in first {
        address = (address << 8) | u32::from(u8::try_from(number(part)?).ok()?);
    }
    let left = u32::try_from(4 - first.len()).ok()? * 8;
    let last = number(last)?;
    if left < u32::BITS && last >> left != 0 {
        return None;
    }
    let address = if left < u32::BITS { (address << left) | last } else { last };
    Some(Ipv4Addr::from_bits(address))
}

fn number(part: &str) -> Option<u32> {
    let digits = |text: &str, radix| {
        let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        u32::from_str_radix(text, radix).ok().filter(|_| plain)
    };
    match part.strip_prefix("0x") {
        Some(hex) => digits(hex, 16),
        None if part.len() > 1 && part.starts_with('0') => digits(part, 8),
        None => digits(part, 10),
    }
}

/// Hosts of which something is known: `host` or `host:port`, as they are written in a request.
#[derive(Debug, Clone, Default)]
pub struct Hosts(Vec<(String, Option<u16>)>);

impl Hosts {
    /// These.
    pub fn new(hosts: impl IntoIterator<Item = String>) -> Self {
        Self(hosts.into_iter().map(|host| spelled(&host)).collect())
    }

    /// Whether this one is among them, however it is spelled.
    pub fn has(&self, host: &str, port: u16) -> bool {
        let host = canonical(host);
        let asked = [(host.clone(), None), (host, Some(port))];
        self.0.iter().any(|allowed| asked.contains(allowed))
    }
}

/// `host`, `host:port`, `[v6]:port` or an address of version 6 alone.
pub(crate) fn spelled(text: &str) -> (String, Option<u16>) {
    let port = |text: &str| text.parse::<u16>().ok();
    match text.rsplit_once(':') {
        Some((host, digits)) if !host.contains(':') || host.ends_with(']') => match port(digits) {
            Some(port) => (canonical(host), Some(port)),
            None => (canonical(text), None),
        },
        Some(_) | None => (canonical(text), None),
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum Unreachable {
    /// The name has no address.
    #[error("{0} has no address")]
    Unknown(String),
    /// The name has addresses, none of which may be reached.
    #[error("{0} has an address that is not public")]
    Refused(String),
    /// Nobody answers there.
    #[error("{host} cannot be reached")]
    Io {
        /// Where.
        host: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// Connects to a host by name; what is connected to is what was checked.
pub async fn dial(host: &str, port: u16, private: &Hosts) -> Result<TcpStream, Unreachable> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let unknown = || Unreachable::Unknown(host.to_owned());
    let found = timeout(CONNECT_TIMEOUT, tokio::net::lookup_host((bare, port))).await;
    let found: Vec<SocketAddr> = found.map_err(|_| unknown())?.map_err(|_| unknown())?.collect();
    if found.is_empty() {
        return Err(unknown());
    }
    let allowed = |address: &SocketAddr| private.has(bare, port) || is_public(address.ip());
    let allowed: Vec<SocketAddr> = found.into_iter().filter(allowed).take(ADDRESSES_MAX).collect();
    let mut failed = None;
    for address in allowed {
        match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => failed = Some(error),
            Err(_) => failed = Some(std::io::ErrorKind::TimedOut.into()),
        }
    }
    Err(match failed {
        None => Unreachable::Refused(host.to_owned()),
        Some(source) => Unreachable::Io { host: host.to_owned(), source },
    })
}

/// Whether an address belongs to the public network. What carries an IPv4 address inside is judged
/// by that.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    !matches!(
        (a, b, c),
        (0 | 10 | 127 | 224..=255, _, _)
            | (100, 64..=127, _)
            | (169, 254, _)
            | (172, 16..=31, _)
            | (192, 0, 0 | 2)
            | (192, 88, 99)
            | (192, 168, _)
            | (198, 18 | 19, _)
            | (198, 51, 100)
            | (203, 0, 113)
    )
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let part = address.segments();
    let inside = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match part {
        // Mapped, compatible, and translated by the network.
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0, 0, 0, 0, 0, 0, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, ..] => inside(high, low),
        // Teredo, ORCHID, benchmarks, documentation.
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => false,
        [0x2000..=0x3fff, ..] => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_public() {
        for public in
            ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
        {
            assert!(is_public(public.parse().expect("an address")), "{public}");
        }
        for private in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.8.8.8",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.9.9",
            "192.0.0.8",
            "192.168.1.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::7f00:1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2001::1",
            "2001:db8::1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "::ffff:0:127.0.0.1",
        ] {
            assert!(!is_public(private.parse().expect("an address")), "{private}");
        }
    }

    #[test]
    fn one_place_has_one_spelling() {
        for local in [
            "127.0.0.1",
            "127.0.0.1.",
            "127.1",
            "127.0.1",
            "2130706433",
            "0x7f.1",
            "0x7f000001",
            "017700000001",
            "[::ffff:127.0.0.1]",
            "::FFFF:7f00:1",
        ] {
            assert_eq!(canonical(local), "127.0.0.1", "{local}");
        }
        for (given, one) in [
            ("Example.COM..", "example.com"),
            ("[::1]", "::1"),
            ("1.2.3.4.5", "1.2.3.4.5"),
            ("256.1.1.1", "256.1.1.1"),
            ("1.2.3.256", "1.2.3.256"),
            ("+1", "+1"),
            ("", ""),
            ("4294967296", "4294967296"),
            ("a1", "a1"),
            ("1.", "0.0.0.1"),
            ("08", "08"),
        ] {
            assert_eq!(canonical(given), one, "{given}");
        }
        assert_eq!(spelled("[::1]:80"), ("::1".to_owned(), Some(80)));
        assert_eq!(spelled("::1"), ("::1".to_owned(), None));
        assert_eq!(spelled("A.b:80"), ("a.b".to_owned(), Some(80)));
    }

    #[tokio::test]
    async fn a_name_is_judged_by_its_address() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        for host in ["localhost", "127.0.0.1", "[::ffff:127.0.0.1]", "::ffff:7f00:1"] {
            let refused = dial(host, port, &Hosts::default()).await;
            assert!(matches!(refused, Err(Unreachable::Refused(_))), "{host}: {refused:?}");
        }
        let allowed = Hosts::new(["LocalHost".to_owned()]);
        assert!(dial("localhost", port, &allowed).await.is_ok());
        assert!(dial("127.0.0.1", port, &allowed).await.is_err());
        let other_port = Hosts::new([format!("127.0.0.1:{}", port ^ 1)]);
        assert!(dial("127.0.0.1", port, &other_port).await.is_err());
    }
}
