//! One move of a job: its state as a whole, by compare-and-swap on status and fence, with what it
//! does to the execution log and the ledger.

use rusqlite::{Connection, params};
use semel_store::{StoreError, statements};

use super::{SqliteStore, execution, ledger};
use crate::gear::FailureClass;
use crate::store::{Advance, Advanced, corrupt};

statements! {
    MOVE = "
        UPDATE job
           SET plan_no = ?4, status = ?5, step_index = ?6, revision_count = ?7, replan_count = ?8,
               fence = ?9, worker = ?10, deaths = ?11, ready = ?12, due_at = ?13, held_by = ?14,
               budget_ms = ?15, deadline_at = ?16, question = ?17, expires_at = ?18, answer = ?19,
               error = ?20, failure_class = ?21, failed_action = ?22, entries = ?23,
               started_at = ?24, completed_at = ?25
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
    pub(in crate::store) async fn advance(&self, advance: Advance) -> Result<Advanced, StoreError> {
        self.sqlite.write(move |tx| advance_in_tx(tx, &advance)).await
    }
}

pub(super) fn advance_in_tx(tx: &Connection, advance: &Advance) -> Result<Advanced, StoreError> {
    let state = &advance.state;
    let moved = tx.prepare_cached(MOVE)?.execute(params![
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
    ])?;
    if moved == 0 {
        return Ok(Advanced::Lost);
    }
    if advance.new_plan {
        tx.prepare_cached(PLAN)?.execute(params![advance.no.0, state.plan])?;
    }
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
    Ok(Advanced::Written)
}
