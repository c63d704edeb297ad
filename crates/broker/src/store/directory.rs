//! Who and what a mesh has: its policies, members, invites, topics and queues.

use std::time::Duration;

use semel_core::clock::UnixMs;
use semel_core::id::{MemberId, MeshId, QueueId};
use semel_core::plausible::Between;
use semel_store::{StoreError, either};
use semel_wire::features::ConnectionPolicy;
use uuid::Uuid;

pub use semel_wire::http::{MemberStatus, Role};

use super::{Audited, Store};
use crate::accept::{Age, DedupeMode};
use crate::limits::{DAY, DEDUPE_EXTEND_MAX, DEDUPE_GRACE, SWEEP_ROUNDS_MAX};

/// A mesh and its policies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mesh {
    /// Its key.
    pub mesh_id: MeshId,
    /// Its name.
    pub slug: String,
    /// What happens when a member connects twice.
    pub connection_policy: ConnectionPolicy,
    /// How long ids are remembered.
    pub dedupe: DedupeMode,
    /// Ids of sends that were queued before this may be forgotten, however long they are
    /// remembered now.
    pub dedupe_known_since: UnixMs,
    /// Messages that a member may send per window.
    pub rate_limit: u32,
    /// The window.
    pub rate_window_ms: u32,
    /// Bytes of a body that travels in a frame.
    pub inline_bytes: u32,
    /// Bytes of a file.
    pub blob_bytes: u64,
    /// How long messages are kept, delivered or not.
    pub message_retention_days: u32,
    /// The number of its next message, when this was read.
    pub next_seq: i64,
}

/// Somebody who is let in.
#[derive(Debug, Clone)]
pub struct NewMember {
    /// Its key.
    pub member_id: MemberId,
    /// What others call it.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// Names its key.
    pub key_id: String,
    /// Its public key, in hex.
    pub pubkey: String,
}

/// A member, as a list shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its key.
    pub member_id: MemberId,
    /// What others call it.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// Whether it may take part.
    pub status: MemberStatus,
    /// Its public key, in hex, also once it was revoked with its member.
    pub pubkey: Option<String>,
    /// What it says of itself: a JSON object.
    pub profile: String,
    /// When it came.
    pub joined_at: UnixMs,
}

/// A signed request, as far as the store must know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRequest {
    /// The key that signed.
    pub pubkey: String,
    /// Used once.
    pub nonce: [u8; 16],
    /// When the request's time cannot pass any more.
    pub expires_at: UnixMs,
}

/// Whether a signed request is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admitted {
    /// It is, once.
    Member {
        /// Who asks.
        member_id: MemberId,
        /// What it may do.
        role: Role,
    },
    /// Nobody in this mesh has that key now.
    Unknown,
    /// The member was revoked or has left.
    Inactive,
    /// It was served before.
    NonceReused,
}

/// An invite, without its token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewInvite {
    /// sha256 of the token.
    pub token_hash: [u8; 32],
    /// What who joins may do.
    pub role: Role,
    /// How many may join.
    pub uses: u32,
    /// Until when.
    pub expires_at: UnixMs,
    /// Nobody when it was the broker's operator.
    pub created_by: Option<MemberId>,
}

/// Somebody who joins by an invite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Join {
    /// sha256 of the invite's token.
    pub token_hash: [u8; 32],
    /// Its key if it is new.
    pub member_id: MemberId,
    /// What others will call it.
    pub name: String,
    /// Names its key.
    pub key_id: String,
    /// Its public key, in hex; the caller has seen it proven.
    pub pubkey: String,
}

/// What a join comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joined {
    /// It is a member now, and one use of the invite is spent.
    New(MemberId),
    /// It was let in by this invite before.
    Again(MemberId),
    /// It is a member, but not by this invite.
    Already,
    /// It was a member. It cannot come back with this key.
    Inactive,
    /// No such invite, or it has ended, or it is used up.
    InviteInvalid,
    /// Another key has that name.
    KeyIdTaken,
    /// Somebody who is active is called so.
    NameTaken,
}

/// What is made once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Made {
    /// It is new.
    New,
    /// It was there.
    There,
    /// The mesh, or the member in it, has as many as it may have.
    TooMany,
}

