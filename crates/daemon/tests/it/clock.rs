//! The time of day may step: what was accepted goes out, in the order of accept, and is swept.

use std::time::Duration;

use semel_core::clock::Clock;
use semel_core::outbox::OutboxStatus;
use semel_core::plausible::SweepClock;
use semel_daemon::link::LinkState;

use crate::scripted::Scripted;
use crate::support::{Host, Mesh, arrived, dm, row, send, state, texts};

const SECONDS: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(60 * 60);
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Less than a row may wait on its own, and more.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_accepted_before_the_clock_was_set_back_is_not_overtaken() {
    for step in [SECONDS, HOUR, YEAR] {
        let mut mesh = Mesh::of(2).await;
        mesh.stop().await;
        let (one, two) = (Host::new(0, mesh.url()), Host::new(1, mesh.url()));
        let (sender, receiver) = (one.start().await, two.start().await);
        one.clock.shift(step);
        send(&sender, dm("first", 1, "first")).await;
        one.clock.set_back(step);
        send(&sender, dm("second", 1, "second")).await;
        mesh.start().await;
        assert_eq!(texts(&arrived(&receiver, 2).await), ["first", "second"], "{step:?}");
        sender.stop().await;
        receiver.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_whose_clock_was_set_back_while_it_was_down_keeps_the_order() {
    let mut mesh = Mesh::of(2).await;
    mesh.stop().await;
    let (one, two) = (Host::new(0, mesh.url()), Host::new(1, mesh.url()));
    let receiver = two.start().await;
    for (number, step) in [HOUR, YEAR].into_iter().enumerate() {
        let sender = one.start().await;
        one.clock.shift(step);
        send(&sender, dm(&format!("first-{number}"), 1, "first")).await;
        sender.stop().await;
        one.clock.set_back(step);
        let sender = one.start().await;
        send(&sender, dm(&format!("second-{number}"), 1, "second")).await;
        sender.stop().await;
    }
    mesh.start().await;
    let sender = one.start().await;
    let expected = ["first", "second", "first", "second"];
    assert_eq!(texts(&arrived(&receiver, 4).await), expected);
    sender.stop().await;
    receiver.stop().await;
}

/// Ids go on from the highest there is, so that they say less and less about when.
#[tokio::test(flavor = "multi_thread")]
async fn payloads_from_a_year_that_has_not_come_are_pruned_too() {
    let mesh = Mesh::of(2).await;
    let host = Host::new(0, mesh.url());
    let engine = host.start().await;
    state(&engine, LinkState::Connected).await;
    for id in ["ahead", "now"] {
        send(&engine, dm(id, 0, id)).await;
        row(&engine, id, |row| row.status == OutboxStatus::Done).await;
    }
    let sql = "UPDATE outbox SET enqueued_at = enqueued_at + 31536000000
                WHERE client_message_id = 'ahead'";
    assert_eq!(host.plant("outbox.db", sql), 1);
    let week = 7 * 24 * HOUR;
    let pruned = engine.outbox.prune(week).await.unwrap();
    assert_eq!(pruned, 1, "what is of now stays");
    host.clock.shift(week + HOUR);
    assert_eq!(engine.outbox.prune(week).await.unwrap(), 1);
    engine.stop().await;
}

/// A row that seems to be from later than now would never be too old to be sent again, and long
/// after the broker has forgotten its id it would be taken in once more.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_from_a_time_that_has_not_come_is_counted_from_when_that_is_seen() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start().await;
    host.clock.shift(YEAR);
    send(&engine, dm("ahead", 1, "hello")).await;
    host.clock.set_back(YEAR);
    send(&engine, dm("old", 1, "hello")).await;
    let sql = "UPDATE outbox SET enqueued_at = enqueued_at - 3456000000,
                                 next_attempt_at = next_attempt_at - 3456000000";
    assert_eq!(host.plant("outbox.db", &format!("{sql} WHERE client_message_id = 'old'")), 1);
    let mut line = broker.connection("one").await;
    let sent = line.sent().await;
    assert_eq!(sent.client_message_id.as_str(), "ahead");
    assert!(sent.enqueued_at <= host.clock.wall(), "it is counted from now");
    row(&engine, "old", |row| row.status == OutboxStatus::Dead).await;
    drop(line);
    let mut line = broker.connection("one").await;
    assert_eq!(line.sent().await.enqueued_at, sent.enqueued_at, "once");
    engine.stop().await;
}

/// No broker says what time it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_starts_with_a_clock_that_is_ahead_kills_nothing() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let often = |link: &mut semel_daemon::link::LinkOptions| {
        link.expire_interval = Duration::from_millis(1);
        link.sweep_clock = SweepClock::settling(Duration::ZERO, YEAR);
    };
    let engine = host.start_as(1, often).await;
    let line = broker.connection("one").await;
    state(&engine, LinkState::Connected).await;
    engine.stop().await;
    drop(line);
    let engine = host.start_as(1, often).await;
    send(&engine, dm("waits", 1, "hello")).await;
    engine.stop().await;
    host.clock.shift(YEAR);
    let engine = host.start_as(1, often).await;
    // It looks at ages between two attempts to connect.
    for _ in 0..5 {
        drop(broker.hello().await);
    }
    row(&engine, "waits", |_| true).await;
    let waits = engine.outbox.find("waits").await.unwrap().unwrap();
    assert_eq!(waits.status, OutboxStatus::Pending);
    engine.stop().await;
}
