//! An outbox that grows full, and a file that does not take what is written.

use std::time::Duration;

use semel_core::outbox::OutboxStatus;
use semel_daemon::engine::{Requeue, Requeued};
use semel_daemon::link::LinkState;
use semel_daemon::store::event::EventKind;
use semel_store::StoreError;

use crate::scripted::Scripted;
use crate::support::{Host, Mesh, PATIENCE, arrived, dm, row, send, state};

#[tokio::test(flavor = "multi_thread")]
async fn an_outbox_that_is_nearly_full_says_so_refuses_and_has_room_again_after_a_prune() {
    let mesh = Mesh::of(2).await;
    let (one, two) = (Host::new(0, mesh.url()), Host::new(1, mesh.url()));
    let (sender, receiver) = (one.start_small(2 << 20).await, two.start().await);
    let text = "x".repeat(8 << 10);
    let mut count = 0;
    let refused = loop {
        match sender.outbox.send(dm(&format!("dm-{count}"), 1, &text)).await {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
        assert!(count < 1000, "nothing was ever refused");
        // It is measured beside the accepts: let that happen.
        row(&sender, &format!("dm-{}", count - 1), |row| row.status == OutboxStatus::Done).await;
    };
    assert!(matches!(refused, StoreError::Full), "{refused:?}");
    assert!(!sender.outbox.pressure().accepts(), "{}", sender.outbox.pressure());
    let events = sender.inbox.events(0, 1000).await.unwrap();
    let told = events.iter().filter(|event| event.kind == EventKind::OutboxPressureHigh);
    let told: Vec<&str> =
        told.map(|event| if event.data.contains("\"high\"") { "high" } else { "full" }).collect();
    assert_eq!(told.first(), Some(&"high"), "{events:?}");
    assert_eq!(arrived(&receiver, count).await.len(), count, "what was accepted arrives");
    assert!(sender.outbox.prune(Duration::ZERO).await.unwrap() > 0);
    let accepted = async {
        while sender.outbox.send(dm("after", 1, "after")).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, accepted).await.expect("there is room again");
    assert_eq!(arrived(&receiver, count + 1).await.len(), count + 1);
    sender.stop().await;
    receiver.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_whose_marks_were_lost_is_not_taken_for_one_that_was_never_sent() {
    let mut mesh = Mesh::of(2).await;
    let (one, two) = (Host::new(0, mesh.url()), Host::new(1, mesh.url()));
    let (sender, receiver) = (one.start().await, two.start().await);
    state(&sender, LinkState::Connected).await;
    one.plant(
        "outbox.db",
        "CREATE TRIGGER planted BEFORE UPDATE ON outbox \
         BEGIN SELECT RAISE(ABORT, 'the disk takes nothing'); END",
    );
    send(&sender, dm("dm", 1, "once")).await;
    arrived(&receiver, 1).await;
    row(&sender, "dm", |row| sender.outbox.may_have_lost_marks(row.life)).await;
    mesh.stop().await;
    state(&sender, LinkState::Waiting).await;
    one.plant("outbox.db", "DROP TRIGGER planted");
    let found = sender.outbox.find("dm").await.unwrap().unwrap();
    assert!(found.status == OutboxStatus::Pending && !found.maybe_sent, "{found:?}");
    let requeue =
        Requeue { id: found.id, client_message_id: None, body: None, even_if_delivered: false };
    assert_eq!(sender.requeue(requeue).await.unwrap(), Requeued::Unknown);
    mesh.start().await;
    row(&sender, "dm", |row| row.status == OutboxStatus::Done).await;
    assert_eq!(arrived(&receiver, 1).await.len(), 1);
    sender.stop().await;
    receiver.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_could_not_be_given_up_is_not_requeued() {
    let mut mesh = Mesh::of(2).await;
    let (one, two) = (Host::new(0, mesh.url()), Host::new(1, mesh.url()));
    let (sender, receiver) = (one.start().await, two.start().await);
    state(&sender, LinkState::Connected).await;
    // Nothing of what is known can be written down, and that marks were lost neither.
    for (name, sql) in [
        ("rows", "outbox WHEN NEW.status <> 'aborted'"),
        ("life", "link WHEN NEW.life <> OLD.life"),
    ] {
        let fails = "BEGIN SELECT RAISE(ABORT, 'the disk takes nothing'); END";
        one.plant("outbox.db", &format!("CREATE TRIGGER {name} BEFORE UPDATE ON {sql} {fails}"));
    }
    send(&sender, dm("dm", 1, "once")).await;
    arrived(&receiver, 1).await;
    row(&sender, "dm", |row| sender.outbox.may_have_lost_marks(row.life)).await;
    mesh.stop().await;
    state(&sender, LinkState::Waiting).await;
    let found = sender.outbox.find("dm").await.unwrap().unwrap();
    let requeue =
        Requeue { id: found.id, client_message_id: None, body: None, even_if_delivered: false };
    assert_eq!(sender.requeue(requeue).await.unwrap(), Requeued::Unknown);
    row(&sender, "dm", |row| row.status == OutboxStatus::Pending).await;
    sender.stop().await;
    receiver.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outbox_that_cannot_be_read_once_is_read_again() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start().await;
    let line = broker.connection("one").await;
    state(&engine, LinkState::Connected).await;
    host.plant("outbox.db", "ALTER TABLE link RENAME TO elsewhere");
    drop(line);
    let mut status = engine.link.watch();
    let unread = status.wait_for(|status| {
        let why = status.last_error.as_deref();
        status.state == LinkState::Waiting && why == Some("the outbox cannot be read")
    });
    drop(tokio::time::timeout(PATIENCE, unread).await.expect("it says so").unwrap());
    host.plant("outbox.db", "ALTER TABLE elsewhere RENAME TO link");
    let mut line = broker.connection("one").await;
    send(&engine, dm("one", 1, "hello")).await;
    assert_eq!(line.sent().await.client_message_id.as_str(), "one");
    engine.stop().await;
}
