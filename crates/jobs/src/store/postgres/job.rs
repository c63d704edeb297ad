//! The table `job`: reading some.

use semel_store::postgres::Transaction;
use semel_store::{StoreError, statements};

use super::PostgresStore;
use super::execution::executions;
use super::row::{self, Id};
use crate::store::{Job, JobNo, Kept, readable};

statements! {
    BY_ID = "
        SELECT no, id, root_id, retry_of, parent_id, depth, source, priority, conversation, request,
               carries_plan, key, answer::text, plan::text, plan_no, status, step_index,
               revision_count, replan_count, fence, worker, deaths, ready, due_at, held_by,
               budget_ms, deadline_at, question::text, expires_at, error::text, failure_class,
               failed_action, entries, started_at, completed_at, created_at, home,
               asker, consent, grants::text
          FROM jobs.job
         WHERE id = $1";

    /// The same, for somebody who is going to write it.
    HOLD_BY_ID = "
        SELECT no, id, root_id, retry_of, parent_id, depth, source, priority, conversation, request,
               carries_plan, key, answer::text, plan::text, plan_no, status, step_index,
               revision_count, replan_count, fence, worker, deaths, ready, due_at, held_by,
               budget_ms, deadline_at, question::text, expires_at, error::text, failure_class,
               failed_action, entries, started_at, completed_at, created_at, home,
               asker, consent, grants::text
          FROM jobs.job
         WHERE id = $1
           FOR UPDATE";

    BY_NOS = "
        SELECT no, id, root_id, retry_of, parent_id, depth, source, priority, conversation, request,
               carries_plan, key, answer::text, plan::text, plan_no, status, step_index,
               revision_count, replan_count, fence, worker, deaths, ready, due_at, held_by,
               budget_ms, deadline_at, question::text, expires_at, error::text, failure_class,
               failed_action, entries, started_at, completed_at, created_at, home,
               asker, consent, grants::text
          FROM jobs.job
         WHERE no = ANY ($1::bigint[])
         ORDER BY no DESC";

    CONVERSATION_OF = "
        SELECT conversation
          FROM jobs.job
         WHERE id = $1";
}

impl PostgresStore {
    pub(in crate::store) async fn job(&self, id: Id) -> Result<Option<Kept>, StoreError> {
        let tx = self.postgres().snapshot().await?;
        let Some(row) = tx.query_opt(BY_ID, &[&id.as_uuid()]).await? else { return Ok(None) };
        let job = row::job(&row)?;
        Ok(kept(&tx, vec![job]).await?.pop())
    }

    /// A job's conversation, which never changes; the outer nothing: there is no such job.
    pub(super) async fn conversation_of(
        &self,
        id: Id,
    ) -> Result<Option<Option<String>>, StoreError> {
        let rows = self.postgres().read(CONVERSATION_OF, &[&id.as_uuid()]).await?;
        Ok(rows.first().map(|row| row.try_get(0)).transpose()?)
    }
}

/// One job, which nobody else writes until the transaction ends.
pub(super) async fn hold(tx: &Transaction, id: Id) -> Result<Option<Kept>, StoreError> {
    let Some(row) = tx.query_opt(HOLD_BY_ID, &[&id.as_uuid()]).await? else { return Ok(None) };
    let job = row::job(&row)?;
    Ok(kept(tx, vec![job]).await?.pop())
}

/// By their numbers, the newest first.
/// Those of these numbers that can be read.
pub(super) async fn by_nos(tx: &Transaction, nos: &[i64]) -> Result<Vec<Job>, StoreError> {
    let rows = tx.query(BY_NOS, &[&nos]).await?;
    let mut jobs = Vec::with_capacity(rows.len());
    for row in &rows {
        jobs.extend(readable(JobNo(row.try_get(0)?), row::job(row))?);
    }
    Ok(jobs)
}

/// Jobs with their executions, by one statement.
pub(super) async fn kept(tx: &Transaction, jobs: Vec<Job>) -> Result<Vec<Kept>, StoreError> {
    let found = executions(tx, jobs.iter().map(|job| job.root_id)).await?;
    let kept = jobs.into_iter().map(|job| {
        let executions = found.get(&job.root_id).cloned().unwrap_or_default();
        Kept { job, executions }
    });
    Ok(kept.collect())
}
