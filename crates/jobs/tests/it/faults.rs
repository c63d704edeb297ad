//! What engines and people write to the jobs' PostgreSQL store, with every fault at every request
//! of it and once more in what recovers from that (`semel_testkit::faults`). While a request is
//! held up the lease passes and another engine takes what it can. Every word of a person, and the
//! end of a question that nobody has answered, is one transaction, which differs in what it decides
//! alone; so is every move, whichever way it goes. What a store forgets of breakers, and what a
//! restore notes, is not here.
//!
//! Afterwards no job is half there, nobody was told that it has a job which is another's, what was
//! said of a write is true, and the pool is usable.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::clock::UnixMs;
use semel_jobs::gear::grants::Grants;
use semel_jobs::life::JobStatus;
use semel_jobs::store::{
    Advance, Advanced, Age, Claimed, Kept, NewJob, PostgresStore, Source, Store, Submitted, Wrote,
    postgres,
};
use semel_store::postgres::{Postgres, PostgresOptions};
use semel_store::{Fate, StoreError};
use semel_testkit::faults::{Faulty, Tried, every_fault, usable};

use crate::people::{approval, issue, word};
use crate::support::{
    Database, NOW, World, after, begin, claim_of, completed, id, in_conversation, moved, new_job,
    on_postgres_at, started,
};

const LATER: UnixMs = UnixMs(NOW.0 + 60_000);
const MUCH_LATER: UnixMs = UnixMs(NOW.0 + 120_000);
/// How often whoever hears no definite answer asks again.
const TRIES: usize = 4;

async fn open(options: PostgresOptions) -> Postgres {
    let migrations = [postgres::MIGRATIONS, semel_registrar::store::postgres::MIGRATIONS];
    Postgres::open(options, &migrations, NOW.0).await.unwrap()
}

/// One run: the engine that is under test, and everybody else.
pub(crate) struct Run<'a> {
    faulty: &'a Faulty,
    /// On whose way something fails.
    pub(crate) mine: Store,
    pool: Postgres,
    /// On whose way nothing does.
    pub(crate) world: World,
}

/// Runs it in copies of a database to which `more` was done.
pub(crate) async fn each(more: impl AsyncFnOnce(&World), run: impl AsyncFn(&Run<'_>)) -> Tried {
    let seed = async |address: String| {
        let world = on_postgres_at(address).await;
        more(&world).await;
        let Database::Postgres(pool, _) = &world.database else { unreachable!() };
        pool.close();
    };
    let in_a_copy = async |faulty: &Faulty| {
        let (pool, others) = (open(faulty.options()).await, open(faulty.others()).await);
        let mine = Store::Postgres(PostgresStore::new(pool.clone()));
        let store = Store::Postgres(PostgresStore::new(others.clone()));
        let address = faulty.direct().to_owned();
        let world = World { store, database: Database::Postgres(others.clone(), address) };
        world.set_time(NOW).await;
        let here = Run { faulty, mine, pool, world };
        run(&here).await;
        whole(&here.world).await;
        here.pool.close();
        others.close();
    };
    every_fault(seed, in_a_copy).await
}

impl Run<'_> {
    /// The fault happens during `mine`; afterwards the pool is usable.
    pub(crate) async fn during<T>(
        &self,
        mine: impl Future<Output = T>,
        meanwhile: impl Future<Output = ()>,
    ) -> T {
        let told = self.faulty.during(mine, meanwhile).await;
        usable(&self.pool).await;
        told
    }

    /// The fence under which a job stands.
    async fn fence(&self, number: u128) -> i64 {
        self.world.kept(id(number)).await.job.state.fence
    }

    /// Whether a move was written under this fence.
    async fn is_written(&self, fence: i64) -> bool {
        let sql = "SELECT count(*) FROM jobs.ledger WHERE fence = $1";
        let row = self.faulty.look().await.query_one(sql, &[&fence]).await.unwrap();
        row.get::<_, i64>(0) > 0
    }
}

