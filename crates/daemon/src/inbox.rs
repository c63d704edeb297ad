//! The inbox as the rest of the daemon uses it: what arrived is stored once, and readers and
//! streams are woken.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rusqlite::Connection;
use semel_core::clock::{Clock, UnixMs};
use semel_core::envelope::DestinationKind;
use semel_store::sqlite::{OnUncertain, Sqlite, SqliteOptions, Tx};
use semel_store::{OpenError, StoreError};
use serde_json::Value;
use tokio::sync::{Notify, watch};

use crate::limits::{
    EVENTS_KEPT, INDEX_LINGER, INDEX_MAX, KEYS_KEPT, MEASURE_BYTES_MAX, MEASURE_PARTS, ROW_BYTES,
    SWEEP_MAX, UNMEASURED_PARTS,
};
use crate::link::stopped;
use crate::recover::{Database, is_damage, set_aside};
use crate::store::aside::{self, Aside, NewAside};
use crate::store::event::{self, Event, EventKind};
use crate::store::extent::{self, Extent};
use crate::store::inbox::{self, Arrived, Filter, Found, Incoming, Message, Way};
use crate::store::reader::{self, Read};
use crate::store::upkeep::bytes_used;
use crate::store::{INBOX_APPLICATION_ID, INBOX_MIGRATIONS};

/// An open inbox.
pub struct Inbox {
    sqlite: Sqlite,
    clock: Arc<dyn Clock>,
    /// Counts what was stored; streams wait for it to change.
    stored: watch::Sender<u64>,
    /// New messages since the start, by the kind of their destination.
    received: [AtomicU64; DestinationKind::ALL.len()],
    /// Messages that were there already.
    repeated: AtomicU64,
    /// What came and made no sense, since the start.
    nonsense: AtomicU64,
    /// Of what it may have, when that was measured last.
    percent: AtomicU64,
    bytes_max: AtomicU64,
    /// Bytes that were stored since.
    unmeasured: AtomicU64,
    /// All that it may have is in use, by messages that nobody has read.
    is_full: AtomicBool,
    /// It is time to measure again.
    pub(crate) wake: Notify,
}

/// What is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keeping {
    /// Messages that were read, for so long …
    pub kept: Duration,
    /// … and, the newest of them, as far as they fit into so many bytes. Where those that nobody
    /// has read do not fit, nothing more is taken.
    pub bytes_max: u64,
}

/// What opening an inbox came to.
pub struct Opened {
    /// The inbox.
    pub inbox: Inbox,
    /// A damaged file was set aside under this name.
    pub set_aside: Option<PathBuf>,
}

/// Makes what arrives searchable, many at a time, until the daemon stops.
pub(crate) async fn index_run(inbox: Arc<Inbox>, mut stop: watch::Receiver<bool>) {
    let mut changes = inbox.changes();
    loop {
        changes.mark_unchanged();
        if let Err(error) = inbox.index().await {
            tracing::warn!(error = error.chain(), "new messages could not be indexed");
        }
        tokio::select! {
            _ = changes.changed() => {}
            () = stopped(&mut stop) => return,
        }
        tokio::select! {
            () = tokio::time::sleep(INDEX_LINGER) => {}
            () = stopped(&mut stop) => return,
        }
    }
}

impl Inbox {
    /// Opens the file. A damaged one is set aside and begun anew: everything in it can be had from
    /// the broker's history. One of a newer version, or of another program, is left alone.
    pub fn open(
        path: &Path,
        clock: Arc<dyn Clock>,
        on_uncertain: OnUncertain,
    ) -> Result<Opened, OpenError> {
        let now = clock.wall().0;
        let options = SqliteOptions::new(
            path,
            INBOX_APPLICATION_ID,
            vec![INBOX_MIGRATIONS],
            now,
            on_uncertain,
        )
        .to_serve();
        let (sqlite, set_aside) = match Sqlite::open(&options) {
            Ok(sqlite) => (sqlite, None),
            Err(error) if is_damage(&error) => {
                let aside = set_aside(path, now)?;
                (Sqlite::open(&options)?, Some(aside))
            }
            Err(error) => return Err(error),
        };
        Ok(Opened { inbox: Self::with(sqlite, clock), set_aside })
    }

    /// Opens a file to read what can be read of it, also of a damaged one (daemon.md, "Lifecycle").
    pub fn open_to_read(path: &Path, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        let sqlite = Sqlite::open_to_read(&Database::Inbox.options(path, clock.wall()))?;
        Ok(Self::with(sqlite, clock))
    }

