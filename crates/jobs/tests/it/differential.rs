//! Arbitrary sequences of operations: both stores give equal answers and leave equal rows.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use semel_core::clock::UnixMs;
use semel_core::hex::Hex;
use semel_core::id::JobId;
use semel_jobs::breaker::Run;
use semel_jobs::gear::FailureClass;
use semel_jobs::life::{JOB, JobStatus};
use semel_jobs::store::{
    Advance, Advanced, Age, JobNo, Kept, List, NewJob, Priority, Store, Submitted, Wrote,
};
use semel_testkit::dice::Dice;

use crate::people::word;
use crate::submits::said;
use crate::support::{
    NOW, World, begin, claim_of, completed, failed, moved, new_job, on_postgres, on_sqlite, started,
};

const SEQUENCES: u64 = 16;
const OPERATIONS: u32 = 1_300;

/// Both stores, and what their callers know.
struct Pair {
    seed: u64,
    sqlite: World,
    postgres: World,
    dice: Dice,
    now: UnixMs,
    submitted: Vec<JobId>,
    /// As workers believe their jobs to be, those included that have lost them.
    held: Vec<Kept>,
}

impl Pair {
    /// Runs it on both; the answers are equal, and no error.
    async fn both<T, Asked>(&self, what: &str, ask: impl Fn(Store) -> Asked) -> T
    where
        T: PartialEq + Debug,
        Asked: Future<Output = Result<T, semel_store::StoreError>>,
    {
        let stores = (self.sqlite.store.clone(), self.postgres.store.clone());
        let (left, right) = tokio::join!(ask(stores.0), ask(stores.1));
        let seed = self.seed;
        let left = left.unwrap_or_else(|error| panic!("seed {seed}, {what}: {}", error.chain()));
        let right = right.unwrap_or_else(|error| panic!("seed {seed}, {what}: {}", error.chain()));
        if left != right {
            let (left, right) = (format!("{left:#?}"), format!("{right:#?}"));
            let same = left.lines().zip(right.lines()).take_while(|(l, r)| l == r).count();
            let near = |text: &str| {
                let lines = text.lines().skip(same.saturating_sub(20)).take(40);
                lines.collect::<Vec<_>>().join("\n")
            };
            let (left, right) = (near(&left), near(&right));
            panic!("seed {seed}, {what}:\nsqlite\n{left}\npostgresql\n{right}");
        }
        left
    }

    async fn submit(&mut self) {
        let number = u128::from(self.seed) << 32 | self.submitted.len() as u128;
        let bucket = 100 + u8::try_from(self.dice.roll(4)).unwrap();
        let words = 1 + u8::try_from(self.dice.roll(6)).unwrap();
        let mut job =
            if self.dice.one_in(4) { said(number, words, bucket) } else { new_job(number) };
        if self.dice.one_in(4) {
            job.key = Some(format!("key {}", self.dice.roll(40)));
            job.fingerprint = Hex([u8::try_from(self.dice.roll(2)).unwrap(); 32]);
            job.dedup = None;
        }
        if self.dice.one_in(2) {
            job.conversation = Some(format!("c{}", self.dice.roll(5)));
        }
        job.priority = *self.dice.pick(Priority::ALL);
        job.now = self.now;
        if self.dice.one_in(6) {
            job = self.repeat(job).await;
        }
        let submit = |store: Store| {
            let job = job.clone();
            async move { store.submit(job).await }
        };
        let said = self.both("submit", submit).await;
        if said == Submitted::Made {
            self.submitted.push(job.id);
        } else {
            // The id stays unused, and the next one differs by its length.
            self.submitted.push(job.root_id);
        }
    }

    async fn repeat(&mut self, job: NewJob) -> NewJob {
        let Some(of) = self.dice.try_pick(&self.submitted).copied() else { return job };
        let root = self.sqlite.store.job(of).await.unwrap().map_or(of, |kept| kept.job.root_id);
        NewJob { retry_of: Some(of), root_id: root, key: None, dedup: None, ..job }
    }

    async fn claim(&mut self) {
        let limit = u32::try_from(1 + self.dice.roll(4)).unwrap();
        let claim = claim_of(&format!("w{}", self.dice.roll(3)), limit, self.now);
        let claimed = self.both("claim", |store| {
            let claim = claim.clone();
            async move { store.claim(claim, begin()).await.map(|claims| claims.jobs) }
        });
        for job in claimed.await {
            self.held.push(crate::support::after(&job));
        }
    }

