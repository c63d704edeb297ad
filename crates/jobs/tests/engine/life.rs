//! Plans through the whole engine.

use std::time::Duration;

use semel_core::code::Code;
use semel_core::hex::Hex;
use semel_jobs::dispatch::ExecutionStatus;
use semel_jobs::engine::{Answer, Asked, Refused};
use semel_jobs::gear::{Ended, FailureClass, Output, Resolution};
use semel_jobs::life::JobStatus;
use semel_jobs::limits::{DOCUMENT_BYTES_MAX, RESULT_DEPTH_MAX};
use semel_jobs::store::{Kept, List};
use semel_jobs::view;
use serde_json::{Value, json};

use crate::support::{Setup, bench, failed, step, uncertain};

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
    let happened = Answer::Happened(kept.job.state.entries, json!({"paid": true}));
    bench.engine.approve(id, hash, happened.clone(), "me").await.expect("approved");
    let kept = bench.until(id, JobStatus::Completed).await;
    assert_eq!(kept.executions[0].status, ExecutionStatus::Completed);
    assert_eq!(bench.script.ran(), ["safe", "safe", "resolved", "resolved", "asked"]);
    assert!(bench.engine.approve(id, hash, happened, "me").await.is_err(), "used once");
}

/// Asked again it would say the same: a gear that knows that something happened, and not what came
/// of it, is asked once, and then a person is.
#[tokio::test]
async fn a_gear_that_knows_of_no_fit_result_is_not_asked_for_ever() {
    let bench = bench().await;
    let much = json!("x".repeat(DOCUMENT_BYTES_MAX));
    let unfit = [Output::Artifact("no-such-file".into()), Output::Value(much)];
    for (number, output) in (1..).zip(unfit) {
        bench.script.knows(Resolution::Done(output));
        bench.script.will("done", vec![uncertain()]);
        let id = bench.submit(json!([step("done", "check")])).await;
        bench.until(id, JobStatus::AwaitingApproval).await;
        assert_eq!(bench.script.asked(), number);
    }
}

/// What is too long or too deep is refused at the door, not after somebody was told that it was
/// taken in.
#[tokio::test]
async fn a_plan_that_cannot_be_read_again_is_not_taken_in() {
    let bench = bench().await;
    let submit = |params: Value| {
        let step = json!({"id": "a", "gear": "test", "action": "echo", "params": params});
        let asked = Asked { plan: Some(json!({"steps": [step]})), ..Asked::default() };
        bench.engine.submit(asked)
    };
    let mut deep = json!({});
    for _ in 0..40 {
        deep = json!({"in": deep});
    }
    let long = json!({"text": "x".repeat(DOCUMENT_BYTES_MAX)});
    for (params, code) in [(long, Code::PayloadTooLarge), (deep, Code::NestingTooDeep)] {
        let Err(Refused::Refusal(refusal)) = submit(params).await else { panic!("{code}: taken") };
        assert_eq!(refusal.code, code);
    }
    // What references stand for is only known later.
    let text = json!({"text": "x".repeat(DOCUMENT_BYTES_MAX / 2)});
    let many = json!({"all": vec!["$ref:step:a/text"; 3]});
    let id = bench
        .submit(json!([
            {"id": "a", "gear": "test", "action": "echo", "params": text},
            {"id": "b", "gear": "test", "action": "echo", "params": many},
        ]))
        .await;
    let kept = bench.until(id, JobStatus::Failed).await;
    assert_eq!(kept.job.state.failure_class, Some(FailureClass::ResourceLimit));
    assert!(kept.job.state.error.unwrap_or_default().contains("params_too_large"));
    assert_eq!(bench.script.ran(), ["a"]);
}

/// Later steps are given what a person says that a step gave.
#[tokio::test]
async fn a_person_says_only_what_the_action_may_give() {
    let bench = bench().await;
    bench.script.will("paid", vec![uncertain()]);
    let id = bench.submit(json!([step("paid", "bill")])).await;
    let kept = bench.until(id, JobStatus::AwaitingApproval).await;
    let hash = Hex::parse(view::whole(&kept)["plan_hash"].as_str().expect("a hash")).expect("hex");
    let question = kept.job.state.entries;
    let happened = |result| Answer::Happened(question, result);
    let say = |result: Value| bench.engine.approve(id, hash, happened(result), "me");
    for unfit in [json!({"paid": "yes"}), json!(null), json!({})] {
        let Err(Refused::Refusal(refusal)) = say(unfit.clone()).await else { panic!("{unfit}") };
        assert_eq!((refusal.code, refusal.pointer.as_str()), (Code::InvalidField, "/result"));
    }
    say(json!({"paid": true})).await.expect("approved");
    bench.until(id, JobStatus::Completed).await;
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
    let kept = bench.see(id, |kept| lease(kept).is_some()).await;
    let (first, fence) = (lease(&kept), kept.job.state.fence);
    let renewed = lease(&bench.see(id, |kept| lease(kept) > first).await);
    bench.script.gate.send_replace(true);
    bench.script.until_ran(2).await;
    let kept = bench.see(id, |kept| kept.job.state.step_index == 1).await;
    assert!(lease(&kept) >= renewed, "{:?} after {renewed:?}", lease(&kept));
    assert_eq!((kept.job.state.deaths, kept.job.state.fence), (0, fence));
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
        assert_eq!((state.status, state.deaths), (JobStatus::Completed, 0));
    }
}

