//! The model's traces, replayed against the real stores with the product's own moves: every write
//! counts or does not as the model says, and after each step the row and the log are the model's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use semel_core::clock::UnixMs;
use semel_core::hex::Hex;
use semel_core::id::{JobId, UuidId};
use semel_jobs::course::{Facts, Move, begin, follow};
use semel_jobs::dispatch::ExecutionStatus;
use semel_jobs::gear::manifest::{Action, Manifest, Recovery, Risk};
use semel_jobs::gear::registry::Registry;
use semel_jobs::gear::{Call, Desk, Ended as GearEnded, Gear, Later, Resolution, Stop};
use semel_jobs::life::JobEvent;
use semel_jobs::plan::{Plan, PlanText};
use semel_jobs::policy::Policy;
use semel_jobs::store::{
    Advance, Advanced, Answering, Begin, Claim, Ended, Kept, NewJob, PostgresStore, Priority,
    Source, SqliteStore, Store, Submitted, Wrote, postgres, sqlite,
};
use semel_store::postgres::{Postgres, PostgresOptions};
use semel_store::sqlite::{Sqlite, SqliteOptions};
use semel_testkit::servers;
use serde_json::{Map, json};
use uuid::Uuid;

use crate::next::{End, Scope, Step, Told, steps};
use crate::state::{Due, Log, RECOVERY, STEPS, State, WORKERS};

const TRACES_SQLITE: u64 = 300;
const TRACES_POSTGRES: u64 = 100;
const TRACE_STEPS: usize = 40;
const NOW: UnixMs = UnixMs(1_800_000_000_000);
const LEASE: Duration = Duration::from_secs(15);
/// Longer than any lease or pause.
const A_WHILE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn traces_on_sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    let on_uncertain = Arc::new(|_: &semel_store::StoreError| {});
    let migrations = vec![sqlite::MIGRATIONS, semel_registrar::store::sqlite::MIGRATIONS];
    let path = folder.path().join("j.db");
    let id = sqlite::APPLICATION_ID;
    let options = SqliteOptions::new(path, id, migrations, NOW.0, on_uncertain);
    let file = Arc::new(Sqlite::open(&options).expect("a file"));
    replay(&Store::Sqlite(SqliteStore::new(file)), TRACES_SQLITE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn traces_on_postgres() {
    let address = servers::fresh_postgres().await;
    let migrations = [postgres::MIGRATIONS, semel_registrar::store::postgres::MIGRATIONS];
    let pool = Postgres::open(PostgresOptions::new(address), &migrations, NOW.0).await;
    let store = Store::Postgres(PostgresStore::new(pool.expect("a database")));
    replay(&store, TRACES_POSTGRES).await;
}

async fn replay(store: &Store, traces: u64) {
    let gears = Arc::new(Registry::default());
    gears.put(Arc::new(Nothing(manifest())), true).expect("a gear");
    let mut seen = BTreeSet::new();
    for number in 0..traces {
        let mut replay = Replay::begin(store, &gears, number).await;
        for (step, state) in walk(number) {
            seen.insert(name(step));
            replay.step(step, state.workers).await;
            replay.compare(step, &state).await;
        }
        replay.end().await;
    }
    for wanted in NAMES {
        assert!(seen.contains(wanted), "no trace has {wanted}: {seen:?}");
    }
}

/// A random walk through the model, the same for each number.
fn walk(number: u64) -> Vec<(Step, State)> {
    let (scope, mut state) = (Scope::design(), State::default());
    let (mut trace, mut found) = (Vec::new(), Vec::new());
    let mut random = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    while trace.len() < TRACE_STEPS {
        steps(&state, &scope, &mut found);
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        // What ends everything is rarer than the rest.
        let rare = |step: &Step| matches!(step, Step::Cancel | Step::Crash { .. });
        if random >> 61 != 0 && found.iter().any(|(step, _)| !rare(step)) {
            found.retain(|(step, _)| !rare(step));
        }
        let Some(count) = u64::try_from(found.len()).ok().filter(|count| *count > 0) else { break };
        let chosen = found[usize::try_from((random >> 33) % count).expect("small")];
        state = chosen.1;
        trace.push(chosen);
    }
    trace
}

/// What every run must have met.
const NAMES: [&str; 15] = [
    "claim",
    "renew",
    "renew lost",
    "effect",
    "record",
    "record lost",
    "unheard",
    "settle",
    "resolved",
    "crash",
    "let go",
    "time",
    "cancel",
    "happened",
    "run",
];

fn name(step: Step) -> &'static str {
    match step {
        Step::Claim { .. } => "claim",
        Step::Renew { held: true, .. } => "renew",
        Step::Renew { held: false, .. } => "renew lost",
        Step::Effect { .. } => "effect",
        Step::Record { written: true, .. } => "record",
        Step::Record { written: false, .. } => "record lost",
        Step::RecordUnheard { .. } => "unheard",
        Step::Settle { .. } => "settle",
        Step::Resolved { .. } => "resolved",
        Step::Crash { .. } => "crash",
        Step::LetGo { .. } => "let go",
        Step::TimePasses => "time",
        Step::Cancel => "cancel",
        Step::SayHappened => "happened",
        Step::SayRun => "run",
    }
}

