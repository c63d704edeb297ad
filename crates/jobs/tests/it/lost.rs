//! Commits whose answer is lost on the way, on PostgreSQL: what is said of them is what is there,
//! whatever others did meanwhile.

use std::sync::Arc;
use std::time::Duration;

use semel_core::clock::UnixMs;
use semel_jobs::life::JobStatus;
use semel_jobs::store::{Advanced, Kept, PostgresStore, Store, Submitted, Wrote};
use semel_testkit::proxy::{Fault, Proxy};
use serde_json::json;

use crate::people::word;
use crate::support::{
    Database, NOW, World, after, begin, claim_of, id, moved, new_job, on_postgres, postgres_at,
    started,
};

const LATER: UnixMs = UnixMs(NOW.0 + 60_000);
/// Longer than any of these tests takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Attempts to reach the server, in vain.
const MANY: usize = 12;

/// The same database through somebody who loses answers.
async fn behind_a_proxy() -> (World, Proxy, Store) {
    let world = on_postgres().await;
    let Database::Postgres(_, address) = &world.database else { panic!("not PostgreSQL") };
    let (front, rest) = address.rsplit_once('@').expect("a user");
    let (host, database) = rest.split_once('/').expect("a database");
    let server = tokio::net::lookup_host(host).await.unwrap().next().unwrap();
    let proxy = Proxy::start(server).await;
    let through = format!("{front}@{}/{database}", proxy.address());
    let pool = postgres_at(&through).await;
    let store = Store::Postgres(PostgresStore::with_patience(pool, PATIENCE));
    (world, proxy, store)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_beginning_whose_answer_was_lost_is_looked_up() {
    let (world, proxy, far) = behind_a_proxy().await;
    for (number, fault) in [(1, Fault::CutAfter), (2, Fault::CutBefore)] {
        let new = new_job(number);
        let first = begin()(&new.fresh(), &claim_of("unlucky", 1, NOW)).expect("a move");
        proxy.fail_next("unlucky", fault);
        let (said, no) = far.submit_begun(new, first.clone(), 9).await.unwrap();
        assert_eq!((said, proxy.fired()), (Submitted::Made, usize::try_from(number).unwrap()));
        let job = world.kept(id(number)).await.job;
        // What was written was begun and has this number; what was not was taken in again.
        let written = fault == Fault::CutAfter;
        assert_eq!(no, written.then_some(job.no), "{fault:?}");
        assert_eq!(job.state.worker.is_some(), written, "{fault:?}");
    }
    assert_eq!(world.count("SELECT count(*) FROM jobs.job").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_whose_answer_was_lost_is_looked_up() {
    let (world, proxy, far) = behind_a_proxy().await;
    for (number, fault) in [(1, Fault::CutAfter), (2, Fault::CutBefore)] {
        world.made(new_job(number)).await;
        world.claim("w", 1, NOW).await;
        let mut ended = moved(&world.kept(id(number)).await, JobStatus::Completed, NOW);
        ended.lines[0].detail = json!({"said": "unlucky"}).to_string();
        proxy.fail_next("unlucky", fault);
        assert_eq!(far.advance(ended.clone()).await.unwrap(), Advanced::Written, "{fault:?}");
        assert_eq!(proxy.fired(), usize::try_from(number).unwrap());
        let kept = world.kept(id(number)).await;
        assert_eq!(kept.job.state, ended.state, "{fault:?}");
        assert_eq!(far.advance(ended).await.unwrap(), Advanced::Lost, "once");
    }
    assert_eq!(world.count("SELECT count(*) FROM jobs.ledger").await, 4);
}

/// Claims the only job as soon as nobody holds its row.
async fn claimed_at_last(world: &World, worker: &str, now: UnixMs) -> Kept {
    let claimed = async {
        loop {
            if let Some(claimed) = world.claim(worker, 1, now).await.first() {
                return after(claimed);
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), claimed).await.expect("it can be claimed")
}

/// Both draw a fence for the same job at the same place, and only one of them has it.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_was_undone_is_not_taken_for_that_of_another() {
    let (world, proxy, far) = behind_a_proxy().await;
    world.made(new_job(1)).await;
    proxy.fail_next("unlucky", Fault::CutBefore);
    proxy.go_away_at_the_fault();
    let unlucky =
        tokio::spawn(async move { far.claim(claim_of("unlucky", 1, NOW), begin()).await });
    proxy.until_fired(1).await;
    let other = claimed_at_last(&world, "other", NOW).await;
    proxy.come_back();
    let unlucky = unlucky.await.unwrap().unwrap().jobs;
    assert_eq!(unlucky, [], "it is the other's");
    assert_eq!(world.kept(id(1)).await, other);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_answer_was_lost_for_long_is_found() {
    let (world, proxy, far) = behind_a_proxy().await;
    world.made(new_job(1)).await;
    proxy.fail_next("COMMIT", Fault::CutAfter);
    proxy.go_away_at_the_fault();
    let claim = tokio::spawn(async move { far.claim(claim_of("unlucky", 1, NOW), begin()).await });
    proxy.until_refused(MANY).await;
    proxy.come_back();
    assert_eq!(claim.await.unwrap().unwrap().jobs.len(), 1);
}

/// The step has ended and the next has begun: written again, it would not fit what is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_whose_answer_was_lost_for_long_is_written_once() {
    let (world, proxy, far) = behind_a_proxy().await;
    for (number, fault) in [(1, Fault::CutAfter), (2, Fault::CutBefore)] {
        world.made(new_job(number)).await;
        let kept = after(&world.claim("w", 1, NOW).await[0]);
        let mut inside = moved(&kept, JobStatus::Validating, NOW);
        inside.started = vec![started("unlucky", 1, 1)];
        proxy.fail_next("unlucky", fault);
        proxy.go_away_at_the_fault();
        let (far, advance) = (far.clone(), Arc::new(inside.clone()));
        let written = tokio::spawn(async move { far.advance(advance).await });
        proxy.until_refused(MANY * usize::try_from(number).unwrap()).await;
        proxy.come_back();
        assert_eq!(written.await.unwrap().unwrap(), Advanced::Written, "{fault:?}");
        let kept = world.kept(id(number)).await;
        assert_eq!((kept.job.state, kept.executions.len()), (inside.state, 1), "{fault:?}");
    }
}

/// A worker that heard nothing for longer than anybody looks says the same move once more.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_is_made_again_is_looked_up_first() {
    let world = on_postgres().await;
    world.made(new_job(1)).await;
    let kept = after(&world.claim("w", 1, NOW).await[0]);
    let mut inside = moved(&kept, JobStatus::Validating, NOW);
    inside.started = vec![started("one", 1, 1)];
    let inside = Arc::new(inside);
    assert_eq!(world.store.advance(Arc::clone(&inside)).await.unwrap(), Advanced::Written);
    assert_eq!(world.store.advance_again(Arc::clone(&inside)).await.unwrap(), Advanced::Written);
    // Without a look it fits no more: then it is looked why.
    assert_eq!(world.store.advance(Arc::clone(&inside)).await.unwrap(), Advanced::Written);
    // The same where only the ledger knows of it.
    let report = Arc::new(moved(&world.kept(id(1)).await, JobStatus::Validating, NOW));
    for _ in 0..2 {
        let written = world.store.advance(Arc::clone(&report)).await;
        assert_eq!(written.unwrap(), Advanced::Written);
    }
    // It is there, and another has the job since: whoever wrote it goes on with nothing.
    let other = after(&world.claim("other", 1, LATER).await[0]);
    assert_eq!(world.store.advance_again(inside).await.unwrap(), Advanced::Lost);
    world.claim("third", 1, UnixMs(LATER.0 + 60_000)).await;
    let never = moved(&other, JobStatus::Executing, LATER);
    assert_eq!(world.store.advance_again(Arc::new(never)).await.unwrap(), Advanced::Lost);
}

/// The job goes on at once, and what it was told is not what stands there any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_word_that_counted_is_not_refused_because_the_job_went_on() {
    let (world, proxy, far) = behind_a_proxy().await;
    world.made(new_job(1)).await;
    let asks = moved(&world.kept(id(1)).await, JobStatus::AwaitingApproval, NOW);
    world.store.advance(asks).await.unwrap();
    proxy.fail_next("COMMIT", Fault::CutAfter);
    proxy.go_away_at_the_fault();
    let approve = word(JobStatus::AwaitingApproval, JobStatus::Executing);
    let said = tokio::spawn(async move { far.person(id(1), None, approve).await });
    proxy.until_fired(1).await;
    claimed_at_last(&world, "other", NOW).await;
    proxy.come_back();
    let said = said.await.unwrap().unwrap();
    assert!(matches!(said, Wrote::Written(_)), "{said:?}");
}

/// By the time the answer could be asked for again, the lease was over and another engine had it.
#[tokio::test(flavor = "multi_thread")]
async fn a_beginning_that_is_anothers_by_now_is_not_begun_again() {
    let (world, proxy, far) = behind_a_proxy().await;
    let new = new_job(1);
    let first = begin()(&new.fresh(), &claim_of("unlucky", 1, NOW)).expect("a move");
    proxy.fail_next("unlucky", Fault::CutAfter);
    proxy.go_away_at_the_fault();
    let begun = tokio::spawn(async move { far.submit_begun(new, first, 9).await });
    // Nothing is heard of it, and its lease passes.
    proxy.until_refused(1).await;
    let taken = claimed_at_last(&world, "other", LATER).await;
    proxy.come_back();
    let begun = begun.await.unwrap().unwrap();
    assert_eq!(begun, (Submitted::Made, None), "it is the other's to run");
    assert_eq!(world.kept(id(1)).await, taken);
}
