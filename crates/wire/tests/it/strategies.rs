//! Every frame with every value that its fields can have, for property tests.

use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;
use semel_core::canonical::Meta;
use semel_core::clock::UnixMs;
use semel_core::envelope::{DestinationKind, Priority};
use semel_core::fingerprint::{BodyHash, Fingerprint};
use semel_core::hex::Hex;
use semel_core::id::{ClientMessageId, UuidId};
use semel_core::limits::INTEGER_MAX;
use semel_wire::close::CloseKind;
use semel_wire::frame::*;
use serde_json::{Map, Value};
use uuid::Uuid;

fn hex<const N: usize>() -> impl Strategy<Value = Hex<N>> {
    vec(any::<u8>(), N).prop_map(|bytes| Hex(bytes.try_into().unwrap()))
}

fn uuid<Kind: std::fmt::Debug>() -> impl Strategy<Value = UuidId<Kind>> {
    any::<u128>().prop_map(|bits| UuidId::new(Uuid::from_u128(bits)))
}

fn client_id() -> impl Strategy<Value = ClientMessageId> {
    "[!-~]([ -~]{0,40}[!-~])?".prop_map(|text| ClientMessageId::parse(&text).unwrap())
}

fn seq() -> impl Strategy<Value = i64> {
    prop_oneof![Just(0), Just(INTEGER_MAX), 0..=INTEGER_MAX]
}

fn number() -> impl Strategy<Value = u64> {
    seq().prop_map(i64::unsigned_abs)
}

fn time() -> impl Strategy<Value = UnixMs> {
    seq().prop_map(UnixMs)
}

fn name() -> impl Strategy<Value = String> {
    "[^\\p{Cc}]{1,16}"
}

fn detail() -> impl Strategy<Value = String> {
    ".{0,60}"
}

fn meta() -> impl Strategy<Value = String> {
    let value = prop_oneof![any::<bool>().prop_map(Value::from), ".{0,8}".prop_map(Value::from)];
    proptest::collection::btree_map(".{0,6}", value, 0..4).prop_map(|map| {
        let object: Map<String, Value> = map.into_iter().collect();
        Meta::new(&object).unwrap().as_str().to_owned()
    })
}

fn destination() -> impl Strategy<Value = (DestinationKind, String)> {
    prop_oneof![
        ("[^\0]{1,20}").prop_map(|name| (DestinationKind::Topic, name)),
        ("[^\0]{1,20}").prop_map(|name| (DestinationKind::Queue, name)),
        hex::<32>().prop_map(|key| (DestinationKind::Dm, key.to_string())),
    ]
}

fn priority() -> impl Strategy<Value = Priority> {
    select(Priority::ALL)
}

fn commitment() -> impl Strategy<Value = Option<BodyHash>> {
    of(hex::<32>().prop_map(|hex| BodyHash(hex.0)))
}

fn reply() -> impl Strategy<Value = Option<String>> {
    of("[^\0]{1,20}")
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..40)
}

fn send() -> impl Strategy<Value = SendFrame> {
    let message = (destination(), reply(), priority(), meta(), body());
    (client_id(), message, hex::<32>(), commitment(), time()).prop_map(
        |(client_message_id, message, fingerprint, body_commitment, enqueued_at)| {
            let ((destination_kind, destination_ref), reply_to_id, priority, meta, body) = message;
            SendFrame {
                client_message_id,
                destination_kind,
                destination_ref,
                reply_to_id,
                priority,
                meta,
                body,
                request_fingerprint: Fingerprint(fingerprint.0),
                body_commitment,
                enqueued_at,
            }
        },
    )
}

