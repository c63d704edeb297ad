//! The largest frames that the limits allow fit into the advertised size, and no sentence costs a
//! connection.

use std::sync::Arc;

use semel_core::clock::UnixMs;
use semel_core::envelope::DestinationKind;
use semel_core::fingerprint::{BodyHash, Fingerprint};
use semel_core::limits::INTEGER_MAX;
use semel_wire::close::CloseKind;
use semel_wire::frame::*;
use semel_wire::limits::*;
use semel_wire::{FromBroker, FromDaemon};

use crate::examples::{client_id, delivery, id, send};

const INLINE: [usize; 3] = [1024, INLINE_BYTES_DEFAULT, 1 << 20];

/// Every character of it needs an escape.
fn worst_id() -> String {
    "\\".repeat(255)
}

/// 16 KiB of canonical JSON in which nearly every byte needs a backslash once it is in a string.
fn worst_meta() -> String {
    format!("{{\"\":\"{}\"}}", "\\\"".repeat(8188))
}

fn worst_send(inline_bytes: usize) -> SendFrame {
    SendFrame {
        client_message_id: client_id(&worst_id()),
        destination_ref: "\u{1}".repeat(255),
        reply_to_id: Some("\u{1}".repeat(255)),
        meta: worst_meta(),
        body: vec![0xff; inline_bytes],
        request_fingerprint: Fingerprint([0; 32]),
        body_commitment: Some(BodyHash([0; 32])),
        enqueued_at: UnixMs(INTEGER_MAX),
        ..send()
    }
}

fn worst_delivery(inline_bytes: usize) -> Delivery {
    Delivery {
        seq: INTEGER_MAX,
        client_message_id: client_id(&worst_id()),
        sender_name: "\\".repeat(128),
        destination_kind: DestinationKind::Queue,
        destination_ref: "\u{1}".repeat(255),
        reply_to_id: Some("\u{1}".repeat(255)),
        meta: worst_meta(),
        body: vec![0xff; inline_bytes],
        accepted_at: UnixMs(INTEGER_MAX),
        ..delivery()
    }
}

#[test]
fn any_single_message_fits() {
    for inline_bytes in INLINE {
        let bytes_max = frame_bytes_max(inline_bytes);
        let send = FromDaemon::Send(worst_send(inline_bytes));
        assert_eq!(FromDaemon::decode(send.encode().as_bytes(), bytes_max), Ok(send));
        let push = FromBroker::Push(Push { deliveries: vec![worst_delivery(inline_bytes)] });
        assert_eq!(FromBroker::decode(push.encode().as_bytes(), bytes_max), Ok(push));
    }
}

#[test]
fn the_longest_lists_fit() {
    let bytes_max = frame_bytes_max(INLINE[0]);
    let item = ResolveItem {
        client_message_id: client_id(&worst_id()),
        request_fingerprint: Fingerprint([0; 32]),
        enqueued_at: UnixMs(INTEGER_MAX),
    };
    let items = vec![item; RESOLVE_ITEMS_MAX];
    let resolve = FromDaemon::Resolve(Resolve { request_id: 1, items });
    assert_eq!(FromDaemon::decode(resolve.encode().as_bytes(), bytes_max), Ok(resolve));
    let item = ResolvedItem {
        client_message_id: client_id(&worst_id()),
        verdict: Verdict::Committed,
        broker_message_id: Some(id(1)),
        history_id: Some(INTEGER_MAX),
    };
    let items = vec![item; RESOLVE_ITEMS_MAX];
    let result = FromBroker::ResolveResult(ResolveResult { request_id: 1, items });
    assert_eq!(FromBroker::decode(result.encode().as_bytes(), bytes_max), Ok(result));
}

#[test]
fn as_many_deliveries_as_are_said_to_fit_do() {
    for inline_bytes in INLINE {
        let bytes_max = frame_bytes_max(inline_bytes);
        for body_bytes in [0, 1, 1000, inline_bytes] {
            for delivery in [worst_delivery(body_bytes), Delivery { body: vec![0], ..delivery() }] {
                let mut deliveries = vec![delivery; 600];
                let count = fitting(&deliveries, bytes_max);
                assert!((1..=DELIVERIES_MAX).contains(&count));
                deliveries.truncate(count);
                let push = FromBroker::Push(Push { deliveries });
                let text = push.encode();
                assert!(FromBroker::decode(text.as_bytes(), bytes_max).is_ok(), "{}", text.len());
            }
        }
    }
    assert_eq!(fitting(&[], 0), 0);
    assert_eq!(fitting(&[delivery()], 0), 1);
}

/// What is written once for all who get it is the frame that each of them would get.
#[test]
fn a_push_of_what_is_written_is_the_same_frame_and_fits() {
    for inline_bytes in INLINE {
        let bytes_max = frame_bytes_max(inline_bytes);
        for body_bytes in [0, 1, 1000, inline_bytes] {
            for delivery in [worst_delivery(body_bytes), Delivery { body: vec![0], ..delivery() }] {
                let mut deliveries = vec![delivery; 600];
                let written = Arc::new(Written::from(&deliveries[0]));
                assert_eq!(written.seq(), deliveries[0].seq);
                let written = vec![written; 600];
                let count = Written::fitting(&written, bytes_max);
                assert!((fitting(&deliveries, bytes_max)..=DELIVERIES_MAX).contains(&count));
                deliveries.truncate(count);
                let text = Written::push(&written[..count]);
                assert_eq!(text, FromBroker::Push(Push { deliveries }).encode());
                assert!(text.len() <= bytes_max, "{}", text.len());
            }
        }
    }
    assert_eq!((Written::fitting(&[], 0), Written::push(&[])), (0, nothing()));
    assert_eq!(Written::fitting(&[Arc::new(Written::from(&delivery()))], 0), 1);
}

fn nothing() -> String {
    FromBroker::Push(Push { deliveries: Vec::new() }).encode()
}

#[test]
fn a_sentence_is_cut_at_a_character() {
    let reason = CloseReason::new(CloseKind::ProtocolError, "é".repeat(1000));
    let text = FromBroker::CloseReason(reason).encode();
    let read = FromBroker::decode(text.as_bytes(), HANDSHAKE_BYTES_MAX).unwrap();
    let FromBroker::CloseReason(read) = read else { panic!("{read:?}") };
    assert_eq!(read.detail, "é".repeat(DETAIL_BYTES_MAX / 2));
}

#[test]
fn the_close_frame_holds_what_it_can() {
    let short = CloseReason::new(CloseKind::Draining, "stopping");
    assert_eq!(short.close_text(), r#"{"kind":"draining","detail":"stopping"}"#);
    let long = CloseReason { feature: Some("x".repeat(60)), ..short.clone() };
    let long = CloseReason { detail: "y".repeat(200), ..long };
    let text = long.close_text();
    assert!(text.len() <= CLOSE_TEXT_BYTES_MAX && text.contains("xxx"), "{text}");
    let escaped = CloseReason { feature: Some("\"".repeat(64)), ..long };
    assert_eq!(escaped.close_text(), "draining");
}
