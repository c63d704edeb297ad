//! Every row of the broker's answers (mesh.md §7), through a real WebSocket, on both stores.

use semel_broker::store::Store;
use semel_core::clock::UnixMs;
use semel_wire::frame::SendResult;

use crate::client::{Daemon, Served, send_frame, serve};
use crate::support::{self, pubkey};

const TOPIC: (&str, &str) = ("topic", "builds");
const DAY_MS: i64 = 24 * 60 * 60 * 1000;

#[tokio::test(flavor = "multi_thread")]
async fn on_sqlite() {
    every_answer(serve(support::sqlite().await).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_postgres() {
    every_answer(serve(support::postgres().await).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limited_on_sqlite() {
    over_the_limit(serve(support::sqlite().await).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limited_on_postgres() {
    over_the_limit(serve(support::postgres().await).await).await;
}

fn code(result: &SendResult) -> (u16, &str) {
    (result.status, result.code.as_deref().unwrap_or(""))
}

async fn every_answer(served: Served) {
    let mut daemon = Daemon::welcomed(served.address, 0).await;

    let first = daemon.send(send_frame("one", TOPIC, "hi")).await;
    assert_eq!((first.status, first.duplicate), (201, Some(false)));
    assert_eq!(first.history_id, Some(1));
    let id = first.broker_message_id.expect("a name");

    let again = daemon.send(send_frame("one", TOPIC, "hi")).await;
    assert_eq!((again.status, again.duplicate), (200, Some(true)));
    assert_eq!((again.broker_message_id, again.history_id), (Some(id), Some(1)));
    assert_eq!(again.history_available, Some(true));
    assert!(again.first_seen_at.is_some());

    let other = daemon.send(send_frame("one", TOPIC, "ho")).await;
    assert_eq!(code(&other), (409, "idempotency_key_reused"));
    assert_eq!(other.conflict.as_deref(), Some("request_fingerprint_mismatch"));
    let held = send_frame("one", TOPIC, "hi").request_fingerprint.prefix();
    assert_eq!(other.broker_fingerprint_prefix.unwrap().to_string(), held);

    // The daemon's idea of the fingerprint is wrong: nothing is written under the id.
    let mut drifted = send_frame("drifted", TOPIC, "hi");
    drifted.request_fingerprint = send_frame("x", TOPIC, "ho").request_fingerprint;
    let conflict = daemon.send(drifted).await;
    assert_eq!(code(&conflict), (409, "idempotency_key_reused"));
    assert_eq!(daemon.send(send_frame("drifted", TOPIC, "hi")).await.status, 201);

    let nobody = pubkey(99);
    let refused = [
        (("topic", "nowhere"), (404, "topic_not_found")),
        (("dm", nobody.as_str()), (404, "recipient_not_found")),
        (("queue", "nowhere"), (404, "queue_not_found")),
    ];
    for (to, expected) in refused {
        assert_eq!(code(&daemon.send(send_frame("refused", to, "hi")).await), expected);
    }
    let large = daemon.send(send_frame("refused", TOPIC, &"x".repeat(65_537))).await;
    assert_eq!(code(&large), (413, "payload_too_large"));
    assert_eq!(daemon.send(send_frame("refused", TOPIC, "hi")).await.status, 201, "still free");

    let mut stranger = Daemon::welcomed(served.address, 2).await;
    let not_subscribed = stranger.send(send_frame("one", TOPIC, "hi")).await;
    assert_eq!(code(&not_subscribed), (403, "not_subscribed"));

    let mut old = send_frame("old", ("topic", "nowhere"), "hi");
    old.enqueued_at = UnixMs(old.enqueued_at.0 - 500 * DAY_MS);
    let judged = daemon.send(old).await;
    assert_eq!(code(&judged), (410, "key_too_old_to_judge"), "age comes before any refusal");
    let mut old = send_frame("one", TOPIC, "hi");
    old.enqueued_at = UnixMs(old.enqueued_at.0 - 500 * DAY_MS);
    assert_eq!(daemon.send(old).await.status, 200, "a known id is answered however old");
    let mut old = send_frame("one", TOPIC, "another request");
    old.enqueued_at = UnixMs(old.enqueued_at.0 - 500 * DAY_MS);
    let judged = daemon.send(old).await;
    assert_eq!(code(&judged), (410, "key_too_old_to_judge"), "it may have been accepted before");

    // Behind the store's back: it ends the sessions too, and then nothing is answered at all.
    let revoke = "UPDATE mesh.member SET status = 'revoked' WHERE name LIKE 'member 0%'";
    assert_eq!(served.fixture.plant(revoke).await, 1);
    let revoked = daemon.send(send_frame("late", TOPIC, "hi")).await;
    assert_eq!(code(&revoked), (403, "member_inactive"));
    let known = daemon.send(send_frame("one", TOPIC, "hi")).await;
    assert_eq!(known.status, 200, "what was accepted stays accepted");
}

async fn over_the_limit(served: Served) {
    set_rate_limit(&served, 3).await;
    let mut daemon = Daemon::welcomed(served.address, 0).await;
    for id in ["a", "b"] {
        assert_eq!(daemon.send(send_frame(id, TOPIC, "hi")).await.status, 201);
    }
    // Refused in the transaction: its unit is spent, and it costs no second one.
    for _ in 0..3 {
        let refused = daemon.send(send_frame("c", ("topic", "nowhere"), "hi")).await;
        assert_eq!(refused.status, 404);
    }
    let denied = daemon.send(send_frame("d", TOPIC, "hi")).await;
    assert_eq!(code(&denied), (429, "rate_limited"));
    assert!(denied.retry_after_ms.unwrap() >= 1);
    // A retry of what was committed is free of the limit, and a conflict is still a conflict.
    assert_eq!(daemon.send(send_frame("a", TOPIC, "hi")).await.status, 200);
    assert_eq!(daemon.send(send_frame("a", TOPIC, "ho")).await.status, 409);
    let wait = std::time::Duration::from_millis(denied.retry_after_ms.unwrap());
    served.clock.advance(wait);
    assert_eq!(daemon.send(send_frame("d", TOPIC, "hi")).await.status, 201);
}

pub(crate) async fn set_rate_limit(served: &Served, limit: i64) {
    match &served.fixture.store {
        Store::Sqlite(_) => {
            let path = served.fixture.folder().join("broker.db");
            let connection = semel_testkit::sqlite::open(path).unwrap();
            connection.execute("UPDATE mesh SET rate_limit = ?1", [limit]).unwrap();
        }
        Store::Postgres(_) => {
            let address = served.fixture.address.as_ref().unwrap();
            let (client, connection) =
                tokio_postgres::connect(address, tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            client.execute("UPDATE mesh.mesh SET rate_limit = $1", &[&limit]).await.unwrap();
        }
    }
}