fn delivery() -> impl Strategy<Value = Delivery> {
    let message = (destination(), reply(), priority(), meta(), body(), commitment());
    (seq(), uuid(), client_id(), (uuid(), hex(), name()), message, (time(), hex::<32>())).prop_map(
        |(seq, broker_message_id, client_message_id, sender, message, rest)| {
            let (accepted_at, fingerprint) = rest;
            let (sender_member_id, sender_pubkey, sender_name) = sender;
            let (destination, reply_to_id, priority, meta, body, body_commitment) = message;
            let (destination_kind, destination_ref) = destination;
            Delivery {
                seq,
                broker_message_id,
                client_message_id,
                sender_member_id,
                sender_pubkey,
                sender_name,
                destination_kind,
                destination_ref,
                reply_to_id,
                priority,
                meta,
                body,
                request_fingerprint: Fingerprint(fingerprint.0),
                body_commitment,
                accepted_at,
            }
        },
    )
}

fn deliveries() -> impl Strategy<Value = Vec<Delivery>> {
    vec(delivery(), 0..4)
}

fn hello() -> impl Strategy<Value = Hello> {
    let who = (name(), hex(), name(), uuid(), of(hex()));
    (who, name(), time(), hex(), vec(uuid(), 0..3), hex()).prop_map(
        |(who, version, time, nonce, retire, signature)| {
            let (mesh, pubkey, key_id, instance_id, host_fingerprint) = who;
            Hello {
                mesh,
                pubkey,
                key_id,
                instance_id,
                host_fingerprint,
                version,
                time,
                nonce,
                retire,
                signature,
            }
        },
    )
}

fn close_reason() -> impl Strategy<Value = CloseReason> {
    (select(CloseKind::ALL), of(name()), detail(), of(hex()))
        .prop_map(|(kind, feature, detail, nonce)| CloseReason { kind, feature, detail, nonce })
}

pub(crate) fn from_daemon() -> impl Strategy<Value = FromDaemon> {
    let item = (client_id(), hex::<32>(), time()).prop_map(|(client_message_id, print, at)| {
        let request_fingerprint = Fingerprint(print.0);
        ResolveItem { client_message_id, request_fingerprint, enqueued_at: at }
    });
    prop_oneof![
        hello().prop_map(FromDaemon::Hello),
        (vec(name(), 0..3), vec(name(), 0..3)).prop_map(|(require, optional)| {
            FromDaemon::FeatureNegotiationRequest(FeatureNegotiationRequest { require, optional })
        }),
        send().prop_map(FromDaemon::Send),
        (number(), vec(item, 0..4))
            .prop_map(|(request_id, items)| FromDaemon::Resolve(Resolve { request_id, items })),
        seq().prop_map(|seq| FromDaemon::Ack(Ack { seq })),
        (number(), seq(), 1..=500_u64).prop_map(|(request_id, after_seq, limit)| {
            FromDaemon::HistoryRequest(HistoryRequest { request_id, after_seq, limit })
        }),
        (number(), name(), 1..=100_u64, of(1..=86_400_000_u64)).prop_map(
            |(request_id, queue, max, lease_ms)| {
                FromDaemon::QueueTake(QueueTake { request_id, queue, max, lease_ms })
            }
        ),
        (number(), name(), vec(seq(), 0..5)).prop_map(|(request_id, queue, seqs)| {
            FromDaemon::QueueAck(QueueAck { request_id, queue, seqs })
        }),
        (number(), vec(uuid(), 0..5)).prop_map(|(request_id, members)| {
            FromDaemon::PresenceRequest(PresenceRequest { request_id, members })
        }),
        number().prop_map(|id| FromDaemon::Ping(Ping { id })),
        number().prop_map(|id| FromDaemon::Pong(Pong { id })),
        close_reason().prop_map(FromDaemon::CloseReason),
    ]
}

