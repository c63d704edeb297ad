//! Jobs per second: taken in, claimed, each step written down before and after, ended; every one of
//! these on disk before the next. Beside them the same commits without an engine, which is the
//! practical ceiling, and the same work by other engines.

mod others;
mod spawned;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rusqlite::params;
use semel_core::clock::{Clock, SystemClock};
use semel_core::id::JobId;
use semel_core::mint::IdMint;
use semel_crypto::keys::KeyPair;
use semel_jobs::course::{Facts, begin};
use semel_jobs::engine::{Asked, Engine, EngineOptions, Parts};
use semel_jobs::gear::manifest::{Action, Manifest, Recovery, Risk};
use semel_jobs::gear::registry::Registry;
use semel_jobs::gear::{Call, Desk, Ended, Gear, Later, Output, Resolution, Stop};
use semel_jobs::life::JobStatus;
use semel_jobs::policy::Policy;
use semel_jobs::store::{Begin, Claim, PostgresStore, SqliteStore, Store, postgres, sqlite};
use semel_registrar::registrar::Registrar;
use semel_registrar::store as registrar;
use semel_store::migration::{Migration, MigrationSet};
use semel_store::postgres::{Postgres, PostgresOptions};
use semel_store::sqlite::{Sqlite, SqliteOptions};
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::oneshot;

use crate::report::{Bar, Measured, Rounds, Unit, publish};
use crate::{facts, plan};
use others::{APALIS, DBOS, EFFECTUM, GRAPHILE, RESTATE, SQLXMQ, TEMPORAL};

/// Name, steps, in flight.
const CEILING: [(&str, usize, usize); 4] = [
    ("ceiling on SQLite, 1 step, 1 in flight", 1, 1),
    ("ceiling on SQLite, 1 step, 64 in flight", 1, 64),
    ("ceiling on SQLite, 3 steps, 1 in flight", 3, 1),
    ("ceiling on SQLite, 3 steps, 64 in flight", 3, 64),
];
const SQLITE: [(&str, usize, usize); 6] = [
    ("jobs on SQLite, 1 step, 1 in flight", 1, 1),
    ("jobs on SQLite, 1 step, 64 in flight", 1, 64),
    ("jobs on SQLite, 1 step, 256 in flight", 1, 256),
    ("jobs on SQLite, 3 steps, 1 in flight", 3, 1),
    ("jobs on SQLite, 3 steps, 64 in flight", 3, 64),
    ("jobs on SQLite, 3 steps, 256 in flight", 3, 256),
];

const POSTGRES: [(&str, usize, usize); 4] = [
    ("jobs on PostgreSQL, 1 step, 1 in flight", 1, 1),
    ("jobs on PostgreSQL, 1 step, 64 in flight", 1, 64),
    ("jobs on PostgreSQL, 3 steps, 64 in flight", 3, 64),
    ("jobs on PostgreSQL, 3 steps, 256 in flight", 3, 256),
];
/// Name, whether one process serves many steps, in flight.
const SPAWNED: [(&str, bool, usize); 4] = [
    ("jobs on SQLite, a process for each step, 1 in flight", false, 1),
    ("jobs on SQLite, a process for each step, 64 in flight", false, 64),
    ("jobs on SQLite, processes that stay, 1 in flight", true, 1),
    ("jobs on SQLite, processes that stay, 64 in flight", true, 64),
];
const IDLE: &str = "idle engine on SQLite, from submit to the start of the step";
const IDLE_P50: &str = "idle engine on SQLite, from submit to the start of the step: p50";
const MS_3: &str = "3 ms";
const FEW: (&str, usize) = ("claims on SQLite, one at a time, 100 pending", 100);
const MANY: (&str, usize) = ("claims on SQLite, one at a time, 50,000 pending", 50_000);
/// How long a caller waits for news before it looks by itself.
const LOOK: Duration = Duration::from_secs(2);
/// Claims that are measured at each depth; fewer than wait at the smaller one.
const CLAIMS: usize = 90;

