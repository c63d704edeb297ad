//! Steps that run together, jobs inside jobs, and jobs that repeat others (jobs.md §4, §5).

use semel_jobs::engine::{Answer, Asked};
use semel_jobs::gear::FailureClass;
use semel_jobs::life::JobStatus;
use semel_jobs::limits::PROCESSES_AT_ONCE;
use semel_jobs::plan::PlanText;
use semel_jobs::view;
use serde_json::{Value, json};

use crate::support::{Setup, bench, failed, step, uncertain};

fn together(id: &str, action: &str) -> Value {
    let mut step = step(id, action);
    step["parallel_group"] = json!("g");
    step
}

#[tokio::test]
async fn a_group_runs_together_and_what_follows_waits_for_all_of_it() {
    let bench = bench().await;
    let steps = json!([together("z", "hold"), together("a", "hold"), step("after", "echo")]);
    let id = bench.submit(steps).await;
    bench.script.until_ran(2).await;
    assert!(!bench.script.ran().contains(&"after".to_owned()));
    bench.script.gate.send_replace(true);
    let whole = view::whole(&bench.ended(id).await);
    let order: Vec<&Value> =
        whole["result"].as_array().expect("results").iter().map(|one| &one["step"]).collect();
    assert_eq!(order, ["a", "z", "after"], "by their names, whatever ended first");
}

/// Each step of a group could be a process, and a group may have very many steps.
#[tokio::test]
async fn processes_of_gears_wait_for_room_and_let_go_of_it() {
    let bench = Setup { workers: 2, more: vec!["heavy"], ..Setup::default() }.open().await;
    let all = PROCESSES_AT_ONCE + 6;
    let heavy = |number: usize| {
        let mut step = together(&format!("s{number}"), "hold");
        step["gear"] = json!("heavy");
        step
    };
    let id = bench.submit((0..all).map(heavy).collect()).await;
    bench.script.until_ran(PROCESSES_AT_ONCE).await;
    // Others are not kept from anything, and jobs of jobs have room of their own.
    let mut light = step("light", "sub");
    light["params"] =
        json!({"plan": {"steps": [{"id": "deep", "gear": "heavy", "action": "echo"}]}});
    let light = bench.submit(json!([light])).await;
    assert_eq!(bench.ended(light).await.job.state.status, JobStatus::Completed);
    assert_eq!(bench.script.ran().len(), PROCESSES_AT_ONCE + 2);
    bench.script.gate.send_replace(true);
    assert_eq!(bench.ended(id).await.job.state.status, JobStatus::Completed);
    assert_eq!(bench.script.ran().len(), all + 2);
}

/// All that there is room for wait for jobs that need a process, and these for others.
#[tokio::test]
async fn processes_that_wait_for_sub_jobs_do_not_keep_them_from_running() {
    let bench = Setup { workers: 2, more: vec!["heavy"], ..Setup::default() }.open().await;
    let all = PROCESSES_AT_ONCE + 2;
    let plan = |step: Value| json!({"plan": {"steps": [step]}});
    let asks = |id: &str, asked: Value| {
        let params = plan(asked);
        json!({"id": id, "gear": "heavy", "action": "sub", "params": params})
    };
    let deepest = json!({"id": "deep", "gear": "heavy", "action": "echo"});
    let outer = |number: usize| {
        let mut step = asks(&format!("s{number}"), asks("inner", deepest.clone()));
        step["parallel_group"] = json!("g");
        step["timeout_ms"] = json!(300_000);
        step
    };
    let id = bench.submit((0..all).map(outer).collect()).await;
    assert_eq!(bench.ended(id).await.job.state.status, JobStatus::Completed);
    assert_eq!(bench.script.ran().len(), 3 * all);
}

#[tokio::test]
async fn a_failure_stops_its_siblings_unless_the_plan_goes_on_without_it() {
    let bench = bench().await;
    bench.script.will("bad", vec![failed(FailureClass::UserError); 2]);
    let steps = json!([together("bad", "echo"), together("h", "hang"), step("after", "echo")]);
    let id = bench.submit(steps).await;
    let state = bench.ended(id).await.job.state;
    assert_eq!(state.failed_action.as_deref(), Some("test.echo"));
    assert!(!bench.script.ran().contains(&"after".to_owned()));
    let mut bad = together("bad", "echo");
    bad["continue_on_failure"] = json!(true);
    let mut needs = step("needs", "echo");
    needs["depends_on"] = json!(["bad"]);
    let id =
        bench.submit(json!([bad, together("good", "echo"), needs, step("after", "echo")])).await;
    let whole = view::whole(&bench.ended(id).await);
    let ends: Vec<&Value> =
        whole["steps"].as_array().expect("steps").iter().map(|one| &one["status"]).collect();
    assert_eq!(ends, ["failed", "completed", "skipped", "completed"], "{whole:#}");
    assert_eq!(whole["status"], "completed");
}

