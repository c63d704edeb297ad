//! Every job of the file with its steps and what happened to it: can it be read?

use rusqlite::{Connection, Row};
use semel_store::sqlite::{Start, TableRows};
use semel_store::{StoreError, statements};

use super::execution::executions;
use super::{ledger, row};

statements! {
    COUNT = "
        SELECT count(*)
          FROM job";

    PAGE = "
        SELECT no, id, root_id, retry_of, parent_id, depth, source, priority, conversation, request,
               carries_plan, key, answer, plan, plan_no, status, step_index, revision_count,
               replan_count, fence, worker, deaths, ready, due_at, held_by, budget_ms, deadline_at,
               question, expires_at, error, failure_class, failed_action, entries, started_at,
               completed_at, created_at, home, asker, consent, grants, no
          FROM job
         WHERE no > ?1
         ORDER BY no
         LIMIT ?2";
}

/// The jobs of an engine's file.
pub static ROWS: &[TableRows] =
    &[TableRows { table: "job", count: COUNT, page: PAGE, start: Start::Number, look }];

fn look(connection: &Connection, row: &Row<'_>) -> Result<(), StoreError> {
    let job = row::job(row)?;
    // A retry shares the steps of its root.
    if job.id == job.root_id {
        executions(connection, job.root_id)?;
    }
    ledger::read_all(connection, &job)
}
