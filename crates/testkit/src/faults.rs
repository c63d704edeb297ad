//! Every fault at every place, for what speaks to PostgreSQL.
//!
//! A canonical run sends so many requests to the server (a `Query`, or everything up to a `Sync`),
//! over however many connections. [`every_fault`] runs it once for every request and every
//! [`Fault`], each time in a database of its own, and then once more with a second fault in what
//! recovers from the first: of those pairs a fixed sample, so that it stays finite. What must hold
//! afterwards is the run's own affair; that it ends at all is seen to here.

mod proxy;
mod wire;

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{FutureExt, StreamExt};
use semel_store::StoreError;
use semel_store::postgres::{Postgres, PostgresOptions};
use tokio_postgres::NoTls;
use tokio_postgres::error::SqlState;

use crate::dice::scattered;
use crate::servers;
use proxy::{Held, Proxy, Seen};

/// What happens to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The server answers with an ERROR, and has done nothing. After a COMMIT that failed so no
    /// transaction is open.
    Error,
    /// It is cancelled (`pg_cancel_backend`). A transaction that was open is aborted, and still
    /// open, also when it is the COMMIT.
    Cancel,
    /// It is held up while others have their turn, and then goes on.
    Delay,
    /// It arrives when its client has given it up.
    Late,
    /// It is lost with its connection.
    CutBefore,
    /// It is done, and nothing that was sent after it; its answer is lost with the connection.
    CutAfter,
    /// It and all that was sent together with it is done; the answers are lost with the
    /// connection.
    CutAnswers,
    /// It is done, its answer is lost, and so are all other connections; there are no new ones for
    /// a while.
    Outage,
}

impl Fault {
    /// Each of them.
    pub const ALL: [Self; 8] = [
        Self::Error,
        Self::Cancel,
        Self::Delay,
        Self::Late,
        Self::CutBefore,
        Self::CutAfter,
        Self::CutAnswers,
        Self::Outage,
    ];
}

/// How long a client behind the proxy waits for an answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long the server is away: longer than anybody tries again without a pause.
const OUTAGE: Duration = Duration::from_secs(1);
/// How long others have their turn. They may wait for a lock that the held request keeps.
const OTHERS_MAX: Duration = Duration::from_secs(4);
/// How long one of them waits for such a lock.
const LOCK_MAX: Duration = Duration::from_millis(1500);
/// A run that is not over by then hangs.
const HANGS_AFTER: Duration = Duration::from_secs(90);
/// How long the model database may take to be left alone.
const IN_USE_ROUNDS_MAX: u32 = 600;
const IN_USE_PAUSE: Duration = Duration::from_millis(50);
/// Runs at once: most of them wait for something.
const WIDTH: usize = 8;
/// Pairs of faults that are tried.
const PAIRS: usize = 48;
/// More requests than any canonical run should have.
const REQUESTS_MAX: u64 = 400;
/// Connections of a store behind the proxy.
const POOL: usize = 4;
/// How often each connection of a pool is tried afterwards.
const USES: usize = 5;

/// A fault and the number of the request that meets it: from the start, or from the first fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Planned {
    at: u64,
    fault: Fault,
}

/// What was tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tried {
    /// Requests of the canonical run.
    pub requests: u64,
    /// Runs with a fault.
    pub singles: usize,
    /// Runs with two.
    pub pairs: usize,
}

/// One run: a database of its own, and a way to it on which something may fail.
pub struct Faulty {
    proxy: Proxy,
    direct: String,
}

impl Faulty {
    /// The way on which something may fail, for the store that is under test.
    pub fn options(&self) -> PostgresOptions {
        // The proxy reads what passes, and knows no other beginning.
        let through = with_host(&self.direct, self.proxy.address);
        let mut options = PostgresOptions::new(format!("{through}?sslmode=disable"));
        options.pool_max = POOL;
        options.answer_timeout = PATIENCE;
        options
    }

