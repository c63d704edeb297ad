//! One transaction, and what each kind of failure means.
//!
//! | when | what failed | fate |
//! |---|---|---|
//! | before COMMIT | anything | undone; a connection in doubt is dropped |
//! | COMMIT | the server answered with an ERROR | undone |
//! | COMMIT | no answer, a FATAL answer, a timeout | uncertain; the connection is dropped |
//!
//! COMMIT of a transaction in which a statement had failed answers `ROLLBACK`, which the driver
//! does not tell apart. So a [`Transaction`] remembers every statement that failed or whose answer
//! nobody read, and is then rolled back instead of committed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use deadpool_postgres::Object;
use futures_util::future::join_all;
use tokio_postgres::error::{DbError, Severity, SqlState};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row, Statement};

use super::Postgres;
use crate::StoreError;
use crate::error::chain;

/// How a transaction begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Write,
    Snapshot,
}

impl Kind {
    const fn begin(self) -> &'static str {
        match self {
            Self::Write => "BEGIN",
            Self::Snapshot => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
        }
    }
}

/// An open transaction. Dropping it undoes it, also when its caller goes away in the middle.
///
/// Statements that are polled together (`tokio::try_join!`) are sent together and cost one round
/// trip.
pub struct Transaction {
    postgres: Postgres,
    /// `None` once the transaction has ended.
    connection: Option<Object>,
    /// A statement failed: COMMIT would answer ROLLBACK.
    failed: AtomicBool,
    /// Statements that were sent and not answered yet.
    open: AtomicUsize,
}

