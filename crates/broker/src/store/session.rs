//! Who speaks for a member (mesh.md §8 and §10): the types of `hello`, of heartbeats and of the
//! audit trail, what both stores decide alike, and the calls.

use std::time::Duration;

use semel_core::clock::{Reading, UnixMs};
use semel_core::hex::Hex;
use semel_core::id::{AuditEventId, BrokerId, InstanceId, MemberId, MeshId};
use semel_core::status;
use semel_store::{StoreError, either};
use semel_wire::features::ConnectionPolicy;
use serde_json::{Value, json};
use uuid::Uuid;

use super::housekeeping::made_at;
use super::{Acked, MemberStatus, Store};
use crate::accept::Session;

/// A daemon that wants to speak for a member.
#[derive(Debug, Clone)]
pub struct NewSession {
    /// The mesh.
    pub mesh_id: MeshId,
    /// The key that signed.
    pub pubkey: String,
    /// What the daemon calls it.
    pub key_id: String,
    /// The daemon.
    pub instance_id: InstanceId,
    /// The broker it has reached.
    pub broker_id: BrokerId,
    /// Of its hello: whoever it replaces is told.
    pub hello_nonce: Hex<16>,
    /// Its machine, where it can tell.
    pub host_fingerprint: Option<Hex<32>>,
    /// Instances of the same member that must never be heard again.
    pub retire: Vec<InstanceId>,
    /// The store's life in which the broker began.
    pub store_epoch: String,
    /// The time, for the audit trail.
    pub now: UnixMs,
    /// The time, for whoever is connected.
    pub pulse: Pulse,
    /// For what the audit trail will say, one for each kind that a hello can cause.
    pub event_ids: [AuditEventId; 3],
}

impl NewSession {
    /// The connection that came of it.
    pub(super) fn live(&self, session: Session) -> Live {
        Live { session, host_fingerprint: self.host_fingerprint }
    }
}

/// The time as heartbeats count it. PostgreSQL goes by its own clock, which all brokers share;
/// SQLite, whose one process writes and reads them, by one that does not step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pulse {
    /// Now.
    pub at: Reading,
    /// Who was not heard of for so long is not connected.
    pub ghost_after: Duration,
}

impl Pulse {
    /// As a statement of PostgreSQL takes it.
    pub(super) fn ghost_after_ms(&self) -> i64 {
        i64::try_from(self.ghost_after.as_millis()).unwrap_or(i64::MAX)
    }
}

/// What a `hello` comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Greeted {
    /// The epoch was raised and is on disk.
    Welcome {
        /// The session from now on.
        session: Session,
        /// What the member is called.
        name: String,
        /// What the mesh does with two connections of a member.
        policy: ConnectionPolicy,
    },
    /// Nobody in this mesh has that key.
    Unknown,
    /// The member was revoked or has left.
    Inactive,
    /// The instance was retired: it is refused for ever.
    Retired,
    /// The member would have retired more instances than it may.
    TooManyRetired,
    /// Another instance is connected, and the mesh prefers the oldest.
    AlreadyConnected,
    /// The store is not in the life in which the broker began.
    Restored,
}

/// A live connection, as a heartbeat names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Live {
    /// Whom it speaks for.
    pub session: Session,
    /// Its machine, where it can tell.
    pub host_fingerprint: Option<Hex<32>>,
}

/// What the store knows of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It speaks for its daemon.
    Current,
    /// It does, and its presence had been given up: that was written again.
    Revived,
    /// A newer connection does.
    Replaced {
        /// Of the hello that took its place.
        nonce: Option<Hex<16>>,
    },
    /// Its instance was retired.
    Retired,
    /// The member was revoked or has left.
    Revoked,
}

/// What a heartbeat has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beat {
    /// Which life of the store this is.
    pub store_epoch: String,
    /// One per connection, in order.
    pub standings: Vec<Standing>,
}

