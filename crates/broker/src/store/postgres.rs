//! The broker's tables in PostgreSQL: any number of brokers share one database. The files are
//! those of `sqlite/`; what differs beyond the dialect is said where it does.

mod accept;
mod audit;
mod check;
mod dedupe;
mod deletion;
mod delivery;
#[cfg(test)]
mod explain_tests;
mod history;
mod invite;
mod member;
mod mesh;
mod policy;
mod presence;
mod queue;
mod request;
mod session;
mod sweep;
mod topic;

use std::sync::Arc;

use semel_core::clock::UnixMs;
use semel_store::migration::{Migration, MigrationSet};
use semel_store::postgres::{Listener, Notifier, Postgres, PostgresOptions};
use semel_store::{OpenError, StoreError, statements};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::limits::DELIVERERS_MAX;

/// The schema.
const MIGRATIONS: MigrationSet = MigrationSet {
    component: "broker",
    migrations: &[Migration {
        version: 1,
        name: "mesh",
        sql: include_str!("../../migrations/postgres/0001_mesh.sql"),
    }],
};

/// Where brokers that share a database tell each other of commits.
const HINTS_CHANNEL: &str = "semel_hints";

statements! {
    STORE_EPOCH = "
        SELECT store_epoch
          FROM mesh.store
         WHERE one = 1";

    NOW = "
        SELECT mesh.now_ms()";

    HINT = "
        SELECT pg_notify($1, $2)";

    STORE_BORN = "
        INSERT INTO mesh.store (one, store_epoch)
        VALUES (1, $1)
            ON CONFLICT DO NOTHING";
}

/// A broker's PostgreSQL database.
#[derive(Clone)]
pub struct PostgresStore {
    postgres: Postgres,
    /// Connections of the pool that reading and ending deliveries may take: a commit wakes all of
    /// its recipients at once, and who accepts must find one.
    deliverers: Arc<Semaphore>,
}

impl PostgresStore {
    /// Connects and migrates; a new database gets `store_epoch`.
    pub async fn open(
        options: PostgresOptions,
        store_epoch: &str,
        now: UnixMs,
    ) -> Result<Self, OpenError> {
        Self::open_beside(options, store_epoch, now, &[]).await
    }

    /// The same for a database in which others keep their tables, too.
    pub async fn open_beside(
        options: PostgresOptions,
        store_epoch: &str,
        now: UnixMs,
        others: &[MigrationSet],
    ) -> Result<Self, OpenError> {
        let migrations = [&[MIGRATIONS], others].concat();
        let postgres = Postgres::open(options, &migrations, now.0).await?;
        let store = Self { postgres, deliverers: Arc::new(Semaphore::new(DELIVERERS_MAX)) };
        let born = store.execute(STORE_BORN, &[&store_epoch]).await;
        born.map_err(|error| OpenError::of_server(&error))?;
        Ok(store)
    }

    /// Whether a broker has its tables in the database; none are made.
    pub async fn is_in(options: PostgresOptions) -> Result<bool, OpenError> {
        Postgres::has(options, &MIGRATIONS).await
    }

    /// The pool, for those who keep their tables in the database, too.
    pub fn postgres(&self) -> Postgres {
        self.postgres.clone()
    }

    /// Waits for a turn with deliveries, which ends with what is given; nobody closes it.
    pub(super) async fn delivering(&self) -> Option<SemaphorePermit<'_>> {
        self.deliverers.acquire().await.ok()
    }

    /// Statements sent since the start.
    pub fn statements_sent(&self) -> u64 {
        self.postgres.statements_sent()
    }

    /// The brokers' hints to each other.
    pub(crate) fn hints(&self) -> Result<(Notifier, Listener), OpenError> {
        self.postgres.listen(HINTS_CHANNEL)
    }

    /// One hint, from a process that hears none.
    pub(crate) async fn hint(&self, payload: &str) -> Result<(), StoreError> {
        self.execute(HINT, &[&HINTS_CHANNEL, &payload]).await.map(drop)
    }

    pub(super) async fn store_epoch(&self) -> Result<String, StoreError> {
        let tx = self.postgres.snapshot().await?;
        let row = tx.query_opt(STORE_EPOCH, &[]).await?;
        Ok(row.ok_or_else(no_epoch)?.try_get(0)?)
    }

    pub(super) async fn now(&self) -> Result<UnixMs, StoreError> {
        let rows = self.postgres.read(NOW, &[]).await?;
        Ok(UnixMs(rows.first().ok_or_else(no_epoch)?.try_get(0)?))
    }

    /// One statement in a transaction of its own.
    async fn execute(&self, sql: &str, by: Parameters<'_>) -> Result<u64, StoreError> {
        let run = async || {
            let tx = self.postgres.begin().await?;
            let rows = tx.execute(sql, by).await?;
            tx.commit().await.map(|()| rows)
        };
        self.postgres.retry(run).await
    }
}

fn no_epoch() -> StoreError {
    StoreError::Corrupt {
        table: "store",
        id: "1".to_owned(),
        what: "the store has no epoch".to_owned(),
    }
}

type Parameters<'p> = &'p [&'p (dyn tokio_postgres::types::ToSql + Sync)];
