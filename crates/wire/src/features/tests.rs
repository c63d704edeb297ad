//! The table of mesh.md §8, walked: what is offered, and what the daemon makes of it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::frame::{FeatureNegotiationRequest, FeatureNegotiationResponse, FromBroker};
use crate::limits::HANDSHAKE_BYTES_MAX;

const OFFER: Offer = Offer {
    dedupe: Dedupe {
        window: DedupeWindow::RetentionScoped { days: 365 },
        tombstone_history_pruned_window_days: Some(30),
    },
    connection_policy: ConnectionPolicy::PreferOldest,
    max_concurrent_epochs: 2,
    max_payload: MaxPayload { inline_bytes: 65_536, blob_bytes: 500_000_000 },
};

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn request() -> FeatureNegotiationRequest {
    let (require, optional) = (words(Feature::REQUIRED), words(Feature::OPTIONAL));
    FeatureNegotiationRequest { require, optional }
}

/// The full offer, with one parameter changed (`null` removes it).
fn changed(bit: &str, name: &str, value: Value) -> FeatureNegotiationResponse {
    let mut response = OFFER.respond(&request());
    let params = response.supported.get_mut(bit).unwrap();
    params.insert(name.to_owned(), value);
    params.retain(|_, value| !value.is_null());
    response
}

#[test]
fn an_offer_is_accepted_as_it_was_made_also_over_the_wire() {
    for window in [DedupeWindow::Permanent, DedupeWindow::RetentionScoped { days: 3 }] {
        let offer = Offer { dedupe: Dedupe { window, ..OFFER.dedupe }, ..OFFER };
        let frame = FromBroker::FeatureNegotiationResponse(offer.respond(&request()));
        let read = FromBroker::decode(frame.encode().as_bytes(), HANDSHAKE_BYTES_MAX);
        assert_eq!(read.as_ref(), Ok(&frame));
        let FromBroker::FeatureNegotiationResponse(response) = frame else { panic!("changed") };
        let negotiated = accept(Feature::REQUIRED, &response).unwrap();
        let expected = Negotiated {
            dedupe: Some(offer.dedupe),
            connection_policy: Some(offer.connection_policy),
            member_keypair_rotated_event: true,
            max_concurrent_epochs: Some(offer.max_concurrent_epochs),
            max_payload: Some(offer.max_payload),
            ignored: Vec::new(),
        };
        assert_eq!(negotiated, expected);
    }
}

#[test]
fn only_what_was_asked_for_is_answered() {
    let request =
        FeatureNegotiationRequest { require: words(&["x", "key_epoch"]), optional: words(&["y"]) };
    let response = OFFER.respond(&request);
    assert_eq!(response.supported.keys().collect::<Vec<_>>(), ["key_epoch"]);
    assert_eq!(response.missing_required, ["x"]);
}

