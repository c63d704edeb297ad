//! The daemon's rules of mesh.md §10, each with a broker that would catch its breach.

use std::collections::BTreeMap;
use std::time::Duration;

use semel_core::outbox::{OutboxStatus, Outcome};
use semel_daemon::engine::{Engine, Requeue, Requeued};
use semel_daemon::link::{Ask, Asked, Fatal, LinkState};
use semel_daemon::store::event::{Event, EventKind};
use semel_wire::close::CloseKind;
use semel_wire::frame::{CloseReason, FromBroker, FromDaemon};

use crate::scripted::{Scripted, message_id};
use crate::support::{Host, dm, row, send, state};

fn requeue(row: &semel_daemon::store::upkeep::OutboxRow) -> Requeue {
    Requeue { id: row.id, client_message_id: None, body: None, even_if_delivered: false }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_before_hello_ack() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start().await;
    send(&engine, dm("early", 1, "hello")).await;
    let mut line = broker.hello().await;
    send(&engine, dm("too", 1, "hello")).await;
    let reason = CloseReason::new(CloseKind::Draining, "not now");
    line.say(&FromBroker::CloseReason(reason)).await;
    let said = line.next().await;
    assert!(said.is_none(), "{said:?}");
    let mut line = broker.connection("one").await;
    assert_eq!(line.sent().await.client_message_id.as_str(), "early");
    assert_eq!(line.sent().await.client_message_id.as_str(), "too");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_counts_on_its_own_connection_only_and_once() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start().await;
    let mut line = broker.connection("one").await;
    send(&engine, dm("one", 1, "hello")).await;
    let sent = line.sent().await;
    // An answer to nothing changes nothing.
    let nothing = semel_core::id::ClientMessageId::parse("nothing").unwrap();
    line.answer(&nothing, 409, Some("idempotency_key_reused")).await;
    drop(line);
    let mut line = broker.connection("one").await;
    assert_eq!(line.sent().await, sent, "the very same goes out again");
    line.answer(&sent.client_message_id, 201, None).await;
    line.answer(&sent.client_message_id, 409, Some("idempotency_key_reused")).await;
    row(&engine, "one", |row| row.status == OutboxStatus::Done).await;
    send(&engine, dm("two", 1, "hello")).await;
    assert_eq!(line.sent().await.client_message_id.as_str(), "two");
    row(&engine, "one", |row| row.status == OutboxStatus::Done).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_on_an_older_connection_is_not_heard() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start().await;
    let mut older = broker.connection("one").await;
    send(&engine, dm("one", 1, "hello")).await;
    let sent = older.sent().await;
    let reason = CloseReason::new(CloseKind::Draining, "elsewhere");
    older.say(&FromBroker::CloseReason(reason)).await;
    let mut line = broker.connection("one").await;
    assert_eq!(line.sent().await, sent);
    // The older one is still open at this end, and speaks up late.
    let mut result = semel_wire::frame::SendResult::new(sent.client_message_id.clone(), 404);
    result.code = Some("recipient_not_found".to_owned());
    older.try_say(&FromBroker::SendResult(result)).await;
    for id in ["two", "three"] {
        send(&engine, dm(id, 1, "hello")).await;
        let other = line.sent().await;
        assert_eq!(other.client_message_id.as_str(), id);
        line.answer(&other.client_message_id, 201, None).await;
        row(&engine, id, |row| row.status == OutboxStatus::Done).await;
    }
    let flying = row(&engine, "one", |_| true).await;
    assert_eq!(flying.status, OutboxStatus::Inflight);
    line.answer(&sent.client_message_id, 201, None).await;
    row(&engine, "one", |row| row.status == OutboxStatus::Done).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_is_not_sent_twice_while_its_mark_is_on_the_way() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start().await;
    let mut line = broker.connection("one").await;
    // Each accept makes the sender look at what is due, before the last claim is on disk.
    for number in 0..50 {
        let id = format!("row-{number}");
        send(&engine, dm(&id, 1, "hello")).await;
        assert_eq!(line.sent().await.client_message_id.as_str(), id);
    }
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_without_an_answer_closes_the_connection() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let quick = |link: &mut semel_daemon::link::LinkOptions| {
        link.answer_timeout = Duration::from_millis(50);
    };
    let engine = host.start_as(1, quick).await;
    let mut line = broker.connection("one").await;
    send(&engine, dm("one", 1, "hello")).await;
    line.sent().await;
    // Nothing else comes but goodbye: never the same id twice.
    let mut rest = Vec::new();
    while let Some(frame) = line.next().await {
        rest.push(frame);
    }
    assert!(!rest.iter().any(|frame| matches!(frame, FromDaemon::Send(_))), "{rest:?}");
    let mut line = broker.connection("one").await;
    assert_eq!(line.sent().await.client_message_id.as_str(), "one");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn may_have_been_sent_is_sticky() {
    for answer in [Some((429, "rate_limited")), Some((503, "store_unavailable")), None] {
        let broker = Scripted::new().await;
        let host = Host::new(0, broker.url());
        let engine = host.start().await;
        let mut line = broker.connection("one").await;
        send(&engine, dm("one", 1, "hello")).await;
        let sent = line.sent().await;
        // The answer is the last that is heard: another attempt would say by itself that it left.
        if let Some((status, code)) = answer {
            let mut result = semel_wire::frame::SendResult::new(sent.client_message_id, status);
            (result.code, result.retry_after_ms) = (Some(code.to_owned()), Some(60_000));
            line.say(&FromBroker::SendResult(result)).await;
        }
        drop((line, broker));
        state(&engine, LinkState::Waiting).await;
        let waiting =
            row(&engine, "one", |row| row.status == OutboxStatus::Pending && row.maybe_sent).await;
        let counted = u32::from(answer.is_none_or(|(status, _)| status != 429));
        assert_eq!(waiting.attempts, counted, "a limit is no attempt of the row's: {answer:?}");
        assert_eq!(engine.requeue(requeue(&waiting)).await.unwrap(), Requeued::Unknown);
        let dead = row(&engine, "one", |row| row.status == OutboxStatus::Dead).await;
        assert_eq!(dead.outcome, Some(Outcome::Unknown), "{answer:?}");
        engine.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_never_left_is_requeued_at_once_and_a_broker_that_is_away_is_not_asked() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    drop(broker);
    let engine = host.start().await;
    send(&engine, dm("one", 1, "hello")).await;
    let waiting = row(&engine, "one", |_| true).await;
    let requeued = engine.requeue(requeue(&waiting)).await.unwrap();
    let Requeued::Done { id } = requeued else { panic!("{requeued:?}") };
    let old = row(&engine, "one", |row| row.status == OutboxStatus::Aborted).await;
    assert_eq!((old.superseded_by, old.outcome), (Some(id), None));
    let new = row(&engine, &id.to_string(), |row| row.status == OutboxStatus::Pending).await;
    assert_ne!(new.client_message_id, old.client_message_id);
    assert_eq!(new.request_fingerprint, old.request_fingerprint);
    // What was retired is not retired again.
    let again = engine.requeue(requeue(&old)).await.unwrap();
    assert_eq!(again, Requeued::Illegal(OutboxStatus::Aborted));
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_on_the_wire_is_not_requeued_before_its_mark_is_on_disk() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start().await;
    let mut line = broker.connection("one").await;
    for number in 0..20 {
        let id = format!("row-{number}");
        send(&engine, dm(&id, 1, "hello")).await;
        let waiting = row(&engine, &id, |_| true).await;
        assert_eq!(line.sent().await.client_message_id.as_str(), id);
        let illegal = engine.requeue(requeue(&waiting)).await.unwrap();
        assert_eq!(illegal, Requeued::Illegal(OutboxStatus::Inflight), "{number}");
    }
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_daemon_left_open_may_have_been_sent() {
    let broker = Scripted::new().await;
    let (host, heir) = (Host::new(0, broker.url()), Host::new(0, broker.url()));
    drop(broker);
    let engine = host.start().await;
    send(&engine, dm("one", 1, "hello")).await;
    // As a killed daemon leaves it; the mark of a claim may not have reached the disk.
    for name in ["outbox.db", "outbox.db-wal"] {
        std::fs::copy(host.file(name), heir.file(name)).unwrap();
    }
    engine.stop().await;
    let engine = heir.start().await;
    let left = row(&engine, "one", |row| row.status == OutboxStatus::Pending).await;
    assert!(!left.maybe_sent, "its own mark does not say so");
    assert_eq!(engine.requeue(requeue(&left)).await.unwrap(), Requeued::Unknown);
    let dead = row(&engine, "one", |row| row.status == OutboxStatus::Dead).await;
    assert_eq!(dead.outcome, Some(Outcome::Unknown));
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_told_of_a_death_that_is_not_on_disk() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start().await;
    let mut line = broker.connection("one").await;
    send(&engine, dm("one", 1, "hello")).await;
    let sent = line.sent().await;
    row(&engine, "one", |row| row.status == OutboxStatus::Inflight).await;
    host.plant(
        "outbox.db",
        "CREATE TRIGGER planted BEFORE UPDATE ON outbox WHEN NEW.status = 'dead' \
         BEGIN SELECT RAISE(ABORT, 'the disk takes nothing'); END",
    );
    line.answer(&sent.client_message_id, 404, Some("recipient_not_found")).await;
    row(&engine, "one", |row| engine.outbox.may_have_lost_marks(row.life)).await;
    assert_eq!(deaths(&engine).await, 0);
    host.plant("outbox.db", "DROP TRIGGER planted");
    // It goes out again, although the file said that it was on the wire.
    let again = line.sent().await;
    assert_eq!(again.client_message_id, sent.client_message_id);
    line.answer(&sent.client_message_id, 404, Some("recipient_not_found")).await;
    row(&engine, "one", |row| row.status == OutboxStatus::Dead).await;
    while deaths(&engine).await == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(deaths(&engine).await, 1);
    engine.stop().await;
}

/// How many deaths were announced, once everything that was to be announced is.
async fn deaths(engine: &Engine) -> usize {
    let of = |kind: EventKind, events: &[Event]| events.iter().filter(|it| it.kind == kind).count();
    let mut changes = engine.inbox.changes();
    let events = engine.inbox.events(0, 1000).await.unwrap();
    let before = of(EventKind::PeerLeave, &events);
    engine.inbox.announce(EventKind::PeerLeave, &serde_json::json!({}));
    loop {
        changes.borrow_and_update();
        let events = engine.inbox.events(0, 1000).await.unwrap();
        if of(EventKind::PeerLeave, &events) > before {
            return of(EventKind::OutboxDead, &events);
        }
        changes.changed().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requeue_of_what_may_have_been_sent_resolves_first() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start().await;
    for (id, held) in [("held", true), ("absent", false)] {
        let mut line = broker.connection("one").await;
        send(&engine, dm(id, 1, "hello")).await;
        assert_eq!(line.sent().await.client_message_id.as_str(), id);
        let flying = row(&engine, id, |row| row.status == OutboxStatus::Inflight).await;
        let illegal = engine.requeue(requeue(&flying)).await.unwrap();
        assert_eq!(illegal, Requeued::Illegal(OutboxStatus::Inflight), "it is on the wire");
        // The broker is too busy for a long time: the row waits.
        let mut result = semel_wire::frame::SendResult::new(flying.client_message_id.clone(), 429);
        (result.code, result.retry_after_ms) = (Some("rate_limited".to_owned()), Some(60_000));
        line.say(&FromBroker::SendResult(result)).await;
        let waiting = row(&engine, id, |row| row.status == OutboxStatus::Pending).await;
        let known = BTreeMap::from([("held", message_id())]);
        let asking = tokio::spawn(async move {
            loop {
                match line.next().await {
                    Some(FromDaemon::Send(frame)) => return Some((line, frame)),
                    Some(frame) => line.oblige(frame, &known).await,
                    None => return None,
                }
            }
        });
        let requeued = engine.requeue(requeue(&waiting)).await.unwrap();
        if held {
            assert_eq!(requeued, Requeued::Delivered);
            row(&engine, id, |row| row.status == OutboxStatus::Done).await;
        } else {
            assert!(matches!(requeued, Requeued::Done { .. }), "{requeued:?}");
            let old = row(&engine, id, |row| row.status == OutboxStatus::Aborted).await;
            assert_eq!(old.outcome, Some(Outcome::Refused), "it was dead before it was aborted");
        }
        asking.abort();
    }
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_under_another_epoch_of_the_store_is_never_refused() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start().await;
    let mut line = broker.connection("one").await;
    send(&engine, dm("before", 1, "hello")).await;
    line.sent().await;
    drop(line);
    // The store was restored meanwhile.
    let mut line = broker.connection("two").await;
    let sent = line.sent().await;
    assert_eq!(sent.client_message_id.as_str(), "before");
    line.answer(&sent.client_message_id, 404, Some("recipient_not_found")).await;
    let dead = row(&engine, "before", |row| row.status == OutboxStatus::Dead).await;
    assert_eq!(dead.outcome, Some(Outcome::Unknown));
    send(&engine, dm("after", 1, "hello")).await;
    let sent = line.sent().await;
    line.answer(&sent.client_message_id, 404, Some("recipient_not_found")).await;
    let dead = row(&engine, "after", |row| row.status == OutboxStatus::Dead).await;
    assert_eq!(dead.outcome, Some(Outcome::Refused), "it was sent under this one only");
    // Absence on the next connection says nothing about the first store either.
    drop(line);
    let mut line = broker.connection("two").await;
    send(&engine, dm("more", 1, "hello")).await;
    let sent = line.sent().await;
    assert_eq!(sent.client_message_id.as_str(), "more");
    // It was asked before, and marks are written in order: once this is, so is what it meant.
    line.answer(&sent.client_message_id, 201, None).await;
    row(&engine, "more", |row| row.status == OutboxStatus::Done).await;
    let unknown = row(&engine, "before", |_| true).await;
    assert_eq!(unknown.outcome, Some(Outcome::Unknown));
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn done_rows_are_offered_again_to_a_restored_broker_and_stay_done() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start().await;
    let mut line = broker.connection("one").await;
    for id in ["one", "two"] {
        send(&engine, dm(id, 1, id)).await;
        let sent = line.sent().await;
        line.answer(&sent.client_message_id, 201, None).await;
        row(&engine, id, |row| row.status == OutboxStatus::Done).await;
    }
    drop(line);
    let mut line = broker.connection("two").await;
    for id in ["one", "two"] {
        let offered = line.sent().await;
        assert_eq!(offered.client_message_id.as_str(), id);
        let done = row(&engine, id, |_| true).await;
        assert_eq!(done.status, OutboxStatus::Done);
        line.answer(&offered.client_message_id, 200, None).await;
    }
    // Once is enough, also after a restart.
    send(&engine, dm("three", 1, "three")).await;
    let sent = line.sent().await;
    assert_eq!(sent.client_message_id.as_str(), "three");
    line.answer(&sent.client_message_id, 201, None).await;
    row(&engine, "three", |row| row.status == OutboxStatus::Done).await;
    engine.stop().await;
    let engine = host.start().await;
    let mut line = broker.connection("two").await;
    send(&engine, dm("four", 1, "four")).await;
    assert_eq!(line.sent().await.client_message_id.as_str(), "four");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_restored_broker_does_not_take_again_is_not_known_to_be_delivered() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start().await;
    let mut line = broker.connection("one").await;
    for id in ["lost", "kept"] {
        send(&engine, dm(id, 1, id)).await;
        let sent = line.sent().await;
        line.answer(&sent.client_message_id, 201, None).await;
        row(&engine, id, |row| row.status == OutboxStatus::Done).await;
    }
    drop(line);
    // Its recipient was made after the backup.
    let mut line = broker.connection("two").await;
    let lost = line.sent().await;
    assert_eq!(lost.client_message_id.as_str(), "lost");
    line.answer(&lost.client_message_id, 404, Some("recipient_not_found")).await;
    let kept = line.sent().await;
    line.answer(&kept.client_message_id, 201, None).await;
    let dead = row(&engine, "lost", |row| row.status == OutboxStatus::Dead).await;
    assert_eq!(dead.outcome, Some(Outcome::Unknown));
    assert!(dead.last_error.as_ref().unwrap().contains("404 recipient_not_found"));
    while deaths(&engine).await == 0 {
        tokio::task::yield_now().await;
    }
    row(&engine, "kept", |row| row.status == OutboxStatus::Done).await;
    let obliging = tokio::spawn(async move {
        loop {
            match line.next().await {
                Some(FromDaemon::Send(frame)) => return frame,
                Some(frame) => line.oblige(frame, &BTreeMap::new()).await,
                None => panic!("a send"),
            }
        }
    });
    // The restored broker knows nothing of it, which says nothing.
    assert_eq!(engine.requeue(requeue(&dead)).await.unwrap(), Requeued::Unknown);
    let again = Requeue { even_if_delivered: true, ..requeue(&dead) };
    let requeued = engine.requeue(again).await.unwrap();
    assert!(matches!(requeued, Requeued::Done { .. }), "{requeued:?}");
    assert_eq!(obliging.await.unwrap().body, lost.body);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outbox_is_adopted_once_and_what_its_new_owner_accepts_is_its_own() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start_as(1, |_| {}).await;
    send(&engine, dm("theirs", 1, "hello")).await;
    engine.stop().await;
    let engine = host.start_as(2, |_| {}).await;
    send(&engine, dm("mine", 1, "hello")).await;
    row(&engine, "theirs", |row| row.status == OutboxStatus::Dead).await;
    engine.stop().await;
    // Again, before anybody has retired the first.
    let engine = host.start_as(2, |_| {}).await;
    let mine = row(&engine, "mine", |_| true).await;
    assert_eq!(mine.status, OutboxStatus::Pending, "{mine:?}");
    let mut line = broker.connection("one").await;
    assert_eq!(line.sent().await.client_message_id.as_str(), "mine");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outbox_of_another_instance_is_adopted_by_retiring_it() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start_as(1, |_| {}).await;
    send(&engine, dm("held", 1, "hello")).await;
    send(&engine, dm("absent", 1, "hello")).await;
    engine.stop().await;
    let engine = host.start_as(2, |_| {}).await;
    let dead = row(&engine, "held", |row| row.status == OutboxStatus::Dead).await;
    assert_eq!(dead.outcome, Some(Outcome::Unknown));
    let owner = uuid::Uuid::from_u128(1);
    // A hello that was not answered has retired nobody.
    drop(broker.hello().await);
    let mut line = broker.hello().await;
    let retired: Vec<_> = line.hello.retire.iter().map(|id| id.as_uuid()).collect();
    assert_eq!(retired, [owner]);
    line.welcome("one").await;
    let known = BTreeMap::from([("held", message_id())]);
    send(&engine, dm("mine", 1, "hello")).await;
    let sent = line.sent_or_resolved(&known).await;
    assert_eq!(sent.client_message_id.as_str(), "mine", "adopted rows are never sent");
    row(&engine, "held", |row| row.status == OutboxStatus::Done).await;
    row(&engine, "absent", |row| row.outcome == Some(Outcome::Refused)).await;
    // Retired once, it is not mentioned again.
    drop(line);
    assert_eq!(broker.hello().await.hello.retire, []);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clone_ends_the_daemon_and_nothing_is_known_of_its_rows() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start().await;
    let mut line = broker.connection("one").await;
    send(&engine, dm("one", 1, "hello")).await;
    line.sent().await;
    // By its own nonce: a half-dead connection of ours was replaced, nothing more.
    let mut reason = CloseReason::new(CloseKind::Replaced, "newer");
    reason.nonce = Some(line.hello.nonce);
    line.say(&FromBroker::CloseReason(reason.clone())).await;
    let mut line = broker.connection("one").await;
    line.sent().await;
    reason.nonce = Some(semel_core::hex::Hex([9; 16]));
    line.say(&FromBroker::CloseReason(reason)).await;
    state(&engine, LinkState::Ended).await;
    assert_eq!(engine.ended().await, Fatal::Replaced);
    row(&engine, "one", |row| row.outcome == Some(Outcome::Unknown)).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_of_ours_that_was_never_answered_is_no_clone() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start().await;
    let unanswered = broker.hello().await.hello.nonce;
    let mut line = broker.connection("one").await;
    // The broker gets to the first one late.
    let mut reason = CloseReason::new(CloseKind::Replaced, "newer");
    reason.nonce = Some(unanswered);
    line.say(&FromBroker::CloseReason(reason)).await;
    let mut line = broker.connection("one").await;
    send(&engine, dm("one", 1, "hello")).await;
    assert_eq!(line.sent().await.client_message_id.as_str(), "one");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_word_of_a_broker_is_obeyed() {
    let words = [
        (CloseKind::AlreadyConnected, Fatal::AlreadyConnected),
        (CloseKind::Revoked, Fatal::Revoked),
    ];
    for (kind, fatal) in words {
        let broker = Scripted::new().await;
        let host = Host::new(0, broker.url());
        let engine = host.start().await;
        let mut line = broker.hello().await;
        line.say(&FromBroker::CloseReason(CloseReason::new(kind, "no"))).await;
        state(&engine, LinkState::Ended).await;
        assert_eq!(engine.ended().await, fatal);
        engine.stop().await;
    }
}

/// As if these rows had been accepted forty days ago.
fn make_old(host: &Host, which: &str) {
    let sql = "UPDATE outbox SET enqueued_at = enqueued_at - 3456000000,
                                 next_attempt_at = next_attempt_at - 3456000000";
    assert!(host.plant("outbox.db", &format!("{sql} WHERE {which}")) > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_waits_dies_of_age() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let often = |link: &mut semel_daemon::link::LinkOptions| {
        link.expire_interval = Duration::from_millis(5);
    };
    let engine = host.start_as(1, often).await;
    let mut line = broker.connection("one").await;
    send(&engine, dm("flying", 1, "hello")).await;
    let sent = line.sent().await;
    row(&engine, "flying", |row| row.status == OutboxStatus::Inflight).await;
    send(&engine, dm("waiting", 1, "hello")).await;
    let told = line.sent().await.client_message_id;
    let mut result = semel_wire::frame::SendResult::new(told, 429);
    (result.code, result.retry_after_ms) = (Some("rate_limited".to_owned()), Some(600_000));
    line.say(&FromBroker::SendResult(result)).await;
    row(&engine, "waiting", |row| row.status == OutboxStatus::Pending && row.maybe_sent).await;
    make_old(&host, "status IN ('pending', 'inflight')");
    // Both are older than they may be; one look at ages sees the one on the wire first.
    row(&engine, "waiting", |row| row.status == OutboxStatus::Dead).await;
    let flying = row(&engine, "flying", |_| true).await;
    assert_eq!(flying.status, OutboxStatus::Inflight);
    line.answer(&sent.client_message_id, 503, Some("store_unavailable")).await;
    let dead = row(&engine, "flying", |row| row.status == OutboxStatus::Dead).await;
    assert_eq!(dead.outcome, Some(Outcome::Unknown), "it may have been accepted");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_grew_too_old_while_the_broker_was_away_is_not_sent() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start().await;
    send(&engine, dm("old", 1, "hello")).await;
    make_old(&host, "client_message_id = 'old'");
    send(&engine, dm("young", 1, "hello")).await;
    let mut line = broker.connection("one").await;
    assert_eq!(line.sent().await.client_message_id.as_str(), "young");
    let dead = row(&engine, "old", |row| row.status == OutboxStatus::Dead).await;
    assert_eq!(dead.outcome, Some(Outcome::NeverSent));
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_die_of_age_while_the_broker_is_away_and_after_a_restart_too() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let often = |link: &mut semel_daemon::link::LinkOptions| {
        link.expire_interval = Duration::from_millis(5);
    };
    let engine = host.start_as(1, often).await;
    let mut line = broker.connection("one").await;
    send(&engine, dm("first", 1, "hello")).await;
    let sent = line.sent().await;
    line.answer(&sent.client_message_id, 201, None).await;
    row(&engine, "first", |row| row.status == OutboxStatus::Done).await;
    // From now on nobody is there, and nobody comes back.
    drop((line, broker));
    state(&engine, LinkState::Waiting).await;
    send(&engine, dm("old", 1, "hello")).await;
    make_old(&host, "client_message_id = 'old'");
    row(&engine, "old", |row| row.status == OutboxStatus::Dead).await;
    engine.stop().await;
    let engine = host.start_as(1, often).await;
    send(&engine, dm("older", 1, "hello")).await;
    make_old(&host, "client_message_id = 'older'");
    row(&engine, "older", |row| row.status == OutboxStatus::Dead).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_the_broker_could_not_take_stay_in_order_over_a_reconnect() {
    for (status, code) in [(429, "rate_limited"), (503, "store_unavailable")] {
        let broker = Scripted::new().await;
        let host = Host::new(0, broker.url());
        let engine = host.start().await;
        let mut line = broker.connection("one").await;
        let mut ids: Vec<String> = (0..10).map(|number| format!("row-{number}")).collect();
        for id in &ids {
            send(&engine, dm(id, 1, "hello")).await;
        }
        let mut waiting = Vec::new();
        for _ in &ids {
            waiting.push(line.sent().await.client_message_id);
        }
        for id in &waiting {
            let mut result = semel_wire::frame::SendResult::new(id.clone(), status);
            (result.code, result.retry_after_ms) = (Some(code.to_owned()), Some(60_000));
            line.say(&FromBroker::SendResult(result)).await;
        }
        row(&engine, "row-9", |row| row.status == OutboxStatus::Pending && row.maybe_sent).await;
        drop(line);
        // What was accepted later may not pass them.
        send(&engine, dm("later", 1, "hello")).await;
        ids.push("later".to_owned());
        let mut line = broker.connection("one").await;
        for id in &ids {
            assert_eq!(line.sent().await.client_message_id.as_str(), id, "after {status}");
        }
        engine.stop().await;
    }
}

/// Six attempts are more than a row may fail before it waits on its own, if it is the row's fault.
const ROUNDS: u32 = 7;

#[tokio::test(flavor = "multi_thread")]
async fn rows_stay_in_order_however_often_the_brokers_store_is_away() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start().await;
    let ids = ["row-0", "row-1", "row-2"];
    for id in ids {
        send(&engine, dm(id, 1, "hello")).await;
    }
    for round in 1..=ROUNDS {
        let mut line = broker.connection("one").await;
        let mut waiting = Vec::new();
        for id in ids {
            waiting.push(line.sent().await.client_message_id);
            assert_eq!(waiting[waiting.len() - 1].as_str(), id, "in round {round}");
        }
        for id in &waiting {
            line.answer(id, 503, Some("store_unavailable")).await;
        }
        let back = |row: &semel_daemon::store::upkeep::OutboxRow| {
            row.status == OutboxStatus::Pending && row.attempts == round
        };
        row(&engine, "row-2", back).await;
    }
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_fails_while_others_get_through_waits_on_its_own() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let patient = |link: &mut semel_daemon::link::LinkOptions| {
        link.random = std::sync::Arc::new(|| u128::from(u64::MAX));
    };
    let engine = host.start_as(1, patient).await;
    let mut line = broker.connection("one").await;
    send(&engine, dm("stuck", 1, "hello")).await;
    for round in 1..ROUNDS {
        let other = format!("other-{round}");
        send(&engine, dm(&other, 1, "hello")).await;
        // It goes first as long as it is one of them.
        let (stuck, through) = (line.sent().await, line.sent().await);
        assert_eq!(stuck.client_message_id.as_str(), "stuck", "in round {round}");
        assert_eq!(through.client_message_id.as_str(), other);
        line.answer(&through.client_message_id, 201, None).await;
        row(&engine, &other, |row| row.status == OutboxStatus::Done).await;
        line.answer(&stuck.client_message_id, 503, Some("store_unavailable")).await;
        let back = |row: &semel_daemon::store::upkeep::OutboxRow| {
            row.status == OutboxStatus::Pending && row.attempts == round
        };
        row(&engine, "stuck", back).await;
    }
    send(&engine, dm("later", 1, "hello")).await;
    assert_eq!(line.sent().await.client_message_id.as_str(), "later", "it holds nobody up");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_without_an_answer_is_not_one_that_was_never_asked() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start().await;
    let ask = || Ask::QueueAck { queue: "work".to_owned(), seqs: vec![1] };
    assert_eq!(engine.link.ask(ask()).await, Asked::Away);
    let mut line = broker.connection("one").await;
    state(&engine, LinkState::Connected).await;
    let (asked, ()) = tokio::join!(engine.link.ask(ask()), async {
        while !matches!(line.next().await, Some(FromDaemon::QueueAck(_))) {}
        drop(line);
    });
    assert_eq!(asked, Asked::Unanswered);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_asks_for_no_more_than_it_is_told_to() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    for optional in [&["max_payload"][..], &[]] {
        let optional: Vec<String> = optional.iter().map(|name| (*name).to_owned()).collect();
        let narrowed = optional.clone();
        let engine = host.start_as(1, |options| options.optional = narrowed).await;
        let mut line = broker.hello().await;
        line.acknowledge("one").await;
        let Some(FromDaemon::FeatureNegotiationRequest(request)) = line.next().await else {
            panic!("features are agreed on first")
        };
        assert_eq!(request.optional, optional);
        drop(line);
        engine.stop().await;
    }
}
