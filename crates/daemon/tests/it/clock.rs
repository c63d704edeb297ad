//! The time of day may step: what was accepted goes out, in the order of accept, and is swept.

use std::time::Duration;

use semel_core::outbox::OutboxStatus;
use semel_daemon::link::LinkState;

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
    host.clock.shift(YEAR);
    send(&engine, dm("ahead", 0, "ahead")).await;
    host.clock.set_back(YEAR);
    send(&engine, dm("now", 0, "now")).await;
    for id in ["ahead", "now"] {
        row(&engine, id, |row| row.status == OutboxStatus::Done).await;
    }
    let week = 7 * 24 * HOUR;
    let pruned = engine.outbox.prune(week).await.unwrap();
    assert_eq!(pruned, 1, "what is of now stays");
    host.clock.shift(week + HOUR);
    assert_eq!(engine.outbox.prune(week).await.unwrap(), 1);
    engine.stop().await;
}
