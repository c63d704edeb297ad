//! The bodies of the broker's HTTP API (`docs/http.md`), read as strictly as frames are: an
//! unknown field is refused by name. What is asked is in [`ask`](self), what is answered beside it.

mod answer;
mod ask;

use semel_core::code::Code;
use semel_core::json::{self, JsonLimits, Node};
use semel_core::refusal::Refusal;
use semel_core::status;

use crate::codec::{Field, Record, one_of, write_plain};
use crate::limits::{ANSWER_BYTES_MAX, FRAME_DEPTH_MAX};

pub use answer::{
    HistoryItem, Invite, Joined, List, MemberItem, MeshMade, MeshView, NameItem, Problem, TopicItem,
};
pub use ask::{Join, NewInvite, NewMesh, NewName, Profile};

status! {
    /// What a member may do.
    pub enum Role {
        /// Everything.
        Owner = "owner",
        /// Send and receive.
        Member = "member",
    }
}

status! {
    /// Whether a member may take part.
    pub enum MemberStatus {
        /// It may.
        Active = "active",
        /// Its owner has thrown it out.
        Revoked = "revoked",
        /// It has gone by itself.
        Left = "left",
    }
}

/// A body: one JSON object.
pub trait Body: Sized {
    /// Reads it strictly.
    fn decode(text: &[u8]) -> Result<Self, Refusal>;

    /// Writes it; fields come in the order of the document.
    fn encode(&self) -> String;
}

impl<R: Record> Body for R {
    fn decode(text: &[u8]) -> Result<Self, Refusal> {
        let limits = JsonLimits { bytes_max: ANSWER_BYTES_MAX, depth_max: FRAME_DEPTH_MAX };
        <R as Field>::read(json::read(text, limits)?)
    }

    fn encode(&self) -> String {
        let mut out = String::new();
        <R as Field>::write(self, &mut out);
        out
    }
}

impl Field for Role {
    fn read(node: Node<'_>) -> Result<Self, Refusal> {
        one_of(node, Self::parse, "must be one of owner, member")
    }

    fn write(&self, out: &mut String) {
        write_plain(self.as_str(), out);
    }
}

impl Field for MemberStatus {
    fn read(node: Node<'_>) -> Result<Self, Refusal> {
        one_of(node, Self::parse, "must be one of active, revoked, left")
    }

    fn write(&self, out: &mut String) {
        write_plain(self.as_str(), out);
    }
}

/// A name that stands in a path or in a query: 1 to `bytes_max` bytes without control characters.
pub fn name(text: String, bytes_max: usize) -> Result<String, Refusal> {
    crate::codec::check_name(text, bytes_max)
}

impl Problem {
    /// What is said of this code (RFC 9457).
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            status: code.http(),
            detail: detail.into(),
            pointer: None,
            retry_after_ms: None,
        }
    }

    /// What is said of a refusal.
    pub fn of(refusal: Refusal) -> Self {
        let pointer = Some(refusal.pointer).filter(|pointer| !pointer.is_empty());
        Self { pointer, ..Self::new(refusal.code, refusal.detail) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_named_has_its_default() {
        let invite = NewInvite::decode(b"{}").unwrap();
        assert_eq!(invite, NewInvite { uses: 1, ttl_seconds: 86_400, role: Role::Member });
        assert_eq!(Profile::decode(b"{}").unwrap(), Profile::default());
    }

    #[test]
    fn unknown_fields_and_wrong_values_are_named() {
        let refused = |text: &str| {
            let refusal = NewInvite::decode(text.as_bytes()).expect_err(text);
            (refusal.code, refusal.pointer)
        };
        assert_eq!(refused(r#"{"user":1}"#), (Code::UnknownField, "/user".to_owned()));
        assert_eq!(refused(r#"{"uses":0}"#), (Code::InvalidField, "/uses".to_owned()));
        assert_eq!(refused(r#"{"role":"god"}"#), (Code::InvalidField, "/role".to_owned()));
        assert_eq!(refused(r#"{"uses":1,"uses":2}"#), (Code::DuplicateKey, "/uses".to_owned()));
        assert_eq!(refused("[]").0, Code::InvalidField);
        assert_eq!(refused("").0, Code::InvalidJson);
        let long = format!(r#"{{"name":"{}"}}"#, "x".repeat(256));
        assert_eq!(NewName::decode(long.as_bytes()).expect_err("long").pointer, "/name");
        let profile = format!(r#"{{"summary":"{}"}}"#, "\\\"".repeat(2100));
        assert!(Profile::decode(profile.as_bytes()).is_err(), "4 KiB as it is stored");
    }

    #[test]
    fn a_problem_is_one_document() {
        let problem = Problem::of(Refusal::at(Code::UnknownField, "/user", "no such field"));
        let text = problem.encode();
        assert_eq!(
            text,
            r#"{"type":"urn:semel:error:unknown_field","title":"unknown field","status":400,"#
                .to_owned()
                + r#""code":"unknown_field","detail":"no such field","pointer":"/user"}"#
        );
        assert_eq!(Problem::decode(text.as_bytes()), Ok(problem));
    }

    #[test]
    fn a_list_says_where_to_go_on() {
        let list = List { items: vec![NameItem { name: "a/b".to_owned() }], next: None };
        assert_eq!(list.encode(), r#"{"items":[{"name":"a/b"}],"next":null}"#);
        assert_eq!(List::decode(list.encode().as_bytes()), Ok(list.clone()));
        let more = List { next: Some("/v1/x?after=a".to_owned()), ..list };
        assert_eq!(List::decode(more.encode().as_bytes()), Ok(more));
    }
}
