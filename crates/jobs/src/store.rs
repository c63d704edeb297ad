//! Where jobs are kept: one set of operations, two databases. One method is one transaction.
//! `sqlite/` and `postgres/` have the same files in the same order.
//!
//! Who may write what: whoever holds a job's fence writes its state as a whole ([`Advance`]); a
//! claim and a person's word raise the fence, so that whoever held it before can write no more.

pub mod postgres;
pub mod sqlite;

mod asked;
mod lines;
mod model;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use semel_core::clock::UnixMs;
use semel_core::id::JobId;
use semel_registrar::store::Attempt as GrantUse;
use semel_store::{StoreError, either};

pub use asked::{Age, List, Listed, Pattern};
pub use model::{
    Advance, Advanced, Answering, Begin, BreakerRow, Claim, Claimed, Claims, Ended, Execution, Job,
    JobNo, JobState, Kept, Ledger, LedgerEvent, LedgerLine, Line, NewJob, Priority, Reach, Source,
    Started, Submitted, Wrote,
};
pub use postgres::PostgresStore;
pub use sqlite::{Calendar, SqliteStore};

use crate::breaker::{Admission, Run};
use crate::gear::FailureClass;
use crate::life::JobStatus;

/// The home of an engine that shares its store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Home {
    /// Its name.
    pub id: String,
    /// How long a home lives on after it was seen.
    pub lives_for: Duration,
}