    /// Somewhere that the table allows, with a step that begins or ends, if it is honest.
    fn next_move(&mut self, kept: &Kept) -> Option<Advance> {
        let from = kept.job.state.status;
        let rows: Vec<_> = JOB.iter().filter(|(source, ..)| *source == from).collect();
        let to = self.dice.try_pick(&rows).map(|(.., to)| *to)?;
        let to = if self.dice.one_in(3) { to } else { from };
        let mut advance = moved(kept, to, self.now);
        if to == JobStatus::Pending {
            advance.state.worker = None;
            advance.state.due_at = Some(UnixMs(self.now.0 + 5_000));
            advance.state.held_by = Some(format!("a{}", self.dice.roll(2)));
        }
        if to == JobStatus::Failed {
            advance.state.failure_class = Some(*self.dice.pick(FailureClass::ALL));
            let action = format!("a{}", self.dice.roll(3));
            advance.state.failed_action = (!self.dice.one_in(3)).then_some(action);
        }
        if self.dice.one_in(5) {
            advance.new_plan = true;
            advance.state.plan = Some(format!("{{ \"n\": {} }}", self.dice.roll(99)).into());
            advance.state.plan_no += 1;
        }
        let step = format!("s{}", self.dice.roll(3));
        let line = kept.executions.iter().find(|line| line.step_id == step);
        match line.map(|line| line.status.as_str()) {
            None | Some("failed") => advance.started = vec![started(&step, 1, 1)],
            Some("started") if self.dice.one_in(2) => advance.ended = vec![completed(&step)],
            Some("started") => advance.ended = vec![failed(&step, self.dice.one_in(2))],
            Some(_) => {}
        }
        Some(advance)
    }

    async fn advance(&mut self) {
        let Some(kept) = self.dice.try_pick(&self.held).cloned() else { return };
        let Some(mut advance) = self.next_move(&kept) else { return };
        if self.dice.one_in(12) {
            advance.fence -= 1;
        }
        let said = self.both("advance", |store| {
            let advance = advance.clone();
            async move { store.advance(advance).await }
        });
        let said = said.await;
        self.held.retain(|held| held.job.no != kept.job.no || held.job.state != kept.job.state);
        let mut kept = kept;
        if said == Advanced::Written {
            kept.apply(&advance);
            if kept.job.state.worker.is_some() {
                self.held.push(kept);
            }
        }
    }

    async fn person(&mut self) {
        let Some(id) = self.dice.try_pick(&self.submitted).copied() else { return };
        let from = *self.dice.pick(JobStatus::ALL);
        if from.is_terminal() {
            return;
        }
        let to = if self.dice.one_in(2) { JobStatus::Cancelled } else { JobStatus::Executing };
        let word = word(from, to);
        let said = self.both("person", |store: Store| {
            let word = Arc::clone(&word);
            async move { store.person(id, None, word).await }
        });
        let _: Wrote = said.await;
    }

    async fn breaker(&mut self) {
        let (action, now) = (format!("a{}", self.dice.roll(2)), self.now);
        let run = match self.dice.roll(6) {
            0 | 1 => Run::Succeeded,
            2 => Run::Broke,
            3 => Run::Refused,
            _ => Run::Failed,
        };
        // Now and then it is the one that decides.
        let probe = (!self.dice.one_in(3)).then(|| i64::try_from(self.dice.roll(4)).unwrap());
        match self.dice.roll(6) {
            0 => {
                let close = |store: Store| {
                    let action = action.clone();
                    async move { store.breaker_close(&action, now).await }
                };
                self.both("close", close).await;
            }
            1..=3 => {
                let note = |store: Store| {
                    let action = action.clone();
                    async move { store.breaker_note(&action, vec![run; 3], probe, now).await }
                };
                self.both("note", note).await;
            }
            _ => {
                let probe = Duration::from_secs(7);
                let admit = |store: Store| {
                    let action = action.clone();
                    async move { store.breaker_admit(&action, now, probe).await }
                };
                self.both("admit", admit).await;
            }
        }
    }