/// A word that comes between a claim's commit and the start of its step, often in the same group
/// commit, reaches the step. Nothing else would tell it: no renewal comes by in this test.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_was_confirmed_leaves_nothing_running() {
    let lease = Duration::from_secs(3600);
    let bench = Setup { lease, workers: 8, ..Setup::default() }.open().await;
    let bench = std::sync::Arc::new(bench);
    let callers = (0..24).map(|caller| {
        let bench = std::sync::Arc::clone(&bench);
        tokio::spawn(async move {
            for round in 0..40 {
                let name = format!("s{caller}-{round}");
                let id = bench.submit(json!([step(&name, "hang")])).await;
                bench.engine.cancel(id, "enough").await.expect("cancelled");
            }
        })
    });
    for caller in futures_util::future::join_all(callers).await {
        caller.expect("a caller");
    }
    bench.script.until_nothing_runs().await;
    let depth = bench.engine.store().depth().await.expect("a store");
    assert_eq!(depth, (0, 0));
}

/// The same for a job that an approval, or a repetition, has made due at this very moment.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_beside_an_approval_or_a_repetition_leaves_nothing_running() {
    let lease = Duration::from_secs(3600);
    let bench = Setup { lease, workers: 8, ..Setup::default() }.open().await;
    let bench = std::sync::Arc::new(bench);
    let callers = (0..16).map(|caller| {
        let bench = std::sync::Arc::clone(&bench);
        tokio::spawn(async move {
            for round in 0..20 {
                let name = format!("s{caller}-{round}");
                let (id, approves) = match round % 2 {
                    0 => (bench.submit(json!([step(&name, "dwell")])).await, true),
                    _ => {
                        bench.script.will(&name, vec![failed(FailureClass::UserError)]);
                        let id = bench.submit(json!([step(&name, "hang")])).await;
                        bench.until(id, JobStatus::Failed).await;
                        (id, false)
                    }
                };
                if approves {
                    let kept = bench.until(id, JobStatus::AwaitingApproval).await;
                    let hash = view::whole(&kept)["plan_hash"].as_str().map(str::to_owned);
                    let hash = Hex::parse(&hash.expect("a hash")).expect("hex");
                    let approve = bench.engine.approve(id, hash, Answer::Approve, "me");
                    let cancel = bench.engine.cancel(id, "enough");
                    let (_, cancelled) = tokio::join!(approve, cancel);
                    cancelled.expect("cancelled");
                } else {
                    let again = bench.engine.retry(id).await.expect("repeated").id;
                    bench.engine.cancel(again, "enough").await.expect("cancelled");
                }
            }
        })
    });
    for caller in futures_util::future::join_all(callers).await {
        caller.expect("a caller");
    }
    bench.script.until_nothing_runs().await;
    assert_eq!(bench.engine.store().depth().await.expect("a store"), (0, 0));
}

/// Every question of a job can be answered, not only the first.
#[tokio::test]
async fn a_job_may_ask_more_than_once() {
    let bench = bench().await;
    bench.script.will("one", vec![uncertain(), uncertain()]);
    bench.script.will("two", vec![uncertain()]);
    let id = bench.submit(json!([step("one", "drop"), step("two", "drop")])).await;
    let happened = |question| Answer::Happened(question, json!({"n": 1}));
    let answers: [&dyn Fn(i64) -> Answer; 4] =
        [&|_| Answer::Approve, &Answer::Run, &Answer::Run, &happened];
    let mut asked = 0;
    for answer in answers {
        let is_new = |kept: &Kept| {
            let state = &kept.job.state;
            state.status == JobStatus::AwaitingApproval && state.entries > asked
        };
        let kept = bench.see(id, is_new).await;
        let before = std::mem::replace(&mut asked, kept.job.state.entries);
        let hash = view::whole(&kept)["plan_hash"].as_str().map(str::to_owned);
        let hash = Hex::parse(&hash.expect("a hash")).expect("hex");
        // An answer that is given twice does not answer the next question.
        for late in [Answer::Run(before), happened(before)] {
            let refused = bench.engine.approve(id, hash, late, "me").await;
            assert!(matches!(refused, Err(Refused::Refusal(_))), "{refused:?}");
        }
        bench.engine.approve(id, hash, answer(asked), "me").await.expect("an answer that counts");
    }
    assert_eq!(bench.ended(id).await.job.state.status, JobStatus::Completed);
    assert_eq!(bench.script.ran(), ["one", "one", "one", "two"]);
}

