//! A TCP proxy that fails on purpose: between a client and a real server it cuts the connection
//! around a chosen request, or spoils it, and counts how often the conversation turned.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What happens to the connection that carries the chosen request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request is lost, then the connection.
    CutBefore,
    /// The server gets the request and answers; the answer is lost, then the connection.
    CutAfter,
    /// The server gets the request; its answer never comes, the connection stays open.
    Stall,
    /// The server gets the request; its answer comes once the proxy is told to let it go.
    Hold,
    /// The server gets the request spoilt, in the first letter of what it was chosen by, and
    /// answers with an error; the connection goes on.
    Spoil,
}

/// A running proxy. Dropping it ends it.
pub struct Proxy {
    address: std::net::SocketAddr,
    shared: Arc<Shared>,
    accepting: tokio::task::JoinHandle<()>,
}

struct Plan {
    needle: Vec<u8>,
    fault: Fault,
    /// Not only the next one.
    always: bool,
}

#[derive(Default)]
struct Shared {
    plan: Mutex<Option<Plan>>,
    fired: watch::Sender<usize>,
    refused: watch::Sender<usize>,
    turns: AtomicUsize,
    away: watch::Sender<bool>,
    goes_at_fault: AtomicBool,
    /// Answers that are held back have not been let go.
    holds: watch::Sender<bool>,
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

    /// In front of a database; gives its address behind the proxy as well.
    pub async fn before(database: &str) -> (Self, String) {
        let (front, rest) = database.rsplit_once('@').expect("an address names a user");
        let (server, name) = rest.split_once('/').expect("an address names a database");
        let mut found = tokio::net::lookup_host(server).await.expect("a host that is known");
        let proxy = Self::start(found.next().expect("an address")).await;
        let far = format!("{front}@{}/{name}", proxy.address());
        (proxy, far)
    }

    /// Where clients connect.
    pub fn address(&self) -> std::net::SocketAddr {
        self.address
    }

    /// The next request whose bytes contain `needle` meets `fault`; later ones do not.
    pub fn fail_next(&self, needle: &str, fault: Fault) {
        self.plan(needle, fault, false);
    }

    /// As [`Proxy::fail_next`], and all later ones as well.
    pub fn fail_always(&self, needle: &str, fault: Fault) {
        self.plan(needle, fault, true);
    }

    fn plan(&self, needle: &str, fault: Fault, always: bool) {
        let needle = needle.as_bytes().to_vec();
        *lock(&self.shared.plan) = Some(Plan { needle, fault, always });
    }

    /// Until [`Proxy::come_back`] the server seems to be gone: connections are cut, and new ones
    /// are closed as soon as they are made.
    pub fn go_away(&self) {
        self.shared.away.send_replace(true);
    }

    /// The server is there again, and stays: a fault is counted before it makes the server go.
    pub fn come_back(&self) {
        let _plan = lock(&self.shared.plan);
        self.shared.goes_at_fault.store(false, Ordering::SeqCst);
        self.shared.away.send_replace(false);
    }

    /// From the moment at which the next fault happens the server is gone.
    pub fn go_away_at_the_fault(&self) {
        self.shared.goes_at_fault.store(true, Ordering::SeqCst);
    }

    /// Lets answers go that are held back.
    pub fn let_go(&self) {
        self.shared.holds.send_replace(false);
    }

    /// How many faults have happened.
    pub fn fired(&self) -> usize {
        *self.shared.fired.borrow()
    }

    /// Comes back when so many faults have happened.
    pub async fn until_fired(&self, count: usize) {
        let mut fired = self.shared.fired.subscribe();
        let _ = fired.wait_for(|fired| *fired >= count).await;
    }

    /// Comes back when clients have tried so often to reach a server that is gone.
    pub async fn until_refused(&self, count: usize) {
        let mut refused = self.shared.refused.subscribe();
        let _ = refused.wait_for(|refused| *refused >= count).await;
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
    if *shared.away.borrow() {
        shared.refused.send_modify(|refused| *refused += 1);
        return;
    }
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let clients_turn = AtomicBool::new(true);
    let (mute, held) = (AtomicBool::new(false), AtomicBool::new(false));

    let upstream = async {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from_client.read(&mut buffer).await {
            if !clients_turn.swap(true, Ordering::SeqCst) {
                shared.turns.fetch_add(1, Ordering::SeqCst);
            }
            match shared.fault_for(&mut buffer[..count]) {
                Some(Fault::CutBefore) => {
                    shared.leave_if_told();
                    return;
                }
                Some(Fault::CutAfter | Fault::Stall) => mute.store(true, Ordering::SeqCst),
                Some(Fault::Hold) => held.store(true, Ordering::SeqCst),
                Some(Fault::Spoil) | None => {}
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
            if held.load(Ordering::SeqCst) {
                let _ = shared.holds.subscribe().wait_for(|holds| !holds).await;
            }
            if to_client.write_all(&buffer[..count]).await.is_err() {
                return;
            }
        }
        if mute.load(Ordering::SeqCst) {
            // It has answered, and nobody has heard it.
            shared.leave_if_told();
        }
    };
    let mut away = shared.away.subscribe();
    // Either side ending ends both: that is the cut.
    tokio::select! {
        () = upstream => {}
        () = downstream => {}
        _ = away.wait_for(|away| *away) => {}
    }
}

impl Shared {
    fn fault_for(&self, bytes: &mut [u8]) -> Option<Fault> {
        let mut planned = lock(&self.plan);
        let Plan { needle, fault, always } = planned.as_ref()?;
        let place = bytes.windows(needle.len()).position(|window| window == needle)?;
        let (fault, always) = (*fault, *always);
        match fault {
            Fault::Spoil => bytes[place] = b'X',
            Fault::Hold => drop(self.holds.send_replace(true)),
            Fault::CutBefore | Fault::CutAfter | Fault::Stall => {}
        }
        if fault != Fault::Stall && !always {
            *planned = None;
        }
        self.fired.send_modify(|fired| *fired += 1);
        Some(fault)
    }

    fn leave_if_told(&self) {
        let _plan = lock(&self.plan);
        if self.goes_at_fault.swap(false, Ordering::SeqCst) {
            self.away.send_replace(true);
        }
    }

    /// A stall stays planned for as long as it lasts.
    fn stalls(&self) -> bool {
        matches!(*lock(&self.plan), Some(Plan { fault: Fault::Stall, .. }))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
