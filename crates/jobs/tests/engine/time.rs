//! Time, with a clock that goes on when the test says so (jobs.md §6).

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use semel_core::clock::{Clock, SystemClock, UnixMs};
use semel_core::hex::Hex;
use semel_jobs::engine::{Answer, Asked};
use semel_jobs::gear::{Ended, Failure, FailureClass};
use semel_jobs::life::JobStatus;
use semel_jobs::view;
use semel_testkit::clock::SimClock;
use semel_testkit::servers;
use serde_json::json;

use crate::support::{Bench, PATIENCE, Setup, step};

async fn on(clock: &SimClock) -> Bench {
    Setup { clock: Arc::new(clock.clone()), ..Setup::default() }.open().await
}

fn talk(action: &str) -> Asked {
    let plan = json!({"steps": [step("s", action)]});
    let conversation = Some("talk".to_owned());
    Asked { plan: Some(plan), conversation, timeout_ms: Some(10_000), ..Asked::default() }
}

#[tokio::test]
async fn a_wait_for_another_attempt_ends_with_the_jobs_time() {
    let clock = SimClock::at_ms(1_700_000_000_000);
    let bench = on(&clock).await;
    let mut busy = Failure::new(FailureClass::Transient, "http_429", "come back later");
    busy.retry_after = Some(Duration::from_secs(3600));
    bench.script.will("s", vec![Ended::Failed(busy)]);
    let id = bench.take(talk("echo")).await;
    bench.script.until_ran(1).await;
    bench.see(id, |kept| kept.job.state.worker.is_none() && !kept.executions.is_empty()).await;
    clock.advance(Duration::from_secs(11));
    let state = bench.ended(id).await.job.state;
    assert_eq!(state.status, JobStatus::Failed);
    assert!(state.error.is_some_and(|error| error.contains("deadline_passed")));
    assert_eq!(bench.script.ran().len(), 1);
}

#[tokio::test]
async fn a_wait_of_the_other_side_is_kept() {
    let clock = SimClock::at_ms(1_700_000_000_000);
    let bench = on(&clock).await;
    let mut busy = Failure::new(FailureClass::Transient, "http_429", "come back later");
    busy.retry_after = Some(Duration::from_secs(5));
    bench.script.will("s", vec![Ended::Failed(busy)]);
    let id = bench.take(talk("echo")).await;
    let due = bench.see(id, |kept| {
        kept.job.state.worker.is_none() && kept.executions.iter().any(|line| line.error.is_some())
    });
    let due = due.await.job.state.due_at;
    assert_eq!(due, Some(bench.engine.now().saturating_add(Duration::from_secs(5))));
    clock.advance(Duration::from_secs(5));
    assert_eq!(bench.ended(id).await.job.state.status, JobStatus::Completed);
}

#[tokio::test]
async fn a_person_may_take_long_and_not_for_ever() {
    let clock = SimClock::at_ms(1_700_000_000_000);
    let bench = on(&clock).await;
    let (first, second) = (bench.take(talk("drop")).await, bench.take(talk("drop")).await);
    let third = bench.take(talk("echo")).await;
    let kept = bench.until(first, JobStatus::AwaitingApproval).await;
    clock.advance(Duration::from_secs(23 * 3600));
    let hash = Hex::parse(view::whole(&kept)["plan_hash"].as_str().expect("a hash")).expect("hex");
    bench.engine.approve(first, hash, Answer::Approve, "me").await.expect("in time");
    assert_eq!(bench.ended(first).await.job.state.status, JobStatus::Completed);
    bench.until(second, JobStatus::AwaitingApproval).await;
    clock.advance(Duration::from_secs(25 * 3600));
    assert_eq!(bench.ended(second).await.job.state.status, JobStatus::Cancelled);
    assert_eq!(bench.ended(third).await.job.state.status, JobStatus::Completed);
    assert_eq!(bench.script.ran(), ["s", "s"]);
}

/// Approvals use grants, of which each leaves a line: they are forgotten in the end, their use is
/// not.
#[tokio::test]
async fn the_registrar_beside_the_jobs_forgets_grants_that_are_over() {
    let clock = SimClock::at_ms(1_700_000_000_000);
    let bench = on(&clock).await;
    let id = bench.take(talk("drop")).await;
    let kept = bench.until(id, JobStatus::AwaitingApproval).await;
    let hash = Hex::parse(view::whole(&kept)["plan_hash"].as_str().expect("a hash")).expect("hex");
    bench.engine.approve(id, hash, Answer::Approve, "me").await.expect("approved");
    bench.until(id, JobStatus::Completed).await;
    let used = || {
        let tables = ["effect_key", "nonce_use", "registration"];
        tables.map(|table| bench.count(&format!("SELECT count(*) FROM {table}")))
    };
    assert_eq!((bench.count("SELECT count(*) FROM grant_issued"), used()), (1, [1; 3]));
    clock.advance(Duration::from_secs(366 * 24 * 60 * 60));
    let mut ticks = tokio::time::interval(Duration::from_millis(50));
    let swept = async {
        while bench.count("SELECT count(*) FROM grant_issued") > 0 {
            ticks.tick().await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, swept).await.is_ok(), "it was never swept");
    assert_eq!(used(), [1; 3]);
}

/// A clock that goes on each time somebody looks at it.
struct Restless(AtomicI64);

impl Clock for Restless {
    fn wall(&self) -> UnixMs {
        UnixMs(1_700_000_000_000 + self.0.fetch_add(1, Ordering::SeqCst))
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::SeqCst).unsigned_abs())
    }
}

