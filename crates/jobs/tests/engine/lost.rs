//! Commits whose answer is lost, on PostgreSQL (jobs.md §4, traps.md 21): the engine finds out what
//! became of them, and no step runs twice.

use std::time::Duration;

use semel_core::id::JobId;
use semel_jobs::engine::{Asked, Refused};
use semel_jobs::gear::{Ended, Output};
use semel_jobs::life::JobStatus;
use semel_jobs::store::postgres::Signal;
use semel_testkit::proxy::{Fault, Proxy};
use semel_testkit::servers;
use serde_json::json;

use crate::support::{Bench, Setup, step};

/// What the first step gives: in the record of its end, which also begins the second, and in no
/// request before.
const RESULT: &str = "result-of-one";
/// The worker's name: in the claim or the submission, whichever begins the first step.
const WORKER: &str = "test-engine";

async fn in_front_of(address: &str) -> Proxy {
    let (_, rest) = address.rsplit_once('@').expect("a user");
    let (server, _) = rest.split_once('/').expect("a database");
    let found = tokio::net::lookup_host(server).await.expect("an address").next();
    Proxy::start(found.expect("an address")).await
}

/// The address of the same database behind the proxy.
fn through(proxy: &Proxy, address: &str) -> String {
    let (front, rest) = address.rsplit_once('@').expect("a user");
    let (_, database) = rest.split_once('/').expect("a database");
    format!("{front}@{}/{database}", proxy.address())
}

/// Longer than a busy machine lets anybody wait for an answer.
const LEASE: Duration = Duration::from_secs(30);

/// An engine whose database is behind a proxy.
pub(crate) async fn behind_for(lease: Duration) -> (Proxy, Bench) {
    behind_as(Setup { lease, ..Setup::default() }).await
}

async fn behind_as(setup: Setup) -> (Proxy, Bench) {
    let address = servers::fresh_postgres().await;
    let proxy = in_front_of(&address).await;
    let postgres = Some(through(&proxy, &address));
    let bench = Setup { postgres, ..setup }.open().await;
    (proxy, bench)
}

/// What must be so whatever was lost: both steps ran once, and everything is written once.
async fn is_done_once(bench: &Bench, id: JobId, about: &str) {
    let kept = bench.ended(id).await;
    assert_eq!(kept.job.state.status, JobStatus::Completed, "{about}: {kept:#?}");
    assert_eq!(bench.script.ran(), ["one", "two"], "{about}");
    assert_eq!(kept.job.state.deaths, 0, "{about}: nobody died");
    let lines = bench.engine.store().ledger(id, 0, 100).await.expect("a store").expect("a job");
    let ended = lines.lines.iter().filter(|line| line.line.detail.contains("\"completed\""));
    // Two steps and the job.
    assert_eq!(ended.count(), 3, "{about}: {lines:#?}");
}

