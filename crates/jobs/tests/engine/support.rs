//! An engine over a file of its own, and a gear that does as the test says.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::clock::{Clock, SystemClock, UnixMs};
use semel_core::id::JobId;
use semel_core::mint::IdMint;
use semel_crypto::keys::KeyPair;
use semel_jobs::engine::{Asked, Engine, EngineOptions, Parts};
use semel_jobs::gear::builtin::files::Files;
use semel_jobs::gear::builtin::http::{Http, HttpSettings};
use semel_jobs::gear::grants::Grants;
use semel_jobs::gear::manifest::{Action, Manifest, Recovery, Risk};
use semel_jobs::gear::net::Hosts;
use semel_jobs::gear::registry::Registry;
use semel_jobs::gear::room::Lane;
use semel_jobs::gear::{
    Call, Desk, Ended, Failure, FailureClass, Gear, Later, Output, Resolution, Stop, SubJob,
    SubJobEnded,
};
use semel_jobs::life::JobStatus;
use semel_jobs::planner::{Planner, Validator};
use semel_jobs::policy::Policy;
use semel_jobs::store::{Kept, PostgresStore, SqliteStore, Store, postgres, sqlite};
use semel_registrar::registrar::Registrar;
use semel_registrar::store as registrar;
use semel_store::postgres::{Postgres, PostgresOptions};
use semel_store::sqlite::{Sqlite, SqliteOptions};
use serde_json::{Value, json};
use tokio::sync::watch;

/// Long enough for a loaded machine; only a failure waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// What the test gear was told to do, and has done.
#[derive(Default)]
pub(crate) struct Script {
    /// Executions, in the order in which they were run.
    ran: Mutex<Vec<String>>,
    fail: Mutex<BTreeMap<String, Vec<Ended>>>,
    changed: watch::Sender<()>,
    /// Runs of `hang` that go on right now, and how many of one step ever did at once.
    now: watch::Sender<(BTreeMap<String, u32>, u32)>,
    /// What the gear says of earlier attempts; that they have not happened, without it.
    known: Mutex<Option<Resolution>>,
    /// How often it was asked.
    asked: AtomicU64,
    /// Gears that lack their secrets.
    unready: Mutex<Vec<&'static str>>,
    /// What lets runs of `hold` go on.
    pub(crate) gate: watch::Sender<bool>,
}

impl Script {
    /// The gear of this name has not what it needs.
    pub(crate) fn lacks_secrets(&self, gear: &'static str) {
        self.unready.lock().unwrap_or_else(PoisonError::into_inner).push(gear);
    }

    pub(crate) fn ran(&self) -> Vec<String> {
        self.ran.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The next runs of this step end so.
    pub(crate) fn will(&self, step: &str, ends: Vec<Ended>) {
        self.fail.lock().unwrap_or_else(PoisonError::into_inner).insert(step.to_owned(), ends);
    }

    /// A run begins; it ends when what this gives is dropped.
    fn runs(self: &Arc<Self>, step: &str) -> OneRun {
        self.now.send_modify(|(now, most)| {
            let count = now.entry(step.to_owned()).or_default();
            *count += 1;
            *most = (*most).max(*count);
        });
        OneRun(Arc::clone(self), step.to_owned())
    }

    /// How many runs of `hang` of one step ever went on at once.
    pub(crate) fn most_at_once(&self) -> u32 {
        self.now.borrow().1
    }

    /// Waits until a run of `hang` goes on.
    pub(crate) async fn until_something_runs(&self) {
        let mut now = self.now.subscribe();
        let waiting = now.wait_for(|(now, _)| now.values().any(|count| *count > 0));
        assert!(tokio::time::timeout(PATIENCE, waiting).await.is_ok(), "nothing goes on");
    }

    /// Waits until no run of `hang` goes on.
    pub(crate) async fn until_nothing_runs(&self) {
        let mut now = self.now.subscribe();
        let waiting = now.wait_for(|(now, _)| now.values().all(|count| *count == 0));
        assert!(tokio::time::timeout(PATIENCE, waiting).await.is_ok(), "something goes on");
    }

    /// Whether a run of `hang`, or a question, goes on.
    pub(crate) fn is_running(&self) -> bool {
        self.now.borrow().0.values().any(|count| *count > 0)
    }

    /// What became of earlier attempts.
    pub(crate) fn knows(&self, known: Resolution) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
    }

