//! One frame of each type, as `docs/protocol.md` shows it.

use semel_core::clock::UnixMs;
use semel_core::envelope::{DestinationKind, Priority};
use semel_core::fingerprint::{BodyHash, Fingerprint};
use semel_core::hex::Hex;
use semel_core::id::{BrokerMessageId, ClientMessageId, UuidId};
use semel_core::max_age::DedupeWindow;
use semel_wire::close::CloseKind;
use semel_wire::features::{ConnectionPolicy, Dedupe, Feature, MaxPayload, Offer};
use semel_wire::frame::*;
use uuid::Uuid;

pub(crate) const NOW: UnixMs = UnixMs(1_700_000_000_000);

pub(crate) fn id<Kind>(number: u128) -> UuidId<Kind> {
    UuidId::new(Uuid::from_u128(0x018b_cfe5_6800_7000_8000_0000_0000_0000 + number))
}

pub(crate) fn client_id(text: &str) -> ClientMessageId {
    ClientMessageId::parse(text).unwrap()
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn features() -> FeatureNegotiationRequest {
    let (require, optional) = (words(Feature::REQUIRED), words(Feature::OPTIONAL));
    FeatureNegotiationRequest { require, optional }
}

fn offer() -> Offer {
    Offer {
        dedupe: Dedupe {
            window: DedupeWindow::RetentionScoped { days: 365 },
            tombstone_history_pruned_window_days: None,
        },
        connection_policy: ConnectionPolicy::PreferNewest,
        max_concurrent_epochs: 2,
        max_payload: MaxPayload { inline_bytes: 65_536, blob_bytes: 500_000_000 },
    }
}

pub(crate) fn send() -> SendFrame {
    let mut send = SendFrame {
        client_message_id: client_id("deploy-1"),
        destination_kind: DestinationKind::Topic,
        destination_ref: "builds".to_owned(),
        reply_to_id: None,
        priority: Priority::Next,
        meta: r#"{"build":7}"#.to_owned(),
        body: b"done".to_vec(),
        request_fingerprint: Fingerprint([0; 32]),
        body_commitment: None,
        enqueued_at: NOW,
    };
    send.request_fingerprint = send.fingerprint().unwrap();
    send
}

pub(crate) fn delivery() -> Delivery {
    let delivery = Delivery {
        seq: 42,
        broker_message_id: id(4),
        client_message_id: client_id("deploy-1"),
        sender_member_id: id(3),
        sender_pubkey: Hex([0xa1; 32]),
        sender_name: "ada".to_owned(),
        destination_kind: DestinationKind::Dm,
        destination_ref: Hex([0xb2; 32]).to_string(),
        reply_to_id: Some(id::<()>(9).to_string()),
        priority: Priority::Now,
        meta: String::new(),
        body: vec![0, 255, 16],
        request_fingerprint: Fingerprint(
            Hex::parse("ba7e9d68c97ac180b683975b7aa654af24e9fc05faf8e7c626c650cc23e1ebd5")
                .unwrap()
                .0,
        ),
        body_commitment: Some(BodyHash([0xc3; 32])),
        accepted_at: NOW,
    };
    assert!(delivery.is_whole());
    delivery
}

pub(crate) fn from_daemon() -> Vec<FromDaemon> {
    vec![
        FromDaemon::Hello(Hello {
            mesh: "ops".to_owned(),
            pubkey: Hex([0xa1; 32]),
            key_id: "k1".to_owned(),
            instance_id: id(2),
            host_fingerprint: Some(Hex([0xd4; 32])),
            version: "0.1.0".to_owned(),
            time: NOW,
            nonce: Hex([0xe5; 16]),
            retire: vec![id(8)],
            signature: Hex([0xf6; 64]),
        }),
        FromDaemon::FeatureNegotiationRequest(features()),
        FromDaemon::Send(send()),
        FromDaemon::Resolve(Resolve {
            request_id: 1,
            items: vec![ResolveItem {
                client_message_id: client_id("deploy-1"),
                request_fingerprint: Fingerprint([0; 32]),
                enqueued_at: NOW,
            }],
        }),
        FromDaemon::Ack(Ack { seq: 42 }),
        FromDaemon::HistoryRequest(HistoryRequest { request_id: 2, after_seq: 41, limit: 500 }),
        FromDaemon::QueueTake(QueueTake {
            request_id: 3,
            queue: "thumbnails".to_owned(),
            max: 10,
            lease_ms: Some(60_000),
        }),
        FromDaemon::QueueAck(QueueAck {
            request_id: 4,
            queue: "thumbnails".to_owned(),
            seqs: vec![42, 43],
        }),
        FromDaemon::PresenceRequest(PresenceRequest { request_id: 5, members: vec![id(3), id(5)] }),
        FromDaemon::Ping(Ping { id: 7 }),
        FromDaemon::Pong(Pong { id: 7 }),
        FromDaemon::CloseReason(close_reason()),
    ]
}

fn close_reason() -> CloseReason {
    CloseReason {
        kind: CloseKind::FeatureParamBelowFloor,
        feature: Some("client_message_id_dedupe".to_owned()),
        detail: "dedupe_retention_days is 2, at least 3 is needed".to_owned(),
        nonce: None,
    }
}

pub(crate) fn from_broker() -> Vec<FromBroker> {
    vec![
        FromBroker::Challenge(Challenge { nonce: Hex([0x11; 32]), broker_id: id(1), time: NOW }),
        FromBroker::HelloAck(HelloAck {
            member_id: id(3),
            session_epoch: 17,
            store_epoch: "018bcfe5".to_owned(),
            server_time: NOW,
            next_seq: 42,
        }),
        FromBroker::FeatureNegotiationResponse(offer().respond(&features())),
        FromBroker::CloseReason(close_reason()),
        FromBroker::SendResult(SendResult {
            broker_message_id: Some(id(4)),
            history_id: Some(42),
            duplicate: Some(false),
            ..SendResult::new(client_id("deploy-1"), 201)
        }),
        FromBroker::ResolveResult(ResolveResult {
            request_id: 1,
            items: vec![resolved("deploy-1", Some(id(4))), resolved("deploy-2", None)],
        }),
        FromBroker::Push(Push { deliveries: vec![delivery()] }),
        FromBroker::History(History {
            request_id: 2,
            deliveries: vec![delivery()],
            next_after_seq: Some(42),
        }),
        FromBroker::QueueTaken(QueueTaken {
            request_id: 3,
            deliveries: vec![],
            lease_until: UnixMs(NOW.0 + 60_000),
        }),
        FromBroker::QueueAcked(QueueAcked { request_id: 4, acked: vec![42] }),
        FromBroker::Presence(Presence {
            member_id: id(3),
            name: "ada".to_owned(),
            pubkey: Hex([0xa1; 32]),
            online: true,
        }),
        FromBroker::PresenceCount(PresenceCount { online: 3000, names: false }),
        FromBroker::PresenceResult(PresenceResult { request_id: 5, online: vec![id(3)] }),
        FromBroker::MemberRevoked(MemberRevoked {}),
        FromBroker::RequestFailed(RequestFailed {
            request_id: 4,
            code: "queue_not_found".to_owned(),
            detail: "there is no queue thumbnails".to_owned(),
        }),
        FromBroker::Ping(Ping { id: 7 }),
        FromBroker::Pong(Pong { id: 7 }),
    ]
}

fn resolved(client_message_id: &str, committed: Option<BrokerMessageId>) -> ResolvedItem {
    ResolvedItem {
        client_message_id: client_id(client_message_id),
        verdict: if committed.is_some() { Verdict::Committed } else { Verdict::Absent },
        broker_message_id: committed,
        history_id: committed.map(|_| 42),
    }
}

#[test]
fn there_is_an_example_of_every_type() {
    let types: Vec<_> = from_daemon().iter().map(FromDaemon::type_name).collect();
    assert_eq!(types, FromDaemon::TYPES);
    let types: Vec<_> = from_broker().iter().map(FromBroker::type_name).collect();
    assert_eq!(types, FromBroker::TYPES);
}
