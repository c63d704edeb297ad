//! Breakers through the engine, with a clock that goes on when the test says so (jobs.md §7).

use std::sync::Arc;
use std::time::Duration;

use semel_core::id::JobId;
use semel_jobs::breaker::BreakerState;
use semel_jobs::gear::FailureClass;
use semel_jobs::life::JobStatus;
use semel_testkit::clock::SimClock;
use serde_json::json;

use crate::support::{Bench, Setup, failed, step};

async fn on(clock: &SimClock) -> Bench {
    Setup { clock: Arc::new(clock.clone()), ..Setup::default() }.open().await
}

async fn state(bench: &Bench, action: &str) -> Option<(BreakerState, String)> {
    let rows = bench.engine.store().breakers().await.expect("breakers");
    let row = rows.into_iter().find(|row| row.action == action);
    row.map(|row| (row.breaker.state, row.breaker.window))
}

/// Opens the breaker of `test.hold` by five failures; gives the jobs that wait to try again.
async fn opened(bench: &Bench) -> Vec<JobId> {
    bench.script.will("s", vec![failed(FailureClass::Transient); 5]);
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(bench.submit(json!([step("s", "hold")])).await);
    }
    for id in &ids {
        bench.see(*id, |kept| kept.job.state.worker.is_none()).await;
    }
    bench.script.until_ran(5).await;
    for id in &ids {
        bench.see(*id, |kept| kept.executions.iter().all(|line| line.error.is_some())).await;
    }
    assert_eq!(state(bench, "test.hold").await.map(|(state, _)| state), Some(BreakerState::Open));
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn half_open_lets_exactly_one_through_and_its_success_lets_all_go_on() {
    let clock = SimClock::at_ms(1_700_000_000_000);
    let bench = on(&clock).await;
    let mut ids = opened(&bench).await;
    for _ in 0..16 {
        ids.push(bench.submit(json!([step("s", "hold")])).await);
    }
    for id in &ids[5..] {
        let kept = bench.see(*id, |kept| kept.job.state.held_by.is_some()).await;
        assert_eq!(
            kept.job.state.status,
            JobStatus::Pending,
            "a state of the job, no skipped step"
        );
    }
    clock.advance(Duration::from_secs(29));
    for id in &ids {
        bench.see(*id, |kept| kept.job.state.held_by.is_some()).await;
    }
    assert_eq!(bench.script.ran().len(), 5);
    clock.advance(Duration::from_secs(2));
    bench.script.until_ran(6).await;
    // Everybody else has asked, too, and was told to wait for the probe.
    let now = bench.engine.now();
    let mut probes = Vec::new();
    for id in &ids {
        let kept = bench
            .see(*id, |kept| {
                let state = &kept.job.state;
                let started = kept.executions.iter().any(|line| line.error.is_none());
                started || (state.held_by.is_some() && state.due_at.is_some_and(|at| at > now))
            })
            .await;
        probes.extend((kept.job.state.held_by.is_none()).then_some(*id));
    }
    assert_eq!((probes.len(), bench.script.ran().len()), (1, 6));
    bench.script.gate.send_replace(true);
    for id in ids {
        assert_eq!(bench.ended(id).await.job.state.status, JobStatus::Completed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_asks_twice_can_be_the_probe() {
    let clock = SimClock::at_ms(1_700_000_000_000);
    let bench = on(&clock).await;
    let ids = opened(&bench).await;
    for id in ids {
        bench.engine.cancel(id, "enough").await.expect("cancelled");
    }
    let group = |id: &str| {
        let mut step = step(id, "hold");
        step["parallel_group"] = json!("g");
        step
    };
    let id = bench.submit(json!([group("x"), group("y")])).await;
    bench.see(id, |kept| kept.job.state.held_by.is_some()).await;
    bench.script.gate.send_replace(true);
    clock.advance(Duration::from_secs(31));
    assert_eq!(bench.ended(id).await.job.state.status, JobStatus::Completed);
}

#[tokio::test]
async fn what_we_stopped_ourselves_says_nothing_of_an_action() {
    let bench = crate::support::bench().await;
    bench.script.will("bad", vec![failed(FailureClass::UserError)]);
    let group = |id: &str, action: &str| {
        let mut step = step(id, action);
        step["parallel_group"] = json!("g");
        step
    };
    let siblings = (0..6).map(|number| group(&format!("h{number}"), "hang"));
    let steps: Vec<_> = siblings.chain([group("bad", "echo")]).collect();
    let id = bench.submit(json!(steps)).await;
    assert_eq!(bench.ended(id).await.job.state.status, JobStatus::Failed);
    let window = state(&bench, "test.hang").await.map(|(_, window)| window).unwrap_or_default();
    assert!(!window.contains('f'), "{window}");
}

#[tokio::test]
async fn a_definite_no_neither_retries_nor_trips() {
    let bench = crate::support::bench().await;
    bench.script.will("no", vec![failed(FailureClass::UserError); 10]);
    for _ in 0..10 {
        let id = bench.submit(json!([step("no", "echo")])).await;
        assert_eq!(bench.ended(id).await.job.state.status, JobStatus::Failed);
    }
    assert_eq!(bench.script.ran().len(), 10);
    let closed = state(&bench, "test.echo").await;
    assert!(closed.is_none_or(|(state, _)| state == BreakerState::Closed));
}

/// A probe that crashes has shown nothing, and neither has one that was refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_probe_that_crashes_leaves_it_open() {
    let clock = SimClock::at_ms(1_700_000_000_000);
    let bench = on(&clock).await;
    for id in opened(&bench).await {
        bench.engine.cancel(id, "enough").await.expect("cancelled");
    }
    let refused = failed(FailureClass::UserError);
    bench.script.will("probe", vec![failed(FailureClass::GearBug), refused]);
    for wait in [31, 61] {
        let id = bench.submit(json!([step("probe", "hold")])).await;
        bench.see(id, |kept| kept.job.state.held_by.is_some()).await;
        clock.advance(Duration::from_secs(wait));
        assert_eq!(bench.ended(id).await.job.state.status, JobStatus::Failed);
        let open = state(&bench, "test.hold").await.map(|(state, _)| state);
        assert_eq!(open, Some(BreakerState::Open), "after {wait} s");
    }
}

/// One host that is down holds nothing that goes elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn each_host_has_a_breaker_of_its_own() {
    let clock = SimClock::at_ms(1_700_000_000_000);
    let bench = on(&clock).await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let down = listener.local_addr().expect("an address").port();
    drop(listener);
    let up = crate::artifacts::server().await;
    let fetch = |port: u16| {
        let url = format!("http://127.0.0.1:{port}/a");
        json!([{"id": "get", "gear": "http", "action": "request", "params": {"url": url}}])
    };
    let name = format!("http.request 127.0.0.1:{down}");
    for _ in 0..5 {
        let id = bench.submit(fetch(down)).await;
        bench.see(id, |kept| kept.executions.iter().any(|line| line.error.is_some())).await;
    }
    assert_eq!(state(&bench, &name).await.map(|(state, _)| state), Some(BreakerState::Open));
    let held = bench.submit(fetch(down)).await;
    let held = bench.see(held, |kept| kept.job.state.held_by.is_some()).await;
    assert_eq!(held.job.state.held_by, Some(name));
    let id = bench.submit(fetch(up)).await;
    assert_eq!(bench.ended(id).await.job.state.status, JobStatus::Completed);
}
