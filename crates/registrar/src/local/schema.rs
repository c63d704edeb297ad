//! The shapes of answers, for the OpenAPI document. A test compares live answers with them.

use semel_api::schema::{
    any_object, flag, list_of, maybe_number, maybe_object, maybe_text, number, record, text, time,
    word,
};
use serde_json::Value;

/// What problem documents say besides.
pub(super) fn problem_fields() -> Vec<(&'static str, Value)> {
    vec![
        ("outcome?", text()),
        ("logical_request_key?", text()),
        ("can_proceed?", text()),
        ("result?", maybe_object()),
    ]
}

pub(super) fn registered() -> Value {
    record(
        "EffectRegistered",
        &[
            ("outcome", text()),
            ("replayed", flag()),
            ("logical_request_key", text()),
            ("result", maybe_object()),
        ],
    )
}

pub(super) fn granted() -> Value {
    record(
        "GrantIssued",
        &[
            ("grant", any_object()),
            ("nonce", text()),
            ("logical_request_key", text()),
            ("replay_key", text()),
            ("domain", text()),
            ("not_before", time()),
            ("not_after", time()),
            ("issuer", text()),
        ],
    )
}

pub(super) fn grants() -> Value {
    list_of(record(
        "GrantState",
        &[
            ("nonce", text()),
            ("logical_request_key", text()),
            ("state", text()),
            ("not_before", time()),
            ("not_after", time()),
            ("issued_at", time()),
        ],
    ))
}

pub(super) fn audit() -> Value {
    list_of(record(
        "AuditLine",
        &[
            ("entry", number()),
            ("event", word(&["started", "answered", "closed", "refused"])),
            ("logical_request_key", text()),
            ("attempt_id", text()),
            ("outcome", maybe_text()),
            ("at", time()),
            ("closes", maybe_number()),
            ("domain", maybe_text()),
            ("nonce", maybe_text()),
        ],
    ))
}

pub(super) fn effect() -> Value {
    record(
        "Effect",
        &[
            ("logical_request_key", text()),
            ("state", word(&["absent", "committed", "failed"])),
            ("verification", maybe_object()),
            ("closed_attempts?", number()),
            ("result", maybe_object()),
        ],
    )
}

pub(super) fn verified() -> Value {
    record(
        "EffectVerified",
        &[("logical_request_key", text()), ("verdict", word(&["passed", "failed"]))],
    )
}

pub(super) fn gate() -> Value {
    let word = word(&["YES", "NO"]);
    record("GateState", &[("domain", text()), ("gate", text()), ("can_proceed", word)])
}

pub(super) fn swept() -> Value {
    record(
        "LedgersSwept",
        &[("attempts", number()), ("failures", number()), ("grants", number()), ("more", flag())],
    )
}
