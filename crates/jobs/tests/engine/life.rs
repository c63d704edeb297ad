//! Plans through the whole engine.

use semel_core::hex::Hex;
use semel_jobs::dispatch::ExecutionStatus;
use semel_jobs::engine::{Answer, Asked};
use semel_jobs::gear::FailureClass;
use semel_jobs::life::JobStatus;
use semel_jobs::store::{Kept, List};
use semel_jobs::view;
use serde_json::json;

use crate::support::{bench, failed, step, uncertain};

#[tokio::test]
async fn steps_run_in_order_and_see_what_was_before() {
    let bench = bench().await;
    let id = bench
        .submit(json!([
            {"id": "a", "gear": "test", "action": "echo", "params": {"n": 1}},
            {"id": "b", "gear": "test", "action": "echo", "params": {"of_a": "$ref:step:a/n"},
             "depends_on": ["a"]},
            {"id": "c", "gear": "test", "action": "echo",
             "condition": {"ref": "$ref:step:a/n", "op": "gt", "value": 5}},
        ]))
        .await;
    let kept = bench.until(id, JobStatus::Completed).await;
    assert_eq!(bench.script.ran(), ["a", "b"]);
    let whole = view::whole(&kept);
    assert_eq!(whole["result"][1]["result"], json!({"of_a": 1}));
    assert_eq!(whole["steps"][2]["status"], "skipped");
}

#[tokio::test]
async fn a_passing_failure_is_tried_again_and_a_definite_one_is_not() {
    let bench = bench().await;
    let step = |id: &str| json!([{"id": id, "gear": "test", "action": "echo"}]);
    bench.script.will("again", vec![failed(FailureClass::Transient)]);
    bench.script.will("no", vec![failed(FailureClass::UserError)]);
    let id = bench.submit(step("no")).await;
    let kept = bench.until(id, JobStatus::Failed).await;
    assert_eq!(kept.job.state.failure_class, Some(FailureClass::UserError));
    let id = bench.submit(step("again")).await;
    bench.until(id, JobStatus::Completed).await;
    assert_eq!(bench.script.ran(), ["no", "again", "again"]);
}

#[tokio::test]
async fn an_uncertain_step_is_recovered_as_it_declares() {
    let bench = bench().await;
    let step = |id: &str, action: &str| json!([{"id": id, "gear": "test", "action": action}]);
    for name in ["safe", "resolved", "asked"] {
        bench.script.will(name, vec![uncertain()]);
    }
    let id = bench.submit(step("safe", "echo")).await;
    bench.until(id, JobStatus::Completed).await;
    let id = bench.submit(step("resolved", "check")).await;
    bench.until(id, JobStatus::Completed).await;
    let id = bench.submit(step("asked", "pay")).await;
    let kept = bench.until(id, JobStatus::AwaitingApproval).await;
    let hash = Hex::parse(view::whole(&kept)["plan_hash"].as_str().expect("a hash")).expect("hex");
    let happened = Answer::Happened(json!({"paid": true}));
    bench.engine.approve(id, hash, happened.clone(), "me").await.expect("approved");
    let kept = bench.until(id, JobStatus::Completed).await;
    assert_eq!(kept.executions[0].status, ExecutionStatus::Completed);
    assert_eq!(bench.script.ran(), ["safe", "safe", "resolved", "resolved", "asked"]);
    assert!(bench.engine.approve(id, hash, happened, "me").await.is_err(), "used once");
}

#[tokio::test]
async fn a_risky_plan_waits_for_a_person_who_sees_this_very_plan() {
    let bench = bench().await;
    let id = bench.submit(json!([{"id": "d", "gear": "test", "action": "drop"}])).await;
    let kept = bench.until(id, JobStatus::AwaitingApproval).await;
    let other = Hex([1; 32]);
    assert!(bench.engine.approve(id, other, Answer::Approve, "me").await.is_err());
    let hash = Hex::parse(view::whole(&kept)["plan_hash"].as_str().expect("a hash")).expect("hex");
    bench.engine.approve(id, hash, Answer::Approve, "me").await.expect("approved");
    bench.until(id, JobStatus::Completed).await;
    let id = bench.submit(json!([{"id": "d", "gear": "test", "action": "drop"}])).await;
    bench.until(id, JobStatus::AwaitingApproval).await;
    bench.engine.reject(id, "no").await.expect("rejected");
    bench.until(id, JobStatus::Cancelled).await;
    assert_eq!(bench.script.ran(), ["d"]);
}

#[tokio::test]
async fn a_cancel_stops_what_runs_and_everything_after_it() {
    let bench = bench().await;
    let id = bench
        .submit(json!([
            {"id": "h", "gear": "test", "action": "hang"},
            {"id": "after", "gear": "test", "action": "echo"},
        ]))
        .await;
    bench.until(id, JobStatus::Executing).await;
    bench.engine.cancel(id, "enough").await.expect("cancelled");
    bench.until(id, JobStatus::Cancelled).await;
    bench.engine.stop().await;
    assert_eq!(bench.engine.workers().0, 0);
    assert!(!bench.script.ran().contains(&"after".to_owned()));
}

/// A step's end says nothing of the lease, which was renewed while it ran: were it set back, the
/// job would be anybody's.
#[tokio::test]
async fn a_step_may_take_longer_than_the_lease() {
    let bench = bench().await;
    let id = bench.submit(json!([step("slow", "hold"), step("next", "hang")])).await;
    bench.script.until_ran(1).await;
    let lease = |kept: &Kept| kept.job.state.due_at;
    let first = lease(&bench.see(id, |kept| lease(kept).is_some()).await);
    let renewed = lease(&bench.see(id, |kept| lease(kept) > first).await);
    bench.script.gate.send_replace(true);
    bench.script.until_ran(2).await;
    let kept = bench.see(id, |kept| kept.job.state.step_index == 1).await;
    assert!(lease(&kept) >= renewed, "{:?} after {renewed:?}", lease(&kept));
    assert_eq!((kept.job.state.deaths, kept.job.state.fence), (0, 1));
    bench.engine.cancel(id, "enough").await.expect("under way");
    bench.ended(id).await;
}

/// Whatever becomes of who asked: what was taken in is worked on.
#[tokio::test]
async fn a_caller_that_goes_away_leaves_no_job_that_nobody_works_on() {
    let bench = bench().await;
    let plan = json!({"steps": [step("a", "pay")]});
    for _ in 0..20 {
        let asked = Asked { plan: Some(plan.clone()), ..Asked::default() };
        tokio::select! {
            biased;
            taken = bench.engine.submit(asked) => drop(taken.expect("a job")),
            () = tokio::task::yield_now() => {}
        }
    }
    bench.script.until_ran(20).await;
    let all = List { limit: 50, ..List::default() };
    for job in bench.engine.store().list(all).await.expect("a store").jobs {
        let state = bench.ended(job.id).await.job.state;
        assert_eq!((state.status, state.fence), (JobStatus::Completed, 1));
    }
}
