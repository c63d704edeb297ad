//! What a gear may have done by jobs of its own, and what the policy says once it is known what
//! references stand for (jobs.md §5, §8).

use semel_core::id::JobId;
use semel_jobs::engine::Answer;
use semel_jobs::gear::FailureClass;
use semel_jobs::life::JobStatus;
use semel_jobs::plan::Plan;
use semel_jobs::policy::{Policy, Rule, Verdict};
use serde_json::{Value, json};

use crate::support::{Bench, Setup, step};

/// A plan whose only step asks for another job.
fn asks_for(gear: &str, asked: Value) -> Value {
    json!([{"id": "outer", "gear": gear, "action": "sub", "params": asked}])
}

/// The job has failed so.
async fn failed_with(bench: &Bench, id: JobId, code: &str) {
    let kept = bench.ended(id).await;
    assert_eq!(kept.job.state.status, JobStatus::Failed);
    let error: Value =
        serde_json::from_str(&kept.job.state.error.expect("an error")).expect("JSON");
    assert_eq!(error["code"], code, "{error}");
}

#[tokio::test]
async fn a_gear_has_only_done_what_its_manifest_declares() {
    let bench = Setup { more: vec!["modest"], ..Setup::default() }.open().await;
    let plan = |action: &str| json!({"plan": {"steps": [step("inner", action)]}});
    let fine = bench.submit(asks_for("modest", plan("echo"))).await;
    assert_eq!(bench.ended(fine).await.job.state.status, JobStatus::Completed);
    let more = json!({"plan": {"steps": [step("one", "echo"), step("two", "pay")]}});
    for asked in [plan("pay"), more, json!({"request": "whatever you like"})] {
        let refused = bench.submit(asks_for("modest", asked)).await;
        failed_with(&bench, refused, "sub_job_not_allowed").await;
    }
    assert_eq!(bench.script.ran(), ["outer", "inner", "outer", "outer", "outer"]);
    assert_eq!(bench.count("SELECT count(*) FROM job WHERE asker = 'modest'"), 1);
}

#[tokio::test]
async fn a_rule_may_be_about_jobs_that_gears_ask_for() {
    let rule = Rule {
        action: Some("test.pay".to_owned()),
        parent: Some("*".to_owned()),
        verdict: Some(Verdict::Reject),
        ..Rule::default()
    };
    let policy = Policy { rules: vec![rule] };
    let bench = Setup { policy, ..Setup::default() }.open().await;
    let own = bench.submit(json!([step("own", "pay")])).await;
    assert_eq!(bench.ended(own).await.job.state.status, JobStatus::Completed);
    let asked = json!({"plan": {"steps": [step("inner", "pay")]}});
    let parent = bench.submit(asks_for("test", asked)).await;
    failed_with(&bench, parent, "plan_rejected").await;
    assert_eq!(bench.script.ran(), ["own", "outer"]);
}

/// A plan is judged before anybody knows what its references stand for.
#[tokio::test]
async fn what_a_reference_stands_for_is_judged_before_it_is_run() {
    let rule = Rule {
        action: Some("http.*".to_owned()),
        host: Some("127.0.0.1".to_owned()),
        verdict: Some(Verdict::Reject),
        ..Rule::default()
    };
    let policy = Policy { rules: vec![rule] };
    let bench = Setup { policy, ..Setup::default() }.open().await;
    let params = json!({"url": "http://127.1:1/", "method": "GET"});
    for given in [json!("$ref:step:a"), json!({"url": "$ref:step:a/url"})] {
        let steps = json!([
            {"id": "a", "gear": "test", "action": "echo", "params": params},
            {"id": "b", "gear": "http", "action": "request", "params": given},
        ]);
        let plan = Plan::read(&json!({"steps": steps})).expect("a plan");
        let id = bench.submit(steps).await;
        bench.until(id, JobStatus::AwaitingApproval).await;
        let approved = bench.engine.approve(id, plan.hash(), Answer::Approve, "me").await;
        approved.expect("it was asked");
        failed_with(&bench, id, "policy_rejects").await;
        let class = bench.ended(id).await.job.state.failure_class;
        assert_eq!(class, Some(FailureClass::PlanRejected));
    }
}
