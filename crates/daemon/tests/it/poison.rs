//! One row, or one frame, that the other side cannot take holds nothing else up.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use semel_core::envelope::{Destination, DestinationKind, Envelope};
use semel_core::fingerprint::Fingerprint;
use semel_core::outbox::{OutboxStatus, Outcome};
use semel_daemon::engine::{Engine, Requeue, Requeued};
use semel_daemon::link::{Ask, Asked, LinkState};
use semel_daemon::store::event::EventKind;
use semel_daemon::store::inbox::Filter;
use semel_wire::close::CloseKind;
use semel_wire::frame::{CloseReason, FromBroker, FromDaemon};

use crate::scripted::{Line, Scripted, message_id};
use crate::support::{Host, Mesh, arrived, dm, row, send, state, texts};

fn reconnects(engine: &Engine) -> u64 {
    engine.link.status().reconnects.iter().sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_too_large_for_the_broker_dies_and_the_others_arrive() {
    let mut mesh = Mesh::of(2).await;
    mesh.stop().await;
    let (one, two) = (Host::new(0, mesh.url()), Host::new(1, mesh.url()));
    let (sender, receiver) = (one.start().await, two.start().await);
    // Accepted before anybody knew what the broker takes: more than its largest frame, and more
    // than its largest body.
    send(&sender, dm("huge", 1, &"x".repeat(500 << 10))).await;
    send(&sender, dm("large", 1, &"x".repeat(100 << 10))).await;
    send(&sender, dm("small", 1, "small")).await;
    mesh.start().await;
    assert_eq!(texts(&arrived(&receiver, 1).await), ["small"]);
    let huge = row(&sender, "huge", |row| row.status == OutboxStatus::Dead).await;
    assert_eq!(huge.outcome, Some(Outcome::NeverSent));
    assert!(huge.last_error.unwrap().contains("413 payload_too_large"));
    let large = row(&sender, "large", |row| row.status == OutboxStatus::Dead).await;
    assert_eq!(large.outcome, Some(Outcome::Refused));
    assert!(large.last_error.unwrap().contains("413 payload_too_large"));
    assert_eq!(reconnects(&sender), 0);
    sender.stop().await;
    receiver.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_have_been_sent_under_a_larger_limit_is_asked_about() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start().await;
    let text = "x".repeat(500 << 10);
    for id in ["held", "absent"] {
        send(&engine, dm(id, 1, &text)).await;
    }
    let mut line = broker.hello().await;
    line.welcome_with("one", 1 << 20).await;
    for id in ["held", "absent"] {
        assert_eq!(line.sent().await.client_message_id.as_str(), id);
    }
    drop(line);
    // The limit was lowered meanwhile. Nothing is sent that the broker could not read.
    let mut line = broker.connection("one").await;
    send(&engine, dm("small", 1, "small")).await;
    let known = BTreeMap::from([("held", message_id())]);
    assert_eq!(line.sent_or_resolved(&known).await.client_message_id.as_str(), "small");
    let obliging = tokio::spawn(async move {
        while let Some(frame) = line.next().await {
            line.oblige(frame, &known).await;
        }
    });
    row(&engine, "held", |row| row.status == OutboxStatus::Done).await;
    row(&engine, "absent", |row| row.outcome == Some(Outcome::Refused)).await;
    engine.stop().await;
    obliging.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_cannot_be_read_or_said_dies_and_the_others_arrive() {
    let mut mesh = Mesh::of(2).await;
    mesh.stop().await;
    let (one, two) = (Host::new(0, mesh.url()), Host::new(1, mesh.url()));
    let (sender, receiver) = (one.start().await, two.start().await);
    for id in ["nameless", "meta", "reply", "nowhere", "whole"] {
        send(&sender, dm(id, 1, id)).await;
    }
    let sql = "UPDATE outbox SET id = '!' WHERE client_message_id = 'nameless'";
    assert_eq!(one.plant("outbox.db", sql), 1);
    let damage = [
        ("meta", r#"meta = '{"b":1,"a":2}'"#),
        ("reply", "reply_to_id = ''"),
        ("nowhere", "destination_ref = ''"),
    ];
    for (id, set) in damage {
        let sql = format!("UPDATE outbox SET {set} WHERE client_message_id = '{id}'");
        assert_eq!(one.plant("outbox.db", &sql), 1);
    }
    mesh.start().await;
    assert_eq!(texts(&arrived(&receiver, 1).await), ["whole"]);
    for (id, _) in damage {
        let sql = "UPDATE outbox SET destination_ref = 'builds', destination_kind = 'topic'";
        // Only so that the row can be looked at.
        one.plant("outbox.db", &format!("{sql} WHERE destination_ref = ''"));
        let dead = row(&sender, id, |row| row.status == OutboxStatus::Dead).await;
        assert_eq!(dead.outcome, Some(Outcome::NeverSent), "{id}: {:?}", dead.last_error);
    }
    assert_eq!(reconnects(&sender), 0);
    sender.stop().await;
    receiver.stop().await;
}

/// Answers everything until the row that it cannot read comes, or until `last` is answered.
async fn until_poison(line: &mut Line, poison: &str, last: &str) -> bool {
    loop {
        match line.next().await {
            Some(FromDaemon::Send(frame)) if frame.client_message_id.as_str() == poison => {
                let reason = CloseReason::new(CloseKind::ProtocolError, "no such frame");
                line.try_say(&FromBroker::CloseReason(reason)).await;
                return false;
            }
            Some(FromDaemon::Send(frame)) => {
                line.answer(&frame.client_message_id, 201, None).await;
                if frame.client_message_id.as_str() == last {
                    return true;
                }
            }
            Some(frame) => line.oblige(frame, &BTreeMap::new()).await,
            None => return false,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_at_which_the_broker_closes_each_time_is_found_and_dies() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start().await;
    for number in 0..10 {
        send(&engine, dm(&format!("before-{number}"), 1, "hello")).await;
    }
    send(&engine, dm("poison", 1, "hello")).await;
    for number in 0..10 {
        send(&engine, dm(&format!("after-{number}"), 1, "hello")).await;
    }
    let mut connections = 0;
    let mut line = loop {
        let mut line = broker.connection("one").await;
        connections += 1;
        if until_poison(&mut line, "poison", "after-9").await {
            break line;
        }
        assert!(connections < 10, "it is sent for ever");
    };
    let dead = row(&engine, "poison", |row| row.status == OutboxStatus::Dead).await;
    assert!(dead.last_error.unwrap().contains("protocol_error: no such frame"));
    row(&engine, "after-9", |row| row.status == OutboxStatus::Done).await;
    // It is asked about, because nobody has refused it.
    send(&engine, dm("later", 1, "hello")).await;
    assert!(until_poison(&mut line, "poison", "later").await);
    row(&engine, "poison", |row| row.outcome == Some(Outcome::Refused)).await;
    state(&engine, LinkState::Connected).await;
    engine.stop().await;
}

/// A push of these deliveries, as JSON.
fn push(deliveries: &[String]) -> String {
    format!(r#"{{"type":"push","deliveries":[{}]}}"#, deliveries.join(","))
}

/// Of a body in base64; of one that is none, that of nothing.
fn delivery(seq: i64, body: &str, more: &str) -> String {
    let key = "ab".repeat(32);
    let to = Destination::new(DestinationKind::Dm, &*key).unwrap();
    let bytes = base64::engine::general_purpose::STANDARD.decode(body).unwrap_or_default();
    let fingerprint = Fingerprint::of(&Envelope::new(to, bytes).unwrap()).to_hex();
    format!(
        r#"{{"seq":{seq},"broker_message_id":"01890a5d-ac96-774b-bcce-b302099a{seq:04}",
            "client_message_id":"m-{seq}",
            "sender_member_id":"01890a5d-ac96-774b-bcce-b302099a8057","sender_pubkey":"{key}",
            "sender_name":"alice","destination_kind":"dm","destination_ref":"{key}",
            "priority":"next","meta":"","body":"{body}",
            "request_fingerprint":"{fingerprint}","accepted_at":1{more}}}"#
    )
}

/// The next acknowledgement.
async fn acked(line: &mut Line) -> i64 {
    loop {
        match line.next().await.expect("the connection lives") {
            FromDaemon::Ack(ack) => return ack.seq,
            frame => line.oblige(frame, &BTreeMap::new()).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_that_cannot_be_read_is_kept_aside_and_the_others_arrive() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start().await;
    let mut line = broker.connection("one").await;
    let good = |seq| delivery(seq, "aGVsbG8=", "");
    // A field of a later version, a body that is none, a number that is none, a key twice; and one
    // that is not what its sender has sent.
    let bad = [
        delivery(2, "aGVsbG8=", r#","colour":"red""#),
        delivery(3, "not base64", ""),
        delivery(4, "aGVsbG8=", r#","seq":4"#),
        delivery(6, "aGVsbG8=", "").replace("aGVsbG8=", "SGVsbG8="),
    ];
    line.say_text(&push(&[good(1), bad[0].clone(), bad[1].clone()])).await;
    while acked(&mut line).await < 3 {}
    line.say_text(&push(&[bad[2].clone()])).await;
    assert_eq!(acked(&mut line).await, 4, "it is kept, so it is acknowledged");
    // Neither does anything else end the connection.
    line.say_text("{\"type\":\"weather\",\"is\":\"fine\"}").await;
    line.say_text("nonsense").await;
    line.say_text(&push(&[good(5)])).await;
    assert_eq!(acked(&mut line).await, 5);
    assert_eq!(texts(&arrived(&engine, 2).await), ["hello", "hello"]);
    assert_eq!(reconnects(&engine), 0);
    let aside = engine.inbox.aside(0, 100).await.unwrap();
    let seqs: Vec<_> = aside.iter().map(|aside| aside.seq).collect();
    assert_eq!(seqs, [Some(2), Some(3), Some(4), None, None]);
    assert!(String::from_utf8_lossy(&aside[0].frame).contains("colour"), "as it came");
    // The broker sends it again, because an acknowledgement was lost: it is the same.
    line.say_text(&push(&[bad[2].clone()])).await;
    assert_eq!(acked(&mut line).await, 4);
    assert_eq!(engine.inbox.aside(0, 100).await.unwrap().len(), 5);
    line.say_text(&push(&[bad[3].clone(), good(7)])).await;
    assert_eq!(acked(&mut line).await, 7);
    assert_eq!(texts(&arrived(&engine, 3).await), ["hello", "hello", "hello"]);
    let aside = engine.inbox.aside(0, 100).await.unwrap();
    let (seq, reason) = aside.last().map(|last| (last.seq, last.reason.clone())).unwrap();
    assert!(seq == Some(6) && reason.contains("fingerprint"), "{seq:?}: {reason}");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn history_goes_on_behind_what_cannot_be_read() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start().await;
    let mut line = broker.connection("one").await;
    let mut pages = vec![
        (vec![delivery(3, "d29ybGQ=", "")], None),
        (vec![delivery(1, "aGVsbG8=", ""), delivery(2, "?", "")], Some(2)),
    ];
    let mut after = Vec::new();
    while let Some((deliveries, next)) = pages.pop() {
        let asked = loop {
            match line.next().await.expect("the connection lives") {
                FromDaemon::HistoryRequest(asked) => break asked,
                frame => line.oblige(frame, &BTreeMap::new()).await,
            }
        };
        after.push(asked.after_seq);
        let next = next.map(|next| format!(r#","next_after_seq":{next}"#)).unwrap_or_default();
        let (id, all) = (asked.request_id, deliveries.join(","));
        let history =
            format!(r#"{{"type":"history","request_id":{id},"deliveries":[{all}]{next}}}"#);
        line.say_text(&history).await;
    }
    assert_eq!(after, [0, 2]);
    assert_eq!(texts(&arrived(&engine, 2).await), ["hello", "world"]);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_asked_can_be_asked_again_when_the_answer_makes_no_sense() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start().await;
    send(&engine, dm("unknown", 1, "hello")).await;
    engine.stop().await;
    let sql = "UPDATE outbox SET status = 'dead', outcome = 'unknown', maybe_sent = 1";
    assert_eq!(host.plant("outbox.db", sql), 1);
    let engine = host.start().await;
    let mut line = broker.connection("one").await;
    let request_id = loop {
        match line.next().await.expect("the connection lives") {
            FromDaemon::Resolve(asked) => break asked.request_id,
            frame => line.oblige(frame, &BTreeMap::new()).await,
        }
    };
    let nonsense = format!(r#"{{"type":"resolve_result","request_id":{request_id},"items":"?"}}"#);
    line.say_text(&nonsense).await;
    while engine.inbox.aside(0, 10).await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    let id = row(&engine, "unknown", |row| row.status == OutboxStatus::Dead).await.id;
    let requeue = Requeue { id, client_message_id: None, body: None, even_if_delivered: false };
    let obliging = async {
        while let Some(frame) = line.next().await {
            if !matches!(frame, FromDaemon::Send(_)) {
                line.oblige(frame, &BTreeMap::new()).await;
            }
        }
    };
    let requeued = tokio::select! {
        requeued = engine.requeue(requeue) => requeued.unwrap(),
        () = obliging => panic!("the connection lives"),
    };
    assert!(matches!(requeued, Requeued::Done { .. }), "{requeued:?}");
    assert_eq!(reconnects(&engine), 0);
    engine.stop().await;
}

/// The broker would end the connection at a frame that it cannot read.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_whose_name_cannot_be_is_refused_here_and_the_connection_stays() {
    let mesh = Mesh::of(2).await;
    let host = Host::new(0, mesh.url());
    let engine = host.start().await;
    state(&engine, LinkState::Connected).await;
    for queue in ["a\u{7}b", "\n", "a\0", "\u{9b}2J", ""] {
        let queue = queue.to_owned();
        let take = Ask::QueueTake { queue: queue.clone(), max: 1, lease_ms: None };
        let ack = Ask::QueueAck { queue: queue.clone(), seqs: vec![1] };
        for ask in [take, ack] {
            match engine.link.ask(ask).await {
                Asked::Answered(FromBroker::RequestFailed(failed)) => {
                    assert_eq!(failed.code, "invalid_field", "{queue:?}");
                }
                other => panic!("{queue:?}: {other:?}"),
            }
        }
    }
    send(&engine, dm("after", 1, "after")).await;
    row(&engine, "after", |row| row.status == OutboxStatus::Done).await;
    assert_eq!(reconnects(&engine), 0);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_behind_others_is_not_overdue() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start().await;
    let mut line = broker.connection("one").await;
    let count = 50;
    for number in 0..count {
        send(&engine, dm(&format!("dm-{number}"), 1, "hello")).await;
    }
    let mut sent = Vec::new();
    for _ in 0..count {
        sent.push(line.sent().await.client_message_id);
    }
    // Each takes a second; all of them take longer than any may.
    for id in &sent {
        host.clock.pass(Duration::from_secs(1));
        line.answer(id, 201, None).await;
        row(&engine, id.as_str(), |row| row.status == OutboxStatus::Done).await;
    }
    assert_eq!(reconnects(&engine), 0);
    engine.stop().await;
}

/// Whoever looks at the daemon's health sees why nothing goes out.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_takes_nothing_is_shown_until_it_takes_something() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start().await;
    let mut line = broker.connection("one").await;
    send(&engine, dm("dm", 1, "hello")).await;
    let id = line.sent().await.client_message_id;
    assert_eq!(engine.link.status().last_error, None);
    line.answer(&id, 503, Some("insufficient_storage")).await;
    let mut again = line.sent().await;
    let said = engine.link.status().last_error.expect("it is shown");
    assert!(said.contains("accepts no sends now: 503 insufficient_storage"), "{said}");
    line.answer(&again.client_message_id, 503, Some("insufficient_storage")).await;
    again = line.sent().await;
    assert!(engine.link.status().last_error.is_some());
    line.answer(&again.client_message_id, 201, None).await;
    row(&engine, "dm", |row| row.status == OutboxStatus::Done).await;
    assert_eq!(engine.link.status().last_error, None);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_put_off_sleeps() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let impatient = |link: &mut semel_daemon::link::LinkOptions| {
        link.answer_timeout = Duration::from_secs(3);
    };
    let engine = host.start_as(1, impatient).await;
    let mut line = broker.connection("one").await;
    for id in ["put-off", "unanswered"] {
        send(&engine, dm(id, 1, "hello")).await;
    }
    let first = line.sent().await;
    line.sent().await;
    line.answer(&first.client_message_id, 429, Some("rate_limited")).await;
    row(&engine, "put-off", |row| row.status == OutboxStatus::Pending && row.maybe_sent).await;
    let before = host.clock.looks();
    // Until the connection is given up nothing happens at all.
    while line.next().await.is_some() {}
    let looks = host.clock.looks() - before;
    assert!(looks < 500, "it looked {looks} times at the clock");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_panics_ends_the_daemon_with_a_message() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let broken = |link: &mut semel_daemon::link::LinkOptions| {
        link.random = std::sync::Arc::new(|| panic!("planted"));
    };
    let engine = host.start_as(1, broken).await;
    tokio::spawn(async move { broker.hello().await });
    let ended = tokio::time::timeout(crate::support::PATIENCE, engine.ended()).await;
    let ended = ended.expect("somebody notices");
    assert!(format!("{ended:?}").contains("planted"), "{ended:?}");
    assert_eq!(engine.link.status().state, LinkState::Ended, "health tells the truth");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_can_begin_anew_does() {
    let mesh = Mesh::of(2).await;
    let host = Host::new(0, mesh.url());
    // The first number is for hello; the second is for who asks about the members.
    let drawn = std::sync::atomic::AtomicU64::new(0);
    let broken = |link: &mut semel_daemon::link::LinkOptions| {
        link.random = std::sync::Arc::new(move || {
            let count = drawn.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            assert_ne!(count, 1, "planted");
            uuid::Uuid::new_v4().as_u128()
        });
    };
    let engine = host.start_as(1, broken).await;
    let known = tokio::time::timeout(crate::support::PATIENCE, engine.outbox.peers_known()).await;
    known.expect("somebody asks again").unwrap();
    state(&engine, LinkState::Connected).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_waits_at_the_broker_and_nothing_is_lost() {
    let mesh = Mesh::of(2).await;
    let (one, two) = (Host::new(0, mesh.url()), Host::new(1, mesh.url()));
    let sender = one.start().await;
    let receiver = two.start_with_inbox(2 << 20).await;
    state(&receiver, LinkState::Connected).await;
    // More than is ever on its way at once, and than fits.
    let (text, count) = ("x".repeat(20 << 10), 600);
    for number in 0..count {
        send(&sender, dm(&format!("dm-{number}"), 1, &text)).await;
    }
    let last = format!("dm-{}", count - 1);
    row(&sender, &last, |row| row.status == OutboxStatus::Done).await;
    let full = async {
        while !receiver.inbox.is_full() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::support::PATIENCE, full).await.expect("it is full");
    let stored = arrived(&receiver, 1).await.len();
    assert!(stored < count, "{stored}");
    assert_eq!(receiver.link.status().state, LinkState::Connected);
    let events = receiver.inbox.events(0, 10_000).await.unwrap();
    let told = events.iter().filter(|it| it.kind == EventKind::InboxFull);
    assert_eq!(told.count(), 1, "somebody is told");
    // It still sends.
    send(&receiver, dm("back", 0, "back")).await;
    assert_eq!(texts(&arrived(&sender, 1).await), ["back"]);
    receiver.stop().await;
    // With more room everything comes, each once and in order.
    let receiver = two.start().await;
    let messages = arrived(&receiver, count).await;
    let ids: Vec<_> = messages.iter().map(|it| it.arrived.client_message_id.to_string()).collect();
    let expected: Vec<String> = (0..count).map(|number| format!("dm-{number}")).collect();
    assert_eq!(ids, expected);
    sender.stop().await;
    receiver.stop().await;
}

/// Pushes until there is no room, and says what the last number was.
async fn fill_up(engine: &Engine, line: &mut Line, body: &str) -> i64 {
    let newest = async || -> i64 {
        let all = engine.inbox.list(Filter::default(), 1000).await.unwrap();
        all.last().map_or(0, |message| message.arrived.seq)
    };
    let mut seq = 0;
    while !engine.inbox.is_full() {
        seq += 1;
        line.say_text(&push(&[delivery(seq, body, "")])).await;
        while newest().await < seq && !engine.inbox.is_full() {
            tokio::task::yield_now().await;
        }
    }
    seq
}

/// Reads everything that has come, and waits until that has made room.
async fn make_room(engine: &Engine) {
    engine.inbox.reader_set("me", engine.inbox.newest().await.unwrap(), None).await.unwrap();
    let room = async {
        while engine.inbox.is_full() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::support::PATIENCE, room).await.expect("what was read makes room");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_behind_something_untaken_waits_for_it() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start_with_inbox(1 << 20).await;
    let mut line = broker.connection("one").await;
    let body = "A".repeat(80 << 10);
    let message = |seq| delivery(seq, &body, "");
    let seq = fill_up(&engine, &mut line, &body).await;
    // There is no room for these, and then there is.
    let (first, second) = (seq + 1, seq + 2);
    line.say_text(&push(&[message(first)])).await;
    make_room(&engine).await;
    // An acknowledgement of the second would be one of the first.
    line.say_text(&push(&[message(second)])).await;
    // The broker begins with the oldest that was not acknowledged; the one before these may be.
    line.say_text(&push(&[message(seq), message(first), message(second)])).await;
    while acked(&mut line).await < second {}
    let all = engine.inbox.list(Filter::default(), 1000).await.unwrap();
    let last: Vec<i64> = all.iter().rev().take(2).map(|message| message.arrived.seq).collect();
    assert_eq!(last, [second, first]);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_untaken_and_is_gone_at_the_broker_holds_nothing_up() {
    let broker = Scripted::new().await;
    let host = Host::new(0, broker.url());
    let engine = host.start_with_inbox(1 << 20).await;
    let mut line = broker.connection("one").await;
    let body = "A".repeat(80 << 10);
    let message = |seq| delivery(seq, &body, "");
    let seq = fill_up(&engine, &mut line, &body).await;
    line.say_text(&push(&[message(seq + 1), message(seq + 2)])).await;
    make_room(&engine).await;
    // The broker has forgotten the first of these meanwhile, and begins with the second.
    line.say_text(&push(&[message(seq + 2), message(seq + 3)])).await;
    line.say_text(&push(&[message(seq + 4)])).await;
    while acked(&mut line).await < seq + 4 {}
    let all = engine.inbox.list(Filter::default(), 1000).await.unwrap();
    let last: Vec<i64> = all.iter().rev().take(3).map(|message| message.arrived.seq).collect();
    assert_eq!(last, [seq + 4, seq + 3, seq + 2]);
    engine.stop().await;
}
