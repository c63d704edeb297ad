//! The log of a file (`-wal`), kept by its writer once everybody is answered, so that nobody waits.
//!
//! It is copied into the file when it is long, and then written over from its start. Writing over
//! what is there is synced in about half the time of making a file longer, so a log that is in use
//! gets its full length at once, filled with zeros: they end it, as whatever is behind the last
//! frame does.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rusqlite::Connection;
use rusqlite::config::DbConfig;
use rusqlite::hooks::Wal;

use super::lock::Sharing;
use super::open::wal_path;
use super::sums::Sums;
use super::{Purpose, SqliteOptions};
use crate::limits::{
    CLOSE_WAIT, LOG_LENGTHENED_AFTER, LOG_LOOK_INTERVAL, LOG_PAGES, LOG_PAGES_MAX, LOG_ROOM,
};

/// Every page has a header of its own.
const LOG_BYTES: u64 = LOG_PAGES as u64 * (4096 + 24);
const ZEROS: &[u8] = &[0; 1 << 20];

/// Who keeps the log of a file. It alone copies: SQLite would do it by itself, and then nobody
/// would know the sums of what was copied.
pub(super) struct Keeper {
    path: PathBuf,
    /// Holds writers of other processes back while the log is copied.
    guard: Option<Connection>,
    /// Nothing once they could not be written, or were deleted.
    sums: Option<Sums>,
    /// Whether it may copy. Who visits a file whose sums it does not know leaves that to others.
    copies: bool,
    /// How many frames the log had after the last commit; zero once that is noted.
    frames: Arc<AtomicU32>,
    /// More are not waited for.
    pages_max: u32,
    /// It is long enough to be copied.
    is_due: bool,
    /// Shared by all who have the file open.
    lock: Arc<Sharing>,
}

/// How much a commit has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    Small,
    /// As much as a group may, or more.
    Large,
}

impl Keeper {
    /// Hears of each commit of this connection.
    pub(super) fn of(
        writer: &mut Connection,
        guard: Connection,
        options: &SqliteOptions,
        sums: Option<Sums>,
        lock: Arc<Sharing>,
    ) -> rusqlite::Result<Self> {
        let frames = Arc::new(AtomicU32::new(0));
        let heard = Arc::clone(&frames);
        writer.wal_hook(Some(move |_: &mut Wal, pages: i32| {
            heard.store(pages.unsigned_abs(), Ordering::Relaxed);
            Ok(())
        }))?;
        let path = options.path.clone();
        let copies = sums.is_some() || options.purpose == Purpose::Serve;
        // On a small disk every page counts.
        let pages_max = if has_room(&path) { LOG_PAGES_MAX } else { LOG_PAGES };
        let (guard, is_due) = (Some(guard), false);
        Ok(Self { path, guard, sums, copies, frames, pages_max, is_due, lock })
    }

    /// To be called after each commit; nothing depends on its success. After a large one the next
    /// is let go first, where that is possible: who has waited for its rows need not wait for the
    /// copying, too.
    pub(super) fn after_commit(&mut self, writer: &Connection, commits: u64, size: Size) {
        let frames = self.frames.swap(0, Ordering::Relaxed);
        if let Some(sums) = &self.sums
            && frames > 0
        {
            sums.committed(frames);
        }
        if commits == LOG_LENGTHENED_AFTER
            && let Err(error) = lengthen(writer, &self.path)
        {
            tracing::debug!(%error, "the log could not be given its full length");
        }
        let is_long = frames >= LOG_PAGES && commits.is_multiple_of(LOG_LOOK_INTERVAL);
        self.is_due |= is_long || frames >= self.pages_max;
        let can_wait = size == Size::Large && frames < 2 * self.pages_max;
        if !self.is_due || can_wait {
            return;
        }
        self.is_due = false;
        if let Err(error) = self.copy(writer) {
            tracing::debug!(%error, "the log was not copied into the file");
        }
    }

    /// What is left of a transaction that was cut off must not be behind new ones: nobody could
    /// tell it from something that was lost ([`super::walk`]).
    pub(super) fn begin_anew(&mut self, writer: &Connection) {
        if let Err(error) = self.copy(writer) {
            let name = self.path.display();
            tracing::warn!(%name, %error, "the log that was left was not copied into the file");
        }
    }

