//! What became of sends whose answers were lost (mesh.md §10).

use semel_core::clock::UnixMs;
use semel_core::fingerprint::Fingerprint;
use semel_core::id::{BrokerMessageId, ClientMessageId};
use semel_core::json::Node;
use semel_core::refusal::Refusal;
use semel_core::status;

use crate::codec::{Field, Fields, Object, Record, one_of, write_plain};
use crate::limits::RESOLVE_ITEMS_MAX;

/// Asks for the verdict on sends of earlier connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolve {
    /// Comes back in the answer.
    pub request_id: u64,
    /// Which sends.
    pub items: Vec<ResolveItem>,
}

impl Record for Resolve {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self {
            request_id: fields.take("request_id")?,
            items: fields.list("items", RESOLVE_ITEMS_MAX)?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("request_id", &self.request_id);
        object.put_list("items", &self.items);
    }
}

/// One send whose fate is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolveItem {
    /// Its id.
    pub client_message_id: ClientMessageId,
    /// What was asked for: another host of the member may have used the same id for something else.
    pub request_fingerprint: Fingerprint,
    /// When the daemon accepted it: past the horizon, absence proves nothing.
    pub enqueued_at: UnixMs,
}

impl Record for ResolveItem {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self {
            client_message_id: fields.take("client_message_id")?,
            request_fingerprint: fields.take("request_fingerprint")?,
            enqueued_at: fields.take("enqueued_at")?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("client_message_id", &self.client_message_id);
        object.put("request_fingerprint", &self.request_fingerprint);
        object.put("enqueued_at", &self.enqueued_at);
    }
}

status! {
    /// What the broker knows about a send.
    pub enum Verdict {
        /// It was accepted.
        Committed = "committed",
        /// It was not, and no attempt that is still under way can be.
        Absent = "absent",
        /// It is older than the broker remembers.
        TooOld = "too_old",
    }
}

impl Field for Verdict {
    fn read(node: Node<'_>) -> Result<Self, Refusal> {
        one_of(node, Self::parse, "must be one of committed, absent, too_old")
    }

    fn write(&self, out: &mut String) {
        write_plain(self.as_str(), out);
    }
}

/// The verdicts, one for each item that was asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolveResult {
    /// Of the question.
    pub request_id: u64,
    /// In the order of the question.
    pub items: Vec<ResolvedItem>,
}

impl Record for ResolveResult {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self {
            request_id: fields.take("request_id")?,
            items: fields.list("items", RESOLVE_ITEMS_MAX)?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("request_id", &self.request_id);
        object.put_list("items", &self.items);
    }
}

/// One verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedItem {
    /// Of which send.
    pub client_message_id: ClientMessageId,
    /// What the broker knows.
    pub verdict: Verdict,
    /// When committed: the broker's name for it.
    pub broker_message_id: Option<BrokerMessageId>,
    /// When committed: its number in the mesh's history.
    pub history_id: Option<i64>,
}

impl Record for ResolvedItem {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self {
            client_message_id: fields.take("client_message_id")?,
            verdict: fields.take("verdict")?,
            broker_message_id: fields.take_optional("broker_message_id")?,
            history_id: fields.take_optional("history_id")?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("client_message_id", &self.client_message_id);
        object.put("verdict", &self.verdict);
        object.put_optional("broker_message_id", self.broker_message_id.as_ref());
        object.put_optional("history_id", self.history_id.as_ref());
    }
}
