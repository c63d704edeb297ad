//! What the broker's HTTP API answers.

use semel_core::clock::UnixMs;
use semel_core::code::Code;
use semel_core::envelope::{DestinationKind, Priority};
use semel_core::hex::Hex;
use semel_core::id::{BrokerMessageId, ClientMessageId, MemberId, MeshId};
use semel_core::json::Node;
use semel_core::refusal::Refusal;
use semel_core::rfc3339;

use super::{MemberStatus, Profile, Role};
use crate::codec::{Field, Fields, Object, Record, invalid, write_plain};
use crate::limits::{DELIVERIES_MAX, RETRY_AFTER_MS_MAX};

/// A moment as APIs write it.
struct Moment(UnixMs);

impl Field for Moment {
    fn read(node: Node<'_>) -> Result<Self, Refusal> {
        let text = <String as Field>::read(node)?;
        let at = rfc3339::parse_exact(&text).map(Self);
        at.ok_or_else(|| invalid("must be an RFC 3339 time, no finer than milliseconds"))
    }

    fn write(&self, out: &mut String) {
        write_plain(&rfc3339::format(self.0), out);
    }
}

/// A mesh was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshMade {
    /// Its key.
    pub mesh_id: MeshId,
    /// Its name.
    pub slug: String,
    /// Its owner.
    pub member_id: MemberId,
}

impl Record for MeshMade {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self {
            mesh_id: fields.take("mesh_id")?,
            slug: fields.take("slug")?,
            member_id: fields.take("member_id")?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("mesh_id", &self.mesh_id);
        object.put_text("slug", &self.slug);
        object.put("member_id", &self.member_id);
    }
}

/// Somebody has joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// The mesh.
    pub mesh_id: MeshId,
    /// Who it is there.
    pub member_id: MemberId,
    /// The mesh's name.
    pub slug: String,
    /// What it is called there: as it was when it joined first.
    pub name: String,
}

impl Record for Joined {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self {
            mesh_id: fields.take("mesh_id")?,
            member_id: fields.take("member_id")?,
            slug: fields.take("slug")?,
            name: fields.take("name")?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("mesh_id", &self.mesh_id);
        object.put("member_id", &self.member_id);
        object.put_text("slug", &self.slug);
        object.put_text("name", &self.name);
    }
}

/// A mesh's policies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshView {
    /// Its key.
    pub mesh_id: MeshId,
    /// Its name.
    pub slug: String,
    /// For how many days ids are remembered; nothing is for ever.
    pub dedupe_retention_days: Option<u64>,
    /// For how many days messages are kept.
    pub message_retention_days: u64,
    /// Messages that a member may send per window.
    pub rate_limit: u64,
    /// The window.
    pub rate_window_ms: u64,
    /// Bytes of a body that travels in a frame.
    pub inline_bytes: u64,
    /// Bytes of a file.
    pub blob_bytes: u64,
}

impl Record for MeshView {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self {
            mesh_id: fields.take("mesh_id")?,
            slug: fields.take("slug")?,
            dedupe_retention_days: fields.take_nullable("dedupe_retention_days")?,
            message_retention_days: fields.take("message_retention_days")?,
            rate_limit: fields.take("rate_limit")?,
            rate_window_ms: fields.take("rate_window_ms")?,
            inline_bytes: fields.take("inline_bytes")?,
            blob_bytes: fields.take("blob_bytes")?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("mesh_id", &self.mesh_id);
        object.put_text("slug", &self.slug);
        object.put_nullable("dedupe_retention_days", self.dedupe_retention_days.as_ref());
        object.put("message_retention_days", &self.message_retention_days);
        object.put("rate_limit", &self.rate_limit);
        object.put("rate_window_ms", &self.rate_window_ms);
        object.put("inline_bytes", &self.inline_bytes);
        object.put("blob_bytes", &self.blob_bytes);
    }
}

/// An invite; the token is shown this once.
#[derive(Clone, PartialEq, Eq)]
pub struct Invite {
    /// The secret.
    pub token: String,
    /// Until when it lets somebody in.
    pub expires_at: UnixMs,
    /// How many.
    pub uses: u64,
}

impl Record for Invite {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self {
            token: fields.take("token")?,
            expires_at: fields.take::<Moment>("expires_at")?.0,
            uses: fields.take("uses")?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put_text("token", &self.token);
        object.put("expires_at", &Moment(self.expires_at));
        object.put("uses", &self.uses);
    }
}

/// Debug output goes to logs, and a token must not.
impl std::fmt::Debug for Invite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Invite").field("uses", &self.uses).finish_non_exhaustive()
    }
}

/// A part of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List<Item> {
    /// In order.
    pub items: Vec<Item>,
    /// Where to go on; nothing when this was the end.
    pub next: Option<String>,
}

impl<Item: Field> Record for List<Item> {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self {
            items: fields.list("items", DELIVERIES_MAX)?,
            next: fields.take_nullable("next")?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put_list("items", &self.items);
        object.put_nullable("next", self.next.as_ref());
    }
}

/// A topic or a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameItem {
    /// What it is called.
    pub name: String,
}

impl Record for NameItem {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self { name: fields.take("name")? })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put_text("name", &self.name);
    }
}

