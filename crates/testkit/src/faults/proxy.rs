//! Between a client and a PostgreSQL server: passes requests on one by one, numbers them over all
//! connections, and lets the planned ones fail.
//!
//! What the client hears is always what the server has really said or what a lost connection looks
//! like; nothing is made up. A request that is to fail is put in other words, which the server
//! refuses.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::wire::{Message, READY, Requests, Unit, query};
use super::{Fault, OUTAGE, PATIENCE, Planned};

/// Put in the place of a request that is to fail: what ran so far is undone, as after any ERROR.
const REFUSED: &str = "DO $$ BEGIN RAISE EXCEPTION 'out of luck' USING ERRCODE = '53200'; END $$";
/// A COMMIT that fails has rolled back, and no transaction is open afterwards.
const COMMIT_REFUSED: &str = "ROLLBACK; DO $$ BEGIN RAISE EXCEPTION 'out of luck' USING ERRCODE = \
                              '53200'; END $$";
/// A cancel that arrives when the request begins, COMMIT included: an open transaction is aborted
/// and still open.
const CANCELLED: &str = "SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(60)";

/// How long a client that has sent many requests at once may take to send the rest of them.
const PIPELINED: Duration = Duration::from_millis(30);
/// Who says nothing for so long has nothing to say.
const QUIET: Duration = Duration::from_millis(25);
/// Beyond the client's patience.
const LATER: Duration = Duration::from_millis(400);

/// Whether a request is being held up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    NotYet,
    /// Others have their turn.
    Now,
    Released,
}

/// A running proxy. Dropping it ends it; connections end with their client.
pub(super) struct Proxy {
    pub(super) address: SocketAddr,
    pub(super) shared: Arc<Shared>,
    accepting: tokio::task::JoinHandle<()>,
}

/// What all connections know.
pub(super) struct Shared {
    plan: Mutex<Plan>,
    pub(super) held: watch::Sender<Held>,
    /// Faults that have begun and are not over.
    pub(super) under_way: watch::Sender<u64>,
    away: watch::Sender<bool>,
    /// Requests of all connections, counted or not.
    requests: watch::Sender<u64>,
}

#[derive(Default)]
struct Plan {
    armed: bool,
    planned: [Option<Planned>; 2],
    /// Requests since the proxy was armed, and those of them after the first fault.
    seen: [u64; 2],
    met: Vec<String>,
}

/// What a run came to.
pub(super) struct Seen {
    /// Requests until the first fault, or until the end.
    pub(super) requests: u64,
    /// Requests after it.
    pub(super) after: u64,
    /// What the faults have met.
    pub(super) met: Vec<String>,
}