const BARS: &[Bar] = &[
    Bar::at_least(SQLITE[1].0, 0.35, CEILING[1].0),
    Bar::at_least(SQLITE[4].0, 0.35, CEILING[3].0),
    Bar::at_least(SQLITE[1].0, 1.0, EFFECTUM[1].0),
    Bar::at_least(SQLITE[1].0, 1.0, APALIS[1].0),
    Bar::at_least(SQLITE[1].0, 1.0, DBOS[1].0),
    Bar::at_least(SQLITE[1].0, 1.0, SQLXMQ[1].0),
    Bar::at_least(SQLITE[1].0, 1.0, RESTATE[1].0),
    Bar::at_least(SQLITE[1].0, 1.0, TEMPORAL[1].0),
    Bar::at_least(SQLITE[4].0, 10.0, RESTATE[3].0),
    Bar::at_least(POSTGRES[2].0, 3.0, DBOS[3].0),
    Bar::at_least(POSTGRES[2].0, 1.0, GRAPHILE[0].0),
    Bar::at_most(IDLE_P50, 1.0, MS_3),
    // So much slower beside many that wait.
    Bar::at_most(FEW.0, 1.3, MANY.0),
];

/// Runs everything, interleaved.
pub(crate) fn run() -> Result<()> {
    let folder = tempfile::tempdir_in(plan::target())?;
    let server = std::env::var("SEMEL_TEST_POSTGRES")
        .context("SEMEL_TEST_POSTGRES is not set: run `cargo xtask bench`")?;
    let machine = facts::machine(folder.path())?;
    let mut rounds = Rounds::default();
    rounds.wanted(MS_3, 3.0);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    for round in 0..plan::rounds() {
        let folder = folder.path().join(round.to_string());
        std::fs::create_dir_all(&folder)?;
        ours(&runtime, &folder, &server, &mut rounds)?;
        others::run(&runtime, &folder, &server, &mut rounds);
        // Some of it is large.
        std::fs::remove_dir_all(&folder)?;
    }
    publish("jobs", &machine, &rounds, BARS)
}

fn ours(runtime: &Runtime, folder: &Path, server: &str, rounds: &mut Rounds) -> Result<()> {
    for (number, (name, steps, callers)) in SQLITE.into_iter().enumerate() {
        // Right before what is compared with it.
        let same = |ceiling: &&(&str, usize, usize)| (ceiling.1, ceiling.2) == (steps, callers);
        if let Some((name, ..)) = CEILING.iter().find(same) {
            let path = folder.join(format!("ceiling-{number}.db"));
            rounds.measured(name, runtime.block_on(ceiling(&path, steps, callers))?);
        }
        let folder = folder.join(format!("jobs-{number}"));
        let run = async { jobs(on_sqlite(&folder)?, &folder, in_process()?, steps, callers).await };
        rounds.measured(name, runtime.block_on(run)?);
    }
    for (number, (name, steps, callers)) in POSTGRES.into_iter().enumerate() {
        let folder = folder.join(format!("shared-{number}"));
        let run = async {
            let stores = on_postgres(&crate::broker::fresh(server).await?).await?;
            jobs(stores, &folder, in_process()?, steps, callers).await
        };
        rounds.measured(name, runtime.block_on(run)?);
    }
    for (number, (name, is_warm, callers)) in SPAWNED.into_iter().enumerate() {
        let folder = folder.join(format!("spawned-{number}"));
        let run = async {
            let stores = on_sqlite(&folder)?;
            let gears = spawned::gears(&folder, is_warm).await?;
            jobs(stores, &folder, gears, 1, callers).await
        };
        rounds.measured(name, runtime.block_on(run)?);
    }
    let shown = runtime.block_on(idle(&folder.join("idle")))?;
    rounds.value(IDLE_P50, Unit::Ms, shown.percentile_ms(50));
    rounds.measured(IDLE, shown);
    for (name, pending) in [FEW, MANY] {
        let folder = folder.join(format!("pending-{pending}"));
        rounds.measured(name, runtime.block_on(claims(&folder, pending))?);
    }
    Ok(())
}

/// A job and its step with nothing else: the rows that any engine must write.
const SCHEMA: &str = "
    CREATE TABLE job (id INTEGER PRIMARY KEY, plan TEXT NOT NULL, status TEXT NOT NULL,
                      step_index INTEGER NOT NULL) STRICT;
    CREATE TABLE step (job INTEGER NOT NULL, step INTEGER NOT NULL, status TEXT NOT NULL,
                       result TEXT, PRIMARY KEY (job, step)) STRICT, WITHOUT ROWID";
const CEILING_ROWS: MigrationSet = MigrationSet {
    component: "bench",
    migrations: &[Migration { version: 1, name: "ceiling", sql: SCHEMA }],
};

const SUBMIT: &str = "INSERT INTO job (id, plan, status, step_index) VALUES (?1, ?2, 'pending', 0)";
const MOVE: &str = "UPDATE job SET status = ?2, step_index = ?3 WHERE id = ?1";
const START: &str = "INSERT INTO step (job, step, status) VALUES (?1, ?2, 'started')";
const END: &str = "UPDATE step SET status = 'completed', result = ?3 WHERE job = ?1 AND step = ?2";

