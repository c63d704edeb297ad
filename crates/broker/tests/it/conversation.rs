//! The handshake and its refusals, pushes and acknowledgements, replacement, draining, and frames
//! that are none.

use semel_broker::store::{Ended, MemberStatus};
use semel_core::clock::UnixMs;
use semel_core::hex::Hex;
use semel_core::id::ClientMessageId;
use semel_wire::close::CloseKind;
use semel_wire::features::{Feature, accept};
use semel_wire::frame::{
    FeatureNegotiationRequest, FromBroker, FromDaemon, HistoryRequest, Ping, Resolve, ResolveItem,
    Verdict,
};

use crate::client::{Daemon, Features, features, get, send_frame, serve, until};
use crate::support::{self, NOW};

const TOPIC: (&str, &str) = ("topic", "builds");

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_must_be_signed_for_this_broker_this_challenge_and_now() {
    let served = serve(support::sqlite().await).await;
    let refused = async |change: &dyn Fn(&Daemon, &mut semel_wire::frame::Hello)| {
        let mut daemon = Daemon::connect(served.address).await;
        let mut hello = daemon.hello(0);
        change(&daemon, &mut hello);
        daemon.say(&FromDaemon::Hello(hello)).await;
        let closed = daemon.closed().await;
        assert_eq!(closed.reason.expect("a reason").kind, CloseKind::Unauthorised);
        assert_eq!(closed.code, 4001);
    };
    refused(&|_, hello| hello.signature = Hex([1; 64])).await;
    refused(&|_, hello| hello.nonce = Hex([9; 16])).await;
    refused(&|daemon, hello| {
        hello.mesh = "other".to_owned();
        daemon.sign(0, hello);
    })
    .await;
    refused(&|daemon, hello| {
        hello.key_id = "key-1".to_owned();
        daemon.sign(0, hello);
    })
    .await;
    // A stranger's key, properly signed.
    refused(&|daemon, hello| *hello = daemon.hello(77)).await;
    // Another member's key with our signature.
    refused(&|daemon, hello| hello.pubkey = daemon.hello(1).pubkey).await;
    refused(&|daemon, hello| {
        hello.time = UnixMs(NOW.0 + 5 * 60 * 1000 + 1);
        daemon.sign(0, hello);
    })
    .await;
    let earlier = Daemon::connect(served.address).await.hello(0);
    refused(&|_, hello| *hello = earlier.clone()).await;
    assert_eq!(served.hub.connections(), 0);
    Daemon::welcomed(served.address, 0).await;
}

