//! The model's traces, replayed against the real stores with the product's own moves: every write
//! counts or does not as the model says, and after each step the row and the log are the model's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use semel_core::clock::UnixMs;
use semel_core::code::Code;
use semel_core::hex::Hex;
use semel_core::id::{JobId, UuidId};
use semel_core::refusal::Refusal;
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
use semel_testkit::dice::Dice;
use semel_testkit::servers;
use serde_json::{Map, json};
use uuid::Uuid;

use crate::next::steps;
use crate::scope::Scope;
use crate::state::{Due, Log, RECOVERY, STEPS, State, WORKERS, Word};
use crate::step::{End, NAMES, Step, Told};

const TRACES_SQLITE: u64 = 300;
const TRACES_POSTGRES: u64 = 300;
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
    replay(&Store::Sqlite(SqliteStore::new(file)), None, TRACES_SQLITE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn traces_on_postgres() {
    let address = servers::fresh_postgres().await;
    let migrations = [postgres::MIGRATIONS, semel_registrar::store::postgres::MIGRATIONS];
    let pool = Postgres::open(PostgresOptions::new(address), &migrations, NOW.0).await;
    let pool = pool.expect("a database");
    let clock = pool.begin().await.expect("a transaction");
    for sql in TEST_CLOCK {
        clock.execute(sql, &[]).await.expect("a clock");
    }
    clock.commit().await.expect("a clock");
    let store = Store::Postgres(PostgresStore::new(pool.clone()));
    replay(&store, Some(&pool), TRACES_POSTGRES).await;
}

/// The server's time is what a table says.
const TEST_CLOCK: [&str; 3] = [
    "CREATE TABLE jobs.test_clock (at BIGINT NOT NULL)",
    "INSERT INTO jobs.test_clock VALUES (0)",
    "CREATE OR REPLACE FUNCTION jobs.now_ms() RETURNS BIGINT LANGUAGE plpgsql STABLE AS
        $$ BEGIN RETURN (SELECT at FROM jobs.test_clock); END $$",
];

async fn replay(store: &Store, clock: Option<&Postgres>, traces: u64) {
    let gears = Arc::new(Registry::default());
    gears.put(Arc::new(Nothing(manifest())), true).expect("a gear");
    let mut seen = BTreeSet::new();
    for number in 0..traces {
        let mut replay = Replay::begin(store, clock, &gears, number).await;
        for (step, state) in walk(number) {
            seen.insert(step.name());
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
    let (scope, mut state) = (Scope::whole(), State::default());
    let (mut trace, mut found) = (Vec::new(), Vec::new());
    let mut dice = Dice::new(number);
    while trace.len() < TRACE_STEPS {
        steps(&state, &scope, &mut found);
        // What ends everything is rarer than the rest.
        let rare = |step: &Step| {
            let lost = matches!(step, Step::ClaimUndone { .. } | Step::ClaimUnheard { .. });
            let stops = matches!(step, Step::LetGoUndone { .. } | Step::LetGoUnheard { .. });
            let ends = matches!(step, Step::Cancel | Step::Crash { .. } | Step::StandStill);
            lost || stops || ends
        };
        if !dice.one_in(8) && found.iter().any(|(step, _)| !rare(step)) {
            found.retain(|(step, _)| !rare(step));
        }
        let Some(chosen) = dice.try_pick(&found).copied() else { break };
        state = chosen.1;
        trace.push(chosen);
    }
    trace
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
        home: None,
        for_another: &|_, _| false,
    })
}

/// One trace with a job of its own.
struct Replay<'a> {
    store: &'a Store,
    /// Where the store's own clock is set.
    clock: Option<&'a Postgres>,
    gears: &'a Arc<Registry>,
    id: JobId,
    now: UnixMs,
    fence: i64,
    /// The job as each worker knows it, and what it has heard nothing of.
    workers: [Option<(Kept, Option<Arc<Advance>>)>; WORKERS],
    /// The step at which each worker is.
    places: [usize; WORKERS],
    /// The word of which a person has heard nothing, and the question that it answers.
    said: Option<(Word, i64)>,
}

