//! The broker's tables in SQLite: one file, one writer, every method one closure.

mod accept;
mod audit;
mod check;
mod dedupe;
mod deletion;
mod delivery;
mod history;
mod invite;
mod member;
mod mesh;
mod policy;
mod presence;
mod queue;
mod request;
mod restore;
mod rows;
mod session;
mod sweep;
mod topic;

use std::path::Path;
use std::sync::Arc;

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ValueRef};
use rusqlite::{Connection, OptionalExtension};
use semel_core::clock::{Steady, UnixMs};
use semel_core::id::UuidId;
use semel_store::migration::{Migration, MigrationSet};
use semel_store::sqlite::{OnUncertain, Sqlite, SqliteOptions};
use semel_store::{OpenError, StoreError, statements};
use uuid::Uuid;

use super::Pulse;
pub use rows::ROWS;

/// "SMLB" in the file's header.
pub const APPLICATION_ID: i32 = 0x534d_4c42;

/// The schema.
pub const MIGRATIONS: MigrationSet = MigrationSet {
    component: "broker",
    migrations: &[Migration {
        version: 1,
        name: "mesh",
        sql: include_str!("../../migrations/sqlite/0001_mesh.sql"),
    }],
};

statements! {
    STORE_EPOCH = "
        SELECT store_epoch
          FROM store
         WHERE one = 1";

    STORE_BORN = "
        INSERT INTO store (one, store_epoch)
        VALUES (1, :store_epoch)
            ON CONFLICT DO NOTHING";

    PROBE = "
        UPDATE store
           SET next_session_epoch = next_session_epoch + 1
         WHERE one = 1";
}

/// A broker's SQLite file.
pub struct SqliteStore {
    sqlite: Arc<Sqlite>,
    /// For leases and heartbeats, which this process alone gives and compares.
    steady: Steady,
}

/// When a heartbeat is given, and since when one counts.
#[derive(Debug, Clone, Copy)]
struct Beating {
    now: UnixMs,
    live_from: UnixMs,
}

impl SqliteStore {
    /// Opens and migrates the file; a new one gets `store_epoch`.
    pub async fn open(
        path: &Path,
        store_epoch: String,
        now: UnixMs,
        on_uncertain: OnUncertain,
    ) -> Result<Self, OpenError> {
        let migrations = vec![MIGRATIONS];
        let options = SqliteOptions::new(path, APPLICATION_ID, migrations, now.0, on_uncertain);
        Self::open_with(&options, store_epoch).await
    }

    /// The same, with all that can be said of how it is opened: others may keep their tables in it.
    pub async fn open_with(
        options: &SqliteOptions,
        store_epoch: String,
    ) -> Result<Self, OpenError> {
        let sqlite = Arc::new(Sqlite::open(options)?);
        let born = sqlite.write(move |tx| Ok(tx.execute(STORE_BORN, [&store_epoch])?)).await;
        born.map_err(|source| OpenError::Migration {
            component: "broker",
            version: 1,
            source: Box::new(source),
        })?;
        Ok(Self { sqlite, steady: Steady::default() })
    }

    /// Over a file that somebody has opened, and migrated, for a look.
    pub fn over(sqlite: Arc<Sqlite>) -> Self {
        Self { sqlite, steady: Steady::default() }
    }

    fn beating(&self, pulse: Pulse) -> Beating {
        let now = self.steady.now(pulse.at);
        Beating { now, live_from: now.saturating_sub(pulse.ghost_after) }
    }

    pub(super) async fn store_epoch(&self) -> Result<String, StoreError> {
        self.sqlite.read(store_epoch_in_tx).await
    }

    /// Commits something. The same value again would write nothing, and nobody misses a number of
    /// this series.
    pub(super) async fn probe(&self) -> Result<(), StoreError> {
        self.sqlite.write(|tx| Ok(tx.prepare_cached(PROBE)?.execute([]).map(drop)?)).await
    }

    /// The file, for those who keep their tables in it, too: its one writer is theirs as well.
    pub fn sqlite(&self) -> Arc<Sqlite> {
        Arc::clone(&self.sqlite)
    }

    /// Commits what was handed in and closes the file in order, for all who use it.
    pub async fn close(&self) {
        self.sqlite.close().await;
    }
}

/// Which life of the store this is.
fn store_epoch_in_tx(tx: &Connection) -> Result<String, StoreError> {
    Ok(tx.prepare_cached(STORE_EPOCH)?.query_row([], |row| row.get(0))?)
}

/// An id as a column holds it: sixteen bytes.
fn key<Kind>(id: UuidId<Kind>) -> [u8; 16] {
    id.as_uuid().into_bytes()
}

/// Reads a column of sixteen bytes.
struct Key(Uuid);

impl Key {
    fn id<Kind>(self) -> UuidId<Kind> {
        UuidId::new(self.0)
    }
}

impl FromSql for Key {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let bytes = value.as_blob()?;
        let size = FromSqlError::InvalidBlobSize { expected_size: 16, blob_size: bytes.len() };
        Uuid::from_slice(bytes).map(Self).map_err(|_| size)
    }
}

/// Whether a query has a row.
fn exists(tx: &Connection, sql: &str, by: impl rusqlite::Params) -> Result<bool, StoreError> {
    Ok(tx.prepare_cached(sql)?.query_row(by, |_| Ok(())).optional()?.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use semel_testkit::sql;

    #[test]
    fn every_statement_prepares_and_none_scans_a_table() {
        let connection = sql::migrated(MIGRATIONS.migrations);
        // The check walks whole tables by design, and shows its pages as scans.
        sql::prepares(&connection, check::ALL);
        sql::prepares(&connection, rows::ALL);
        #[rustfmt::skip]
        let files = [
            ALL, accept::ALL, audit::ALL, dedupe::ALL, deletion::ALL, delivery::ALL, history::ALL,
            invite::ALL, member::ALL, mesh::ALL, policy::ALL, presence::ALL, queue::ALL,
            request::ALL, session::ALL, sweep::ALL, topic::ALL,
        ];
        for statements in files {
            sql::prepares(&connection, statements);
            let plans = sql::plans(&connection, statements);
            assert!(!plans.contains("SCAN "), "{plans}");
        }
    }

    #[test]
    fn a_take_does_not_read_what_is_leased() {
        let connection = sql::migrated(MIGRATIONS.migrations);
        let plans = sql::plans(&connection, queue::ALL);
        let index = "USING COVERING INDEX delivery_queue_lease \
                     (recipient=? AND lease_until";
        assert_eq!(plans.matches(index).count(), 2, "{plans}");
        let whole_key = "USING PRIMARY KEY (recipient=? AND seq=?)";
        assert_eq!(plans.matches(whole_key).count(), 3, "{plans}");
    }
}