type Parameters<'p> = &'p [&'p (dyn ToSql + Sync)];

/// A statement and its parameters.
pub type Asked<'p> = (&'p str, Parameters<'p>);

impl Transaction {
    pub(super) async fn begin(postgres: &Postgres, kind: Kind) -> Result<Self, StoreError> {
        let transaction = Self::on_a_connection(postgres).await?;
        transaction.tracked(transaction.client()?.batch_execute(kind.begin())).await?;
        Ok(transaction)
    }

    /// Begins with these statements, in this order and in one round trip.
    pub(super) async fn begin_with(
        postgres: &Postgres,
        asked: &[Asked<'_>],
    ) -> Result<(Self, Vec<Vec<Row>>), StoreError> {
        let transaction = Self::on_a_connection(postgres).await?;
        let statements = transaction.prepared(asked).await?;
        let client = transaction.client()?;
        let begin = transaction.tracked(client.batch_execute(Kind::Write.begin()));
        let asked = asked.iter().zip(&statements);
        let answers = asked.map(|((_, parameters), statement)| {
            transaction.tracked(client.query(statement, parameters))
        });
        // Polled in this order, so sent in this order.
        let (begun, answers) = tokio::join!(biased; begin, join_all(answers));
        begun?;
        let rows = answers.into_iter().collect::<Result<_, _>>()?;
        Ok((transaction, rows))
    }

    /// A transaction that is not begun yet: whatever runs on it before BEGIN stands alone.
    async fn on_a_connection(postgres: &Postgres) -> Result<Self, StoreError> {
        let connection = postgres.pool.get().await.map_err(|error| unavailable(chain(&error)))?;
        Ok(Self {
            postgres: postgres.clone(),
            connection: Some(connection),
            failed: AtomicBool::new(false),
            open: AtomicUsize::new(0),
        })
    }

    /// Statements that are all prepared before the first of them is sent: one that still had to be
    /// prepared would be overtaken.
    async fn prepared(&self, asked: &[Asked<'_>]) -> Result<Vec<Statement>, StoreError> {
        let sent = u64::try_from(asked.len()).unwrap_or(u64::MAX);
        self.postgres.statements.fetch_add(sent, Ordering::Relaxed);
        let mut statements = Vec::with_capacity(asked.len());
        for (sql, _) in asked {
            statements.push(self.tracked(self.client()?.prepare_cached(sql)).await?);
        }
        Ok(statements)
    }

    /// Runs a statement, prepared once per connection, and gives its rows.
    pub async fn query(
        &self,
        sql: &str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        self.counted(async {
            let client = self.client()?;
            let statement = self.tracked(client.prepare_cached(sql)).await?;
            self.tracked(client.query(&statement, parameters)).await
        })
        .await
    }

    /// Runs a statement and gives its only row, if it has one.
    pub async fn query_opt(
        &self,
        sql: &str,
        parameters: Parameters<'_>,
    ) -> Result<Option<Row>, StoreError> {
        self.counted(async {
            let client = self.client()?;
            let statement = self.tracked(client.prepare_cached(sql)).await?;
            self.tracked(client.query_opt(&statement, parameters)).await
        })
        .await
    }

    /// Runs a statement and gives the number of rows it changed.
    pub async fn execute(&self, sql: &str, parameters: Parameters<'_>) -> Result<u64, StoreError> {
        self.counted(async {
            let client = self.client()?;
            let statement = self.tracked(client.prepare_cached(sql)).await?;
            self.tracked(client.execute(&statement, parameters)).await
        })
        .await
    }

    /// Runs several statements without parameters: migrations.
    pub(super) async fn batch(&self, sql: &str) -> Result<(), StoreError> {
        self.counted(async { self.tracked(self.client()?.batch_execute(sql)).await }).await
    }

    /// Makes everything durable, or says that it was undone, or that nobody can know.
    pub async fn commit(mut self) -> Result<(), StoreError> {
        let connection = self.take_for_commit()?;
        let answer = connection.batch_execute("COMMIT");
        let answer = tokio::time::timeout(self.postgres.options.answer_timeout, answer).await;
        settle(connection, answer.ok())
    }

    /// Runs one last statement and commits, in one round trip.
    pub async fn query_and_commit(
        self,
        sql: &str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        let rows = self.commit_with(&[(sql, parameters)]).await?;
        Ok(rows.into_iter().next().unwrap_or_default())
    }

    /// Runs the last statements, in this order, and commits, in one round trip: for locks that
    /// should be short. If one of them fails, the server answers the COMMIT with a rollback.
    pub async fn commit_with(mut self, asked: &[Asked<'_>]) -> Result<Vec<Vec<Row>>, StoreError> {
        let statements = self.prepared(asked).await?;
        let connection = self.take_for_commit()?;
        let both = async {
            let asked = asked.iter().zip(&statements);
            let answers =
                asked.map(|((_, parameters), statement)| connection.query(statement, parameters));
            // Polled in this order, so sent in this order.
            tokio::join!(biased; join_all(answers), connection.batch_execute("COMMIT"))
        };
        let limit = self.postgres.options.answer_timeout;
        let Ok((answers, commit)) = tokio::time::timeout(limit, both).await else {
            return settle(connection, None).map(|()| Vec::new());
        };
        match answers.into_iter().collect::<Result<Vec<_>, _>>() {
            Ok(rows) => settle(connection, Some(commit)).map(|()| rows),
            Err(error) if error.as_db_error().is_some_and(is_definite) => Err(error.into()),
            Err(error) => settle(connection, Some(Err(error))).map(|()| Vec::new()),
        }
    }

    /// From here on the connection is given back by name or closed by being dropped: nothing may
    /// roll back what may have been committed.
    fn take_for_commit(&mut self) -> Result<Object, StoreError> {
        if !self.is_sound() {
            let cause = "a statement that failed or was given up was overlooked".into();
            return Err(StoreError::RolledBack { cause });
        }
        self.connection.take().ok_or(StoreError::Stopped)
    }

    /// The settings that a server's promise rests on.
    pub(super) async fn durability(&self) -> Result<Vec<(&'static str, String)>, StoreError> {
        let mut settings = Vec::new();
        for setting in ["synchronous_commit", "fsync", "full_page_writes"] {
            let row = self.query_opt("SELECT current_setting($1)", &[&setting]).await?;
            let found = row.map(|row| row.try_get(0)).transpose()?;
            settings.push((setting, found.unwrap_or_default()));
        }
        Ok(settings)
    }

    fn client(&self) -> Result<&deadpool_postgres::ClientWrapper, StoreError> {
        self.connection.as_deref().ok_or(StoreError::Stopped)
    }

    /// Every statement that failed was seen, and none is still under way.
    fn is_sound(&self) -> bool {
        !self.failed.load(Ordering::SeqCst) && self.open.load(Ordering::SeqCst) == 0
    }

    async fn counted<T>(
        &self,
        statement: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.postgres.statements.fetch_add(1, Ordering::Relaxed);
        statement.await
    }

    /// A future dropped before its answer leaves `open` raised: nobody knows what it did.
    async fn tracked<T>(
        &self,
        statement: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, StoreError> {
        self.open.fetch_add(1, Ordering::SeqCst);
        let limit = self.postgres.options.answer_timeout;
        let Ok(answer) = tokio::time::timeout(limit, statement).await else {
            return Err(unavailable("a statement got no answer in time"));
        };
        self.open.fetch_sub(1, Ordering::SeqCst);
        answer.map_err(|error| {
            self.failed.store(true, Ordering::SeqCst);
            StoreError::from(error)
        })
    }
}

/// One statement that only reads, without a transaction around it: one round trip.
pub(super) async fn read(
    postgres: &Postgres,
    sql: &str,
    parameters: Parameters<'_>,
) -> Result<Vec<Row>, StoreError> {
    let mut alone = Transaction::on_a_connection(postgres).await?;
    let rows = alone.query(sql, parameters).await?;
    // There is nothing to undo.
    drop(alone.connection.take());
    Ok(rows)
}

/// One statement without BEGIN is a transaction: the server commits it before it says that it is
/// ready again, and the driver gives the rows after that.
pub(super) async fn write(
    postgres: &Postgres,
    sql: &str,
    parameters: Parameters<'_>,
) -> Result<Vec<Row>, StoreError> {
    let mut alone = Transaction::on_a_connection(postgres).await?;
    let client = alone.client()?;
    postgres.statements.fetch_add(1, Ordering::Relaxed);
    let statement = alone.tracked(client.prepare_cached(sql)).await?;
    let connection = alone.take_for_commit()?;
    let answer = connection.query(&statement, parameters);
    match tokio::time::timeout(postgres.options.answer_timeout, answer).await {
        Ok(Ok(rows)) => Ok(rows),
        Ok(Err(error)) => settle(connection, Some(Err(error))).map(|()| Vec::new()),
        Err(_) => settle(connection, None).map(|()| Vec::new()),
    }
}

/// A whole transaction in one round trip.
pub(super) async fn transact(
    postgres: &Postgres,
    asked: &[Asked<'_>],
) -> Result<Vec<Vec<Row>>, StoreError> {
    let mut alone = Transaction::on_a_connection(postgres).await?;
    let statements = alone.prepared(asked).await?;
    let connection = alone.take_for_commit()?;
    let all = async {
        let asked = asked.iter().zip(&statements);
        let answers =
            asked.map(|((_, parameters), statement)| connection.query(statement, parameters));
        let begin = connection.batch_execute(Kind::Write.begin());
        let commit = connection.batch_execute("COMMIT");
        // Polled in this order, so sent in this order.
        tokio::join!(biased; begin, join_all(answers), commit)
    };
    let limit = postgres.options.answer_timeout;
    let Ok((begun, answers, commit)) = tokio::time::timeout(limit, all).await else {
        return settle(connection, None).map(|()| Vec::new());
    };
    if let Err(error) = begun {
        // Each of the others may have been committed, and by itself.
        close(connection);
        return Err(StoreError::Uncertain { cause: chain(&error).into() });
    }
    match answers.into_iter().collect::<Result<Vec<_>, _>>() {
        Ok(rows) => settle(connection, Some(commit)).map(|()| rows),
        Err(error) if error.as_db_error().is_some_and(is_definite) => Err(error.into()),
        Err(error) => settle(connection, Some(Err(error))).map(|()| Vec::new()),
    }
}

/// What the answer to a COMMIT means; no answer at all is a timeout.
fn settle(connection: Object, answer: Option<Result<(), Error>>) -> Result<(), StoreError> {
    let cause = match answer {
        Some(Ok(())) => return Ok(()),
        Some(Err(error)) if error.as_db_error().is_some_and(is_definite) => {
            return Err(error.into());
        }
        Some(Err(error)) => chain(&error),
        None => "COMMIT got no answer in time".to_owned(),
    };
    close(connection);
    Err(StoreError::Uncertain { cause: cause.into() })
}

impl Drop for Transaction {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else {
            return;
        };
        let quiet = self.open.load(Ordering::SeqCst) == 0;
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) if quiet => {
                let limit = self.postgres.options.answer_timeout;
                drop(runtime.spawn(roll_back(connection, limit)));
            }
            // Closing the connection undoes it as well; it only costs a new one.
            Ok(_) | Err(_) => close(connection),
        }
    }
}

async fn roll_back(connection: Object, limit: Duration) {
    let answer = tokio::time::timeout(limit, connection.batch_execute("ROLLBACK")).await;
    if !matches!(answer, Ok(Ok(()))) {
        close(connection);
    }
}

/// Ends a connection instead of giving it back.
fn close(connection: Object) {
    let client: deadpool_postgres::ClientWrapper = Object::take(connection);
    drop(client);
}

fn unavailable(cause: impl Into<Arc<str>>) -> StoreError {
    StoreError::Unavailable { cause: cause.into() }
}

/// An ERROR ends the transaction and says so. A FATAL ends the connection, perhaps after the
/// commit: "the transaction has already committed locally" comes that way.
fn is_definite(error: &DbError) -> bool {
    error.parsed_severity() == Some(Severity::Error)
}

/// Serialization failures and deadlocks: the same transaction may simply run again.
pub(super) fn is_contention(error: &Error) -> bool {
    let state = error.code();
    state == Some(&SqlState::T_R_SERIALIZATION_FAILURE)
        || state == Some(&SqlState::T_R_DEADLOCK_DETECTED)
}

impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        match error.as_db_error() {
            Some(db) if *db.code() == SqlState::DISK_FULL => Self::Full,
            Some(db) if is_definite(db) => Self::Postgres(error),
            Some(_) => unavailable(chain(&error)),
            None if is_lost(&error) => unavailable(chain(&error)),
            // A value of another type than was expected, and the like.
            None => Self::Postgres(error),
        }
    }
}

/// The connection went away.
fn is_lost(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    error.is_closed() || source.is_some_and(|source| source.is::<std::io::Error>())
}
