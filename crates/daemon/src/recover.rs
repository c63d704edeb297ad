//! Looking at the databases of a daemon that does not run, and setting a damaged one aside
//! (daemon.md, "Lifecycle"). Nothing is ever deleted here.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::ErrorCode;
use semel_core::clock::UnixMs;
use semel_core::status;
use semel_store::sqlite::{LastStop, Sqlite, SqliteOptions};
use semel_store::{OpenError, StoreError};

use crate::home::{HomeFile, LockedHome};
use crate::store::{
    INBOX_APPLICATION_ID, INBOX_MIGRATIONS, OUTBOX_APPLICATION_ID, OUTBOX_MIGRATIONS, link,
};

status! {
    /// Which database.
    pub enum Database {
        /// What was accepted here.
        Outbox = "outbox",
        /// What arrived.
        Inbox = "inbox",
    }
}

status! {
    /// How a database is.
    pub enum Health {
        /// There is no file: the daemon makes one.
        Absent = "absent",
        /// Nothing is wrong with it.
        Sound = "sound",
        /// It is broken.
        Damaged = "damaged",
        /// It is not ours to judge: of a newer version, of another program, or not readable.
        Unusable = "unusable",
    }
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How it is.
    pub health: Health,
    /// What is wrong, in words.
    pub wrong: Vec<String>,
}

impl Database {
    /// Its file.
    pub const fn file(self) -> HomeFile {
        match self {
            Self::Outbox => HomeFile::OutboxDb,
            Self::Inbox => HomeFile::InboxDb,
        }
    }

    pub(crate) fn options(self, path: &Path, now: UnixMs) -> SqliteOptions {
        let (id, migrations) = match self {
            Self::Outbox => (OUTBOX_APPLICATION_ID, OUTBOX_MIGRATIONS),
            Self::Inbox => (INBOX_APPLICATION_ID, INBOX_MIGRATIONS),
        };
        // A check writes nothing that somebody waits for.
        SqliteOptions::new(path, id, vec![migrations], now.0, Arc::new(|_: &StoreError| {}))
    }
}

/// Reads the whole file. The lock says that no daemon has it open.
pub async fn examine(home: &LockedHome, database: Database, now: UnixMs) -> Finding {
    let path = home.home().path(database.file());
    if is_new(&path) {
        return Finding { health: Health::Absent, wrong: Vec::new() };
    }
    let sqlite = match Sqlite::open(&database.options(&path, now)) {
        Ok(sqlite) => sqlite,
        Err(error) => {
            let health = if is_damage(&error) { Health::Damaged } else { Health::Unusable };
            return Finding { health, wrong: vec![words(&error)] };
        }
    };
    let wrong = sqlite.integrity_check().await.unwrap_or_else(|error| vec![error.chain()]);
    if database == Database::Outbox && wrong.is_empty() && sqlite.last_stop() == LastStop::Unclean {
        // Opening it took the trace of the unclean stop away: the next daemon must still know.
        if let Err(error) = sqlite.write(|tx| link::raise_life_in_tx(tx)).await {
            sqlite.close().await;
            return Finding { health: Health::Unusable, wrong: vec![error.chain()] };
        }
    }
    sqlite.close().await;
    let health = if wrong.is_empty() { Health::Sound } else { Health::Damaged };
    Finding { health, wrong }
}

/// Sets a database aside and says where it is now; the daemon begins a new one.
pub fn start_fresh(
    home: &LockedHome,
    database: Database,
    now: UnixMs,
) -> Result<PathBuf, OpenError> {
    set_aside(&home.home().path(database.file()), now.0)
}

/// Whether there is no database yet: no file, or an empty one that was prepared for it.
pub(crate) fn is_new(path: &Path) -> bool {
    std::fs::metadata(path).map_or(true, |file| file.len() == 0)
}

/// Whether the file itself is broken, and not just another one.
pub(crate) fn is_damage(error: &OpenError) -> bool {
    let broken = |error: &rusqlite::Error| {
        let code = error.sqlite_error_code();
        matches!(code, Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
    };
    match error {
        OpenError::Sqlite { source, .. } => broken(source),
        OpenError::Migration { source, .. } => {
            matches!(&**source, StoreError::Sqlite(error) if broken(error))
        }
        OpenError::Io { .. }
        | OpenError::Unfit { .. }
        | OpenError::NotOurs { .. }
        | OpenError::Newer { .. }
        | OpenError::Replacing { .. }
        | OpenError::MigrationChanged { .. }
        | OpenError::Postgres(_) => false,
    }
}

/// Gives a file another name, its log first: a log that stayed behind would be read into the new
/// file.
pub(crate) fn set_aside(path: &Path, now_ms: i64) -> Result<PathBuf, OpenError> {
    let io = |source| OpenError::Io { path: path.to_owned(), source };
    let with = |path: &Path, suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let or_absent = |done: std::io::Result<()>| match done {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io(error)),
        Ok(()) | Err(_) => Ok(()),
    };
    let aside = with(path, &format!(".corrupt-{now_ms}"));
    or_absent(std::fs::rename(with(path, "-wal"), with(&aside, "-wal")))?;
    or_absent(std::fs::remove_file(with(path, "-shm")))?;
    std::fs::rename(path, &aside).map_err(io)?;
    Ok(aside)
}

fn words(error: &OpenError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text.push_str(&format!(": {error}"));
        source = error.source();
    }
    text
}
