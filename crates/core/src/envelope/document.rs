//! The JSON form of an envelope: `{destination_kind, destination_ref, reply_to_id?, priority?,
//! meta?, message | body_base64}`. Unknown fields are refused by name.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::{Destination, DestinationKind, Envelope, Priority};
use crate::canonical::Meta;
use crate::code::Code;
use crate::json::{self, JsonLimits};
use crate::limits::{ENVELOPE_JSON_BYTES_MAX, META_DEPTH_MAX};
use crate::refusal::Refusal;

const FIELDS: &[&str] = &[
    "destination_kind",
    "destination_ref",
    "reply_to_id",
    "priority",
    "meta",
    "message",
    "body_base64",
];

/// The document itself is one level around meta.
const LIMITS: JsonLimits =
    JsonLimits { bytes_max: ENVELOPE_JSON_BYTES_MAX, depth_max: META_DEPTH_MAX + 1 };

pub(super) fn read(text: &[u8]) -> Result<Envelope, Refusal> {
    let Value::Object(document) = json::parse(text, LIMITS)? else {
        return Err(Refusal::new(Code::InvalidField, "an envelope is a JSON object"));
    };
    if let Some(unknown) = document.keys().find(|key| !FIELDS.contains(&key.as_str())) {
        let detail = format!("there is no field {unknown:?}; there are {}", FIELDS.join(", "));
        return Err(Refusal::new(Code::UnknownField, detail));
    }
    let kind = required(&document, "destination_kind")?;
    let reference = required(&document, "destination_ref")?;
    let body = body_field(&document)?;

    let kind = one_of(DestinationKind::parse(kind), "/destination_kind", "topic, dm, queue")?;
    let destination = Destination::new(kind, reference)?;
    let mut envelope = Envelope::new(destination, decode(body)?)?;
    if let Some(reply_to_id) = optional(&document, "reply_to_id")? {
        envelope = envelope.with_reply_to(reply_to_id)?;
    }
    if let Some(priority) = optional(&document, "priority")? {
        let priority = one_of(Priority::parse(priority), "/priority", "now, next, low")?;
        envelope = envelope.with_priority(priority);
    }
    match document.get("meta") {
        None => Ok(envelope),
        Some(Value::Object(meta)) => Ok(envelope.with_meta(Meta::new(meta)?)),
        Some(_) => Err(Refusal::at(Code::InvalidField, "/meta", "must be an object")),
    }
}

/// A body as it was given.
enum Body<'a> {
    Text(&'a str),
    Base64(&'a str),
}

fn body_field(document: &Map<String, Value>) -> Result<Body<'_>, Refusal> {
    match (document.get("message"), document.get("body_base64")) {
        (None, None) => {
            Err(Refusal::new(Code::MissingField, "one of message and body_base64 is needed"))
        }
        (Some(_), Some(_)) => Err(Refusal::at(
            Code::InvalidField,
            "/body_base64",
            "message and body_base64 exclude each other",
        )),
        (Some(message), None) => Ok(Body::Text(text(message, "message")?)),
        (None, Some(body)) => Ok(Body::Base64(text(body, "body_base64")?)),
    }
}

fn decode(body: Body<'_>) -> Result<Vec<u8>, Refusal> {
    match body {
        Body::Text(text) => Ok(text.as_bytes().to_vec()),
        Body::Base64(encoded) => STANDARD.decode(encoded).map_err(|error| {
            let detail = format!("is not padded standard base64: {error}");
            Refusal::at(Code::InvalidField, "/body_base64", detail)
        }),
    }
}

fn required<'a>(document: &'a Map<String, Value>, field: &str) -> Result<&'a str, Refusal> {
    let value = document.get(field);
    let value = value.ok_or_else(|| {
        Refusal::at(Code::MissingField, format!("/{field}"), format!("{field} is needed"))
    })?;
    text(value, field)
}

/// `null` and absence mean the same.
fn optional<'a>(document: &'a Map<String, Value>, field: &str) -> Result<Option<&'a str>, Refusal> {
    match document.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => text(value, field).map(Some),
    }
}

fn text<'a>(value: &'a Value, field: &str) -> Result<&'a str, Refusal> {
    let text = value.as_str();
    text.ok_or_else(|| Refusal::at(Code::InvalidField, format!("/{field}"), "must be a string"))
}

fn one_of<T>(parsed: Option<T>, pointer: &str, choices: &str) -> Result<T, Refusal> {
    parsed.ok_or_else(|| {
        Refusal::at(Code::InvalidField, pointer, format!("must be one of {choices}"))
    })
}
