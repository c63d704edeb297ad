//! A server that refuses to begin or to commit (a cancelled query, a time-out after a pause): a
//! send is there with all of its effects, or not at all, and its connection spoils nothing after
//! it.

use semel_broker::accept::Verdict;
use semel_broker::store::{Report, Store};
use semel_testkit::proxy::Fault;

use crate::client::{Daemon, send_frame, serve};
use crate::support::{self, Fixture, NOW};

const TOPIC: (&str, &str) = ("topic", "builds");

async fn check(f: &Fixture) -> Report {
    let mesh = f.store.mesh_list().await.unwrap().remove(0);
    f.store.check(&mesh, NOW).await.unwrap()
}

/// What a daemon does: the same id again until there is an answer. Nothing else holds the id: the
/// send is accepted once, and its recipient has it.
#[tokio::test(flavor = "multi_thread")]
async fn a_send_whose_transaction_was_refused_to_begin_is_not_taken_for_known() {
    let mut f = support::postgres().await;
    let (proxy, store) = support::through_a_proxy(&f).await;
    f.store = store;
    let served = serve(f).await;
    let mut daemon = Daemon::welcomed(served.address, 0).await;
    assert_eq!(daemon.send(send_frame("first", TOPIC, "hi")).await.status, 201);
    proxy.fail_next("BEGIN", Fault::Spoil);
    let mut statuses = Vec::new();
    while !matches!(statuses.last(), Some(200 | 201)) {
        statuses.push(daemon.send(send_frame("second", TOPIC, "hi")).await.status);
    }
    assert_eq!(proxy.fired(), 1, "{statuses:?}");
    assert_eq!(served.fixture.waiting(1).await, [1, 2], "{statuses:?}");
    assert!(check(&served.fixture).await.is_clean());
}

/// The store alone, with more than one send.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_whose_transaction_was_refused_to_begin_leaves_nothing_behind() {
    let f = support::postgres().await;
    let (proxy, store) = support::through_a_proxy(&f).await;
    let warm = store.accept(&f.batch(vec![f.item(0, "warm", TOPIC, "hi")])).await.unwrap();
    assert!(matches!(warm.verdicts[0], Verdict::Accepted { .. }));
    for refused in 0..20 {
        let id = |n: u8| format!("{refused}-{n}");
        let items = (0..3).map(|n| f.item(0, &id(n), TOPIC, "hi")).collect();
        proxy.fail_next("BEGIN", Fault::Spoil);
        let batch = f.batch(items);
        let verdicts = match store.accept(&batch).await {
            Ok(done) => done.verdicts,
            Err(_) => f.store.accept(&batch).await.unwrap().verdicts,
        };
        assert!(verdicts.iter().all(|v| matches!(v, Verdict::Accepted { .. })), "{verdicts:?}");
    }
    assert_eq!(proxy.fired(), 20);
    assert_eq!(f.waiting(1).await.len(), 61);
    assert!(check(&f).await.is_clean());
}

/// An id whose row promises a message that does not exist: whoever retries gets its message
/// through, and only then is the id known.
async fn orphans(f: Fixture) {
    let accepted = f.accept_one(f.item(0, "whole", TOPIC, "hi")).await;
    assert!(matches!(accepted, Verdict::Accepted { .. }));
    let (mesh, sender) = (f.mesh_id, f.members[0]);
    let fingerprint = f.item(0, "x", TOPIC, "hi").fingerprint;
    let quoted = |id: uuid::Uuid| match f.store {
        Store::Sqlite(_) => format!("x'{}'", id.simple()),
        Store::Postgres(_) => format!("'{id}'"),
    };
    let print: String = fingerprint.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let print = match f.store {
        Store::Sqlite(_) => format!("x'{print}'"),
        Store::Postgres(_) => format!("'\\x{print}'"),
    };
    for id in ["retried", "altered", "misled"] {
        let planted = format!(
            "INSERT INTO mesh.client_message_dedupe
                    (mesh_id, sender_member_id, client_message_id, broker_message_id,
                     request_fingerprint, destination_kind, destination_ref, first_seen_at)
             VALUES ({}, {}, '{id}', {}, {print}, 'topic', 'builds', 1)",
            quoted(mesh.as_uuid()),
            quoted(sender.as_uuid()),
            quoted(uuid::Uuid::now_v7()),
        );
        assert_eq!(f.plant(&planted).await, 1);
    }
    assert_eq!(check(&f).await.dedupe_without_message, 3);
    let orphans = f.store.dedupe_orphans(f.mesh_id, 10).await.unwrap();
    let ids: Vec<&str> = orphans.iter().map(|(_, id)| id.as_str()).collect();
    assert_eq!(ids, ["altered", "misled", "retried"]);
    assert!(orphans.iter().all(|(member, _)| *member == sender));
    assert_eq!(f.look_up(0, &["retried", "whole"]).await.iter().flatten().count(), 1);

    let altered = f.accept_one(f.item(0, "altered", TOPIC, "another request")).await;
    assert!(matches!(altered, Verdict::Reused(_)), "it is not what took the id: {altered:?}");
    let misled = f.accept_one(f.item(2, "misled", TOPIC, "hi")).await;
    assert!(matches!(misled, Verdict::Refused(_)), "another sender's: {misled:?}");
    let items = vec![f.item(0, "retried", TOPIC, "hi"), f.item(0, "new", TOPIC, "hi")];
    let retried = items[0].broker_message_id;
    let verdicts = f.accept(items).await;
    assert_eq!(verdicts[0], Verdict::Accepted { broker_message_id: retried, history_id: 2 });
    assert!(matches!(verdicts[1], Verdict::Accepted { history_id: 3, .. }));
    assert_eq!(f.waiting(1).await, [1, 2, 3]);
    let again = f.accept_one(f.item(0, "retried", TOPIC, "hi")).await;
    let Verdict::Duplicate(held) = again else { panic!("it is known now: {again:?}") };
    assert_eq!((held.broker_message_id, held.history_id), (retried, Some(2)));
    assert_eq!(check(&f).await.dedupe_without_message, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_of_nothing_is_taken_over_by_its_retry_on_sqlite() {
    orphans(support::sqlite().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_of_nothing_is_taken_over_by_its_retry_on_postgres() {
    orphans(support::postgres().await).await;
}
