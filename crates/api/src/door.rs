//! The two doors: a socket file that only its owner can open, and loopback TCP.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;

use hyper::service::service_fn;
use semel_serve::{ConnectionLimits, Connections, Place, StrangerLimits};
use semel_wire::place::{Plain, may_be_plain};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::{sleep, timeout};

use crate::access::Door;
use crate::limits::{
    ACCEPT_RETRY, FIRST_HEAD_TIMEOUT, HEAD_BYTES_MAX, STRANGER_BYTES_MAX, STRANGER_GRACE,
    STRANGER_LIFE, STRANGERS_MAX,
};
use crate::{Api, ApiOptions, answer};

/// Where calls come from.
pub enum Listener {
    /// The socket file.
    Socket(UnixListener),
    /// Loopback only.
    Tcp(TcpListener),
}

enum Stream {
    Socket(UnixStream),
    Tcp(TcpStream),
}

/// Makes the socket file, in the place of one that a dead daemon left: whoever calls this holds the
/// folder's lock. At no moment can anybody else open it: it gets its name after its mode.
pub fn bind_socket(path: &Path) -> io::Result<UnixListener> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".new");
    match std::fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(&unfinished)?;
    std::fs::set_permissions(&unfinished, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&unfinished, path)?;
    Ok(listener)
}

/// Serves one door until `shutdown` comes; then streams end, calls under way are answered, and the
/// rest is not waited for longer than the options say.
pub async fn serve(
    api: Arc<Api>,
    listener: Listener,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    if let Listener::Tcp(tcp) = &listener
        && !may_be_plain(tcp.local_addr()?.ip(), Plain::LoopbackOnly)
    {
        let what = "the local API is served on loopback addresses only";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let connections = Connections::new(limits(&api.options, &listener));
    let mut shutdown = pin!(shutdown);
    loop {
        let (place, stream) = tokio::select! {
            () = &mut shutdown => break,
            Some(accepted) = accept(&connections, &listener) => accepted,
            else => break,
        };
        drop(tokio::spawn(serve_one(Arc::clone(&api), place, stream)));
    }
    drop(listener);
    api.stop();
    connections.stop();
    let all_gone = async {
        connections.drained().await;
        // A call may outlive its connection: what has begun is done to its end.
        api.drained().await;
    };
    if timeout(api.options.drain_max, all_gone).await.is_err() {
        tracing::warn!("not every call has ended in time");
    }
    Ok(())
}

/// Whoever comes by the socket is known; by TCP, whoever has shown a valid token.
fn limits(options: &ApiOptions, listener: &Listener) -> ConnectionLimits {
    let strangers_max = (options.tcp_connections_max / 4).clamp(1, STRANGERS_MAX);
    let connections_max = match listener {
        Listener::Socket(_) => options.connections_max,
        Listener::Tcp(_) => options.tcp_connections_max.saturating_sub(strangers_max).max(1),
    };
    ConnectionLimits {
        connections_max,
        strangers: StrangerLimits {
            strangers_max,
            // All of them are on this machine.
            of_address_max: strangers_max,
            first_head_timeout: FIRST_HEAD_TIMEOUT,
            life: STRANGER_LIFE,
            bytes_max: STRANGER_BYTES_MAX,
            grace: STRANGER_GRACE,
        },
        head_timeout: options.head_timeout,
        head_bytes_max: HEAD_BYTES_MAX,
        write_timeout: Some(options.write_timeout),
    }
}

/// The next connection, once there is room for it.
async fn accept(connections: &Connections, listener: &Listener) -> Option<(Place, Stream)> {
    loop {
        let accepted = match listener {
            Listener::Socket(socket) => {
                let room = connections.known_room().await?;
                let accepted = socket.accept().await;
                accepted.map(|(stream, _)| Some((room.known(), Stream::Socket(stream))))
            }
            Listener::Tcp(tcp) => {
                let room = connections.room().await?;
                let accepted = tcp.accept().await;
                accepted.map(|(stream, peer)| {
                    room.stranger(peer.ip()).map(|place| (place, Stream::Tcp(stream)))
                })
            }
        };
        match accepted {
            Ok(Some((_, Stream::Socket(stream)))) if !is_ours(&stream) => {
                tracing::warn!(security = true, "another user has opened the socket");
            }
            Ok(Some(accepted)) => return Some(accepted),
            Ok(None) => {}
            Err(error) if went_away(&error) => {}
            Err(error) => {
                tracing::error!(%error, "calls cannot be accepted; trying again");
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Whether the same user is at the other end.
fn is_ours(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid().as_raw();
    is_same_user(stream.peer_cred().ok().map(|peer| peer.uid()), own)
}

/// Who cannot be told is somebody else; also root is.
fn is_same_user(peer: Option<u32>, own: u32) -> bool {
    peer == Some(own)
}

fn went_away(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    [ConnectionAborted, ConnectionRefused, ConnectionReset].contains(&error.kind())
}

async fn serve_one(api: Arc<Api>, place: Place, stream: Stream) {
    let service = |door| service_fn(move |request| answer(Arc::clone(&api), door, request));
    match stream {
        Stream::Socket(stream) => place.serve(stream, service(Door::Socket)).await,
        Stream::Tcp(stream) => {
            // Answers are small and somebody waits for each.
            let _ = stream.set_nodelay(true);
            place.serve(stream, service(Door::Tcp)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_user_is_ours() {
        let ours = |peer| is_same_user(peer, 1000);
        assert_eq!([Some(1000), Some(1001), Some(0), None].map(ours), [true, false, false, false]);
    }
}