/// What the end of a membership comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It has ended.
    Done,
    /// There is no such active member.
    NotActive,
    /// The mesh has no other owner.
    LastOwner,
}

/// Policies that an operator changes; the others stay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MeshChange {
    /// See [`Mesh`].
    pub connection_policy: Option<ConnectionPolicy>,
    /// How long ids are remembered.
    pub dedupe: Option<DedupeMode>,
    /// See [`Mesh`].
    pub rate_limit: Option<u32>,
    /// See [`Mesh`].
    pub rate_window_ms: Option<u32>,
    /// See [`Mesh`].
    pub inline_bytes: Option<u32>,
    /// See [`Mesh`].
    pub message_retention_days: Option<u32>,
}

/// Where a page of ids ends: sender and id.
pub(super) type DedupeKey = (Uuid, String);

impl Mesh {
    /// Whether a send that was queued at `enqueued_at` is too old to be judged: its id may have
    /// been accepted and forgotten, by today's rule or by an earlier one.
    pub fn too_old(&self, enqueued_at: UnixMs, now: UnixMs) -> bool {
        self.age(enqueued_at, Between::certain(now)) == Age::TooOld
    }

    /// The same where the present is only known to lie between two times.
    pub fn age(&self, enqueued_at: UnixMs, now: Between) -> Age {
        if enqueued_at < self.dedupe_known_since {
            return Age::TooOld;
        }
        self.dedupe.age(enqueued_at, now)
    }

    /// Since when every id is known once the rule is `dedupe`. A longer memory begins with what
    /// the shorter one has kept; a shorter one forgets nothing that is there.
    fn known_since_with(&self, dedupe: DedupeMode, now: UnixMs) -> UnixMs {
        let kept = match (self.dedupe, dedupe) {
            (DedupeMode::Permanent, _) => return self.dedupe_known_since,
            (DedupeMode::RetentionScoped { days }, DedupeMode::RetentionScoped { days: new })
                if new <= days =>
            {
                return self.dedupe_known_since;
            }
            (DedupeMode::RetentionScoped { days }, _) => DAY * days,
        };
        self.dedupe_known_since.max(now.saturating_sub(kept))
    }
}

/// Calls the same method of whichever store it is.
impl Store {
    /// Makes a mesh with its owner. `false` when the slug is taken.
    pub async fn mesh_create(
        &self,
        mesh_id: MeshId,
        slug: &str,
        owner: &NewMember,
        now: UnixMs,
    ) -> Result<bool, StoreError> {
        either!(self.mesh_create(mesh_id, slug, owner, now))
    }

    /// The mesh of that name.
    pub async fn mesh_find(&self, slug: &str) -> Result<Option<Mesh>, StoreError> {
        either!(self.mesh_find(slug))
    }

    /// Every mesh, by name.
    pub async fn mesh_list(&self) -> Result<Vec<Mesh>, StoreError> {
        either!(self.mesh_list())
    }

    /// Lets somebody in. `false` when somebody who is active is called so already.
    pub async fn member_add(
        &self,
        mesh_id: MeshId,
        member: &NewMember,
        now: UnixMs,
    ) -> Result<bool, StoreError> {
        either!(self.member_add(mesh_id, member, now))
    }

    /// Throws a member out, or lets it go, with its keys and sessions, unless no owner would be
    /// left.
    pub async fn member_end(
        &self,
        mesh_id: MeshId,
        member_id: MemberId,
        status: MemberStatus,
        audited: Audited,
    ) -> Result<Ended, StoreError> {
        either!(self.member_end(mesh_id, member_id, status, audited))
    }

    /// Makes a topic, unless it is there; for a member, or for the operator.
    pub async fn topic_create(
        &self,
        mesh_id: MeshId,
        name: &str,
        by: Option<MemberId>,
        now: UnixMs,
    ) -> Result<Made, StoreError> {
        either!(self.topic_create(mesh_id, name, by, now))
    }

    /// Subscribes a member, unless it is: to what is accepted from now on. `false` when there is no
    /// such topic.
    pub async fn topic_subscribe(
        &self,
        mesh_id: MeshId,
        name: &str,
        member_id: MemberId,
    ) -> Result<bool, StoreError> {
        either!(self.topic_subscribe(mesh_id, name, member_id))
    }

