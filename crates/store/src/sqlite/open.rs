//! Opening a file: settings that durability rests on (set, then read back), whose file it is, its
//! schema, and the checks and copies that run on the maintenance connection.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags, OptionalExtension};

use super::{LastStop, SqliteOptions};
use crate::migration::{self, Applied, Migration, MigrationSet};
use crate::{OpenError, StoreError, limits};

/// Before this version a crash while the log is reset can corrupt the file.
const VERSION_MIN: i32 = 3_051_003;

pub(super) const CHECK_QUICK: &str = "PRAGMA quick_check";
pub(super) const CHECK_WHOLE: &str = "PRAGMA integrity_check";

const BOOKKEEPING: &str = "
    CREATE TABLE IF NOT EXISTS schema_migration (
        component  TEXT    NOT NULL,
        version    INTEGER NOT NULL,
        name       TEXT    NOT NULL,
        checksum   TEXT    NOT NULL,
        applied_at INTEGER NOT NULL,
        PRIMARY KEY (component, version)
    ) STRICT, WITHOUT ROWID";

const APPLIED: &str = "
    SELECT version, checksum
      FROM schema_migration
     WHERE component = :component
     ORDER BY version";

const APPLY: &str = "
    INSERT INTO schema_migration (component, version, name, checksum, applied_at)
    VALUES (:component, :version, :name, :checksum, :applied_at)";

/// A log beside the file means that the last process did not close it.
pub(super) fn last_stop(path: &Path) -> LastStop {
    match std::fs::metadata(wal_path(path)) {
        Ok(wal) if wal.len() > 0 => LastStop::Unclean,
        Ok(_) | Err(_) => LastStop::Clean,
    }
}

/// The same options with the file's own name: SQLite follows links, and keeps the log where they
/// lead to.
pub(super) fn where_it_is(options: &SqliteOptions) -> SqliteOptions {
    let path = std::fs::canonicalize(&options.path).unwrap_or_else(|_| options.path.clone());
    SqliteOptions { path, ..options.clone() }
}

pub(super) fn wal_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

/// The writer's connection: the file is checked, migrated and durable when this returns.
pub(super) fn writer(options: &SqliteOptions) -> Result<Connection, OpenError> {
    let path = &options.path;
    let version = rusqlite::version_number();
    if version < VERSION_MIN {
        let found = rusqlite::version().to_owned();
        return Err(OpenError::Unfit { setting: "sqlite", found, needed: "3.51.3 or newer" });
    }
    let failed = |source| OpenError::Sqlite { path: path.clone(), source };
    let mut connection = connect(options).map_err(failed)?;
    own(&connection, options)?;
    connection.pragma_update(None, "cache_size", -limits::CACHE_KIB).map_err(failed)?;
    migrate(&mut connection, options)?;
    fsync_folder(path)?;
    Ok(connection)
}

/// A connection that can only read.
pub(super) fn reader(options: &SqliteOptions) -> rusqlite::Result<Connection> {
    let connection = connect(options)?;
    connection.pragma_update(None, "query_only", true)?;
    Ok(connection)
}

/// A connection for heavy work, or to hold writers back.
pub(super) fn maintenance(options: &SqliteOptions) -> rusqlite::Result<Connection> {
    connect(options)
}

fn connect(options: &SqliteOptions) -> rusqlite::Result<Connection> {
    let mut connection = Connection::open(&options.path)?;
    connection.busy_timeout(limits::BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(limits::STATEMENT_CACHE);
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, limits::VALUE_BYTES_MAX)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    // A statement is planned once: otherwise every bound value may cost a new plan, which halves
    // the rate of what is mostly joins by key.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    // The log is copied by its keeper alone, who knows what was copied.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    if let Some(instrument) = options.instrument {
        instrument(&mut connection)?;
    }
    Ok(connection)
}

/// Takes an empty file for ours, refuses a foreign one, and proves the durable settings.
fn own(connection: &Connection, options: &SqliteOptions) -> Result<(), OpenError> {
    let failed = |source| OpenError::Sqlite { path: options.path.clone(), source };
    let (found, expected) = (pragma::<i32>(connection, "application_id"), options.application_id);
    let found = found.map_err(failed)?;
    let empty = pragma::<i64>(connection, "schema_version").map_err(failed)? == 0;
    if found != expected && !(empty && found == 0) {
        return Err(OpenError::NotOurs { path: options.path.clone(), found, expected });
    }
    connection.pragma_update(None, "journal_mode", "WAL").map_err(failed)?;
    let mode: String = pragma(connection, "journal_mode").map_err(failed)?;
    if mode != "wal" {
        return Err(OpenError::Unfit { setting: "journal_mode", found: mode, needed: "wal" });
    }
    let synchronous: i64 = pragma(connection, "synchronous").map_err(failed)?;
    if synchronous != 2 {
        let found = synchronous.to_string();
        return Err(OpenError::Unfit { setting: "synchronous", found, needed: "2 (FULL)" });
    }
    if found != expected {
        connection.pragma_update(None, "application_id", expected).map_err(failed)?;
    }
    Ok(())
}

fn pragma<T: rusqlite::types::FromSql>(connection: &Connection, name: &str) -> rusqlite::Result<T> {
    connection.pragma_query_value(None, name, |row| row.get(0))
}

