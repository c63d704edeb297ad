//! A backup becomes the engine's file again. What happened after the backup is lost to it: a job
//! that it shows as waiting, or under way, may have run to its end since. Nothing may happen twice,
//! so that none of them goes on: each is cancelled before anybody can open the file, and keeps its
//! key, under which nothing is made again. Approvals that it takes for unused may have been used:
//! the registrar holds all of its domains until an operator has looked. A database that was put
//! back by PostgreSQL's own tools is told so afterwards, before any engine works there.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use semel_core::clock::UnixMs;
use semel_core::code::Code;
use semel_core::id::JobId;
use semel_core::refusal::Refusal;
use semel_registrar::store as registrar;
use semel_store::StoreError;
use semel_store::sqlite::{self, Existing, OnUncertain, RestoreError, Sqlite, SqliteOptions};

use crate::engine::door::ended_by;
use crate::life::{JobEvent, JobStatus};
use crate::limits::{RESTORE_PAGE, RESTORED_QUIET};
use crate::store::sqlite::{APPLICATION_ID, MIGRATIONS};
use crate::store::{Answering, List, SqliteStore, Store, Wrote, corrupt};

const REASON: &str = "a backup was restored, and it is unknown whether it went on after that";

/// What became of a file that was restored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Restored {
    /// Jobs that were not over in the backup.
    pub cancelled: u64,
    /// Domains of its registrar in which nothing is registered for now.
    pub held: u64,
}

/// Why the jobs of a restored database were not cancelled, or not all of them.
#[derive(Debug, thiserror::Error)]
pub enum RestoredError {
    /// Somebody works there, or did a moment before the backup.
    #[error("an engine was seen here {} s ago", ago.as_secs())]
    Lives {
        /// When it was heard of.
        ago: Duration,
        /// How long nothing more may be heard of it.
        wait: Duration,
    },
    /// Somebody has begun to work there.
    #[error("an engine began here before everything was cancelled")]
    Began,
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// How the file is opened: the engine's tables and the registrar's.
pub fn options(path: &Path, now: UnixMs, on_uncertain: OnUncertain) -> SqliteOptions {
    let migrations = vec![MIGRATIONS, registrar::sqlite::MIGRATIONS];
    SqliteOptions::new(path, APPLICATION_ID, migrations, now.0, on_uncertain)
}

/// Puts the backup `from` where the file `to` is.
pub async fn restore(
    from: &Path,
    to: &Path,
    existing: Existing,
    now: UnixMs,
    on_uncertain: OnUncertain,
) -> Result<Restored, RestoreError> {
    let mut restored = Restored::default();
    let prepare = async |copy: &Path| {
        let file = Arc::new(Sqlite::open(&options(copy, now, on_uncertain))?);
        let ended = end_all(&file, now).await;
        file.close().await;
        restored = ended?;
        Ok(())
    };
    sqlite::restore(from, to, existing, APPLICATION_ID, prepare).await?;
    Ok(restored)
}

async fn end_all(file: &Arc<Sqlite>, now: UnixMs) -> Result<Restored, RestoreError> {
    sqlite::refuse_damaged(file).await?;
    let jobs = Store::Sqlite(SqliteStore::new(Arc::clone(file)));
    let grants = registrar::Store::Sqlite(registrar::SqliteStore::new(Arc::clone(file)));
    // Nobody else has the file, so any other fence will do.
    let cancelled = cancel_all(&jobs, now, |fence| fence.saturating_add(1)).await?;
    Ok(Restored { cancelled, held: grants.gate_hold_all(now).await? })
}

/// Does the same in a database that was put back by its own tools, while no engine lives there. May
/// be repeated. `draw` gives fences that nobody else draws.
pub async fn restored(
    jobs: &Store,
    grants: &registrar::Store,
    now: UnixMs,
    draw: impl Fn() -> i64,
) -> Result<Restored, RestoredError> {
    if let Some(ago) = jobs.heard_of(RESTORED_QUIET).await? {
        return Err(RestoredError::Lives { ago, wait: RESTORED_QUIET.saturating_sub(ago) });
    }
    let now = jobs.time().await?.unwrap_or(now);
    let held = grants.gate_hold_all(now).await?;
    let cancelled = cancel_all(jobs, now, |_| draw()).await?;
    match jobs.heard_of(RESTORED_QUIET).await? {
        Some(_) => Err(RestoredError::Began),
        None => Ok(Restored { cancelled, held }),
    }
}

/// Cancels every job that is not over.
async fn cancel_all(
    store: &Store,
    now: UnixMs,
    fence: impl Fn(i64) -> i64,
) -> Result<u64, StoreError> {
    // Nothing is repeated that may have been repeated since the backup.
    store.note_restored().await?;
    let mut cancelled = 0;
    for status in JobStatus::ALL.iter().copied().filter(|status| !status.is_terminal()) {
        let mut list = List { status: Some(status), limit: RESTORE_PAGE, ..List::default() };
        loop {
            let page = store.list(list.clone()).await?;
            for job in &page.jobs {
                cancelled += cancel(store, job.id, fence(job.state.fence), now).await?;
            }
            // A page may be empty and still not be the last.
            match page.next {
                Some(before) => list.before = Some(before),
                None => break,
            }
        }
    }
    Ok(cancelled)
}

/// Cancels a job; none when it is over by now.
async fn cancel(store: &Store, id: JobId, fence: i64, now: UnixMs) -> Result<u64, StoreError> {
    let decide: Answering = Arc::new(move |kept| match kept.job.state.status.is_terminal() {
        true => Err(Refusal::new(Code::JobEnded, "the job has ended")),
        false => Ok(ended_by(kept, JobEvent::Cancel, REASON, (fence, now))),
    });
    match store.person(id, None, decide).await? {
        Wrote::Written(_) => Ok(1),
        Wrote::Refused(_) => Ok(0),
        Wrote::NotFound | Wrote::GrantRefused(_) => {
            Err(corrupt("job", id, "it cannot be cancelled"))
        }
    }
}