/// A daemon that is connected to some broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Present {
    /// Whom it speaks for.
    pub session: Session,
    /// What the member is called.
    pub name: String,
    /// The member's current key.
    pub pubkey: String,
}

status! {
    /// What the audit trail tells of.
    pub enum AuditKind {
        /// A daemon came while another one of its member was connected.
        ConcurrentConnection = "concurrent_connection",
        /// One instance was seen on two machines at a time.
        CloneSuspected = "clone_suspected",
        /// A daemon has retired others whose folder it has.
        InstanceRetired = "instance_retired",
        /// A member was thrown out.
        MemberRevoked = "member_revoked",
        /// A member has gone by itself.
        MemberLeft = "member_left",
        /// A topic was deleted.
        TopicDeleted = "topic_deleted",
        /// A work queue was deleted.
        QueueDeleted = "queue_deleted",
    }
}

/// One line of the audit trail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEvent {
    /// Its key, in the order of time.
    pub id: AuditEventId,
    /// When.
    pub at: UnixMs,
    /// What, as a word.
    pub kind: String,
    /// A JSON object.
    pub detail: String,
}

/// Key and time of something that will be in the audit trail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Audited {
    /// Its key.
    pub id: AuditEventId,
    /// When.
    pub at: UnixMs,
}

impl Audited {
    /// A member's end.
    pub(super) fn member_end(self, member_id: MemberId, status: MemberStatus) -> AuditEvent {
        let kind = match status {
            MemberStatus::Left => AuditKind::MemberLeft,
            MemberStatus::Active | MemberStatus::Revoked => AuditKind::MemberRevoked,
        };
        event(self.id, self.at, kind, &json!({"member_id": member_id.to_string()}))
    }
}

pub(super) fn event(id: AuditEventId, at: UnixMs, kind: AuditKind, detail: &Value) -> AuditEvent {
    AuditEvent { id, at, kind: kind.as_str().to_owned(), detail: detail.to_string() }
}

/// A row of `presence` of the member that says hello.
pub(super) struct Connected {
    pub(super) instance_id: InstanceId,
    pub(super) host_fingerprint: Option<[u8; 32]>,
    pub(super) is_live: bool,
}

/// Whether a daemon may come, and what that does to others of its member.
pub(super) struct Admission {
    pub(super) policy: ConnectionPolicy,
    /// Others that are connected and are not retired by this hello.
    others: Vec<InstanceId>,
    is_clone: bool,
}

impl Admission {
    pub(super) fn new(policy: ConnectionPolicy, new: &NewSession, connected: &[Connected]) -> Self {
        let live = || connected.iter().filter(|other| other.is_live);
        let others = live().map(|other| other.instance_id);
        let others = others.filter(|id| *id != new.instance_id && !new.retire.contains(id));
        let host = new.host_fingerprint.map(|host| host.0);
        let is_clone = live().any(|other| {
            let is_same = other.instance_id == new.instance_id;
            is_same
                && other.host_fingerprint.is_some()
                && host.is_some()
                && other.host_fingerprint != host
        });
        Self { policy, others: others.collect(), is_clone }
    }

    /// The newcomer must go, and nothing is raised.
    pub(super) fn is_refused(&self) -> bool {
        self.policy == ConnectionPolicy::PreferOldest && !self.others.is_empty()
    }

    /// The sessions of all other instances end. That fences also those of whom nothing was heard
    /// for long: two daemons must not speak for one member where one is preferred.
    pub(super) fn ends_others(&self) -> bool {
        self.policy != ConnectionPolicy::AllowConcurrent
    }

