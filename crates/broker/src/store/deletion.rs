//! The end of topics and queues. What was accepted stays: it is delivered and kept like any other
//! message. Work that waits is not thrown away unless that is asked for.

use semel_core::id::{MemberId, MeshId};
use semel_store::{StoreError, either};
use serde_json::json;

use super::session::event;
use super::{AuditEvent, AuditKind, Audited, Store};

/// Who asks that something is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deleter {
    /// Nobody when it is the broker's operator.
    pub member_id: Option<MemberId>,
    /// Whether it may delete what others have made.
    pub may_all: bool,
}

/// What becomes of whoever or whatever still depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InUse {
    /// Then nothing is deleted.
    Refuse,
    /// Subscriptions of others end; work is thrown away.
    End,
}

/// What a deletion comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deleted {
    /// It is gone.
    Done,
    /// A part of its work is; the same again goes on.
    More,
    /// Nothing is called so.
    NotFound,
    /// Somebody else has made it.
    NotYours,
    /// Others subscribe to it, or work waits in it.
    InUse,
}

impl Deleter {
    pub(super) fn may(self, made_by: Option<MemberId>) -> bool {
        self.may_all || (self.member_id.is_some() && self.member_id == made_by)
    }

    pub(super) fn event(self, kind: AuditKind, name: &str, audited: Audited) -> AuditEvent {
        let by = self.member_id.map(|member| member.to_string());
        event(audited.id, audited.at, kind, &json!({"name": name, "member_id": by}))
    }
}

/// Calls the same method of whichever store it is.
impl Store {
    /// Deletes a topic with its subscriptions. Messages that were accepted are delivered to whoever
    /// subscribed then.
    pub async fn topic_delete(
        &self,
        mesh_id: MeshId,
        name: &str,
        (deleter, in_use): (Deleter, InUse),
        audited: Audited,
    ) -> Result<Deleted, StoreError> {
        let by = (deleter, in_use);
        either!(self.topic_delete(mesh_id, name, by, audited))
    }

    /// Deletes a work queue: where work may end, a part of it at a time.
    pub async fn queue_delete(
        &self,
        mesh_id: MeshId,
        name: &str,
        (deleter, in_use): (Deleter, InUse),
        audited: Audited,
    ) -> Result<Deleted, StoreError> {
        let by = (deleter, in_use);
        either!(self.queue_delete(mesh_id, name, by, audited))
    }
}
