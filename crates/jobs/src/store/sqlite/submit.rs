//! The table `job`: taking one in.

use rusqlite::{Connection, OptionalExtension, params};
use semel_core::hex::Hex;
use semel_store::{StoreError, statements};

use super::job::{by_no, no_of};
use super::row::{Id, id_of, key};
use super::{SqliteStore, ledger};
use crate::life::JobStatus;
use crate::store::{JobNo, LedgerEvent, Line, NewJob, Submitted, corrupt};

statements! {
    BY_KEY = "
        SELECT id, status, fingerprint
          FROM job
         WHERE key = ?1";

    BY_HASH = "
        SELECT id, status, fingerprint
          FROM job
         WHERE dedup_hash IN (?1, ?2, ?3)
           AND completed_at IS NULL
         ORDER BY no
         LIMIT 1";

    /// Somebody of its conversation is before it.
    ANY_BEFORE = "
        SELECT 1
          FROM job INDEXED BY job_conversation
         WHERE conversation = ?1
           AND completed_at IS NULL
         LIMIT 1";

    REPEATING = "
        SELECT 1
          FROM job
         WHERE root_id = ?1
           AND retry_of IS NOT NULL
           AND completed_at IS NULL";

    INSERT = "
        INSERT INTO job (id, root_id, retry_of, parent_id, depth, source, priority, conversation,
                         request, carries_plan, key, fingerprint, dedup_hash, created_at, plan,
                         plan_no, status, ready, budget_ms, entries)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, 'pending',
                ?17, ?18, 1)";
}

impl SqliteStore {
    pub(in crate::store) async fn submit(&self, job: NewJob) -> Result<Submitted, StoreError> {
        self.sqlite.write(move |tx| submit_in_tx(tx, &job)).await
    }
}

fn submit_in_tx(tx: &Connection, job: &NewJob) -> Result<Submitted, StoreError> {
    if let Some(there) = there(tx, job)? {
        return Ok(there);
    }
    if let Some(of) = job.retry_of {
        let failed = no_of(tx, of)?.map(|no| by_no(tx, no)).transpose()?.flatten();
        if failed.is_none_or(|failed| failed.state.status != JobStatus::Failed) {
            return Ok(Submitted::NotFailed);
        }
        let repeating = tx.prepare_cached(REPEATING)?.exists(params![key(job.root_id)])?;
        if repeating {
            return Ok(Submitted::Repeating);
        }
    }
    let before = match &job.conversation {
        Some(conversation) => tx.prepare_cached(ANY_BEFORE)?.exists(params![conversation])?,
        None => false,
    };
    tx.prepare_cached(INSERT)?.execute(params![
        key(job.id),
        key(job.root_id),
        job.retry_of.map(key),
        job.parent_id.map(key),
        job.depth,
        job.source.as_str(),
        job.priority.rank(),
        job.conversation,
        job.request,
        job.plan.is_some(),
        job.key,
        job.fingerprint.0,
        job.dedup.map(|[_, own, _]| own.0),
        job.now.0,
        job.plan,
        u32::from(job.plan.is_some()),
        !before,
        job.budget_ms,
    ])?;
    let no = JobNo(tx.last_insert_rowid());
    let detail = format!("{{\"status\":\"pending\",\"source\":\"{}\"}}", job.source);
    let line = Line { event: LedgerEvent::Submitted, step_id: None, detail };
    ledger::add_in_tx(tx, no, &[line], 1, job.now)?;
    Ok(Submitted::Made)
}

/// The key goes before the words (jobs.md §2).
fn there(tx: &Connection, job: &NewJob) -> Result<Option<Submitted>, StoreError> {
    if let Some(name) = &job.key {
        let found = tx.prepare_cached(BY_KEY)?.query_row(params![name], found).optional()?;
        let Some((id, status, fingerprint)) = found else { return Ok(None) };
        if fingerprint != job.fingerprint {
            return Ok(Some(Submitted::Reused(id)));
        }
        return Ok(Some(Submitted::There(id, status_of(id, &status)?)));
    }
    let Some(hashes) = &job.dedup else { return Ok(None) };
    let [before, own, after] = hashes.map(|hash| hash.0);
    let mut statement = tx.prepare_cached(BY_HASH)?;
    let found = statement.query_row(params![before, own, after], found).optional()?;
    let Some((id, status, _)) = found else { return Ok(None) };
    Ok(Some(Submitted::There(id, status_of(id, &status)?)))
}

fn found(row: &rusqlite::Row<'_>) -> rusqlite::Result<(Id, String, Hex<32>)> {
    Ok((id_of(row.get(0)?), row.get(1)?, Hex(row.get(2)?)))
}

fn status_of(id: Id, text: &str) -> Result<JobStatus, StoreError> {
    JobStatus::parse(text).ok_or_else(|| corrupt("job", id, "no such status"))
}
