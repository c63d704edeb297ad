//! What callers and operators write to the registrar's PostgreSQL store, with every fault at every
//! request of it and once more in what recovers from that (`semel_testkit::faults`). While a
//! request is held up another registrar is asked for the same. What a restore notes is not here.
//!
//! Afterwards an effect is there with all that belongs to it or not at all, nobody was told
//! otherwise, and the pool is usable.

use std::sync::{Mutex, OnceLock};

use semel_core::clock::UnixMs;
use semel_registrar::decide::{Gate, Outcome};
use semel_registrar::envelope::Envelope;
use semel_registrar::grant::Grant;
use semel_registrar::key::LogicalRequestKey;
use semel_registrar::registrar::{Asked, Registrar};
use semel_registrar::store::{
    Entry, PostgresStore, Resolved, Revoking, Store, Verdict, Verifying, postgres,
};
use semel_store::postgres::{Postgres, PostgresOptions};
use semel_store::{Fate, StoreError};
use semel_testkit::clock::SimClock;
use semel_testkit::faults::{Faulty, Tried, every_fault, usable};

use crate::support::{NOW, envelope, start};

/// How often whoever hears no definite answer asks again.
const TRIES: usize = 4;
const MONTH_MS: i64 = 30 * 24 * 60 * 60 * 1000;

fn wanted() -> Envelope {
    Envelope::parse(envelope("faulty").to_string().as_bytes()).unwrap()
}

fn key() -> LogicalRequestKey {
    LogicalRequestKey::of(&wanted())
}

async fn open(options: PostgresOptions) -> Postgres {
    Postgres::open(options, &[postgres::MIGRATIONS], NOW.0).await.unwrap()
}

async fn registrar(pool: &Postgres) -> Registrar {
    let store = Store::Postgres(PostgresStore::new(pool.clone()));
    start(store, &SimClock::at_ms(NOW.0)).await.unwrap()
}

/// One run: the registrar that is under test, and another one.
struct Run<'a> {
    faulty: &'a Faulty,
    mine: Registrar,
    /// Its store, for what no registrar does by itself.
    store: Store,
    pool: Postgres,
    other: Registrar,
    grant: Grant,
}

/// Runs it in copies of a database in which a request is granted, and `more` was done.
async fn each(more: impl AsyncFnOnce(&Registrar, &Grant), run: impl AsyncFn(&Run<'_>)) -> Tried {
    let granted: OnceLock<Grant> = OnceLock::new();
    let seed = async |address: String| {
        let pool = open(PostgresOptions::new(address)).await;
        let first = registrar(&pool).await;
        first.gate_set("deploys", Gate::Open).await.unwrap();
        let grant = first.grant_issue(&wanted(), (None, None)).await.unwrap().unwrap();
        more(&first, &grant).await;
        pool.close();
        assert!(granted.set(grant).is_ok());
    };
    let in_a_copy = async |faulty: &Faulty| {
        let (pool, others) = (open(faulty.options()).await, open(faulty.others()).await);
        let (mine, other) = (registrar(&pool).await, registrar(&others).await);
        let store = Store::Postgres(PostgresStore::new(pool.clone()));
        let grant = granted.get().unwrap().clone();
        let here = Run { faulty, mine, store, pool, other, grant };
        run(&here).await;
        here.pool.close();
        others.close();
    };
    every_fault(seed, in_a_copy).await
}

impl Run<'_> {
    /// The fault happens during `mine`; afterwards the pool is usable.
    async fn during<T>(
        &self,
        mine: impl Future<Output = T>,
        meanwhile: impl Future<Output = ()>,
    ) -> T {
        let told = self.faulty.during(mine, meanwhile).await;
        usable(&self.pool).await;
        told
    }

    fn asked(&self, attempt_id: String) -> Asked {
        Asked { envelope: wanted(), grant: self.grant.clone(), attempt_id }
    }

    async fn register(&self, by: &Registrar, attempt: String) -> Result<Outcome, StoreError> {
        Ok(by.register(self.asked(attempt)).await?.unwrap().outcome)
    }

    async fn count(&self, table: &str) -> i64 {
        let sql = format!("SELECT count(*) FROM registrar.{table}");
        self.faulty.look().await.query_one(&sql, &[]).await.unwrap().get(0)
    }

    /// Whether the effect is there; never half of it.
    async fn is_there(&self) -> bool {
        let mut rows = Vec::new();
        for table in ["effect_key", "nonce_use", "registration"] {
            rows.push(self.count(table).await);
        }
        assert!(rows == [0; 3] || rows == [1; 3], "half there: {rows:?}");
        rows == [1; 3]
    }
}

/// Asks until the answer is definite and not that nothing was done.
async fn until_told<T>(ask: impl AsyncFn(usize) -> Result<T, StoreError>) -> Vec<Result<T, Fate>> {
    let mut told = Vec::new();
    for number in 0..TRIES {
        told.push(ask(number).await.map_err(|error| error.fate()));
        if told.last().is_some_and(Result::is_ok) {
            break;
        }
    }
    told
}