    async fn renew(&mut self) {
        let held = self.held.iter().filter(|_| self.dice.one_in(2));
        let held: Vec<(JobNo, i64)> = held.map(|k| (k.job.no, k.job.state.fence)).collect();
        let (now, until) = (self.now, UnixMs(self.now.0 + 15_000));
        let renew = |store: Store| {
            let held = held.clone();
            async move { store.renew(held, Duration::from_secs(15), now).await }
        };
        let lost = self.both("renew", renew).await;
        self.held.retain(|kept| !lost.contains(&kept.job.no));
        for kept in &mut self.held {
            if held.contains(&(kept.job.no, kept.job.state.fence)) {
                kept.job.state.due_at = Some(until);
            }
        }
    }

    async fn look(&mut self) {
        let now = self.now;
        let list = List {
            status: self.dice.one_in(2).then(|| *self.dice.pick(JobStatus::ALL)),
            class: self.dice.one_in(3).then(|| *self.dice.pick(FailureClass::ALL)),
            conversation: self.dice.one_in(3).then(|| format!("c{}", self.dice.roll(5))),
            before: self.dice.one_in(2).then(|| JobNo(self.dice.roll(200).cast_signed())),
            limit: u32::try_from(1 + self.dice.roll(9)).unwrap(),
        };
        let ask = |store: Store| {
            let list = list.clone();
            async move { store.list(list).await }
        };
        self.both("list", ask).await;
        self.both("depth", async |store: Store| store.depth().await).await;
        // When it is due depends on whose clock says so; whether it is does not.
        let due = async |store: Store| {
            let due_in = store.next_due(now, Vec::new(), None).await?;
            Ok(due_in.map(|due_in| due_in.is_zero()))
        };
        self.both("due", due).await;
        self.both("patterns", async |store: Store| store.patterns(UnixMs(0)).await).await;
        self.both("expired", async |store: Store| store.expired(now, 5).await).await;
        let class = *self.dice.pick(FailureClass::ALL);
        self.both("failed", async |store: Store| store.failed(class, 3, 5).await).await;
        self.both("breakers", async |store: Store| store.breakers().await).await;
    }

    async fn sweep(&mut self) {
        let before = UnixMs(self.now.0 - 120_000);
        self.both("sweep", async |store: Store| store.sweep(Age { before, now: before }, 5).await)
            .await;
    }

    /// Every job and its ledger.
    async fn rows(&self) {
        for id in &self.submitted {
            let id = *id;
            self.both("job", async |store: Store| store.job(id).await).await;
            self.both("ledger", async |store: Store| store.ledger(id, 0, 999).await).await;
        }
        let hashes = "SELECT count(DISTINCT fingerprint) + count(dedup_hash) * 100 FROM jobs.job";
        let both = (self.sqlite.count(hashes).await, self.postgres.count(hashes).await);
        assert_eq!(both.0, both.1);
    }
}

async fn sequence(seed: u64) -> u32 {
    let (sqlite, postgres) = tokio::join!(on_sqlite(), on_postgres());
    let (submitted, held) = (Vec::new(), Vec::new());
    let mut pair =
        Pair { seed, sqlite, postgres, dice: Dice::new(seed), now: NOW, submitted, held };
    for _ in 0..OPERATIONS {
        pair.now = UnixMs(pair.now.0 + pair.dice.roll(2_000).cast_signed());
        pair.postgres.set_time(pair.now).await;
        match pair.dice.roll(100) {
            0..=24 => pair.submit().await,
            25..=44 => pair.claim().await,
            45..=79 => pair.advance().await,
            80..=85 => pair.person().await,
            86..=90 => pair.breaker().await,
            91..=94 => pair.renew().await,
            95..=97 => pair.look().await,
            _ => pair.sweep().await,
        }
    }
    pair.rows().await;
    OPERATIONS
}

#[tokio::test(flavor = "multi_thread")]
async fn both_stores_agree_on_any_sequence() {
    let first = getrandom::u64().unwrap() % 1_000_000;
    let done = join_all((0..SEQUENCES).map(|n| tokio::spawn(sequence(first + n)))).await;
    let done: u32 = done.into_iter().map(Result::unwrap).sum();
    assert!(done >= 20_000, "only {done} operations");
}
