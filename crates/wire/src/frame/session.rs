//! What keeps a conversation alive, what is said in between, and how it ends.

use semel_core::hex::Hex;
use semel_core::json::Node;
use semel_core::refusal::Refusal;

use crate::close::CloseKind;
use crate::codec::{Field, Fields, Object, Record, one_of, write_plain};
use crate::limits::{CLOSE_TEXT_BYTES_MAX, NAME_BYTES_MAX};

/// Why the connection is closed, just before it is: a close frame has room for 123 bytes only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloseReason {
    /// Goes with the close code.
    pub kind: CloseKind,
    /// With `4010`: which feature.
    pub feature: Option<String>,
    /// For a person.
    pub detail: String,
    /// With `4003`: the nonce of the hello that took this connection's place. One that is not
    /// ours means a clone of this daemon (mesh.md §10).
    pub nonce: Option<Hex<16>>,
}

impl CloseReason {
    /// A reason without feature or nonce.
    pub fn new(kind: CloseKind, detail: impl Into<String>) -> Self {
        Self { kind, feature: None, detail: detail.into(), nonce: None }
    }

    /// The reason in the close frame itself: as much of it as 123 bytes hold.
    pub fn close_text(&self) -> String {
        let whole = text_of(self);
        if whole.len() <= CLOSE_TEXT_BYTES_MAX {
            return whole;
        }
        let short = text_of(&Self { detail: String::new(), ..self.clone() });
        if short.len() <= CLOSE_TEXT_BYTES_MAX { short } else { self.kind.as_str().to_owned() }
    }
}

fn text_of(reason: &CloseReason) -> String {
    let mut out = String::new();
    Field::write(reason, &mut out);
    out
}

impl Field for CloseKind {
    fn read(node: Node<'_>) -> Result<Self, Refusal> {
        one_of(node, Self::parse, "must be a kind of docs/protocol.md")
    }

    fn write(&self, out: &mut String) {
        write_plain(self.as_str(), out);
    }
}

impl Record for CloseReason {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self {
            kind: fields.take("kind")?,
            feature: fields.optional_name("feature", NAME_BYTES_MAX)?,
            detail: fields.detail()?,
            nonce: fields.take_optional("nonce")?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("kind", &self.kind);
        object.put_optional("feature", self.feature.as_ref());
        object.put_detail(&self.detail);
        object.put_optional("nonce", self.nonce.as_ref());
    }
}

/// This member may no longer take part; a close with `4005` follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberRevoked {}

impl Record for MemberRevoked {
    fn read(_fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self {})
    }

    fn write(&self, _object: &mut Object<'_>) {}
}

/// A request that was refused or could not be answered; the connection stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestFailed {
    /// Of the question.
    pub request_id: u64,
    /// Why, as a code.
    pub code: String,
    /// For a person.
    pub detail: String,
}

impl Record for RequestFailed {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self {
            request_id: fields.take("request_id")?,
            code: fields.name("code", NAME_BYTES_MAX)?,
            detail: fields.detail()?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("request_id", &self.request_id);
        object.put_text("code", &self.code);
        object.put_detail(&self.detail);
    }
}

/// Are you there? Either side may ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ping {
    /// Comes back in the pong.
    pub id: u64,
}

impl Record for Ping {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self { id: fields.take("id")? })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("id", &self.id);
    }
}

/// I am.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pong {
    /// Of the ping.
    pub id: u64,
}

impl Record for Pong {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self { id: fields.take("id")? })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("id", &self.id);
    }
}
