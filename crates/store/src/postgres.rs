//! PostgreSQL: a pool, transactions whose COMMIT is honest, and migrations under a lock.
//!
//! Serialization failures and deadlocks undo a transaction without a trace: [`Postgres::retry`]
//! runs it again. What can *not* be run again by this layer is a COMMIT that got no answer: the
//! caller hears [`StoreError::Uncertain`] and decides by its key.

mod encrypted;
mod lane;
mod listener;
mod migrate;
mod password;
mod reach;
mod transaction;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use deadpool_postgres::{
    Manager, ManagerConfig, Pool, PoolError, QueueMode, RecyclingMethod, Runtime,
};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::error::chain;
use crate::migration::MigrationSet;
use crate::{OpenError, StoreError, limits};
pub use lane::{Lane, Work};
pub use listener::{Heard, Listener, Notifier};
pub use password::Passwords;
use reach::Reach;
pub use transaction::{Asked, Transaction};
use transaction::{Kind, is_contention};

/// How a server is used.
#[derive(Clone)]
pub struct PostgresOptions {
    /// `postgres://user@host:port/database?sslmode=…` (decision 052).
    pub address: String,
    /// Where the password is if it is not in the address.
    pub passwords: Passwords,
    /// Connections.
    pub pool_max: usize,
    /// One statement, one lock, one pause inside a transaction.
    pub statement_timeout: Duration,
    /// The wait for any answer.
    pub answer_timeout: Duration,
}

impl PostgresOptions {
    /// The limits of [`limits`].
    pub fn new(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            passwords: Passwords::default(),
            pool_max: limits::POOL_MAX,
            statement_timeout: limits::STATEMENT_TIMEOUT,
            answer_timeout: limits::ANSWER_TIMEOUT,
        }
    }

    /// What its connections are made with.
    fn reach(&self) -> Result<Reach, OpenError> {
        let (statement, answer) = (self.statement_timeout, self.answer_timeout);
        Reach::of(&self.address, &self.passwords, statement, answer)
    }
}

/// A pool of connections to one database.
#[derive(Clone)]
pub struct Postgres {
    pool: Pool,
    options: Arc<PostgresOptions>,
    reach: Arc<Reach>,
    statements: Arc<AtomicU64>,
}