/// A topic, as a member sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicItem {
    /// What it is called.
    pub name: String,
    /// Whether the member that asks is told what is said there.
    pub subscribed: bool,
}

impl Record for TopicItem {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self { name: fields.take("name")?, subscribed: fields.take("subscribed")? })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put_text("name", &self.name);
        object.put("subscribed", &self.subscribed);
    }
}

/// A member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberItem {
    /// Its key.
    pub member_id: MemberId,
    /// What others call it.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// Whether it may take part.
    pub status: MemberStatus,
    /// Its current public key.
    pub pubkey: Option<String>,
    /// What it says of itself.
    pub profile: Profile,
    /// When it came.
    pub joined_at: UnixMs,
}

impl Record for MemberItem {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self {
            member_id: fields.take("member_id")?,
            name: fields.take("name")?,
            role: fields.take("role")?,
            status: fields.take("status")?,
            pubkey: fields.take_nullable("pubkey")?,
            profile: fields.take("profile")?,
            joined_at: fields.take::<Moment>("joined_at")?.0,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("member_id", &self.member_id);
        object.put_text("name", &self.name);
        object.put("role", &self.role);
        object.put("status", &self.status);
        object.put_nullable("pubkey", self.pubkey.as_ref());
        object.put("profile", &self.profile);
        object.put("joined_at", &Moment(self.joined_at));
    }
}

/// A message of the past.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryItem {
    /// Its number.
    pub seq: i64,
    /// Its name.
    pub broker_message_id: BrokerMessageId,
    /// The sender's name for it.
    pub client_message_id: ClientMessageId,
    /// Who sent it.
    pub sender_member_id: MemberId,
    /// What the sender is called.
    pub sender_name: String,
    /// The sender's current public key; empty when it has none.
    pub sender_pubkey: String,
    /// Where it was sent.
    pub destination_kind: DestinationKind,
    /// See [`Self::destination_kind`].
    pub destination_ref: String,
    /// What it replies to.
    pub reply_to_id: Option<String>,
    /// How urgent it is.
    pub priority: Priority,
    /// Canonical JSON; empty when there is none.
    pub meta: String,
    /// In base64 on the wire.
    pub body: Vec<u8>,
    /// Of a sealed body.
    pub body_commitment: Option<Hex<32>>,
    /// When the broker accepted it.
    pub accepted_at: UnixMs,
}

impl Record for HistoryItem {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self {
            seq: fields.take("seq")?,
            broker_message_id: fields.take("broker_message_id")?,
            client_message_id: fields.take("client_message_id")?,
            sender_member_id: fields.take("sender_member_id")?,
            sender_name: fields.take("sender_name")?,
            sender_pubkey: fields.take("sender_pubkey")?,
            destination_kind: fields.take("destination_kind")?,
            destination_ref: fields.take("destination_ref")?,
            reply_to_id: fields.take_nullable("reply_to_id")?,
            priority: fields.take("priority")?,
            meta: fields.take("meta")?,
            body: fields.take("body")?,
            body_commitment: fields.take_nullable("body_commitment")?,
            accepted_at: fields.take::<Moment>("accepted_at")?.0,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("seq", &self.seq);
        object.put("broker_message_id", &self.broker_message_id);
        object.put("client_message_id", &self.client_message_id);
        object.put("sender_member_id", &self.sender_member_id);
        object.put_text("sender_name", &self.sender_name);
        object.put_text("sender_pubkey", &self.sender_pubkey);
        object.put("destination_kind", &self.destination_kind);
        object.put_text("destination_ref", &self.destination_ref);
        object.put_nullable("reply_to_id", self.reply_to_id.as_ref());
        object.put("priority", &self.priority);
        object.put_text("meta", &self.meta);
        object.put("body", &self.body);
        object.put_nullable("body_commitment", self.body_commitment.as_ref());
        object.put("accepted_at", &Moment(self.accepted_at));
    }
}

/// Why a request was not served (RFC 9457).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The stable code; `semel explain` shows its page.
    pub code: Code,
    /// The HTTP status.
    pub status: u16,
    /// One sentence for a person.
    pub detail: String,
    /// JSON pointer to the field of the body.
    pub pointer: Option<String>,
    /// With `rate_limited`: when there is room again.
    pub retry_after_ms: Option<u64>,
}

impl Record for Problem {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        let code: String = fields.take("code")?;
        let code = Code::parse(&code).ok_or_else(|| invalid("is not a known code"))?;
        let (_, _): (String, String) = (fields.take("type")?, fields.take("title")?);
        let status: u64 = fields.take("status")?;
        Ok(Self {
            code,
            status: u16::try_from(status).map_err(|_| invalid("status is not an HTTP status"))?,
            detail: fields.detail()?,
            pointer: fields.take_optional("pointer")?,
            retry_after_ms: fields.optional_number("retry_after_ms", 0, RETRY_AFTER_MS_MAX)?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put_text("type", &format!("urn:semel:error:{}", self.code));
        object.put_text("title", &self.code.as_str().replace('_', " "));
        object.put("status", &u64::from(self.status));
        object.put_text("code", self.code.as_str());
        object.put_detail(&self.detail);
        object.put_optional("pointer", self.pointer.as_ref());
        object.put_optional("retry_after_ms", self.retry_after_ms.as_ref());
    }
}
