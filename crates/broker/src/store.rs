//! Where a broker keeps its meshes: one set of operations, two databases. One method is one
//! transaction. `sqlite/` and `postgres/` have the same files in the same order.

mod deletion;
mod delivery;
mod directory;
mod founding;
mod housekeeping;
mod postgres;
mod session;
mod sqlite;

use std::sync::Arc;
use std::time::Duration;

use semel_core::clock::{Reading, UnixMs};
use semel_core::envelope::{Destination, DestinationKind, Priority};
use semel_core::fingerprint::{BodyHash, Fields, Fingerprint};
use semel_core::id::{BrokerMessageId, ClientMessageId, MemberId, MeshId};
use semel_store::sqlite::Sequence;
use semel_store::{StoreError, either};
use semel_wire::limits::{FRAME_OVERHEAD_BYTES, message_bytes_max};
use uuid::Uuid;

use crate::accept::{AcceptBatch, Door, Held, Session, Verdict};
use crate::limits::{POSTGRES_BATCH_ROWS, SQLITE_BATCH_ROWS};

pub use deletion::{Deleted, Deleter, InUse};
pub use delivery::{Acked, Arrived, Asked, Messages, Waiting};
pub use directory::{
    Admitted, Ended, Join, Joined, Made, Member, MemberStatus, Mesh, MeshChange, NewInvite,
    NewMember, NewRequest, Role,
};
pub use housekeeping::Report;
pub use postgres::PostgresStore;
pub use session::{
    AuditEvent, AuditKind, Audited, Beat, Greeted, Live, NewSession, OPERATORS_KEY, Present, Pulse,
    Standing,
};
pub use sqlite::{
    APPLICATION_ID as SQLITE_APPLICATION_ID, MIGRATIONS as SQLITE_MIGRATIONS, ROWS as SQLITE_ROWS,
    SqliteStore,
};

/// Either database.
#[derive(Clone)]
pub enum Store {
    /// One host.
    Sqlite(Arc<SqliteStore>),
    /// Many brokers.
    Postgres(PostgresStore),
}

/// What a look-up has found, of one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookedUp {
    /// Which life of the store this is of.
    pub store_epoch: String,
    /// One per question, in order.
    pub held: Vec<Option<Held>>,
}

/// What a daemon's question about its ids comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolved {
    /// It speaks over another connection by now: nothing can be said here.
    Stale,
    /// This is so.
    Current(LookedUp),
}

/// What an accept transaction did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BatchDone {
    /// One per item, in order.
    pub verdicts: Vec<Verdict>,
    /// Members and queues that have something new.
    pub recipients: Vec<Uuid>,
    /// What was accepted, in the order of history, where nobody else can have written meanwhile.
    pub fresh: Vec<Fresh>,
}

/// What the next accept transaction is to do.
pub struct Next {
    /// The sends.
    pub batch: Arc<AcceptBatch>,
    /// Whom to ask about those that are new.
    pub door: Option<Box<dyn Door>>,
    /// Nothing else is to be in its transaction.
    pub is_ahead: bool,
}

/// How many get what is sent to a topic, where the store can tell at once.
pub type Audience<'a> = dyn FnMut(MeshId, &str) -> Option<usize> + 'a;

/// A message that was just committed, with all that its recipients are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fresh {
    /// Which item of the batch it is.
    pub item: usize,
    /// Its number in the mesh's history.
    pub seq: i64,
    /// Who sent it.
    pub sender: Arc<Sender>,
    /// Who gets it.
    pub to: Arc<[Uuid]>,
}

/// How a sender is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sender {
    /// What it is called.
    pub name: String,
    /// Its current public key, if it has one.
    pub pubkey: Option<String>,
}

/// A message on its way to a recipient, or in history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// Its number in the mesh's history.
    pub seq: i64,
    /// Its name.
    pub broker_message_id: BrokerMessageId,
    /// The sender's name for it.
    pub client_message_id: ClientMessageId,
    /// Who sent it.
    pub sender_member_id: MemberId,
    /// What the sender is called.
    pub sender_name: String,
    /// The sender's current public key.
    pub sender_pubkey: String,
    /// Where it was sent.
    pub destination: Destination,
    /// What it replies to.
    pub reply_to_id: Option<String>,
    /// How urgent it is.
    pub priority: Priority,
    /// Canonical JSON, or empty.
    pub meta: String,
    /// The body.
    pub body: Vec<u8>,
    /// Of a sealed body.
    pub body_commitment: Option<[u8; 32]>,
    /// Of the accepted request; what is here is still the same.
    pub request_fingerprint: Fingerprint,
    /// When the broker accepted it.
    pub accepted_at: UnixMs,
}