    /// What the audit trail says; `retired` are the instances that were not retired before.
    pub(super) fn events(
        &self,
        new: &NewSession,
        member_id: MemberId,
        retired: &[InstanceId],
    ) -> Vec<AuditEvent> {
        let names = |ids: &[InstanceId]| ids.iter().map(ToString::to_string).collect::<Vec<_>>();
        let mut ids = new.event_ids.into_iter();
        let mut events = Vec::new();
        let mut tell = |kind: AuditKind, more: Value| {
            let mut detail = json!({
                "member_id": member_id.to_string(),
                "instance_id": new.instance_id.to_string(),
                "broker_id": new.broker_id.to_string(),
            });
            if let (Value::Object(detail), Value::Object(more)) = (&mut detail, more) {
                detail.extend(more);
            }
            events.extend(ids.next().map(|id| event(id, new.now, kind, &detail)));
        };
        if !self.others.is_empty() {
            let more = json!({
                "policy": self.policy.as_str(), "others": names(&self.others),
                "refused": self.is_refused(),
            });
            tell(AuditKind::ConcurrentConnection, more);
        }
        if self.is_clone {
            tell(AuditKind::CloneSuspected, json!({}));
        }
        if !retired.is_empty() {
            tell(AuditKind::InstanceRetired, json!({"retired": names(retired)}));
        }
        events
    }
}

/// How the ids of keys begin that an operator has added: nobody else knows them.
pub const OPERATORS_KEY: &str = "operator:";

/// Who says hello, as the store has it.
pub(super) struct Greeter {
    pub(super) member_status: String,
    pub(super) key_status: String,
    pub(super) key_id: String,
    pub(super) store_epoch: String,
    pub(super) is_retired: bool,
}

impl Greeter {
    /// Why it may not come, whatever the policy. A key that was revoked with its member is still
    /// known: who was thrown out is told so.
    pub(super) fn refused(&self, new: &NewSession) -> Option<Greeted> {
        if self.store_epoch != new.store_epoch {
            return Some(Greeted::Restored);
        }
        if self.member_status != MemberStatus::Active.as_str() {
            return Some(Greeted::Inactive);
        }
        // An operator who adds a member does not know what its daemon calls the key.
        let is_named = self.key_id == new.key_id || self.key_id.starts_with(OPERATORS_KEY);
        if self.key_status != "current" || !is_named {
            return Some(Greeted::Unknown);
        }
        self.is_retired.then_some(Greeted::Retired)
    }
}

/// What the store has of a connection whose heartbeat found no row.
pub(super) struct Found {
    pub(super) member_status: Option<String>,
    pub(super) is_retired: bool,
    /// Of the instance, with the nonce.
    pub(super) session: Option<(i64, [u8; 16])>,
    /// Of the member's latest hello.
    pub(super) latest_nonce: Option<[u8; 16]>,
}

impl Found {
    /// A missing session is stale, like any other number.
    pub(super) fn standing(&self, session: &Session) -> Standing {
        if self.member_status.as_deref() != Some(MemberStatus::Active.as_str()) {
            return Standing::Revoked;
        }
        if self.is_retired {
            return Standing::Retired;
        }
        match self.session {
            Some((epoch, _)) if epoch == session.epoch => Standing::Revived,
            Some((_, nonce)) => Standing::Replaced { nonce: Some(Hex(nonce)) },
            None => Standing::Replaced { nonce: self.latest_nonce.map(Hex) },
        }
    }
}

/// Reads a mesh's column.
pub(super) fn policy(slug: &str, text: &str) -> Result<ConnectionPolicy, StoreError> {
    ConnectionPolicy::parse(text).ok_or_else(|| StoreError::Corrupt {
        table: "mesh",
        id: slug.to_owned(),
        what: format!("the connection policy is {text:?}"),
    })
}

/// Calls the same method of whichever store it is.
impl Store {
    /// Raises the daemon's epoch. Waits for every accept that holds the old one, so that none can
    /// commit afterwards (mesh.md §10); the same for those whose place it takes.
    pub async fn hello(&self, new: &NewSession) -> Result<Greeted, StoreError> {
        either!(self.hello(new))
    }