    /// Makes a work queue, unless it is there.
    pub async fn queue_create(
        &self,
        mesh_id: MeshId,
        (name, queue_id): (&str, QueueId),
        by: Option<MemberId>,
        now: UnixMs,
    ) -> Result<Made, StoreError> {
        let named = (name, queue_id);
        either!(self.queue_create(mesh_id, named, by, now))
    }

    /// Up to `limit` members of whatever status after this one, in the order in which they joined.
    pub async fn member_list(
        &self,
        mesh_id: MeshId,
        after: Option<MemberId>,
        limit: i64,
    ) -> Result<Vec<Member>, StoreError> {
        either!(self.member_list(mesh_id, after, limit))
    }

    /// Who has this key, current or not.
    pub async fn member_by_key(
        &self,
        mesh_id: MeshId,
        pubkey: &str,
    ) -> Result<Option<Member>, StoreError> {
        either!(self.member_by_key(mesh_id, pubkey))
    }

    /// What a member says of itself from now on: a JSON object. `false` when it is not active.
    pub async fn member_profile(
        &self,
        mesh_id: MeshId,
        member_id: MemberId,
        profile: &str,
    ) -> Result<bool, StoreError> {
        either!(self.member_profile(mesh_id, member_id, profile))
    }

    /// Unsubscribes a member, if it is subscribed. `false` when there is no such topic.
    pub async fn topic_unsubscribe(
        &self,
        mesh_id: MeshId,
        name: &str,
        member_id: MemberId,
    ) -> Result<bool, StoreError> {
        either!(self.topic_unsubscribe(mesh_id, name, member_id))
    }

    /// Up to `limit` topics after this name, by name.
    pub async fn topic_list(
        &self,
        mesh_id: MeshId,
        after: Option<&str>,
        limit: i64,
    ) -> Result<Vec<String>, StoreError> {
        either!(self.topic_list(mesh_id, after, limit))
    }

    /// The same, with whether this member is subscribed.
    pub async fn topic_list_of(
        &self,
        mesh_id: MeshId,
        member_id: MemberId,
        after: Option<&str>,
        limit: i64,
    ) -> Result<Vec<(String, bool)>, StoreError> {
        either!(self.topic_list_of(mesh_id, member_id, after, limit))
    }

    /// Up to `limit` queues after this name, by name.
    pub async fn queue_list(
        &self,
        mesh_id: MeshId,
        after: Option<&str>,
        limit: i64,
    ) -> Result<Vec<String>, StoreError> {
        either!(self.queue_list(mesh_id, after, limit))
    }

    /// Notes an invite. `false` when the mesh has too many.
    pub async fn invite_create(
        &self,
        mesh_id: MeshId,
        invite: &NewInvite,
        now: UnixMs,
    ) -> Result<bool, StoreError> {
        either!(self.invite_create(mesh_id, invite, now))
    }

    /// Lets somebody in by an invite, once per key: the same join again is the same member.
    pub async fn join(
        &self,
        mesh_id: MeshId,
        join: &Join,
        now: UnixMs,
    ) -> Result<Joined, StoreError> {
        either!(self.join(mesh_id, join, now))
    }

    /// Who asks, and whether this nonce is new: both are read and noted in one transaction.
    pub async fn request_admit(
        &self,
        mesh_id: MeshId,
        request: &NewRequest,
        now: UnixMs,
    ) -> Result<Admitted, StoreError> {
        either!(self.request_admit(mesh_id, request, now))
    }

    /// Forgets up to `limit` invites that have ended, and says how many.
    pub async fn invite_sweep(&self, now: UnixMs, limit: i64) -> Result<u64, StoreError> {
        either!(self.invite_sweep(now, limit))
    }

    /// Forgets up to `limit` nonces that are over, and says how many.
    pub async fn nonce_sweep(&self, now: UnixMs, limit: i64) -> Result<u64, StoreError> {
        either!(self.nonce_sweep(now, limit))
    }

    /// Gives the store a new life after a restore: another `store_epoch`, session epochs that
    /// nobody has had, and no session, so that whatever comes over an older connection is stale.
    pub async fn store_renew(&self, store_epoch: &str) -> Result<(), StoreError> {
        either!(self.store_renew(store_epoch))
    }