/// A message of which nothing but its number can be read.
struct Unreadable {
    seq: i64,
    why: String,
}

/// Why a message is out of the way: it is not what was accepted.
pub(crate) const DAMAGED: &str = "damaged";

/// Somebody asks a queue for work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Take {
    /// Who gets the lease.
    pub taker: MemberId,
    /// When. PostgreSQL goes by its own clock, SQLite by one that does not step.
    pub at: Reading,
    /// For how long.
    pub lease: Duration,
    /// Messages at the most.
    pub max: i64,
    /// Bytes of the frame that they must fit into; one message always does.
    pub bytes_max: usize,
}

/// Why work is out of the way: it was leased so often that nobody will end it.
pub(crate) const TAKEN_TOO_OFTEN: &str = "taken_too_often";

/// What a take comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taken {
    /// There is such a queue.
    Leased {
        /// In the order of `seq`; none when nothing is free.
        taken: Vec<Delivery>,
        /// What was leased too often and is out of the way now.
        set_aside: u64,
        /// What is not what was accepted, and is out of the way, too.
        damaged: u64,
    },
    /// There is no such queue.
    NoQueue,
}

/// A part of what a member may see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryPage {
    /// In the order of `seq`.
    pub deliveries: Vec<Delivery>,
    /// The numbers of messages that are not what was accepted.
    pub damaged: Vec<i64>,
    /// Where to go on; nothing when this was the end.
    pub next_after_seq: Option<i64>,
}

/// Calls the same method of whichever store it is.
impl Store {
    /// Whether this process is the only one that accepts sends into it.
    pub const fn is_alone(&self) -> bool {
        matches!(self, Self::Sqlite(_))
    }

    /// Closes a file in order, for all who use it; a server has nothing to close.
    pub async fn close(&self) {
        match self {
            Self::Sqlite(store) => store.close().await,
            Self::Postgres(_) => {}
        }
    }

    /// Which life of the store this is: a restore from backup changes it.
    pub async fn store_epoch(&self) -> Result<String, StoreError> {
        either!(self.store_epoch())
    }

