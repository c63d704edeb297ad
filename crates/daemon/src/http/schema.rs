//! The shapes of answers, for the OpenAPI document. A test compares live answers with them.

use semel_api::schema::{
    any_object, array, flag, list_of, map_of, maybe_number, maybe_text, maybe_time, number, record,
    text, time, word,
};
use serde_json::{Value, json};

/// What problem documents say besides.
pub(super) fn problem_fields() -> Vec<(&'static str, Value)> {
    let fields = [("name", text()), ("pubkey", text()), ("member_id", text())];
    let candidate = record("Candidate", &fields);
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
    record(
        "SendQueued",
        &[
            ("status", word(&["queued", "inflight"])),
            ("client_message_id", text()),
            ("outbox_id", text()),
            ("request_fingerprint", text()),
        ],
    )
}

pub(super) fn duplicate() -> Value {
    record(
        "SendDuplicate",
        &[
            ("status", word(&["done"])),
            ("duplicate", flag()),
            ("client_message_id", text()),
            ("broker_message_id", maybe_text()),
            ("history_id", maybe_number()),
            ("request_fingerprint", text()),
        ],
    )
}

fn message() -> Value {
    record(
        "Message",
        &[
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
        ],
    )
}

pub(super) fn messages() -> Value {
    list_of(message())
}

pub(super) fn reader() -> Value {
    record("ReaderPlace", &[("reader", text()), ("id", number())])
}

pub(super) fn asides() -> Value {
    list_of(record(
        "Aside",
        &[
            ("id", number()),
            ("at", time()),
            ("source", word(&["link", "jobs", "inbox"])),
            ("reason", text()),
            ("seq", maybe_number()),
            ("body", maybe_text()),
            ("body_base64?", text()),
        ],
    ))
}

pub(super) fn dropped() -> Value {
    record("AsideDropped", &[("dropped", flag())])
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

fn outbox_row() -> Value {
    record("OutboxRow", &row_fields())
}

pub(super) fn rows() -> Value {
    list_of(outbox_row())
}

pub(super) fn row() -> Value {
    let mut fields = row_fields();
    fields.push(("chain?", array(outbox_row())));
    record("OutboxRowShown", &fields)
}

pub(super) fn requeued() -> Value {
    record(
        "Requeued",
        &[
            ("status", text()),
            ("outbox_id", text()),
            ("client_message_id", text()),
            ("request_fingerprint", text()),
            ("supersedes", text()),
        ],
    )
}

pub(super) fn delivered() -> Value {
    record(
        "RequeueDelivered",
        &[
            ("status", text()),
            ("outbox_id", text()),
            ("client_message_id", text()),
            ("broker_message_id", maybe_text()),
            ("history_id", maybe_number()),
            ("request_fingerprint", text()),
        ],
    )
}

pub(super) fn pruned() -> Value {
    record("OutboxPruned", &[("pruned", number())])
}

pub(super) fn peers() -> Value {
    list_of(record(
        "Peer",
        &[
            ("member_id", text()),
            ("name", maybe_text()),
            ("pubkey", maybe_text()),
            ("role", maybe_text()),
            ("profile", any_object()),
            ("online", flag()),
        ],
    ))
}

pub(super) fn refreshed() -> Value {
    record("PeersRefreshed", &[("members", number())])
}

pub(super) fn done() -> Value {
    record("Done", &[("status", text())])
}

pub(super) fn topic() -> Value {
    record(
        "Topic",
        &[
            ("name", text()),
            ("subscribed", json!({"type": ["boolean", "null"]})),
            ("created_at", maybe_time()),
        ],
    )
}

pub(super) fn topics() -> Value {
    list_of(topic())
}

pub(super) fn queue() -> Value {
    record("Queue", &[("name", text()), ("waiting", maybe_number())])
}

pub(super) fn queues() -> Value {
    list_of(queue())
}

pub(super) fn taken() -> Value {
    let item = record(
        "Work",
        &[
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
        ],
    );
    record("WorkTaken", &[("items", array(item)), ("lease_until", time())])
}

pub(super) fn acked() -> Value {
    record("WorkAcked", &[("acked", array(number()))])
}

pub(super) fn invite() -> Value {
    record("Invite", &[("invite", text()), ("uses", number()), ("expires_at", time())])
}

/// What [`semel_api::Api::parts_health`] says of a part.
fn part() -> Value {
    record(
        "PartHealth",
        &[("status", word(&["ok", "failing"])), ("found?", any_object()), ("detail?", text())],
    )
}

pub(super) fn health() -> Value {
    let versions = record("Versions", &[("daemon", text()), ("ipc_api", number())]);
    record(
        "Health",
        &[
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
            ("parts", map_of(part())),
            ("schema_version", number()),
            ("versions", versions),
        ],
    )
}

pub(super) fn version() -> Value {
    record(
        "Version",
        &[
            ("daemon_version", text()),
            ("mesh", text()),
            ("ipc_api", number()),
            ("ipc_features", array(text())),
            ("schema_version", number()),
            ("broker_features_negotiated", map_of(any_object())),
        ],
    )
}

pub(super) fn compat() -> Value {
    let range = record("VersionRange", &[("min", number()), ("max", number())]);
    let broker = record(
        "BrokerCompat",
        &[
            ("protocol", text()),
            ("required_features", array(text())),
            ("optional_features", array(text())),
        ],
    );
    record(
        "Compat",
        &[
            ("daemon_version", text()),
            ("ipc_api", range),
            ("broker", broker),
            ("cli", record("CliCompat", &[("min", text())])),
            ("sdk", record("SdkCompat", &[("ipc_api", number())])),
            ("schema_version", number()),
        ],
    )
}

pub(super) fn rotated() -> Value {
    record("TokenRotated", &[("grace_s", number())])
}

pub(super) fn heartbeat() -> Value {
    record("Heartbeat", &[("status", text()), ("at", time()), ("connected", flag())])
}

/// Text that is no JSON, or JSON that describes itself.
pub(super) fn plain() -> Value {
    text()
}
