//! What is refused, under which code, and where it points.

use semel_core::code::Code;
use semel_core::refusal::Refusal;
use semel_wire::limits::{INLINE_BYTES_DEFAULT, frame_bytes_max};
use semel_wire::{FromBroker, FromDaemon};
use serde_json::{Value, json};

use crate::examples::{from_broker, from_daemon};

const BYTES_MAX: usize = frame_bytes_max(INLINE_BYTES_DEFAULT);

fn daemon(text: &str) -> Refusal {
    FromDaemon::decode(text.as_bytes(), BYTES_MAX).expect_err(text)
}

fn broker(text: &str) -> Refusal {
    FromBroker::decode(text.as_bytes(), BYTES_MAX).expect_err(text)
}

/// The example of this type with the value at `pointer` replaced.
fn changed(kind: &str, pointer: &str, value: Value) -> (String, bool) {
    let of_daemon = from_daemon().into_iter().find(|frame| frame.type_name() == kind);
    let of_broker = from_broker().into_iter().find(|frame| frame.type_name() == kind);
    let text = of_daemon.as_ref().map(FromDaemon::encode);
    let text = text.or_else(|| of_broker.map(|frame| frame.encode())).unwrap();
    let mut document: Value = serde_json::from_str(&text).unwrap();
    *document.pointer_mut(pointer).unwrap_or_else(|| panic!("{kind} {pointer}")) = value;
    (document.to_string(), of_daemon.is_some())
}

#[test]
fn types_of_the_other_direction_and_of_nowhere_are_unknown() {
    for text in [r#"{"type":"hullo"}"#, r#"{"type":"Ping","id":1}"#, r#"{"type":""}"#] {
        for refusal in [daemon(text), broker(text)] {
            assert_eq!((refusal.code, &*refusal.pointer), (Code::UnknownFrame, "/type"));
        }
    }
    for frame in from_broker() {
        if !FromDaemon::TYPES.contains(&frame.type_name()) {
            assert_eq!(daemon(&frame.encode()).code, Code::UnknownFrame);
        }
    }
    for frame in from_daemon() {
        if !FromBroker::TYPES.contains(&frame.type_name()) {
            assert_eq!(broker(&frame.encode()).code, Code::UnknownFrame);
        }
    }
}