/// A home with an engine of its own, over the same store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbour {
    /// Which home.
    pub home: String,
    /// What its engine can run: `gear.action`.
    pub actions: HashSet<String>,
}

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
    /// Closes a file in order, for all who use it; a server has nothing to close.
    pub async fn close(&self) {
        match self {
            Self::Sqlite(store) => store.close().await,
            Self::Postgres(_) => {}
        }
    }

    /// Takes a job in, or finds the one that is there.
    pub async fn submit(&self, job: NewJob) -> Result<Submitted, StoreError> {
        either!(boxed self.submit(job))
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
        either!(boxed self.submit_begun(job, first, room))
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
        either!(boxed self.advance(advance))
    }

    /// Writes a move that may have been written before: looks whether it was.
    pub async fn advance_again(&self, advance: Arc<Advance>) -> Result<Advanced, StoreError> {
        match self {
            // Nothing of this file is known after an uncertain commit: the process has ended.
            Self::Sqlite(store) => store.advance(advance).await,
            Self::Postgres(store) => Box::pin(store.advance_again(advance)).await,
        }
    }

    /// Makes the claims of a worker last so long from now; gives those that are no longer its own.
    pub async fn renew(
        &self,
        held: Vec<(JobNo, i64)>,
        lease: Duration,
        now: UnixMs,
    ) -> Result<Vec<JobNo>, StoreError> {
        match self {
            Self::Sqlite(store) => store.renew(held, now.saturating_add(lease)).await,
            Self::Postgres(store) => Box::pin(store.renew(held, lease)).await,
        }
    }

    /// When there is something to claim, for an engine of this home that has these already:
    /// nothing to wait for if there is now, nothing at all if none waits for its time.
    pub async fn next_due(
        &self,
        now: UnixMs,
        held: Vec<JobNo>,
        home: Option<Home>,
    ) -> Result<Option<Duration>, StoreError> {
        let due_in_ms = match self {
            Self::Sqlite(store) => store.next_due(now, held).await,
            Self::Postgres(store) => Box::pin(store.next_due(held, home)).await,
        };
        let after = |ms: i64| Duration::from_millis(ms.max(0).cast_unsigned());
        Ok(due_in_ms?.map(after))
    }

    /// The engine of this home lives and can run these actions. Gives the other homes that are
    /// remembered, and the time by which jobs are judged if that is not this machine's.
    pub async fn live(
        &self,
        home: &str,
        actions: &[String],
    ) -> Result<(Vec<Neighbour>, Option<UnixMs>), StoreError> {
        match self {
            Self::Sqlite(_) => Ok((Vec::new(), None)),
            Self::Postgres(store) => {
                let (others, now) = Box::pin(store.live(home, actions)).await?;
                Ok((others, Some(now)))
            }
        }
    }

    /// How long ago an engine of any home was heard of, if it was within this time.
    pub async fn heard_of(&self, within: Duration) -> Result<Option<Duration>, StoreError> {
        match self {
            // Who has the file open is seen by its lock.
            Self::Sqlite(_) => Ok(None),
            Self::Postgres(store) => Box::pin(store.heard_of(within)).await,
        }
    }

    /// What is known of the clock by which the engine of this host goes.
    pub async fn note_calendar(&self, note: Calendar) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(store) => store.note_calendar(note).await,
            // Nothing there is written by this host's calendar.
            Self::Postgres(_) => Ok(()),
        }
    }

    /// The time by which leases, pauses and deadlines are judged, where engines share a store.
    pub async fn time(&self) -> Result<Option<UnixMs>, StoreError> {
        match self {
            Self::Sqlite(_) => Ok(None),
            Self::Postgres(store) => Box::pin(store.time()).await.map(Some),
        }
    }

    /// When its newest job was made, where it has no clock of its own.
    pub async fn newest(&self) -> Result<Option<UnixMs>, StoreError> {
        match self {
            Self::Sqlite(store) => store.newest().await,
            Self::Postgres(_) => Ok(None),
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
        either!(boxed self.person(id, grant, decide))
    }

    /// A job with its executions.
    pub async fn job(&self, id: JobId) -> Result<Option<Kept>, StoreError> {
        either!(boxed self.job(id))
    }

    /// Jobs, the newest first.
    pub async fn list(&self, list: List) -> Result<Listed, StoreError> {
        either!(boxed self.list(list))
    }

    /// Lines of a job's ledger after one.
    pub async fn ledger(
        &self,
        id: JobId,
        after: i64,
        limit: u32,
    ) -> Result<Option<Ledger>, StoreError> {
        either!(boxed self.ledger(id, after, limit))
    }

    /// What failed since then, by class and action.
    pub async fn patterns(&self, since: UnixMs) -> Result<Vec<Pattern>, StoreError> {
        either!(boxed self.patterns(since))
    }

    /// The newest job that repeats this one, or one that repeats it.
    pub async fn newest_repeat(
        &self,
        root_id: JobId,
    ) -> Result<Option<(JobId, JobStatus)>, StoreError> {
        either!(boxed self.newest_repeat(root_id))
    }

    /// Jobs under way that a gear of a cancelled job has asked for.
    pub async fn orphans(&self, limit: u32) -> Result<Vec<JobId>, StoreError> {
        either!(boxed self.orphans(limit))
    }

    /// Ids of failed jobs of a class, the oldest first.
    pub async fn failed(
        &self,
        class: FailureClass,
        after: i64,
        limit: u32,
    ) -> Result<Vec<(i64, JobId)>, StoreError> {
        either!(boxed self.failed(class, after, limit))
    }

    /// Jobs whose question nobody has answered in time.
    pub async fn expired(&self, now: UnixMs, limit: u32) -> Result<Vec<JobId>, StoreError> {
        either!(boxed self.expired(now, limit))
    }

    /// Removes jobs of that age; gives how many, with the folders that they leave.
    pub async fn sweep(&self, age: Age, limit: u32) -> Result<Vec<JobId>, StoreError> {
        match self {
            Self::Sqlite(store) => store.sweep(age, limit).await,
            Self::Postgres(store) => Box::pin(store.sweep(age.before, limit)).await,
        }
    }

    /// A backup was restored: what has failed by then may have been repeated since.
    pub async fn note_restored(&self) -> Result<(), StoreError> {
        either!(boxed self.note_restored())
    }

    /// Whether a job is from before a backup that was restored.
    pub async fn is_restored(&self, no: JobNo) -> Result<bool, StoreError> {
        either!(boxed self.is_restored(no))
    }

    /// Whether the store takes a commit.
    pub async fn probe(&self) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(store) => store.probe().await,
            Self::Postgres(store) => Box::pin(store.probe()).await,
        }
    }

    /// Which of these jobs there are.
    pub async fn known(&self, ids: Vec<JobId>) -> Result<Vec<JobId>, StoreError> {
        either!(boxed self.known(ids))
    }

    /// How many jobs wait and how many are under way.
    pub async fn depth(&self) -> Result<(u64, u64), StoreError> {
        either!(boxed self.depth())
    }

    /// Asks a breaker for admission.
    pub async fn breaker_admit(
        &self,
        action: &str,
        now: UnixMs,
        probe_time: Duration,
    ) -> Result<Admission, StoreError> {
        either!(boxed self.breaker_admit(action, now, probe_time))
    }

    /// Tells a breaker of runs, of which the last may be its probe; when it closes, what waits for
    /// it may go on. Gives it as it is now.
    pub async fn breaker_note(
        &self,
        action: &str,
        runs: Vec<Run>,
        probe: Option<i64>,
        now: UnixMs,
    ) -> Result<BreakerRow, StoreError> {
        either!(boxed self.breaker_note(action, runs, probe, now))
    }

    /// Forgets breakers that nobody has asked or told anything since then.
    pub async fn breakers_forget(&self, before: UnixMs) -> Result<u64, StoreError> {
        either!(boxed self.breakers_forget(before))
    }

    /// Closes a breaker by hand; whether there was one.
    pub async fn breaker_close(&self, action: &str, now: UnixMs) -> Result<bool, StoreError> {
        either!(boxed self.breaker_close(action, now))
    }

    /// Every breaker that has something to say.
    pub async fn breakers(&self) -> Result<Vec<BreakerRow>, StoreError> {
        either!(boxed self.breakers())
    }
}

/// What a list shows of a row: one that makes no sense is told, and passed over, so that it takes
/// no other with it.
fn readable(no: JobNo, read: Result<Job, StoreError>) -> Result<Option<Job>, StoreError> {
    match read {
        Ok(job) => Ok(Some(job)),
        Err(error) if error.is_of_one_row() => {
            tracing::error!(no = no.0, error = error.chain(), "a damaged job is not listed");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

pub(crate) fn corrupt(
    table: &'static str,
    id: impl ToString,
    what: impl Into<String>,
) -> StoreError {
    StoreError::Corrupt { table, id: id.to_string(), what: what.into() }
}
