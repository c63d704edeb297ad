//! Ids as types: two ids of different things cannot be mixed up, and none is a bare string.

use std::fmt;
use std::marker::PhantomData;

use ulid::Ulid;
use uuid::Uuid;

use crate::code::Code;
use crate::limits::CLIENT_MESSAGE_ID_CHARS_MAX;
use crate::refusal::Refusal;

/// Marks what an id identifies; never constructed.
pub mod kind {
    /// A row of a daemon's outbox.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Outbox {}
    /// A message that a broker accepted.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum BrokerMessage {}
    /// A mesh.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Mesh {}
    /// A member of a mesh; survives the rotation of its keys.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Member {}
    /// A daemon, as opposed to another one of the same member.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Instance {}
    /// A broker process.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Broker {}
    /// A work queue.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Queue {}
    /// A line of an audit trail.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum AuditEvent {}
    /// A job.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Job {}
}

/// Key of an outbox row.
pub type OutboxId = UlidId<kind::Outbox>;
/// The broker's name for a message.
pub type BrokerMessageId = UuidId<kind::BrokerMessage>;
/// Key of a mesh.
pub type MeshId = UuidId<kind::Mesh>;
/// Key of a member.
pub type MemberId = UuidId<kind::Member>;
/// Names one daemon.
pub type InstanceId = UuidId<kind::Instance>;
/// Names one broker process.
pub type BrokerId = UuidId<kind::Broker>;
/// Key of a work queue.
pub type QueueId = UuidId<kind::Queue>;
/// Key of a line of an audit trail.
pub type AuditEventId = UuidId<kind::AuditEvent>;
/// Key of a job.
pub type JobId = UuidId<kind::Job>;

/// A ULID of one kind of thing: sorts by time of minting, 26 characters of Crockford base32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UlidId<Kind>(Ulid, PhantomData<Kind>);

impl<Kind> UlidId<Kind> {
    /// Gives a ULID its meaning.
    pub const fn new(ulid: Ulid) -> Self {
        Self(ulid, PhantomData)
    }

    pub(crate) const fn ulid(self) -> Ulid {
        self.0
    }

    /// Reads the canonical spelling and no other, so that one id has one name.
    pub fn parse(text: &str) -> Option<Self> {
        let ulid = Ulid::from_string(text).ok()?;
        (ulid.to_string() == text).then_some(Self::new(ulid))
    }
}

impl<Kind> fmt::Display for UlidId<Kind> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A UUID (version 7 when we mint it) of one kind of thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UuidId<Kind>(Uuid, PhantomData<Kind>);

impl<Kind> UuidId<Kind> {
    /// Gives a UUID its meaning.
    pub const fn new(uuid: Uuid) -> Self {
        Self(uuid, PhantomData)
    }

    /// Reads the hyphenated lower-case spelling and no other.
    pub fn parse(text: &str) -> Option<Self> {
        let uuid = Uuid::try_parse(text).ok()?;
        (uuid.hyphenated().to_string() == text).then_some(Self::new(uuid))
    }

    /// As databases take it.
    pub const fn as_uuid(&self) -> Uuid {
        self.0
    }
}

impl<Kind> fmt::Display for UuidId<Kind> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

/// The caller's name for a send: the identity under which it happens once (mesh.md §4).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientMessageId(String);

impl ClientMessageId {
    /// 1–255 printable ASCII characters, none of the outer ones a space.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let refuse = |detail: &str| Err(Refusal::new(Code::InvalidClientMessageId, detail));
        if text.is_empty() {
            return refuse("the id is empty");
        }
        if text.len() > CLIENT_MESSAGE_ID_CHARS_MAX {
            return refuse("the id has more than 255 characters");
        }
        if !text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return refuse("the id has a character that is not printable ASCII");
        }
        if text.starts_with(' ') || text.ends_with(' ') {
            return refuse("the id begins or ends with a space");
        }
        Ok(Self(text.to_owned()))
    }

    /// The id that a request carries: the `Idempotency-Key` header, else the body's field. `None`
    /// when it carries neither and the daemon mints one.
    pub fn of_request(header: Option<&str>, body: Option<&str>) -> Result<Option<Self>, Refusal> {
        let header = header.map(Self::parse).transpose()?;
        let body = body.map(Self::parse).transpose()?;
        match (header, body) {
            (Some(header), Some(body)) if header != body => Err(Refusal::new(
                Code::IdempotencyKeyConflict,
                "the Idempotency-Key header and client_message_id name different ids",
            )),
            (Some(id), _) | (None, Some(id)) => Ok(Some(id)),
            (None, None) => Ok(None),
        }
    }

    /// The id itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<Ulid> for ClientMessageId {
    fn from(minted: Ulid) -> Self {
        Self(minted.to_string())
    }
}

impl fmt::Display for ClientMessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_message_ids_are_printable_and_bounded() {
        for good in ["a", "deploy-1", "a b", "~", &"x".repeat(255)] {
            assert_eq!(ClientMessageId::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", " a", "a ", " ", "a\tb", "é", "a\0", "\x7f", &"x".repeat(256)] {
            let refusal = ClientMessageId::parse(bad).expect_err(bad);
            assert_eq!(refusal.code, Code::InvalidClientMessageId, "{bad:?}");
        }
    }

    #[test]
    fn the_header_wins_and_must_not_disagree() {
        let of = |header, body| {
            let id = ClientMessageId::of_request(header, body);
            id.map(|id| id.map(|id| id.to_string())).map_err(|refusal| refusal.code)
        };
        assert_eq!(of(None, None), Ok(None));
        assert_eq!(of(Some("h"), None), Ok(Some("h".to_owned())));
        assert_eq!(of(None, Some("b")), Ok(Some("b".to_owned())));
        assert_eq!(of(Some("x"), Some("x")), Ok(Some("x".to_owned())));
        assert_eq!(of(Some("h"), Some("b")), Err(Code::IdempotencyKeyConflict));
        assert_eq!(of(Some("h"), Some("")), Err(Code::InvalidClientMessageId));
    }

    #[test]
    fn one_id_has_one_spelling() {
        let ulid = "01ARZ3NDEKTSV4RRFFQ69G5FAV";
        assert_eq!(OutboxId::parse(ulid).unwrap().to_string(), ulid);
        assert_eq!(OutboxId::parse(&ulid.to_lowercase()), None);
        let uuid = "01890a5d-ac96-774b-bcce-b302099a8057";
        assert_eq!(JobId::parse(uuid).unwrap().to_string(), uuid);
        for other in [&uuid.to_uppercase(), &uuid.replace('-', ""), "", "x"] {
            assert_eq!(BrokerMessageId::parse(other), None);
        }
    }
}