/// Looks at a file without changing it: whose it is, and which migrations it lacks.
pub(super) fn look(
    path: &Path,
    application_id: i32,
    sets: &[MigrationSet],
) -> Result<Vec<&'static str>, OpenError> {
    let failed = |source| OpenError::Sqlite { path: path.to_owned(), source };
    let connection = as_it_is(path).map_err(failed)?;
    let found = pragma::<i32>(&connection, "application_id").map_err(failed)?;
    if found != application_id {
        let path = path.to_owned();
        return Err(OpenError::NotOurs { path, found, expected: application_id });
    }
    let mut lacking = Vec::new();
    for set in sets {
        let applied = applied(&connection, set).map_err(failed)?;
        lacking.extend(migration::missing(set, &applied)?.iter().map(|migration| migration.name));
    }
    Ok(lacking)
}

/// A connection that leaves the file, and its log, as they are.
pub(super) fn as_it_is(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = match (wal_path(path).exists(), path.to_str()) {
        // Without a log nobody has it open, and even a reader would leave an empty one behind.
        (false, Some(name)) => {
            let name = name.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
            let flags = flags | OpenFlags::SQLITE_OPEN_URI;
            Connection::open_with_flags(format!("file:{name}?immutable=1"), flags)
        }
        (true, _) | (false, None) => Connection::open_with_flags(path, flags),
    };
    let connection = opened?;
    connection.busy_timeout(limits::BUSY_TIMEOUT)?;
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, limits::VALUE_BYTES_MAX)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    // The log of an unclean stop is a trace that the next process needs.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    Ok(connection)
}

/// Everything that is missing, in one transaction: the schema is the old one or the new one.
fn migrate(connection: &mut Connection, options: &SqliteOptions) -> Result<(), OpenError> {
    let failed = |source| OpenError::Sqlite { path: options.path.clone(), source };
    let behavior = rusqlite::TransactionBehavior::Immediate;
    let tx = connection.transaction_with_behavior(behavior).map_err(failed)?;
    let known = tx
        .query_row("SELECT 1 FROM sqlite_schema WHERE name = 'schema_migration'", [], |_| Ok(()))
        .optional()
        .map_err(failed)?;
    if known.is_none() {
        tx.execute_batch(BOOKKEEPING).map_err(failed)?;
    }
    for set in &options.migrations {
        let applied = applied(&tx, set).map_err(failed)?;
        for migration in migration::missing(set, &applied)? {
            apply(&tx, set, migration, options.now_ms).map_err(|source| OpenError::Migration {
                component: set.component,
                version: migration.version,
                source: Box::new(source.into()),
            })?;
        }
    }
    tx.commit().map_err(failed)
}

fn applied(tx: &Connection, set: &MigrationSet) -> rusqlite::Result<Vec<Applied>> {
    let mut statement = tx.prepare(APPLIED)?;
    let rows = statement.query_map([set.component], |row| {
        Ok(Applied { version: row.get(0)?, checksum: row.get(1)? })
    })?;
    rows.collect()
}

fn apply(
    tx: &Connection,
    set: &MigrationSet,
    migration: &Migration,
    now_ms: i64,
) -> rusqlite::Result<()> {
    tx.execute_batch(migration.sql)?;
    let (version, checksum) = (migration.version, migration.checksum());
    tx.execute(APPLY, (set.component, version, migration.name, checksum, now_ms))?;
    Ok(())
}

/// A new file is durable only when its folder's entry is.
pub(super) fn fsync_folder(path: &Path) -> Result<(), OpenError> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    };
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|source| OpenError::Io { path: folder.to_owned(), source })
}

/// The complaints of a check pragma; it answers one row `ok` when there are none.
pub(super) fn check(connection: &Connection, pragma: &str) -> Result<Vec<String>, StoreError> {
    let mut statement = connection.prepare(pragma)?;
    let rows = statement.query_map([], |row| row.get::<_, String>(0))?;
    let complaints = rows.filter(|row| !matches!(row, Ok(text) if text == "ok"));
    Ok(complaints.collect::<Result<_, _>>()?)
}

/// Makes a database that is missing, for its owner alone whatever the umask says: SQLite would make
/// it as readable as that allows. One that is there is not opened, for closing it would take the
/// locks of SQLite in this process away.
pub(super) fn make(path: &Path) -> Result<(), OpenError> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            Err(OpenError::Io { path: path.to_owned(), source })
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// What is no plain file is no database: SQLite would take `/dev/null` for an empty one.
pub(super) fn refuse_no_file(path: &Path) -> Result<(), OpenError> {
    match std::fs::metadata(path) {
        Ok(found) if !found.is_file() => {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "it is no plain file");
            Err(OpenError::Io { path: path.to_owned(), source })
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Takes away what others may do with a database that was made before, or copied.
pub(super) fn keep_private(path: &Path) {
    let Ok(found) = std::fs::metadata(path) else { return };
    let mode = found.permissions().mode() & 0o777;
    if mode & 0o077 == 0 {
        return;
    }
    let name = path.display().to_string();
    let was = format!("{mode:o}");
    match std::fs::set_permissions(path, Permissions::from_mode(mode & 0o700)) {
        Ok(()) => tracing::warn!(name, was, "others could open it, and no longer can"),
        Err(error) => tracing::warn!(name, was, %error, "others can open it"),
    }
}
