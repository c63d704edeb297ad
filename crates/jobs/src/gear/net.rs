//! Which addresses may be reached, decided after names were resolved and on every connection
//! (trap 36): a name is only what its owner says today.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::limits::{ADDRESSES_MAX, CONNECT_TIMEOUT};

/// Hosts of which something is known: `host` or `host:port`, as they are written in a request.
#[derive(Debug, Clone, Default)]
pub struct Hosts(Vec<String>);

impl Hosts {
    /// These.
    pub fn new(hosts: impl IntoIterator<Item = String>) -> Self {
        Self(hosts.into_iter().map(|host| host.to_ascii_lowercase()).collect())
    }

    /// Whether this one is among them. A full stop at the end of a name changes nothing.
    pub fn has(&self, host: &str, port: u16) -> bool {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let with_port = format!("{host}:{port}");
        self.0.iter().any(|allowed| *allowed == host || *allowed == with_port)
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
