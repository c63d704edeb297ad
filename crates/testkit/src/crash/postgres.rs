//! Crash points on the way to a PostgreSQL server: the client's process is killed before a
//! statement is sent, or when it was sent and nobody is left to read its answer.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use super::point;

/// A proxy in the process that is going to be killed. Dropping it ends it.
pub struct Points {
    address: SocketAddr,
    armed: Arc<AtomicBool>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Points {
    /// Listens on a free port of this host and passes everything on to `server`.
    pub async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound port");
        let armed = Arc::new(AtomicBool::new(false));
        let accepting = tokio::spawn({
            let armed = Arc::clone(&armed);
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    tokio::spawn(serve(client, server, Arc::clone(&armed)));
                }
            }
        });
        Self { address, armed, accepting }
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on every statement is two points.
    pub fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }
}

impl Drop for Points {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve(client: TcpStream, server: SocketAddr, armed: Arc<AtomicBool>) {
    let Ok(server) = TcpStream::connect(server).await else { return };
    if client.set_nodelay(true).is_err() || server.set_nodelay(true).is_err() {
        return;
    }
    let (from_client, mut to_client) = client.into_split();
    let (mut from_server, to_server) = server.into_split();
    // Either side ending ends both.
    tokio::select! {
        _ = upstream(from_client, to_server, &armed) => {}
        _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
    }
}

/// Message by message: a statement is one `Query`, or an `Execute` with its `Sync`.
async fn upstream(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    armed: &AtomicBool,
) -> io::Result<()> {
    // The first message has no type.
    let mut untyped = true;
    loop {
        let mut message = vec![0; if untyped { 4 } else { 5 }];
        from.read_exact(&mut message).await?;
        let kind = if untyped { 0 } else { message[0] };
        let length = message.last_chunk().map_or(0, |length| u32::from_be_bytes(*length));
        let end = usize::try_from(length).unwrap_or(usize::MAX) + usize::from(!untyped);
        let read = message.len();
        message.resize(end.max(read), 0);
        from.read_exact(&mut message[read..]).await?;
        untyped = false;
        let armed = armed.load(Ordering::SeqCst);
        if armed && matches!(kind, b'E' | b'Q') {
            point();
        }
        to.write_all(&message).await?;
        if armed && matches!(kind, b'S' | b'Q') {
            point();
        }
    }
}
