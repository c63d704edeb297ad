//! Rows of the outbox that somebody, or a disk, has damaged: text that is no text cannot be read at
//! all. They hold nothing else up.

use std::collections::BTreeMap;

use semel_core::outbox::{OutboxStatus, Outcome};
use semel_daemon::store::upkeep::Which;
use semel_wire::frame::FromDaemon;

use crate::scripted::{Scripted, message_id};
use crate::support::{Host, Mesh, arrived, dm, row, send, texts};

/// A text that is no UTF-8.
const NO_TEXT: &str = "CAST(x'ff' AS TEXT)";

#[tokio::test(flavor = "multi_thread")]
async fn a_row_with_text_that_is_none_dies_and_the_others_arrive() {
    let mut mesh = Mesh::of(2).await;
    mesh.stop().await;
    let (one, two) = (Host::new(0, mesh.url()), Host::new(1, mesh.url()));
    let (sender, receiver) = (one.start().await, two.start().await);
    for id in ["meta", "name", "whole"] {
        send(&sender, dm(id, 1, id)).await;
    }
    for (id, column) in [("meta", "meta"), ("name", "client_message_id")] {
        let sql =
            format!("UPDATE outbox SET {column} = {NO_TEXT} WHERE client_message_id = '{id}'");
        assert_eq!(one.plant("outbox.db", &sql), 1);
    }
    mesh.start().await;
    assert_eq!(texts(&arrived(&receiver, 1).await), ["whole"]);
    let dead = row(&sender, "meta", |row| row.status == OutboxStatus::Dead).await;
    assert_eq!(dead.outcome, Some(Outcome::NeverSent));
    assert!(dead.last_error.unwrap().contains("the row is damaged"));
    // Lists pass over what they cannot show, and are as long as they are asked to be.
    let ids = async |limit| -> Vec<String> {
        let rows = sender.outbox.list(Which::All, None, limit).await.unwrap();
        rows.iter().map(|row| row.client_message_id.to_string()).collect()
    };
    assert_eq!(ids(10).await, ["meta", "whole"]);
    assert_eq!(ids(2).await, ["meta", "whole"]);
    sender.stop().await;
    receiver.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_starts_with_rows_that_have_no_key() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start().await;
    for id in ["lost", "whole", "newest"] {
        send(&engine, dm(id, 1, id)).await;
    }
    engine.stop().await;
    let sql = "UPDATE outbox SET status = 'inflight', attempts = 1, maybe_sent = 1";
    assert_eq!(host.plant("outbox.db", sql), 3);
    for (id, key) in [("lost", "'!'"), ("newest", NO_TEXT)] {
        let sql = format!("UPDATE outbox SET id = {key} WHERE client_message_id = '{id}'");
        assert_eq!(host.plant("outbox.db", &sql), 1);
    }
    let engine = host.start().await;
    let mut line = broker.connection("one").await;
    let sent = line.sent().await;
    assert_eq!(sent.client_message_id.as_str(), "whole");
    line.answer(&sent.client_message_id, 201, None).await;
    row(&engine, "whole", |row| row.status == OutboxStatus::Done).await;
    // The new ones come behind the old.
    send(&engine, dm("new", 1, "new")).await;
    assert_eq!(line.sent().await.client_message_id.as_str(), "new");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_broker_is_asked_about_what_can_be_read() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start().await;
    for id in ["damaged", "held"] {
        send(&engine, dm(id, 1, id)).await;
    }
    engine.stop().await;
    let sql = "UPDATE outbox SET status = 'dead', outcome = 'unknown', maybe_sent = 1";
    assert_eq!(host.plant("outbox.db", sql), 2);
    let sql = format!(
        "UPDATE outbox SET client_message_id = {NO_TEXT} WHERE client_message_id = 'damaged'"
    );
    assert_eq!(host.plant("outbox.db", &sql), 1);
    let engine = host.start().await;
    let mut line = broker.connection("one").await;
    let known = BTreeMap::from([("held", message_id())]);
    loop {
        let frame = line.next().await.expect("the connection lives");
        let asked = matches!(frame, FromDaemon::Resolve(_));
        line.oblige(frame, &known).await;
        if asked {
            break;
        }
    }
    row(&engine, "held", |row| row.status == OutboxStatus::Done).await;
    engine.stop().await;
}