    /// How often it was asked for that.
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    /// Waits until so many runs have begun.
    pub(crate) async fn until_ran(&self, count: usize) {
        let mut changes = self.changed.subscribe();
        let waiting = changes.wait_for(|()| self.ran().len() >= count);
        let waited = tokio::time::timeout(PATIENCE, waiting).await;
        assert!(waited.is_ok(), "not {count} runs, but {:?}", self.ran());
    }
}

struct OneRun(Arc<Script>, String);

impl Drop for OneRun {
    fn drop(&mut self) {
        self.0.now.send_modify(|(now, _)| {
            if let Some(count) = now.get_mut(&self.1) {
                *count -= 1;
            }
        });
    }
}

struct TestGear {
    manifest: Manifest,
    script: Arc<Script>,
    origin: Option<&'static str>,
    /// Found out when it is asked for.
    learned: Mutex<Option<String>>,
    grants: Grants,
    lane: Arc<Lane>,
}

fn action(recovery: Recovery, risk: Risk) -> Action {
    Action {
        about: "does as it is told".to_owned(),
        params: json!({"type": "object"}),
        result: None,
        risk,
        recovery,
        timeout: Duration::from_secs(10),
        always_asks: false,
    }
}

/// One that thinks for as long as nobody stops it.
fn think() -> Action {
    Action { timeout: PATIENCE * 10, ..action(Recovery::Resolve, Risk::Low) }
}

/// One that goes on for as long as nobody stops it, and says nothing meanwhile.
fn stay() -> Action {
    Action { timeout: PATIENCE * 10, ..action(Recovery::Idempotent, Risk::Low) }
}

/// One that says what it gives.
fn bill() -> Action {
    let paid = json!({"type": "object", "properties": {"paid": {"type": "boolean"}},
        "required": ["paid"]});
    Action { result: Some(paid), ..action(Recovery::Ask, Risk::Low) }
}

impl Gear for TestGear {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Only that one has processes.
    fn lane(&self) -> Option<&Arc<Lane>> {
        Some(&self.lane).filter(|_| self.manifest.id == "heavy")
    }

    /// Whatever it is told to ask for.
    fn grants(&self) -> &Grants {
        &self.grants
    }

    /// What `echo` is given to send.
    fn receiver(&self, action: &str, params: &Value) -> Option<String> {
        let to = params.get("to").filter(|_| action == "echo")?;
        to.as_str().map(str::to_owned)
    }

    fn is_ready(&self) -> bool {
        let unready = self.script.unready.lock().unwrap_or_else(PoisonError::into_inner);
        !unready.contains(&self.manifest.id.as_str())
    }

    fn origin(&self) -> Option<String> {
        let learned = self.learned.lock().unwrap_or_else(PoisonError::into_inner);
        learned.clone().or_else(|| self.origin.map(str::to_owned))
    }

