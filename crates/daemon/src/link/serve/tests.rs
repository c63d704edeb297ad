//! One connection's life, without a connection.

use std::collections::HashSet;

use semel_core::clock::Clock;
use semel_core::envelope::{Destination, DestinationKind, Envelope};
use semel_core::id::{ClientMessageId, InstanceId, UuidId};
use semel_core::mint::IdMint;
use semel_core::plausible::SweepClock;
use semel_crypto::keys::KeyPair;
use semel_store::StoreError;
use semel_store::sqlite::OnUncertain;
use semel_testkit::clock::SimClock;
use semel_wire::features::Negotiated;
use semel_wire::frame::{HelloAck, ResolveResult, Salvaged};
use semel_wire::place::{BrokerPlace, Plain};
use tokio::sync::Semaphore;
use uuid::Uuid;

use super::*;
use crate::dial::Dialler;
use crate::inbox::Inbox;
use crate::link::LinkOptions;
use crate::outbox::{NewSend, Outbox, Room};
use crate::store::outbox::Draft;

fn options() -> LinkOptions {
    let place = BrokerPlace::parse("ws://127.0.0.1:1/v1/mesh").unwrap();
    LinkOptions {
        broker: Dialler::new(place, Plain::LoopbackOnly, None),
        mesh: "local".to_owned(),
        key_id: "k1".to_owned(),
        keys: Arc::new(KeyPair::from_secret(&[7; 32])),
        instance_id: InstanceId::new(Uuid::from_u128(1)),
        version: "test".to_owned(),
        require: Vec::new(),
        optional: crate::config::Features::default().optional,
        window: LinkOptions::WINDOW,
        max_age_hours_override: None,
        answer_timeout: LinkOptions::ANSWER_TIMEOUT,
        expire_interval: LinkOptions::EXPIRE_INTERVAL,
        steady_after: LinkOptions::STEADY_AFTER,
        sweep_clock: SweepClock::new(),
        random: Arc::new(|| 5),
    }
}

/// A link that has just begun to serve, with one accepted row.
struct Bench {
    folder: tempfile::TempDir,
    clock: Arc<dyn Clock>,
    outbox: Arc<Outbox>,
    link: Link,
    serving: Serving,
}

impl Bench {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SimClock::at_ms(1_800_000_000_000));
        let mint = Arc::new(IdMint::new(Arc::clone(&clock), Box::new(|| 42)));
        let on_uncertain: OnUncertain = Arc::new(|error: &StoreError| panic!("{error}"));
        let (options, path) = (options(), folder.path().join("outbox.db"));
        let room = Room { bytes_max: u64::MAX, reserved_bytes: 0 };
        let (owner, time) = (options.instance_id, Arc::clone(&clock));
        let outbox = Outbox::open(&path, owner, room, mint, time, Arc::clone(&on_uncertain)).await;
        let outbox = Arc::new(outbox.unwrap());
        let path = folder.path().join("inbox.db");
        let inbox = Arc::new(Inbox::open(&path, Arc::clone(&clock), on_uncertain).unwrap().inbox);
        let topic = Destination::new(DestinationKind::Topic, "builds").unwrap();
        let envelope = Envelope::new(topic.clone(), b"hello".to_vec()).unwrap();
        let new = NewSend {
            client_message_id: Some(ClientMessageId::parse("one").unwrap()),
            to_given: "#builds".to_owned(),
            resolved: Ok(topic),
            draft: Draft::of(&envelope),
        };
        outbox.send(new).await.unwrap();
        let (outbox_too, time) = (Arc::clone(&outbox), Arc::clone(&clock));
        let (mut link, _handle, _marking, _status) =
            super::super::link(options, outbox_too, inbox, time, None);
        let ack = HelloAck {
            member_id: UuidId::new(Uuid::from_u128(9)),
            session_epoch: 1,
            store_epoch: "one".to_owned(),
            server_time: clock.wall(),
            next_seq: 1,
        };
        let serving = match begin(&mut link, &ack, Negotiated::default()).await {
            Ok(serving) => serving,
            Err(ended) => panic!("{}", ended.words()),
        };
        Self { folder, clock, outbox, link, serving }
    }

    /// Changes something in the outbox's file behind its back.
    fn plant(&self, sql: &str) {
        let file = semel_testkit::sqlite::open(self.folder.path().join("outbox.db")).unwrap();
        file.execute_batch(sql).unwrap();
    }

    /// How often the broker is asked what became of rows.
    fn resolves(&self) -> usize {
        let asked = self.serving.outgoing.iter();
        asked.filter(|frame| matches!(frame, FromDaemon::Resolve(_))).count()
    }
}