struct Nothing(Manifest);

fn manifest() -> Manifest {
    let action = |recovery: Recovery| Action {
        about: "nothing".to_owned(),
        params: json!({"type": "object"}),
        result: None,
        risk: Risk::Low,
        recovery,
        timeout: Duration::from_secs(10),
        always_asks: false,
    };
    let actions = RECOVERY.iter().map(|recovery| (recovery.to_string(), action(*recovery)));
    let actions = actions.collect::<BTreeMap<_, _>>();
    Manifest { id: "test".to_owned(), version: "1".to_owned(), actions }
}

impl Gear for Nothing {
    fn manifest(&self) -> &Manifest {
        &self.0
    }

    fn run<'a>(&'a self, _: Call, _: Arc<dyn Desk>, _: Stop) -> Later<'a, GearEnded> {
        Box::pin(std::future::pending())
    }

    fn resolve<'a>(&'a self, _: Call, _: Stop) -> Later<'a, Resolution> {
        Box::pin(std::future::pending())
    }
}

fn step_id(step: usize) -> String {
    format!("s{step}")
}

fn ended(step: usize, status: ExecutionStatus, certain: bool, class: &str) -> Ended {
    let error = json!({"class": class, "code": "x", "message": "x"}).to_string();
    let is_done = status == ExecutionStatus::Completed;
    Ended {
        step_id: step_id(step),
        status,
        certain,
        result: is_done.then(|| "{}".to_owned()),
        artifact: None,
        error: (!is_done).then_some(error),
        attempts_forgiven: false,
    }
}

fn with_facts<T>(gears: &Registry, look: impl FnOnce(&Facts<'_>) -> T) -> T {
    look(&Facts {
        gears,
        policy: &Policy::default(),
        more_validators: false,
        closed: &|_| true,
        approval_timeout: Duration::from_secs(24 * 60 * 60),
        random: 0,
    })
}

/// One trace with a job of its own.
struct Replay<'a> {
    store: &'a Store,
    gears: &'a Arc<Registry>,
    id: JobId,
    now: UnixMs,
    fence: i64,
    /// The job as each worker knows it, and what it has heard nothing of.
    workers: [Option<(Kept, Option<Arc<Advance>>)>; WORKERS],
    /// The step at which each worker is.
    places: [usize; WORKERS],
}

