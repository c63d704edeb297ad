//! The table `job`: taking one in.

use rusqlite::{Connection, OptionalExtension, params};
use semel_core::hex::Hex;
use semel_store::{StoreError, statements};

use super::SqliteStore;
use super::advance::write_beside;
use super::claim::count_claimable;
use super::job::{by_no, no_of};
use super::row::{Id, id_of, key};
use crate::gear::FailureClass;
use crate::gear::grants::Grants;
use crate::life::JobStatus;
use crate::policy::Verdict;
use crate::store::{Advance, JobNo, JobState, NewJob, Submitted, corrupt};

statements! {
    BY_KEY = "
        SELECT id, status, fingerprint
          FROM job
         WHERE key = ?1
         UNION ALL
        SELECT job_id, status, fingerprint
          FROM spent_key
         WHERE scope = 'job'
           AND key = ?1
         LIMIT 1";

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
                         plan_no, status, step_index, revision_count, replan_count, fence, worker,
                         deaths, ready, due_at, held_by, budget_ms, deadline_at, question,
                         expires_at, answer, error, failure_class, failed_action, entries,
                         started_at, completed_at, home, consent, asker, grants)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18,
                ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?30, ?31, ?32, ?33, ?34,
                ?35, ?36, ?37, ?38, ?39, ?40, ?41)";
}

impl SqliteStore {
    pub(in crate::store) async fn submit(&self, job: NewJob) -> Result<Submitted, StoreError> {
        self.sqlite.write(move |tx| Ok(submit_in_tx(tx, &job, None)?.0)).await
    }

    pub(in crate::store) async fn submit_begun(
        &self,
        job: NewJob,
        mut first: Advance,
        room: usize,
    ) -> Result<(Submitted, Option<JobNo>), StoreError> {
        self.sqlite.write(move |tx| submit_in_tx(tx, &job, Some((&mut first, room)))).await
    }
}

fn submit_in_tx(
    tx: &Connection,
    job: &NewJob,
    first: Option<(&mut Advance, usize)>,
) -> Result<(Submitted, Option<JobNo>), StoreError> {
    if let Some(there) = there(tx, job)? {
        return Ok((there, None));
    }
    if let Some(of) = job.retry_of {
        let failed = no_of(tx, of)?.map(|no| by_no(tx, no)).transpose()?.flatten();
        if failed.is_none_or(|failed| failed.state.status != JobStatus::Failed) {
            return Ok((Submitted::NotFailed, None));
        }
        let repeating = tx.prepare_cached(REPEATING)?.exists(params![key(job.root_id)])?;
        if repeating {
            return Ok((Submitted::Repeating, None));
        }
    }
    let before = match &job.conversation {
        Some(conversation) => tx.prepare_cached(ANY_BEFORE)?.exists(params![conversation])?,
        None => false,
    };
    match first {
        Some((first, room))
            if !before && count_claimable(tx, job.now, &[], room.saturating_add(1))? <= room =>
        {
            insert(tx, job, &first.state)?;
            first.no = JobNo(tx.last_insert_rowid());
            write_beside(tx, first)?;
            Ok((Submitted::Made, Some(first.no)))
        }
        Some(_) | None => {
            let mut state = job.fresh().job.state;
            state.ready = !before;
            insert(tx, job, &state)?;
            Ok((Submitted::Made, None))
        }
    }
}

fn insert(tx: &Connection, job: &NewJob, state: &JobState) -> Result<(), StoreError> {
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
        job.plan.as_deref(),
        state.plan_no,
        state.status.as_str(),
        state.step_index,
        state.revision_count,
        state.replan_count,
        state.fence,
        state.worker,
        state.deaths,
        state.ready,
        state.due_at.map(|at| at.0),
        state.held_by,
        state.budget_ms,
        state.deadline_at.map(|at| at.0),
        state.question,
        state.expires_at.map(|at| at.0),
        state.answer,
        state.error,
        state.failure_class.map(FailureClass::as_str),
        state.failed_action,
        state.entries,
        state.started_at.map(|at| at.0),
        state.completed_at.map(|at| at.0),
        state.home,
        state.consent.map(Verdict::as_str),
        job.asker,
        job.grants.as_ref().map(Grants::to_json),
    ])?;
    Ok(())
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