    fn learn_origin(&self) -> Later<'_, ()> {
        let mut learned = self.learned.lock().unwrap_or_else(PoisonError::into_inner);
        *learned = Some("mesh/learned".to_owned());
        Box::pin(std::future::ready(()))
    }

    fn run<'a>(&'a self, call: Call, desk: Arc<dyn Desk>, mut stop: Stop) -> Later<'a, Ended> {
        Box::pin(async move {
            let step = call.execution_id.split_once(':').map_or("", |(_, step)| step).to_owned();
            self.script.ran.lock().unwrap_or_else(PoisonError::into_inner).push(step.clone());
            self.script.changed.send_replace(());
            if call.action != "stay" {
                desk.report(semel_jobs::gear::Report::Log {
                    message: format!("attempt {}", call.attempt),
                    side_effect: false,
                });
            }
            let planned = {
                let mut fail = self.script.fail.lock().unwrap_or_else(PoisonError::into_inner);
                fail.get_mut(&step).and_then(|ends| (!ends.is_empty()).then(|| ends.remove(0)))
            };
            if call.action == "panic" && self.script.ran().len() == 1 {
                panic!("as it was told");
            }
            if matches!(call.action.as_str(), "hang" | "dwell" | "stay") && planned.is_none() {
                let _running = self.script.runs(&step);
                stop.stopped().await;
                let failure = Failure::new(FailureClass::Transient, "stopped", "stopped");
                return Ended::Uncertain(failure);
            }
            if call.action == "hold" && planned.is_none() {
                let mut gate = self.script.gate.subscribe();
                let _ = gate.wait_for(|open| *open).await;
            }
            if call.action == "sub" {
                // A reference in there would be one of its own plan's.
                let asked = call.params.to_string().replace("$later:", "$ref:");
                let asked = serde_json::from_str(&asked).expect("JSON");
                let ended = desk.sub_job(SubJob { number: 0, asked }).await;
                return match ended {
                    SubJobEnded::Completed(value) => Ended::Done(Output::Value(value)),
                    SubJobEnded::Failed(failure) => Ended::Failed(failure),
                };
            }
            planned.unwrap_or_else(|| Ended::Done(Output::Value(call.params.clone())))
        })
    }

    fn resolve<'a>(&'a self, call: Call, mut stop: Stop) -> Later<'a, Resolution> {
        self.script.asked.fetch_add(1, Ordering::SeqCst);
        if call.action == "think" {
            return Box::pin(async move {
                let _running = self.script.runs("resolve");
                self.script.changed.send_replace(());
                stop.stopped().await;
                Resolution::Unknown
            });
        }
        let known = self.script.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Box::pin(async { known.unwrap_or(Resolution::NotDone) })
    }
}

/// An engine in this process.
pub(crate) struct Bench {
    pub(crate) engine: Arc<Engine>,
    pub(crate) script: Arc<Script>,
    folder: Arc<tempfile::TempDir>,
}

/// What an engine is made of when a test says nothing else.
pub(crate) struct Setup {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) planner: Option<Arc<dyn Planner>>,
    pub(crate) validator: Option<Arc<dyn Validator>>,
    pub(crate) workers: usize,
    /// The address of a database; a file of its own when there is none.
    pub(crate) postgres: Option<String>,
    /// The engine's name among those of a database.
    pub(crate) worker: &'static str,
    /// What the gear has done: several engines may share it.
    pub(crate) script: Arc<Script>,
    pub(crate) lease: Duration,
    /// How often is looked for what nobody tells of: clocks that jump, engines that do not listen.
    pub(crate) poll: Duration,
    /// The engine's home, where several share a database.
    pub(crate) home: Option<&'static str>,
    /// As whom its gear acts.
    pub(crate) origin: Option<&'static str>,
    /// How long a stop waits for what runs.
    pub(crate) shutdown: Duration,
    /// Gears besides the usual one.
    pub(crate) more: Vec<&'static str>,
    /// How long the store asks what became of a write.
    pub(crate) patience: Duration,
    pub(crate) policy: Policy,
    /// What an engine before this one has left; else nothing is there.
    pub(crate) folder: Option<Arc<tempfile::TempDir>>,
}

impl Default for Setup {
    fn default() -> Self {
        let clock = Arc::new(SystemClock::new());
        Self {
            clock,
            planner: None,
            validator: None,
            workers: 64,
            postgres: None,
            worker: "test-engine",
            script: Arc::default(),
            // Upkeep comes by as often.
            lease: Duration::from_secs(1),
            poll: Duration::from_millis(100),
            home: None,
            origin: None,
            shutdown: PATIENCE,
            more: Vec::new(),
            patience: PATIENCE,
            policy: Policy::default(),
            folder: None,
        }
    }
}

pub(crate) async fn bench() -> Bench {
    Setup::default().open().await
}

