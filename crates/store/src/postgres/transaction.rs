//! One transaction, and what each kind of failure means.
//!
//! | when | what failed | fate |
//! |---|---|---|
//! | BEGIN with others | the server answered with an ERROR | tried again, then uncertain; closed |
//! | before COMMIT | anything | undone; a connection in doubt is dropped |
//! | COMMIT | the server answered with an ERROR | undone; rolled back before it is given back |
//! | COMMIT | no answer, a FATAL answer, a timeout | uncertain; the connection is dropped |
//!
//! Behind a BEGIN that is refused (a cancelled query is enough) every statement that was sent with
//! it is a transaction of its own. So BEGIN sets [`IN_TRANSACTION`] for the transaction, in one
//! message that is done as a whole or not at all, and whatever writes in that round trip asks for
//! it.
//!
//! The wait of a COMMIT for a synchronous standby has no `statement_timeout`: the server takes that
//! timer away before it commits. It is ours that ends it, and then it is uncertain.
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
use crate::limits::BEGIN_ROUNDS_MAX;

/// How a transaction begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Write,
    Snapshot,
}

/// What a statement that writes, and is sent before BEGIN was answered, has among its conditions.
const IN_TRANSACTION: &str = "current_setting('semel.tx', true) = 'on'";

/// BEGIN of a transaction whose statements do not wait for its answer.
const BEGIN_UNSEEN: &str =
    crate::planted!("begin", "BEGIN; SET LOCAL semel.tx = 'on'", "BEGIN; SET semel.tx = 'on'");

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

/// Why a transaction was not begun.
enum BeginError {
    /// The server said no to BEGIN, and perhaps yes to what came behind it.
    Refused {
        cause: Arc<str>,
    },
    Failed(StoreError),
}

impl From<StoreError> for BeginError {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
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

