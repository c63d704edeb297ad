//! Two brokers on one database: what is sent through one is pushed by the other at once, also
//! after the connection that carries the hints was lost.

use semel_broker::hints::{HintCounts, Hints};
use semel_broker::hub::Hub;
use semel_broker::limits::REDELIVER_AFTER;
use semel_core::id::UuidId;
use semel_wire::frame::{FromBroker, FromDaemon, Ping};
use tokio::time::Instant;

use crate::client::{Daemon, Served, send_frame, serve_as};
use crate::support;

const TOPIC: (&str, &str) = ("topic", "builds");

/// Connected once, and nothing else.
const FRESH: HintCounts = HintCounts { sent: 0, received: 0, connects: 1, losses: 0, polls: 0 };

/// Ends the connections that listen in this database, and no other.
const KILL_LISTENERS: &str = "
    SELECT pg_terminate_backend(pid)
      FROM pg_stat_activity
     WHERE datname = current_database()
       AND application_name = 'semel listener'";

fn counts(served: &Served) -> HintCounts {
    served.hints.as_ref().unwrap().counts()
}

/// Waits until the broker's counts are as wanted.
async fn until(served: &Served, wanted: impl Fn(HintCounts) -> bool) {
    while !wanted(counts(served)) {
        tokio::task::yield_now().await;
    }
}

/// Sends through one daemon; the next push of the other is that.
async fn passes(sender: &mut Daemon, receiver: &mut Daemon, id: &str) {
    assert_eq!(sender.send(send_frame(id, TOPIC, id)).await.status, 201);
    let pushed = receiver.pushed().await.deliveries;
    assert_eq!(pushed.len(), 1);
    assert_eq!(pushed[0].body, id.as_bytes());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_of_one_broker_is_pushed_by_the_other() {
    let began = Instant::now();
    let fixture = support::postgres().await;
    let (two, deaf) = (fixture.elsewhere().await, fixture.elsewhere().await);
    let one = serve_as(fixture, 1, true).await;
    let two = serve_as(two, 2, true).await;
    let deaf = serve_as(deaf, 3, false).await;
    until(&one, |counts| counts.connects == 1).await;
    until(&two, |counts| counts.connects == 1).await;
    // Members 0 and 1 subscribe to the topic, each at another broker.
    let mut sender = Daemon::welcomed(one.address, 0).await;
    assert_eq!(sender.send(send_frame("first", TOPIC, "first")).await.status, 201);
    until(&two, |counts| counts.received == 1).await;
    let mut receiver = Daemon::welcomed(two.address, 1).await;
    // Once this has come, the connection looks again only when it is woken: nothing is
    // acknowledged here, and the timer is far away.
    assert_eq!(receiver.pushed().await.deliveries[0].body, b"first");
    for received in 2..=4 {
        passes(&mut sender, &mut receiver, &format!("hinted {received}")).await;
        assert_eq!(counts(&two), HintCounts { received, ..FRESH }, "the hint and nothing else");
    }
    until(&one, |counts| counts == HintCounts { sent: 4, ..FRESH }).await;
    // And back: a broker ignores its own hints, not the other's.
    assert_eq!(receiver.send(send_frame("back", TOPIC, "back")).await.status, 201);
    until(&one, |counts| counts == HintCounts { sent: 4, received: 1, ..FRESH }).await;
    // A broker without hints does not know, and so the hint is what it takes.
    let mut receiver = Daemon::welcomed(deaf.address, 1).await;
    assert_eq!(receiver.pushed().await.deliveries[0].body, b"first");
    assert_eq!(sender.send(send_frame("unheard", TOPIC, "hi")).await.status, 201);
    until(&two, |counts| counts.received == 5).await;
    receiver.say(&FromDaemon::Ping(Ping { id: 1 })).await;
    assert!(matches!(receiver.next().await, Ok(FromBroker::Pong(_))));
    assert!(began.elapsed() < REDELIVER_AFTER, "a timer may have helped");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_listener_comes_back_and_catches_up() {
    let began = Instant::now();
    let fixture = support::postgres().await;
    let address = fixture.address.clone().unwrap();
    let two = fixture.elsewhere().await;
    let one = serve_as(fixture, 1, true).await;
    let two = serve_as(two, 2, true).await;
    until(&one, |counts| counts.connects == 1).await;
    until(&two, |counts| counts.connects == 1).await;
    let mut sender = Daemon::welcomed(one.address, 0).await;
    let mut receiver = Daemon::welcomed(two.address, 1).await;
    passes(&mut sender, &mut receiver, "before").await;
    let (client, connection) =
        tokio_postgres::connect(&address, tokio_postgres::NoTls).await.unwrap();
    drop(tokio::spawn(connection));
    for round in 1..=2 {
        // No hint is under way, so each is sent exactly once.
        until(&one, |counts| counts.sent == 2 * round - 1).await;
        assert_eq!(client.query(KILL_LISTENERS, &[]).await.unwrap().len(), 2);
        until(&one, |counts| counts.losses == round).await;
        until(&two, |counts| counts.losses == round).await;
        // Nobody can tell broker two of this one; it looks for itself once it listens again.
        passes(&mut sender, &mut receiver, &format!("meanwhile {round}")).await;
        until(&two, |counts| counts.connects == round + 1).await;
        // The hint that could not be sent is sent late.
        until(&one, |counts| counts.sent == 2 * round).await;
        let received = counts(&two).received;
        passes(&mut sender, &mut receiver, &format!("after {round}")).await;
        until(&two, |counts| counts.received > received).await;
    }
    assert_eq!(counts(&two).polls, 0);
    assert!(began.elapsed() < REDELIVER_AFTER, "a timer may have helped");
}

#[tokio::test]
async fn a_store_with_one_broker_has_no_hints() {
    let fixture = support::sqlite().await;
    let hub = std::sync::Arc::new(Hub::default());
    let hints = Hints::over(&fixture.store, UuidId::new(uuid::Uuid::nil()), hub);
    assert!(hints.unwrap().is_none());
}
