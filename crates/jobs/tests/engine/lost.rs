//! Commits whose answer is lost, on PostgreSQL (jobs.md §4, traps.md 21): the engine finds out what
//! became of them, and no step runs twice.

use std::net::SocketAddr;

use semel_core::id::JobId;
use semel_jobs::gear::{Ended, Output};
use semel_jobs::life::JobStatus;
use semel_testkit::proxy::{Fault, Proxy};
use semel_testkit::servers;
use serde_json::json;

use crate::support::{Bench, Setup, step};

/// What the first step gives: in the record of its end, which also begins the second, and in no
/// request before.
const RESULT: &str = "result-of-one";
/// The worker's name: in the claim or the submission, whichever begins the first step.
const WORKER: &str = "test-engine";

/// An engine whose database is behind a proxy.
async fn behind() -> (Proxy, Bench) {
    let address = servers::fresh_postgres().await;
    let (front, rest) = address.rsplit_once('@').expect("a user");
    let (server, database) = rest.split_once('/').expect("a database");
    let found = tokio::net::lookup_host(server).await.expect("an address").next();
    let proxy = Proxy::start(found.expect("an address")).await;
    let near: SocketAddr = proxy.address();
    let postgres = Some(format!("{front}@{near}/{database}"));
    let bench = Setup { postgres, ..Setup::default() }.open().await;
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
    let (proxy, bench) = behind().await;
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