/// Submit; start; for each step its result together with the next start or the end.
async fn ceiling(path: &Path, steps: usize, callers: usize) -> Result<Measured> {
    let options = SqliteOptions::new(path, 1, vec![CEILING_ROWS], 0, Arc::new(|_| {}));
    let store = Arc::new(Sqlite::open(&options)?);
    let next = Arc::new(AtomicU64::new(1));
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..callers {
        let (store, next) = (Arc::clone(&store), Arc::clone(&next));
        tasks.spawn(async move {
            let mut latencies = Vec::new();
            while start.elapsed() < plan::round() {
                let began = Instant::now();
                let id = next.fetch_add(1, Ordering::Relaxed).cast_signed();
                bare_job(&store, id, i64::try_from(steps)?).await?;
                latencies.push(micros(began));
            }
            anyhow::Ok(latencies)
        });
    }
    let mut latencies = Vec::new();
    while let Some(done) = tasks.join_next().await {
        latencies.extend(done??);
    }
    Ok(Measured::since(start, latencies))
}

async fn bare_job(store: &Sqlite, id: i64, steps: i64) -> Result<()> {
    let plan = plan(usize::try_from(steps)?).to_string();
    store
        .write(move |tx| {
            tx.prepare_cached(SUBMIT)?.execute(params![id, plan])?;
            Ok(())
        })
        .await?;
    for step in 0..=steps {
        store
            .write(move |tx| {
                if step > 0 {
                    tx.prepare_cached(END)?.execute(params![id, step - 1, "{}"])?;
                }
                if step < steps {
                    tx.prepare_cached(START)?.execute(params![id, step])?;
                }
                let status = if step < steps { "executing" } else { "completed" };
                tx.prepare_cached(MOVE)?.execute(params![id, status, step])?;
                Ok(())
            })
            .await?;
    }
    Ok(())
}

fn plan(steps: usize) -> serde_json::Value {
    let steps: Vec<_> = (0..steps)
        .map(|n| json!({"id": format!("s{n}"), "gear": "bench", "action": "noop", "params": {}}))
        .collect();
    json!({"steps": steps})
}

/// Does nothing, in this process, and says when it began.
struct Noop {
    manifest: Manifest,
    began: tokio::sync::mpsc::UnboundedSender<Instant>,
}

impl Gear for Noop {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn needs_workspace(&self) -> bool {
        false
    }

    fn run<'a>(&'a self, _: Call, _: Arc<dyn Desk>, _: Stop) -> Later<'a, Ended> {
        // Nobody needs to listen.
        let _ = self.began.send(Instant::now());
        Box::pin(async { Ended::Done(Output::Value(json!({}))) })
    }

    fn resolve<'a>(&'a self, _: Call, _: Stop) -> Later<'a, Resolution> {
        Box::pin(async { Resolution::NotDone })
    }
}

pub(crate) type Stores = (Store, registrar::Store);

pub(crate) fn on_sqlite(folder: &Path) -> Result<Stores> {
    std::fs::create_dir_all(folder)?;
    let migrations = vec![sqlite::MIGRATIONS, registrar::sqlite::MIGRATIONS];
    let path = folder.join("jobs.db");
    let options = SqliteOptions::new(path, 1, migrations, 0, Arc::new(|_| {}));
    let file = Arc::new(Sqlite::open(&options)?);
    let registrar = registrar::Store::Sqlite(registrar::SqliteStore::new(Arc::clone(&file)));
    Ok((Store::Sqlite(SqliteStore::new(file)), registrar))
}

/// On a database that has nothing yet.
pub(crate) async fn on_postgres(address: &str) -> Result<Stores> {
    let options = PostgresOptions::new(address.to_owned());
    let migrations = [postgres::MIGRATIONS, registrar::postgres::MIGRATIONS];
    let database = Postgres::open(options, &migrations, 0).await?;
    let registrar = registrar::Store::Postgres(registrar::PostgresStore::new(database.clone()));
    Ok((Store::Postgres(PostgresStore::new(database)), registrar))
}

pub(crate) type Began = tokio::sync::mpsc::UnboundedReceiver<Instant>;
/// What does the steps, and when each began, where that is known.
pub(crate) type Gears = (Registry, Began);

