//! Requests in words, with a planner and a validator that say what the test wants (jobs.md §3, §9).

use std::sync::{Arc, Mutex, PoisonError};

use semel_jobs::engine::Asked;
use semel_jobs::gear::{Failure, FailureClass, Later};
use semel_jobs::life::JobStatus;
use semel_jobs::plan::Plan;
use semel_jobs::planner::{PlanAsked, Planned, Planner, Validator};
use semel_jobs::policy::Verdict;
use semel_jobs::view;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::support::{Bench, PATIENCE, Setup, failed, step};

type Says = Box<dyn Fn(usize, &PlanAsked) -> Result<Planned, Failure> + Send + Sync>;

/// Says what it is told to by the number of the question, from 0.
struct Scripted {
    says: Says,
    asked: Mutex<Vec<PlanAsked>>,
}

impl Scripted {
    fn new(
        says: impl Fn(usize, &PlanAsked) -> Result<Planned, Failure> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { says: Box::new(says), asked: Mutex::default() })
    }

    fn asked(&self) -> Vec<PlanAsked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Planner for Scripted {
    fn plan(&self, asked: PlanAsked) -> Later<'_, Result<Planned, Failure>> {
        let mut all = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = (self.says)(all.len(), &asked);
        all.push(asked);
        Box::pin(async move { answer })
    }
}

#[expect(clippy::unnecessary_wraps, reason = "it is what a planner says")]
fn plan(steps: Value) -> Result<Planned, Failure> {
    let plan = Plan::read(&json!({ "steps": steps })).expect("a plan");
    Ok(Planned::Plan(plan))
}

async fn with(planner: &Arc<Scripted>) -> Bench {
    let planner: Arc<dyn Planner> = Arc::<Scripted>::clone(planner);
    Setup { planner: Some(planner), ..Setup::default() }.open().await
}

/// Judges, and counts how often it was asked.
struct Judge {
    verdict: Verdict,
    asked: Mutex<usize>,
}

impl Validator for Judge {
    fn judge<'a>(&'a self, _: &'a Plan) -> Later<'a, Result<(Verdict, String), Failure>> {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Box::pin(async { Ok((self.verdict, "it is told so".to_owned())) })
    }
}

#[tokio::test]
async fn a_request_is_planned_or_answered_or_lost() {
    let planner = Scripted::new(|_, asked| match asked.request.as_str() {
        "do" => plan(json!([step("a", "echo")])),
        "say" => Ok(Planned::Answer(json!("42"))),
        _ => Err(Failure::new(FailureClass::Transient, "planner_unreachable", "nobody")),
    });
    let bench = with(&planner).await;
    let id = bench.wish("do").await;
    assert_eq!(bench.ended(id).await.job.state.status, JobStatus::Completed);
    let id = bench.wish("say").await;
    assert_eq!(view::whole(&bench.ended(id).await)["result"], "42");
    let id = bench.wish("lost").await;
    let state = bench.ended(id).await.job.state;
    assert_eq!(
        (state.status, state.failure_class),
        (JobStatus::Failed, Some(FailureClass::Transient))
    );
    assert_eq!(bench.script.ran(), ["a"]);
}

#[tokio::test]
async fn a_plan_is_made_better_three_times_and_the_same_one_only_once() {
    let planner = Scripted::new(|number, _| {
        plan(json!([{"id": format!("s{number}"), "gear": "nobody", "action": "knows"}]))
    });
    let bench = with(&planner).await;
    let id = bench.wish("anything").await;
    let state = bench.ended(id).await.job.state;
    assert_eq!((state.status, state.revision_count), (JobStatus::Failed, 3));
    let asked = planner.asked();
    assert_eq!(asked.len(), 4);
    assert!(asked[0].revise.is_none() && asked[1..].iter().all(|asked| asked.revise.is_some()));
    let planner = Scripted::new(|_, _| plan(json!([{"id": "s", "gear": "no", "action": "one"}])));
    let bench = with(&planner).await;
    let id = bench.wish("anything").await;
    let job = view::whole(&bench.ended(id).await);
    assert_eq!((&job["error"]["code"], planner.asked().len()), (&json!("plan_repeated"), 2));
}

