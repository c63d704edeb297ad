//! One move of a job: its state as a whole, by compare-and-swap on status and fence, with what it
//! does to the execution log and the ledger.

use std::sync::Arc;

use rusqlite::{Connection, params};
use semel_store::{StoreError, statements};

use super::{SqliteStore, execution, ledger};
use crate::gear::FailureClass;
use crate::policy::Verdict;
use crate::store::{Advance, Advanced, Reach, corrupt};

statements! {
    /// Columns that no index knows: SQLite writes every index of which a column is named, whether
    /// its value changes or not.
    MOVE_INSIDE = "
        UPDATE job
           SET plan_no = ?4, status = ?5, step_index = ?6, revision_count = ?7, replan_count = ?8,
               fence = ?9, worker = ?10, deaths = ?11, budget_ms = ?12, deadline_at = ?13,
               question = ?14, answer = ?15, error = ?16, failed_action = ?17, entries = ?18,
               started_at = ?19, home = ?20, consent = ?21
         WHERE no = ?1
           AND status = ?2
           AND fence = ?3";

    MOVE_CLAIM = "
        UPDATE job
           SET plan_no = ?4, status = ?5, step_index = ?6, revision_count = ?7, replan_count = ?8,
               fence = ?9, worker = ?10, deaths = ?11, budget_ms = ?12, deadline_at = ?13,
               question = ?14, answer = ?15, error = ?16, failed_action = ?17, entries = ?18,
               started_at = ?19, home = ?20, consent = ?21, ready = ?22, due_at = ?23
         WHERE no = ?1
           AND status = ?2
           AND fence = ?3";

    MOVE_END = "
        UPDATE job
           SET plan_no = ?4, status = ?5, step_index = ?6, revision_count = ?7, replan_count = ?8,
               fence = ?9, worker = ?10, deaths = ?11, budget_ms = ?12, deadline_at = ?13,
               question = ?14, answer = ?15, error = ?16, failed_action = ?17, entries = ?18,
               started_at = ?19, home = ?20, consent = ?21, ready = ?22, due_at = ?23,
               completed_at = ?24
         WHERE no = ?1
           AND status = ?2
           AND fence = ?3";

    MOVE_ALL = "
        UPDATE job
           SET plan_no = ?4, status = ?5, step_index = ?6, revision_count = ?7, replan_count = ?8,
               fence = ?9, worker = ?10, deaths = ?11, budget_ms = ?12, deadline_at = ?13,
               question = ?14, answer = ?15, error = ?16, failed_action = ?17, entries = ?18,
               started_at = ?19, home = ?20, consent = ?21, ready = ?22, due_at = ?23,
               completed_at = ?24, held_by = ?25, expires_at = ?26, failure_class = ?27
         WHERE no = ?1
           AND status = ?2
           AND fence = ?3";

    PLAN = "
        UPDATE job
           SET plan = ?2
         WHERE no = ?1";

    /// The next one of a conversation waits for a worker from now on. The index is named, because
    /// another one would do that holds those that have ended, too.
    HEAD = "
        UPDATE job
           SET ready = 1
         WHERE no = (SELECT min(no)
                       FROM job INDEXED BY job_conversation
                      WHERE conversation = ?1
                        AND completed_at IS NULL)
           AND status = 'pending'
           AND due_at IS NULL";
}

impl SqliteStore {
    pub(in crate::store) async fn advance(
        &self,
        advance: Arc<Advance>,
    ) -> Result<Advanced, StoreError> {
        self.sqlite.write(move |tx| advance_in_tx(tx, &advance)).await
    }
}

pub(super) fn advance_in_tx(tx: &Connection, advance: &Advance) -> Result<Advanced, StoreError> {
    let state = &advance.state;
    if !moved(tx, advance)? {
        return Ok(Advanced::Lost);
    }
    if advance.new_plan {
        tx.prepare_cached(PLAN)?.execute(params![advance.no.0, state.plan.as_deref()])?;
    }
    write_beside(tx, advance)?;
    Ok(Advanced::Written)
}

/// Everything of a move but the job's own row.
pub(super) fn write_beside(tx: &Connection, advance: &Advance) -> Result<(), StoreError> {
    let state = &advance.state;
    let touched = execution::write_in_tx(tx, advance)?;
    if touched != advance.ended.len() + advance.started.len() {
        // The holder of the fence is the only one who writes here.
        let what = "an execution is not as the holder of the fence knows it";
        return Err(corrupt("execution_log", advance.root_id, what));
    }
    ledger::add_in_tx(tx, advance.no, &advance.lines, state.entries, advance.now)?;
    if let (Some(conversation), Some(_)) = (&advance.conversation, state.completed_at) {
        tx.prepare_cached(HEAD)?.execute(params![conversation])?;
    }
    Ok(())
}

/// Whether the job was where the move begins.
fn moved(tx: &Connection, advance: &Advance) -> Result<bool, StoreError> {
    let state = &advance.state;
    let by = params![
        advance.no.0,
        advance.from.as_str(),
        advance.fence,
        state.plan_no,
        state.status.as_str(),
        state.step_index,
        state.revision_count,
        state.replan_count,
        state.fence,
        state.worker,
        state.deaths,
        state.budget_ms,
        state.deadline_at.map(|at| at.0),
        state.question,
        state.answer,
        state.error,
        state.failed_action,
        state.entries,
        state.started_at.map(|at| at.0),
        state.home,
        state.consent.map(Verdict::as_str),
        state.ready,
        state.due_at.map(|at| at.0),
        state.completed_at.map(|at| at.0),
        state.held_by,
        state.expires_at.map(|at| at.0),
        state.failure_class.map(FailureClass::as_str),
    ];
    let (sql, by) = match advance.reach {
        Reach::Inside => (MOVE_INSIDE, &by[..21]),
        Reach::Claim => (MOVE_CLAIM, &by[..23]),
        Reach::End => (MOVE_END, &by[..24]),
        Reach::All => (MOVE_ALL, by),
    };
    Ok(tx.prepare_cached(sql)?.execute(by)? > 0)
}
