//! The network of a gear: a proxy on a socket of this host that reaches the hosts of its manifest.
//! Names are resolved here, and addresses are judged here, on every connection (trap 36).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, copy_bidirectional};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::document::Permissions;
use super::net::{Hosts, Unreachable, dial};
use super::sandbox::proxy_socket;
use crate::limits::{
    ACCEPT_PAUSE, CONNECT_TIMEOUT, PROXY_CONNECTIONS_ALL_MAX, PROXY_CONNECTIONS_MAX,
    PROXY_HEAD_BYTES_MAX, PROXY_IDLE,
};

/// Connections of all gears: none takes the descriptors of the engine.
static ALL: Semaphore = Semaphore::const_new(PROXY_CONNECTIONS_ALL_MAX);

/// Which hosts may be reached.
pub(crate) struct Allowed {
    hosts: Vec<String>,
    private: Hosts,
}

impl Allowed {
    pub(crate) fn of(permissions: &Permissions) -> Self {
        let lower = |hosts: &[String]| -> Vec<String> {
            hosts.iter().map(|host| host.to_ascii_lowercase()).collect()
        };
        let private = Hosts::new(permissions.private_network.clone());
        Self { hosts: lower(&permissions.network), private }
    }

    fn allow(&self, host: &str, port: u16) -> bool {
        let host = host.to_ascii_lowercase();
        let with_port = format!("{host}:{port}");
        let matches = |allowed: &String| match allowed.strip_prefix("*.") {
            Some(domain) => host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.')),
            None => *allowed == host || *allowed == with_port,
        };
        self.hosts.iter().any(matches) || self.private.has(&host, port)
    }
}

/// A proxy; it ends with this, and so do its connections.
pub(crate) struct Proxy(JoinHandle<()>);