    /// These connections live; says which of them may not.
    pub async fn heartbeat(
        &self,
        mesh_id: MeshId,
        broker_id: BrokerId,
        live: &[Live],
        pulse: Pulse,
    ) -> Result<Beat, StoreError> {
        match self {
            Self::Sqlite(store) => store.heartbeat(mesh_id, broker_id, live, pulse).await,
            Self::Postgres(store) => store.heartbeat(mesh_id, broker_id, live).await,
        }
    }

    /// A connection has ended; a newer one of the same daemon stays. Where all daemons of a member
    /// get every delivery, those that waited only for this one end with it.
    pub async fn depart(
        &self,
        mesh_id: MeshId,
        session: &Session,
        policy: ConnectionPolicy,
        pulse: Pulse,
    ) -> Result<(), StoreError> {
        either!(self.depart(mesh_id, session, policy, pulse))
    }

    /// A broker begins to serve: no heartbeat of an earlier one counts for longer than one of now,
    /// whatever its clock said. PostgreSQL's heartbeats are by its own clock. Up to `limit` at a
    /// time; says how many were changed.
    pub async fn presence_begin(&self, pulse: Pulse, limit: i64) -> Result<u64, StoreError> {
        match self {
            Self::Sqlite(store) => store.presence_begin(pulse, limit).await,
            Self::Postgres(_) => Ok(0),
        }
    }

    /// Forgets daemons that were not heard of for too long, and says of how many.
    pub async fn ghosts_sweep(&self, pulse: Pulse, limit: i64) -> Result<u64, StoreError> {
        either!(self.ghosts_sweep(pulse, limit))
    }

    /// Who is connected to any broker, by member.
    pub async fn roster(
        &self,
        mesh_id: MeshId,
        pulse: Pulse,
        limit: i64,
    ) -> Result<Vec<Present>, StoreError> {
        either!(self.roster(mesh_id, pulse, limit))
    }

    /// One of a member's daemons has everything up to `seq`; what all that are connected have
    /// ends. Up to `after` nothing is left.
    pub async fn deliveries_acked(
        &self,
        mesh_id: MeshId,
        session: &Session,
        (after, seq): (i64, i64),
        pulse: Pulse,
    ) -> Result<Acked, StoreError> {
        let between = (after, seq);
        match self {
            Self::Sqlite(store) => store.deliveries_acked(mesh_id, session, between, pulse).await,
            Self::Postgres(store) => {
                let _turn = store.delivering().await;
                store.deliveries_acked(mesh_id, session, between, pulse).await
            }
        }
    }

    /// When the oldest delivery of a mesh that still waits was accepted, of the first so many
    /// recipients that have one.
    pub async fn delivery_oldest(
        &self,
        mesh_id: MeshId,
        recipients_max: i64,
    ) -> Result<Option<UnixMs>, StoreError> {
        Ok(either!(self.delivery_oldest(mesh_id, recipients_max))?.map(made_at))
    }

    /// These cannot be said to their recipient: they are kept for a person to look at, and no
    /// acknowledgement ends them. Says how many.
    pub async fn deliveries_set_aside(
        &self,
        mesh_id: MeshId,
        recipient: Uuid,
        seqs: &[i64],
        reason: &'static str,
        now: UnixMs,
    ) -> Result<u64, StoreError> {
        either!(self.deliveries_set_aside(mesh_id, recipient, seqs, reason, now))
    }

    /// The audit trail of a mesh, the latest first.
    pub async fn audit_list(
        &self,
        mesh_id: MeshId,
        limit: i64,
    ) -> Result<Vec<AuditEvent>, StoreError> {
        either!(self.audit_list(mesh_id, limit))
    }

    /// Deletes up to `limit` lines of the audit trail from before `older_than`.
    pub async fn audit_sweep(&self, older_than: UnixMs, limit: i64) -> Result<u64, StoreError> {
        either!(self.audit_sweep(older_than, limit))
    }
}
