//! The log of a file (`-wal`), kept by its writer once everybody is answered, so that nobody waits.
//!
//! It is copied into the file when it is long, and then written over from its start. Writing over
//! what is there is synced in about half the time of making a file longer, so a log that is in use
//! gets its full length at once, filled with zeros: they end it, as whatever is behind the last
//! frame does.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use rusqlite::Connection;

use super::open::wal_path;
use crate::limits::{
    CLOSE_WAIT, LOG_LENGTHENED_AFTER, LOG_LOOK_INTERVAL, LOG_PAGES, LOG_PAGES_MAX, LOG_ROOM,
};

/// Every page has a header of its own.
const LOG_BYTES: u64 = LOG_PAGES.unsigned_abs() * (4096 + 24);
const ZEROS: &[u8] = &[0; 1 << 20];

/// To be called after each commit; nothing depends on its success.
pub(super) fn keep(connection: &Connection, path: &Path, commits: u64) {
    if commits == LOG_LENGTHENED_AFTER
        && let Err(error) = lengthen(connection, path)
    {
        tracing::debug!(%error, "the log could not be given its full length");
    }
    if commits.is_multiple_of(LOG_LOOK_INTERVAL)
        && let Err(error) = copy_if_long(connection)
    {
        tracing::debug!(%error, "the log was not copied into the file");
    }
}

/// Copies all of it into the file and makes it empty, for a writer that closes. What fails here
/// costs nothing but the next start's time, which finds it.
pub(super) fn fold(connection: &Connection, path: &Path) {
    let name = path.display();
    // Another process may be reading; a stop does not wait long for it.
    let folded = connection.busy_timeout(CLOSE_WAIT).and_then(|()| {
        let sql = "PRAGMA wal_checkpoint(TRUNCATE)";
        connection.query_row(sql, [], |row| row.get::<_, bool>(0))
    });
    match folded {
        Ok(false) => {}
        Ok(true) => tracing::warn!(%name, "its log stays beside it: another process reads it"),
        Err(error) => tracing::error!(%name, %error, "its log stays beside it"),
    }
}

fn copy_if_long(connection: &Connection) -> rusqlite::Result<()> {
    let pages = |sql| connection.prepare_cached(sql)?.query_row([], |row| row.get::<_, i64>(1));
    if pages("PRAGMA wal_checkpoint(NOOP)")? >= LOG_PAGES {
        pages("PRAGMA wal_checkpoint(PASSIVE)")?;
    }
    Ok(())
}

/// Pages after which a commit copies the log itself.
pub(super) fn pages_max(path: &Path) -> i64 {
    // On a small disk every page counts.
    if has_room(path) { LOG_PAGES_MAX } else { LOG_PAGES }
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
