//! The network between daemons and brokers, or between those who have a PostgreSQL and that, which
//! fails when it is told to: connections are cut, cut in the middle of what they carry, closed in
//! one direction only, slowed down, or not made at all. Each new connection goes to a server of its
//! choice. Daemons and brokers speak TLS with it, so that what brokers say can be heard.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::tls::Ends;
use super::witness::{Record, Witness};
use crate::random::Random;

const PIECE_BYTES: usize = 16 << 10;

/// What happens to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing yet.
    None,
    /// It ends now, in both directions.
    Cut,
    /// It ends in the middle of the next thing that is said.
    Tear,
    /// What the daemon says no longer arrives; what the broker says does.
    CloseUp,
    /// What the broker says no longer arrives; what the daemon says does.
    CloseDown,
}

/// A running proxy; it lives as long as the runtime.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    servers: Vec<SocketAddr>,
    /// Nothing where plain text passes.
    tls: Option<Ends>,
    random: Mutex<Random>,
    delay_ms: AtomicU64,
    /// Nobody gets through.
    away: AtomicBool,
    connections: Mutex<BTreeMap<u64, watch::Sender<Fault>>>,
    made: AtomicU64,
    record: Record,
}

impl Proxy {
    pub(crate) async fn start(
        servers: Vec<SocketAddr>,
        tls: Option<Ends>,
        random: Random,
    ) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no free port")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            servers,
            tls,
            random: Mutex::new(random),
            delay_ms: AtomicU64::new(0),
            away: AtomicBool::new(false),
            connections: Mutex::default(),
            made: AtomicU64::new(0),
            record: Record::default(),
        });
        let accepting = Arc::clone(&shared);
        drop(tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                drop(tokio::spawn(serve(client, Arc::clone(&accepting))));
            }
        }));
        Ok(Self { address, shared })
    }

    /// Between a process and a PostgreSQL at this address; gives the address by which it is
    /// reached.
    pub(crate) async fn to_store(store: &str, random: Random) -> Result<(Self, String)> {
        let (front, rest) = store.rsplit_once('@').context("the store's address has a user")?;
        let (host, database) = rest.split_once('/').context("the store's address has a name")?;
        let way = Self::start(vec![host.parse()?], None, random).await?;
        let through = format!("{front}@{}/{database}", way.address());
        Ok((way, through))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections that were made so far.
    pub(crate) fn made(&self) -> u64 {
        self.shared.made.load(Ordering::SeqCst)
    }

    /// What the brokers were heard to say.
    pub(crate) fn record(&self) -> &Record {
        &self.shared.record
    }

    /// Does this to one connection; `false` when there is none.
    pub(crate) fn fail_one(&self, fault: Fault, random: &mut Random) -> bool {
        let connections = lock(&self.shared.connections);
        let alive: Vec<_> =
            connections.values().filter(|fate| *fate.borrow() == Fault::None).collect();
        if alive.is_empty() {
            return false;
        }
        random.pick(&alive).send_replace(fault);
        true
    }

    /// Does this to all of them, and says how many there were.
    pub(crate) fn fail_all(&self, fault: Fault) -> u64 {
        let connections = lock(&self.shared.connections);
        let alive = connections.values().filter(|fate| *fate.borrow() == Fault::None);
        alive.map(|fate| fate.send_replace(fault)).fold(0, |count, _| count + 1)
    }

    /// From now on nobody gets through, and who had is cut off; until it is taken back.
    pub(crate) fn close(&self, is_closed: bool) {
        self.shared.away.store(is_closed, Ordering::SeqCst);
        if is_closed {
            self.fail_all(Fault::Cut);
        }
    }

    /// Everything that is said arrives so much later from now on.
    pub(crate) fn delay(&self, delay: Duration) {
        let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(0);
        self.shared.delay_ms.store(delay_ms, Ordering::SeqCst);
    }
}

async fn serve(client: TcpStream, shared: Arc<Shared>) {
    if shared.away.load(Ordering::SeqCst) {
        return;
    }
    let server = *lock(&shared.random).pick(&shared.servers);
    let Ok(server) = TcpStream::connect(server).await else { return };
    let number = shared.made.fetch_add(1, Ordering::SeqCst);
    let (fate, mut told) = watch::channel(Fault::None);
    lock(&shared.connections).insert(number, fate.clone());
    tokio::select! {
        () = join(client, server, fate, &shared) => {}
        _ = told.wait_for(|fate| *fate == Fault::Cut) => {}
    }
    lock(&shared.connections).remove(&number);
}

/// Carries what both say until both have ended, or a handshake fails.
async fn join(
    client: TcpStream,
    server: TcpStream,
    fate: watch::Sender<Fault>,
    shared: &Arc<Shared>,
) {
    let Some(tls) = &shared.tls else { return relay(client, server, fate, shared).await };
    if let Ok((client, server)) = tokio::try_join!(tls.accept(client), tls.connect(server)) {
        relay(client, server, fate, shared).await;
    }
}

async fn relay(
    client: impl AsyncRead + AsyncWrite,
    server: impl AsyncRead + AsyncWrite,
    fate: watch::Sender<Fault>,
    shared: &Shared,
) {
    let (from_client, to_client) = split(client);
    let (from_server, to_server) = split(server);
    let way = |closed_by, witness| {
        let (fate, told) = (fate.clone(), fate.subscribe());
        Way { closed_by, fate, told, witness }
    };
    let up = way(Fault::CloseUp, None);
    let down = way(Fault::CloseDown, Some(Witness::new(shared.record.clone())));
    tokio::join!(
        up.carry(from_client, to_server, shared),
        down.carry(from_server, to_client, shared)
    );
}

/// One direction of a connection.
struct Way {
    closed_by: Fault,
    fate: watch::Sender<Fault>,
    told: watch::Receiver<Fault>,
    /// Of what brokers say.
    witness: Option<Witness>,
}

impl Way {
    async fn carry(
        mut self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        shared: &Shared,
    ) {
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let count = tokio::select! {
                read = from.read(&mut piece) => match read {
                    Ok(count @ 1..) => count,
                    Ok(_) | Err(_) => break,
                },
                _ = self.told.wait_for(|fate| *fate == self.closed_by) => break,
            };
            if let Some(witness) = &mut self.witness {
                witness.hear(&piece[..count]);
            }
            let delay_ms = shared.delay_ms.load(Ordering::SeqCst);
            if delay_ms > 0 {
                tokio::time::sleep(Duration::from_millis(delay_ms)).await;
            }
            let torn = *self.told.borrow() == Fault::Tear;
            let count = if torn { count / 2 } else { count };
            let written = to.write_all(&piece[..count]).await;
            if written.is_err() || to.flush().await.is_err() {
                break;
            }
            if torn {
                self.fate.send_replace(Fault::Cut);
            }
        }
        // The other end may be gone already.
        let _ = to.shutdown().await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
