//! What can go wrong in a store, and what it says about the write.

use std::path::PathBuf;
use std::sync::Arc;

use rusqlite::ErrorCode;
use tokio_postgres::error::SqlState;

use crate::tls::TlsError;

/// What is known of a write that was answered with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It was rolled back or never begun: nothing of it is there, now or later.
    Undone,
    /// It may be there. Only looking it up by its key can tell.
    Uncertain,
}

/// A failed read or write.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// SQLite refused a statement; the write was undone.
    #[error("sqlite refused the statement")]
    Sqlite(#[source] rusqlite::Error),

    /// PostgreSQL refused a statement; the transaction was undone.
    #[error("postgresql refused the statement")]
    Postgres(#[source] tokio_postgres::Error),

    /// There is no room; the write was undone.
    #[error("the disk or the database is full")]
    Full,

    /// The transaction of this write, which it may share with others, was rolled back.
    #[error("the transaction was rolled back: {cause}")]
    RolledBack {
        /// Why.
        cause: Arc<str>,
    },

    /// The write panicked and was undone; the panic itself went to the panic hook.
    #[error("the write panicked")]
    Panicked,

    /// The write changed more rows than one write may, and was undone.
    #[error("the write changed {rows} rows, {max} are allowed")]
    TooManyRows {
        /// Rows that it changed.
        rows: u64,
        /// Rows that it may change.
        max: u64,
    },

    /// A write before it in its sequence was not kept, so this one was not begun.
    #[error("a write before it was not kept")]
    Behind,

    /// COMMIT did not answer, or failed in a way that may leave the write on disk.
    #[error("it is unknown whether the write was committed: {cause}")]
    Uncertain {
        /// Why.
        cause: Arc<str>,
    },

    /// The store cannot be reached; nothing was begun, or it was undone.
    #[error("the store is not reachable: {cause}")]
    Unavailable {
        /// Why.
        cause: Arc<str>,
    },

    /// Serialization failures or deadlocks undid every run.
    #[error("the transaction was undone {runs} times in a row by concurrent ones")]
    Contended {
        /// How often it was tried.
        runs: u32,
    },

    /// The queue is full; the write was not taken.
    #[error("too many writes are waiting")]
    Busy,

    /// The store was closed, or stopped after an uncertain commit; the write was not begun.
    #[error("the store has stopped")]
    Stopped,

    /// A copy was not made; the store itself is as it was.
    #[error("the copy {} was not written: {cause}", path.display())]
    Copy {
        /// Where it was to be.
        path: PathBuf,
        /// Why.
        cause: Arc<str>,
    },

    /// A check has found the file itself broken: nothing that is read from it can be relied on.
    #[error("{} is damaged: {what}", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What SQLite says of it.
        what: String,
    },

    /// The disk says something impossible.
    #[error("{table} row {id}: {what}")]
    Corrupt {
        /// The table.
        table: &'static str,
        /// The row's key.
        id: String,
        /// What is impossible about it.
        what: String,
    },
}

/// Whether SQLite could read the row, and a value of it is not what its column holds.
pub fn is_of_one_row(error: &rusqlite::Error) -> bool {
    matches!(
        error,
        rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::Utf8Error(..)
    )
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::Full,
            _ => Self::Sqlite(error),
        }
    }
}

impl StoreError {
    /// Whether one row is damaged and the others can be read: it says something impossible, or a
    /// value is not what its column holds.
    pub fn is_of_one_row(&self) -> bool {
        matches!(self, Self::Corrupt { .. })
            || matches!(self, Self::Sqlite(error) if is_of_one_row(error))
    }

    /// Whether the write may be there after all.
    pub fn fate(&self) -> Fate {
        match self {
            Self::Uncertain { .. } => Fate::Uncertain,
            Self::Sqlite(_)
            | Self::Postgres(_)
            | Self::Full
            | Self::RolledBack { .. }
            | Self::Panicked
            | Self::TooManyRows { .. }
            | Self::Behind
            | Self::Unavailable { .. }
            | Self::Contended { .. }
            | Self::Busy
            | Self::Stopped
            | Self::Copy { .. }
            | Self::Damaged { .. }
            | Self::Corrupt { .. } => Fate::Undone,
        }
    }

    /// Whether a server has refused what it may do another time: somebody has cancelled it or is
    /// stopping the server, or the server lacks room or connections.
    pub fn passes(&self) -> bool {
        let Self::Postgres(error) = self else { return false };
        error.code().is_some_and(code_passes)
    }

    /// The error and everything it was caused by, in one line: for logs, once, where it is handled.
    pub fn chain(&self) -> String {
        chain(self)
    }
}

/// Connections, room, and what an operator does: to make a database read-only, or a server a
/// standby, too.
fn code_passes(code: &SqlState) -> bool {
    const CLASSES: [&str; 3] = ["08", "53", "57"];
    *code == SqlState::READ_ONLY_SQL_TRANSACTION
        || CLASSES.iter().any(|class| code.code().starts_with(class))
}

