//! One SQLite file: a writer thread with group commit, reader threads, a maintenance thread.
//!
//! Who owns what: connections never leave their threads; callers hand in closures and wait. The
//! only way to write is [`Sqlite::write`] (answered after the commit is on disk),
//! [`Sqlite::write_along`] (the same without haste) and [`Sqlite::ride`] (not answered; its loss
//! must be harmless).

mod backup;
mod caller;
mod frames;
mod group;
mod job;
mod lane;
mod lock;
mod log;
mod open;
mod queue;
mod restore;
mod rows;
mod sums;
mod walk;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::Connection;

use crate::migration::MigrationSet;
use crate::{OpenError, StoreError, limits};
pub use job::{Sequence, Tx};
use lane::Lane;
pub use lock::Alone;
use queue::Urgency;
pub use restore::{Existing, RestoreError, refuse_damaged, restore};
pub use rows::{RowsRead, Start, TableRows};
pub use sums::path_of as sums_path;
use writer::{How, Writer};

/// Called when nothing of the file is certain any more. On the writer's thread when a COMMIT's
/// outcome is unknown, before anybody is answered, or when that thread ends for another reason than
/// being asked to; and with [`StoreError::Damaged`] when the check after an unclean stop finds
/// fault.
/// A process that serves must end here: recovery by key decides (mesh.md §10).
pub type OnUncertain = Arc<dyn Fn(&StoreError) + Send + Sync>;

/// What a file is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To serve it: nobody else does, under any name of the file, until it is closed. Its log is
    /// copied into it then.
    Serve,
    /// For a command, or a look, maybe beside whoever serves it. Its log is theirs.
    Visit,
}

/// How a file is opened.
#[derive(Clone)]
pub struct SqliteOptions {
    /// The database file; made if it is missing.
    pub path: PathBuf,
    /// Says whose file it is, in the file itself.
    pub application_id: i32,
    /// What its schema must be.
    pub migrations: Vec<MigrationSet>,
    /// The time, for the migrations' bookkeeping.
    pub now_ms: i64,
    /// What it is opened for.
    pub purpose: Purpose,
    /// What happens after an uncertain commit.
    pub on_uncertain: OnUncertain,
    /// Looks at each new connection before its first use: tests count and crash here.
    pub instrument: Option<fn(&mut Connection) -> rusqlite::Result<()>>,
    /// Writes that may wait.
    pub queue_max: usize,
    /// Writes per commit.
    pub group_max: usize,
    /// Rows that one write may change.
    pub write_rows_max: u64,
    /// How long a riding write waits for company.
    pub ride_wait: Duration,
    /// Reader threads.
    pub readers: usize,
    /// Bytes of a file whose pages are compared with their sums before it is used; those of a
    /// larger one are compared while it is.
    pub compared_at_once: u64,
}

impl SqliteOptions {
    /// For a visit, with the limits of [`limits`].
    pub fn new(
        path: impl Into<PathBuf>,
        application_id: i32,
        migrations: Vec<MigrationSet>,
        now_ms: i64,
        on_uncertain: OnUncertain,
    ) -> Self {
        Self {
            path: path.into(),
            application_id,
            migrations,
            now_ms,
            purpose: Purpose::Visit,
            on_uncertain,
            instrument: None,
            queue_max: limits::WRITER_QUEUE_MAX,
            group_max: limits::GROUP_MAX,
            write_rows_max: limits::WRITE_ROWS_MAX,
            ride_wait: limits::RIDE_WAIT,
            readers: limits::READERS,
            compared_at_once: limits::SUMS_COMPARED_AT_ONCE,
        }
    }

    /// The same, to serve the file.
    #[must_use]
    pub fn to_serve(self) -> Self {
        Self { purpose: Purpose::Serve, ..self }
    }
}

/// How the last process that had this file left it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastStop {
    /// Closed in order, or never opened.
    Clean,
    /// Killed, crashed or cut off: [`Sqlite::open`] has the file checked in the background.
    Unclean,
}

/// An open file.
pub struct Sqlite {
    path: PathBuf,
    last_stop: LastStop,
    writer: Writer,
    readers: Lane,
    maintenance: Lane,
    /// Nobody replaces the file while it is open.
    lock: Mutex<Option<Arc<lock::Sharing>>>,
    /// Nobody else serves it; held by each thread, too, for as long as it has a connection.
    serving: Mutex<Option<Arc<lock::Serving>>>,
}

