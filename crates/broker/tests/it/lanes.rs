//! A lane that dies takes what it holds along, and nothing else: the next session of each daemon
//! finds another one, and what the old sessions still have under way overtakes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use semel_broker::accept::Verdict;
use semel_broker::hub::Hub;
use semel_broker::life::StoreLife;
use semel_broker::limiter::Limiter;
use semel_broker::pipeline::{Answer, Pipeline};
use semel_core::clock::{Clock, UnixMs};
use semel_testkit::clock::SimClock;

use crate::support::{self, NOW};

const TOPIC: (&str, &str) = ("topic", "builds");

/// A clock that breaks whoever looks at it next.
struct Tripwire {
    clock: SimClock,
    armed: AtomicBool,
}

impl Clock for Tripwire {
    fn wall(&self) -> UnixMs {
        assert!(!self.armed.swap(false, Ordering::SeqCst), "on purpose");
        self.clock.wall()
    }

    fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_that_died_is_replaced_and_nothing_overtakes_what_it_held() {
    let mut f = support::postgres().await;
    let (clock, armed) = (SimClock::at_ms(NOW.0), AtomicBool::new(false));
    let wire = Arc::new(Tripwire { clock: clock.clone(), armed });
    let limiter = Limiter::memory(Arc::new(clock));
    let life = StoreLife::new(f.store.store_epoch().await.unwrap());
    let shared: Arc<dyn Clock> = Arc::clone(&wire) as Arc<dyn Clock>;
    let hub = Arc::new(Hub::default());
    let pipeline = Pipeline::new(f.store.clone(), life, limiter, shared, hub);
    let mesh = Arc::new(f.store.mesh_find("test").await.unwrap().unwrap());
    let accepted = |answer| matches!(answer, Ok(Answer::Decided(Verdict::Accepted { .. })));
    let first = pipeline.submit(&mesh, f.item(0, "first", TOPIC, "hi"), NOW).await;
    assert!(accepted(first.await));
    wire.armed.store(true, Ordering::SeqCst);
    let lost = pipeline.submit(&mesh, f.item(0, "lost", TOPIC, "hi"), NOW).await;
    assert!(lost.await.is_err(), "nobody answers");
    let behind = pipeline.submit(&mesh, f.item(0, "behind", TOPIC, "hi"), NOW).await;
    assert!(behind.await.is_err(), "it would overtake");
    assert_eq!(f.look_up(0, &["lost", "behind"]).await, [None, None]);
    f.sessions[0] = f.hello(0).await;
    for id in ["lost", "behind"] {
        let again = pipeline.submit(&mesh, f.item(0, id, TOPIC, "hi"), NOW).await;
        assert!(accepted(again.await), "{id}");
    }
}