    /// The same database for others, on whose way nothing fails. They do not wait for locks.
    pub fn others(&self) -> PostgresOptions {
        let mut options = PostgresOptions::new(self.direct.clone());
        options.pool_max = POOL;
        options.statement_timeout = LOCK_MAX;
        options
    }

    /// The same database, to look at what there is.
    pub fn direct(&self) -> &str {
        &self.direct
    }

    /// The fault happens during `run`. `meanwhile` is what others do when a request is held up.
    /// Returns when also what was late has arrived.
    pub async fn during<T>(
        &self,
        run: impl Future<Output = T>,
        meanwhile: impl Future<Output = ()>,
    ) -> T {
        let shared = &self.proxy.shared;
        shared.quiet().await;
        shared.arm(true);
        let run = async {
            let told = Box::pin(run).await;
            shared.arm(false);
            // Nothing will be held up any more.
            shared.held.send_if_modified(|held| {
                let never = *held == Held::NotYet;
                if never {
                    *held = Held::Released;
                }
                never
            });
            told
        };
        let others = async {
            let mut held = shared.held.subscribe();
            let held = held.wait_for(|held| *held != Held::NotYet).await.map(|held| *held);
            if held.is_ok_and(|held| held == Held::Now) {
                // Whoever waits for the one that is held up has to leave it.
                let _ = tokio::time::timeout(OTHERS_MAX, Box::pin(meanwhile)).await;
                shared.held.send_replace(Held::Released);
            }
        };
        let (told, ()) = tokio::join!(run, others);
        let _ = shared.under_way.subscribe().wait_for(|count| *count == 0).await;
        told
    }

    /// Nobody does anything meanwhile.
    pub async fn alone<T>(&self, run: impl Future<Output = T>) -> T {
        self.during(run, std::future::ready(())).await
    }

    /// Connects to the database, to look at it.
    pub async fn look(&self) -> tokio_postgres::Client {
        connect(&self.direct).await
    }
}

/// Runs `run` for every fault at every request of it. `seed` makes the database that each run gets
/// a copy of, and leaves it alone. Panics when any of the runs did, and says which.
pub async fn every_fault(seed: impl AsyncFnOnce(String), run: impl AsyncFn(&Faulty)) -> Tried {
    let lab = Lab { model: servers::fresh_postgres().await, free: Mutex::default() };
    seed(lab.model.clone()).await;
    connect(&lab.model).await.batch_execute(KEEP).await.expect("the rows are kept");
    let smooth = lab.case([None, None], &run).await;
    smooth.outcome.unwrap_or_else(|why| panic!("it fails without any fault: {why}"));
    let requests = smooth.seen.requests;
    assert!((1..=REQUESTS_MAX).contains(&requests), "{requests} requests");
    let places = (0..requests).flat_map(|at| Fault::ALL.map(|fault| Planned { at, fault }));
    let singles = lab.cases(places.map(|first| [Some(first), None]).collect(), &run).await;
    let pairs = lab.cases(pairs(&singles), &run).await;
    lab.close().await;
    let tried = Tried { requests, singles: singles.len(), pairs: pairs.len() };
    let failed: Vec<String> = singles.into_iter().chain(pairs).filter_map(Ran::failure).collect();
    let count = failed.len();
    assert!(failed.is_empty(), "{count} runs of {tried:?} failed:\n{}", failed.join("\n"));
    tried
}