    fn with(sqlite: Sqlite, clock: Arc<dyn Clock>) -> Self {
        Self {
            sqlite,
            clock,
            stored: watch::channel(0).0,
            received: Default::default(),
            repeated: AtomicU64::new(0),
            nonsense: AtomicU64::new(0),
            percent: AtomicU64::new(0),
            bytes_max: AtomicU64::new(u64::MAX),
            unmeasured: AtomicU64::new(0),
            is_full: AtomicBool::new(false),
            wake: Notify::new(),
        }
    }

    /// Stores what has not been stored yet and comes back once it is on disk.
    pub async fn receive(&self, arrived: Vec<Arrived>, way: Way) -> Result<usize, StoreError> {
        self.receive_to(arrived, way, None).await
    }

    /// The same, and with it how far the inbox reaches then.
    pub async fn receive_to(
        &self,
        arrived: Vec<Arrived>,
        way: Way,
        extent: Option<Extent>,
    ) -> Result<usize, StoreError> {
        let now = self.clock.wall();
        let count = arrived.len();
        let sizes = arrived.iter().map(|it| (it.body.len() + it.meta.len()) as u64 + ROW_BYTES);
        let bytes = sizes.sum();
        let incoming: Vec<Incoming> = arrived.into_iter().map(Incoming::from).collect();
        let kinds = self.sqlite.write_for(count.max(1), move |tx| {
            let kinds = inbox::receive_in_tx(tx, &incoming, now, way)?;
            if let Some(extent) = &extent {
                extent::raise_in_tx(tx, extent)?;
            }
            Ok(kinds)
        });
        let kinds = kinds.await?;
        let new = kinds.len();
        for kind in kinds {
            self.received[kind as usize].fetch_add(1, Ordering::Relaxed);
        }
        self.repeated.fetch_add(count.saturating_sub(new) as u64, Ordering::Relaxed);
        if new > 0 {
            self.changed();
            self.grown(bytes).await?;
        }
        Ok(new)
    }

    /// How far it reaches into the broker's history.
    pub async fn extent(&self) -> Result<Option<Extent>, StoreError> {
        self.sqlite.read(extent::read).await
    }

