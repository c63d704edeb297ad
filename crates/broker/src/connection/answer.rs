//! A send frame becomes an item of the pipeline, and an answer becomes a frame (mesh.md §7).

use semel_core::canonical::Meta;
use semel_core::clock::UnixMs;
use semel_core::code::Code;
use semel_core::envelope::{Destination, Envelope};
use semel_core::fingerprint::Fingerprint;
use semel_core::hex::Hex;
use semel_core::id::ClientMessageId;
use semel_core::refusal::Refusal;
use semel_core::rfc3339::TIME_MAX;
use semel_wire::frame::{SendFrame, SendResult};
use serde_json::Value;

use super::{Connection, End};
use crate::accept::{AcceptItem, Held, Verdict};
use crate::pipeline::Answer;

const MISMATCH: &str = "request_fingerprint_mismatch";

/// What arrived, with the fingerprint that it really has. One that differs from what the daemon
/// claims is a conflict: the two do not mean the same request.
pub(super) fn item(
    connection: &Connection,
    frame: SendFrame,
) -> Result<(AcceptItem, UnixMs), Box<SendResult>> {
    let id = frame.client_message_id.clone();
    let refused = |refusal: Refusal| {
        let mut result = refusal_result(id.clone(), refusal.code);
        result.detail = Some(refusal.to_string());
        Box::new(result)
    };
    if frame.enqueued_at > TIME_MAX {
        let detail = "no calendar has this time";
        return Err(refused(Refusal::at(Code::InvalidField, "/enqueued_at", detail)));
    }
    let fingerprint = frame.fingerprint().map_err(refused)?;
    if fingerprint != frame.request_fingerprint {
        return Err(Box::new(conflict(id, fingerprint)));
    }
    let (envelope, mentions) = envelope(&frame).map_err(refused)?;
    let item = AcceptItem {
        session: connection.session,
        client_message_id: frame.client_message_id,
        fingerprint,
        envelope,
        body_commitment: frame.body_commitment.map(|hash| hash.0),
        mentions,
        broker_message_id: connection.broker.mint.uuid(),
    };
    Ok((item, frame.enqueued_at))
}

fn envelope(frame: &SendFrame) -> Result<(Envelope, Vec<String>), Refusal> {
    let destination = Destination::new(frame.destination_kind, frame.destination_ref.as_str())?;
    let mut envelope =
        Envelope::new(destination, frame.body.clone())?.with_priority(frame.priority);
    if let Some(reply_to_id) = &frame.reply_to_id {
        envelope = envelope.with_reply_to(reply_to_id.as_str())?;
    }
    let mut mentions = Vec::new();
    if !frame.meta.is_empty() {
        // The frame was decoded: its meta is a canonical object.
        let meta: Value = serde_json::from_str(&frame.meta).unwrap_or_default();
        if let Value::Object(object) = &meta {
            envelope = envelope.with_meta(Meta::new(object)?);
            let named = object.get("mentions").and_then(Value::as_array);
            let texts = named.into_iter().flatten().filter_map(Value::as_str);
            mentions = texts.map(str::to_owned).collect();
        }
    }
    Ok((envelope, mentions))
}

/// The table of answers; what has none ends the connection.
pub(super) fn result(id: ClientMessageId, answer: Answer) -> Result<SendResult, End> {
    match answer {
        Answer::Decided(Verdict::Accepted { broker_message_id, history_id }) => {
            let mut result = SendResult::new(id, 201);
            result.broker_message_id = Some(broker_message_id);
            result.history_id = Some(history_id);
            result.duplicate = Some(false);
            Ok(result)
        }
        Answer::Decided(Verdict::Duplicate(held)) => Ok(duplicate(id, &held)),
        Answer::Decided(Verdict::Reused(held)) => Ok(conflict(id, held.fingerprint)),
        Answer::Decided(Verdict::Refused(code)) => Ok(refusal_result(id, code)),
        Answer::Decided(Verdict::RateLimited { retry_after }) => {
            let mut result = refusal_result(id, Code::RateLimited);
            // At least one: zero would be "now", which is what was refused.
            let ms = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX);
            result.retry_after_ms = Some(ms.clamp(1, semel_wire::limits::RETRY_AFTER_MS_MAX));
            Ok(result)
        }
        Answer::Later | Answer::Stuck => Ok(refusal_result(id, Code::StoreUnavailable)),
        Answer::Decided(Verdict::Stale) => Err(End::Stale),
        Answer::Close => Err(End::Abandon),
    }
}

/// `409`, with the first bytes of the fingerprint that the broker goes by.
fn conflict(id: ClientMessageId, fingerprint: Fingerprint) -> SendResult {
    let mut result = refusal_result(id, Code::IdempotencyKeyReused);
    result.conflict = Some(MISMATCH.to_owned());
    result.broker_fingerprint_prefix = Hex::parse(&fingerprint.prefix()).ok();
    result
}

fn duplicate(id: ClientMessageId, held: &Held) -> SendResult {
    let mut result = SendResult::new(id, 200);
    result.broker_message_id = Some(held.broker_message_id);
    result.history_id = held.history_id;
    result.duplicate = Some(true);
    result.history_available = Some(held.history_available);
    result.first_seen_at = Some(held.first_seen_at);
    result
}

fn refusal_result(id: ClientMessageId, code: Code) -> SendResult {
    let mut result = SendResult::new(id, code.http());
    result.code = Some(code.as_str().to_owned());
    result
}