/// Looks at a file without changing or migrating it: an error says why it cannot be used, names
/// are migrations that it lacks.
///
/// Blocks: call it before serving, or on a blocking thread.
pub fn look(
    path: &Path,
    application_id: i32,
    migrations: &[MigrationSet],
) -> Result<(LastStop, Vec<&'static str>), OpenError> {
    let last_stop = open::last_stop(path);
    walk::refuse_damaged(path)?;
    sums::refuse_damaged(path)?;
    Ok((last_stop, open::look(path, application_id, migrations)?))
}

/// Reads something of a file that is left as it is, as [`look`] does.
///
/// Blocks: call it before serving, or on a blocking thread.
pub fn peek<T>(
    path: &Path,
    read: impl FnOnce(&Connection) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    read(&open::as_it_is(path)?)
}

/// Refuses a file whose log is damaged, or that is not what was written: what was committed behind
/// a fault can be read by nobody ([`Sqlite::open_to_read`] shows what is before it).
///
/// Blocks: call it before serving, or on a blocking thread.
pub fn refuse_changed(path: &Path) -> Result<(), OpenError> {
    walk::refuse_damaged(path)?;
    sums::refuse_damaged(path)
}

impl Sqlite {
    /// Opens, checks and migrates the file, then starts its threads.
    ///
    /// Blocks: call it before serving, or on a blocking thread.
    pub fn open(options: &SqliteOptions) -> Result<Self, OpenError> {
        let options = &open::where_it_is(options);
        let path = &options.path;
        open::refuse_no_file(path)?;
        let entry = lock::enter(path)?;
        // The log of somebody who has it open is no trace of a stop.
        let is_ours = entry.is_first();
        let serving = match options.purpose {
            Purpose::Serve => Some(lock::serve(path)?),
            Purpose::Visit => {
                open::make(path)?;
                None
            }
        };
        open::keep_private(path);
        let last_stop = open::last_stop(path);
        let found = match is_ours {
            true => {
                // SQLite would make a damaged log shorter than it is, and say nothing.
                walk::refuse_damaged(path)?;
                sums::begin(path, options.compared_at_once)?
            }
            false => sums::Found::Whole,
        };
        let lock = Arc::new(entry.share()?);
        let sums = sums::of_open(path)?;
        let mut connection = open::writer(options)?;
        let failed = |source| OpenError::Sqlite { path: path.clone(), source };
        let reader = |_| open::reader(options).map_err(failed);
        let readers = (0..options.readers).map(reader).collect::<Result<Vec<_>, _>>()?;
        let maintenance = open::maintenance(options).map_err(failed)?;
        let guard = open::maintenance(options).map_err(failed)?;
        let keeper = log::Keeper::of(&mut connection, guard, options, sums, Arc::clone(&lock));
        let mut keeper = keeper.map_err(failed)?;
        if is_ours && last_stop == LastStop::Unclean {
            keeper.begin_anew(&connection);
        }
        let threads = |source| OpenError::Io { path: path.clone(), source };
        let lane = |name, connections, style| {
            Lane::start(name, connections, style, serving.as_ref()).map_err(threads)
        };
        let store = Self {
            path: path.clone(),
            last_stop,
            writer: Writer::start(connection, keeper, options, serving.clone()).map_err(threads)?,
            readers: lane("sqlite-read", readers, lane::Style::Snapshot)?,
            maintenance: lane("sqlite-upkeep", vec![maintenance], lane::Style::Bare)?,
            lock: Mutex::new(Some(lock)),
            serving: Mutex::new(serving.clone()),
        };
        let is_doubted = last_stop == LastStop::Unclean || found == sums::Found::Remade;
        if is_ours && is_doubted {
            store.check_in_background(Arc::clone(&options.on_uncertain));
        }
        match (found, serving) {
            (sums::Found::Large, Some(serving)) => {
                store.compare_in_background(serving, Arc::clone(&options.on_uncertain));
            }
            (sums::Found::Remade, _) => {
                let name = sums::path_of(path).display().to_string();
                tracing::warn!(name, "it was damaged and is made anew");
            }
            (_, _) => {}
        }
        Ok(store)
    }

    /// Compares all pages of a large file with their sums while others work.
    fn compare_in_background(&self, serving: Arc<lock::Serving>, on_damage: OnUncertain) {
        let path = self.path.clone();
        let compare = move |connection: &Connection| {
            let name = path.display().to_string();
            match sums::compare_while_open(&path, &serving.0, connection) {
                Ok(None) => tracing::info!(name, "every page is as it was written"),
                Ok(Some(fault)) => on_damage(&StoreError::Damaged { path, what: fault }),
                Err(error) => tracing::error!(name, %error, "its pages were not compared"),
            }
        };
        if let Err(error) = self.maintenance.hand_in(compare) {
            tracing::error!(error = error.chain(), "a file is not compared");
        }
    }