impl Drop for Proxy {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Proxy {
    /// Listens in a folder that only we can enter.
    pub(crate) fn start(folder: &Path, allowed: Allowed) -> io::Result<Self> {
        // A socket's address is short; through the open folder any path will do.
        let opened = File::open(folder)?;
        let path = format!("/proc/self/fd/{}/{}", opened.as_raw_fd(), proxy_socket());
        let listener = UnixListener::bind(path)?;
        Ok(Self(tokio::spawn(serve(listener, Arc::new(allowed)))))
    }
}

async fn serve(listener: UnixListener, allowed: Arc<Allowed>) {
    let room = Arc::new(Semaphore::new(PROXY_CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        // Never closed. Whoever waits for it has a place in the queue of its socket.
        let Ok(of_all) = ALL.acquire().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            // Too many files are open, for now: a gear that lives long must not lose its way out.
            Err(error) => {
                tracing::warn!(%error, "a gear's connection could not be taken");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let allowed = Arc::clone(&allowed);
        connections.spawn(async move {
            // Either side may go away at any time.
            let _ = connect(stream, &allowed).await;
            drop((permit, of_all));
        });
    }
}

async fn connect(mut inside: UnixStream, allowed: &Allowed) -> io::Result<()> {
    let head = match timeout(CONNECT_TIMEOUT, read_head(&mut inside)).await {
        Ok(Ok(head)) => head,
        Ok(Err(_)) | Err(_) => return answer(&mut inside, "400 Bad Request").await,
    };
    let Some(request) = Request::parse(&head) else {
        return answer(&mut inside, "400 Bad Request").await;
    };
    if !allowed.allow(&request.host, request.port) {
        tracing::info!(host = request.host, port = request.port, "a gear was kept from a host");
        return answer(&mut inside, "403 Forbidden").await;
    }
    let outside = dial(&request.host, request.port, &allowed.private).await;
    let mut outside: TcpStream = match outside {
        Ok(stream) => stream,
        Err(Unreachable::Refused(_)) => return answer(&mut inside, "403 Forbidden").await,
        Err(_) => return answer(&mut inside, "502 Bad Gateway").await,
    };
    match &request.forward {
        Some(head) => outside.write_all(head.as_bytes()).await?,
        None => inside.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?,
    }
    relay(inside, &mut outside, PROXY_IDLE).await
}

/// Passes everything on in both directions, until both have ended or nothing comes any more.
async fn relay(
    inside: UnixStream,
    outside: &mut (impl AsyncRead + AsyncWrite + Unpin),
    idle: Duration,
) -> io::Result<()> {
    let passed = Arc::new(AtomicU64::new(0));
    let mut inside = Counted { stream: inside, passed: Arc::clone(&passed) };
    let silence = async {
        let mut before = 0;
        loop {
            sleep(idle).await;
            let now = passed.load(Ordering::Relaxed);
            if now == before {
                return;
            }
            before = now;
        }
    };
    // What was said before the first look counts as well.
    passed.fetch_add(1, Ordering::Relaxed);
    let silence = pin!(silence);
    tokio::select! {
        copied = copy_bidirectional(&mut inside, outside) => copied.map(drop),
        () = silence => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Counts what passes: all of it does so here.
struct Counted {
    stream: UnixStream,
    passed: Arc<AtomicU64>,
}

impl Counted {
    fn note<T>(&self, polled: Poll<T>) -> Poll<T> {
        if polled.is_ready() {
            self.passed.fetch_add(1, Ordering::Relaxed);
        }
        polled
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.note(polled)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

async fn answer(inside: &mut UnixStream, status: &str) -> io::Result<()> {
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    inside.write_all(head.as_bytes()).await
}

/// Byte by byte: what follows the head is not ours.
async fn read_head(inside: &mut UnixStream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == PROXY_HEAD_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        head.push(inside.read_u8().await?);
    }
    String::from_utf8(head).map_err(|_| io::ErrorKind::InvalidData.into())
}

struct Request {
    host: String,
    port: u16,
    /// The head for the server; without one a tunnel is asked for.
    forward: Option<String>,
}

impl Request {
    fn parse(head: &str) -> Option<Self> {
        let (line, headers) = head.split_once("\r\n")?;
        let mut words = line.split(' ');
        let (method, target, version) = (words.next()?, words.next()?, words.next()?);
        if words.next().is_some() || !version.starts_with("HTTP/1.") {
            return None;
        }
        if method == "CONNECT" {
            let (host, port) = authority(target, None)?;
            return Some(Self { host, port, forward: None });
        }
        let rest = target.strip_prefix("http://")?;
        let (place, path) = match rest.find(['/', '?']) {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let (host, port) = authority(place, Some(80))?;
        // A line that begins with a blank belongs to the one before it, which may not be kept; half
        // a line break is a whole one for some servers.
        let is_odd =
            |header: &str| header.starts_with([' ', '\t']) || header.contains(['\r', '\n']);
        if line.contains(char::is_control) || headers.split("\r\n").any(is_odd) {
            return None;
        }
        // One request per connection: the next one may be for somebody else. The server is told the
        // host that was judged, not another one.
        let ours = ["host", "connection", "proxy-connection", "proxy-authorization", "keep-alive"];
        let kept = headers.split("\r\n").filter(|header| {
            let name = header.split(':').next().unwrap_or_default().trim();
            !header.is_empty() && !ours.contains(&name.to_ascii_lowercase().as_str())
        });
        let kept: String = kept.map(|header| format!("{header}\r\n")).collect();
        let slash = if path.starts_with('/') { "" } else { "/" };
        let line = format!("{method} {slash}{path} HTTP/1.1\r\nhost: {place}");
        let forward = Some(format!("{line}\r\n{kept}connection: close\r\n\r\n"));
        Some(Self { host, port, forward })
    }
}

fn authority(text: &str, default: Option<u16>) -> Option<(String, u16)> {
    if text.contains('@') || text.is_empty() {
        return None;
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
        Some(_) | None => (text, default?),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_hosts() {
        let network = ["api.example.com", "Shop.example.com:8443", "*.example.org"];
        let allowed = Allowed::of(&Permissions {
            network: network.map(str::to_owned).to_vec(),
            private_network: vec!["localhost:80".to_owned()],
            ..Permissions::default()
        });
        for (host, port) in [
            ("api.example.com", 443),
            ("API.example.com", 80),
            ("shop.example.com", 8443),
            ("a.b.example.org", 443),
            ("localhost", 80),
        ] {
            assert!(allowed.allow(host, port), "{host}:{port}");
        }
        for (host, port) in [
            ("example.com", 443),
            ("xapi.example.com", 443),
            ("shop.example.com", 443),
            ("example.org", 443),
            ("evilexample.org", 443),
            ("localhost", 81),
            ("127.0.0.1", 80),
        ] {
            assert!(!allowed.allow(host, port), "{host}:{port}");
        }
    }

    #[tokio::test]
    async fn a_connection_on_which_nobody_says_anything_ends() {
        let (inside, mut gear) = UnixStream::pair().expect("a pair");
        let (mut outside, mut server) = UnixStream::pair().expect("a pair");
        let idle = Duration::from_millis(50);
        let relaying = async { relay(inside, &mut outside, idle).await };
        let talking = async {
            gear.write_all(b"asked").await.expect("it passes");
            let mut heard = [0; 5];
            server.read_exact(&mut heard).await.expect("it passes");
            heard
        };
        let (relayed, heard) = tokio::join!(relaying, talking);
        assert_eq!(&heard, b"asked");
        assert_eq!(relayed.expect_err("silence").kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn what_is_asked() {
        let tunnel = Request::parse("CONNECT [::1]:443 HTTP/1.1\r\n\r\n").expect("a request");
        assert_eq!((tunnel.host.as_str(), tunnel.port, tunnel.forward), ("::1", 443, None));
        let head = "GET http://a.b?c HTTP/1.1\r\nHost: other.example\r\nConnection: keep-alive\r\n\
                    Accept: x\r\n\r\n";
        let plain = Request::parse(head).expect("a request");
        assert_eq!((plain.host.as_str(), plain.port), ("a.b", 80));
        let forward = "GET /?c HTTP/1.1\r\nhost: a.b\r\nAccept: x\r\nconnection: close\r\n\r\n";
        assert_eq!(plain.forward.as_deref(), Some(forward));
        let folded = "GET http://a.b/ HTTP/1.1\r\nAccept: x\r\n Host: other.example";
        let halved = "GET http://a.b/ HTTP/1.1\r\nAccept: x\nHost: other.example";
        let within = "GET http://a.b\nHost:x/ HTTP/1.1";
        for bad in [
            "GET / HTTP/1.1",
            "CONNECT a HTTP/1.1",
            "CONNECT u@a:1 HTTP/1.1",
            "x",
            "",
            folded,
            halved,
            within,
        ] {
            assert!(Request::parse(&format!("{bad}\r\n\r\n")).is_none(), "{bad}");
        }
    }
}
