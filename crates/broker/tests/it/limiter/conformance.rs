//! What every limiter must do, whatever it counts in.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use semel_broker::limiter::Verdict::{self, Counted, Free};
use semel_broker::limiter::{LimitRequest, LimiterCounts};
use semel_testkit::conformance::{Case, conforms};

use super::{BOUND, Bench, LONG, is_denied, own, retry_after};

const CASES: &[Case<Bench>] = &[
    Case { name: "the limit is exact", run: |bench| Box::pin(exact(bench)) },
    Case { name: "a replay costs nothing", run: |bench| Box::pin(replay(bench)) },
    Case { name: "a denial changes nothing", run: |bench| Box::pin(denial(bench)) },
    Case { name: "the limit may change", run: |bench| Box::pin(other_limit(bench)) },
    Case { name: "names do not run together", run: |bench| Box::pin(names(bench)) },
    Case { name: "an id is any text", run: |bench| Box::pin(odd_ids(bench)) },
    Case { name: "room returns after the window", run: |bench| Box::pin(room_returns(bench)) },
    Case { name: "a replay is free for a whole window", run: |bench| Box::pin(edge(bench)) },
    Case { name: "each entry leaves by itself", run: |bench| Box::pin(slide(bench)) },
    Case { name: "same ids, two brokers", run: |bench| Box::pin(same_ids_race(bench)) },
    Case { name: "too many ids, two brokers", run: |bench| Box::pin(many_ids_race(bench)) },
];