impl<'a> Replay<'a> {
    async fn begin(store: &'a Store, gears: &'a Arc<Registry>, number: u64) -> Replay<'a> {
        let id: JobId = UuidId::new(Uuid::from_u128(u128::from(number) + 1));
        let mut steps = Vec::new();
        for (step, recovery) in RECOVERY.iter().enumerate() {
            let (id, action) = (step_id(step), recovery.as_str());
            steps.push(json!({"id": id, "gear": "test", "action": action, "params": {}}));
        }
        let plan = Plan::read(&json!({"steps": steps})).expect("a plan");
        let job = NewJob {
            id,
            root_id: id,
            retry_of: None,
            parent_id: None,
            depth: 0,
            source: Source::Api,
            priority: Priority::Normal,
            conversation: None,
            request: None,
            plan: Some(PlanText::from(plan.to_canonical())),
            budget_ms: 7 * 24 * 60 * 60 * 1000,
            key: None,
            fingerprint: Hex([0; 32]),
            dedup: None,
            now: NOW,
        };
        assert_eq!(store.submit(job).await.expect("an answer"), Submitted::Made);
        let (workers, places) = ([const { None }; WORKERS], [0; WORKERS]);
        Self { store, gears, id, now: NOW, fence: 0, workers, places }
    }

    /// Nothing is left for the next trace to claim.
    async fn end(&self) {
        let kept = self.kept().await;
        if !kept.job.state.status.is_terminal() {
            self.word(JobEvent::Cancel, None).await;
        }
    }

    async fn kept(&self) -> Kept {
        self.store.job(self.id).await.expect("an answer").expect("a job")
    }

    async fn step(&mut self, step: Step, after: [crate::state::Worker; WORKERS]) {
        match step {
            Step::Claim { who } => self.claim(who).await,
            Step::Renew { who, held } => {
                let (kept, _) = self.workers[who].as_ref().expect("a worker");
                let (no, until) = (kept.job.no, self.now.saturating_add(LEASE));
                let lost = self.store.renew(vec![(no, kept.job.state.fence)], until).await;
                assert_eq!(lost.expect("an answer").is_empty(), held, "{step:?}");
            }
            Step::Record { who, end, written } => {
                let advance = self.follow(who, end_of(self.places[who], end));
                self.write(who, advance, written, step).await;
            }
            Step::RecordUnheard { who, end } => {
                let advance = self.follow(who, end_of(self.places[who], end));
                let written = self.store.advance(Arc::clone(&advance)).await;
                assert_eq!(written.expect("an answer"), Advanced::Written, "{step:?}");
                self.workers[who].as_mut().expect("a worker").1 = Some(advance);
            }
            Step::Settle { who } => self.settle(who, step).await,
            Step::Resolved { who, told, written } => {
                let advance = self.told(who, told);
                self.write(who, advance, written, step).await;
            }
            Step::LetGo { who } => {
                let (kept, _) = self.workers[who].as_ref().expect("a worker");
                let mut goes = Move::of(kept, self.now);
                goes.release(Some(self.now));
                self.write(who, Arc::new(goes.into_advance()), true, step).await;
            }
            Step::TimePasses => self.now = self.now.saturating_add(A_WHILE),
            Step::Cancel => self.word(JobEvent::Cancel, None).await,
            Step::SayHappened => {
                self.word(JobEvent::PersonApproved, Some(ExecutionStatus::Completed)).await;
            }
            Step::SayRun => {
                self.word(JobEvent::PersonApproved, Some(ExecutionStatus::Failed)).await;
            }
            Step::Effect { .. } | Step::Crash { .. } => {}
        }
        self.fence += match step {
            Step::Claim { .. } | Step::Cancel | Step::SayHappened | Step::SayRun => 1,
            Step::Renew { .. }
            | Step::Effect { .. }
            | Step::Record { .. }
            | Step::RecordUnheard { .. }
            | Step::Settle { .. }
            | Step::Resolved { .. }
            | Step::Crash { .. }
            | Step::LetGo { .. }
            | Step::TimePasses => 0,
        };
        self.places = after.map(|worker| usize::from(worker.step));
    }

    async fn claim(&mut self, who: usize) {
        let lease_until = self.now.saturating_add(LEASE);
        let claim = Claim { worker: format!("w{who}"), lease_until, limit: 9, now: self.now };
        let gears = Arc::clone(self.gears);
        let first: Begin = Arc::new(move |kept, claim| {
            with_facts(&gears, |facts| begin(kept, claim, facts).0.into_advance())
        });
        let mut claimed = self.store.claim(claim, first).await.expect("an answer").jobs;
        assert_eq!(claimed.len(), 1, "one job is due");
        let claimed = claimed.remove(0);
        let mut kept = claimed.before;
        kept.apply(&claimed.advance);
        self.workers[who] = Some((kept, None));
    }

    fn follow(&self, who: usize, ended: Ended) -> Arc<Advance> {
        let (kept, _) = self.workers[who].as_ref().expect("a worker");
        let step = Move::of(kept, self.now);
        let moved = with_facts(self.gears, |facts| follow(step, kept, facts, vec![ended]).0);
        Arc::new(moved.into_advance())
    }

    fn told(&self, who: usize, told: Told) -> Arc<Advance> {
        let place = self.places[who];
        let status = match told {
            Told::Done => ExecutionStatus::Completed,
            Told::NotDone => ExecutionStatus::Failed,
            Told::Unknown => {
                let (kept, _) = self.workers[who].as_ref().expect("a worker");
                let mut asks = Move::of(kept, self.now);
                let question = json!({"kind": "uncertain_step", "step": step_id(place)});
                asks.ask(JobEvent::Unsure, &question, Duration::from_secs(24 * 60 * 60));
                return Arc::new(asks.into_advance());
            }
        };
        self.follow(who, ended(place, status, true, "transient"))
    }

    async fn write(&mut self, who: usize, advance: Arc<Advance>, written: bool, step: Step) {
        let said = self.store.advance(Arc::clone(&advance)).await.expect("an answer");
        assert_eq!(said == Advanced::Written, written, "{step:?}");
        if written {
            self.workers[who].as_mut().expect("a worker").0.apply(&advance);
        }
    }

    /// One that still has the job finds its move there; any other tries again, in vain.
    async fn settle(&mut self, who: usize, step: Step) {
        let fence = self.fence;
        let (kept, unheard) = self.workers[who].as_mut().expect("a worker");
        let advance = unheard.take().expect("something unheard");
        if kept.job.state.fence == fence {
            kept.apply(&advance);
            return;
        }
        let said = self.store.advance(advance).await.expect("an answer");
        assert_eq!(said, Advanced::Lost, "{step:?}");
    }

    /// A person's word, and what it makes of the step that was asked about.
    async fn word(&self, event: JobEvent, status: Option<ExecutionStatus>) {
        let now = self.now;
        let decide: Answering = Arc::new(move |kept| {
            let mut word = Move::of(kept, now);
            word.overrule();
            for (step, line) in kept.executions.iter().enumerate() {
                let is_asked = line.status == ExecutionStatus::Failed && !line.certain;
                match status {
                    Some(status) if is_asked => word.end(Ended {
                        attempts_forgiven: status == ExecutionStatus::Failed,
                        ..ended(step, status, true, "transient")
                    }),
                    None if line.status == ExecutionStatus::Started => {
                        word.end(ended(step, ExecutionStatus::Failed, false, "gear_bug"));
                    }
                    Some(_) | None => {}
                }
            }
            word.happen(event, Map::new());
            if status.is_some() {
                word.release(Some(now));
            }
            Ok(word.into_advance())
        });
        let said = self.store.person(self.id, None, decide).await.expect("an answer");
        assert!(matches!(said, Wrote::Written(_)), "{said:?}");
    }

    /// The store is where the model is.
    async fn compare(&self, step: Step, model: &State) {
        let mut kept = self.kept().await;
        kept.executions.sort_by(|one, other| one.step_id.cmp(&other.step_id));
        let (row, state) = (&model.row, &kept.job.state);
        assert_eq!(state.fence, self.fence, "{step:?}");
        let said = (row.status, row.worker, u32::from(row.deaths));
        assert_eq!((state.status, state.worker.is_some(), state.deaths), said, "{step:?}");
        let due = match (state.ready, state.due_at) {
            (true, _) => Due::Ready,
            (false, None) => Due::Never,
            (false, Some(at)) if at <= self.now => Due::Now,
            (false, Some(_)) => Due::Later,
        };
        assert_eq!(due, row.due, "{step:?}");
        for place in 0..STEPS {
            let line = kept.executions.get(place).map_or((Log::Nothing, 0), |line| {
                let log = match (line.status, line.certain) {
                    (ExecutionStatus::Started, _) => Log::Started,
                    (ExecutionStatus::Completed, _) => Log::Completed,
                    (ExecutionStatus::Failed, true) => Log::Failed,
                    (ExecutionStatus::Failed, false) => Log::Uncertain,
                };
                (log, if log == Log::Completed { 0 } else { line.attempts })
            });
            let (log, used) = row.log[place];
            assert_eq!(line, (log, u32::from(used)), "{step:?}: {}", step_id(place));
        }
    }
}

fn end_of(step: usize, end: End) -> Ended {
    match end {
        End::Done => ended(step, ExecutionStatus::Completed, true, ""),
        End::Failed => ended(step, ExecutionStatus::Failed, true, "transient"),
        End::Lost => ended(step, ExecutionStatus::Failed, false, "gear_bug"),
    }
}