pub(crate) fn in_process() -> Result<Gears> {
    let action = Action {
        about: "nothing".to_owned(),
        params: json!({"type": "object"}),
        result: None,
        risk: Risk::Low,
        recovery: Recovery::Idempotent,
        timeout: Duration::from_secs(10),
        always_asks: false,
    };
    let actions = BTreeMap::from([("noop".to_owned(), action)]);
    let manifest = Manifest { id: "bench".to_owned(), version: "1".to_owned(), actions };
    let (began, heard) = tokio::sync::mpsc::unbounded_channel();
    let gears = Registry::default();
    gears.put(Arc::new(Noop { manifest, began }), true)?;
    Ok((gears, heard))
}

async fn engine(
    stores: Stores,
    folder: &Path,
    gears: Gears,
    workers: usize,
) -> Result<(Arc<Engine>, Began)> {
    let (store, registrar_store) = stores;
    let (gears, began) = gears;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let authority = Some(KeyPair::from_secret(&[1; 32]));
    let nonces = Arc::new(|| [0; 16]);
    let registrar =
        Registrar::start(registrar_store, Arc::clone(&clock), nonces, authority).await?;
    let (numbers, drawn) = (AtomicU64::new(1), AtomicU64::new(2));
    let entropy = Box::new(move || u128::from(numbers.fetch_add(1, Ordering::Relaxed)));
    let parts = Parts {
        store,
        gears: Arc::new(gears),
        registrar: Arc::new(registrar),
        planner: None,
        validator: None,
        mint: Arc::new(IdMint::new(Arc::clone(&clock), entropy)),
        clock,
        random: Arc::new(move || drawn.fetch_add(2, Ordering::Relaxed)),
    };
    let mut options = EngineOptions::new("bench", folder.join("work"));
    options.workers = workers;
    Ok((Arc::new(Engine::open(parts, options).await?), began))
}

