//! The outbox as the rest of the daemon uses it: sends are accepted here, and whoever sends them on
//! learns of new ones. What a row may go through is in `store/outbox.rs`.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::clock::{Clock, UnixMs};
use semel_core::envelope::Destination;
use semel_core::fingerprint::Fingerprint;
use semel_core::id::{ClientMessageId, InstanceId, OutboxId};
use semel_core::mint::IdMint;
use semel_core::refusal::Refusal;
use semel_store::handover::Handover;
use semel_store::sqlite::{LastStop, OnUncertain, Sqlite, SqliteOptions};
use semel_store::{OpenError, StoreError};
use tokio::sync::{Notify, watch};

use crate::limits::{ADOPT_MAX, FRESH_BYTES_MAX, FRESH_MAX, PAYLOAD_KEPT, SWEEP_MAX};
use crate::pressure::Gauge;
use crate::recover::Database;
use crate::store::claim::Due;
use crate::store::link::{self, LinkRow};
use crate::store::outbox::{Accepted, Draft, NewOutboxRow, outbox_accept_in_tx, outbox_again};
use crate::store::peer::{self, Peer};
use crate::store::upkeep::{self, OutboxRow, Which};
use crate::store::{OUTBOX_APPLICATION_ID, OUTBOX_MIGRATIONS, claim};

pub use crate::pressure::{Pressure, Room};

/// An open outbox.
pub struct Outbox {
    pub(crate) sqlite: Sqlite,
    mint: Arc<IdMint>,
    clock: Arc<dyn Clock>,
    life: AtomicI64,
    /// Marks of this life were lost, and the file does not say so yet.
    marks_lost: AtomicBool,
    pub(crate) gauge: Gauge,
    accepted: AtomicU64,
    claims: Arc<Claims>,
    /// The broker has said who is in the mesh.
    peers_told: watch::Sender<()>,
    /// New rows on their way to the sender.
    pub(crate) fresh: Arc<Fresh>,
}

/// Who has a row in hand: the sender or an operator, never both.
#[derive(Default)]
struct Claims(Mutex<InHand>);

#[derive(Default)]
struct InHand {
    /// Taken to be sent, and the file does not say so yet.
    claimed: HashSet<OutboxId>,
    /// About to be replaced by another row.
    retiring: HashSet<OutboxId>,
}

impl InHand {
    fn claim(&mut self, id: OutboxId) -> bool {
        let free = !self.retiring.contains(&id);
        if free {
            self.claimed.insert(id);
        }
        free
    }

    fn retire(&mut self, id: OutboxId) -> bool {
        !self.claimed.contains(&id) && self.retiring.insert(id)
    }
}

impl Claims {
    fn lock(&self) -> MutexGuard<'_, InHand> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A row that is not sent meanwhile.
pub(crate) struct Retiring {
    id: OutboxId,
    claims: Arc<Claims>,
    fresh: Arc<Fresh>,
}

impl Drop for Retiring {
    fn drop(&mut self) {
        self.claims.lock().retiring.remove(&self.id);
        // Its place was taken by another row, or it is due as before.
        self.fresh.rows.leave();
        self.fresh.look.notify_one();
    }
}

/// New rows, for a sender that has seen all others.
pub(crate) struct Fresh {
    /// In the order in which they are sent.
    pub(crate) rows: Handover<(i64, OutboxId), FreshRow>,
    /// There are some.
    pub(crate) wake: Notify,
    /// Something is due that was not handed over.
    pub(crate) look: Notify,
}

/// A row that was just inserted, and its fingerprint. The writer, for whom others wait, only hands
/// it on.
pub(crate) struct FreshRow(Arc<NewOutboxRow>, Fingerprint);

impl FreshRow {
    /// As it would be read.
    pub(crate) fn into_due(self) -> Option<Due> {
        Due::fresh(Arc::unwrap_or_clone(self.0), self.1)
    }
}

impl Fresh {
    fn accepted(&self, new: Arc<NewOutboxRow>, accepted: &Accepted) {
        if let Accepted::Inserted { fingerprint } = accepted {
            let key = (new.draft.priority.rank(), new.id);
            let bytes = new.draft.body.len() + new.draft.meta.as_str().len();
            self.rows.offer(key, bytes, || FreshRow(new, *fingerprint));
            self.wake.notify_one();
        }
    }
}

/// A send that has passed every check that needs no state.
#[derive(Debug, Clone)]
pub struct NewSend {
    /// The id under which it happens once; none is made for it.
    pub client_message_id: Option<ClientMessageId>,
    /// The destination as the caller wrote it.
    pub to_given: String,
    /// What that means now, or why nothing.
    pub resolved: Result<Destination, Refusal>,
    /// What is sent.
    pub draft: Draft,
}

/// What a send was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendAnswer {
    /// The id it goes by.
    pub client_message_id: ClientMessageId,
    /// The key of its row, if it is new.
    pub outbox_id: OutboxId,
    /// The table's answer.
    pub accepted: Accepted,
}