#[tokio::test]
async fn a_step_that_could_not_begin_is_told_from_one_that_waits() {
    let bench = bench().await;
    let mut bad = step("bad", "echo");
    bad["params"] = json!({"x": "$ref:step:good/nothing"});
    bad["continue_on_failure"] = json!(true);
    let id = bench.submit(json!([step("good", "echo"), bad, step("after", "echo")])).await;
    let whole = view::whole(&bench.ended(id).await);
    let ends: Vec<&Value> =
        whole["steps"].as_array().expect("steps").iter().map(|one| &one["status"]).collect();
    assert_eq!(ends, ["completed", "not_run", "completed"], "{whole:#}");
}

#[tokio::test]
async fn siblings_that_touch_the_same_are_refused() {
    let bench = bench().await;
    let mut steps = [together("a", "echo"), together("b", "echo")];
    for step in &mut steps {
        step["resources"] = json!(["the file"]);
    }
    let asked = Asked { plan: Some(json!({"steps": steps})), ..Asked::default() };
    let refused = bench.engine.submit(asked).await.expect_err("refused").to_string();
    assert!(refused.contains("the file"), "{refused}");
}

#[tokio::test]
async fn parents_give_their_slot_to_what_they_wait_for() {
    let bench = Setup { workers: 1, ..Setup::default() }.open().await;
    let inner = |name: &str| json!({"plan": {"steps": [step(name, "echo")]}});
    let outer = |name: &str| {
        let middle = json!({"id": "m", "gear": "test", "action": "sub", "params": inner(name)});
        let params = json!({"plan": {"steps": [middle]}});
        json!([{"id": "o", "gear": "test", "action": "sub", "params": params}])
    };
    let (one, two) = (bench.submit(outer("x")).await, bench.submit(outer("y")).await);
    for id in [one, two] {
        assert_eq!(bench.ended(id).await.job.state.status, JobStatus::Completed);
    }
    let mut ran = bench.script.ran();
    ran.sort();
    assert_eq!(ran, ["m", "m", "o", "o", "x", "y"]);
}

#[tokio::test]
async fn an_attempt_that_is_run_again_finds_the_job_that_it_made() {
    let bench = bench().await;
    let params = json!({"plan": {"steps": [step("inner", "echo")]}});
    let sub = json!({"id": "o", "gear": "test", "action": "sub", "params": params});
    bench.script.will("bad", vec![failed(FailureClass::UserError)]);
    let id = bench.submit(json!([sub, step("bad", "echo")])).await;
    assert_eq!(bench.ended(id).await.job.state.status, JobStatus::Failed);
    // What was done is not asked for again.
    let again = bench.engine.retry(id).await.expect("a new job").id;
    assert_eq!(bench.ended(again).await.job.state.status, JobStatus::Completed);
    assert_eq!(bench.script.ran(), ["o", "inner", "bad", "bad"]);
}

#[tokio::test]
async fn a_repeated_job_does_not_do_again_what_was_done() {
    let bench = bench().await;
    bench.script.will("bad", vec![failed(FailureClass::UserError)]);
    let id = bench.submit(json!([step("a", "pay"), step("bad", "echo")])).await;
    bench.until(id, JobStatus::Failed).await;
    let again = bench.engine.retry(id).await.expect("a new job").id;
    let kept = bench.ended(again).await;
    assert_eq!((kept.job.retry_of, kept.job.root_id), (Some(id), id));
    assert_eq!(kept.job.state.status, JobStatus::Completed);
    assert_eq!(bench.script.ran(), ["a", "bad", "bad"]);
    assert!(bench.engine.retry(again).await.is_err(), "it has not failed");
}

#[tokio::test]
async fn a_repeated_job_has_as_much_time_as_the_first() {
    let bench = bench().await;
    let own = |action: &str| Asked {
        plan: Some(json!({"steps": [step("s", action)]})),
        timeout_ms: Some(20_000),
        ..Asked::default()
    };
    let time = async |id| {
        let again = bench.engine.retry(id).await.expect("a new job").id;
        bench.engine.store().job(again).await.expect("a store").expect("a job").job.state.budget_ms
    };
    bench.script.will("s", vec![failed(FailureClass::UserError); 2]);
    let id = bench.take(own("echo")).await;
    bench.until(id, JobStatus::Failed).await;
    assert_eq!(time(id).await, 20_000);
    // What is left of the time of one that has waited for a person may be next to nothing.
    bench.script.will("s", vec![failed(FailureClass::UserError); 2]);
    let id = bench.take(own("drop")).await;
    let kept = bench.until(id, JobStatus::AwaitingApproval).await;
    let hash = PlanText::plan(kept.job.state.plan.as_ref().expect("a plan")).expect("one").hash();
    bench.engine.approve(id, hash, Answer::Approve, "me").await.expect("approved");
    bench.until(id, JobStatus::Failed).await;
    assert_eq!(time(id).await, 300_000);
}

#[tokio::test]
async fn a_step_that_never_gets_done_is_given_up_after_three_attempts() {
    let bench = bench().await;
    bench.script.will("check", vec![uncertain(); 9]);
    bench.script.will("safe", vec![uncertain(); 9]);
    for (name, action) in [("check", "check"), ("safe", "echo")] {
        let id = bench.submit(json!([step(name, action)])).await;
        assert_eq!(bench.ended(id).await.job.state.status, JobStatus::Failed, "{name}");
        let runs = bench.script.ran().iter().filter(|ran| *ran == name).count();
        assert_eq!(runs, 3, "{name}");
    }
}
