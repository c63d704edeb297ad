//! Where jobs are kept: one set of operations, two databases. One method is one transaction.
//! `sqlite/` and `postgres/` have the same files in the same order.
//!
//! Who may write what: whoever holds a job's fence writes its state as a whole ([`Advance`]); a
//! claim and a person's word raise the fence, so that whoever held it before can write no more.

pub mod postgres;
pub mod sqlite;

mod lines;
mod model;

use std::sync::Arc;

use semel_core::clock::UnixMs;
use semel_core::id::JobId;
use semel_registrar::store::Attempt as GrantUse;
use semel_store::StoreError;

pub use model::{
    Advance, Advanced, Answering, Begin, BreakerRow, Claim, Claimed, Claims, Ended, Execution, Job,
    JobNo, JobState, Kept, Ledger, LedgerEvent, LedgerLine, Line, List, Listed, NewJob, Pattern,
    Priority, Reach, Source, Started, Submitted, Wrote,
};
pub use postgres::PostgresStore;
pub use sqlite::SqliteStore;

use crate::breaker::{Admission, Run};
use crate::gear::FailureClass;

/// Either database.
#[derive(Clone)]
pub enum Store {
    /// One host.
    Sqlite(SqliteStore),
    /// Any number of hosts.
    Postgres(PostgresStore),
}

/// Calls the same method of whichever store it is. A future is as large as the largest of its
/// branches, and is moved as a whole: those of PostgreSQL are boxed, so that no job on SQLite
/// carries them about.
impl Store {
    /// Takes a job in, or finds the one that is there.
    pub async fn submit(&self, job: NewJob) -> Result<Submitted, StoreError> {
        match self {
            Self::Sqlite(store) => store.submit(job).await,
            Self::Postgres(store) => Box::pin(store.submit(job)).await,
        }
    }

    /// Takes a job in that repeats no other, together with its first move if nobody waits before
    /// it. Then its number is given. Nobody waits for whom the engine has room beside it: those
    /// are being claimed meanwhile.
    pub async fn submit_begun(
        &self,
        job: NewJob,
        first: Advance,
        room: usize,
    ) -> Result<(Submitted, Option<JobNo>), StoreError> {
        match self {
            Self::Sqlite(store) => store.submit_begun(job, first, room).await,
            Self::Postgres(store) => Box::pin(store.submit_begun(job, first, room)).await,
        }
    }

    /// Whether a job can be taken in together with its first move. A repeated one has begun things
    /// that only the store knows.
    pub fn begins_at_once(&self, job: &NewJob) -> bool {
        match self {
            Self::Sqlite(_) => job.retry_of.is_none(),
            // Who has a name may have to wait for others who know it.
            Self::Postgres(_) => !job.has_a_name(),
        }
    }

    /// Claims what is due, then what waits, and makes each one's first move.
    pub async fn claim(&self, claim: Claim, begin: Begin) -> Result<Claims, StoreError> {
        match self {
            Self::Sqlite(store) => store.claim(claim, begin).await,
            Self::Postgres(store) => {
                let limit = claim.limit as usize;
                let jobs = Box::pin(store.claim(claim, begin)).await?;
                // Others claim as well: what is left is not known.
                let left = if jobs.len() < limit { jobs.len() } else { limit.saturating_mul(2) };
                Ok(Claims { jobs, left })
            }
        }
    }

    /// Writes what a worker has done and does next, if it still holds the fence.
    pub async fn advance(&self, advance: impl Into<Arc<Advance>>) -> Result<Advanced, StoreError> {
        let advance = advance.into();
        match self {
            Self::Sqlite(store) => store.advance(advance).await,
            Self::Postgres(store) => Box::pin(store.advance(advance)).await,
        }
    }

    /// Makes the claims of a worker last longer; gives those that are no longer its own.
    pub async fn renew(
        &self,
        held: Vec<(JobNo, i64)>,
        lease_until: UnixMs,
    ) -> Result<Vec<JobNo>, StoreError> {
        match self {
            Self::Sqlite(store) => store.renew(held, lease_until).await,
            Self::Postgres(store) => Box::pin(store.renew(held, lease_until)).await,
        }
    }

    /// Whether there is anything to claim.
    pub async fn anything_due(&self, now: UnixMs) -> Result<bool, StoreError> {
        match self {
            Self::Sqlite(store) => store.anything_due(now).await,
            Self::Postgres(store) => Box::pin(store.anything_due(now)).await,
        }
    }