/// A pool is usable after whatever has happened to it: on each of its connections transactions are
/// begun and committed, and statements run alone. A connection that was lost may be found to be.
pub async fn usable(postgres: &Postgres) {
    let lost = AtomicUsize::new(0);
    let forgiven = |what: &str, error: StoreError| {
        let is_lost =
            matches!(error, StoreError::Unavailable { .. } | StoreError::Uncertain { .. });
        let forgiven = is_lost && lost.fetch_add(1, Ordering::SeqCst) < POOL;
        assert!(forgiven, "the pool is not usable, {what}: {error:?}");
    };
    let transaction = async || {
        let tx = postgres.begin().await?;
        tx.query("SELECT 1", &[]).await?;
        tx.commit().await
    };
    for _ in 0..USES {
        for done in join_all((0..POOL).map(|_| postgres.write("SELECT 2", &[]))).await {
            done.map(drop).unwrap_or_else(|error| forgiven("a statement alone", error));
        }
        for done in join_all((0..POOL).map(|_| transaction())).await {
            done.unwrap_or_else(|error| forgiven("a transaction", error));
        }
    }
}

/// Second faults in what came after the first ones: the same ones each time, from all over.
fn pairs(singles: &[Ran]) -> Vec<[Option<Planned>; 2]> {
    let all = singles.iter().flat_map(|ran| {
        let after = if ran.seen.met.is_empty() { 0 } else { ran.seen.after };
        let seconds = (0..after).flat_map(|at| Fault::ALL.map(|fault| Planned { at, fault }));
        seconds.map(|second| [ran.planned[0], Some(second)])
    });
    let mut all: Vec<(u64, [Option<Planned>; 2])> =
        all.enumerate().map(|(number, pair)| (scattered(number as u64), pair)).collect();
    all.sort_unstable_by_key(|(place, _)| *place);
    all.into_iter().take(PAIRS).map(|(_, pair)| pair).collect()
}

/// One run and what came of it.
struct Ran {
    planned: [Option<Planned>; 2],
    seen: Seen,
    outcome: Result<(), String>,
}

impl Ran {
    fn failure(self) -> Option<String> {
        let why = self.outcome.err()?;
        let first = self.planned[0].map(|planned| (planned.fault, planned.at));
        let met = self.seen.met.join(", then ");
        Some(format!("  {first:?}: {met}: {why}"))
    }
}

/// Where databases come from: as many copies of the model as there are runs at once, each of which
/// is as it was before the next run begins.
struct Lab {
    model: String,
    free: Mutex<Vec<String>>,
}

impl Lab {
    async fn cases(
        &self,
        plans: Vec<[Option<Planned>; 2]>,
        run: &impl AsyncFn(&Faulty),
    ) -> Vec<Ran> {
        let runs = plans.into_iter().map(|planned| Box::pin(self.case(planned, run)));
        let mut ran: Vec<Ran> =
            futures_util::stream::iter(runs).buffer_unordered(WIDTH).collect().await;
        let order =
            |planned: Option<Planned>| planned.map(|planned| (planned.at, planned.fault as u8));
        ran.sort_by_key(|ran| ran.planned.map(order));
        ran
    }

    async fn case(&self, planned: [Option<Planned>; 2], run: &impl AsyncFn(&Faulty)) -> Ran {
        let free = self.free().pop();
        let direct = match free {
            Some(free) => free,
            None => self.copy().await,
        };
        let proxy = Proxy::start(server_of(&direct).await, planned).await;
        let faulty = Faulty { proxy, direct };
        // In a debug build futures of futures are larger than a thread's stack.
        let guarded = Box::pin(AssertUnwindSafe(run(&faulty)).catch_unwind());
        let outcome = match tokio::time::timeout(HANGS_AFTER, guarded).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(panic)) => Err(said(panic.as_ref())),
            Err(_) => Err("it hangs".to_owned()),
        };
        let seen = faulty.proxy.shared.seen();
        connect(&faulty.direct).await.batch_execute(RESTORE).await.expect("it is restored");
        self.free().push(faulty.direct.clone());
        Ran { planned, seen, outcome }
    }

    /// A database like the model.
    async fn copy(&self) -> String {
        let (server, model) = self.model.rsplit_once('/').expect("an address names a database");
        let name = format!("semel_{:016x}", getrandom::u64().expect("the system has entropy"));
        let client = operator().await;
        // Names cannot be parameters; these are letters and digits of our own making.
        let make = format!("CREATE DATABASE {name} TEMPLATE {model}");
        for _ in 0..IN_USE_ROUNDS_MAX {
            match client.batch_execute(&make).await {
                Ok(()) => return format!("{server}/{name}"),
                Err(error) if error.code() == Some(&SqlState::OBJECT_IN_USE) => {
                    tokio::time::sleep(IN_USE_PAUSE).await;
                }
                Err(error) => panic!("no copy: {error}"),
            }
        }
        panic!("somebody stays connected to the model");
    }

    /// Removes all of them.
    async fn close(self) {
        let copies = self.free().clone();
        join_all(copies.iter().chain([&self.model]).map(|address| remove(address))).await;
    }

    fn free(&self) -> MutexGuard<'_, Vec<String>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a copy of every row, and where each sequence stands.