/// What two clocks may differ by while a window passes.
const SLACK: Duration = Duration::from_millis(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_conforms() {
    conforms(CASES, async || Bench::memory()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_conforms() {
    conforms(CASES, async || Bench::redis()).await;
}

async fn exact(bench: &Bench) {
    for id in ["1", "2", "3", "4", "5"] {
        assert_eq!(bench.take("a", id, 5).await, Counted);
    }
    let wait = retry_after(bench.take("a", "6", 5).await);
    assert!(wait > Duration::ZERO && wait <= LONG, "{wait:?}");
    assert_eq!(bench.take("b", "6", 5).await, Counted, "another sender");
    let elsewhere = format!("{}other", bench.mesh);
    let request = LimitRequest { mesh: &elsewhere, ..bench.request("a", "6", 5) };
    assert_eq!(bench.ask(&request).await, Counted, "another mesh");
    assert_eq!(retry_after(bench.take("none", "1", 0).await), LONG);
    let counts = LimiterCounts { allowed: 7, denied: 2, ..LimiterCounts::default() };
    assert_eq!(bench.counts(), counts);
}

async fn replay(bench: &Bench) {
    let steps = [("x", Counted), ("x", Free), ("y", Counted), ("x", Free), ("z", Counted)];
    for (id, verdict) in steps {
        assert_eq!(bench.take("a", id, 3).await, verdict, "{id}");
    }
    assert!(is_denied(bench.take("a", "new", 3).await));
    for id in ["x", "y", "z"] {
        assert_eq!(bench.take("a", id, 3).await, Free, "{id}: full, but counted");
    }
    let counts = LimiterCounts { allowed: 3, free: 5, denied: 1, ..LimiterCounts::default() };
    assert_eq!(bench.counts(), counts);
}

async fn denial(bench: &Bench) {
    for id in ["x", "y"] {
        assert_eq!(bench.take("a", id, 2).await, Counted);
    }
    let mut last = LONG;
    for _ in 0..50 {
        let wait = retry_after(bench.take("a", "denied", 2).await);
        assert!(wait <= last, "asking moved the end from {last:?} to {wait:?}");
        last = wait;
    }
    for id in ["x", "y"] {
        assert_eq!(bench.take("a", id, 2).await, Free);
    }
    assert_eq!(bench.take("a", "denied", 3).await, Counted, "it was not counted before");
    assert!(is_denied(bench.take("a", "next", 3).await));
}

async fn other_limit(bench: &Bench) {
    for id in ["1", "2", "3", "4"] {
        assert_eq!(bench.take("a", id, 4).await, Counted);
    }
    assert!(is_denied(bench.take("a", "5", 2).await));
    assert_eq!(bench.take("a", "1", 2).await, Free);
    assert_eq!(bench.take("a", "1", 0).await, Free, "what was allowed stays allowed");
    assert_eq!(bench.take("a", "5", 5).await, Counted);
    assert!(is_denied(bench.take("a", "6", 5).await));
}

async fn names(bench: &Bench) {
    let longer = format!("{}:a", bench.mesh);
    let (one, other) = (bench.request("a:b", "x", 1), bench.request("b", "x", 1));
    assert_eq!(bench.ask(&one).await, Counted);
    assert_eq!(bench.ask(&LimitRequest { mesh: &longer, ..other }).await, Counted);
}

async fn odd_ids(bench: &Bench) {
    let long = "x".repeat(255);
    let ids = ["-inf", "+inf", "(1", "0", "1e3", "a b", "'", "\"\\", "{}", "é", &long];
    for verdict in [Counted, Free] {
        for id in ids {
            assert_eq!(bench.take("a", id, 100).await, verdict, "{id}");
        }
    }
}

async fn room_returns(bench: &Bench) {
    let window = Duration::from_millis(150);
    let request = |id| LimitRequest { window, ..bench.request("a", id, 1) };
    let start = bench.now();
    assert_eq!(bench.ask(&request("x")).await, Counted);
    let allowed = bench.until(&request("y"), |verdict| verdict == Counted).await;
    assert!(allowed + SLACK >= start + window, "after {:?}", allowed - start);

    // What a denial promises is not too early either; on a machine so slow that the window ends
    // before the question is asked, there is no denial to check.
    let asked = bench.now();
    if let Verdict::Denied { retry_after } = bench.ask(&request("z")).await {
        assert!(retry_after > Duration::ZERO && retry_after <= window, "{retry_after:?}");
        let allowed = bench.until(&request("z"), |verdict| verdict == Counted).await;
        assert!(allowed + SLACK >= asked + retry_after, "{retry_after:?}");
    }
}

/// A window in blocks of time has an edge somewhere in every stretch of its length.
async fn edge(bench: &Bench) {
    let window = Duration::from_millis(200);
    let request = LimitRequest { window, ..bench.request("a", "x", 1) };
    let start = bench.now();
    assert_eq!(bench.ask(&request).await, Counted);
    let again = bench.until(&request, |verdict| verdict != Free).await;
    assert!(again + SLACK >= start + window, "charged again after {:?}", again - start);
    assert_eq!(bench.counts().allowed, 2);
    assert_eq!(bench.counts().denied, 0);
}

/// Others keep coming, so the window is never empty and its key never expires; and it is asked for
/// all the time, which must not prolong its stay.
async fn slide(bench: &Bench) {
    let window = Duration::from_millis(100);
    let request = LimitRequest { window, ..bench.request("a", "x", u32::MAX) };
    let start = bench.now();
    assert_eq!(bench.ask(&request).await, Counted);
    let asking = async {
        for other in 0_u32.. {
            let other = format!("other {other}");
            let other = LimitRequest { client_message_id: &other, ..request };
            assert_eq!(bench.ask(&other).await, Counted);
            if bench.ask(&request).await == Counted {
                break;
            }
            bench.pass().await;
        }
    };
    tokio::time::timeout(BOUND, asking).await.expect("it leaves");
    let again = bench.now();
    assert!(again + SLACK >= start + window, "charged again after {:?}", again - start);
}

/// Both limiters ask for every one of `ids` ids at the same time; how often each verdict came.
async fn race(bench: &Bench, ids: [std::ops::Range<usize>; 2], limit: u32) -> [usize; 3] {
    let mut racers = tokio::task::JoinSet::new();
    for (limiter, ids) in bench.limiters.iter().zip(ids) {
        for id in ids {
            let (limiter, mesh) = (Arc::clone(limiter), bench.mesh.clone());
            racers.spawn(async move {
                let id = id.to_string();
                (own(&limiter, &super::request(&mesh, "a", &id, limit)).await, id)
            });
        }
    }
    let mut counted: BTreeMap<String, usize> = BTreeMap::new();
    let mut verdicts = [0; 3];
    for (verdict, id) in racers.join_all().await {
        match verdict {
            Counted => {
                verdicts[0] += 1;
                *counted.entry(id).or_default() += 1;
            }
            Free => verdicts[1] += 1,
            Verdict::Denied { .. } => verdicts[2] += 1,
        }
    }
    assert!(counted.values().all(|times| *times == 1), "charged twice: {counted:?}");
    verdicts
}

async fn same_ids_race(bench: &Bench) {
    assert_eq!(race(bench, [0..100, 0..100], 100).await, [100, 100, 0]);
    assert!(is_denied(bench.take("a", "one more", 100).await));
}

async fn many_ids_race(bench: &Bench) {
    assert_eq!(race(bench, [0..100, 100..200], 60).await, [60, 0, 140]);
}