/// What was accepted while the file was read may be in what was read and be handed over later.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_handed_over_late_is_not_sent_twice() {
    let Bench { folder: _folder, clock, outbox, mut link, mut serving } = Bench::new().await;
    let (none, now) = (HashSet::new(), clock.wall());
    let found = outbox.sqlite.read(move |file| claim::due(file, &none, now, 10)).await.unwrap();
    for _ in 0..2 {
        serving.send(&mut link, found.due[0].clone(), clock.monotonic()).await;
    }
    assert_eq!((serving.flight.len(), serving.outgoing.len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_for_a_round_that_cannot_be_read_hears_so() {
    let mut bench = Bench::new().await;
    bench.plant("ALTER TABLE outbox RENAME TO away");
    let (now, hears_now) = oneshot::channel();
    let (next, hears_next) = oneshot::channel();
    bench.serving.resolve_next.push(next);
    bench.serving.resolve(&mut bench.link, None, vec![now], Vec::new()).await;
    let patience = Duration::from_secs(10);
    for hears in [hears_now, hears_next] {
        let heard = tokio::time::timeout(patience, hears).await.expect("nobody waits for ever");
        assert!(heard.is_err());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_given_up_is_asked_about_once_all_of_it_is_on_disk() {
    let mut bench = Bench::new().await;
    bench.plant("UPDATE outbox SET status = 'dead', outcome = 'unknown', maybe_sent = 1");
    let [one, other] = [(); 2].map(|()| bench.outbox.mint().outbox_id());
    for id in [one, other] {
        bench.serving.give_up(&mut bench.link, id, "too long".to_owned()).await;
    }
    // The marks of the first are on disk, those of the second are not.
    bench.serving.settled(&mut bench.link, vec![(one, false)]).await;
    assert_eq!(bench.resolves(), 0);
    bench.serving.settled(&mut bench.link, vec![(other, false)]).await;
    assert_eq!(bench.resolves(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_given_up_while_the_broker_is_asked_is_asked_about_next() {
    let mut bench = Bench::new().await;
    bench.plant("UPDATE outbox SET status = 'dead', outcome = 'unknown', maybe_sent = 1");
    bench.serving.resolve(&mut bench.link, None, Vec::new(), Vec::new()).await;
    let id = bench.outbox.mint().outbox_id();
    bench.serving.give_up(&mut bench.link, id, "too long".to_owned()).await;
    bench.serving.settled(&mut bench.link, vec![(id, false)]).await;
    assert_eq!(bench.resolves(), 1, "one round at a time");
    let request_id = bench.serving.resolving.as_ref().unwrap().request_id;
    let result = FromBroker::ResolveResult(ResolveResult { request_id, items: Vec::new() });
    let said = Salvaged { frame: Some(result), unread: Vec::new() };
    let (_frames, mut none) = mpsc::channel(1);
    bench.serving.heard_all(&mut bench.link, heard(said, None), &mut none).await.ok().unwrap();
    assert_eq!(bench.resolves(), 2);
}

fn heard(said: Salvaged, room: Option<tokio::sync::OwnedSemaphorePermit>) -> Heard {
    Heard { said, room }
}

/// What has come and is not in the inbox yet is in memory.
#[tokio::test(flavor = "multi_thread")]
async fn what_arrives_holds_its_room_until_it_is_stored() {
    let mut bench = Bench::new().await;
    let (arrivals, mut arriving) = mpsc::channel(10);
    bench.serving.arrivals = arrivals;
    let (_frames, mut none) = mpsc::channel(1);
    let room = Arc::new(Semaphore::new(100));
    let held = || Arc::clone(&room).try_acquire_many_owned(10).ok();
    for text in [r#"{"type":"push","deliveries":[]}"#, "nonsense"] {
        let said = FromBroker::salvage(text.as_bytes(), 1 << 10);
        bench
            .serving
            .heard_all(&mut bench.link, heard(said, held()), &mut none)
            .await
            .ok()
            .unwrap();
    }
    assert_eq!(room.available_permits(), 80);
    let pong = r#"{"type":"pong","id":1}"#;
    let said = FromBroker::salvage(pong.as_bytes(), 1 << 10);
    bench.serving.heard_all(&mut bench.link, heard(said, held()), &mut none).await.ok().unwrap();
    assert_eq!(room.available_permits(), 80, "it is over at once");
    for left in [90, 100] {
        drop(arriving.recv().await);
        assert_eq!(room.available_permits(), left);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_whose_answer_makes_no_sense_is_over() {
    let mut bench = Bench::new().await;
    let (arrivals, _arriving) = mpsc::channel(10);
    bench.serving.arrivals = arrivals;
    let (_frames, mut none) = mpsc::channel(1);
    for nonsense in [r#"{"type":"history","request_id":"?"}"#, "nonsense"] {
        bench.serving.history_asked = true;
        let said = FromBroker::salvage(nonsense.as_bytes(), 1 << 10);
        bench.serving.heard_all(&mut bench.link, heard(said, None), &mut none).await.ok().unwrap();
        assert!(!bench.serving.history_asked, "{nonsense}");
    }
    for (nonsense, over) in [
        (r#"{"type":"queue_acked","request_id":7,"colour":"red"}"#, true),
        (r#"{"type":"queue_acked","request_id":8,"colour":"red"}"#, false),
        (r#"{"type":"weather","request_id":7}"#, false),
        ("nonsense", true),
    ] {
        let (reply, _hears) = oneshot::channel();
        bench.serving.asked.insert(7, reply);
        let said = FromBroker::salvage(nonsense.as_bytes(), 1 << 10);
        bench.serving.heard_all(&mut bench.link, heard(said, None), &mut none).await.ok().unwrap();
        assert_eq!(bench.serving.asked.is_empty(), over, "{nonsense}");
    }
}

/// Put back by a plain copy, a store has the epoch that it had.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_whose_store_has_gone_back_is_told_of() {
    let mut bench = Bench::new().await;
    bench.plant("UPDATE link SET history_epoch = 'one', history_seq = 7");
    for (next_seq, went_back) in [(8, false), (7, true), (1, true), (8, false)] {
        let ack = HelloAck {
            member_id: UuidId::new(Uuid::from_u128(9)),
            session_epoch: 2,
            store_epoch: "one".to_owned(),
            server_time: bench.clock.wall(),
            next_seq,
        };
        let begun = begin(&mut bench.link, &ack, Negotiated::default()).await;
        assert!(begun.is_ok(), "messages go on");
        let said = bench.link.status.borrow().last_error.clone();
        let words = "the broker's store is older than a message that arrived here (message 7";
        assert_eq!(said.is_some_and(|said| said.starts_with(words)), went_back, "{next_seq}");
    }
}

#[test]
fn a_broker_whose_store_has_gone_back_is_in_the_log() {
    let known = Extent { store_epoch: "one".to_owned(), seq: 7 };
    let logged = |next_seq| {
        let ack = HelloAck {
            member_id: UuidId::new(Uuid::from_u128(9)),
            session_epoch: 2,
            store_epoch: "one".to_owned(),
            server_time: UnixMs(1),
            next_seq,
        };
        let log = tempfile::NamedTempFile::new().unwrap();
        let writer = Arc::new(log.reopen().unwrap());
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(writer).finish();
        let known = [Some(&known), None];
        let told = tracing::subscriber::with_default(subscriber, || went_back(&ack, known));
        assert_eq!(told.is_some(), next_seq == 7);
        std::fs::read_to_string(log.path()).unwrap()
    };
    assert_eq!(logged(8), "");
    let log = logged(7);
    let words = "the broker's store is older than a message that arrived here (message 7, ";
    assert!(log.contains("ERROR") && log.contains(words), "{log}");
}