    /// Changes a mesh's policies, as they were read in `mesh`. `false` when its dedupe rule has
    /// been changed by somebody else since.
    ///
    /// A daemon that was told a retention keeps its rows for that long. So an id that is known
    /// stays known for the longer of the old and the new rule, and that is on disk before the new
    /// rule is told to anybody (mesh.md §6). What is accepted meanwhile under the old rule is kept
    /// by the sweep, which goes by the mesh's rule too.
    pub async fn mesh_set(
        &self,
        mesh: &Mesh,
        change: &MeshChange,
        now: UnixMs,
    ) -> Result<bool, StoreError> {
        let dedupe = change.dedupe.unwrap_or(mesh.dedupe);
        if dedupe != mesh.dedupe {
            let longer = mesh.dedupe.life().zip(dedupe.life()).map(|(old, new)| old.max(new));
            self.dedupe_extend_all(mesh.mesh_id, longer).await?;
        }
        let known_since = mesh.known_since_with(dedupe, now);
        either!(self.mesh_change(mesh, change, known_since))
    }

    /// Page by page, so that accepts go on in between.
    async fn dedupe_extend_all(
        &self,
        mesh_id: MeshId,
        life: Option<Duration>,
    ) -> Result<(), StoreError> {
        let life_ms = life.map(|life| i64::try_from(life.as_millis()).unwrap_or(i64::MAX));
        let mut after: DedupeKey = (Uuid::nil(), String::new());
        for _ in 0..SWEEP_ROUNDS_MAX {
            let limit = DEDUPE_EXTEND_MAX;
            let next = match self {
                Self::Sqlite(store) => store.dedupe_extend(mesh_id, life_ms, after, limit).await?,
                Self::Postgres(store) => {
                    store.dedupe_extend(mesh_id, life_ms, &after, limit).await?
                }
            };
            let Some(next) = next else { return Ok(()) };
            after = next;
        }
        let max = u64::from(SWEEP_ROUNDS_MAX).saturating_mul(DEDUPE_EXTEND_MAX.unsigned_abs());
        Err(StoreError::TooManyRows { rows: max, max })
    }
}

impl DedupeMode {
    /// Reads a mesh's two columns.
    pub(super) fn read(slug: &str, mode: &str, days: i64) -> Result<Self, StoreError> {
        match (mode, u32::try_from(days)) {
            ("permanent", _) => Ok(Self::Permanent),
            ("retention_scoped", Ok(days)) => Ok(Self::RetentionScoped { days }),
            _ => Err(StoreError::Corrupt {
                table: "mesh",
                id: slug.to_owned(),
                what: format!("dedupe mode {mode:?} of {days} days"),
            }),
        }
    }

    /// For how long a row is kept after it was written; nothing is for ever.
    fn life(self) -> Option<Duration> {
        match self {
            Self::Permanent => None,
            Self::RetentionScoped { days } => Some(DAY * days + DEDUPE_GRACE),
        }
    }

    /// As the mesh's column holds it.
    pub(super) const fn mode_name(self) -> &'static str {
        match self {
            Self::Permanent => "permanent",
            Self::RetentionScoped { .. } => "retention_scoped",
        }
    }

    /// As the mesh's column holds it; a permanent mesh keeps the number it had.
    pub(super) fn days(self) -> Option<i64> {
        match self {
            Self::Permanent => None,
            Self::RetentionScoped { days } => Some(i64::from(days)),
        }
    }
}

/// Reads a member's columns; an impossible combination is `Corrupt`, never a panic.
pub(super) fn standing(
    member_id: MemberId,
    role: &str,
    status: &str,
) -> Result<(Role, MemberStatus), StoreError> {
    let corrupt =
        |what: String| StoreError::Corrupt { table: "member", id: member_id.to_string(), what };
    let role = Role::parse(role).ok_or_else(|| corrupt(format!("role {role:?}")))?;
    let status = MemberStatus::parse(status).ok_or_else(|| corrupt(format!("status {status:?}")));
    Ok((role, status?))
}

#[cfg(test)]
mod tests;
