//! A TCP proxy that fails on purpose: between a client and a real server it cuts the connection
//! around a chosen request, and counts how often the conversation turned.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What happens to the connection that carries the chosen request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request is lost, then the connection.
    CutBefore,
    /// The server gets the request and answers; the answer is lost, then the connection.
    CutAfter,
    /// The server gets the request; its answer never comes, the connection stays open.
    Stall,
}

/// A running proxy. Dropping it ends it.
pub struct Proxy {
    address: std::net::SocketAddr,
    shared: Arc<Shared>,
    accepting: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    plan: Mutex<Option<(Vec<u8>, Fault)>>,
    fired: AtomicUsize,
    turns: AtomicUsize,
}

impl Proxy {
    /// Listens on a free port of this host and passes everything on to `server`.
    pub async fn start(server: std::net::SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound port");
        let shared = Arc::new(Shared::default());
        let accepting = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    tokio::spawn(serve(client, server, Arc::clone(&shared)));
                }
            }
        });
        Self { address, shared, accepting }
    }

    /// Where clients connect.
    pub fn address(&self) -> std::net::SocketAddr {
        self.address
    }

    /// The next request whose bytes contain `needle` meets `fault`; later ones do not.
    pub fn fail_next(&self, needle: &str, fault: Fault) {
        *lock(&self.shared.plan) = Some((needle.as_bytes().to_vec(), fault));
    }

    /// How many faults have happened.
    pub fn fired(&self) -> usize {
        self.shared.fired.load(Ordering::SeqCst)
    }

    /// How often a client spoke after a server had: round trips, whatever each carried.
    pub fn turns(&self) -> usize {
        self.shared.turns.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve(client: TcpStream, server: std::net::SocketAddr, shared: Arc<Shared>) {
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let clients_turn = AtomicBool::new(true);
    let mute = AtomicBool::new(false);

    let upstream = async {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from_client.read(&mut buffer).await {
            if !clients_turn.swap(true, Ordering::SeqCst) {
                shared.turns.fetch_add(1, Ordering::SeqCst);
            }
            match shared.fault_for(&buffer[..count]) {
                Some(Fault::CutBefore) => return,
                Some(Fault::CutAfter | Fault::Stall) => mute.store(true, Ordering::SeqCst),
                None => {}
            }
            if to_server.write_all(&buffer[..count]).await.is_err() {
                return;
            }
            if mute.load(Ordering::SeqCst) && !shared.stalls() {
                // The server answers all that it has got, and then finds that nothing follows.
                let _ = to_server.shutdown().await;
                return std::future::pending().await;
            }
        }
    };
    let downstream = async {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from_server.read(&mut buffer).await {
            clients_turn.store(false, Ordering::SeqCst);
            if mute.load(Ordering::SeqCst) {
                continue;
            }
            if to_client.write_all(&buffer[..count]).await.is_err() {
                return;
            }
        }
    };
    // Either side ending ends both: that is the cut.
    tokio::select! {
        () = upstream => {}
        () = downstream => {}
    }
}

impl Shared {
    fn fault_for(&self, bytes: &[u8]) -> Option<Fault> {
        let mut plan = lock(&self.plan);
        let (needle, fault) = plan.as_ref()?;
        if !bytes.windows(needle.len()).any(|window| window == needle) {
            return None;
        }
        let fault = *fault;
        if fault != Fault::Stall {
            *plan = None;
        }
        self.fired.fetch_add(1, Ordering::SeqCst);
        Some(fault)
    }

    /// A stall stays planned for as long as it lasts.
    fn stalls(&self) -> bool {
        matches!(*lock(&self.plan), Some((_, Fault::Stall)))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
