//! Looking at the databases of a daemon that does not run, and setting a damaged one aside
//! (daemon.md, "Lifecycle"). Nothing is ever deleted here.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::ErrorCode;
use semel_core::clock::UnixMs;
use semel_core::status;
use semel_store::sqlite::{Alone, LastStop, Sqlite, SqliteOptions, TableRows, sums_path};
use semel_store::{OpenError, StoreError};

use crate::home::{HomeFile, LockedHome, MadeStores, Presence, StoresError};
use crate::store::rows::{INBOX_ROWS, OUTBOX_ROWS};
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
        /// There was one, and there is no file any more, or an empty one.
        Lost = "lost",
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

    /// Tables whose rows can be compared with what was written.
    pub fn rows(self) -> &'static [TableRows] {
        match self {
            Self::Outbox => OUTBOX_ROWS,
            Self::Inbox => INBOX_ROWS,
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

/// Reads the whole file, and every row of it. The lock says that no daemon has it open.
pub async fn examine(home: &LockedHome, database: Database, now: UnixMs) -> Finding {
    let path = home.home().path(database.file());
    match made(home).look(&path) {
        Ok(Presence::There) => {}
        Ok(Presence::New) => return Finding { health: Health::Absent, wrong: Vec::new() },
        Ok(Presence::Lost) => {
            let wrong = "the file is missing or empty, although this home has made it";
            return Finding { health: Health::Lost, wrong: vec![wrong.to_owned()] };
        }
        Err(error) => {
            return Finding { health: Health::Unusable, wrong: vec![words(&error)] };
        }
    }
    // As whoever serves it: its lock file may have been deleted under a daemon that runs.
    let sqlite = match Sqlite::open(&database.options(&path, now).to_serve()) {
        Ok(sqlite) => sqlite,
        Err(error) => {
            let health = if is_damage(&error) { Health::Damaged } else { Health::Unusable };
            return Finding { health, wrong: vec![words(&error)] };
        }
    };
    let mut wrong = sqlite.integrity_check().await.unwrap_or_else(|error| vec![error.chain()]);
    if database == Database::Outbox && wrong.is_empty() && sqlite.last_stop() == LastStop::Unclean {
        // Opening it took the trace of the unclean stop away: the next daemon must still know.
        if let Err(error) = sqlite.write(|tx| link::raise_life_in_tx(tx)).await {
            sqlite.close().await;
            return Finding { health: Health::Unusable, wrong: vec![error.chain()] };
        }
    }
    if wrong.is_empty() {
        wrong = changed_rows(&sqlite, database).await;
    }
    sqlite.close().await;
    let health = if wrong.is_empty() { Health::Sound } else { Health::Damaged };
    Finding { health, wrong }
}

/// What SQLite cannot see: rows that are not what was accepted, or what arrived.
async fn changed_rows(sqlite: &Sqlite, database: Database) -> Vec<String> {
    match sqlite.read_rows(database.rows(), |_| {}).await {
        Ok(read) => read.wrong,
        Err(error) => vec![error.chain()],
    }
}

/// Makes a database that this home never had, and closes it in order: it is noted as made before
/// anything is taken into it.
pub async fn make(home: &LockedHome, database: Database, now: UnixMs) -> Result<(), OpenError> {
    let sqlite = Sqlite::open(&database.options(&home.home().path(database.file()), now))?;
    sqlite.close().await;
    Ok(())
}

/// Why no new database can be begun.
#[derive(Debug, thiserror::Error)]
pub enum FreshError {
    /// The old one could not be set aside.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// That it is not there could not be noted.
    #[error(transparent)]
    Stores(#[from] StoresError),
}

/// Sets a database aside and says where it is now; of one that was lost nothing is left. The daemon
/// begins a new one.
pub fn start_fresh(
    home: &LockedHome,
    database: Database,
    now: UnixMs,
) -> Result<Option<PathBuf>, FreshError> {
    let path = home.home().path(database.file());
    let presence = made(home).look(&path)?;
    let _alone = match presence {
        Presence::There => match Alone::with(&path)? {
            Some(alone) => Some(alone),
            None => return Err(OpenError::Served { path }.into()),
        },
        Presence::New | Presence::Lost => None,
    };
    made(home).forget(&path)?;
    match presence {
        Presence::There => Ok(Some(set_aside(&path, now.0)?)),
        Presence::New | Presence::Lost => Ok(None),
    }
}

fn made(home: &LockedHome) -> MadeStores {
    MadeStores::of_home(home.home().root())
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
        OpenError::Damaged { .. } => true,
        OpenError::Io { .. }
        | OpenError::Unfit { .. }
        | OpenError::NotOurs { .. }
        | OpenError::Newer { .. }
        | OpenError::Replacing { .. }
        | OpenError::Served { .. }
        | OpenError::MigrationChanged { .. }
        | OpenError::Address(_)
        | OpenError::PlainText { .. }
        | OpenError::Tls(_)
        | OpenError::Untrusted(_)
        | OpenError::Postgres(_)
        | OpenError::Unreachable(_) => false,
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
    or_absent(std::fs::rename(sums_path(path), sums_path(&aside)))?;
    std::fs::rename(path, &aside).map_err(io)?;
    Ok(aside)
}

fn words(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(&format!(": {error}"));
        source = error.source();
    }
    text
}
