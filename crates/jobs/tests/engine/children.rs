//! Sub-jobs: what a gear asks for is made once, follows its parent, and may be repeated
//! (jobs.md §2).

use std::time::Duration;

use semel_core::id::JobId;
use semel_jobs::engine::Asked;
use semel_jobs::gear::FailureClass;
use semel_jobs::life::JobStatus;
use semel_jobs::store::List;
use semel_testkit::proxy::Fault;
use serde_json::{Value, json};

use crate::lost::behind_for;
use crate::support::{Bench, bench, failed, step, uncertain};

/// A plan whose only step has another plan run.
fn asks_for(inner: Value) -> Value {
    let plan = json!({"plan": {"steps": [inner]}});
    json!([{"id": "outer", "gear": "test", "action": "sub", "params": plan}])
}

/// The only job that a gear asked for.
async fn child(bench: &Bench, parent: JobId) -> JobId {
    let all = List { limit: 50, ..List::default() };
    let jobs = bench.engine.store().list(all).await.expect("a store").jobs;
    let of =
        |job: &&semel_jobs::store::Job| job.parent_id == Some(parent) && job.retry_of.is_none();
    let mut found = jobs.iter().filter(of);
    found.next().expect("a sub-job").id
}

/// Fails for good, so that its job does.
fn bad() -> Vec<semel_jobs::gear::Ended> {
    vec![failed(FailureClass::UserError)]
}

#[tokio::test]
async fn a_parent_succeeds_after_its_failed_sub_job_was_repeated() {
    let bench = bench().await;
    bench.script.will("inner", bad());
    let parent = bench.submit(asks_for(step("inner", "pay"))).await;
    assert_eq!(bench.ended(parent).await.job.state.status, JobStatus::Failed);
    let again = bench.engine.retry(child(&bench, parent).await).await.expect("repeated").id;
    assert_eq!(bench.ended(again).await.job.state.status, JobStatus::Completed);
    let parent = bench.engine.retry(parent).await.expect("repeated").id;
    assert_eq!(bench.ended(parent).await.job.state.status, JobStatus::Completed);
    assert_eq!(bench.script.ran(), ["outer", "inner", "inner", "outer"]);
}

#[tokio::test]
async fn a_repeated_parent_repeats_its_failed_sub_job() {
    let bench = bench().await;
    bench.script.will("inner", bad());
    let parent = bench.submit(asks_for(step("inner", "pay"))).await;
    assert_eq!(bench.ended(parent).await.job.state.status, JobStatus::Failed);
    let parent = bench.engine.retry(parent).await.expect("repeated").id;
    assert_eq!(bench.ended(parent).await.job.state.status, JobStatus::Completed);
    assert_eq!(bench.script.ran(), ["outer", "inner", "outer", "inner"]);
}

/// A gear says that its sub-job failed, and that may have done something: so may the step have.
#[tokio::test]
async fn a_step_whose_sub_job_is_uncertain_has_not_failed_for_certain() {
    let bench = bench().await;
    bench.script.will("inner", vec![uncertain()]);
    let parent = bench.submit(asks_for(step("inner", "pay"))).await;
    bench.script.until_ran(2).await;
    let child = child(&bench, parent).await;
    bench.until(child, JobStatus::AwaitingApproval).await;
    bench.engine.cancel(child, "enough").await.expect("it waits");
    let kept = bench.ended(parent).await;
    assert_eq!(kept.job.state.status, JobStatus::Failed);
    assert!(!kept.executions[0].certain, "{:#?}", kept.executions);
    // One that has failed for certain is no reason to doubt.
    bench.script.will("inner", bad());
    let parent = bench.submit(asks_for(step("inner", "pay"))).await;
    let kept = bench.ended(parent).await;
    assert!(kept.executions[0].certain, "{:#?}", kept.executions);
}

/// What a repeated job has repeated goes with it, too.
#[tokio::test]
async fn a_cancelled_repetition_takes_its_sub_jobs_along() {
    let bench = bench().await;
    bench.script.will("inner", bad());
    let plan = Some(json!({"steps": asks_for(step("inner", "hang"))}));
    let asked = Asked { plan, timeout_ms: Some(60_000), ..Asked::default() };
    let parent = bench.take(asked).await;
    assert_eq!(bench.ended(parent).await.job.state.status, JobStatus::Failed);
    let failed = child(&bench, parent).await;
    let parent = bench.engine.retry(parent).await.expect("repeated").id;
    bench.script.until_ran(4).await;
    let (repeated, _) =
        bench.engine.store().newest_repeat(failed).await.expect("a store").expect("a repetition");
    let budget = bench.until(repeated, JobStatus::Executing).await.job.state.budget_ms;
    assert!(budget <= 60_000, "a sub-job has no more time than its parent: {budget}");
    bench.engine.cancel(parent, "enough").await.expect("under way");
    assert_eq!(bench.ended(repeated).await.job.state.status, JobStatus::Cancelled);
    bench.script.until_nothing_runs().await;
}

#[tokio::test]
async fn a_cancelled_parent_takes_its_sub_jobs_along() {
    let bench = bench().await;
    let asked =
        Asked { plan: Some(json!({"steps": asks_for(step("inner", "hang"))})), ..Asked::default() };
    let parent = bench.take(Asked { timeout_ms: Some(60_000), ..asked }).await;
    bench.script.until_ran(2).await;
    let child = child(&bench, parent).await;
    let budget = bench.until(child, JobStatus::Executing).await.job.state.budget_ms;
    assert!(budget <= 60_000, "a sub-job has no more time than its parent: {budget}");
    bench.engine.cancel(parent, "enough").await.expect("under way");
    assert_eq!(bench.ended(child).await.job.state.status, JobStatus::Cancelled);
    bench.script.until_nothing_runs().await;
}

/// The gear hears of no failure while nobody knows whether its sub-job was made.
#[tokio::test(flavor = "multi_thread")]
async fn a_sub_job_is_made_once_the_store_is_back() {
    for fault in [Fault::CutBefore, Fault::CutAfter] {
        let (proxy, bench) = behind_for(Duration::from_secs(120)).await;
        // Its key, and so the transaction that makes it.
        proxy.fail_next("sub:", fault);
        proxy.go_away_at_the_fault();
        // As long as the store may be away on a busy machine: a step whose time is over is run
        // again.
        let mut steps = asks_for(step("inner", "pay"));
        steps[0]["timeout_ms"] = json!(120_000);
        let submitted = bench.submit(steps);
        let come_back = async {
            proxy.until_refused(12).await;
            proxy.come_back();
        };
        let (parent, ()) = tokio::join!(submitted, come_back);
        assert_eq!(bench.ended(parent).await.job.state.status, JobStatus::Completed, "{fault:?}");
        assert_eq!(bench.script.ran(), ["outer", "inner"], "{fault:?}");
    }
}
