//! What `/metrics` says after what happened, to the last count.

use std::sync::Arc;
use std::time::Duration;

use semel_broker::housekeeping::{lag_once, night_once};
use semel_broker::hub::Hub;
use semel_broker::life::StoreLife;
use semel_broker::limiter::{Limiter, LimiterCounts};
use semel_broker::metrics::{Live, Metrics};
use semel_broker::pipeline::Pipeline;
use semel_core::clock::Clock;
use semel_core::id::BrokerMessageId;
use semel_testkit::clock::SimClock;
use uuid::Uuid;

use crate::answers::set_rate_limit;
use crate::client::{Daemon, Served, get, send_frame, serve};
use crate::support::{self, NOW};

const TOPIC: (&str, &str) = ("topic", "builds");

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_is_counted_once() {
    let served = serve(support::sqlite().await).await;
    set_rate_limit(&served, 3).await;
    let mut receiver = Daemon::welcomed(served.address, 1).await;
    let mut sender = Daemon::welcomed(served.address, 0).await;
    let elsewhere = ("topic", "nowhere");
    for (id, to, body, status) in [
        ("a", TOPIC, "hi", 201),
        ("b", TOPIC, "hi", 201),
        // Its unit is spent once.
        ("c", elsewhere, "hi", 404),
        ("c", elsewhere, "hi", 404),
        ("d", TOPIC, "hi", 429),
        ("a", TOPIC, "hi", 200),
        ("a", TOPIC, "ho", 409),
    ] {
        assert_eq!(sender.send(send_frame(id, to, body)).await.status, status, "{id}");
    }
    let mut seq = 0;
    while seq < 2 {
        seq = receiver.pushed().await.deliveries.last().unwrap().seq;
    }
    receiver.ack(seq).await;
    until(&served, "semel_broker_acks_total 2").await;
    // A topic's sender is a subscriber like any other.
    until(&served, "semel_broker_pushes_total 4").await;
    let text = scraped(&served).await;
    let mesh_id = served.fixture.mesh_id;
    for line in [
        r#"semel_broker_accepts_total{mesh="test",result="accepted"} 2"#,
        r#"semel_broker_accepts_total{mesh="test",result="duplicate"} 1"#,
        r#"semel_broker_accepts_total{mesh="test",result="reused"} 1"#,
        r#"semel_broker_accepts_total{mesh="test",result="refused"} 2"#,
        r#"semel_broker_accepts_total{mesh="test",result="rate_limited"} 1"#,
        r#"semel_broker_accepts_total{mesh="test",result="later"} 0"#,
        r#"semel_broker_accepts_total{mesh="test",result="closed"} 0"#,
        r#"semel_broker_dedupe_hits_total{phase="b0"} 2"#,
        r#"semel_broker_dedupe_hits_total{phase="b2"} 0"#,
        &format!(r#"semel_broker_dedupe_fingerprint_mismatch_total{{mesh_id="{mesh_id}"}} 1"#),
        "semel_broker_rate_limit_consumed_then_b2_rejected_total 1",
        r#"semel_broker_limiter_total{decision="allowed"} 3"#,
        r#"semel_broker_limiter_total{decision="free"} 1"#,
        r#"semel_broker_limiter_total{decision="denied"} 1"#,
        "semel_broker_limiter_fallback_total 0",
        // What came before the first that was told to wait, and that one.
        "semel_broker_batch_size_count 5",
        "semel_broker_commit_seconds_count 5",
        "semel_broker_connections 2",
        "# EOF",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    drop(receiver);
    until(&served, "semel_broker_connections 1").await;
    assert_eq!(served.hub.connections(), 1);
}

#[tokio::test]
async fn the_oldest_delivery_is_shown() {
    for fixture in [support::sqlite().await, support::postgres().await] {
        let (clock, metrics) = (SimClock::at_ms(NOW.0), Metrics::default());
        let shown = async |line: &str| {
            lag_once(&fixture.store, &clock, &metrics).await.unwrap();
            let text = encoded(&metrics);
            let line = format!("semel_broker_delivery_lag_seconds{{mesh=\"test\"}} {line}");
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        };
        shown("0").await;
        // To two members, the first of whom has it.
        fixture.accept(vec![fixture.item(0, "one", TOPIC, "hi")]).await;
        let recipient = fixture.members[0].as_uuid();
        fixture.done(recipient, 1).await;
        let mut later = fixture.item(0, "two", TOPIC, "hi");
        // An id begins with its time: a minute later.
        let id = later.broker_message_id.as_uuid().as_u128() + (60_000 << 80);
        later.broker_message_id = BrokerMessageId::new(Uuid::from_u128(id));
        fixture.accept(vec![later]).await;
        clock.advance(Duration::from_secs(90));
        shown("90").await;
        let recipient = fixture.members[1].as_uuid();
        fixture.done(recipient, 2).await;
        shown("30").await;
        let recipient = fixture.members[0].as_uuid();
        fixture.done(recipient, 2).await;
        shown("0").await;
    }
}

/// Both wait when their lane starts, so they share a batch: the second is found by the claim.
#[tokio::test]
async fn what_the_claim_finds_is_a_hit_too() {
    let fixture = support::sqlite().await;
    let clock: Arc<dyn Clock> = Arc::new(SimClock::at_ms(NOW.0));
    let limiter = Limiter::memory(Arc::clone(&clock));
    let hub = Arc::new(Hub::default());
    let life = StoreLife::new(fixture.store.store_epoch().await.unwrap());
    let pipeline = Pipeline::new(fixture.store.clone(), life, limiter, clock, hub);
    let mesh = Arc::new(fixture.store.mesh_find("test").await.unwrap().unwrap());
    let item = fixture.item(0, "one", TOPIC, "hi");
    let first = pipeline.submit(&mesh, item.clone(), NOW).await;
    let second = pipeline.submit(&mesh, item, NOW).await;
    assert!(first.await.is_ok() && second.await.is_ok());
    let text = encoded(pipeline.metrics());
    for line in [
        r#"semel_broker_dedupe_hits_total{phase="b0"} 0"#,
        r#"semel_broker_dedupe_hits_total{phase="b2"} 1"#,
        r#"semel_broker_accepts_total{mesh="test",result="accepted"} 1"#,
        r#"semel_broker_accepts_total{mesh="test",result="duplicate"} 1"#,
        "semel_broker_batch_size_sum 2.0",
        "semel_broker_batch_size_count 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_night_finds_is_shown() {
    let served = serve(support::sqlite().await).await;
    let mut daemon = Daemon::welcomed(served.address, 0).await;
    assert_eq!(daemon.send(send_frame("one", TOPIC, "hi")).await.status, 201);
    let metrics = Metrics::default();
    let shows = async |checks: u64, orphans: u64, violations: u64| {
        night_once(&served.fixture.store, served.clock.wall(), &metrics).await.unwrap();
        let text = encoded(&metrics);
        for line in [
            format!("semel_broker_dedupe_orphan_check_total {checks}"),
            format!(r#"semel_broker_dedupe_orphan_found{{mesh="test"}} {orphans}"#),
            format!("semel_broker_atomicity_violation_found {violations}"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    };
    shows(1, 0, 0).await;
    let file = semel_testkit::sqlite::open(served.fixture.folder().join("broker.db")).unwrap();
    file.busy_timeout(crate::client::PATIENCE).unwrap();
    file.execute("DELETE FROM client_message_dedupe", []).unwrap();
    shows(2, 1, 0).await;
    let dangling = "INSERT INTO mention_index (mesh_id, member_id, seq)
                    SELECT mesh_id, member_id, 1000 FROM member";
    assert_eq!(file.execute(dangling, []).unwrap(), 3);
    shows(3, 1, 3).await;
}

fn encoded(metrics: &Metrics) -> String {
    metrics
        .encode(&Live { connections: 0, unwritten: 0, limiter: LimiterCounts::default() })
        .unwrap()
}

pub(crate) async fn scraped(served: &Served) -> String {
    let (status, text) = get(served.address, "/metrics").await;
    assert_eq!(status, 200);
    text
}

/// Waits until a line is there: what follows a commit may lag behind its answer.
pub(crate) async fn until(served: &Served, line: &str) {
    for _ in 0..10_000 {
        if scraped(served).await.lines().any(|found| found == line) {
            return;
        }
    }
    panic!("{line} is not in\n{}", scraped(served).await);
}