/// One job now and then, to an engine that waits.
async fn idle(folder: &Path) -> Result<Measured> {
    let (engine, mut began) = engine(on_sqlite(folder)?, folder, in_process()?, 4).await?;
    engine.work();
    let start = Instant::now();
    let mut latencies = Vec::new();
    while start.elapsed() < plan::round() {
        let asked = Asked { plan: Some(plan(1)), ..Asked::default() };
        let submitted = Instant::now();
        engine.submit(asked).await?;
        let started = began.recv().await.context("the gear is gone")?;
        let took = started.saturating_duration_since(submitted).as_micros();
        latencies.push(u32::try_from(took).unwrap_or(u32::MAX));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    engine.stop().await;
    Ok(Measured::since(start, latencies))
}

/// Claims one job at a time from a store in which so many wait.
async fn claims(folder: &Path, pending: usize) -> Result<Measured> {
    let (engine, _began) = engine(on_sqlite(folder)?, folder, in_process()?, 4).await?;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let engine = Arc::clone(&engine);
        tasks.spawn(async move {
            for _ in 0..pending / 50 {
                let asked = Asked { plan: Some(plan(1)), ..Asked::default() };
                engine.submit(asked).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let (gears, _began) = in_process()?;
    let gears = Arc::new(gears);
    let start = Instant::now();
    let mut latencies = Vec::new();
    for _ in 0..CLAIMS {
        let gears = Arc::clone(&gears);
        let first: Begin = Arc::new(move |kept, claim| {
            let facts = Facts {
                gears: &gears,
                policy: &Policy::default(),
                more_validators: false,
                closed: &|_| true,
                approval_timeout: Duration::from_secs(1),
                random: 0,
                home: None,
                for_another: &|_, _| false,
            };
            Some(begin(kept, claim, &facts).0.into_advance())
        });
        let now = SystemClock::new().wall();
        let claim = Claim {
            worker: "bench".to_owned(),
            fence: 1,
            lease: Duration::from_secs(600),
            limit: 1,
            held: Vec::new(),
            home: None,
            now,
        };
        let began = Instant::now();
        let claimed = engine.store().claim(claim, first).await?;
        latencies.push(micros(began));
        anyhow::ensure!(claimed.jobs.len() == 1, "nothing was claimed");
    }
    Ok(Measured::since(start, latencies))
}

/// Who waits for which job, or how one ended for which nobody waits yet.
type Waiters = Arc<Mutex<HashMap<JobId, Waiting>>>;

enum Waiting {
    Caller(oneshot::Sender<JobStatus>),
    Ended(JobStatus),
}

/// A running engine, and who waits for which of its jobs.
pub(crate) struct Worked {
    engine: Arc<Engine>,
    waiters: Waiters,
    tasks: [tokio::task::JoinHandle<()>; 2],
}

impl Worked {
    /// With room for so many jobs at a time.
    pub(crate) async fn start(
        stores: Stores,
        folder: &Path,
        gears: Gears,
        workers: usize,
    ) -> Result<Self> {
        let (engine, mut began) = engine(stores, folder, gears, workers).await?;
        engine.work();
        let ignoring = tokio::spawn(async move { while began.recv().await.is_some() {} });
        let waiters = Waiters::default();
        let listening = tokio::spawn(listen(Arc::clone(&engine), Arc::clone(&waiters)));
        Ok(Self { engine, waiters, tasks: [ignoring, listening] })
    }

    /// So many callers submit jobs, each its next after the end of its last, until so many were.
    pub(crate) async fn until(&self, callers: usize, steps: usize, count: usize) -> Result<()> {
        let left = Arc::new(AtomicU64::new(count as u64));
        let goes_on = move |_: Instant| {
            let one_less = |left: u64| left.checked_sub(1);
            left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
        };
        self.while_it(callers, steps, goes_on).await.map(|_| ())
    }

    async fn while_it(
        &self,
        callers: usize,
        steps: usize,
        goes_on: impl Fn(Instant) -> bool + Clone + Send + 'static,
    ) -> Result<Measured> {
        let start = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..callers {
            let (engine, waiters) = (Arc::clone(&self.engine), Arc::clone(&self.waiters));
            let goes_on = goes_on.clone();
            tasks.spawn(async move {
                let mut latencies = Vec::new();
                while goes_on(start) {
                    let began = Instant::now();
                    one(&engine, &waiters, steps).await?;
                    latencies.push(micros(began));
                }
                anyhow::Ok(latencies)
            });
        }
        let mut latencies = Vec::new();
        while let Some(done) = tasks.join_next().await {
            latencies.extend(done??);
        }
        Ok(Measured::since(start, latencies))
    }
}

impl Drop for Worked {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

/// Tells those who wait how their jobs ended.
async fn listen(engine: Arc<Engine>, waiters: Waiters) {
    let mut news = engine.news();
    loop {
        let news = match news.recv().await {
            Ok(news) => news,
            Err(RecvError::Lagged(_)) => continue,
            Err(RecvError::Closed) => break,
        };
        if news.status.is_terminal() {
            let mut waiters = waiters.lock().unwrap_or_else(PoisonError::into_inner);
            match waiters.remove(&news.id) {
                Some(Waiting::Caller(waiter)) => drop(waiter.send(news.status)),
                Some(Waiting::Ended(_)) | None => {
                    waiters.insert(news.id, Waiting::Ended(news.status));
                }
            }
        }
    }
}

/// So many callers, each of whom submits a job and waits for its end.
async fn jobs(
    stores: Stores,
    folder: &Path,
    gears: Gears,
    steps: usize,
    callers: usize,
) -> Result<Measured> {
    let worked = Worked::start(stores, folder, gears, callers).await?;
    let round = |start: Instant| start.elapsed() < plan::round();
    let measured = worked.while_it(callers, steps, round).await?;
    worked.engine.stop().await;
    Ok(measured)
}

async fn one(engine: &Engine, waiters: &Waiters, steps: usize) -> Result<()> {
    let asked = Asked { plan: Some(plan(steps)), ..Asked::default() };
    let taken = engine.submit(asked).await?;
    let (send, mut ended) = oneshot::channel();
    let known = {
        let mut waiters = waiters.lock().unwrap_or_else(PoisonError::into_inner);
        match waiters.remove(&taken.id) {
            Some(Waiting::Ended(status)) => Some(status),
            Some(Waiting::Caller(_)) | None => {
                waiters.insert(taken.id, Waiting::Caller(send));
                None
            }
        }
    };
    let status = loop {
        if let Some(status) = known {
            break status;
        }
        if let Ok(Ok(status)) = tokio::time::timeout(LOOK, &mut ended).await {
            break status;
        }
        // The news of it may have been missed.
        let kept = engine.store().job(taken.id).await?.context("the job is gone")?;
        if kept.job.state.status.is_terminal() {
            break kept.job.state.status;
        }
    };
    anyhow::ensure!(status == JobStatus::Completed, "a job ended as {}", status.as_str());
    Ok(())
}

fn micros(began: Instant) -> u32 {
    u32::try_from(began.elapsed().as_micros()).unwrap_or(u32::MAX)
}