/// A worker that panics gives its job up; nobody keeps the claim alive for it.
#[tokio::test]
async fn a_job_whose_worker_panicked_is_recovered() {
    let bench = bench().await;
    let id = bench.submit(json!([step("once", "panic")])).await;
    let state = bench.ended(id).await.job.state;
    assert_eq!((state.status, bench.script.ran().len()), (JobStatus::Completed, 2));
}

/// A cancel reaches a gear that is asked what became of an attempt.
#[tokio::test]
async fn a_cancel_reaches_a_gear_that_is_asked() {
    let bench = bench().await;
    bench.script.will("t", vec![uncertain()]);
    let id = bench.submit(json!([step("t", "think")])).await;
    bench.script.until_something_runs().await;
    bench.engine.cancel(id, "enough").await.expect("under way");
    bench.script.until_nothing_runs().await;
    assert_eq!(bench.ended(id).await.job.state.status, JobStatus::Cancelled);
}

/// So does the engine's end: the job is left, and nobody waits for what the gear would have said.
#[tokio::test]
async fn a_stop_reaches_a_gear_that_is_asked() {
    let bench = Setup { shutdown: Duration::ZERO, ..Setup::default() }.open().await;
    bench.script.will("t", vec![uncertain()]);
    let id = bench.submit(json!([step("t", "think")])).await;
    bench.script.until_something_runs().await;
    bench.engine.stop().await;
    assert!(!bench.script.is_running(), "it was not stopped");
    let state = bench.see(id, |_| true).await.job.state;
    assert_eq!((state.status, state.worker), (JobStatus::Executing, None), "it is left to others");
}

/// So does the news that somebody else has the job: it is theirs to ask.
#[tokio::test]
async fn a_lost_claim_reaches_a_gear_that_is_asked() {
    let bench = bench().await;
    bench.script.will("t", vec![uncertain()]);
    let id = bench.submit(json!([step("t", "think")])).await;
    bench.script.until_something_runs().await;
    let taken = "UPDATE job SET fence = fence + 1, worker = 'another', due_at = 9000000000000000";
    assert_eq!(bench.file().execute(taken, []).expect("a row"), 1);
    bench.script.until_nothing_runs().await;
    let state = bench.see(id, |_| true).await.job.state;
    assert_eq!(state.worker.as_deref(), Some("another"), "it is not touched any more");
    assert_eq!(state.status, JobStatus::Executing);
}

/// A result is shown inside of other documents, and most readers of JSON go 128 levels deep.
#[tokio::test]
async fn a_result_that_nobody_could_read_is_not_kept() {
    let bench = bench().await;
    let nested = |depth: usize| (0..depth).fold(json!(1), |inner, _| json!([inner]));
    let gives = |depth: usize| vec![Ended::Done(Output::Value(nested(depth)))];
    bench.script.will("fits", gives(RESULT_DEPTH_MAX));
    let id = bench.submit(json!([step("fits", "echo")])).await;
    assert_eq!(bench.ended(id).await.job.state.status, JobStatus::Completed);
    bench.script.will("deep", gives(RESULT_DEPTH_MAX + 1));
    let id = bench.submit(json!([step("deep", "pay")])).await;
    let kept = bench.see(id, |kept| kept.job.state.status == JobStatus::AwaitingApproval).await;
    let error = kept.executions[0].error.clone().unwrap_or_default();
    assert!(error.contains("result_too_deep"), "{error}");
}

/// Each is small enough; all of them are held for as long as their job is under way.
#[tokio::test]
async fn the_results_of_a_job_have_a_bound_together() {
    let bench = bench().await;
    let large = |bytes: usize| Ended::Done(Output::Value(json!("x".repeat(bytes))));
    let most = DOCUMENT_BYTES_MAX - 2;
    // Of 1 MB each: docs/jobs.md promises 32 MB.
    let full = 32;
    let mut steps = Vec::new();
    for number in 0..=full {
        let name = format!("s{number}");
        bench.script.will(&name, vec![large(most)]);
        let mut step = step(&name, "pay");
        // Whether they run together or one after the other.
        if number < 8 {
            step["parallel_group"] = json!("g");
        }
        steps.push(step);
    }
    let id = bench.submit(json!(steps)).await;
    let kept = bench.see(id, |kept| kept.job.state.status == JobStatus::AwaitingApproval).await;
    let done = kept.executions.iter().filter(|line| line.status == ExecutionStatus::Completed);
    assert_eq!(done.count(), full, "as many as fit");
    let last = kept.executions.iter().find(|line| line.step_id == format!("s{full}"));
    let error = last.and_then(|line| line.error.clone()).unwrap_or_default();
    assert!(error.contains("result_too_large"), "{error}");
}
