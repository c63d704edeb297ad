//! The table `job`: reading one.

use rusqlite::{Connection, OptionalExtension, params};
use semel_store::{StoreError, statements};

use super::execution::executions;
use super::row::{self, Id, key};
use super::{SqliteStore, row::id_of};
use crate::store::{Job, JobNo, Kept};

statements! {
    BY_NO = "
        SELECT no, id, root_id, retry_of, parent_id, depth, source, priority, conversation, request,
               carries_plan, key, answer, plan, plan_no, status, step_index, revision_count,
               replan_count, fence, worker, deaths, ready, due_at, held_by, budget_ms, deadline_at,
               question, expires_at, error, failure_class, failed_action, entries, started_at,
               completed_at, created_at, home, asker, consent, grants
          FROM job
         WHERE no = ?1";

    NO_OF = "
        SELECT no
          FROM job
         WHERE id = ?1";

    ID_OF = "
        SELECT id
          FROM job
         WHERE no = ?1";
}

impl SqliteStore {
    pub(in crate::store) async fn job(&self, id: Id) -> Result<Option<Kept>, StoreError> {
        self.sqlite.read(move |tx| kept_of(tx, id)).await
    }
}

pub(super) fn by_no(tx: &Connection, no: JobNo) -> Result<Option<Job>, StoreError> {
    let mut statement = tx.prepare_cached(BY_NO)?;
    let mut rows = statement.query(params![no.0])?;
    rows.next()?.map(row::job).transpose()
}

pub(super) fn no_of(tx: &Connection, id: Id) -> Result<Option<JobNo>, StoreError> {
    let mut statement = tx.prepare_cached(NO_OF)?;
    Ok(statement.query_row(params![key(id)], |row| row.get(0).map(JobNo)).optional()?)
}

pub(super) fn id_at(tx: &Connection, no: JobNo) -> Result<Option<Id>, StoreError> {
    let mut statement = tx.prepare_cached(ID_OF)?;
    Ok(statement.query_row(params![no.0], |row| row.get(0).map(id_of)).optional()?)
}

pub(super) fn kept(tx: &Connection, no: JobNo) -> Result<Option<Kept>, StoreError> {
    let Some(job) = by_no(tx, no)? else { return Ok(None) };
    let executions = executions(tx, job.root_id)?;
    Ok(Some(Kept { job, executions }))
}

pub(super) fn kept_of(tx: &Connection, id: Id) -> Result<Option<Kept>, StoreError> {
    let Some(no) = no_of(tx, id)? else { return Ok(None) };
    kept(tx, no)
}