fn test_gear(id: &str, script: &Arc<Script>, origin: Option<&'static str>) -> Arc<TestGear> {
    let actions = BTreeMap::from([
        ("echo".to_owned(), action(Recovery::Idempotent, Risk::Low)),
        ("hold".to_owned(), action(Recovery::Idempotent, Risk::Low)),
        ("sub".to_owned(), action(Recovery::Idempotent, Risk::Low)),
        ("pay".to_owned(), action(Recovery::Ask, Risk::Low)),
        ("check".to_owned(), action(Recovery::Resolve, Risk::Low)),
        ("bill".to_owned(), bill()),
        ("hang".to_owned(), action(Recovery::Idempotent, Risk::Low)),
        ("stay".to_owned(), stay()),
        ("panic".to_owned(), action(Recovery::Idempotent, Risk::Low)),
        ("think".to_owned(), think()),
        ("drop".to_owned(), action(Recovery::Ask, Risk::Critical)),
        ("dwell".to_owned(), action(Recovery::Ask, Risk::Critical)),
    ]);
    let manifest = Manifest { id: id.to_owned(), version: "1".to_owned(), actions };
    let learned = Mutex::default();
    // Only the modest one declares what it asks for.
    let sub_jobs = if id == "modest" { &["test.echo", "test.hold"][..] } else { &["*"] };
    let sub_jobs = sub_jobs.iter().map(|name| (*name).to_owned()).collect();
    let grants = Grants { sub_jobs, publish: Vec::new() };
    Arc::new(TestGear {
        manifest,
        script: Arc::clone(script),
        origin,
        learned,
        grants,
        lane: Arc::default(),
    })
}

/// Servers of a test may be asked.
fn loopback() -> HttpSettings {
    let private_hosts = Hosts::new(["127.0.0.1", "127.0.0.2"].map(str::to_owned));
    HttpSettings { private_hosts, ..HttpSettings::default() }
}

fn on_file(folder: &Path, now: UnixMs) -> (Store, registrar::Store) {
    let options = SqliteOptions::new(
        folder.join("jobs.db"),
        sqlite::APPLICATION_ID,
        vec![sqlite::MIGRATIONS, registrar::sqlite::MIGRATIONS],
        now.0,
        Arc::new(|_| {}),
    );
    let file = Arc::new(Sqlite::open(&options).expect("a database"));
    let registrar = registrar::SqliteStore::new(Arc::clone(&file));
    (Store::Sqlite(SqliteStore::new(file)), registrar::Store::Sqlite(registrar))
}

async fn on_postgres(address: &str, now: UnixMs, patience: Duration) -> (Store, registrar::Store) {
    let migrations = [postgres::MIGRATIONS, registrar::postgres::MIGRATIONS];
    let pool = Postgres::open(PostgresOptions::new(address), &migrations, now.0).await;
    let pool = pool.expect("a database");
    let registrar = registrar::PostgresStore::new(pool.clone());
    (
        Store::Postgres(PostgresStore::with_patience(pool, patience)),
        registrar::Store::Postgres(registrar),
    )
}

impl Setup {
    pub(crate) async fn open(self) -> Bench {
        let folder = self.folder;
        let folder = folder.unwrap_or_else(|| Arc::new(tempfile::tempdir().expect("a folder")));
        let clock = self.clock;
        let (store, registrar_store) = match &self.postgres {
            None => on_file(folder.path(), clock.wall()),
            Some(address) => on_postgres(address, clock.wall(), self.patience).await,
        };
        let numbers = Arc::new(AtomicU64::new(1));
        let nonces = Arc::clone(&numbers);
        let started = Registrar::start(
            registrar_store,
            Arc::clone(&clock),
            Arc::new(move || u128::from(nonces.fetch_add(1, Ordering::SeqCst)).to_be_bytes()),
            Some(KeyPair::from_secret(&[7; 32])),
        );
        let registrar = Arc::new(started.await.expect("a registrar"));
        let script = self.script;
        let gears = Arc::new(Registry::default());
        for id in std::iter::once("test").chain(self.more) {
            gears.put(test_gear(id, &script, self.origin), true).expect("good schemas");
        }
        gears.put(Arc::new(Http::new(loopback())), true).expect("good schemas");
        gears.put(Arc::new(Files::new()), true).expect("good schemas");
        let entropy = Box::new(move || u128::from(numbers.fetch_add(1, Ordering::SeqCst)));
        let parts = Parts {
            store,
            gears,
            registrar,
            planner: self.planner,
            validator: self.validator,
            mint: Arc::new(IdMint::new(Arc::clone(&clock), entropy)),
            clock,
            random: Arc::new(|| getrandom::u64().expect("the system has entropy")),
        };
        let mut options = EngineOptions::new(self.worker, folder.path().join("work"));
        (options.workers, options.lease) = (self.workers, self.lease);
        (options.home, options.shutdown) = (self.home.map(str::to_owned), self.shutdown);
        (options.poll, options.policy) = (self.poll, self.policy);
        let engine = Engine::open(parts, options).await.expect("an engine");
        let engine = Arc::new(engine);
        engine.work();
        Bench { engine, script, folder }
    }
}