    /// Looks at the structure of the whole file (traps.md 48) while others work.
    fn check_in_background(&self, on_damage: OnUncertain) {
        let path = self.path.clone();
        let check = move |connection: &Connection| {
            let name = path.display().to_string();
            let what = match open::check(connection, open::CHECK_QUICK) {
                Ok(wrong) if wrong.is_empty() => {
                    return tracing::info!(name, "it is sound after an unclean stop");
                }
                Ok(wrong) => wrong.join("; "),
                Err(StoreError::Sqlite(error)) if job::is_broken(&error) => error.to_string(),
                Err(error) => {
                    return tracing::error!(name, error = error.chain(), "it was not checked");
                }
            };
            on_damage(&StoreError::Damaged { path, what });
        };
        if let Err(error) = self.maintenance.hand_in(check) {
            tracing::error!(error = error.chain(), "a file is not checked");
        }
    }

    /// Opens a file to read what can be read of it, also of a damaged one. It stays as it is: not
    /// even its log is copied into it, and every write is answered [`StoreError::Stopped`].
    ///
    /// Blocks: call it before serving, or on a blocking thread.
    pub fn open_to_read(options: &SqliteOptions) -> Result<Self, OpenError> {
        let path = &options.path;
        let lock = lock::share(path)?;
        let last_stop = open::last_stop(path);
        let lacking = open::look(path, options.application_id, &options.migrations)?;
        if !lacking.is_empty() {
            let found = format!("one that lacks {}", lacking.join(", "));
            return Err(OpenError::Unfit { setting: "schema", found, needed: "the current one" });
        }
        let failed = |source| OpenError::Sqlite { path: path.clone(), source };
        let reader = |_| open::as_it_is(path).map_err(failed);
        let readers = (0..options.readers).map(reader).collect::<Result<Vec<_>, _>>()?;
        let maintenance = vec![reader(0)?];
        let threads = |source| OpenError::Io { path: path.clone(), source };
        Ok(Self {
            path: path.clone(),
            last_stop,
            writer: Writer::none(),
            readers: Lane::start("sqlite-read", readers, lane::Style::Snapshot, None)
                .map_err(threads)?,
            maintenance: Lane::start("sqlite-upkeep", maintenance, lane::Style::Bare, None)
                .map_err(threads)?,
            lock: Mutex::new(Some(Arc::new(lock))),
            serving: Mutex::new(None),
        })
    }

