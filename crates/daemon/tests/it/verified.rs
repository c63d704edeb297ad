//! Bytes that were changed in a file after they were accepted are never shown as somebody's word:
//! they are set aside and told, and everything else goes on.

use semel_broker::store::Store;
use semel_core::clock::{Clock, SystemClock};
use semel_core::envelope::{Destination, DestinationKind, Envelope};
use semel_core::id::ClientMessageId;
use semel_core::outbox::OutboxStatus;
use semel_daemon::engine::Engine;
use semel_daemon::link::{Ask, Asked, LinkState};
use semel_daemon::outbox::NewSend;
use semel_daemon::store::aside::{AsideSource, NewAside};
use semel_daemon::store::inbox::Filter;
use semel_daemon::store::outbox::Draft;
use semel_wire::frame::FromBroker;

use crate::support::{Host, MESH, Mesh, arrived, dm, post, row, send, texts};

/// What somebody, or a disk, may do to a message in a table, and which message it is.
const CHANGES: [(&str, &str); 4] = [
    ("body", "body = CAST('forged' AS BLOB)"),
    ("meta", "meta = '{\"forged\":true}'"),
    ("reply", "reply_to_id = 'forged'"),
    ("text", "meta = CAST(x'ff' AS TEXT)"),
];

async fn done(engine: &Engine, id: &str) {
    row(engine, id, |row| row.status == OutboxStatus::Done).await;
}

