//! One attempt to send a message, and its answer (mesh.md §7).

use semel_core::canonical::Meta;
use semel_core::clock::UnixMs;
use semel_core::code::Code;
use semel_core::envelope::{Destination, DestinationKind, Envelope, Priority};
use semel_core::fingerprint::{BodyHash, ENVELOPE_VERSION, Fingerprint};
use semel_core::hex::Hex;
use semel_core::id::{BrokerMessageId, ClientMessageId};
use semel_core::json::{self, JsonLimits};
use semel_core::limits::{INTEGER_MAX, META_BYTES_MAX, META_DEPTH_MAX, REF_BYTES_MAX};
use semel_core::refusal::Refusal;
use serde_json::Value;

use super::FromDaemon;
use crate::codec::{Fields, Object, Record, invalid, under};
use crate::limits::{NAME_BYTES_MAX, RETRY_AFTER_MS_MAX, message_bytes_max};

/// A send as it travels. Texts and bytes are as databases hold them, so that a row becomes a frame
/// without being read again; a frame that was decoded passed every check of an [`Envelope`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendFrame {
    /// The identity under which it happens once.
    pub client_message_id: ClientMessageId,
    /// Topic, dm or queue.
    pub destination_kind: DestinationKind,
    /// Its name, or the recipient's key.
    pub destination_ref: String,
    /// The message it replies to.
    pub reply_to_id: Option<String>,
    /// How urgent it is.
    pub priority: Priority,
    /// Canonical JSON; empty for none.
    pub meta: String,
    /// The body, or what sealing made of it.
    pub body: Vec<u8>,
    /// What the daemon froze at accept.
    pub request_fingerprint: Fingerprint,
    /// Stands for the body in the fingerprint iff the body is sealed (mesh.md §9).
    pub body_commitment: Option<BodyHash>,
    /// When the daemon accepted it: the broker judges by it whether it could have forgotten.
    pub enqueued_at: UnixMs,
}

impl SendFrame {
    /// Whether a broker that reads frames of at most `bytes_max` bytes can read this one. What it
    /// cannot read ends the connection, and with it everything else that is on it.
    pub fn check(&self, bytes_max: usize) -> Result<(), Refusal> {
        Destination::new(self.destination_kind, &*self.destination_ref)?;
        if let Some(reply_to_id) = &self.reply_to_id {
            check_reply_to(reply_to_id).map_err(|refusal| under("reply_to_id", refusal))?;
        }
        meta(&self.meta)?;
        if !(0..=INTEGER_MAX).contains(&self.enqueued_at.0) {
            return Err(under("enqueued_at", invalid("must be from 0 to 2^53 − 1")));
        }
        // Most fit by far, and need not be written to see that.
        if message_bytes_max(self.body.len(), self.meta.len()) <= bytes_max {
            return Ok(());
        }
        let bytes = FromDaemon::Send(self.clone()).encode().len();
        if bytes > bytes_max {
            let detail = format!("its frame has {bytes} bytes, the broker takes {bytes_max}");
            return Err(Refusal::new(Code::PayloadTooLarge, detail));
        }
        Ok(())
    }

    /// The fingerprint of what this frame carries, to be compared with what it claims.
    pub fn fingerprint(&self) -> Result<Fingerprint, Refusal> {
        let hash = self.body_commitment.unwrap_or_else(|| BodyHash::of(&self.body));
        let destination = Destination::new(self.destination_kind, &*self.destination_ref)?;
        // The body is in the hash already: an envelope without it has the same fingerprint.
        let mut envelope = Envelope::new(destination, Vec::new())?
            .with_priority(self.priority)
            .with_meta(meta(&self.meta)?);
        if let Some(reply_to_id) = &self.reply_to_id {
            envelope = envelope.with_reply_to(&**reply_to_id)?;
        }
        Ok(Fingerprint::with_body_hash(&envelope, hash))
    }
}

impl Record for SendFrame {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        let client_message_id = fields.take("client_message_id")?;
        let version: String = fields.take("envelope_version")?;
        if version != ENVELOPE_VERSION {
            return Err(under("envelope_version", invalid("must be \"1\"")));
        }
        let message = Message::read(fields)?;
        Ok(Self {
            client_message_id,
            destination_kind: message.destination_kind,
            destination_ref: message.destination_ref,
            reply_to_id: message.reply_to_id,
            priority: message.priority,
            meta: message.meta,
            body: message.body,
            request_fingerprint: fields.take("request_fingerprint")?,
            body_commitment: fields.take_optional("body_commitment")?,
            enqueued_at: fields.take("enqueued_at")?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("client_message_id", &self.client_message_id);
        object.put_text("envelope_version", ENVELOPE_VERSION);
        object.put("destination_kind", &self.destination_kind);
        object.put_text("destination_ref", &self.destination_ref);
        object.put_optional("reply_to_id", self.reply_to_id.as_ref());
        object.put("priority", &self.priority);
        object.put_text("meta", &self.meta);
        object.put("body", &self.body);
        object.put("request_fingerprint", &self.request_fingerprint);
        object.put_optional("body_commitment", self.body_commitment.as_ref());
        object.put("enqueued_at", &self.enqueued_at);
    }
}

/// What a send and a delivery have in common, checked like an envelope.
pub(super) struct Message {
    pub(super) destination_kind: DestinationKind,
    pub(super) destination_ref: String,
    pub(super) reply_to_id: Option<String>,
    pub(super) priority: Priority,
    pub(super) meta: String,
    pub(super) body: Vec<u8>,
}

impl Message {
    pub(super) fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        let destination_kind = fields.take("destination_kind")?;
        let destination_ref: String = fields.take("destination_ref")?;
        Destination::new(destination_kind, &*destination_ref)?;
        let reply_to_id: Option<String> = fields.take_optional("reply_to_id")?;
        if let Some(reply_to_id) = &reply_to_id {
            check_reply_to(reply_to_id).map_err(|refusal| under("reply_to_id", refusal))?;
        }
        let priority = fields.take("priority")?;
        let text: String = fields.take("meta")?;
        meta(&text)?;
        let body = fields.take("body")?;
        Ok(Self { destination_kind, destination_ref, reply_to_id, priority, meta: text, body })
    }
}

