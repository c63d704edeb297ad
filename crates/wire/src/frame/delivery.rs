//! Messages on their way to a receiver (broker.md, "Push"): live, from history, and their
//! acknowledgement.

use std::sync::Arc;

use semel_core::clock::UnixMs;
use semel_core::envelope::{Destination, DestinationKind, Priority};
use semel_core::fingerprint::{BodyHash, Fields as Accepted, Fingerprint};
use semel_core::hex::Hex;
use semel_core::id::{BrokerMessageId, ClientMessageId, MemberId};
use semel_core::refusal::Refusal;

use super::send::Message;
use crate::codec::{Field, Fields, Object, Record};
use crate::limits::{
    DELIVERIES_MAX, FRAME_BYTES_USUAL, FRAME_OVERHEAD_BYTES, HISTORY_LIMIT_MAX,
    MEMBER_NAME_BYTES_MAX, message_bytes_max,
};

/// One accepted message, as a receiver gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// Its number in the mesh's history.
    pub seq: i64,
    /// The broker's name for it.
    pub broker_message_id: BrokerMessageId,
    /// The sender's name for it; with the sender the key of the receiver's inbox.
    pub client_message_id: ClientMessageId,
    /// Who sent it.
    pub sender_member_id: MemberId,
    /// The key that the sender had then.
    pub sender_pubkey: Hex<32>,
    /// What the sender is called.
    pub sender_name: String,
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
    /// Of the accepted request: the receiver recomputes it.
    pub request_fingerprint: Fingerprint,
    /// There iff the body is sealed; the receiver checks it (mesh.md §9).
    pub body_commitment: Option<BodyHash>,
    /// When the broker accepted it.
    pub accepted_at: UnixMs,
}

impl Record for Delivery {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        let message = Message::read(fields)?;
        Ok(Self {
            seq: fields.take("seq")?,
            broker_message_id: fields.take("broker_message_id")?,
            client_message_id: fields.take("client_message_id")?,
            sender_member_id: fields.take("sender_member_id")?,
            sender_pubkey: fields.take("sender_pubkey")?,
            sender_name: fields.name("sender_name", MEMBER_NAME_BYTES_MAX)?,
            destination_kind: message.destination_kind,
            destination_ref: message.destination_ref,
            reply_to_id: message.reply_to_id,
            priority: message.priority,
            meta: message.meta,
            body: message.body,
            request_fingerprint: fields.take("request_fingerprint")?,
            body_commitment: fields.take_optional("body_commitment")?,
            accepted_at: fields.take("accepted_at")?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("seq", &self.seq);
        object.put("broker_message_id", &self.broker_message_id);
        object.put("client_message_id", &self.client_message_id);
        object.put("sender_member_id", &self.sender_member_id);
        object.put("sender_pubkey", &self.sender_pubkey);
        object.put_text("sender_name", &self.sender_name);
        object.put("destination_kind", &self.destination_kind);
        object.put_text("destination_ref", &self.destination_ref);
        object.put_optional("reply_to_id", self.reply_to_id.as_ref());
        object.put("priority", &self.priority);
        object.put_text("meta", &self.meta);
        object.put("body", &self.body);
        object.put("request_fingerprint", &self.request_fingerprint);
        object.put_optional("body_commitment", self.body_commitment.as_ref());
        object.put("accepted_at", &self.accepted_at);
    }
}

impl Delivery {
    /// Whether it is what its sender's request was, by the fingerprint that it carries.
    pub fn is_whole(&self) -> bool {
        let destination = Destination::new(self.destination_kind, &*self.destination_ref);
        destination.is_ok_and(|destination| {
            let accepted = Accepted {
                destination: &destination,
                reply_to_id: self.reply_to_id.as_deref(),
                priority: self.priority,
                meta: &self.meta,
            };
            let hash = self.body_commitment.unwrap_or_else(|| BodyHash::of(&self.body));
            accepted.fingerprint(hash) == self.request_fingerprint
        })
    }
}

/// A delivery as it stands in a frame, made once for however many get it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    seq: i64,
    text: String,
}