const KEEP: &str = "
    CREATE SCHEMA kept_by_tests;
    CREATE TABLE kept_by_tests.sequences AS
        SELECT schemaname, sequencename, last_value FROM pg_sequences;
    CREATE TABLE kept_by_tests.tables AS
        SELECT schemaname, tablename FROM pg_tables
         WHERE schemaname NOT IN ('pg_catalog', 'information_schema', 'kept_by_tests');
    DO $$ DECLARE one record; BEGIN
        FOR one IN SELECT * FROM kept_by_tests.tables LOOP
            EXECUTE format('CREATE TABLE kept_by_tests.%I AS TABLE %I.%I',
                           one.schemaname || '.' || one.tablename, one.schemaname, one.tablename);
        END LOOP;
    END $$";

/// Ends whoever is still connected, ghosts of late requests included, and brings every row back.
/// Triggers and references are not asked.
const RESTORE: &str = "
    SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
     WHERE datname = current_database() AND pid <> pg_backend_pid();
    SET session_replication_role = replica;
    DO $$ DECLARE one record; BEGIN
        FOR one IN SELECT * FROM kept_by_tests.tables LOOP
            EXECUTE format('DELETE FROM %I.%I', one.schemaname, one.tablename);
            EXECUTE format('INSERT INTO %I.%I OVERRIDING SYSTEM VALUE TABLE kept_by_tests.%I',
                           one.schemaname, one.tablename, one.schemaname || '.' || one.tablename);
        END LOOP;
        FOR one IN SELECT * FROM kept_by_tests.sequences LOOP
            PERFORM setval(format('%I.%I', one.schemaname, one.sequencename)::regclass,
                           coalesce(one.last_value, 1), one.last_value IS NOT NULL);
        END LOOP;
    END $$";

async fn operator() -> tokio_postgres::Client {
    connect(&std::env::var(servers::POSTGRES_VARIABLE).expect("a server")).await
}

async fn remove(address: &str) {
    let (_, name) = address.rsplit_once('/').expect("an address names a database");
    let drop = format!("DROP DATABASE {name} WITH (FORCE)");
    operator().await.batch_execute(&drop).await.expect("a copy can be removed");
}

fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it panicked").to_owned()
}

async fn connect(address: &str) -> tokio_postgres::Client {
    let (client, connection) =
        tokio_postgres::connect(address, NoTls).await.expect("the test server answers");
    tokio::spawn(connection);
    client
}

async fn server_of(address: &str) -> SocketAddr {
    let (_, rest) = address.rsplit_once('@').expect("a user");
    let (host, _) = rest.split_once('/').expect("a database");
    let mut found = tokio::net::lookup_host(host).await.expect("the server has an address");
    found.next().expect("the server has an address")
}

fn with_host(address: &str, host: SocketAddr) -> String {
    let (front, rest) = address.rsplit_once('@').expect("a user");
    let (_, database) = rest.split_once('/').expect("a database");
    format!("{front}@{host}/{database}")
}

#[cfg(test)]
mod tests;