#[test]
fn every_way_in_which_a_bit_can_be_wrong() {
    use CloseKind::{FeatureParamBelowFloor as Floor, FeatureParamInvalid as Invalid};
    let dedupe = "client_message_id_dedupe";
    #[rustfmt::skip]
    let table = [
        (dedupe,        "version",               json!(null),     Invalid),
        (dedupe,        "version",               json!(2),        Invalid),
        (dedupe,        "version",               json!("1"),      Invalid),
        (dedupe,        "mode",                  json!(null),     Invalid),
        (dedupe,        "mode",                  json!("weekly"), Invalid),
        (dedupe,        "mode",                  json!(1),        Invalid),
        (dedupe,        "dedupe_retention_days", json!(null),     Invalid),
        (dedupe,        "dedupe_retention_days", json!("365"),    Invalid),
        (dedupe,        "dedupe_retention_days", json!(3.5),      Invalid),
        (dedupe,        "dedupe_retention_days", json!(2),        Floor),
        (dedupe,        "dedupe_retention_days", json!(0),        Floor),
        (dedupe,        "dedupe_retention_days", json!(-1),       Floor),
        (dedupe,        "request_fingerprint",   json!(null),     Invalid),
        (dedupe,        "request_fingerprint",   json!(false),    Invalid),
        (dedupe,        "request_fingerprint",   json!("true"),   Invalid),
        ("concurrent_connection_policy", "version",  json!(9),    Invalid),
        ("member_keypair_rotated_event", "version",  json!(null), Invalid),
        ("key_epoch",   "max_concurrent_epochs", json!(null),     Invalid),
        ("key_epoch",   "max_concurrent_epochs", json!([]),       Invalid),
        ("key_epoch",   "max_concurrent_epochs", json!(0),        Floor),
        ("max_payload", "inline_bytes",          json!(null),     Invalid),
        ("max_payload", "inline_bytes",          json!(1023),     Floor),
        ("max_payload", "blob_bytes",            json!(true),     Invalid),
        ("max_payload", "blob_bytes",            json!(0),        Floor),
    ];
    for (bit, name, value, kind) in table {
        let response = changed(bit, name, value.clone());
        let refusal = accept(&[bit], &response).expect_err(name);
        assert_eq!((refusal.kind, &*refusal.feature), (kind, bit), "{name} {value}: {refusal:?}");
        assert!(refusal.detail.contains(name), "{refusal:?}");
        assert_eq!(refusal.close_reason().kind.code().as_u16(), 4010);
        // The same bit, not required: the daemon goes on without it and says so.
        let negotiated = accept(&[], &response).unwrap();
        assert_eq!(negotiated.ignored.len(), 1, "{name} {value}");
        assert_eq!(negotiated.ignored[0].feature.as_str(), bit);
    }
}

#[test]
fn a_required_bit_that_is_absent_is_unavailable() {
    let mut response = OFFER.respond(&request());
    for bit in Feature::ALL {
        let mut without = response.clone();
        without.supported.remove(bit.as_str());
        let refusal = accept(&[bit.as_str()], &without).expect_err(bit.as_str());
        assert_eq!(refusal.kind, CloseKind::FeatureUnavailable);
        assert_eq!(refusal.feature, bit.as_str());
        assert_eq!(accept(&[], &without).unwrap().ignored, []);
    }
    response.missing_required = words(&["key_epoch"]);
    let refusal = accept(&["key_epoch"], &response).expect_err("listed as missing");
    assert_eq!(refusal.kind, CloseKind::FeatureUnavailable);
    response.supported.insert("new".to_owned(), BTreeMap::new());
    let refusal = accept(&["new"], &response).expect_err("not ours");
    assert_eq!(refusal.kind, CloseKind::FeatureUnavailable);
}

#[test]
fn an_invalid_optional_parameter_falls_back_and_is_told() {
    let name = "tombstone_history_pruned_window_days";
    for (bit, name, value, notes) in [
        ("client_message_id_dedupe", name, json!("x"), 1),
        ("client_message_id_dedupe", name, json!(-1), 1),
        ("client_message_id_dedupe", name, json!(null), 0),
        ("concurrent_connection_policy", "default_policy", json!("coin"), 1),
        ("concurrent_connection_policy", "default_policy", json!(7), 1),
        ("concurrent_connection_policy", "default_policy", json!(null), 0),
        ("max_payload", "a_parameter_of_tomorrow", json!(1), 0),
    ] {
        let negotiated = accept(Feature::REQUIRED, &changed(bit, name, value.clone())).unwrap();
        assert_eq!(negotiated.ignored.len(), notes, "{name} {value}");
        if name == "default_policy" {
            assert_eq!(negotiated.connection_policy, Some(ConnectionPolicy::PreferNewest));
        } else if bit == "client_message_id_dedupe" {
            let dedupe = negotiated.dedupe.unwrap();
            assert_eq!(dedupe.tombstone_history_pruned_window_days, None);
        }
    }
}

#[test]
fn the_first_of_several_refusals_is_that_of_the_first_requirement() {
    let mut response = changed("max_payload", "inline_bytes", json!(1));
    response.supported.remove("key_epoch");
    let kind = |required| accept(required, &response).map_err(|refusal| refusal.kind);
    assert_eq!(kind(&["key_epoch", "max_payload"]), Err(CloseKind::FeatureUnavailable));
    assert_eq!(kind(&["max_payload", "key_epoch"]), Err(CloseKind::FeatureParamBelowFloor));
}
