//! Envelope v1: what is asked to be sent (mesh.md §3). An `Envelope` that exists is valid.

mod document;

use crate::canonical::Meta;
use crate::code::Code;
use crate::limits::{BODY_BYTES_MAX, REF_BYTES_MAX};
use crate::refusal::Refusal;
use crate::status;

status! {
    /// What kind of destination a message goes to.
    pub enum DestinationKind {
        /// Everybody who subscribed.
        Topic = "topic",
        /// One member.
        Dm = "dm",
        /// One of the consumers of a work queue.
        Queue = "queue",
    }
}

status! {
    /// Which messages the outbox sends first. The order of the variants is the order of sending.
    pub enum Priority {
        /// Before everything else.
        Now = "now",
        /// The default.
        Next = "next",
        /// When nothing else waits.
        Low = "low",
    }
}

impl Priority {
    /// The number that databases sort by (text would sort `low < next < now`).
    pub const fn rank(self) -> i64 {
        match self {
            Self::Now => 0,
            Self::Next => 1,
            Self::Low => 2,
        }
    }

    /// The priority of that rank, if there is one.
    pub fn from_rank(rank: i64) -> Option<Self> {
        Self::ALL.iter().copied().find(|priority| priority.rank() == rank)
    }
}

/// Where a message goes: a kind, and a reference that is valid for that kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Destination {
    kind: DestinationKind,
    reference: String,
}

impl Destination {
    /// A topic or queue name, or for a dm the recipient's public key in lower-case hex.
    pub fn new(kind: DestinationKind, reference: impl Into<String>) -> Result<Self, Refusal> {
        let reference = check_reference("/destination_ref", reference.into())?;
        if kind == DestinationKind::Dm && !is_public_key(&reference) {
            return Err(Refusal::at(
                Code::InvalidField,
                "/destination_ref",
                "a dm goes to a public key of 64 lower-case hexadecimal digits",
            ));
        }
        Ok(Self { kind, reference })
    }

    /// Topic, dm or queue.
    pub fn kind(&self) -> DestinationKind {
        self.kind
    }

    /// The name or key.
    pub fn reference(&self) -> &str {
        &self.reference
    }

    /// The name or key, without a copy.
    pub fn into_reference(self) -> String {
        self.reference
    }
}

/// A send, checked field by field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    pub(crate) destination: Destination,
    pub(crate) reply_to_id: Option<String>,
    pub(crate) priority: Priority,
    pub(crate) meta: Meta,
    pub(crate) body: Vec<u8>,
}

impl Envelope {
    /// Reads the JSON form that `semel fingerprint` and the conformance vectors use.
    pub fn from_json(text: &[u8]) -> Result<Self, Refusal> {
        document::read(text)
    }

    /// A send to `destination` with the default priority, no meta, and no message it replies to.
    pub fn new(destination: Destination, body: Vec<u8>) -> Result<Self, Refusal> {
        if body.len() > BODY_BYTES_MAX {
            return Err(Refusal::new(
                Code::PayloadTooLarge,
                format!("the body has {} bytes, {BODY_BYTES_MAX} are allowed", body.len()),
            ));
        }
        let (priority, meta) = (Priority::Next, Meta::default());
        Ok(Self { destination, reply_to_id: None, priority, meta, body })
    }

    /// The same send with another priority.
    pub fn with_priority(self, priority: Priority) -> Self {
        Self { priority, ..self }
    }

    /// The same send with this meta.
    pub fn with_meta(self, meta: Meta) -> Self {
        Self { meta, ..self }
    }

    /// The same send as a reply to the message that the broker knows by this id.
    pub fn with_reply_to(self, reply_to_id: impl Into<String>) -> Result<Self, Refusal> {
        let reply_to_id = Some(check_reference("/reply_to_id", reply_to_id.into())?);
        Ok(Self { reply_to_id, ..self })
    }

    /// Where it goes.
    pub fn destination(&self) -> &Destination {
        &self.destination
    }

    /// The message it replies to.
    pub fn reply_to_id(&self) -> Option<&str> {
        self.reply_to_id.as_deref()
    }

    /// How urgent it is.
    pub fn priority(&self) -> Priority {
        self.priority
    }

    /// Its meta in canonical form.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Its body.
    pub fn body(&self) -> &[u8] {
        &self.body
    }
}

/// Byte 00 separates the fields of the fingerprint: a field that holds it could pass for two.
fn check_reference(pointer: &str, reference: String) -> Result<String, Refusal> {
    if reference.is_empty() {
        return Err(Refusal::at(Code::InvalidField, pointer, "must not be empty"));
    }
    if reference.len() > REF_BYTES_MAX {
        let detail = format!("has {} bytes, {REF_BYTES_MAX} are allowed", reference.len());
        return Err(Refusal::at(Code::InvalidField, pointer, detail));
    }
    if reference.contains('\0') {
        return Err(Refusal::at(Code::NulInField, pointer, "must not contain byte 00"));
    }
    Ok(reference)
}

fn is_public_key(reference: &str) -> bool {
    reference.len() == 64 && reference.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests;