fn is_undone<T>(told: &[Result<T, Fate>]) -> bool {
    told.iter().all(|answer| matches!(answer, Err(Fate::Undone)))
}

/// What an attempt was told, and what was said when it was asked about.
#[derive(Debug)]
enum Heard {
    Attempt(Result<Outcome, Fate>),
    Resolved(Result<Resolved, Fate>),
}

/// As the documents tell a caller to go about it: who is not certain resolves, and then tries
/// again under another name.
async fn insist(run: &Run<'_>) -> Vec<Heard> {
    let mut heard = Vec::new();
    for number in 0..TRIES {
        let told = run.register(&run.mine, format!("mine-{number}")).await;
        let told = told.map_err(|error| error.fate());
        let is_certain = !matches!(told, Ok(Outcome::Uncertain) | Err(Fate::Uncertain));
        let is_over = told.is_ok() && is_certain;
        heard.push(Heard::Attempt(told));
        if is_over {
            break;
        }
        if !is_certain {
            let resolved = run.mine.resolve(key()).await.map_err(|error| error.fate());
            heard.push(Heard::Resolved(resolved));
        }
    }
    heard
}

#[tokio::test(flavor = "multi_thread")]
async fn an_effect_is_registered_once_and_everybody_is_told_so() {
    let tried = each(
        async |_: &Registrar, _: &Grant| {},
        async |run| {
            let others: Mutex<Option<Outcome>> = Mutex::default();
            let meanwhile = async {
                let told = run.register(&run.other, "other".to_owned()).await;
                *others.lock().unwrap() = told.ok();
            };
            let heard = run.during(insist(run), meanwhile).await;
            let others = others.into_inner().unwrap();
            let there = run.is_there().await;
            let of_mine = heard.iter().filter_map(|heard| match heard {
                Heard::Attempt(told) => Some(told),
                Heard::Resolved(_) => None,
            });
            let mine: Vec<_> = of_mine.collect();
            let won = mine.iter().filter(|told| ***told == Ok(Outcome::Registered)).count()
                + usize::from(others == Some(Outcome::Registered));
            assert!(won <= 1, "registered twice: {heard:?} {others:?}");
            let known =
                mine.iter().any(|told| matches!(told, Ok(Outcome::Registered | Outcome::Replayed)));
            assert!(!known || there, "registered, and not there: {heard:?}");
            let nobody = mine.iter().all(|told| matches!(told, Err(Fate::Undone)));
            let other_may = !matches!(others, None | Some(Outcome::Uncertain));
            assert!(!nobody || other_may || !there, "undone, and there: {heard:?}");
            // What was resolved as absent stays so, unless it was tried again.
            if let Some(Heard::Resolved(Ok(Resolved { effect: None, .. }))) = heard.last() {
                assert!(!there || other_may, "absent, and there: {heard:?}");
            }
            // The same again, by whom nothing has happened to.
            let _ = run.other.resolve(key()).await.unwrap();
            let again = run.register(&run.other, "again".to_owned()).await.unwrap();
            let told = if there { Outcome::Replayed } else { Outcome::Registered };
            assert_eq!((again, run.is_there().await), (told, true), "{heard:?}");
        },
    )
    .await;
    assert!(tried.requests > 3, "{tried:?}");
}