    /// Whoever measures is woken now and then, and receiving waits for it only if it is far behind:
    /// then what does not fit is known here. Whoever is woken sees whether it was read.
    async fn grown(&self, bytes: u64) -> Result<(), StoreError> {
        let since = self.unmeasured.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let bytes_max = self.bytes_max.load(Ordering::Relaxed);
        if since >= (bytes_max / MEASURE_PARTS).min(MEASURE_BYTES_MAX) {
            self.wake.notify_one();
        }
        if since > bytes_max / UNMEASURED_PARTS && self.measure(bytes_max).await? > bytes_max {
            self.is_full.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Keeps what could not be taken, before it is acknowledged; once, however often it comes.
    pub async fn set_aside(&self, new: NewAside) -> Result<(), StoreError> {
        let (now, bytes) = (self.clock.wall(), new.frame.len() as u64 + ROW_BYTES);
        if self.sqlite.write(move |tx| aside::add_in_tx(tx, &new, now)).await? {
            self.nonsense.fetch_add(1, Ordering::Relaxed);
            self.grown(bytes).await?;
        }
        Ok(())
    }

    /// A page of what was set aside, oldest first.
    pub async fn aside(&self, after: i64, limit: i64) -> Result<Vec<Aside>, StoreError> {
        self.sqlite.read(move |connection| aside::list(connection, after, limit)).await
    }

    /// How much is set aside.
    pub async fn aside_count(&self) -> Result<u64, StoreError> {
        self.sqlite.read(aside::count).await
    }

    /// Somebody has looked at it; `false` when it is not there.
    pub async fn aside_drop(&self, id: i64) -> Result<bool, StoreError> {
        self.sqlite.write(move |tx| aside::drop_in_tx(tx, id)).await
    }

    /// Notes that something happened; nobody waits for it.
    pub fn announce(self: &Arc<Self>, kind: EventKind, data: &Value) {
        let (now, data, inbox) = (self.clock.wall(), data.to_string(), Arc::clone(self));
        drop(tokio::spawn(async move {
            let noted = inbox.sqlite.write(move |tx| event::add_in_tx(tx, kind, &data, now)).await;
            match noted {
                Ok(()) => inbox.changed(),
                Err(error) => tracing::warn!(error = error.chain(), "an event was not noted"),
            }
        }));
    }

    /// A page of messages, in the order of arrival.
    pub async fn list(&self, filter: Filter, limit: i64) -> Result<Vec<Message>, StoreError> {
        let list = move |connection: &Connection| inbox::list(connection, &filter, limit);
        let Found { whole, damaged } = self.sqlite.read(list).await?;
        self.put_away(damaged).await;
        Ok(whole)
    }

    /// Takes messages that are not what arrived any more out of the way, for somebody to look at.
    /// Where that cannot be written, they are passed over once more the next time.
    async fn put_away(&self, damaged: Vec<i64>) {
        if damaged.is_empty() {
            return;
        }
        let now = self.clock.wall();
        let write = self.sqlite.write(move |tx| {
            let mut moved = 0;
            for id in &damaged {
                moved += u64::from(inbox::set_aside_in_tx(tx, *id, now)?);
            }
            Ok(moved)
        });
        match write.await {
            Ok(moved) => drop(self.nonsense.fetch_add(moved, Ordering::Relaxed)),
            Err(error) => {
                let error = error.chain();
                tracing::error!(error, "damaged messages could not be set aside");
            }
        }
    }

    /// Makes what has arrived searchable, in the background of everything else.
    pub async fn index(&self) -> Result<(), StoreError> {
        while self.sqlite.write_along(|tx| inbox::index_in_tx(tx, INDEX_MAX)).await? == INDEX_MAX {}
        Ok(())
    }

    /// Messages that say all of these words: of everything that has arrived, so what is not
    /// indexed yet is indexed first.
    pub async fn search(
        &self,
        words: &str,
        after: i64,
        limit: i64,
    ) -> Result<Vec<Message>, StoreError> {
        let until = self.newest().await?;
        for _ in 0..=until / INDEX_MAX {
            match self.sqlite.write(|tx| inbox::index_in_tx(tx, INDEX_MAX)).await {
                Ok(INDEX_MAX) => {}
                Ok(_) => break,
                // A full disk does not keep anybody from finding what is indexed.
                Err(error) => {
                    tracing::warn!(error = error.chain(), "new messages could not be indexed");
                    break;
                }
            }
        }
        let words = words.to_owned();
        let search = move |connection: &Connection| inbox::search(connection, &words, after, limit);
        let Found { whole, damaged } = self.sqlite.read(search).await?;
        self.put_away(damaged).await;
        Ok(whole)
    }

    /// How far a reader has read.
    pub async fn reader(&self, name: &str) -> Result<Option<i64>, StoreError> {
        let name = name.to_owned();
        self.sqlite.read(move |connection| reader::reader(connection, &name)).await
    }

    /// A reader has read up to here, or what there is of this topic up to here.
    pub async fn reader_set(
        &self,
        name: &str,
        inbox_id: i64,
        topic: Option<&str>,
    ) -> Result<Read, StoreError> {
        let (name, topic, now) = (name.to_owned(), topic.map(str::to_owned), self.clock.wall());
        let set = self
            .sqlite
            .write(move |tx| reader::reader_set_in_tx(tx, &name, inbox_id, topic.as_deref(), now));
        let read = set.await?;
        if self.is_full() {
            // What was read can make room.
            self.wake.notify_one();
        }
        Ok(read)
    }

    /// A page of what happened after this.
    pub async fn events(&self, after: i64, limit: i64) -> Result<Vec<Event>, StoreError> {
        let read = move |connection: &Connection| event::after(connection, after, limit);
        let (events, damaged) = self.sqlite.read(read).await?;
        self.put_away(damaged).await;
        Ok(events)
    }

    /// The newest message's number, or 0; it may have been swept.
    pub async fn newest(&self) -> Result<i64, StoreError> {
        self.sqlite.read(inbox::newest).await
    }

    /// The newest event's number, or 0.
    pub async fn newest_event(&self) -> Result<i64, StoreError> {
        self.sqlite.read(event::newest).await
    }

    /// When something was last written; nothing where that was never.
    pub async fn newest_at(&self) -> Result<Option<UnixMs>, StoreError> {
        self.sqlite.read(event::newest_at).await
    }

    /// Changes whenever something was stored. Subscribe first, then read, then wait.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.stored.subscribe()
    }

    /// Deletes messages that were read, events, keys and readers that are past their time, and the
    /// oldest messages that were read where there are more than fit. What nobody has read stays: if
    /// that alone is more than fits, the inbox is full. Without a time nothing is past it.
    /// Says whether it is.
    pub async fn sweep(&self, now: Option<UnixMs>, keeping: Keeping) -> Result<bool, StoreError> {
        while self.sqlite.write(|tx| reader::mark_read_in_tx(tx, SWEEP_MAX)).await? > 0 {}
        if let Some(now) = now {
            self.sweep_old(now, keeping.kept).await?;
        }
        let mut bytes = self.measure(keeping.bytes_max).await?;
        if bytes > keeping.bytes_max {
            bytes = self.sweep_bytes(bytes, keeping.bytes_max).await?;
        }
        let is_full = bytes > keeping.bytes_max;
        self.is_full.store(is_full, Ordering::Relaxed);
        Ok(is_full)
    }

    /// How many bytes are in use then.
    async fn sweep_bytes(&self, bytes: u64, bytes_max: u64) -> Result<u64, StoreError> {
        let (mut gone, mut left) = (0, bytes);
        // More than needed, so that not every message is followed by a sweep.
        let target = bytes_max / 10 * 9;
        while left > target {
            let over = left - target;
            let oldest = move |tx: &Tx<'_>| inbox::sweep_bytes_in_tx(tx, over, SWEEP_MAX);
            match self.sqlite.write(oldest).await? {
                0 => break,
                some => gone += some,
            }
            left = self.measure(bytes_max).await?;
        }
        if gone > 0 {
            tracing::warn!(
                gone,
                bytes,
                "the inbox was full: the oldest read messages were deleted"
            );
        }
        Ok(left)
    }

    /// Whether messages that nobody has read fill it: nothing more is taken from the broker.
    pub fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Measures before anything is received: what may be kept is known from the beginning.
    pub async fn measure_first(&self, keeping: Keeping) {
        self.bytes_max.store(keeping.bytes_max, Ordering::Relaxed);
        match self.measure(keeping.bytes_max).await {
            Ok(bytes) => self.is_full.store(bytes > keeping.bytes_max, Ordering::Relaxed),
            Err(error) => {
                let error = error.chain();
                tracing::error!(error, "the size of the inbox could not be measured");
            }
        }
    }

    /// Bytes in use. What was swept counts as free, although the file does not shrink.
    async fn measure(&self, bytes_max: u64) -> Result<u64, StoreError> {
        let unmeasured = self.unmeasured.load(Ordering::Relaxed);
        let bytes = self.sqlite.read(bytes_used).await?;
        self.unmeasured.fetch_sub(unmeasured, Ordering::Relaxed);
        self.percent.store(bytes.saturating_mul(100) / bytes_max.max(1), Ordering::Relaxed);
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
        Ok(bytes)
    }

    /// How many percent of what it may have were in use when that was measured last.
    pub fn percent(&self) -> u64 {
        self.percent.load(Ordering::Relaxed)
    }

    async fn sweep_old(&self, now: UnixMs, kept: Duration) -> Result<(), StoreError> {
        let (messages, events) = (now.saturating_sub(kept), now.saturating_sub(EVENTS_KEPT));
        let keys = now.saturating_sub(KEYS_KEPT.max(kept));
        loop {
            let gone = self.sqlite.write(move |tx| {
                Ok(inbox::sweep_in_tx(tx, messages, SWEEP_MAX)?
                    + event::sweep_in_tx(tx, events, SWEEP_MAX)?
                    + inbox::sweep_keys_in_tx(tx, keys, SWEEP_MAX)?
                    + reader::sweep_in_tx(tx, keys, SWEEP_MAX)?)
            });
            if gone.await? == 0 {
                return Ok(());
            }
        }
    }

    /// New messages since the start, by the kind of their destination.
    pub fn received(&self) -> [(DestinationKind, u64); DestinationKind::ALL.len()] {
        std::array::from_fn(|kind| {
            (DestinationKind::ALL[kind], self.received[kind].load(Ordering::Relaxed))
        })
    }

    /// Messages since the start that were there already.
    pub fn repeated(&self) -> u64 {
        self.repeated.load(Ordering::Relaxed)
    }

    /// What came since the start and made no sense.
    pub fn nonsense(&self) -> u64 {
        self.nonsense.load(Ordering::Relaxed)
    }

    /// Bytes on disk, the log included.
    pub fn bytes(&self) -> u64 {
        let file = std::fs::metadata(self.sqlite.path()).map_or(0, |file| file.len());
        file + self.sqlite.wal_bytes()
    }

    /// Commits what was handed in and closes the file in order.
    pub async fn close(&self) {
        self.sqlite.close().await;
    }

    fn changed(&self) {
        self.stored.send_modify(|stored| *stored = stored.wrapping_add(1));
    }
}