/// An error and everything it was caused by, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        line.push_str(": ");
        line.push_str(&error.to_string());
        source = error.source();
    }
    line
}

/// Why a store was not opened. Each of these is a refusal to start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file could not be opened or read.
    #[error("{} could not be opened", path.display())]
    Sqlite {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },

    /// A folder or file could not be read, or not be made durable.
    #[error("{} could not be read or written", path.display())]
    Io {
        /// Which file or folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },

    /// A file, or its log (`-wal`), is not what was written to it.
    #[error("{} is damaged at {place}: {what}", path.display())]
    Damaged {
        /// The file or the log.
        path: PathBuf,
        /// Where in it.
        place: String,
        /// What is wrong there.
        what: String,
    },

    /// Another process serves the file, under this name or another.
    #[error("{} is served by another process already", path.display())]
    Served {
        /// Which file.
        path: PathBuf,
    },

    /// The database is being replaced, or that was stopped half-way.
    #[error("{} is being restored; if no restore is running, run it again", path.display())]
    Replacing {
        /// Which file.
        path: PathBuf,
    },

    /// A setting that durability rests on could not be had.
    #[error("{setting} is {found}, {needed} is needed")]
    Unfit {
        /// Which setting.
        setting: &'static str,
        /// What it is.
        found: String,
        /// What it must be.
        needed: &'static str,
    },

    /// The file belongs to another program, or to another part of this one.
    #[error("{} has application id {found:#x}, {expected:#x} was expected", path.display())]
    NotOurs {
        /// Which file.
        path: PathBuf,
        /// What it says.
        found: i32,
        /// What it must say.
        expected: i32,
    },

    /// A newer version has migrated this store.
    #[error("{component} has schema version {found}, this version knows {known}: use a newer one")]
    Newer {
        /// Which part.
        component: &'static str,
        /// Version of the store.
        found: u32,
        /// Newest version known here.
        known: u32,
    },

    /// What was applied is not what this version would apply.
    #[error("{component} migration {version} was applied in another form, by another build")]
    MigrationChanged {
        /// Which part.
        component: &'static str,
        /// Which migration.
        version: u32,
    },

    /// PostgreSQL refused.
    #[error("the PostgreSQL server refused: {0}")]
    Postgres(Arc<str>),

    /// The address of a server says nothing that could be used. Nothing of it is repeated.
    #[error("the address of the PostgreSQL server {0}")]
    Address(Arc<str>),

    /// What was said would be heard by others.
    #[error(
        "{host} is not on this machine, and the connection would be plain text: nothing was sent"
    )]
    PlainText {
        /// Which server.
        host: String,
    },

    /// TLS cannot be spoken, or not with whoever answers.
    #[error("no TLS with the PostgreSQL server")]
    Tls(#[source] Box<TlsError>),

    /// Nothing that answers can be trusted to be the server.
    #[error("nothing was sent to the PostgreSQL server: {0}")]
    Untrusted(Arc<str>),

    /// PostgreSQL does not answer, or takes nobody now: it may another time.
    #[error("the PostgreSQL server cannot be reached: {0}")]
    Unreachable(Arc<str>),

    /// A migration failed and was undone.
    #[error("{component} migration {version} failed and was undone")]
    Migration {
        /// Which part.
        component: &'static str,
        /// Which migration.
        version: u32,
        /// Why.
        #[source]
        source: Box<StoreError>,
    },
}

impl OpenError {
    /// What an error of a server says about opening.
    pub fn of_server(error: &StoreError) -> Self {
        let why = error.chain().into();
        let passes = matches!(error, StoreError::Unavailable { .. }) || error.passes();
        if passes { Self::Unreachable(why) } else { Self::Postgres(why) }
    }

    /// Why a server was not connected to. A password or a name that is wrong stays wrong; nobody
    /// who answers, or who lacks room for one more, does not.
    pub(crate) fn of_connection(error: &tokio_postgres::Error) -> Self {
        let why = chain(error).into();
        let source = std::error::Error::source(error);
        if source.is_some_and(|source| source.is::<TlsError>()) {
            return Self::Untrusted(why);
        }
        let is_of_network =
            || error.is_closed() || source.is_some_and(|source| source.is::<std::io::Error>());
        let passes = error.code().map_or_else(is_of_network, code_passes);
        if passes { Self::Unreachable(why) } else { Self::Postgres(why) }
    }

    /// Whether the file itself is the trouble, so that a good copy of it would help: not a
    /// permission, a full disk, or another version.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } | Self::NotOurs { .. } => true,
            Self::Sqlite { source, .. } => matches!(
                source.sqlite_error_code(),
                Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
            ),
            Self::Io { .. }
            | Self::Served { .. }
            | Self::Replacing { .. }
            | Self::Unfit { .. }
            | Self::Newer { .. }
            | Self::MigrationChanged { .. }
            | Self::Address(_)
            | Self::PlainText { .. }
            | Self::Tls(_)
            | Self::Untrusted(_)
            | Self::Postgres(_)
            | Self::Unreachable(_)
            | Self::Migration { .. } => false,
        }
    }
}
