//! A broker speaks only for the life of the store in which it began, and a connection only while
//! it is its daemon's current one: what B0 and `resolve` would say otherwise is not said
//! (mesh.md §10, the model's rule `RestoreStopsBrokers`).

use semel_broker::limits::Timings;
use semel_wire::frame::{FromBroker, FromDaemon, Resolve, ResolveItem};

use crate::client::{Closed, Daemon, Served, send_frame, serve_timed};
use crate::sessions::QUICK;
use crate::support::{self, Fixture, NOW};

const TOPIC: (&str, &str) = ("topic", "builds");

/// Nothing is found out by waiting.
const NO_HEARTBEAT: Timings = Timings { heartbeat: std::time::Duration::from_secs(3600), ..QUICK };

async fn both() -> [Fixture; 2] {
    [support::sqlite().await, support::postgres().await]
}

fn resolve(id: &str) -> FromDaemon {
    let frame = send_frame(id, TOPIC, "hi");
    let item = ResolveItem {
        client_message_id: frame.client_message_id,
        request_fingerprint: frame.request_fingerprint,
        enqueued_at: NOW,
    };
    FromDaemon::Resolve(Resolve { request_id: 3, items: vec![item] })
}

/// A broker with a daemon that was told of one accept, without its heartbeats.
async fn accepted(fixture: Fixture) -> (Served, Daemon) {
    let served = serve_timed(fixture, 1, false, NO_HEARTBEAT).await;
    let mut daemon = Daemon::welcomed(served.address, 0).await;
    assert_eq!(daemon.send(send_frame("one", TOPIC, "hi")).await.status, 201);
    (served, daemon)
}

/// Pushes may come before the end; an answer may not.
async fn unanswered(daemon: &mut Daemon) -> Closed {
    loop {
        match daemon.next().await {
            Ok(FromBroker::Push(_)) => {}
            Ok(answer) => panic!("{answer:?}"),
            Err(closed) => return closed,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b0_answers_nothing_for_another_life_of_the_store() {
    for fixture in both().await {
        let (served, mut daemon) = accepted(fixture).await;
        served.fixture.store.store_renew("epoch-2").await.unwrap();
        // Known to the store, and still no duplicate of what this daemon believes to be there.
        daemon.say(&FromDaemon::Send(send_frame("one", TOPIC, "hi"))).await;
        let closed = unanswered(&mut daemon).await;
        assert!([1006, 1011].contains(&closed.code), "{closed:?}");
        let ended = served.stopped.await.unwrap();
        assert!(ended.unwrap_err().to_string().contains("restored"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn resolve_says_nothing_for_another_life_of_the_store() {
    for fixture in both().await {
        let (served, mut daemon) = accepted(fixture).await;
        served.fixture.store.store_renew("epoch-2").await.unwrap();
        daemon.say(&resolve("never-sent")).await;
        let closed = unanswered(&mut daemon).await;
        assert!([1006, 1011].contains(&closed.code), "{closed:?}");
        let ended = served.stopped.await.unwrap();
        assert!(ended.unwrap_err().to_string().contains("restored"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn resolve_over_a_replaced_connection_is_closed() {
    for fixture in both().await {
        let (served, mut daemon) = accepted(fixture).await;
        // Another broker has greeted the same daemon, and told nobody.
        served.fixture.hello(0).await;
        daemon.say(&resolve("never-sent")).await;
        assert_eq!(unanswered(&mut daemon).await.code, 4003);
    }
}