#[tokio::test]
async fn what_fails_for_good_is_planned_anew_twice_and_what_was_done_stays_done() {
    let planner = Scripted::new(|number, _| {
        plan(json!([step("ok", "echo"), step(&format!("bad{number}"), "echo")]))
    });
    let bench = with(&planner).await;
    for number in 0..5 {
        bench.script.will(&format!("bad{number}"), vec![failed(FailureClass::UserError)]);
    }
    let id = bench.wish("anything").await;
    let state = bench.ended(id).await.job.state;
    assert_eq!((state.status, state.replan_count), (JobStatus::Failed, 2));
    assert_eq!(bench.script.ran(), ["ok", "bad0", "bad1", "bad2"]);
    let so_far = planner.asked()[1].so_far.clone().expect("what has happened");
    assert_eq!(so_far.completed[0].0, "ok");
    assert_eq!(so_far.failed[0].0, "bad0");
}

#[tokio::test]
async fn a_new_plan_may_try_what_the_old_one_had_given_up() {
    let planner = Scripted::new(|_, _| plan(json!([step("x", "echo")])));
    let bench = with(&planner).await;
    bench.script.will("x", vec![failed(FailureClass::UserError)]);
    let id = bench.wish("anything").await;
    assert_eq!(bench.ended(id).await.job.state.status, JobStatus::Completed);
    assert_eq!(bench.script.ran(), ["x", "x"]);
    assert_eq!(planner.asked().len(), 2);
}

#[tokio::test]
async fn a_name_is_not_used_for_other_work() {
    let planner = Scripted::new(|number, _| match number {
        0 => plan(json!([step("a", "echo"), step("bad", "echo")])),
        1 => plan(json!([{"id": "a", "gear": "test", "action": "echo", "params": {"n": 2}}])),
        _ => plan(json!([step("other", "echo")])),
    });
    let bench = with(&planner).await;
    bench.script.will("bad", vec![failed(FailureClass::UserError)]);
    let id = bench.wish("anything").await;
    assert_eq!(bench.ended(id).await.job.state.status, JobStatus::Completed);
    assert_eq!(bench.script.ran(), ["a", "bad", "other"]);
    let told = planner.asked()[2].revise.clone().expect("why it will not do");
    assert!(told.contains("other content"), "{told}");
}

#[tokio::test]
async fn decisions_of_models_are_bounded() {
    // Three that will not do, then one that does and fails: as often as it is allowed.
    let planner = Scripted::new(|number, _| match number % 4 {
        3 => plan(json!([step(&format!("bad{number}"), "echo")])),
        _ => plan(json!([{"id": format!("s{number}"), "gear": "no", "action": "one"}])),
    });
    let judge = Arc::new(Judge { verdict: Verdict::Approve, asked: Mutex::default() });
    let (validator, planning): (Arc<dyn Validator>, Arc<dyn Planner>) =
        (Arc::<Judge>::clone(&judge), Arc::<Scripted>::clone(&planner));
    let setup = Setup { planner: Some(planning), validator: Some(validator), ..Setup::default() };
    let bench = setup.open().await;
    for number in [3, 7, 11] {
        bench.script.will(&format!("bad{number}"), vec![failed(FailureClass::UserError)]);
    }
    let id = bench.wish("anything").await;
    assert_eq!(bench.ended(id).await.job.state.status, JobStatus::Failed);
    assert_eq!(bench.script.ran(), ["bad3", "bad7", "bad11"]);
    let judged = *judge.asked.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(planner.asked().len() + judged, 24);
}

#[tokio::test]
async fn a_validator_makes_a_verdict_stricter_and_never_milder() {
    for (verdict, action, status) in [
        (Verdict::Reject, "echo", JobStatus::Failed),
        (Verdict::Ask, "echo", JobStatus::AwaitingApproval),
        (Verdict::Approve, "drop", JobStatus::AwaitingApproval),
        (Verdict::Approve, "echo", JobStatus::Completed),
    ] {
        let validator: Arc<dyn Validator> = Arc::new(Judge { verdict, asked: Mutex::default() });
        let bench = Setup { validator: Some(validator), ..Setup::default() }.open().await;
        let id = bench.submit(json!([step("s", action)])).await;
        let state = bench.until(id, status).await.job.state;
        let rejected = (verdict == Verdict::Reject).then_some(FailureClass::PlanRejected);
        assert_eq!(state.failure_class, rejected);
        assert_eq!(bench.script.ran().is_empty(), status != JobStatus::Completed);
    }
}

/// Thinks until nobody waits for it.
struct Thinker(watch::Sender<&'static str>);

impl Planner for Thinker {
    fn plan(&self, _: PlanAsked) -> Later<'_, Result<Planned, Failure>> {
        struct Dropped<'a>(&'a watch::Sender<&'static str>);
        impl Drop for Dropped<'_> {
            fn drop(&mut self) {
                self.0.send_replace("over");
            }
        }
        Box::pin(async {
            let _told = Dropped(&self.0);
            self.0.send_replace("thinking");
            std::future::pending().await
        })
    }
}