    /// Begins with these statements, in this order and in one round trip. None of them has done
    /// anything when BEGIN was refused, so that all of it can be tried again.
    pub(super) async fn begin_with(
        postgres: &Postgres,
        asked: &[Asked<'_>],
    ) -> Result<(Self, Vec<Vec<Row>>), StoreError> {
        debug_assert!(asked.iter().all(|(sql, _)| !writes_alone(sql)), "a statement writes alone");
        let mut refused: Arc<str> = "the server does not begin".into();
        for _ in 0..BEGIN_ROUNDS_MAX {
            match Self::begin_once(postgres, asked).await {
                Err(BeginError::Refused { cause }) => refused = cause,
                Err(BeginError::Failed(error)) => return Err(error),
                Ok(begun) => return Ok(begun),
            }
        }
        Err(StoreError::Uncertain { cause: refused })
    }

    async fn begin_once(
        postgres: &Postgres,
        asked: &[Asked<'_>],
    ) -> Result<(Self, Vec<Vec<Row>>), BeginError> {
        let mut transaction = Self::on_a_connection(postgres).await?;
        let statements = transaction.prepared(asked).await?;
        let client = transaction.client()?;
        let begin = transaction.tracked(client.batch_execute(BEGIN_UNSEEN));
        let asked = asked.iter().zip(&statements);
        let answers = asked.map(|((_, parameters), statement)| {
            transaction.tracked(client.query(statement, parameters))
        });
        // Polled in this order, so sent in this order.
        let (begun, answers) = tokio::join!(biased; begin, join_all(answers));
        match begun {
            Ok(()) => {}
            Err(error @ (StoreError::Postgres(_) | StoreError::Full)) => {
                if let Some(connection) = transaction.connection.take() {
                    close(connection);
                }
                return Err(BeginError::Refused { cause: error.chain().into() });
            }
            // What was lost with its connection did nothing that was not in the transaction.
            Err(error) => return Err(error.into()),
        }
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
        let limit = self.postgres.options.answer_timeout;
        let answer = tokio::time::timeout(limit, answer).await;
        settle(connection, answer.ok(), limit)
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
        let answered = tokio::time::timeout(limit, both).await.ok();
        settle_all(connection, answered, limit)
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
    let limit = postgres.options.answer_timeout;
    match tokio::time::timeout(limit, answer).await {
        Ok(Ok(rows)) => Ok(rows),
        // It has undone itself: there is no transaction around it that would have to be.
        Ok(Err(error)) if is_alone(&error) => Err(error.into()),
        Ok(Err(error)) => settle(connection, Some(Err(error)), limit).map(|()| Vec::new()),
        Err(_) => settle(connection, None, limit).map(|()| Vec::new()),
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
        let begin = connection.batch_execute(BEGIN_UNSEEN);
        let commit = connection.batch_execute("COMMIT");
        // Polled in this order, so sent in this order.
        tokio::join!(biased; begin, join_all(answers), commit)
    };
    let limit = postgres.options.answer_timeout;
    let Ok((begun, answers, commit)) = tokio::time::timeout(limit, all).await else {
        return settle_all(connection, None, limit);
    };
    if let Err(error) = begun {
        // Each of the others may have been committed, and by itself.
        close(connection);
        return Err(StoreError::Uncertain { cause: chain(&error).into() });
    }
    settle_all(connection, Some((answers, commit)), limit)
}

/// The answers to the last statements of a transaction, and that to its COMMIT.
type Last = (Vec<Result<Vec<Row>, Error>>, Result<(), Error>);

/// What they mean. A statement that failed has ended the transaction, and then COMMIT has done what
/// ROLLBACK does, unless it was refused as well.
fn settle_all(
    connection: Object,
    answered: Option<Last>,
    limit: Duration,
) -> Result<Vec<Vec<Row>>, StoreError> {
    let Some((answers, commit)) = answered else {
        return settle(connection, None, limit).map(|()| Vec::new());
    };
    match answers.into_iter().collect::<Result<Vec<_>, _>>() {
        Ok(rows) => settle(connection, Some(commit), limit).map(|()| rows),
        Err(error) if error.as_db_error().is_some_and(is_definite) => {
            if commit.is_err() {
                undo(connection, limit);
            }
            Err(error.into())
        }
        Err(error) => settle(connection, Some(Err(error)), limit).map(|()| Vec::new()),
    }
}

/// What the answer to a COMMIT means; no answer at all is a timeout. One that was refused may have
/// left the transaction open, as one that can only fail: whoever got such a connection next would
/// hear of it in our place.
fn settle(
    connection: Object,
    answer: Option<Result<(), Error>>,
    limit: Duration,
) -> Result<(), StoreError> {
    let cause = match answer {
        Some(Ok(())) => return Ok(()),
        Some(Err(error)) if error.as_db_error().is_some_and(is_definite) => {
            undo(connection, limit);
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
        match self.open.load(Ordering::SeqCst) {
            0 => undo(connection, self.postgres.options.answer_timeout),
            _ => close(connection),
        }
    }
}

/// Gives a connection back once its transaction is rolled back. Closing it undoes that as well; it
/// only costs a new one.
fn undo(connection: Object, limit: Duration) {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn(roll_back(connection, limit))),
        Err(_) => close(connection),
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

/// A definite error of a statement that is a transaction of its own; not of one that found itself
/// in somebody else's.
fn is_alone(error: &Error) -> bool {
    error.as_db_error().is_some_and(is_definite)
        && error.code() != Some(&SqlState::IN_FAILED_SQL_TRANSACTION)
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

/// Whether a statement would write although its transaction was not begun.
fn writes_alone(sql: &str) -> bool {
    let writes = ["INSERT INTO", "DELETE FROM", "UPDATE "].iter().any(|verb| {
        // FOR UPDATE is a lock.
        sql.match_indices(verb).any(|(at, _)| !sql[..at].ends_with("FOR "))
    });
    writes && !sql.contains(IN_TRANSACTION)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_writes_before_begin_was_answered_asks_for_the_transaction() {
        assert!(!writes_alone("SELECT no FROM job WHERE due FOR UPDATE SKIP LOCKED"));
        assert!(!writes_alone("SELECT pg_advisory_xact_lock($1)"));
        for sql in ["INSERT INTO t VALUES (1)", "UPDATE t SET x = 1", "DELETE FROM t"] {
            assert!(writes_alone(sql));
            assert!(!writes_alone(&format!("{sql} WHERE {IN_TRANSACTION}")));
        }
        assert!(writes_alone("SELECT 1 FROM t FOR UPDATE; UPDATE t SET x = 1"));
    }
}