    /// Runs `f` in the next group commit. `Err` from `f`, or a panic, undoes only `f`; nothing is
    /// answered before the commit is on disk. Once handed in, `f` runs also when the caller goes
    /// away.
    ///
    /// `f` may run a second time when another write of its group fails, so that what it does must
    /// depend on the database and what it captured alone. One that failed is not run again.
    pub fn write<T, F>(
        &self,
        f: F,
    ) -> impl Future<Output = Result<T, StoreError>> + Send + use<'_, T, F>
    where
        F: FnMut(&Tx<'_>) -> Result<T, StoreError> + Send + 'static,
        T: Send + 'static,
    {
        self.writer.write(How::ALONE, f, |_| {})
    }

    /// The same for the work of so many, who are answered together.
    pub fn write_for<T, F>(
        &self,
        many: usize,
        f: F,
    ) -> impl Future<Output = Result<T, StoreError>> + Send + use<'_, T, F>
    where
        F: FnMut(&Tx<'_>) -> Result<T, StoreError> + Send + 'static,
        T: Send + 'static,
    {
        self.writer.write(How { many, ..How::ALONE }, f, |_| {})
    }

    /// The same for one of several that are handed in before the first is answered:
    /// [`StoreError::Behind`] when one before it was not kept.
    pub fn write_behind<T, F>(
        &self,
        sequence: &Arc<Sequence>,
        many: usize,
        f: F,
    ) -> impl Future<Output = Result<T, StoreError>> + Send + use<'_, T, F>
    where
        F: FnMut(&Tx<'_>) -> Result<T, StoreError> + Send + 'static,
        T: Send + 'static,
    {
        self.writer.write(How { many, sequence: Some(sequence) }, f, |_| {})
    }

    /// The same, with something short that is told of the result right after the commit, on the
    /// writer's thread and in the order of the commits: also when the caller has gone away.
    pub fn write_then<T, F, Then>(
        &self,
        f: F,
        then: Then,
    ) -> impl Future<Output = Result<T, StoreError>> + Send + use<'_, T, F, Then>
    where
        F: FnMut(&Tx<'_>) -> Result<T, StoreError> + Send + 'static,
        Then: FnOnce(&T) + Send + 'static,
        T: Send + 'static,
    {
        self.writer.write(How::ALONE, f, then)
    }

    /// The same for a write that is in no hurry: it goes along with the next commit, or is
    /// committed alone after `ride_wait`.
    pub fn write_along<T, F>(
        &self,
        f: F,
    ) -> impl Future<Output = Result<T, StoreError>> + Send + use<'_, T, F>
    where
        F: FnMut(&Tx<'_>) -> Result<T, StoreError> + Send + 'static,
        T: Send + 'static,
    {
        self.writer.write_along(Urgency::Riding, f)
    }

    /// The same for much work: it is committed alone after a moment, so that whoever brings more of
    /// it is not held up.
    pub fn write_much_along<T, F>(
        &self,
        f: F,
    ) -> impl Future<Output = Result<T, StoreError>> + Send + use<'_, T, F>
    where
        F: FnMut(&Tx<'_>) -> Result<T, StoreError> + Send + 'static,
        T: Send + 'static,
    {
        self.writer.write_along(Urgency::Shortly, f)
    }

    /// Hands in a write that nobody waits for. It goes along with the next commit, or is committed
    /// alone after `ride_wait`. Only for writes whose loss is harmless because repeating them is.
    pub fn ride<F>(&self, f: F) -> Result<(), StoreError>
    where
        F: FnMut(&Tx<'_>) -> Result<(), StoreError> + Send + 'static,
    {
        self.writer.ride(f)
    }

    /// Runs `f` on a reader, in one snapshot. Page instead of streaming: an open snapshot holds
    /// the checkpoint back.
    pub fn read<T, F>(
        &self,
        f: F,
    ) -> impl Future<Output = Result<T, StoreError>> + Send + use<'_, T, F>
    where
        F: FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
        T: Send + 'static,
    {
        self.readers.run(1, f)
    }

    /// The same for the work of so many, who are answered together.
    pub fn read_for<T, F>(
        &self,
        many: usize,
        f: F,
    ) -> impl Future<Output = Result<T, StoreError>> + Send + use<'_, T, F>
    where
        F: FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
        T: Send + 'static,
    {
        self.readers.run(many, f)
    }

    /// Runs heavy work on the maintenance connection, outside any transaction.
    pub fn maintain<T, F>(
        &self,
        f: F,
    ) -> impl Future<Output = Result<T, StoreError>> + Send + use<'_, T, F>
    where
        F: FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
        T: Send + 'static,
    {
        self.maintenance.run(1, f)
    }

    /// What `PRAGMA quick_check` finds wrong; empty when nothing is.
    pub async fn quick_check(&self) -> Result<Vec<String>, StoreError> {
        self.maintain(|connection| open::check(connection, open::CHECK_QUICK)).await
    }

    /// What `PRAGMA integrity_check` finds wrong; reads the whole file.
    pub async fn integrity_check(&self) -> Result<Vec<String>, StoreError> {
        self.maintain(|connection| open::check(connection, open::CHECK_WHOLE)).await
    }

    /// Writes a consistent copy to `target`, which must not exist, and makes it durable. (A copy
    /// of the live files would not be one.)
    pub async fn backup_into(&self, target: &Path) -> Result<(), StoreError> {
        let target = target.to_owned();
        self.maintain(move |connection| backup::backup_into(connection, &target)).await
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the write-ahead log: it grows while a reader stays open.
    pub fn wal_bytes(&self) -> u64 {
        std::fs::metadata(open::wal_path(&self.path)).map_or(0, |wal| wal.len())
    }

    /// Writes that are waiting for the writer now.
    pub fn queue_len(&self) -> usize {
        self.writer.queue_len()
    }

    /// Group commits since the file was opened.
    pub fn commits(&self) -> u64 {
        self.writer.commits()
    }

    /// How the last process left the file.
    pub fn last_stop(&self) -> LastStop {
        self.last_stop
    }

    /// Commits what was handed in, refuses more, and closes the file in order: whatever is in its
    /// log is in the file then, and the log is gone, unless another process has the file open.
    /// Whoever still holds this is answered [`StoreError::Stopped`].
    pub async fn close(&self) {
        // The writer last: it copies the log, and the connection that closes last removes it.
        self.readers.close().await;
        self.maintenance.close().await;
        self.writer.close().await;
        drop(self.serving.lock().unwrap_or_else(PoisonError::into_inner).take());
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