impl Postgres {
    /// Connects, proves that the server keeps what it acknowledges, and migrates.
    pub async fn open(
        options: PostgresOptions,
        migrations: &[MigrationSet],
        now_ms: i64,
    ) -> Result<Self, OpenError> {
        let reach = options.reach()?;
        // A connection that was ever in doubt is discarded, so the rest need no test query.
        let recycling_method = RecyclingMethod::Fast;
        let (config, encryption) = (reach.config.clone(), reach.encryption.clone());
        let recycled = ManagerConfig { recycling_method };
        let manager = Manager::from_config(config, encryption, recycled);
        let pool = Pool::builder(manager)
            .max_size(options.pool_max)
            // The connection used last has its statements prepared.
            .queue_mode(QueueMode::Lifo)
            .wait_timeout(Some(limits::CONNECT_TIMEOUT))
            .create_timeout(Some(limits::CONNECT_TIMEOUT))
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| refused(&error))?;
        let statements = Arc::default();
        let postgres =
            Self { pool, options: Arc::new(options), reach: Arc::new(reach), statements };
        postgres.assert_reachable().await?;
        postgres.assert_durable().await?;
        migrate::run(&postgres, migrations, now_ms).await?;
        Ok(postgres)
    }

    /// Whether this part has tables in the database; none are made.
    pub async fn has(options: PostgresOptions, part: &MigrationSet) -> Result<bool, OpenError> {
        let postgres = Self::open(options, &[], 0).await?;
        let found = migrate::is_applied(&postgres, part.component).await;
        postgres.close();
        found.map_err(|error| OpenError::of_server(&error))
    }

    /// Begins a transaction. Dropping it undoes it.
    pub async fn begin(&self) -> Result<Transaction, StoreError> {
        Transaction::begin(self, Kind::Write).await
    }

    /// Begins a transaction with these statements, which run in this order, and gives their rows:
    /// one round trip.
    ///
    /// Everything is sent before anything is answered. Should the server refuse to begin, each
    /// statement stands alone: one that writes has to have `current_setting('semel.tx', true) =
    /// 'on'` among its conditions, which is so inside such a transaction only.
    pub async fn begin_with(
        &self,
        asked: &[Asked<'_>],
    ) -> Result<(Transaction, Vec<Vec<Row>>), StoreError> {
        Transaction::begin_with(self, asked).await
    }

    /// Runs one statement that only reads: one round trip.
    pub async fn read(
        &self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        transaction::read(self, sql, parameters).await
    }

    /// Runs one statement that writes and is a transaction of its own: one round trip. What its
    /// failure means is what that of a COMMIT means.
    pub async fn write(
        &self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        transaction::write(self, sql, parameters).await
    }

    /// Runs these statements, in this order, as one transaction: one round trip. What its failure
    /// means is what that of a COMMIT means.
    ///
    /// As with [`Postgres::begin_with`], one that must not stand alone has to look for `semel.tx`,
    /// or for what an earlier one has set for the transaction.
    pub async fn transact(&self, asked: &[Asked<'_>]) -> Result<Vec<Vec<Row>>, StoreError> {
        transaction::transact(self, asked).await
    }

    /// Commits a row's lock: what only reads is answered also by a server that takes no commit, as
    /// a standby is, or one whose database was made read-only.
    pub async fn probe(&self) -> Result<(), StoreError> {
        self.write(migrate::PROBE, &[]).await.map(drop)
    }

    /// Begins a read-only transaction in which everything is of one moment.
    pub async fn snapshot(&self) -> Result<Transaction, StoreError> {
        Transaction::begin(self, Kind::Snapshot).await
    }

    /// Runs `transaction` (begin, statements, commit) again for as long as concurrent transactions
    /// undo it, within a limit. It must not keep anything between its runs.
    pub async fn retry<T, F, Running>(&self, transaction: F) -> Result<T, StoreError>
    where
        F: Fn() -> Running,
        Running: Future<Output = Result<T, StoreError>>,
    {
        for run in 1..=limits::TRANSACTION_RUNS_MAX {
            match transaction().await {
                Err(StoreError::Postgres(error)) if is_contention(&error) => {
                    tracing::debug!(run, "a transaction was undone by a concurrent one");
                    tokio::time::sleep(Duration::from_millis(1 << run)).await;
                }
                other => return other,
            }
        }
        Err(StoreError::Contended { runs: limits::TRANSACTION_RUNS_MAX })
    }

    /// Statements sent since the start, without BEGIN and COMMIT.
    pub fn statements_sent(&self) -> u64 {
        self.statements.load(Ordering::Relaxed)
    }

    /// Closes every connection that is not in use; the others close when they are given back.
    pub fn close(&self) {
        self.pool.close();
    }

    /// Nobody there is told from somebody who refuses.
    async fn assert_reachable(&self) -> Result<(), OpenError> {
        match self.pool.get().await {
            Ok(_) => Ok(()),
            Err(PoolError::Backend(error)) => Err(OpenError::of_connection(&error)),
            Err(PoolError::Timeout(_)) => {
                Err(OpenError::Unreachable("it does not answer in time".into()))
            }
            Err(error) => Err(refused(&error)),
        }
    }

    /// A server that may forget what it acknowledged is refused.
    async fn assert_durable(&self) -> Result<(), OpenError> {
        let settings = async { self.snapshot().await?.durability().await };
        let settings = settings.await;
        let settings = settings.map_err(|error| OpenError::of_server(&error))?;
        for (setting, found) in settings {
            let fit = match setting {
                "synchronous_commit" => found == "on" || found == "remote_apply",
                _ => found == "on",
            };
            if !fit {
                return Err(OpenError::Unfit { setting, found, needed: "on" });
            }
        }
        Ok(())
    }
}

fn refused(error: &dyn std::error::Error) -> OpenError {
    OpenError::Postgres(chain(error).into())
}
