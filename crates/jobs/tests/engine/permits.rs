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

/// What a caller of the API would be refused for, a gear is refused for.
#[tokio::test]
async fn a_sub_job_with_a_field_that_nobody_reads_is_refused() {
    let bench = Setup { more: vec!["modest"], ..Setup::default() }.open().await;
    let plan = json!({"steps": [step("inner", "echo")]});
    for asked in [json!({"plan": plan, "notes": "x"}), json!({"plan": plan, "request": 1})] {
        let id = bench.submit(asks_for("modest", asked)).await;
        failed_with(&bench, id, "sub_job_refused").await;
    }
    assert_eq!(bench.script.ran(), ["outer", "outer"]);
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

/// A plan that nobody was asked about is asked about once a stricter word is said of a step that
/// has not begun; what a person has approved is not asked again.
#[tokio::test]
async fn what_became_stricter_since_it_was_approved_is_asked_first() {
    let bench = Setup::default().open().await;
    let unseen = bench.submit(json!([step("a", "hold"), step("b", "pay")])).await;
    let seen = json!([step("c", "drop"), step("d", "hold"), step("e", "pay")]);
    let hash = Plan::read(&json!({"steps": seen})).expect("a plan").hash();
    let seen = bench.submit(seen).await;
    bench.until(seen, JobStatus::AwaitingApproval).await;
    bench.engine.approve(seen, hash, Answer::Approve, "me").await.expect("it was asked");
    bench.script.until_ran(3).await;
    bench.reinstall("test", |manifest, _| {
        manifest.actions.get_mut("pay").expect("it is there").always_asks = true;
    });
    bench.script.gate.send_replace(true);
    assert_eq!(bench.ended(seen).await.job.state.status, JobStatus::Completed);
    let kept = bench.until(unseen, JobStatus::AwaitingApproval).await;
    let question: Value =
        serde_json::from_str(&kept.job.state.question.expect("a question")).expect("JSON");
    assert_eq!((&question["kind"], &question["steps"]), (&json!("plan"), &json!(["b"])));
    assert!(!bench.script.ran().contains(&"b".to_owned()));
    let plan = kept.job.state.plan.expect("a plan");
    let hash = plan.plan().expect("it can be read").hash();
    assert_eq!(question["plan_hash"], hash.to_string());
    bench.engine.approve(unseen, hash, Answer::Approve, "me").await.expect("it was asked");
    assert_eq!(bench.ended(unseen).await.job.state.status, JobStatus::Completed);
}

/// What a gear might have done when it asked bounds the job, whatever became of the gear since.
#[tokio::test]
async fn a_job_keeps_to_what_its_asker_declared() {
    let bench = Setup { more: vec!["modest"], ..Setup::default() }.open().await;
    let plan = json!({"plan": {"steps": [
        {"id": "a", "gear": "test", "action": "hold", "params": {"place": "#news"}},
        {"id": "b", "gear": "test", "action": "echo", "params": {"to": "$later:step:a/place"}},
    ]}});
    for (count, became) in ["gone", "bolder"].into_iter().enumerate() {
        bench.script.gate.send_replace(false);
        if became == "bolder" {
            bench.reinstall("modest", |_, _| {});
        }
        let id = bench.submit(asks_for("modest", plan.clone())).await;
        bench.script.until_ran(2 * (count + 1)).await;
        match became {
            "gone" => bench.engine.gears().remove("modest"),
            _ => bench.reinstall("modest", |_, grants| grants.publish.push("*".to_owned())),
        }
        bench.script.gate.send_replace(true);
        assert_eq!(bench.ended(id).await.job.state.status, JobStatus::Failed, "{became}");
        let refused = "SELECT count(*) FROM job WHERE asker = 'modest' AND status = 'failed'
                          AND error LIKE '%permission_missing%'";
        assert_eq!(bench.count(refused), i64::try_from(count + 1).expect("few"), "{became}");
    }
    assert_eq!(bench.script.ran(), ["outer", "a", "outer", "a"]);
}