/// A grant must not begin later than the use for which it is issued.
#[tokio::test]
async fn an_approval_counts_however_late_its_grant_is_issued() {
    let clock = Arc::new(Restless(AtomicI64::new(0)));
    let bench = Setup { clock, ..Setup::default() }.open().await;
    let id = bench.submit(json!([step("d", "drop")])).await;
    let kept = bench.until(id, JobStatus::AwaitingApproval).await;
    let hash = Hex::parse(view::whole(&kept)["plan_hash"].as_str().expect("a hash")).expect("hex");
    bench.engine.approve(id, hash, Answer::Approve, "me").await.expect("approved");
    bench.until(id, JobStatus::Completed).await;
}

/// A calendar that steps under a running engine ends no lease and no deadline: nobody takes a job
/// from itself, and no step runs twice.
#[tokio::test]
async fn a_step_of_the_calendar_takes_no_job_from_its_worker() {
    for step_ms in [20_000, -20_000, 3_600_000, -3_600_000, 31_536_000_000] {
        let clock = SimClock::at_ms(1_700_000_000_000);
        let bench = on(&clock).await;
        let id = bench.take(talk("hold")).await;
        bench.script.until_ran(1).await;
        let before = bench.see(id, |kept| kept.job.state.worker.is_some()).await.job.state;
        clock.step_wall_ms(step_ms);
        // Others come and go meanwhile, so that the engine claims again and again.
        for _ in 0..5 {
            let other = bench.submit(json!([step("other", "echo")])).await;
            assert_eq!(bench.ended(other).await.job.state.status, JobStatus::Completed);
        }
        let after = bench.engine.store().job(id).await.expect("a store").expect("a job").job.state;
        assert_eq!((after.fence, after.deaths), (before.fence, 0), "{step_ms}");
        bench.script.gate.send_replace(true);
        assert_eq!(bench.ended(id).await.job.state.status, JobStatus::Completed, "{step_ms}");
        let times = bench.script.ran().iter().filter(|ran| *ran == "s").count();
        assert_eq!(times, 1, "{step_ms}");
    }
}

/// What was to come after a pause comes after it, whatever the calendar says meanwhile.
#[tokio::test]
async fn a_pause_is_as_long_as_it_was_meant_to_be() {
    for step_ms in [3_600_000, -3_600_000] {
        let clock = SimClock::at_ms(1_700_000_000_000);
        let bench = on(&clock).await;
        let mut busy = Failure::new(FailureClass::Transient, "http_429", "come back later");
        busy.retry_after = Some(Duration::from_secs(5));
        bench.script.will("s", vec![Ended::Failed(busy)]);
        let id = bench.take(talk("echo")).await;
        bench.see(id, |kept| kept.executions.iter().any(|line| line.error.is_some())).await;
        clock.step_wall_ms(step_ms);
        let other = bench.submit(json!([step("other", "echo")])).await;
        bench.ended(other).await;
        assert_eq!(bench.script.ran(), ["s", "other"], "{step_ms}: it waits");
        clock.advance(Duration::from_secs(5));
        assert_eq!(bench.ended(id).await.job.state.status, JobStatus::Completed, "{step_ms}");
    }
}

/// Engines that share a database go by its clock: one whose own is hours or years ahead, or behind,
/// takes nothing from another.
#[tokio::test(flavor = "multi_thread")]
async fn a_calendar_that_is_wrong_takes_no_job_from_another_engine() {
    let address = servers::fresh_postgres().await;
    // Nobody is late because the machine is busy.
    let lease = Duration::from_secs(600);
    let right =
        Setup { postgres: Some(address.clone()), worker: "right", lease, ..Setup::default() };
    let right = right.open().await;
    let id = right.take(Asked { timeout_ms: None, ..talk("hold") }).await;
    right.script.until_ran(1).await;
    let before = right.see(id, |kept| kept.job.state.worker.is_some()).await.job.state;
    for off_ms in [3_600_000, -3_600_000, 31_536_000_000] {
        let clock = Arc::new(Off { clock: SystemClock::new(), ms: off_ms });
        let postgres = Some(address.clone());
        let wrong = Setup { clock, postgres, worker: "wrong", lease, ..Setup::default() };
        let wrong = wrong.open().await;
        // It claims and writes.
        for _ in 0..5 {
            let named = Some("named".to_owned());
            let plan = json!({"steps": [step("other", "echo")]});
            let other = Asked { plan: Some(plan), conversation: named, ..Asked::default() };
            let other = wrong.take(other).await;
            assert_eq!(wrong.ended(other).await.job.state.status, JobStatus::Completed);
        }
        wrong.engine.stop().await;
        let after = right.engine.store().job(id).await.expect("a store").expect("a job").job.state;
        assert_eq!((after.fence, after.deaths), (before.fence, 0), "{off_ms}");
    }
    right.script.gate.send_replace(true);
    assert_eq!(right.ended(id).await.job.state.status, JobStatus::Completed);
    let times = right.script.ran().iter().filter(|ran| *ran == "s").count();
    assert_eq!(times, 1);
}

/// The machine's clock, and a calendar that is off by this.
struct Off {
    clock: SystemClock,
    ms: i64,
}

impl Clock for Off {
    fn wall(&self) -> UnixMs {
        UnixMs(self.clock.wall().0 + self.ms)
    }

    fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }
}