impl Outbox {
    /// Opens the file for this daemon. Rows of another daemon are given up as unknown, and their
    /// owner is noted for retirement (mesh.md §10). Blocks: call it before serving.
    pub async fn open(
        path: &Path,
        instance_id: InstanceId,
        room: Room,
        mint: Arc<IdMint>,
        clock: Arc<dyn Clock>,
        on_uncertain: OnUncertain,
    ) -> Result<Self, OpenError> {
        let now = clock.wall().0;
        let options = SqliteOptions::new(
            path,
            OUTBOX_APPLICATION_ID,
            vec![OUTBOX_MIGRATIONS],
            now,
            on_uncertain,
        )
        .to_serve();
        let sqlite = Sqlite::open(&options)?;
        let unclean = sqlite.last_stop() == LastStop::Unclean;
        let prepared = async {
            restart(&sqlite).await?;
            if let Some(newest) = sqlite.read(claim::newest).await? {
                mint.continue_after(newest);
            }
            let link = sqlite.write(move |tx| link::open_in_tx(tx, instance_id, unclean)).await?;
            if !link.retiring.is_empty() {
                // By owner: what this one has accepted since is its own.
                let life = link.adopted_life;
                while sqlite.write(move |tx| link::adopt_in_tx(tx, life, ADOPT_MAX)).await? > 0 {}
            }
            Ok(link)
        };
        let unfit = |source| OpenError::Migration {
            component: "outbox",
            version: 1,
            source: Box::new(source),
        };
        let link = prepared.await.map_err(unfit)?;
        let outbox = Self::with(sqlite, link.life, room, mint, clock);
        outbox.measure().await.map_err(unfit)?;
        Ok(outbox)
    }

    /// Opens a file to read what can be read of it, also of a damaged one (daemon.md, "Lifecycle").
    pub fn open_to_read(
        path: &Path,
        room: Room,
        mint: Arc<IdMint>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        let sqlite = Sqlite::open_to_read(&Database::Outbox.options(path, clock.wall()))?;
        Ok(Self::with(sqlite, 0, room, mint, clock))
    }