    /// Whether it takes a commit.
    pub async fn probe(&self) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(store) => store.probe().await,
            Self::Postgres(store) => store.postgres().probe().await,
        }
    }

    /// What time the store says it is, where it has a clock of its own.
    pub async fn now(&self) -> Result<Option<UnixMs>, StoreError> {
        match self {
            Self::Sqlite(_) => Ok(None),
            Self::Postgres(store) => store.now().await.map(Some),
        }
    }

    /// When its newest message was taken in, where it has no clock of its own.
    pub async fn newest(&self) -> Result<Option<UnixMs>, StoreError> {
        match self {
            Self::Sqlite(store) => store.newest().await,
            Self::Postgres(_) => Ok(None),
        }
    }

    /// B0: which of these senders' ids are held, in the order asked.
    pub async fn dedupe_look_up(
        &self,
        mesh_id: MeshId,
        keys: &[(MemberId, ClientMessageId)],
    ) -> Result<LookedUp, StoreError> {
        either!(self.dedupe_look_up(mesh_id, keys))
    }

    /// Which of the daemon's ids are held, in the order asked, if it still speaks over this
    /// session. Exact, because no older attempt can commit any more (mesh.md §10).
    pub async fn resolve(
        &self,
        mesh_id: MeshId,
        session: &Session,
        ids: &[ClientMessageId],
    ) -> Result<Resolved, StoreError> {
        either!(self.resolve(mesh_id, session, ids))
    }

    /// B2 and B3 for a whole batch: all five effects of what is accepted, in one commit.
    pub async fn accept(&self, batch: &Arc<AcceptBatch>) -> Result<BatchDone, StoreError> {
        either!(self.accept(batch))
    }

    /// The same for what `take` gives when the transaction begins, about so many, unless one before
    /// it in the sequence was not kept. A door is heeded where [`Self::has_doors`].
    pub async fn accept_next(
        &self,
        before: &Arc<Sequence>,
        about: usize,
        take: impl FnOnce(&mut Audience<'_>) -> Option<Next> + Send + 'static,
    ) -> Result<BatchDone, StoreError> {
        match self {
            Self::Sqlite(store) => store.accept_next(before, about, take).await,
            Self::Postgres(store) => match take(&mut |_, _| None) {
                Some(Next { batch, .. }) => store.accept(&batch).await,
                None => Ok(BatchDone::default()),
            },
        }
    }

    /// How many get what is sent to each of these topics now.
    pub async fn audiences(
        &self,
        mesh_id: MeshId,
        topics: &[String],
    ) -> Result<Vec<usize>, StoreError> {
        either!(self.audiences(mesh_id, topics))
    }

    /// Whether a batch may be looked up and checked inside its transaction: where nobody else
    /// writes and statements cost no way to a server.
    pub const fn has_doors(&self) -> bool {
        matches!(self, Self::Sqlite(_))
    }

    /// Rows that one of its accept transactions writes at the most, unless a single send writes
    /// more.
    pub const fn batch_rows(&self) -> usize {
        match self {
            Self::Sqlite(_) => SQLITE_BATCH_ROWS,
            Self::Postgres(_) => POSTGRES_BATCH_ROWS,
        }
    }

    /// How many of [`Self::accept_next`] of one mesh may be under way. SQLite's writer takes the
    /// next while the last is being answered; on PostgreSQL they could overtake each other.
    pub const fn batches_at_once(&self) -> usize {
        match self {
            Self::Sqlite(_) => 2,
            Self::Postgres(_) => 1,
        }
    }

    /// Forgets up to `limit` ids that have expired, and says how many. Not those that are kept for
    /// ever, nor any of a mesh that is permanent now.
    pub async fn dedupe_sweep(&self, now: UnixMs, limit: i64) -> Result<u64, StoreError> {
        either!(self.dedupe_sweep(now, limit))
    }

    /// Deletes up to `limit` messages that were accepted before `older_than`, with all that hangs
    /// on them, and says how many. Their ids stay taken: a retry is a duplicate without history.
    pub async fn retention_sweep(
        &self,
        mesh_id: MeshId,
        older_than: UnixMs,
        limit: i64,
    ) -> Result<u64, StoreError> {
        either!(self.retention_sweep(mesh_id, older_than, limit))
    }

    /// Looks for messages that have some of the five effects and not the others, in pages of a
    /// moment each: accepts and sweeps may go on meanwhile.
    pub async fn check(&self, mesh: &Mesh, now: UnixMs) -> Result<Report, StoreError> {
        either!(self.check(mesh, now))
    }

    /// Ids that promise a message which is not there, with their senders, the first so many. A
    /// retry takes such an id over and is accepted.
    pub async fn dedupe_orphans(
        &self,
        mesh_id: MeshId,
        limit: usize,
    ) -> Result<Vec<(MemberId, String)>, StoreError> {
        either!(self.dedupe_orphans(mesh_id, limit))
    }

    /// Leases work of a queue to one taker: what was taken before and not acknowledged in time,
    /// then what was never taken.
    pub async fn queue_take(
        &self,
        mesh_id: MeshId,
        queue: &str,
        take: Take,
    ) -> Result<Taken, StoreError> {
        either!(self.queue_take(mesh_id, queue, take))
    }

    /// Work that is done leaves the queue, unless somebody else has taken it since. Says what left,
    /// in order.
    pub async fn queue_ack(
        &self,
        mesh_id: MeshId,
        queue: &str,
        taker: MemberId,
        seqs: &[i64],
    ) -> Result<Vec<i64>, StoreError> {
        either!(self.queue_ack(mesh_id, queue, taker, seqs))
    }

    /// Messages after `after_seq` that the member may see: of topics to which it is subscribed now,
    /// since it is, and to any of its keys. No more are read than go into a frame of `bytes_max`.
    pub async fn history(
        &self,
        mesh_id: MeshId,
        member_id: MemberId,
        after_seq: i64,
        limit: i64,
        bytes_max: usize,
    ) -> Result<HistoryPage, StoreError> {
        let (mesh, member) = (mesh_id, member_id);
        either!(self.history(mesh, member, after_seq, limit, bytes_max))
    }
}