impl<'a> Replay<'a> {
    async fn begin(
        store: &'a Store,
        clock: Option<&'a Postgres>,
        gears: &'a Arc<Registry>,
        number: u64,
    ) -> Replay<'a> {
        let id: JobId = UuidId::new(Uuid::from_u128(u128::from(number) + 1));
        let (workers, places) = ([const { None }; WORKERS], [0; WORKERS]);
        let replay =
            Self { store, clock, gears, id, now: NOW, fence: 0, workers, places, said: None };
        replay.set_time().await;
        replay
    }

    fn new_job(&self) -> NewJob {
        let mut steps = Vec::new();
        for (step, recovery) in RECOVERY.iter().enumerate() {
            let (id, action) = (step_id(step), recovery.as_str());
            steps.push(json!({"id": id, "gear": "test", "action": action, "params": {}}));
        }
        let plan = Plan::read(&json!({"steps": steps})).expect("a plan");
        NewJob {
            id: self.id,
            root_id: self.id,
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
            home: None,
            asker: None,
            grants: None,
            now: NOW,
        }
    }

    /// It is made together with its first move.
    async fn submit_begun(&mut self, who: usize) {
        let new = self.new_job();
        let (mut kept, claim) = (new.fresh(), self.claim_of(who));
        let first = with_facts(self.gears, |facts| begin(&kept, &claim, facts).0.into_advance());
        let said = self.store.submit_begun(new, first.clone(), 9).await.expect("an answer");
        let (Submitted::Made, Some(no)) = said else { unreachable!("{said:?}") };
        kept.job.no = no;
        kept.apply(&Advance { no, ..first });
        self.workers[who] = Some((kept, None));
    }

    /// A store that others share goes by its own clock.
    async fn set_time(&self) {
        if let Some(clock) = self.clock {
            let sql = "UPDATE jobs.test_clock SET at = $1";
            clock.write(sql, &[&self.now.0]).await.expect("a clock");
        }
    }

    /// Nothing is left for the next trace to claim.
    async fn end(&self) {
        let kept = self.kept().await;
        if !kept.job.state.status.is_terminal() {
            assert!(self.cancel().await);
        }
    }

    async fn kept(&self) -> Kept {
        self.store.job(self.id).await.expect("an answer").expect("a job")
    }

    async fn step(&mut self, step: Step, after: [crate::state::Worker; WORKERS]) {
        match step {
            Step::Submit => {
                let said = self.store.submit(self.new_job()).await;
                assert_eq!(said.expect("an answer"), Submitted::Made);
            }
            Step::SubmitBegun { who } | Step::SubmitUnheard { who } => {
                self.submit_begun(who).await;
            }
            Step::Claim { who } | Step::ClaimUnheard { who } => self.claim(who).await,
            // Nothing is left of it, and nothing is found.
            Step::ClaimUndone { who } => self.workers[who] = None,
            Step::Renew { who, held } => self.renew(who, held, step).await,
            Step::RenewUnheard { who } => self.renew(who, true, step).await,
            Step::Record { who, end, written } => {
                let advance = self.follow(who, end_of(self.places[who], end));
                self.write(who, advance, written, step).await;
            }
            Step::RecordUnheard { who, end } => {
                let advance = self.follow(who, end_of(self.places[who], end));
                self.write_unheard(who, advance, step).await;
            }
            Step::Settle { who } => self.settle(who, step).await,
            Step::Resolved { who, told, written } => {
                let advance = self.told(who, told);
                self.write(who, advance, written, step).await;
            }
            Step::ResolvedUnheard { who, told } => {
                let advance = self.told(who, told);
                self.write_unheard(who, advance, step).await;
            }
            Step::LetGo { who } => self.write(who, self.release(who), true, step).await,
            Step::LetGoUnheard { who } => {
                self.write_unheard(who, self.release(who), step).await;
            }
            Step::TimePasses | Step::StandStill => {
                self.now = self.now.saturating_add(A_WHILE);
                self.set_time().await;
            }
            Step::Cancel => assert!(self.cancel().await, "{step:?}"),
            Step::Say(word) => {
                let asked = self.question().await;
                assert!(self.answer(word, asked).await, "{step:?}");
            }
            Step::SayUnheard(word) | Step::SayUndone(word) => {
                let asked = self.question().await;
                self.said = Some((word, asked));
                if matches!(step, Step::SayUnheard(_)) {
                    assert!(self.answer(word, asked).await, "{step:?}");
                }
            }
            Step::SayAgain { counts } => {
                let (word, asked) = self.said.take().expect("somebody who has heard nothing");
                assert_eq!(self.answer(word, asked).await, counts, "{step:?}");
            }
            // A move that was undone, and a look that failed, have left nothing.
            Step::RecordUndone { .. } | Step::LetGoUndone { .. } | Step::SettleFails { .. } => {}
            Step::Effect { .. } | Step::Crash { .. } => {}
        }
        self.fence += i64::from(step.changes_hands());
        self.places = after.map(|worker| usize::from(worker.step));
    }

    fn claim_of(&self, who: usize) -> Claim {
        Claim {
            worker: format!("w{who}"),
            fence: self.fence + 1,
            lease: LEASE,
            limit: 9,
            held: Vec::new(),
            home: None,
            now: self.now,
        }
    }

    async fn claim(&mut self, who: usize) {
        let claim = self.claim_of(who);
        let gears = Arc::clone(self.gears);
        let first: Begin = Arc::new(move |kept, claim| {
            with_facts(&gears, |facts| Some(begin(kept, claim, facts).0.into_advance()))
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

    /// The same, and nothing is heard of it.
    async fn write_unheard(&mut self, who: usize, advance: Arc<Advance>, step: Step) {
        let said = self.store.advance(Arc::clone(&advance)).await;
        assert_eq!(said.expect("an answer"), Advanced::Written, "{step:?}");
        self.workers[who].as_mut().expect("a worker").1 = Some(advance);
    }

    async fn renew(&self, who: usize, held: bool, step: Step) {
        let (kept, _) = self.workers[who].as_ref().expect("a worker");
        let claims = vec![(kept.job.no, kept.job.state.fence)];
        let lost = self.store.renew(claims, LEASE, self.now).await;
        assert_eq!(lost.expect("an answer").is_empty(), held, "{step:?}");
    }

    /// A claim is given back.
    fn release(&self, who: usize) -> Arc<Advance> {
        let (kept, _) = self.workers[who].as_ref().expect("a worker");
        let mut goes = Move::of(kept, self.now);
        goes.release(Some(self.now));
        Arc::new(goes.into_advance())
    }

    /// One that still has the job finds its move there; any other tries again, in vain.
    async fn settle(&mut self, who: usize, step: Step) {
        let fence = self.fence;
        let Some((kept, unheard)) = self.workers[who].as_mut() else { return };
        // A claim was found when it was made.
        let Some(advance) = unheard.take() else { return };
        let is_own = kept.job.state.fence == fence;
        // A release leaves no line that could be found: what it was is over either way.
        if is_own && !advance.lines.is_empty() && matches!(self.store, Store::Postgres(_)) {
            let said = self.store.advance_again(Arc::clone(&advance)).await.expect("an answer");
            assert_eq!(said, Advanced::Written, "{step:?}");
        }
        if is_own {
            kept.apply(&advance);
            return;
        }
        let said = self.store.advance(advance).await.expect("an answer");
        assert_eq!(said, Advanced::Lost, "{step:?}");
    }

    /// Which question is asked.
    async fn question(&self) -> i64 {
        self.kept().await.job.state.entries
    }

    /// What is running may have happened. Whoever cancels twice hears that it has ended.
    async fn cancel(&self) -> bool {
        let counts = self.word(|kept, word| {
            if kept.job.state.status.is_terminal() {
                return false;
            }
            for (step, line) in kept.executions.iter().enumerate() {
                if line.status == ExecutionStatus::Started {
                    word.end(ended(step, ExecutionStatus::Failed, false, "gear_bug"));
                }
            }
            word.happen(JobEvent::Cancel, Map::new());
            true
        });
        counts.await
    }

    /// What a person says of the step that this question is about.
    async fn answer(&self, said: Word, question: i64) -> bool {
        let now = self.now;
        let status = match said {
            Word::Happened => ExecutionStatus::Completed,
            Word::Run => ExecutionStatus::Failed,
        };
        let counts = self.word(move |kept, word| {
            if kept.job.state.entries != question {
                return false;
            }
            for (step, line) in kept.executions.iter().enumerate() {
                if line.status == ExecutionStatus::Failed && !line.certain {
                    word.end(Ended {
                        attempts_forgiven: said == Word::Run,
                        ..ended(step, status, true, "transient")
                    });
                }
            }
            word.happen(JobEvent::PersonApproved, Map::new());
            word.release(Some(now));
            true
        });
        counts.await
    }

    /// A person's word, which may be refused. Whether it is written.
    async fn word(&self, say: impl Fn(&Kept, &mut Move) -> bool + Send + Sync + 'static) -> bool {
        let (now, fence) = (self.now, self.fence + 1);
        let decide: Answering = Arc::new(move |kept| {
            let mut word = Move::of(kept, now);
            word.overrule(fence);
            let counts = say(kept, &mut word);
            counts.then(|| word.into_advance()).ok_or_else(|| Refusal::new(Code::JobNotWaiting, ""))
        });
        let said = self.store.person(self.id, None, decide).await.expect("an answer");
        match said {
            Wrote::Written(_) => true,
            Wrote::Refused(_) => false,
            Wrote::NotFound | Wrote::GrantRefused(_) => unreachable!("{said:?}"),
        }
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
