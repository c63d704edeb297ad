//! New rows reach the sender in memory, whatever else happens to them and to it, and pass nobody.

use std::time::Duration;

use semel_core::id::ClientMessageId;
use semel_core::outbox::OutboxStatus;
use semel_daemon::engine::{Engine, Requeue, Requeued};
use semel_daemon::limits::{FRESH_BYTES_MAX, WINDOW};
use semel_wire::frame::{FromBroker, SendResult};

use crate::scripted::{Line, Scripted};
use crate::support::{Host, dm, row, send};

/// A daemon with a window full of sends that are not answered.
async fn with_a_full_window(broker: &Scripted, host: &Host) -> (Engine, Line) {
    let engine = host.start().await;
    let mut line = broker.connection("one").await;
    for number in 0..WINDOW {
        let id = format!("first-{number}");
        send(&engine, dm(&id, 1, "hello")).await;
        assert_eq!(line.sent().await.client_message_id.as_str(), id);
    }
    (engine, line)
}

async fn answer_the_window(line: &mut Line) {
    for number in 0..WINDOW {
        let id = ClientMessageId::parse(&format!("first-{number}")).unwrap();
        line.answer(&id, 201, None).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_memory_is_kept_for_goes_out_once_and_in_order() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let (engine, mut line) = with_a_full_window(&broker, &host).await;
    let large = "x".repeat(32 << 10);
    let count = FRESH_BYTES_MAX / large.len() + 10;
    for number in 0..count {
        send(&engine, dm(&format!("later-{number}"), 1, &large)).await;
    }
    answer_the_window(&mut line).await;
    for number in 0..count {
        let sent = line.sent().await;
        assert_eq!(sent.client_message_id.as_str(), format!("later-{number}"));
        line.answer(&sent.client_message_id, 201, None).await;
    }
    // And what comes after that is handed over again.
    send(&engine, dm("last", 1, "hello")).await;
    assert_eq!(line.sent().await.client_message_id.as_str(), "last");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_whose_caller_goes_away_goes_out_all_the_same() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start().await;
    let mut line = broker.connection("one").await;
    for number in 0..20 {
        let id = format!("row-{number}");
        {
            let mut leaving = Box::pin(engine.outbox.send(dm(&id, 1, "hello")));
            assert!(futures_util::poll!(&mut leaving).is_pending());
        }
        assert_eq!(line.sent().await.client_message_id.as_str(), id);
    }
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_requeued_before_it_left_never_leaves() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let (engine, mut line) = with_a_full_window(&broker, &host).await;
    send(&engine, dm("retired", 1, "hello")).await;
    let retired = row(&engine, "retired", |_| true).await;
    let requeue =
        Requeue { id: retired.id, client_message_id: None, body: None, even_if_delivered: false };
    let requeued = engine.requeue(requeue).await.unwrap();
    let Requeued::Done { id } = requeued else { panic!("{requeued:?}") };
    let new = row(&engine, &id.to_string(), |row| row.status == OutboxStatus::Pending).await;
    answer_the_window(&mut line).await;
    assert_eq!(line.sent().await.client_message_id, new.client_message_id);
    send(&engine, dm("last", 1, "hello")).await;
    assert_eq!(line.sent().await.client_message_id.as_str(), "last");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_passes_what_may_yet_be_put_off() {
    for (status, code) in [(429, "rate_limited"), (503, "store_unavailable")] {
        let broker = Scripted::new().await;
        let host = Host::new(0, broker.url());
        let engine = host.start().await;
        let mut line = broker.connection("one").await;
        for id in ["one", "two"] {
            send(&engine, dm(id, 1, "hello")).await;
            assert_eq!(line.sent().await.client_message_id.as_str(), id);
        }
        put_off(&mut line, "one", (status, code)).await;
        row(&engine, "one", |row| row.status == OutboxStatus::Pending && row.maybe_sent).await;
        send(&engine, dm("three", 1, "hello")).await;
        // The second one's answer is late, and is the same.
        let early = tokio::time::timeout(Duration::from_millis(200), line.sent()).await;
        assert!(early.is_err(), "{early:?} after {status}");
        put_off(&mut line, "two", (status, code)).await;
        for id in ["one", "two", "three"] {
            assert_eq!(line.sent().await.client_message_id.as_str(), id, "after {status}");
        }
        engine.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_passes_what_could_not_be_put_back() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start().await;
    let mut line = broker.connection("one").await;
    send(&engine, dm("one", 1, "hello")).await;
    line.sent().await;
    let one = row(&engine, "one", |row| row.status == OutboxStatus::Inflight).await;
    host.plant(
        "outbox.db",
        "CREATE TRIGGER planted BEFORE UPDATE ON outbox WHEN NEW.status = 'pending' \
         BEGIN SELECT RAISE(ABORT, 'the disk takes nothing'); END",
    );
    put_off(&mut line, "one", (429, "rate_limited")).await;
    row(&engine, "one", |_| engine.outbox.may_have_lost_marks(one.life)).await;
    send(&engine, dm("two", 1, "hello")).await;
    let early = tokio::time::timeout(Duration::from_millis(200), line.sent()).await;
    assert!(early.is_err(), "{early:?}");
    host.plant("outbox.db", "DROP TRIGGER planted");
    for id in ["one", "two"] {
        assert_eq!(line.sent().await.client_message_id.as_str(), id);
    }
    engine.stop().await;
}

async fn put_off(line: &mut Line, id: &str, (status, code): (u16, &str)) {
    let mut result = SendResult::new(ClientMessageId::parse(id).unwrap(), status);
    (result.code, result.retry_after_ms) = (Some(code.to_owned()), Some(1));
    line.say(&FromBroker::SendResult(result)).await;
}