/// What is left of a frame while messages are picked for it.
struct Room {
    bytes: usize,
    bytes_max: usize,
    empty: bool,
}

impl Room {
    fn new(bytes_max: usize) -> Self {
        Self { bytes: FRAME_OVERHEAD_BYTES, bytes_max, empty: true }
    }

    /// Whether one more message of this size fits, as [`semel_wire::frame::fitting`] counts.
    fn admits(&mut self, body_bytes: usize, meta_bytes: usize) -> bool {
        self.bytes = self.bytes.saturating_add(message_bytes_max(body_bytes, meta_bytes));
        std::mem::take(&mut self.empty) || self.bytes <= self.bytes_max
    }
}

impl HistoryPage {
    /// More did not fit if it `is_cut`; `scanned` is where the look through history was cut off.
    fn new(messages: Messages, limit: i64, is_cut: bool, scanned: Option<i64>) -> Self {
        let full = is_cut || i64::try_from(messages.count()).is_ok_and(|count| count >= limit);
        let last = messages.whole.last().map(|delivery| delivery.seq);
        let last = last.max(messages.damaged.last().copied());
        let next_after_seq = if full { last } else { scanned };
        Self { deliveries: messages.whole, damaged: messages.damaged, next_after_seq }
    }
}

/// A delivery's columns as they were read; [`RawDelivery::checked`] makes sense of them.
struct RawDelivery {
    seq: i64,
    broker_message_id: BrokerMessageId,
    sender_member_id: MemberId,
    sender_name: String,
    sender_pubkey: Option<String>,
    destination_kind: String,
    client_message_id: Option<String>,
    destination_ref: Option<String>,
    reply_to_id: Option<String>,
    priority: Option<i64>,
    meta: Option<String>,
    body: Option<Vec<u8>>,
    body_commitment: Option<[u8; 32]>,
    request_fingerprint: Option<[u8; 32]>,
    accepted_at: UnixMs,
}

impl RawDelivery {
    /// Whether there is room for it in a frame.
    fn fits(&self, room: &mut Room) -> bool {
        let (body, meta) = (self.body.as_ref(), self.meta.as_ref());
        room.admits(body.map_or(0, Vec::len), meta.map_or(0, String::len))
    }

    /// An impossible combination is `Corrupt`, never a panic, and so is what does not have the
    /// fingerprint of what was accepted.
    fn checked(self) -> Result<Delivery, StoreError> {
        let id = self.broker_message_id.to_string();
        let corrupt = |what: &str| StoreError::Corrupt {
            table: "delivery_queue",
            id: id.clone(),
            what: what.to_owned(),
        };
        let kind = DestinationKind::parse(&self.destination_kind);
        let kind = kind.ok_or_else(|| corrupt("the destination's kind is unknown"))?;
        let reference = self.destination_ref.ok_or_else(|| corrupt("the message is missing"))?;
        let destination = Destination::new(kind, reference);
        let destination = destination.map_err(|refusal| corrupt(&refusal.detail))?;
        let client_message_id = ClientMessageId::parse(&self.client_message_id.unwrap_or_default());
        let priority = self.priority.and_then(Priority::from_rank);
        let priority = priority.ok_or_else(|| corrupt("the priority is unknown"))?;
        let (meta, body) = (self.meta.unwrap_or_default(), self.body.unwrap_or_default());
        let reply_to_id = self.reply_to_id.as_deref();
        let fields = Fields { destination: &destination, reply_to_id, priority, meta: &meta };
        let hash = self.body_commitment.map_or_else(|| BodyHash::of(&body), BodyHash);
        let request_fingerprint = fields.fingerprint(hash);
        if self.request_fingerprint != Some(request_fingerprint.0) {
            return Err(corrupt("its fingerprint differs from that of the accepted message"));
        }
        Ok(Delivery {
            seq: self.seq,
            broker_message_id: self.broker_message_id,
            client_message_id: client_message_id.map_err(|refusal| corrupt(&refusal.detail))?,
            sender_member_id: self.sender_member_id,
            sender_name: self.sender_name,
            sender_pubkey: self.sender_pubkey.unwrap_or_default(),
            destination,
            reply_to_id: self.reply_to_id,
            priority,
            meta,
            body,
            body_commitment: self.body_commitment,
            request_fingerprint,
            accepted_at: self.accepted_at,
        })
    }
}
