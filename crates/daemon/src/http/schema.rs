//! The shapes of answers, for the OpenAPI document. A test compares live answers with them.

use semel_api::schema::{
    any_object, array, flag, list_of, maybe_number, maybe_text, maybe_time, number, object, text,
    time, word,
};
use serde_json::{Value, json};

/// What problem documents say besides.
pub(super) fn problem_fields() -> Vec<(&'static str, Value)> {
    let candidate = object(&[("name", text()), ("pubkey", text()), ("member_id", text())]);
    vec![
        ("conflict?", text()),
        ("request_fingerprint_prefix?", text()),
        ("broker_message_id?", text()),
        ("reason?", maybe_text()),
        ("candidates?", array(candidate)),
        ("outbox_status?", text()),
    ]
}

pub(super) fn queued() -> Value {
    object(&[
        ("status", word(&["queued", "inflight"])),
        ("client_message_id", text()),
        ("outbox_id", text()),
        ("request_fingerprint", text()),
    ])
}

pub(super) fn duplicate() -> Value {
    object(&[
        ("status", word(&["done"])),
        ("duplicate", flag()),
        ("client_message_id", text()),
        ("broker_message_id", maybe_text()),
        ("history_id", maybe_number()),
        ("request_fingerprint", text()),
    ])
}

fn message() -> Value {
    object(&[
        ("id", number()),
        ("client_message_id", text()),
        ("broker_message_id", text()),
        ("seq", number()),
        ("destination_kind", text()),
        ("topic", maybe_text()),
        ("sender_member_id", text()),
        ("sender_pubkey", text()),
        ("sender_name", text()),
        ("priority", text()),
        ("body", maybe_text()),
        ("body_base64?", text()),
        ("meta", any_object()),
        ("accepted_at", time()),
        ("received_at", time()),
        ("reply_to_id", maybe_text()),
    ])
}

pub(super) fn messages() -> Value {
    list_of(message())
}

pub(super) fn reader() -> Value {
    object(&[("reader", text()), ("id", number())])
}

pub(super) fn asides() -> Value {
    list_of(object(&[
        ("id", number()),
        ("at", time()),
        ("source", word(&["link", "jobs", "inbox"])),
        ("reason", text()),
        ("seq", maybe_number()),
        ("body", maybe_text()),
        ("body_base64?", text()),
    ]))
}

pub(super) fn dropped() -> Value {
    object(&[("dropped", flag())])
}

fn row_fields() -> Vec<(&'static str, Value)> {
    vec![
        ("outbox_id", text()),
        ("client_message_id", text()),
        ("request_fingerprint", text()),
        ("status", text()),
        ("to", text()),
        ("destination_kind", text()),
        ("destination_ref", text()),
        ("priority", text()),
        ("enqueued_at", time()),
        ("attempts", number()),
        ("next_attempt_at", time()),
        ("last_error", maybe_text()),
        ("outcome", maybe_text()),
        ("delivered_at", maybe_time()),
        ("broker_message_id", maybe_text()),
        ("history_id", maybe_number()),
        ("aborted_at", maybe_time()),
        ("aborted_by", maybe_text()),
        ("superseded_by", maybe_text()),
        ("payload_bytes", maybe_number()),
    ]
}

pub(super) fn rows() -> Value {
    list_of(object(&row_fields()))
}

pub(super) fn row() -> Value {
    let mut fields = row_fields();
    fields.push(("chain?", array(object(&row_fields()))));
    object(&fields)
}

pub(super) fn requeued() -> Value {
    object(&[
        ("status", text()),
        ("outbox_id", text()),
        ("client_message_id", text()),
        ("request_fingerprint", text()),
        ("supersedes", text()),
    ])
}

pub(super) fn delivered() -> Value {
    object(&[
        ("status", text()),
        ("outbox_id", text()),
        ("client_message_id", text()),
        ("broker_message_id", maybe_text()),
        ("history_id", maybe_number()),
        ("request_fingerprint", text()),
    ])
}

pub(super) fn pruned() -> Value {
    object(&[("pruned", number())])
}

pub(super) fn peers() -> Value {
    list_of(object(&[
        ("member_id", text()),
        ("name", maybe_text()),
        ("pubkey", maybe_text()),
        ("role", maybe_text()),
        ("profile", any_object()),
        ("online", flag()),
    ]))
}

pub(super) fn refreshed() -> Value {
    object(&[("members", number())])
}

pub(super) fn done() -> Value {
    object(&[("status", text())])
}

pub(super) fn topic() -> Value {
    object(&[
        ("name", text()),
        ("subscribed", json!({"type": ["boolean", "null"]})),
        ("created_at", maybe_time()),
    ])
}

pub(super) fn topics() -> Value {
    list_of(topic())
}

pub(super) fn queue() -> Value {
    object(&[("name", text()), ("waiting", maybe_number())])
}

pub(super) fn queues() -> Value {
    list_of(queue())
}

pub(super) fn taken() -> Value {
    let item = object(&[
        ("seq", number()),
        ("client_message_id", text()),
        ("broker_message_id", text()),
        ("queue", text()),
        ("sender_member_id", text()),
        ("sender_pubkey", text()),
        ("sender_name", text()),
        ("priority", text()),
        ("body", maybe_text()),
        ("body_base64?", text()),
        ("meta", any_object()),
        ("accepted_at", time()),
        ("reply_to_id", maybe_text()),
    ]);
    object(&[("items", array(item)), ("lease_until", time())])
}

pub(super) fn acked() -> Value {
    object(&[("acked", array(number()))])
}

pub(super) fn invite() -> Value {
    object(&[("invite", text()), ("uses", number()), ("expires_at", time())])
}

pub(super) fn health() -> Value {
    object(&[
        ("connected", flag()),
        ("state", text()),
        ("since", time()),
        ("last_error", maybe_text()),
        ("lag_ms", maybe_number()),
        ("queue_depth", number()),
        ("dead", number()),
        ("inflight", number()),
        ("outbox_pressure", text()),
        ("inbox_full", flag()),
        ("set_aside", number()),
        ("mesh", text()),
        ("member_id", maybe_text()),
        ("member_pubkey", text()),
        ("uptime_s", number()),
        ("parts", any_object()),
        ("schema_version", number()),
        ("versions", any_object()),
    ])
}

pub(super) fn version() -> Value {
    object(&[
        ("daemon_version", text()),
        ("mesh", text()),
        ("ipc_api", number()),
        ("ipc_features", array(text())),
        ("schema_version", number()),
        ("broker_features_negotiated", any_object()),
    ])
}

pub(super) fn compat() -> Value {
    object(&[
        ("daemon_version", text()),
        ("ipc_api", any_object()),
        ("broker", any_object()),
        ("cli", any_object()),
        ("sdk", any_object()),
        ("schema_version", number()),
    ])
}

pub(super) fn rotated() -> Value {
    object(&[("grace_s", number())])
}

pub(super) fn heartbeat() -> Value {
    object(&[("status", text()), ("at", time()), ("connected", flag())])
}

/// Text that is no JSON, or JSON that describes itself.
pub(super) fn plain() -> Value {
    text()
}

pub(super) fn openapi() -> Value {
    any_object()
}
