//! The inbox as the rest of the daemon uses it: what arrived is stored once, and readers and
//! streams are woken.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use semel_core::clock::Clock;
use semel_core::envelope::DestinationKind;
use semel_store::sqlite::{OnUncertain, Sqlite, SqliteOptions, Tx};
use semel_store::{OpenError, StoreError};
use serde_json::Value;
use tokio::sync::watch;

use crate::limits::{EVENTS_KEPT, INDEX_LINGER, INDEX_MAX, KEYS_KEPT, SWEEP_MAX};
use crate::link::stopped;
use crate::recover::{Database, is_damage, is_new, set_aside};
use crate::store::event::{self, Event, EventKind};
use crate::store::inbox::{self, Arrived, Filter, Message, Way};
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
    /// Of what it may have, when that was measured last.
    percent: AtomicU64,
}

/// What is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keeping {
    /// Messages, for so long …
    pub kept: Duration,
    /// … and, the newest of them, as far as they fit into so many bytes.
    pub bytes_max: u64,
}

/// What opening an inbox came to.
pub struct Opened {
    /// The inbox.
    pub inbox: Inbox,
    /// A damaged file was set aside under this name.
    pub set_aside: Option<PathBuf>,
    /// The inbox is empty: what was in it before is rebuilt.
    pub is_new: bool,
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
        );
        let is_new = is_new(path);
        let (sqlite, set_aside) = match Sqlite::open(&options) {
            Ok(sqlite) => (sqlite, None),
            Err(error) if is_damage(&error) => {
                let aside = set_aside(path, now)?;
                (Sqlite::open(&options)?, Some(aside))
            }
            Err(error) => return Err(error),
        };
        let is_new = is_new || set_aside.is_some();
        Ok(Opened { inbox: Self::with(sqlite, clock), set_aside, is_new })
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
            percent: AtomicU64::new(0),
        }
    }

    /// Stores what has not been stored yet and comes back once it is on disk.
    pub async fn receive(&self, arrived: Vec<Arrived>, way: Way) -> Result<usize, StoreError> {
        let now = self.clock.wall();
        let count = arrived.len();
        let kinds =
            self.sqlite.write_for(count, move |tx| inbox::receive_in_tx(tx, &arrived, now, way));
        let kinds = kinds.await?;
        let new = kinds.len();
        for kind in kinds {
            self.received[kind as usize].fetch_add(1, Ordering::Relaxed);
        }
        self.repeated.fetch_add(count.saturating_sub(new) as u64, Ordering::Relaxed);
        if new > 0 {
            self.changed();
        }
        Ok(new)
    }

    /// Keeps what could not be understood, before it is acknowledged.
    pub async fn set_aside(&self, reason: &str, frame: Vec<u8>) -> Result<(), StoreError> {
        let (now, reason) = (self.clock.wall(), reason.to_owned());
        self.sqlite.write(move |tx| inbox::set_aside_in_tx(tx, &reason, &frame, now)).await
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
        self.sqlite.read(move |connection| inbox::list(connection, &filter, limit)).await
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
        self.sqlite.read(move |connection| inbox::search(connection, &words, after, limit)).await
    }

    /// How far a reader has read.
    pub async fn reader(&self, name: &str) -> Result<Option<i64>, StoreError> {
        let name = name.to_owned();
        self.sqlite.read(move |connection| inbox::reader(connection, &name)).await
    }

    /// A reader has read up to here.
    pub async fn reader_set(&self, name: &str, inbox_id: i64) -> Result<(), StoreError> {
        let (name, now) = (name.to_owned(), self.clock.wall());
        self.sqlite.write(move |tx| inbox::reader_set_in_tx(tx, &name, inbox_id, now)).await
    }

    /// A page of what happened after this.
    pub async fn events(&self, after: i64, limit: i64) -> Result<Vec<Event>, StoreError> {
        self.sqlite.read(move |connection| event::after(connection, after, limit)).await
    }

    /// The newest message's number, or 0.
    pub async fn newest(&self) -> Result<i64, StoreError> {
        self.sqlite.read(inbox::newest).await
    }

    /// The newest event's number, or 0.
    pub async fn newest_event(&self) -> Result<i64, StoreError> {
        self.sqlite.read(event::newest).await
    }

    /// Changes whenever something was stored. Subscribe first, then read, then wait.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.stored.subscribe()
    }

    /// Deletes messages, events, keys and readers that are past their time, and the oldest messages
    /// where there are more than fit.
    pub async fn sweep(&self, keeping: Keeping) -> Result<(), StoreError> {
        self.sweep_old(keeping.kept).await?;
        let bytes = self.measure(keeping.bytes_max).await?;
        if bytes <= keeping.bytes_max {
            return Ok(());
        }
        let mut gone = 0;
        // More than needed, so that not every message is followed by a sweep.
        let target = keeping.bytes_max / 10 * 9;
        let mut over = bytes - target;
        while over > 0 {
            let oldest = move |tx: &Tx<'_>| inbox::sweep_bytes_in_tx(tx, over, SWEEP_MAX);
            match self.sqlite.write(oldest).await? {
                0 => break,
                some => gone += some,
            }
            over = self.measure(keeping.bytes_max).await?.saturating_sub(target);
        }
        tracing::warn!(gone, bytes, "the inbox is full: its oldest messages are gone");
        Ok(())
    }

    /// Bytes in use. What was swept counts as free, although the file does not shrink.
    async fn measure(&self, bytes_max: u64) -> Result<u64, StoreError> {
        let bytes = self.sqlite.read(bytes_used).await?;
        self.percent.store(bytes.saturating_mul(100) / bytes_max.max(1), Ordering::Relaxed);
        Ok(bytes)
    }

    /// How many percent of what it may have were in use when that was measured last.
    pub fn percent(&self) -> u64 {
        self.percent.load(Ordering::Relaxed)
    }

    async fn sweep_old(&self, kept: Duration) -> Result<(), StoreError> {
        let now = self.clock.wall();
        let (messages, events) = (now.saturating_sub(kept), now.saturating_sub(EVENTS_KEPT));
        let keys = now.saturating_sub(KEYS_KEPT.max(kept));
        loop {
            let gone = self.sqlite.write(move |tx| {
                Ok(inbox::sweep_in_tx(tx, messages, SWEEP_MAX)?
                    + event::sweep_in_tx(tx, events, SWEEP_MAX)?
                    + inbox::sweep_keys_in_tx(tx, keys, SWEEP_MAX)?
                    + inbox::sweep_readers_in_tx(tx, keys, SWEEP_MAX)?)
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

    /// Bytes on disk, the log included.
    pub fn bytes(&self) -> u64 {
        let file = std::fs::metadata(self.sqlite.path()).map_or(0, |file| file.len());
        file + self.sqlite.wal_bytes()
    }

    /// Commits what was handed in and closes the file in order.
    pub async fn close(self) {
        self.sqlite.close().await;
    }

    fn changed(&self) {
        self.stored.send_modify(|stored| *stored = stored.wrapping_add(1));
    }
}