    fn with(
        sqlite: Sqlite,
        life: i64,
        room: Room,
        mint: Arc<IdMint>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            sqlite,
            mint,
            clock,
            life: AtomicI64::new(life),
            marks_lost: AtomicBool::new(false),
            gauge: Gauge::new(room),
            accepted: AtomicU64::new(0),
            claims: Arc::default(),
            peers_told: watch::Sender::new(()),
            fresh: Arc::new(Fresh {
                rows: Handover::new(FRESH_MAX, FRESH_BYTES_MAX),
                wake: Notify::new(),
                look: Notify::new(),
            }),
        }
    }

    /// Accepts a send: looks its id up, applies the table, and answers after the commit.
    pub async fn send(&self, send: NewSend) -> Result<SendAnswer, StoreError> {
        let client_message_id =
            send.client_message_id.unwrap_or_else(|| self.mint.client_message_id());
        let new = NewOutboxRow {
            id: self.mint.outbox_id(),
            client_message_id: client_message_id.clone(),
            draft: send.draft,
            to_given: send.to_given,
            resolved: send.resolved,
            life: self.life(),
            now: self.clock.wall(),
        };
        let (outbox_id, body_bytes) = (new.id, new.draft.body.len());
        if !self.pressure().accepts() {
            // There is no room for what is new; what was accepted before keeps its answer.
            let found = self.sqlite.read(move |connection| outbox_again(connection, &new)).await?;
            let accepted = found.ok_or(StoreError::Full)?;
            return Ok(SendAnswer { client_message_id, outbox_id, accepted });
        }
        let (new, fresh) = (Arc::new(new), Arc::clone(&self.fresh));
        let (same, fingerprint) = (Arc::clone(&new), new.fingerprint());
        let write = self.sqlite.write_then(
            move |tx| outbox_accept_in_tx(tx, &new, fingerprint),
            move |accepted| fresh.accepted(same, accepted),
        );
        let accepted = write.await?;
        if matches!(accepted, Accepted::Inserted { .. }) {
            self.accepted.fetch_add(1, Ordering::Relaxed);
            self.gauge.accepted(body_bytes);
        }
        Ok(SendAnswer { client_message_id, outbox_id, accepted })
    }

    /// A row is about to be sent; the mark that says so follows. `false` if it is being retired.
    pub(crate) fn claim(&self, id: OutboxId) -> bool {
        self.claims.lock().claim(id)
    }

    /// The file says what is known of this row.
    pub(crate) fn claim_written(&self, id: OutboxId) {
        self.claims.lock().claimed.remove(&id);
    }

    /// Whether a row may be on the wire although the file does not say so yet.
    pub(crate) fn is_claimed(&self, id: OutboxId) -> bool {
        self.claims.lock().claimed.contains(&id)
    }

    /// Keeps a row from being sent for as long as this lives; nothing if it may be on the wire.
    pub(crate) fn retire(&self, id: OutboxId) -> Option<Retiring> {
        let free = self.claims.lock().retire(id);
        let (claims, fresh) = (Arc::clone(&self.claims), Arc::clone(&self.fresh));
        free.then(|| Retiring { id, claims, fresh })
    }

    /// A page of rows, in the order of accept.
    pub async fn list(
        &self,
        which: Which,
        after: Option<OutboxId>,
        limit: i64,
    ) -> Result<Vec<OutboxRow>, StoreError> {
        self.sqlite.read(move |connection| upkeep::list(connection, which, after, limit)).await
    }

    /// One row, by its own key or by its client's id.
    pub async fn find(&self, id: &str) -> Result<Option<OutboxRow>, StoreError> {
        let (key, client) = (OutboxId::parse(id), ClientMessageId::parse(id).ok());
        let read = self.sqlite.read(move |connection| {
            let found = key.map(|id| upkeep::one(connection, id)).transpose()?.flatten();
            match (found, client) {
                (None, Some(client)) => match upkeep::by_client_id(connection, &client)? {
                    Some(id) => upkeep::one(connection, id),
                    None => Ok(None),
                },
                (found, _) => Ok(found),
            }
        });
        read.await
    }

    /// How many rows wait, and how many were given up.
    pub async fn counts(&self) -> Result<(u64, u64), StoreError> {
        self.sqlite.read(upkeep::counts).await
    }

    /// When the oldest row that waits was accepted.
    pub async fn oldest_pending(&self) -> Result<Option<UnixMs>, StoreError> {
        self.sqlite.read(upkeep::oldest_pending).await
    }

    /// Drops the payloads of done rows that are older than this; everything else of them stays.
    pub async fn prune(&self, older_than: Duration) -> Result<u64, StoreError> {
        self.prune_by(self.clock.wall(), older_than).await
    }

    /// The same, at this time.
    pub(crate) async fn prune_by(
        &self,
        now: UnixMs,
        older_than: Duration,
    ) -> Result<u64, StoreError> {
        // What is of later than that was accepted when the clock was ahead.
        let kept = now.saturating_sub(older_than)..=now.saturating_add(PAYLOAD_KEPT);
        let mut pruned = 0;
        loop {
            let kept = kept.clone();
            let gone =
                self.sqlite.write(move |tx| upkeep::prune_in_tx(tx, &kept, SWEEP_MAX)).await?;
            pruned += gone as u64;
            if gone == 0 {
                self.gauge.wake.notify_one();
                return Ok(pruned);
            }
        }
    }

    /// Why nothing new is taken, for people: which limit of which file.
    pub fn why_full(&self) -> String {
        let path = self.sqlite.path().display();
        let Room { bytes_max, reserved_bytes } = self.gauge.room();
        if self.gauge.level().accepts() {
            return format!("the disk of {path} is full");
        }
        let free = self.gauge.disk_free();
        if free < reserved_bytes {
            return format!(
                "the disk of {path} has {free} bytes left, and disk.reserved_bytes keeps \
                 {reserved_bytes} free"
            );
        }
        format!("{path} has 95 % of outbox.max_bytes ({bytes_max} bytes)")
    }

    /// Looks how full it is. What was pruned counts as free, although the file does not shrink.
    pub async fn measure(&self) -> Result<Pressure, StoreError> {
        let bytes = self.sqlite.read(upkeep::bytes_used).await?;
        // Of a disk that does not say how full it is nothing is reserved.
        let (free, disk) =
            rustix::fs::statvfs(self.sqlite.path()).map_or((u64::MAX, u64::MAX), |disk| {
                let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
                (bytes(disk.f_bavail), bytes(disk.f_blocks))
            });
        Ok(self.gauge.measured(bytes, free, disk))
    }

    /// How full it was when it was measured last.
    pub fn pressure(&self) -> Pressure {
        self.gauge.level()
    }

    /// How many percent of the outbox and of its disk were in use then.
    pub fn percent(&self) -> (u64, u64) {
        self.gauge.percent()
    }

    /// Bytes on disk, the log included.
    pub fn bytes(&self) -> u64 {
        let file = std::fs::metadata(self.sqlite.path()).map_or(0, |file| file.len());
        file + self.sqlite.wal_bytes()
    }

    /// Commits since the start, each synced once.
    pub fn commits(&self) -> u64 {
        self.sqlite.commits()
    }

    /// Sends accepted since the start.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// The life of this daemon: raised whenever marks of rows may have been lost, by an unclean
    /// stop or by a disk that did not take them.
    pub fn life(&self) -> i64 {
        self.life.load(Ordering::SeqCst)
    }

    /// Whether a row of this life may have been sent although it does not say so.
    pub fn may_have_lost_marks(&self, life: i64) -> bool {
        life != self.life() || self.marks_lost.load(Ordering::SeqCst)
    }

    /// Marks could not be written: nothing in the file says any more that a row was never sent.
    pub(crate) fn lose_marks(&self) {
        self.marks_lost.store(true, Ordering::SeqCst);
    }

    /// Writes down that marks were lost, before anything is concluded from their absence.
    pub(crate) async fn admit_lost_marks(&self) -> Result<(), StoreError> {
        if self.marks_lost.load(Ordering::SeqCst) {
            let life = self.sqlite.write(|tx| link::raise_life_in_tx(tx)).await?;
            self.life.store(life, Ordering::SeqCst);
            self.marks_lost.store(false, Ordering::SeqCst);
        }
        Ok(())
    }

    /// What is known of the broker.
    pub async fn link(&self) -> Result<LinkRow, StoreError> {
        self.sqlite.read(link::read_open).await
    }

    /// Those of that name, a few.
    pub async fn peers_named(&self, name: &str, limit: i64) -> Result<Vec<Peer>, StoreError> {
        let name = name.to_owned();
        self.sqlite.read(move |connection| peer::named(connection, &name, limit)).await
    }

    /// Those of each of these names, in one look.
    pub(crate) async fn peers_of(
        &self,
        names: &[&str],
        limit: i64,
    ) -> Result<Vec<Vec<Peer>>, StoreError> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let read = self.sqlite.read(move |connection| {
            names.iter().map(|name| peer::named(connection, name, limit)).collect()
        });
        read.await
    }

    /// Everybody in the mesh, as the broker said last.
    pub async fn peers_replace(&self, peers: Vec<Peer>) -> Result<(), StoreError> {
        self.sqlite.write(move |tx| peer::replace_in_tx(tx, &peers)).await?;
        self.peers_told.send_replace(());
        Ok(())
    }

    /// Comes back once the broker has said who is in the mesh, now or in an earlier life: before
    /// that no name means anything.
    pub async fn peers_known(&self) -> Result<(), StoreError> {
        let mut told = self.peers_told.subscribe();
        while self.peers(None, 1).await?.is_empty() {
            told.changed().await.map_err(|_| StoreError::Stopped)?;
        }
        Ok(())
    }

    /// A page of the mesh's members.
    pub async fn peers(
        &self,
        after: Option<semel_core::id::MemberId>,
        limit: i64,
    ) -> Result<Vec<Peer>, StoreError> {
        self.sqlite.read(move |connection| peer::list(connection, after, limit)).await
    }

    /// A new id for a row, larger than every one before it.
    pub(crate) fn mint(&self) -> &Arc<IdMint> {
        &self.mint
    }

    /// What a `quick_check` finds wrong after an unclean stop; reads the file in the background.
    pub async fn quick_check(&self) -> Result<Vec<String>, StoreError> {
        self.sqlite.quick_check().await
    }

    /// Commits what was handed in and closes the file in order.
    pub async fn close(&self) {
        if let Err(error) = self.admit_lost_marks().await {
            tracing::error!(error = error.chain(), "the loss of row marks could not be recorded");
        }
        self.sqlite.close().await;
    }
}

/// What was on the wire when the last process ended goes out again.
async fn restart(sqlite: &Sqlite) -> Result<(), StoreError> {
    loop {
        let again = sqlite.write(move |tx| {
            let ids = claim::inflight(tx, SWEEP_MAX)?;
            for id in &ids {
                crate::store::outbox::outbox_restart_in_tx(tx, *id)?;
            }
            Ok(ids.len())
        });
        if again.await? == 0 {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use semel_testkit::clock::SimClock;

    use super::*;

    #[test]
    fn a_row_is_in_one_hand() {
        let mint = IdMint::new(Arc::new(SimClock::at_ms(1)), Box::new(|| 42));
        let (sent, replaced) = (mint.outbox_id(), mint.outbox_id());
        let mut rows = InHand::default();
        assert!(rows.claim(sent) && !rows.retire(sent), "the sender has it");
        assert!(rows.retire(replaced) && !rows.claim(replaced), "an operator has it");
        assert!(!rows.retire(replaced), "and no other");
    }
}