fn check_reply_to(id: &str) -> Result<(), Refusal> {
    if id.is_empty() || id.len() > REF_BYTES_MAX {
        return Err(invalid("must be 1 to 255 bytes"));
    }
    if id.contains('\0') {
        return Err(Refusal::new(Code::NulInField, "must not contain byte 00"));
    }
    Ok(())
}

/// Meta from its canonical text, and from no other text of the same meaning.
fn meta(text: &str) -> Result<Meta, Refusal> {
    if text.is_empty() {
        return Ok(Meta::default());
    }
    let limits = JsonLimits { bytes_max: META_BYTES_MAX, depth_max: META_DEPTH_MAX };
    let value = json::parse(text.as_bytes(), limits).map_err(|refusal| under("meta", refusal))?;
    let Value::Object(object) = value else {
        return Err(under("meta", invalid("must be the text of an object")));
    };
    let meta = Meta::new(&object)?;
    if meta.as_str() != text {
        return Err(under("meta", invalid("must be canonical (RFC 8785), or empty for none")));
    }
    Ok(meta)
}

/// What became of a send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendResult {
    /// Which send.
    pub client_message_id: ClientMessageId,
    /// As over HTTP: `201` accepted, `200` duplicate, `4xx` refused, `429` and `5xx` later.
    pub status: u16,
    /// Why not, as a code.
    pub code: Option<String>,
    /// The broker's name for the message.
    pub broker_message_id: Option<BrokerMessageId>,
    /// Its number in the mesh's history.
    pub history_id: Option<i64>,
    /// Whether an earlier attempt had been accepted.
    pub duplicate: Option<bool>,
    /// Whether history still holds the message.
    pub history_available: Option<bool>,
    /// When the first attempt was accepted.
    pub first_seen_at: Option<UnixMs>,
    /// With `409`: what differs.
    pub conflict: Option<String>,
    /// With `409`: the first bytes of the fingerprint that the broker holds.
    pub broker_fingerprint_prefix: Option<Hex<8>>,
    /// With `429`: how long to wait.
    pub retry_after_ms: Option<u64>,
    /// For a person.
    pub detail: Option<String>,
}

impl SendResult {
    /// An answer that says nothing more than its status.
    pub fn new(client_message_id: ClientMessageId, status: u16) -> Self {
        Self {
            client_message_id,
            status,
            code: None,
            broker_message_id: None,
            history_id: None,
            duplicate: None,
            history_available: None,
            first_seen_at: None,
            conflict: None,
            broker_fingerprint_prefix: None,
            retry_after_ms: None,
            detail: None,
        }
    }
}

impl Record for SendResult {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        let id = fields.take("client_message_id")?;
        let status = fields.number("status", 200, 599)?;
        let status = u16::try_from(status).map_err(|_| under("status", invalid("too large")))?;
        let mut result = Self::new(id, status);
        result.code = fields.optional_name("code", NAME_BYTES_MAX)?;
        result.broker_message_id = fields.take_optional("broker_message_id")?;
        result.history_id = fields.take_optional("history_id")?;
        result.duplicate = fields.take_optional("duplicate")?;
        result.history_available = fields.take_optional("history_available")?;
        result.first_seen_at = fields.take_optional("first_seen_at")?;
        result.conflict = fields.optional_name("conflict", NAME_BYTES_MAX)?;
        result.broker_fingerprint_prefix = fields.take_optional("broker_fingerprint_prefix")?;
        result.retry_after_ms = fields.optional_number("retry_after_ms", 0, RETRY_AFTER_MS_MAX)?;
        result.detail = fields.optional_detail()?;
        Ok(result)
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("client_message_id", &self.client_message_id);
        object.put("status", &u64::from(self.status));
        object.put_optional("code", self.code.as_ref());
        object.put_optional("broker_message_id", self.broker_message_id.as_ref());
        object.put_optional("history_id", self.history_id.as_ref());
        object.put_optional("duplicate", self.duplicate.as_ref());
        object.put_optional("history_available", self.history_available.as_ref());
        object.put_optional("first_seen_at", self.first_seen_at.as_ref());
        object.put_optional("conflict", self.conflict.as_ref());
        let prefix = self.broker_fingerprint_prefix.as_ref();
        object.put_optional("broker_fingerprint_prefix", prefix);
        object.put_optional("retry_after_ms", self.retry_after_ms.as_ref());
        if let Some(detail) = &self.detail {
            object.put_detail(detail);
        }
    }
}