/// Every job has all the lines that it knows of, and only those; nothing is left of others.
async fn whole(world: &World) {
    let strays = "SELECT (SELECT count(*) FROM jobs.ledger AS line
                           WHERE NOT EXISTS (SELECT 1 FROM jobs.job WHERE no = line.job_no))
                       + (SELECT count(*) FROM jobs.execution_log AS log
                           WHERE NOT EXISTS (SELECT 1 FROM jobs.job WHERE no = log.job_no))";
    assert_eq!(world.count(strays).await, 0, "rows without their job");
    let list = semel_jobs::store::List { limit: 100, ..Default::default() };
    for job in world.store.list(list).await.unwrap().jobs {
        let ledger = world.store.ledger(job.id, 0, 100).await.unwrap().unwrap();
        let lines: Vec<i64> = ledger.lines.iter().map(|line| line.entry).collect();
        let told: Vec<i64> = (1..=job.state.entries).collect();
        assert_eq!(lines, told, "{:?}", job.id);
    }
}

/// What a caller was told, one try after the other.
pub(crate) type Told<T> = Vec<Result<T, Fate>>;

/// Asks until the answer is definite and not that nothing was done. That what the store says of
/// itself is impossible is never an answer.
pub(crate) async fn until_told<T>(ask: impl AsyncFn(usize) -> Result<T, StoreError>) -> Told<T> {
    let mut told = Vec::new();
    for number in 0..TRIES {
        let answer = ask(number).await;
        if let Err(error @ StoreError::Corrupt { .. }) = &answer {
            panic!("{error:?}");
        }
        told.push(answer.map_err(|error| error.fate()));
        if told.last().is_some_and(Result::is_ok) {
            break;
        }
    }
    told
}

/// Nothing can be there, by what was said.
pub(crate) fn is_undone<T>(told: &Told<T>) -> bool {
    told.iter().all(|answer| matches!(answer, Err(Fate::Undone)))
}

async fn three_jobs(world: &World) {
    world.made(new_job(1)).await;
    // Somebody died over this one.
    let dead = after(&world.claim("dead", 1, UnixMs(NOW.0 - 60_000)).await[0]);
    let mut begun = moved(&dead, JobStatus::Executing, NOW);
    begun.started = vec![started("fetch", 1, 1)];
    assert_eq!(world.store.advance(begun).await.unwrap(), Advanced::Written);
    world.made(new_job(2)).await;
    world.made(in_conversation(3, "c")).await;
    world.set_time(NOW).await;
}