impl From<&Delivery> for Written {
    fn from(delivery: &Delivery) -> Self {
        let mut text = String::with_capacity(FRAME_BYTES_USUAL);
        Field::write(delivery, &mut text);
        Self { seq: delivery.seq, text }
    }
}

impl Written {
    /// Its number in the mesh's history.
    pub const fn seq(&self) -> i64 {
        self.seq
    }

    /// How many of the first of these fit into one frame of `frame_bytes_max`: at least one, as in
    /// [`fitting`].
    pub fn fitting(deliveries: &[Arc<Self>], frame_bytes_max: usize) -> usize {
        let mut bytes = PUSH_OPENS.len() + PUSH_ENDS.len();
        let count = deliveries.iter().take(DELIVERIES_MAX).take_while(|delivery| {
            // With the comma before it.
            bytes = bytes.saturating_add(delivery.text.len() + 1);
            bytes <= frame_bytes_max
        });
        count.count().max(1).min(deliveries.len())
    }

    /// The frame that pushes these, as [`super::FromBroker::encode`] has it.
    pub fn push(deliveries: &[Arc<Self>]) -> String {
        let bytes: usize = deliveries.iter().map(|delivery| delivery.text.len() + 1).sum();
        let mut frame = String::with_capacity(PUSH_OPENS.len() + bytes + PUSH_ENDS.len());
        frame.push_str(PUSH_OPENS);
        for (number, delivery) in deliveries.iter().enumerate() {
            if number > 0 {
                frame.push(',');
            }
            frame.push_str(&delivery.text);
        }
        frame.push_str(PUSH_ENDS);
        frame
    }
}

const PUSH_OPENS: &str = "{\"type\":\"push\",\"deliveries\":[";
const PUSH_ENDS: &str = "]}";

/// How many of the first deliveries certainly fit into one frame of `frame_bytes_max`: at least
/// one, because [`crate::limits::frame_bytes_max`] has room for any single message.
pub fn fitting(deliveries: &[Delivery], frame_bytes_max: usize) -> usize {
    let mut bytes = FRAME_OVERHEAD_BYTES;
    let count = deliveries.iter().take(DELIVERIES_MAX).take_while(|delivery| {
        let (body, meta) = (delivery.body.len(), delivery.meta.len());
        bytes = bytes.saturating_add(message_bytes_max(body, meta));
        bytes <= frame_bytes_max
    });
    count.count().max(1).min(deliveries.len())
}

/// Messages for this daemon, in the order of `seq`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Push {
    /// At most 500.
    pub deliveries: Vec<Delivery>,
}

impl Record for Push {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self { deliveries: fields.list("deliveries", DELIVERIES_MAX)? })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put_list("deliveries", &self.deliveries);
    }
}

/// Everything pushed up to `seq` is in the inbox and on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ack {
    /// Cumulative.
    pub seq: i64,
}

impl Record for Ack {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self { seq: fields.take("seq")? })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("seq", &self.seq);
    }
}

/// Asks for messages of the past that this member may see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryRequest {
    /// Comes back in the answer.
    pub request_id: u64,
    /// Those after this number; 0 for all.
    pub after_seq: i64,
    /// 1 to 500.
    pub limit: u64,
}

impl Record for HistoryRequest {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self {
            request_id: fields.take("request_id")?,
            after_seq: fields.take("after_seq")?,
            limit: fields.number("limit", 1, HISTORY_LIMIT_MAX)?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("request_id", &self.request_id);
        object.put("after_seq", &self.after_seq);
        object.put("limit", &self.limit);
    }
}

/// Messages of the past, in the order of `seq`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// Of the question.
    pub request_id: u64,
    /// As many as were asked for and fit.
    pub deliveries: Vec<Delivery>,
    /// Where to go on; absent at the end.
    pub next_after_seq: Option<i64>,
}

impl Record for History {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self {
            request_id: fields.take("request_id")?,
            deliveries: fields.list("deliveries", DELIVERIES_MAX)?,
            next_after_seq: fields.take_optional("next_after_seq")?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("request_id", &self.request_id);
        object.put_list("deliveries", &self.deliveries);
        object.put_optional("next_after_seq", self.next_after_seq.as_ref());
    }
}