/// The transaction whose requests contain `needle` meets the fault.
async fn cut(needle: &str, fault: Fault) {
    let (proxy, bench) = behind_for(LEASE).await;
    bench.script.will("one", vec![Ended::Done(Output::Value(json!(RESULT)))]);
    proxy.fail_next(needle, fault);
    let id = bench.submit(json!([step("one", "pay"), step("two", "pay")])).await;
    is_done_once(&bench, id, &format!("{needle} {fault:?}")).await;
    assert_eq!(proxy.fired(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_was_lost_is_written_again() {
    cut(RESULT, Fault::CutBefore).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_whose_answer_was_lost_is_found() {
    cut(RESULT, Fault::CutAfter).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_was_lost_is_made_again() {
    cut(WORKER, Fault::CutBefore).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_answer_was_lost_is_found() {
    cut(WORKER, Fault::CutAfter).await;
}

/// The move is there and nobody is told, for longer than it is looked for without a pause. What it
/// would write again does not fit any more: the job must not hang over that.
async fn away(needle: &str, fault: Fault) {
    away_from(needle, fault, Setup::default().patience).await;
}

async fn away_from(needle: &str, fault: Fault, patience: Duration) {
    let (proxy, bench) = behind_as(Setup { lease: LEASE, patience, ..Setup::default() }).await;
    bench.script.will("one", vec![Ended::Done(Output::Value(json!(RESULT)))]);
    proxy.fail_next(needle, fault);
    proxy.go_away_at_the_fault();
    let submitted = bench.submit(json!([step("one", "pay"), step("two", "pay")]));
    let come_back = async {
        proxy.until_refused(12).await;
        proxy.come_back();
    };
    let (id, ()) = tokio::join!(submitted, come_back);
    is_done_once(&bench, id, &format!("{needle} {fault:?}, away")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_whose_answer_was_lost_in_an_outage_is_found() {
    away(RESULT, Fault::CutAfter).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_was_lost_in_an_outage_is_written_again() {
    away(RESULT, Fault::CutBefore).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_answer_was_lost_in_an_outage_is_found() {
    away(WORKER, Fault::CutAfter).await;
}

/// The store gives up asking at once, and the worker asks on.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_the_store_gave_up_is_found() {
    away_from(RESULT, Fault::CutAfter, Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_the_store_gave_up_is_written_again() {
    away_from(RESULT, Fault::CutBefore, Duration::ZERO).await;
}

/// An engine that cannot renew its claims stops what it runs before another engine begins it.
#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_renew_stops_before_another_begins() {
    let address = servers::fresh_postgres().await;
    let proxy = in_front_of(&address).await;
    let lease = Duration::from_secs(8);
    let far = Setup { postgres: Some(through(&proxy, &address)), lease, ..Setup::default() };
    let far = far.open().await;
    let id = far.submit(json!([step("once", "hang")])).await;
    far.script.until_ran(1).await;
    proxy.go_away();
    let script = std::sync::Arc::clone(&far.script);
    let near = Setup { postgres: Some(address), worker: "near", script, lease, ..Setup::default() };
    let near = near.open().await;
    // It is recovered by the other, and never runs at both.
    near.script.until_ran(2).await;
    assert_eq!(near.script.most_at_once(), 1, "two engines ran the same step");
    proxy.come_back();
    near.engine.cancel(id, "enough").await.expect("under way");
    near.ended(id).await;
    near.script.until_nothing_runs().await;
}

/// Longer than anybody here waits: nothing is noticed because a claim is renewed.
const NO_RENEWAL: Duration = Duration::from_secs(3600);

/// Two engines, one of which works behind a proxy on a step that never ends; and its job.
async fn apart(distant: Distant) -> (Proxy, Bench, Bench, JobId) {
    let address = servers::fresh_postgres().await;
    let proxy = in_front_of(&address).await;
    let behind = through(&proxy, &address);
    let (of_worker, of_other) = match distant {
        Distant::Worker => (behind, address),
        Distant::Other => (address, behind),
    };
    let lease = NO_RENEWAL;
    let working = Setup { postgres: Some(of_worker), lease, ..Setup::default() }.open().await;
    let other = Setup { postgres: Some(of_other), worker: "other", lease, ..Setup::default() };
    let other = other.open().await;
    working.listens();
    other.listens();
    let id = working.submit(json!([step("once", "stay")])).await;
    working.script.until_ran(1).await;
    (proxy, working, other, id)
}

/// Which of two engines is behind the proxy.
enum Distant {
    Worker,
    Other,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_reaches_an_engine_that_did_not_hear_of_it() {
    let (proxy, working, other, id) = apart(Distant::Worker).await;
    proxy.go_away();
    proxy.until_refused(1).await;
    other.engine.cancel(id, "enough").await.expect("under way");
    proxy.come_back();
    working.script.until_nothing_runs().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_is_told_again_until_it_was_told() {
    let (proxy, working, other, id) = apart(Distant::Other).await;
    proxy.fail_next("stop:", Fault::CutBefore);
    other.engine.cancel(id, "enough").await.expect("under way");
    proxy.until_fired(1).await;
    working.script.until_nothing_runs().await;
}

/// Nobody could be asked for longer than anybody waits: that is what is said, with the job's name.
#[tokio::test(flavor = "multi_thread")]
async fn a_submission_that_nobody_can_tell_of_is_not_called_undone() {
    let address = servers::fresh_postgres().await;
    let proxy = in_front_of(&address).await;
    let setup = Setup { postgres: Some(through(&proxy, &address)), ..Setup::default() };
    let patience = Duration::from_millis(300);
    let far = Setup { patience, lease: Duration::from_secs(60), ..setup }.open().await;
    for key in [None, Some("k".to_owned())] {
        proxy.fail_next(if key.is_some() { "\"two\"" } else { WORKER }, Fault::CutAfter);
        proxy.go_away_at_the_fault();
        let plan = Some(json!({"steps": [step("two", "echo")]}));
        let refused = far.engine.submit(Asked { plan, key, ..Asked::default() }).await;
        proxy.come_back();
        let Err(Refused::Unknown(id, error)) = refused else { panic!("{refused:?}") };
        let kept = far.engine.store().job(id).await.expect("a store");
        assert!(kept.is_some(), "it is there, and its name was said: {error}");
    }
}

/// An engine through a proxy that does what it should to the answer of its first claim, and a job
/// that was cancelled before that answer comes. Nothing is run for it.
async fn cancelled_before_its_claim_is_answered(fault: Fault, is_told: bool) {
    let address = servers::fresh_postgres().await;
    let proxy = in_front_of(&address).await;
    let postgres = Some(through(&proxy, &address));
    let other = Setup { postgres: Some(address), workers: 0, worker: "other", ..Setup::default() };
    let other = other.open().await;
    // The name goes with the claim, and its lease is so long that no look at it tells the engine.
    proxy.fail_next("claims-it", fault);
    let lease = Duration::from_secs(3600);
    let bench = Setup { postgres, lease, worker: "claims-it", ..Setup::default() }.open().await;
    let id = other.submit(json!([step("never", "hang")])).await;
    proxy.until_fired(1).await;
    other.see(id, |kept| kept.job.state.worker.is_some()).await;
    other.engine.cancel(id, "enough").await.expect("under way");
    if is_told {
        bench.engine.hear(Signal::Stop(id));
    }
    proxy.let_go();
    // Claimed behind it: what was claimed first is begun by then, or never.
    let next = other.submit(json!([step("next", "echo")])).await;
    assert_eq!(other.ended(next).await.job.state.status, JobStatus::Completed);
    assert_eq!(bench.script.ran(), ["next"]);
    assert_eq!(other.ended(id).await.job.state.status, JobStatus::Cancelled);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_reaches_a_job_whose_claim_is_not_answered_yet() {
    cancelled_before_its_claim_is_answered(Fault::Hold, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_had_to_be_looked_up_is_not_begun_when_it_is_over() {
    cancelled_before_its_claim_is_answered(Fault::Stall, false).await;
}