async fn set_aside(mesh: &Mesh) -> u64 {
    let store: &Store = mesh.store();
    let found = store.mesh_find(MESH).await.unwrap().unwrap();
    store.check(&found, SystemClock::new().wall()).await.unwrap().delivery_set_aside
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_changed_in_the_brokers_file_is_not_pushed() {
    let mut mesh = Mesh::of(2).await;
    let (one, two) = (Host::new(0, mesh.url()), Host::new(1, mesh.url()));
    let sender = one.start().await;
    for (id, _) in CHANGES {
        send(&sender, dm(id, 1, "true")).await;
        let of_topic = format!("{id}-topic");
        send(&sender, post(&of_topic, "true")).await;
        done(&sender, &of_topic).await;
    }
    send(&sender, dm("last", 1, "the last")).await;
    done(&sender, "last").await;
    sender.stop().await;
    mesh.stop().await;
    for (id, change) in CHANGES {
        for (table, id) in
            [("message_queue", id.to_owned()), ("topic_message", format!("{id}-topic"))]
        {
            let sql = format!("UPDATE {table} SET {change} WHERE client_message_id = '{id}'");
            assert_eq!(mesh.plant(&sql), 1, "{sql}");
        }
    }
    mesh.start().await;
    let receiver = two.start().await;
    assert_eq!(texts(&arrived(&receiver, 1).await), ["the last"]);
    assert_eq!(set_aside(&mesh).await, 8, "for somebody to look at");
    // It does not come with history either, and what follows it does.
    receiver.stop().await;
    let again = Host::new(1, mesh.url());
    let receiver = again.start().await;
    assert_eq!(texts(&arrived(&receiver, 1).await), ["the last"]);
    let sender = one.start().await;
    send(&sender, dm("more", 1, "more")).await;
    assert_eq!(texts(&arrived(&receiver, 2).await), ["the last", "more"]);
    sender.stop().await;
    receiver.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_was_changed_is_given_to_nobody() {
    let mut mesh = Mesh::of(1).await;
    let host = Host::new(0, mesh.url());
    let engine = host.start().await;
    assert!(engine.api.queue_create("work").await.unwrap());
    for id in ["changed", "whole"] {
        let queue = Destination::new(DestinationKind::Queue, "work").unwrap();
        let envelope = Envelope::new(queue.clone(), id.as_bytes().to_vec()).unwrap();
        let new = NewSend {
            client_message_id: Some(ClientMessageId::parse(id).unwrap()),
            to_given: "work".to_owned(),
            resolved: Ok(queue),
            draft: Draft::of(&envelope),
        };
        send(&engine, new).await;
        done(&engine, id).await;
    }
    engine.stop().await;
    mesh.stop().await;
    let sql = "UPDATE message_queue SET body = CAST('forged!' AS BLOB) \
               WHERE client_message_id = 'changed'";
    assert_eq!(mesh.plant(sql), 1);
    mesh.start().await;
    let engine = host.start().await;
    crate::support::state(&engine, LinkState::Connected).await;
    let ask = Ask::QueueTake { queue: "work".to_owned(), max: 10, lease_ms: Some(60_000) };
    let Asked::Answered(FromBroker::QueueTaken(taken)) = engine.link.ask(ask).await else {
        panic!("no work");
    };
    let bodies: Vec<_> = taken.deliveries.iter().map(|it| it.body.clone()).collect();
    assert_eq!(bodies, [b"whole".to_vec()]);
    assert_eq!(set_aside(&mesh).await, 1, "at once, and not after many takes");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_changed_in_the_inbox_is_not_shown() {
    let mesh = Mesh::of(2).await;
    let (one, two) = (Host::new(0, mesh.url()), Host::new(1, mesh.url()));
    let (sender, receiver) = (one.start().await, two.start().await);
    let kinds = "sender_name = CAST(x'ff' AS TEXT)";
    let changes: Vec<_> = CHANGES.into_iter().chain([("name", kinds)]).collect();
    for (number, (id, _)) in changes.iter().enumerate() {
        send(&sender, dm(id, 1, &format!("true {number}"))).await;
        send(&sender, post(&format!("{id}-whole"), &format!("whole {number}"))).await;
    }
    arrived(&receiver, 2 * changes.len()).await;
    let whole: Vec<String> = (0..changes.len()).map(|number| format!("whole {number}")).collect();
    // Found by a list, by a search, or by a stream.
    for (number, (id, change)) in changes.iter().enumerate() {
        let sql = format!("UPDATE inbox SET {change} WHERE client_message_id = '{id}'");
        assert_eq!(two.plant("inbox.db", &sql), 1);
        match number % 3 {
            0 => {
                let left = 2 * changes.len() - number - 1;
                let all = receiver.inbox.list(Filter::default(), 100).await.unwrap();
                assert_eq!(all.len(), left, "{id}");
                // As long as it was asked to be.
                let page = receiver.inbox.list(Filter::default(), 3).await.unwrap();
                assert_eq!(page.len(), 3, "{id}");
            }
            1 => {
                let word = format!("{number}");
                let found = receiver.inbox.search(&word, 0, 10).await.unwrap();
                assert_eq!(texts(&found), [format!("whole {number}")], "{id}");
            }
            _ => {
                let events = receiver.inbox.events(0, 1000).await.unwrap();
                let news = events.iter().filter_map(|event| event.message.clone());
                let news: Vec<_> = news.collect();
                assert!(!texts(&news).contains(&format!("true {number}")), "{id}");
                assert!(!texts(&news).contains(&"forged".to_owned()), "{id}");
            }
        }
        assert_eq!(receiver.inbox.aside_count().await.unwrap(), number as u64 + 1, "{id}");
    }
    let all = receiver.inbox.list(Filter::default(), 100).await.unwrap();
    assert_eq!(texts(&all), whole);
    sender.stop().await;
    receiver.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_list_ends_at_a_row_that_cannot_be_read() {
    let mut mesh = Mesh::of(3).await;
    let host = Host::new(0, mesh.url());
    let engine = host.start().await;
    for number in 1..=3 {
        let (source, reason) = (AsideSource::Jobs, format!("reason {number}"));
        let frame = vec![number];
        engine.inbox.set_aside(NewAside { source, reason, seq: None, frame }).await.unwrap();
    }
    engine.outbox.peers_known().await.unwrap();
    // Nobody tells it again who is in the mesh.
    mesh.stop().await;
    crate::support::state(&engine, LinkState::Waiting).await;
    let sql = "UPDATE set_aside SET reason = CAST(x'ff' AS TEXT) WHERE id = 2";
    assert_eq!(host.plant("inbox.db", sql), 1);
    let sql = "UPDATE peer SET name = CAST(x'ff' AS TEXT) WHERE name = 'member-1'";
    assert_eq!(host.plant("outbox.db", sql), 1);
    for limit in [2, 10] {
        let aside = engine.inbox.aside(0, limit).await.unwrap();
        assert_eq!(aside.iter().map(|one| one.id).collect::<Vec<_>>(), [1, 3]);
        let peers = engine.outbox.peers(None, limit).await.unwrap();
        let mut names: Vec<_> = peers.iter().map(|peer| peer.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["member-0", "member-2"]);
    }
    engine.stop().await;
}