    /// A person's word: reads, decides, writes, raises the fence. With a grant, which is consumed
    /// in the same transaction or nothing is written.
    pub async fn person(
        &self,
        id: JobId,
        grant: Option<Box<GrantUse>>,
        decide: Answering,
    ) -> Result<Wrote, StoreError> {
        match self {
            Self::Sqlite(store) => store.person(id, grant, decide).await,
            Self::Postgres(store) => Box::pin(store.person(id, grant, decide)).await,
        }
    }

    /// A job with its executions.
    pub async fn job(&self, id: JobId) -> Result<Option<Kept>, StoreError> {
        match self {
            Self::Sqlite(store) => store.job(id).await,
            Self::Postgres(store) => Box::pin(store.job(id)).await,
        }
    }

    /// Jobs, the newest first.
    pub async fn list(&self, list: List) -> Result<Listed, StoreError> {
        match self {
            Self::Sqlite(store) => store.list(list).await,
            Self::Postgres(store) => Box::pin(store.list(list)).await,
        }
    }

    /// Lines of a job's ledger after one.
    pub async fn ledger(
        &self,
        id: JobId,
        after: i64,
        limit: u32,
    ) -> Result<Option<Ledger>, StoreError> {
        match self {
            Self::Sqlite(store) => store.ledger(id, after, limit).await,
            Self::Postgres(store) => Box::pin(store.ledger(id, after, limit)).await,
        }
    }

    /// What failed since then, by class and action.
    pub async fn patterns(&self, since: UnixMs) -> Result<Vec<Pattern>, StoreError> {
        match self {
            Self::Sqlite(store) => store.patterns(since).await,
            Self::Postgres(store) => Box::pin(store.patterns(since)).await,
        }
    }

    /// Ids of failed jobs of a class, the oldest first.
    pub async fn failed(
        &self,
        class: FailureClass,
        after: i64,
        limit: u32,
    ) -> Result<Vec<(i64, JobId)>, StoreError> {
        match self {
            Self::Sqlite(store) => store.failed(class, after, limit).await,
            Self::Postgres(store) => Box::pin(store.failed(class, after, limit)).await,
        }
    }

    /// Jobs whose question nobody has answered in time.
    pub async fn expired(&self, now: UnixMs, limit: u32) -> Result<Vec<JobId>, StoreError> {
        match self {
            Self::Sqlite(store) => store.expired(now, limit).await,
            Self::Postgres(store) => Box::pin(store.expired(now, limit)).await,
        }
    }

    /// Removes jobs that ended before then; gives how many, with the folders that they leave.
    pub async fn sweep(&self, before: UnixMs, limit: u32) -> Result<Vec<JobId>, StoreError> {
        match self {
            Self::Sqlite(store) => store.sweep(before, limit).await,
            Self::Postgres(store) => Box::pin(store.sweep(before, limit)).await,
        }
    }

    /// How many jobs wait and how many are under way.
    pub async fn depth(&self) -> Result<(u64, u64), StoreError> {
        match self {
            Self::Sqlite(store) => store.depth().await,
            Self::Postgres(store) => Box::pin(store.depth()).await,
        }
    }

    /// Asks a breaker for admission.
    pub async fn breaker_admit(
        &self,
        action: &str,
        now: UnixMs,
        probe_time: std::time::Duration,
    ) -> Result<Admission, StoreError> {
        match self {
            Self::Sqlite(store) => store.breaker_admit(action, now, probe_time).await,
            Self::Postgres(store) => Box::pin(store.breaker_admit(action, now, probe_time)).await,
        }
    }

    /// Tells a breaker of runs; when it closes, what waits for it may go on. Gives it as it is now.
    pub async fn breaker_note(
        &self,
        action: &str,
        runs: Vec<Run>,
        now: UnixMs,
    ) -> Result<BreakerRow, StoreError> {
        match self {
            Self::Sqlite(store) => store.breaker_note(action, runs, now).await,
            Self::Postgres(store) => Box::pin(store.breaker_note(action, runs, now)).await,
        }
    }

    /// Closes a breaker by hand; whether there was one.
    pub async fn breaker_close(&self, action: &str, now: UnixMs) -> Result<bool, StoreError> {
        match self {
            Self::Sqlite(store) => store.breaker_close(action, now).await,
            Self::Postgres(store) => Box::pin(store.breaker_close(action, now)).await,
        }
    }

    /// Every breaker that has something to say.
    pub async fn breakers(&self) -> Result<Vec<BreakerRow>, StoreError> {
        match self {
            Self::Sqlite(store) => store.breakers().await,
            Self::Postgres(store) => Box::pin(store.breakers()).await,
        }
    }
}

fn corrupt(table: &'static str, id: impl ToString, what: impl Into<String>) -> StoreError {
    StoreError::Corrupt { table, id: id.to_string(), what: what.into() }
}
