//! Every job of the file with its steps and what happened to it: can it be read, and is each step
//! one of its plan?

use std::cmp::Ordering;

use rusqlite::{Connection, Row, params};
use semel_store::sqlite::{Start, TableRows};
use semel_store::{StoreError, statements};

use super::execution::executions;
use super::row::id_of;
use super::{ledger, row};
use crate::plan::PlanText;
use crate::store::{Execution, Job, corrupt};

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

    PLAN = "
        SELECT root_id, plan, plan_no
          FROM job
         WHERE no = ?1";
}

/// The jobs of an engine's file.
pub static ROWS: &[TableRows] =
    &[TableRows { table: "job", count: COUNT, page: PAGE, start: Start::Number, look }];

fn look(connection: &Connection, row: &Row<'_>) -> Result<(), StoreError> {
    let job = row::job(row)?;
    // A retry shares the steps of its root.
    if job.id == job.root_id {
        for line in executions(connection, job.root_id)? {
            look_at_line(connection, &job, &line)?;
        }
    }
    ledger::read_all(connection, &job)
}

/// Whether the job that has begun the step has it in its plan. A plan that was replaced since then
/// is not kept, and a repeat may have been forgotten before its root.
fn look_at_line(connection: &Connection, root: &Job, line: &Execution) -> Result<(), StoreError> {
    let wrong = |what: &str| {
        let what = format!("the step {:?} {what}", line.step_id);
        Err(corrupt("execution_log", root.id, what))
    };
    let mut statement = connection.prepare_cached(PLAN)?;
    let mut rows = statement.query(params![line.job_no.0])?;
    let Some(row) = rows.next()? else {
        return match line.job_no > root.no {
            true => Ok(()),
            false => wrong("is of a job that is not there"),
        };
    };
    if id_of(row.get(0)?) != root.id {
        return wrong("is of a job that is no repeat");
    }
    let (text, plan_no): (Option<String>, u32) = (row.get(1)?, row.get(2)?);
    match line.plan_no.cmp(&plan_no) {
        Ordering::Less => return Ok(()),
        Ordering::Greater => return wrong("is of a plan that there never was"),
        Ordering::Equal => {}
    }
    let Some(text) = text.map(PlanText::from) else { return wrong("was begun without a plan") };
    let plan = match text.plan() {
        Ok(plan) => plan,
        Err(refusal) => return Err(corrupt("job", root.id, refusal.detail.clone())),
    };
    match plan.steps.iter().find(|step| step.id == line.step_id) {
        None => wrong("is not in the plan"),
        Some(step) if (&step.gear, &step.action) != (&line.gear, &line.action) => {
            wrong("does something else in the plan")
        }
        Some(step) if step.fingerprint() != line.fingerprint => {
            wrong("has other parameters in the plan")
        }
        Some(_) => Ok(()),
    }
}