    /// Copies the log into the file, as far as no reader needs it; whether that is all of it.
    fn copy(&mut self, writer: &Connection) -> rusqlite::Result<bool> {
        let Some(guard) = self.guard.as_ref().filter(|_| self.copies) else { return Ok(false) };
        guard.execute_batch("BEGIN IMMEDIATE")?;
        let copied = copy_held(writer, &mut self.sums);
        if let Err(error) = guard.execute_batch("ROLLBACK") {
            // Closed, it holds nobody back.
            self.guard = None;
            return Err(error);
        }
        copied
    }

    /// Copies all of it into the file and removes it, for a writer that closes, unless another
    /// process has the file open: then that is left to the last of them. What fails here costs
    /// nothing but the next start's time, which finds it.
    ///
    /// Afterwards the writer's connection is to be closed, and then [`Keeper::closed`] called.
    pub(super) fn close(&mut self, writer: &Connection) {
        let is_removed = match self.lock.is_last() {
            true => self.remove(writer),
            false => Ok(false),
        };
        let name = self.path.display();
        match is_removed {
            Ok(true) => {}
            Ok(false) => {
                self.sums = None;
                tracing::debug!(%name, "its log stays beside it: another process has it open");
            }
            Err(error) => {
                self.sums = None;
                tracing::error!(%name, %error, "its log stays beside it");
            }
        }
    }

    /// Whether it will be removed with the writer's connection. Nobody else has the file open, but
    /// maybe another thread of ours still reads.
    fn remove(&mut self, writer: &Connection) -> rusqlite::Result<bool> {
        writer.busy_timeout(CLOSE_WAIT)?;
        let is_all = self.copy(writer)?;
        // It must not be in the way of the removal.
        self.guard = None;
        if is_all {
            let sql = "PRAGMA wal_checkpoint(TRUNCATE)";
            writer.query_row(sql, [], |row| row.get::<_, bool>(0))?;
            writer.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
        }
        Ok(is_all)
    }

    /// After [`Keeper::close`].
    pub(super) fn closed(&self) {
        if let Some(sums) = &self.sums
            && let Err(error) = sums.closed()
        {
            tracing::error!(name = %self.path.display(), %error, "its close was not noted");
        }
    }
}

/// While nobody writes.
fn copy_held(writer: &Connection, sums: &mut Option<Sums>) -> rusqlite::Result<bool> {
    let mut statement = writer.prepare_cached("PRAGMA wal_checkpoint(PASSIVE)")?;
    let (is_busy, frames, copied): (bool, i64, i64) =
        statement.query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let is_all = !is_busy && frames == copied;
    let frames = u32::try_from(frames).unwrap_or(0);
    if let Some(known) = sums
        && is_all
        && frames > 0
        && let Err(error) = known.copied(frames)
    {
        tracing::warn!(%error, "the sums of a file could not be written: it has none now");
        *sums = None;
    }
    Ok(is_all)
}

/// Whether the disk has plenty of room; one that does not say has none.
fn has_room(path: &Path) -> bool {
    let folder = path.parent().unwrap_or(path);
    rustix::fs::statvfs(folder)
        .is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) >= LOG_BYTES * LOG_ROOM)
}

fn lengthen(connection: &Connection, path: &Path) -> std::io::Result<()> {
    if !has_room(path) {
        return Ok(());
    }
    // Nobody may add a frame meanwhile: it would be written over.
    connection.execute_batch("BEGIN IMMEDIATE").map_err(std::io::Error::other)?;
    let lengthened = fill(&wal_path(path), LOG_BYTES);
    connection.execute_batch("ROLLBACK").map_err(std::io::Error::other)?;
    lengthened
}

fn fill(log: &Path, wanted: u64) -> std::io::Result<()> {
    let mut file = OpenOptions::new().append(true).open(log)?;
    let before = file.metadata()?.len();
    let filled = append_zeros(&mut file, wanted.saturating_sub(before));
    if filled.is_err() {
        file.set_len(before)?;
    }
    filled
}

fn append_zeros(file: &mut File, mut missing: u64) -> std::io::Result<()> {
    while missing > 0 {
        let some = usize::try_from(missing).unwrap_or(ZEROS.len()).min(ZEROS.len());
        file.write_all(&ZEROS[..some])?;
        missing -= some as u64;
    }
    file.sync_data()
}