#[test]
fn what_is_no_frame_at_all() {
    for (text, code, pointer) in [
        ("", Code::InvalidJson, ""),
        ("[]", Code::InvalidField, ""),
        ("7", Code::InvalidField, ""),
        ("{}", Code::MissingField, "/type"),
        (r#"{"type":7}"#, Code::InvalidField, "/type"),
        (r#"{"type":null}"#, Code::InvalidField, "/type"),
        (r#"{"type":"ping","id":1,"id":1}"#, Code::DuplicateKey, "/id"),
        (r#"{"type":"ping","id":1} "x""#, Code::InvalidJson, ""),
        (r#"{"type":"ping","id":[[[[[[[[1]]]]]]]]}"#, Code::NestingTooDeep, "/id/0/0/0/0/0/0/0"),
        (r#"{"type":"ping","id":9007199254740992}"#, Code::IntegerOutOfRange, "/id"),
    ] {
        let refusal = daemon(text);
        assert_eq!((refusal.code, &*refusal.pointer), (code, pointer), "{text}");
    }
}

/// For every field of every example: one more is unknown, one less is missing or optional, and
/// `null` is never a value.
#[test]
fn every_field_is_known_and_of_its_type() {
    let texts = from_daemon().into_iter().map(|frame| (true, frame.encode()));
    let others = from_broker().into_iter().map(|frame| (false, frame.encode()));
    for (of_daemon, text) in texts.chain(others) {
        let decode = |value: &Value| {
            let text = value.to_string();
            match of_daemon {
                true => FromDaemon::decode(text.as_bytes(), BYTES_MAX).map(|_| ()),
                false => FromBroker::decode(text.as_bytes(), BYTES_MAX).map(|_| ()),
            }
        };
        let document: Value = serde_json::from_str(&text).unwrap();
        let mut more = document.clone();
        more["a/b"] = json!(1);
        let refusal = decode(&more).expect_err(&text);
        assert_eq!((refusal.code, &*refusal.pointer), (Code::UnknownField, "/a~1b"), "{text}");
        for field in document.as_object().unwrap().keys().filter(|field| *field != "type") {
            let mut without = document.clone();
            without.as_object_mut().unwrap().remove(field);
            if let Err(refusal) = decode(&without) {
                let expected = (Code::MissingField, format!("/{field}"));
                assert_eq!((refusal.code, refusal.pointer), expected, "{text}");
            }
            let mut null = document.clone();
            null[field] = Value::Null;
            let refusal = decode(&null).expect_err(&text);
            assert_eq!(refusal.code, Code::InvalidField, "{text}");
            assert_eq!(refusal.pointer, format!("/{field}"), "{text}");
        }
    }
}

#[test]
fn values_that_a_field_cannot_have() {
    let long = "x".repeat(256);
    let many = |count: usize| Value::from(vec![1; count]);
    for (kind, pointer, value) in [
        ("hello", "/mesh", json!("")),
        ("hello", "/mesh", json!("a\u{0}b")),
        ("hello", "/key_id", json!("x".repeat(65))),
        ("hello", "/pubkey", json!("A1".repeat(32))),
        ("hello", "/pubkey", json!("a1".repeat(31))),
        ("hello", "/nonce", json!("a1".repeat(32))),
        ("hello", "/signature", json!("f6".repeat(63))),
        ("hello", "/instance_id", json!("018BCFE5-6800-7000-8000-000000000002")),
        ("hello", "/retire/0", json!("018bcfe5680070008000000000000002")),
        ("hello", "/time", json!(-1)),
        ("hello", "/time", json!(1.5)),
        ("hello", "/time", json!("1700000000000")),
        ("feature_negotiation_request", "/require/1", json!("")),
        ("feature_negotiation_response", "/supported/key_epoch", json!(1)),
        ("feature_negotiation_response", "/supported", json!({"": {}})),
        ("send", "/envelope_version", json!("2")),
        ("send", "/destination_kind", json!("room")),
        ("send", "/destination_ref", json!(long)),
        ("send", "/destination_ref", json!("")),
        ("send", "/priority", json!("Now")),
        ("send", "/meta", json!("{\"b\":1,\"a\":2}")),
        ("send", "/meta", json!("{}")),
        ("send", "/meta", json!("[]")),
        ("send", "/meta", json!({})),
        ("send", "/body", json!("ZG9uZQ")),
        ("send", "/body", json!("ZG9uZR==")),
        ("send", "/body", json!("ZG9u\nZQ==")),
        ("send", "/request_fingerprint", json!("00")),
        ("resolve", "/items", many(501)),
        ("resolve", "/items/0/enqueued_at", json!("now")),
        ("history_request", "/limit", json!(0)),
        ("history_request", "/limit", json!(501)),
        ("queue_take", "/max", json!(101)),
        ("queue_take", "/lease_ms", json!(0)),
        ("queue_ack", "/seqs", many(501)),
        ("queue_ack", "/seqs/1", json!(-1)),
        ("close_reason", "/kind", json!("tired")),
        ("close_reason", "/detail", json!("x".repeat(1025))),
        ("send_result", "/status", json!(99)),
        ("send_result", "/duplicate", json!("false")),
        ("resolve_result", "/items/1/verdict", json!("maybe")),
        ("push", "/deliveries", json!({})),
        ("push", "/deliveries/0/destination_ref", json!("builds")),
        ("push", "/deliveries/0/sender_name", json!("a\nb")),
        ("push", "/deliveries/0/reply_to_id", json!("")),
        ("presence", "/online", json!(1)),
        ("presence_count", "/online", json!(-1)),
        ("presence_count", "/names", json!("no")),
        ("presence_request", "/members", many(501)),
        ("presence_request", "/members/1", json!("ada")),
        ("presence_result", "/online", many(501)),
    ] {
        let (text, of_daemon) = changed(kind, pointer, value);
        let refusal = if of_daemon { daemon(&text) } else { broker(&text) };
        assert_eq!((refusal.code, &*refusal.pointer), (Code::InvalidField, pointer), "{text}");
    }
}

#[test]
fn refusals_with_codes_of_their_own() {
    for (kind, pointer, value, code, place) in [
        ("send", "/client_message_id", json!(" a"), Code::InvalidClientMessageId, ""),
        ("send", "/destination_ref", json!("a\u{0}"), Code::NulInField, ""),
        ("push", "/deliveries/0/reply_to_id", json!("a\u{0}"), Code::NulInField, ""),
        ("send", "/meta", json!("{\"a\":1,\"a\":1}"), Code::DuplicateKey, "/a"),
        ("send", "/meta", json!("{\"a\":"), Code::InvalidJson, "/a"),
        ("push", "/deliveries/0/client_message_id", json!(""), Code::InvalidClientMessageId, ""),
    ] {
        let (text, of_daemon) = changed(kind, pointer, value);
        let refusal = if of_daemon { daemon(&text) } else { broker(&text) };
        assert_eq!((refusal.code, refusal.pointer), (code, format!("{pointer}{place}")), "{text}");
    }
}