impl Bench {
    /// Hears what the other engines of its database say, as long as the test lasts.
    pub(crate) fn listens(&self) {
        let Store::Postgres(store) = self.engine.store() else { return };
        let mut signals = store.listen().expect("a listener");
        let engine = Arc::clone(&self.engine);
        drop(tokio::spawn(async move {
            while let Ok(signal) = signals.next().await {
                engine.hear(signal);
            }
        }));
    }

    /// Puts a gear in the place of the one of its name, of which something is different.
    pub(crate) fn reinstall(&self, id: &str, change: impl FnOnce(&mut Manifest, &mut Grants)) {
        let TestGear { manifest, grants, .. } = &*test_gear(id, &self.script, None);
        let (mut manifest, mut grants) = (manifest.clone(), grants.clone());
        change(&mut manifest, &mut grants);
        let (script, learned) = (Arc::clone(&self.script), Mutex::default());
        let (origin, lane) = (None, Arc::default());
        let gear = TestGear { manifest, script, origin, learned, grants, lane };
        self.engine.gears().put(Arc::new(gear), true).expect("good schemas");
    }

    pub(crate) async fn submit(&self, steps: Value) -> JobId {
        let asked = Asked { plan: Some(json!({"steps": steps})), ..Asked::default() };
        self.take(asked).await
    }

    pub(crate) async fn take(&self, asked: Asked) -> JobId {
        self.engine.submit(asked).await.expect("a job").id
    }

    /// Wants something done, in words.
    pub(crate) async fn wish(&self, request: &str) -> JobId {
        self.take(Asked { request: Some(request.to_owned()), ..Asked::default() }).await
    }

    /// Its file, for somebody else.
    pub(crate) fn file(&self) -> rusqlite::Connection {
        semel_testkit::sqlite::open(self.folder.path().join("jobs.db")).expect("a database")
    }

    /// The only number that a query of its file gives.
    pub(crate) fn count(&self, sql: &str) -> i64 {
        let file = self.file();
        file.query_row(sql, [], |row| row.get(0)).expect("a number")
    }

    /// Ends, and leaves what the next one goes on with.
    pub(crate) async fn end(self) -> Arc<tempfile::TempDir> {
        self.engine.stop().await;
        self.engine.store().close().await;
        self.folder
    }

    /// Where its jobs have their files.
    pub(crate) fn workspaces(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    /// Waits until a job is as it should be.
    pub(crate) async fn see(&self, id: JobId, is: impl Fn(&Kept) -> bool) -> Kept {
        let mut news = self.engine.news();
        let mut last = None;
        let wait = async {
            loop {
                let kept = self.engine.store().job(id).await.expect("a store").expect("a job");
                if is(&kept) {
                    return kept;
                }
                last = Some(kept);
                let _ = tokio::time::timeout(Duration::from_millis(200), news.recv()).await;
            }
        };
        let seen = tokio::time::timeout(PATIENCE, wait).await;
        seen.unwrap_or_else(|_| panic!("it is {last:#?}"))
    }

    /// Waits until a job has ended.
    pub(crate) async fn ended(&self, id: JobId) -> Kept {
        self.see(id, |kept| kept.job.state.status.is_terminal()).await
    }

    /// Waits until the job stands there.
    pub(crate) async fn until(&self, id: JobId, status: JobStatus) -> Kept {
        self.see(id, |kept| kept.job.state.status == status).await
    }
}

/// A step of the test gear.
pub(crate) fn step(id: &str, action: &str) -> Value {
    json!({"id": id, "gear": "test", "action": action})
}

pub(crate) fn failed(class: FailureClass) -> Ended {
    Ended::Failed(Failure::new(class, "as_told", "as it was told"))
}

pub(crate) fn uncertain() -> Ended {
    Ended::Uncertain(Failure::new(FailureClass::GearBug, "crashed", "it crashed"))
}