/// What an operator has added has an id that no daemon knows.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_an_operator_has_added_is_known_by_itself() {
    for fixture in [support::sqlite().await, support::postgres().await] {
        let sql = "UPDATE mesh.member_key SET key_id = 'operator:x' WHERE key_id = 'key-0'";
        assert_eq!(fixture.plant(sql).await, 1);
        let served = serve(fixture).await;
        Daemon::welcomed(served.address, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_before_the_features_are_agreed_on() {
    let served = serve(support::sqlite().await).await;
    let mut daemon = Daemon::welcomed(served.address, 0).await;
    let send = FromDaemon::Send(send_frame("early", TOPIC, "hi"));
    daemon.say_text(&send.encode()).await;
    assert_eq!(daemon.closed().await.code, 4008);
    assert_eq!(served.fixture.look_up(0, &["early"]).await, [None]);
    let mut daemon = Daemon::welcomed(served.address, 0).await;
    daemon.say_text(&FromDaemon::FeatureNegotiationRequest(features()).encode()).await;
    daemon.features = Features::Agreed;
    assert_eq!(daemon.send(send_frame("early", TOPIC, "hi")).await.status, 201);
}

/// The largest number that a frame can hold is in the year 287396.
#[tokio::test(flavor = "multi_thread")]
async fn a_time_that_no_calendar_has_is_refused() {
    for fixture in [support::sqlite().await, support::postgres().await] {
        let served = serve(fixture).await;
        let mut daemon = Daemon::welcomed(served.address, 0).await;
        let mut frame = send_frame("late", TOPIC, "hi");
        frame.enqueued_at = UnixMs((1 << 53) - 1);
        let refused = daemon.send(frame).await;
        assert_eq!((refused.status, refused.code.as_deref()), (400, Some("invalid_field")));
        assert_eq!(served.fixture.look_up(0, &["late"]).await, [None]);
        assert_eq!(daemon.send(send_frame("late", TOPIC, "hi")).await.status, 201);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_was_revoked_is_told_so() {
    let served = serve(support::sqlite().await).await;
    let fixture = &served.fixture;
    let (member_id, revoked) = (fixture.members[1], MemberStatus::Revoked);
    let audited = fixture.audited();
    let ended = fixture.store.member_end(fixture.mesh_id, member_id, revoked, audited);
    assert_eq!(ended.await.unwrap(), Ended::Done);
    let mut daemon = Daemon::connect(served.address).await;
    let hello = daemon.hello(1);
    daemon.say(&FromDaemon::Hello(hello)).await;
    assert_eq!(daemon.closed().await.code, 4005);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_frame_closes_the_connection_and_nothing_else() {
    let served = serve(support::sqlite().await).await;
    let mut witness = Daemon::welcomed(served.address, 1).await;
    let good = send_frame("one", TOPIC, "hi");
    let good = FromDaemon::Send(good).encode();
    let mut bad: Vec<String> =
        ["", "{}", "[]", "null", "{\"type\":\"dance\"}", "{\"type\":7}", "\u{0}"]
            .map(str::to_owned)
            .to_vec();
    bad.push(good.replace("\"send\"", "\"hello\""));
    bad.push(good.replace("{", "{\"extra\":1,"));
    bad.push(good.replace("topic", "mail"));
    bad.push(good.replacen('{', "{\"type\":\"send\",", 1));
    bad.extend((0..good.len()).step_by(7).map(|cut| good[..cut].to_owned()));
    for text in &bad {
        let mut daemon = Daemon::welcomed(served.address, 0).await;
        daemon.say_text(text).await;
        let closed = daemon.closed().await;
        assert_eq!(closed.code, 4008, "{text:?}");
    }
    for text in &bad {
        let mut daemon = Daemon::connect(served.address).await;
        daemon.say_text(text).await;
        assert_eq!(daemon.closed().await.code, 4008, "before hello: {text:?}");
    }
    witness.say(&FromDaemon::Ping(Ping { id: 5 })).await;
    assert!(matches!(witness.next().await, Ok(FromBroker::Pong(pong)) if pong.id == 5));
}

/// Every frame of the protocol, with one byte changed: it is answered, or closes its connection.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_nearly_a_frame_harms_nobody() {
    let served = serve(support::sqlite().await).await;
    let mut witness = Daemon::welcomed(served.address, 1).await;
    let document = include_str!("../../../../docs/protocol.md");
    let examples = document.lines().filter(|line| line.starts_with(r#"{"type":"#));
    let examples: Vec<&str> = examples.collect();
    assert!(examples.len() > 20, "the document shows its frames");
    let mut closed = 0;
    for number in 0..400_usize {
        let mut bytes = examples[number % examples.len()].as_bytes().to_vec();
        let at = number * 7919 % bytes.len();
        bytes[at] = b" \"0{}[],:\\a"[number % 11];
        let mut daemon = match number % 4 {
            0 => Daemon::connect(served.address).await,
            _ => Daemon::welcomed(served.address, 0).await,
        };
        daemon.say_text(&String::from_utf8_lossy(&bytes)).await;
        daemon.say(&FromDaemon::Ping(Ping { id: 9 })).await;
        loop {
            match daemon.next().await {
                Ok(FromBroker::Pong(pong)) if pong.id == 9 => break,
                Ok(_) => {}
                Err(end) => {
                    assert!([4001, 4008].contains(&end.code), "{end:?} for {bytes:?}");
                    closed += 1;
                    break;
                }
            }
        }
    }
    assert!(closed > 200, "most of them are no frames: {closed}");
    witness.say(&FromDaemon::Ping(Ping { id: 5 })).await;
    loop {
        match witness.next().await {
            Ok(FromBroker::Pong(pong)) if pong.id == 5 => break,
            Ok(_) => {}
            Err(end) => panic!("{end:?}"),
        }
    }
    until(async || served.hub.connections() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn features_are_what_a_daemon_requires() {
    let served = serve(support::sqlite().await).await;
    let mut daemon = Daemon::welcomed(served.address, 0).await;
    let names = |features: &[&str]| features.iter().map(|f| (*f).to_owned()).collect();
    let mut require: Vec<String> = names(Feature::REQUIRED);
    require.push("time_travel".to_owned());
    let request = FeatureNegotiationRequest { require, optional: names(Feature::OPTIONAL) };
    daemon.say(&FromDaemon::FeatureNegotiationRequest(request)).await;
    let Ok(FromBroker::FeatureNegotiationResponse(response)) = daemon.next().await else {
        panic!("no response");
    };
    assert_eq!(response.missing_required, ["time_travel"]);
    let negotiated = accept(Feature::REQUIRED, &response).expect("all that is required");
    assert_eq!(negotiated.max_payload.unwrap().inline_bytes, 65_536);
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_wait_for_who_is_away_and_come_in_order() {
    for fixture in [support::sqlite().await, support::postgres().await] {
        let served = serve(fixture).await;
        let mut sender = Daemon::welcomed(served.address, 0).await;
        for n in 0..5 {
            assert_eq!(sender.send(send_frame(&n.to_string(), TOPIC, "hi")).await.status, 201);
        }
        // Away until now.
        let mut receiver = Daemon::welcomed(served.address, 1).await;
        let mut seqs = Vec::new();
        while seqs.len() < 5 {
            seqs.extend(receiver.pushed().await.deliveries.iter().map(|d| d.seq));
        }
        assert_eq!(seqs, [1, 2, 3, 4, 5]);
        // Present: pushed as it is accepted.
        assert_eq!(sender.send(send_frame("live", TOPIC, "now")).await.status, 201);
        let live = receiver.pushed().await.deliveries;
        assert_eq!((live[0].seq, live[0].body.as_slice()), (6, b"now".as_slice()));
        // What was not acknowledged comes again on the next connection, and only that.
        receiver.ack(4).await;
        receiver.say(&FromDaemon::Ping(Ping { id: 1 })).await;
        assert!(matches!(receiver.next().await, Ok(FromBroker::Pong(_))));
        while served.fixture.waiting(1).await != [5, 6] {
            tokio::task::yield_now().await;
        }
        let mut receiver = Daemon::welcomed(served.address, 1).await;
        let mut seqs = Vec::new();
        while seqs.len() < 2 {
            seqs.extend(receiver.pushed().await.deliveries.iter().map(|d| d.seq));
        }
        assert_eq!(seqs, [5, 6]);
        // An acknowledgement of what was never sent is worth nothing.
        receiver.ack(1_000_000).await;
        while !served.fixture.waiting(1).await.is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(sender.send(send_frame("more", TOPIC, "hi")).await.status, 201);
        assert_eq!(receiver.pushed().await.deliveries[0].seq, 7);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_connection_takes_the_place_of_the_older() {
    let served = serve(support::sqlite().await).await;
    let (mut old, old_ack) = Daemon::greeted(served.address, 0).await;
    let mut new = Daemon::connect(served.address).await;
    let hello = new.hello(0);
    let nonce = hello.nonce;
    new.say(&FromDaemon::Hello(hello)).await;
    let Ok(FromBroker::HelloAck(new_ack)) = new.next().await else { panic!("no ack") };
    assert!(new_ack.session_epoch > old_ack.session_epoch);
    assert_eq!(new_ack.store_epoch, "epoch-1");
    let closed = old.closed().await;
    assert_eq!(closed.code, 4003);
    assert_eq!(closed.reason.unwrap().nonce, Some(nonce), "whose hello it was");
    assert_eq!(new.send(send_frame("one", TOPIC, "hi")).await.status, 201);
    while served.hub.connections() != 1 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn resolve_tells_what_became_of_a_send() {
    let served = serve(support::postgres().await).await;
    let mut daemon = Daemon::welcomed(served.address, 0).await;
    let sent = daemon.send(send_frame("one", ("queue", "work"), "hi")).await;
    let request_fingerprint = send_frame("one", ("queue", "work"), "hi").request_fingerprint;
    let item = |id: &str, enqueued_at| ResolveItem {
        client_message_id: ClientMessageId::parse(id).unwrap(),
        request_fingerprint,
        enqueued_at,
    };
    let ancient = UnixMs(0);
    let mut items = vec![item("one", ancient), item("never", NOW), item("forgotten", ancient)];
    // Somebody else's request under our id is not ours.
    let mut other = item("one", NOW);
    other.request_fingerprint = send_frame("one", TOPIC, "hi").request_fingerprint;
    items.push(other);
    daemon.say(&FromDaemon::Resolve(Resolve { request_id: 3, items })).await;
    let Ok(FromBroker::ResolveResult(result)) = daemon.next().await else { panic!("no result") };
    assert_eq!(result.request_id, 3);
    let verdicts: Vec<Verdict> = result.items.iter().map(|item| item.verdict).collect();
    let expected = [Verdict::Committed, Verdict::Absent, Verdict::TooOld, Verdict::Absent];
    assert_eq!(verdicts, expected);
    assert_eq!(result.items[0].broker_message_id, sent.broker_message_id);
    assert_eq!(result.items[0].history_id, sent.history_id);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_stops_says_so_and_ends() {
    let mut served = serve(support::sqlite().await).await;
    assert_eq!(get(served.address, "/readyz").await.0, 200);
    assert_eq!(get(served.address, "/healthz").await.0, 200);
    assert_eq!(get(served.address, "/elsewhere").await.0, 404);
    let mut daemon = Daemon::welcomed(served.address, 0).await;
    served.stop.take().unwrap().send(()).unwrap();
    assert_eq!(daemon.closed().await.code, 4013);
    drop(daemon);
    served.stopped.await.unwrap().unwrap();
}

/// What one connection may have waiting, and one frame more that is being read.
const UNWRITTEN_MAX: usize = semel_broker::limits::OUTBOUND_BYTES_MAX;

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_nobody_reads_have_a_bound_and_come_when_they_are_read() {
    const ASKED: u64 = 400;
    let served = serve(support::sqlite().await).await;
    let f = &served.fixture;
    let large = "x".repeat(20_000);
    for number in 0..4 {
        f.accept_one(f.item(0, &format!("m{number}"), TOPIC, &large)).await;
    }
    let mut deaf = Daemon::welcomed(served.address, 1).await;
    for request_id in 0..ASKED {
        let asked = HistoryRequest { request_id, after_seq: 0, limit: 64 };
        deaf.say(&FromDaemon::HistoryRequest(asked)).await;
    }
    until(async || served.hub.unwritten() > UNWRITTEN_MAX / 2).await;
    // Nobody else notices.
    let mut other = Daemon::welcomed(served.address, 0).await;
    for number in 0..50 {
        let sent = other.send(send_frame(&format!("s{number}"), TOPIC, "hi")).await;
        assert_eq!(sent.status, 201);
        assert!(served.hub.unwritten() <= UNWRITTEN_MAX + (100 << 10), "of one connection");
    }
    let mut answered = 0;
    while answered < ASKED {
        match deaf.next().await.expect("it is still welcome") {
            FromBroker::History(history) => {
                assert_eq!(history.request_id, answered);
                answered += 1;
            }
            FromBroker::Push(_) | FromBroker::FeatureNegotiationResponse(_) => {}
            other => panic!("{other:?}"),
        }
    }
    until(async || served.hub.unwritten() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_reads_late_gets_everything_once_and_in_order() {
    let served = serve(support::sqlite().await).await;
    let f = &served.fixture;
    let large = "x".repeat(60_000);
    for number in 0..240 {
        f.accept_one(f.item(0, &format!("m{number}"), TOPIC, &large)).await;
    }
    let mut late = Daemon::welcomed(served.address, 1).await;
    until(async || served.hub.unwritten() > UNWRITTEN_MAX / 2).await;
    assert!(served.hub.unwritten() <= UNWRITTEN_MAX);
    let mut expected = 1;
    while expected <= 240 {
        for delivery in late.pushed().await.deliveries {
            assert_eq!(delivery.seq, expected);
            expected += 1;
        }
        assert!(served.hub.unwritten() <= UNWRITTEN_MAX);
    }
    late.ack(240).await;
    until(async || served.hub.unwritten() == 0).await;
}