fn send_result() -> impl Strategy<Value = SendResult> {
    let first = (of(name()), of(uuid()), of(seq()), of(any::<bool>()), of(any::<bool>()));
    let second = (of(time()), of(name()), of(hex()), of(0..=86_400_000_u64), of(detail()));
    (client_id(), 200..=599_u16, first, second).prop_map(
        |(client_message_id, status, first, second)| {
            let (code, broker_message_id, history_id, duplicate, history_available) = first;
            let (first_seen_at, conflict, broker_fingerprint_prefix, retry_after_ms, detail) =
                second;
            SendResult {
                client_message_id,
                status,
                code,
                broker_message_id,
                history_id,
                duplicate,
                history_available,
                first_seen_at,
                conflict,
                broker_fingerprint_prefix,
                retry_after_ms,
                detail,
            }
        },
    )
}

fn response() -> impl Strategy<Value = FeatureNegotiationResponse> {
    let value = prop_oneof![
        any::<bool>().prop_map(Value::from),
        seq().prop_map(Value::from),
        detail().prop_map(Value::from)
    ];
    let params = proptest::collection::btree_map(name(), value, 0..3);
    (proptest::collection::btree_map(name(), params, 0..3), vec(name(), 0..3)).prop_map(
        |(supported, missing_required)| FeatureNegotiationResponse { supported, missing_required },
    )
}

fn resolve_result() -> impl Strategy<Value = ResolveResult> {
    let item = (client_id(), select(Verdict::ALL), of(uuid()), of(seq())).prop_map(
        |(client_message_id, verdict, broker_message_id, history_id)| ResolvedItem {
            client_message_id,
            verdict,
            broker_message_id,
            history_id,
        },
    );
    (number(), vec(item, 0..4)).prop_map(|(request_id, items)| ResolveResult { request_id, items })
}

pub(crate) fn from_broker() -> impl Strategy<Value = FromBroker> {
    prop_oneof![
        (hex(), uuid(), time()).prop_map(|(nonce, broker_id, time)| {
            FromBroker::Challenge(Challenge { nonce, broker_id, time })
        }),
        (uuid(), seq(), name(), time(), seq()).prop_map(
            |(member_id, session_epoch, store_epoch, server_time, next_seq)| {
                let ack = HelloAck { member_id, session_epoch, store_epoch, server_time, next_seq };
                FromBroker::HelloAck(ack)
            }
        ),
        response().prop_map(FromBroker::FeatureNegotiationResponse),
        close_reason().prop_map(FromBroker::CloseReason),
        send_result().prop_map(FromBroker::SendResult),
        resolve_result().prop_map(FromBroker::ResolveResult),
        deliveries().prop_map(|deliveries| FromBroker::Push(Push { deliveries })),
        (number(), deliveries(), of(seq())).prop_map(|(request_id, deliveries, next_after_seq)| {
            FromBroker::History(History { request_id, deliveries, next_after_seq })
        }),
        (number(), deliveries(), time()).prop_map(|(request_id, deliveries, lease_until)| {
            FromBroker::QueueTaken(QueueTaken { request_id, deliveries, lease_until })
        }),
        (number(), vec(seq(), 0..4)).prop_map(|(request_id, acked)| {
            FromBroker::QueueAcked(QueueAcked { request_id, acked })
        }),
        (uuid(), name(), hex(), any::<bool>()).prop_map(|(member_id, name, pubkey, online)| {
            FromBroker::Presence(Presence { member_id, name, pubkey, online })
        }),
        (number(), any::<bool>()).prop_map(|(online, names)| {
            FromBroker::PresenceCount(PresenceCount { online, names })
        }),
        (number(), vec(uuid(), 0..5)).prop_map(|(request_id, online)| {
            FromBroker::PresenceResult(PresenceResult { request_id, online })
        }),
        Just(FromBroker::MemberRevoked(MemberRevoked {})),
        (number(), name(), detail()).prop_map(|(request_id, code, detail)| {
            FromBroker::RequestFailed(RequestFailed { request_id, code, detail })
        }),
        number().prop_map(|id| FromBroker::Ping(Ping { id })),
        number().prop_map(|id| FromBroker::Pong(Pong { id })),
    ]
}