async fn registered(registrar: &Registrar, grant: &Grant) {
    let (envelope, grant) = (wanted(), grant.clone());
    let asked = Asked { envelope, grant, attempt_id: "first".to_owned() };
    let answer = registrar.register(asked).await.unwrap().unwrap();
    assert_eq!(answer.outcome, Outcome::Registered);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_effect_has_one_verdict() {
    let tried = each(registered, async |run| {
        let verify = async |by: &Registrar, verdict, note| by.verify(key(), verdict, note).await;
        let others: Mutex<Option<Verifying>> = Mutex::default();
        let meanwhile = async {
            let told = verify(&run.other, Verdict::Failed, "no").await;
            *others.lock().unwrap() = told.ok();
        };
        let ask = async |_| verify(&run.mine, Verdict::Passed, "yes").await;
        let told = run.during(until_told(ask), meanwhile).await;
        let others = others.into_inner().unwrap();
        let verdict = run.other.show(key()).await.unwrap().unwrap().verdict;
        let verdict = verdict.map(|(verdict, _)| verdict);
        let mine = told.contains(&Ok(Verifying::Written));
        assert!(!(mine && others == Some(Verifying::Written)), "two verdicts: {told:?}");
        assert!(!mine || verdict == Some(Verdict::Passed), "told, and not there: {told:?}");
        assert!(!is_undone(&told) || verdict != Some(Verdict::Passed), "undone, and there");
        if told.contains(&Ok(Verifying::Other)) {
            assert_eq!(verdict, Some(Verdict::Failed), "{told:?}");
        }
        let again = verify(&run.mine, Verdict::Passed, "yes").await.unwrap();
        assert_eq!(again == Verifying::Written, verdict != Some(Verdict::Failed), "{told:?}");
        assert!(run.is_there().await);
    })
    .await;
    assert!(tried.requests >= 2, "{tried:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_is_used_or_taken_back_and_not_both() {
    let tried = each(
        async |_: &Registrar, _: &Grant| {},
        async |run| {
            let others: Mutex<Option<Outcome>> = Mutex::default();
            let meanwhile = async {
                let told = run.register(&run.other, "other".to_owned()).await;
                *others.lock().unwrap() = told.ok();
            };
            let ask = async |_| run.mine.grant_revoke(run.grant.nonce).await;
            let told = run.during(until_told(ask), meanwhile).await;
            let others = others.into_inner().unwrap();
            let there = run.is_there().await;
            let revoked = told.contains(&Ok(Revoking::Revoked));
            assert!(!(revoked && there), "revoked, and used: {told:?} {others:?}");
            assert!(!told.contains(&Ok(Revoking::Consumed)) || there, "{told:?} {others:?}");
            assert!(!told.contains(&Ok(Revoking::Unknown)), "{told:?}");
            let again = run.register(&run.other, "again".to_owned()).await.unwrap();
            if again == Outcome::Registered {
                assert!(!there && !revoked, "{told:?}");
            } else {
                // It was used, or may have been taken back.
                assert_eq!(again == Outcome::Replayed, there, "{again:?}: {told:?}");
                assert!(there || !is_undone(&told), "{again:?}: {told:?}");
            }
        },
    )
    .await;
    assert!(tried.requests >= 2, "{tried:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_forgets_lines_and_never_an_effect() {
    let tried = each(registered, async |run| {
        let (before, later) = (UnixMs(NOW.0 + MONTH_MS / 2), UnixMs(NOW.0 + MONTH_MS));
        let store = &run.store;
        let mine = async {
            until_told(async |_| store.sweep_begin(before, later).await).await;
            until_told(async |_| store.attempt_sweep(before, Entry::NONE, 100).await).await;
            until_told(async |_| store.failure_sweep(before, Entry::NONE, 100).await).await;
            until_told(async |_| store.grant_sweep(before, 100).await).await
        };
        let told = run.during(mine, std::future::ready(())).await;
        assert!(run.is_there().await, "{told:?}");
        let grants = run.count("grant_issued").await;
        assert!(!is_undone(&told) || grants == 1, "undone, and swept: {told:?}");
        let again = run.register(&run.other, "again".to_owned()).await.unwrap();
        assert_eq!(again, Outcome::Replayed, "{told:?}");
        store.sweep_begin(before, later).await.unwrap();
        store.attempt_sweep(before, Entry::NONE, 100).await.unwrap();
        store.grant_sweep(before, 100).await.unwrap();
        assert_eq!(run.count("attempt").await, 0, "{told:?}");
        assert!(run.is_there().await);
    })
    .await;
    assert!(tried.requests > 3, "{tried:?}");
}

/// Each try is a grant of its own, and a line of its own at the gate.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_and_a_gate_are_as_they_were_told() {
    let tried = each(
        async |_: &Registrar, _: &Grant| {},
        async |run| {
            let issue = async |_| Ok(run.mine.grant_issue(&wanted(), (None, None)).await?.unwrap());
            let hold = async |_| run.mine.gate_set("deploys", Gate::Held).await;
            let both = async { (until_told(issue).await, until_told(hold).await) };
            let (issued, held) = run.during(both, std::future::ready(())).await;
            // One of each was there before.
            let (grants, lines) = (run.count("grant_issued").await, run.count("gate").await);
            let may_be = |undone: usize, tries: usize| i64::try_from(1 + tries - undone).unwrap();
            let undone = |fates: &[Option<Fate>]| {
                fates.iter().filter(|fate| **fate == Some(Fate::Undone)).count()
            };
            let of_grants: Vec<_> =
                issued.iter().map(|told| told.as_ref().err().copied()).collect();
            let of_lines: Vec<_> = held.iter().map(|told| told.as_ref().err().copied()).collect();
            for (there, fates) in [(grants, &of_grants), (lines, &of_lines)] {
                let told = i64::try_from(fates.iter().filter(|fate| fate.is_none()).count());
                assert!(there > told.unwrap(), "told, and not there: {fates:?}");
                assert!(
                    there <= may_be(undone(fates), fates.len()),
                    "undone, and there: {fates:?}"
                );
            }
            let is_held = run.other.gate("deploys").await.unwrap() == Gate::Held;
            assert_eq!(is_held, lines > 1, "{held:?}");
            let Some(Ok(grant)) = issued.last() else { return };
            run.other.gate_set("deploys", Gate::Open).await.unwrap();
            let (envelope, attempt_id) = (wanted(), "later".to_owned());
            let asked = Asked { envelope, grant: grant.clone(), attempt_id };
            let used = run.other.register(asked).await.unwrap().unwrap();
            assert_eq!(used.outcome, Outcome::Registered, "what was told counts: {issued:?}");
        },
    )
    .await;
    assert!(tried.requests >= 2, "{tried:?}");
}