impl Proxy {
    pub(super) async fn start(server: SocketAddr, planned: [Option<Planned>; 2]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound port");
        let shared = Arc::new(Shared {
            plan: Mutex::new(Plan { planned, ..Plan::default() }),
            held: watch::channel(Held::NotYet).0,
            under_way: watch::channel(0).0,
            away: watch::channel(false).0,
            requests: watch::channel(0).0,
        });
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
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Shared {
    pub(super) fn arm(&self, armed: bool) {
        self.plan().armed = armed;
    }

    /// Until what was begun earlier is over, such as a rollback for which nobody waits.
    pub(super) async fn quiet(&self) {
        let mut requests = self.requests.subscribe();
        while tokio::time::timeout(QUIET, requests.changed()).await.is_ok() {}
    }

    pub(super) fn seen(&self) -> Seen {
        let plan = self.plan();
        Seen { requests: plan.seen[0], after: plan.seen[1], met: plan.met.clone() }
    }

    /// What happens to the request that comes now.
    fn fault_for(&self, unit: &Unit) -> Option<Fault> {
        self.requests.send_modify(|count| *count += 1);
        let mut plan = self.plan();
        if !plan.armed || !unit.is_request {
            return None;
        }
        // Until the first one is met its number counts, then that of the second.
        let turn = plan.met.len();
        let counter = turn.min(1);
        let number = plan.seen[counter];
        plan.seen[counter] += 1;
        let planned = plan.planned.get(turn).copied().flatten();
        let Planned { fault, .. } = planned.filter(|planned| planned.at == number)?;
        plan.met.push(format!("{fault:?} at {number} ({})", unit.about));
        self.under_way.send_modify(|count| *count += 1);
        Some(fault)
    }

    fn over(&self) {
        self.under_way.send_modify(|count| *count -= 1);
    }

    /// Others have their turn while something is held up; once.
    async fn hold(&self) {
        let mut held = self.held.subscribe();
        self.held.send_if_modified(|held| {
            let first = *held == Held::NotYet;
            if first {
                *held = Held::Now;
            }
            first
        });
        let _ = held.wait_for(|held| *held == Held::Released).await;
    }

    /// The server is gone for everybody, for a while.
    fn go_away(self: &Arc<Self>) {
        self.away.send_replace(true);
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(OUTAGE).await;
            shared.away.send_replace(false);
            shared.over();
        });
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn serve(client: TcpStream, server: SocketAddr, shared: Arc<Shared>) {
    let mut away = shared.away.subscribe();
    if *away.borrow() {
        return;
    }
    let Ok(server) = TcpStream::connect(server).await else { return };
    if client.set_nodelay(true).is_err() || server.set_nodelay(true).is_err() {
        return;
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (answered, answers) = watch::channel(0);
    let mute_from = AtomicU64::new(u64::MAX);
    let over = AtomicBool::new(false);
    let mut up = Up {
        shared: &shared,
        from: BufReader::new(from_client),
        to: to_server,
        requests: Requests::default(),
        sent: 0,
        answers,
        mute_from: &mute_from,
        over: &over,
    };
    // Either side ending ends both, and that is the cut.
    tokio::select! {
        _ = up.run() => {}
        _ = answers_down(from_server, to_client, answered, &mute_from) => {}
        _ = away.wait_for(|away| *away) => {}
    }
    if over.swap(false, Ordering::SeqCst) {
        shared.over();
    }
}

/// What the client says.
struct Up<'a> {
    shared: &'a Arc<Shared>,
    from: BufReader<OwnedReadHalf>,
    to: OwnedWriteHalf,
    requests: Requests,
    /// Requests that the server has got.
    sent: u64,
    /// How often the server was ready: once at first, and once after each request.
    answers: watch::Receiver<u64>,
    /// From this request on no answer gets through.
    mute_from: &'a AtomicU64,
    /// Whether a fault of this connection is under way, which ends with it.
    over: &'a AtomicBool,
}

impl Up<'_> {
    async fn run(&mut self) -> std::io::Result<()> {
        let hello = Message::read(&mut self.from, false).await?;
        self.to.write_all(&hello.bytes).await?;
        loop {
            let unit = self.requests.next(&mut self.from).await?;
            match self.shared.fault_for(&unit) {
                None => self.pass(&unit).await?,
                Some(fault) => {
                    self.over.store(true, Ordering::SeqCst);
                    if self.fail(fault, unit).await? {
                        return Ok(());
                    }
                    self.over.store(false, Ordering::SeqCst);
                    self.shared.over();
                }
            }
        }
    }

    async fn pass(&mut self, unit: &Unit) -> std::io::Result<()> {
        self.sent += u64::from(unit.is_request);
        self.to.write_all(&unit.bytes).await
    }

    /// Whether the connection ends with it.
    async fn fail(&mut self, fault: Fault, unit: Unit) -> std::io::Result<bool> {
        match fault {
            Fault::Error | Fault::Cancel => {
                let instead = match (fault, unit.is_commit()) {
                    (Fault::Cancel, _) => CANCELLED,
                    (_, true) => COMMIT_REFUSED,
                    (_, false) => REFUSED,
                };
                self.pass(&Unit { bytes: query(instead), ..unit }).await?;
                // Its answer is part of it.
                self.answered().await;
                Ok(false)
            }
            Fault::Delay => {
                self.shared.hold().await;
                self.pass(&unit).await?;
                Ok(false)
            }
            Fault::Late => {
                let late = tokio::time::sleep(PATIENCE + LATER);
                tokio::join!(late, self.shared.hold());
                self.mute_from.store(self.sent + 1, Ordering::SeqCst);
                self.pass(&unit).await?;
                self.rest().await?;
                Ok(true)
            }
            Fault::CutBefore => {
                self.answered().await;
                Ok(true)
            }
            Fault::CutAfter => {
                self.mute_from.store(self.sent + 1, Ordering::SeqCst);
                self.pass(&unit).await?;
                self.answered().await;
                Ok(true)
            }
            Fault::CutAnswers => {
                self.mute_from.store(self.sent + 1, Ordering::SeqCst);
                self.pass(&unit).await?;
                self.rest().await?;
                Ok(true)
            }
            Fault::Outage => {
                self.mute_from.store(self.sent + 1, Ordering::SeqCst);
                self.pass(&unit).await?;
                self.answered().await;
                // It is over when the server is back, not when this connection ends.
                self.over.store(false, Ordering::SeqCst);
                self.shared.go_away();
                Ok(true)
            }
        }
    }

    /// What was sent together with the last request arrives as well.
    async fn rest(&mut self) -> std::io::Result<()> {
        // Nothing follows, or its client is gone.
        while let Ok(Ok(unit)) =
            tokio::time::timeout(PIPELINED, self.requests.next(&mut self.from)).await
        {
            self.pass(&unit).await?;
        }
        self.answered().await;
        Ok(())
    }

    /// Until the server has answered all that it has got.
    async fn answered(&mut self) {
        let sent = self.sent;
        let _ = self.answers.wait_for(|ready| *ready > sent).await;
    }
}

/// What the server says, message by message.
async fn answers_down(
    from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    answered: watch::Sender<u64>,
    mute_from: &AtomicU64,
) -> std::io::Result<()> {
    let mut from = BufReader::new(from);
    loop {
        let message = Message::read(&mut from, true).await?;
        // The answer to the n-th request comes after it was ready n times.
        let about = *answered.borrow();
        if about < mute_from.load(Ordering::SeqCst) {
            to.write_all(&message.bytes).await?;
        }
        if message.kind == Some(READY) {
            answered.send_modify(|count| *count += 1);
        }
    }
}