#[tokio::test]
async fn a_cancel_ends_the_planning_at_once() {
    let (said, mut heard) = watch::channel("nothing");
    let planner: Arc<dyn Planner> = Arc::new(Thinker(said));
    let bench = Setup { planner: Some(planner), ..Setup::default() }.open().await;
    let id = bench.wish("think").await;
    let _ = tokio::time::timeout(PATIENCE, heard.wait_for(|word| *word == "thinking")).await;
    bench.engine.cancel(id, "enough").await.expect("cancelled");
    let over = tokio::time::timeout(PATIENCE, heard.wait_for(|word| *word == "over")).await;
    assert!(over.is_ok(), "the planner goes on");
    assert_eq!(bench.ended(id).await.job.state.status, JobStatus::Cancelled);
}

#[tokio::test]
async fn equal_requests_are_one_while_the_first_is_under_way() {
    let planner = Scripted::new(|_, _| plan(json!([step("h", "hold")])));
    let bench = with(&planner).await;
    let ask = |request: &str, user: &str, key: Option<&str>| Asked {
        request: Some(request.to_owned()),
        user: user.to_owned(),
        key: key.map(str::to_owned),
        ..Asked::default()
    };
    let submit = |asked: Asked| bench.engine.submit(asked);
    let first = submit(ask("do it", "me", None)).await.expect("a job");
    let again = submit(ask("  do   it ", "me", None)).await.expect("the same job");
    assert_eq!((again.id, again.deduplicated), (first.id, true));
    for other in [ask("do it", "you", None), ask("do it", "me", Some("k")), ask("no", "me", None)] {
        assert!(!submit(other.clone()).await.expect("another").deduplicated, "{other:?}");
    }
    bench.script.gate.send_replace(true);
    bench.ended(first.id).await;
    let later = submit(ask("do it", "me", None)).await.expect("a new job");
    assert!(!later.deduplicated, "the first has ended");
}

/// Five transient failures in jobs that carry their plans open the breaker of `test.hold`.
async fn without_hold(planner: &Arc<Scripted>) -> Bench {
    let bench = with(planner).await;
    bench.script.will("s", vec![failed(FailureClass::Transient); 5]);
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(bench.submit(json!([step("s", "hold")])).await);
    }
    for id in ids {
        bench.see(id, |kept| kept.executions.iter().any(|line| line.error.is_some())).await;
        bench.engine.cancel(id, "enough").await.expect("cancelled");
    }
    bench
}

#[tokio::test]
async fn an_open_breaker_is_gone_around_if_there_is_another_way() {
    let planner = Scripted::new(|number, _| match number {
        0 => plan(json!([step("first", "echo"), step("closed", "hold")])),
        _ => plan(json!([step("first", "echo"), step("open", "echo")])),
    });
    let bench = without_hold(&planner).await;
    let id = bench.wish("do").await;
    let kept = bench.ended(id).await;
    assert_eq!(kept.job.state.status, JobStatus::Completed, "{kept:#?}");
    assert_eq!(bench.script.ran()[5..], ["first", "open"], "what was done is not done again");
    let asked = planner.asked();
    assert_eq!(asked.len(), 2);
    assert!(asked[1].revise.as_ref().is_some_and(|why| why.contains("test.hold")), "{asked:#?}");
    let so_far = asked[1].so_far.as_ref().expect("what has happened");
    assert_eq!(so_far.completed[0].0, "first");
    assert_eq!(kept.job.state.replan_count, 1);
}

#[tokio::test]
async fn a_job_without_another_way_is_held_and_asks_no_more_than_it_may() {
    // The same, one that is no better, and nothing at all.
    let planner = Scripted::new(|number, _| match number {
        0 => plan(json!([step("closed", "hold")])),
        1 => plan(json!([step("also", "hold")])),
        _ => Err(Failure::new(FailureClass::Transient, "planner_unreachable", "nobody")),
    });
    let bench = without_hold(&planner).await;
    let id = bench.wish("do").await;
    let kept = bench.see(id, |kept| kept.job.state.held_by.is_some()).await;
    let state = &kept.job.state;
    assert_eq!((state.status, state.replan_count), (JobStatus::Pending, 1));
    // A person closes the breaker, and it goes on with the plan that it had.
    bench.script.gate.send_replace(true);
    bench.engine.breaker_close("test.hold").await.expect("closed");
    let kept = bench.ended(id).await;
    assert_eq!(kept.job.state.status, JobStatus::Completed, "{kept:#?}");
    assert_eq!(bench.script.ran()[5..], ["closed"]);
    assert_eq!(planner.asked().len(), 2);
}