/// Claims when all leases are over, until there are so many: a claim passes by rows that are held
/// by a transaction which the server has not undone yet.
async fn claimed_later(world: &World, count: usize) -> Vec<Claimed> {
    let mut claimed = Vec::new();
    let all = async {
        loop {
            claimed.extend(world.claim("later", 9, MUCH_LATER).await);
            if claimed.len() >= count {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(60), all).await;
    claimed
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_has_one_holder_who_knows_of_it() {
    let tried = each(three_jobs, async |run| {
        let fences: Mutex<Vec<i64>> = Mutex::default();
        let ask = async |_| {
            let claim = claim_of("mine", 9, NOW);
            fences.lock().unwrap().push(claim.fence);
            run.mine.claim(claim, begin()).await.map(|claims| claims.jobs)
        };
        let others: Mutex<Vec<Claimed>> = Mutex::default();
        let meanwhile = async {
            run.world.set_time(LATER).await;
            let claim = claim_of("other", 9, LATER);
            if let Ok(claims) = run.world.store.claim(claim, begin()).await {
                others.lock().unwrap().extend(claims.jobs);
            }
        };
        let told = run.during(until_told(ask), meanwhile).await;
        let others = others.into_inner().unwrap();
        let mine: Vec<&Claimed> = told.iter().flatten().flatten().collect();
        for claimed in &others {
            let stands = run.world.kept(claimed.before.job.id).await;
            assert_eq!(stands, after(claimed), "it is somebody else's: {told:?}");
        }
        // Who took it after the lease had passed has it; the worker leaves by its own clock.
        let taken = |id| others.iter().any(|claimed| claimed.before.job.id == id);
        for claimed in &mine {
            let (id, fence) = (claimed.before.job.id, claimed.advance.state.fence);
            assert!(run.is_written(fence).await, "told, and not there: {told:?}");
            let stands = run.world.kept(id).await;
            assert!(taken(id) || stands == after(claimed), "it is somebody else's: {told:?}");
        }
        // What is held under a fence of ours and was not told is found when its lease has passed.
        let fences = fences.into_inner().unwrap();
        for number in 1..=3 {
            let fence = run.fence(number).await;
            let is_told = mine.iter().any(|claimed| claimed.before.job.id == id(number));
            let may_be = told.contains(&Err(Fate::Uncertain));
            assert!(!fences.contains(&fence) || is_told || may_be, "held, and not told: {told:?}");
            assert!(!fences.contains(&fence) || !is_undone(&told), "undone, and held: {told:?}");
        }
        let again = claimed_later(&run.world, 3).await;
        let again: HashSet<_> = again.iter().map(|claimed| claimed.before.job.id).collect();
        assert_eq!(again, [1, 2, 3].map(id).into(), "{told:?}");
    })
    .await;
    assert!(tried.requests > 3, "{tried:?}");
}

/// Three moves of a worker: a step begins, ends while the next begins, and the job ends.
fn moves_of(claimed: &Kept) -> Vec<Arc<Advance>> {
    let mut kept = claimed.clone();
    let mut moves = Vec::new();
    let mut make = |to, change: &dyn Fn(&mut Advance)| {
        let mut advance = moved(&kept, to, NOW);
        change(&mut advance);
        kept.apply(&advance);
        moves.push(Arc::new(advance));
    };
    make(JobStatus::Executing, &|advance| advance.started = vec![started("one", 1, 1)]);
    make(JobStatus::Executing, &|advance| {
        advance.ended = vec![completed("one")];
        advance.started = vec![started("two", 2, 1)];
    });
    make(JobStatus::Completed, &|advance| advance.ended = vec![completed("two")]);
    moves
}

/// Writes it as a worker does: what may be there is looked up first.
async fn write(store: &Store, advance: &Arc<Advance>) -> Told<Advanced> {
    let again = Mutex::new(false);
    until_told(async |_| {
        let look = *again.lock().unwrap();
        let written = match look {
            true => store.advance_again(Arc::clone(advance)).await,
            false => store.advance(Arc::clone(advance)).await,
        };
        *again.lock().unwrap() |= written.is_err();
        written
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_is_made_once_and_nobody_is_told_otherwise() {
    let more = async |world: &World| {
        world.made(in_conversation(1, "c")).await;
        world.made(in_conversation(2, "c")).await;
    };
    let tried = each(more, async |run| {
        let claimed = after(&run.world.claim("mine", 1, NOW).await[0]);
        let (no, fence) = (claimed.job.no, claimed.job.state.fence);
        let moves = moves_of(&claimed);
        let mine = async {
            let mut told = Vec::new();
            for advance in &moves {
                told.push(write(&run.mine, advance).await);
                if !matches!(told.last().and_then(|told| told.last()), Some(Ok(Advanced::Written)))
                {
                    break;
                }
                let lease = Duration::from_secs(15);
                let lost =
                    until_told(async |_| run.mine.renew(vec![(no, fence)], lease, NOW).await).await;
                let is_over = told.len() == moves.len();
                let is_lost = lost.iter().flatten().any(|lost| !lost.is_empty());
                assert!(!is_lost || is_over || run.fence(1).await != fence, "it is still mine");
            }
            told
        };
        let others: Mutex<Vec<Claimed>> = Mutex::default();
        let meanwhile = async {
            run.world.set_time(LATER).await;
            if let Ok(claims) = run.world.store.claim(claim_of("other", 1, LATER), begin()).await {
                others.lock().unwrap().extend(claims.jobs);
            }
        };
        let told = run.during(mine, meanwhile).await;
        let others = others.into_inner().unwrap();
        let taken = others.iter().any(|claimed| claimed.before.job.id == id(1));
        let kept = run.world.kept(id(1)).await;
        for (advance, told) in moves.iter().zip(&told) {
            let is_there = kept.job.state.entries >= advance.state.entries
                && (kept.job.state.fence == fence || run.is_written(fence).await);
            let last = told.last().unwrap();
            if *last == Ok(Advanced::Lost) {
                assert!(taken, "lost, and nobody took it: {told:?}");
            }
            assert!(*last != Ok(Advanced::Written) || is_there, "written, and not there: {told:?}");
        }
        if taken {
            return;
        }
        // Nobody else was there: it ends as it should, whatever it takes.
        let rest = moves.iter().skip(told.len().saturating_sub(1));
        for advance in rest {
            let written = run.mine.advance_again(Arc::clone(advance)).await.unwrap();
            assert_eq!(written, Advanced::Written, "{told:?}");
        }
        let kept = run.world.kept(id(1)).await;
        assert_eq!(kept.job.state, moves[2].state);
        assert_eq!(kept.executions.len(), 2);
        let next = claimed_later(&run.world, 1).await;
        assert_eq!(next[0].before.job.id, id(2), "the conversation goes on: {told:?}");
    })
    .await;
    assert!(tried.requests > 5, "{tried:?}");
}

fn keyed(number: u128) -> NewJob {
    NewJob { key: Some("once".to_owned()), ..new_job(number) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_one_job_and_it_is_the_one_that_is_told() {
    let tried = each(
        async |_: &World| {},
        async |run| {
            // Each try has an id of its own, as a request that is repeated has.
            let ask = async |number: usize| run.mine.submit(keyed(number as u128 + 1)).await;
            let other: Mutex<Option<Submitted>> = Mutex::default();
            let meanwhile = async {
                let said = run.world.store.submit(keyed(50)).await;
                *other.lock().unwrap() = said.ok();
            };
            let told = run.during(until_told(ask), meanwhile).await;
            let others = other.into_inner().unwrap();
            let jobs = run.world.count("SELECT count(*) FROM jobs.job").await;
            assert!(
                !is_undone(&told) || others.is_some() || jobs == 0,
                "undone, and there: {told:?}"
            );
            let again = run.mine.submit(keyed(60)).await.unwrap();
            assert_eq!(run.world.count("SELECT count(*) FROM jobs.job").await, 1, "{told:?}");
            let is = match again {
                Submitted::There(is, _) => is,
                Submitted::Made => id(60),
                other @ (Submitted::Reused(_) | Submitted::Repeating | Submitted::NotFailed) => {
                    panic!("{other:?}")
                }
            };
            let tries = told.iter().enumerate().map(|(number, said)| (number as u128 + 1, said));
            for (number, said) in tries {
                match said {
                    Ok(Submitted::Made) => assert_eq!(is, id(number)),
                    Ok(Submitted::There(there, _)) => assert_eq!(is, *there),
                    Ok(other) => panic!("{other:?}"),
                    Err(Fate::Undone) => assert_ne!(is, id(number), "undone, and there"),
                    Err(Fate::Uncertain) => {}
                }
            }
        },
    )
    .await;
    assert!(tried.requests > 3, "{tried:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_begins_at_once_has_the_job() {
    let tried = each(
        async |_: &World| {},
        async |run| {
            let new = new_job(1);
            let mut first = begin()(&new.fresh(), &claim_of("mine", 1, NOW)).expect("a move");
            first.started = vec![started("fetch", 1, 1)];
            // A caller that was told nothing definite does not submit it again.
            let mine = async { run.mine.submit_begun(new, first.clone(), 9).await };
            let other: Mutex<Vec<Claimed>> = Mutex::default();
            let meanwhile = async {
                run.world.set_time(LATER).await;
                if let Ok(claims) =
                    run.world.store.claim(claim_of("other", 9, LATER), begin()).await
                {
                    other.lock().unwrap().extend(claims.jobs);
                }
            };
            let told = run.during(mine, meanwhile).await.map_err(|error| error.fate());
            let others = other.into_inner().unwrap();
            let kept = run.world.store.job(id(1)).await.unwrap();
            match (&told, &kept) {
                (Ok((Submitted::Made, Some(no))), Some(kept)) => {
                    assert!(others.is_empty(), "it is the other's");
                    let had = (kept.job.no, kept.job.state.fence, kept.executions.len());
                    assert_eq!(had, (*no, first.state.fence, 1));
                }
                (Ok((Submitted::Made, None)), Some(kept)) => {
                    let mine = kept.job.state.fence == first.state.fence;
                    assert!(!mine, "it was begun, and its worker does not know: {told:?}");
                }
                (Err(Fate::Undone), None) | (Err(Fate::Uncertain), _) => {}
                other => panic!("{other:?}"),
            }
            // Whatever was said: it is claimed by somebody sooner or later.
            let again = claimed_later(&run.world, usize::from(kept.is_some())).await;
            assert_eq!(again.len(), usize::from(kept.is_some()), "{told:?}");
        },
    )
    .await;
    assert!(tried.requests >= 2, "{tried:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sub_job_and_a_repetition_are_made_once() {
    let more = async |world: &World| {
        for number in [1, 2] {
            world.made(new_job(number)).await;
        }
        let failed = moved(&world.kept(id(1)).await, JobStatus::Failed, NOW);
        assert_eq!(world.store.advance(failed).await.unwrap(), Advanced::Written);
    };
    let tried = each(more, async |run| {
        let repeat = |number| NewJob {
            retry_of: Some(id(1)),
            root_id: id(1),
            source: Source::Retry,
            ..new_job(number)
        };
        let sub = |number| NewJob {
            parent_id: Some(id(2)),
            depth: 1,
            source: Source::SubJob,
            asker: Some("fetcher".to_owned()),
            grants: Some(Grants::default()),
            key: Some("sub:2:fetch".to_owned()),
            ..new_job(number)
        };
        let mine = async {
            let repeated = until_told(async |n| run.mine.submit(repeat(10 + n as u128)).await);
            let repeated = repeated.await;
            let subs = until_told(async |n| run.mine.submit(sub(20 + n as u128)).await).await;
            (repeated, subs)
        };
        let meanwhile = async {
            let _ = run.world.store.submit(repeat(30)).await;
            let _ = run.world.store.submit(sub(40)).await;
        };
        let (repeated, subs) = run.during(mine, meanwhile).await;
        let of = [
            "SELECT count(*) FROM jobs.job WHERE source = 'retry'",
            "SELECT count(*) FROM jobs.job WHERE source = 'sub_job'",
        ];
        for (told, base, sql) in [(&repeated, 10, of[0]), (&subs, 20, of[1])] {
            let there = run.world.count(sql).await;
            assert!(there <= 1, "twice: {told:?}");
            for (number, said) in told.iter().enumerate() {
                let kept = run.world.store.job(id(base + number as u128)).await.unwrap();
                match said {
                    Ok(Submitted::Made) => assert!(kept.is_some(), "made, and not there"),
                    Ok(_) => assert!(kept.is_none() && there == 1, "{told:?}"),
                    Err(Fate::Undone) => assert!(kept.is_none(), "undone, and there"),
                    Err(Fate::Uncertain) => {}
                }
            }
        }
        let _ = run.mine.submit(repeat(50)).await.unwrap();
        let _ = run.mine.submit(sub(60)).await.unwrap();
        assert_eq!((run.world.count(of[0]).await, run.world.count(of[1]).await), (1, 1));
    })
    .await;
    assert!(tried.requests > 5, "{tried:?}");
}

/// A job that asks, and one that runs.
async fn asked(world: &World) {
    issue(&world.database).await;
    world.made(new_job(1)).await;
    let asks = moved(&world.kept(id(1)).await, JobStatus::AwaitingApproval, NOW);
    assert_eq!(world.store.advance(asks).await.unwrap(), Advanced::Written);
    world.made(in_conversation(2, "c")).await;
    world.made(in_conversation(3, "c")).await;
}

/// What a person says, and of which job.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Says {
    Approve,
    Reject,
    Cancel,
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_counts_once_and_is_not_refused_when_it_did() {
    counts_once(Says::Approve).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_counts_once_and_is_not_refused_when_it_did() {
    counts_once(Says::Reject).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_counts_once_and_is_not_refused_when_it_did() {
    counts_once(Says::Cancel).await;
}

async fn counts_once(says: Says) {
    let tried = each(asked, async |run| {
        use JobStatus::{AwaitingApproval, Cancelled, Executing, Validating};
        run.world.claim("worker", 1, NOW).await;
        let fences: Mutex<Vec<i64>> = Mutex::default();
        // Each word draws a fence of its own, whatever it comes to.
        let speak = async |number, grant, from, to| {
            let decide = word(from, to);
            let drawn: Arc<Mutex<Option<i64>>> = Arc::default();
            let noted = Arc::clone(&drawn);
            let decide: semel_jobs::store::Answering = Arc::new(move |kept| {
                let advance = decide(kept)?;
                *noted.lock().unwrap() = Some(advance.state.fence);
                Ok(advance)
            });
            let said = run.mine.person(id(number), grant, decide).await;
            fences.lock().unwrap().push(drawn.lock().unwrap().unwrap_or(-1));
            said
        };
        let mine = async {
            match says {
                Says::Approve => {
                    let grant = || Some(approval("r1"));
                    until_told(async |_| speak(1, grant(), AwaitingApproval, Executing).await).await
                }
                Says::Reject => {
                    until_told(async |_| speak(1, None, AwaitingApproval, Cancelled).await).await
                }
                Says::Cancel => {
                    until_told(async |_| speak(2, None, Validating, Cancelled).await).await
                }
            }
        };
        let meanwhile = async {
            // What was approved goes on at once.
            let claim = claim_of("other", 1, NOW);
            let _ = run.world.store.claim(claim, begin()).await;
        };
        let told = run.during(mine, meanwhile).await;
        let fences = fences.into_inner().unwrap();
        let mut counted = 0;
        for (fence, said) in fences.iter().zip(&told) {
            let is_there = run.is_written(*fence).await;
            counted += i64::from(is_there);
            match said {
                Ok(Wrote::Written(_)) => assert!(is_there, "told, and not there: {told:?}"),
                Ok(_) | Err(Fate::Undone) => assert!(!is_there, "refused, and there: {told:?}"),
                Err(Fate::Uncertain) => {}
            }
        }
        assert!(counted <= 1, "twice: {told:?}");
        let used = run.world.count("SELECT count(*) FROM registrar.nonce_use").await;
        assert_eq!(used, if says == Says::Approve { counted } else { 0 }, "{told:?}");
        let stands = run.world.kept(id(2)).await.job.state.status;
        let is_cancelled = says == Says::Cancel && counted == 1;
        assert_eq!(stands == Cancelled, is_cancelled, "{told:?}");
        if is_cancelled {
            let next = run.world.claim("next", 9, NOW).await;
            let is_next = next.iter().any(|claimed| claimed.before.job.id == id(3));
            let had = run.world.kept(id(3)).await.job.state.worker.is_some();
            assert!(is_next || had, "the conversation goes on");
        }
    })
    .await;
    assert!(tried.requests > 5, "{tried:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_takes_whole_jobs() {
    let more = async |world: &World| {
        for number in [1, 2, 3] {
            world.made(new_job(number)).await;
        }
        for claimed in &world.claim("w", 2, NOW).await {
            for advance in moves_of(&after(claimed)) {
                assert_eq!(world.store.advance(advance).await.unwrap(), Advanced::Written);
            }
        }
    };
    let tried = each(more, async |run| {
        let mine = async {
            let expired = until_told(async |_| run.mine.expired(LATER, 9).await).await;
            (
                expired,
                until_told(async |_| run.mine.sweep(Age { before: LATER, now: LATER }, 1).await)
                    .await,
            )
        };
        let (expired, swept) = run.during(mine, std::future::ready(())).await;
        assert!(expired.iter().flatten().all(Vec::is_empty), "nobody was asked: {expired:?}");
        let left = run.world.count("SELECT count(*) FROM jobs.job").await;
        assert!(!is_undone(&swept) || left == 3, "undone, and gone: {swept:?}");
        let may_have = swept.iter().filter(|told| **told != Err(Fate::Undone)).count();
        assert!(
            usize::try_from(3 - left).unwrap() <= may_have,
            "more than was asked for: {swept:?}"
        );
        for gone in swept.iter().flatten().flatten() {
            assert_eq!(run.world.store.job(*gone).await.unwrap(), None, "swept, and there");
        }
        whole(&run.world).await;
        for _ in 0..3 {
            run.mine.sweep(Age { before: LATER, now: LATER }, 1).await.unwrap();
        }
        assert_eq!(run.world.count("SELECT count(*) FROM jobs.job").await, 1, "what is not over");
    })
    .await;
    assert!(tried.requests > 2, "{tried:?}");
}
