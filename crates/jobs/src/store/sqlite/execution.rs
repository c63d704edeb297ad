//! The table `execution_log`: one line per effect.

use rusqlite::{Connection, params};
use semel_store::{StoreError, statements};

use super::row::{self, Id, key};
use crate::store::{Advance, Execution};

statements! {
    OF_ROOT = "
        SELECT step_id, job_no, plan_no, gear, action, step_fingerprint, status, attempts, certain,
               result, artifact_sha256, error, started_at, completed_at, via
          FROM execution_log
         WHERE root_id = ?1
         ORDER BY step_id";

    START = "
        INSERT INTO execution_log (root_id, step_id, job_no, plan_no, gear, action,
                                   step_fingerprint, status, attempts, certain, started_at,
                                   via)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'started', ?8, 1, ?9, ?10)
            ON CONFLICT (root_id, step_id) DO UPDATE
           SET job_no = excluded.job_no, plan_no = excluded.plan_no, status = 'started',
               attempts = excluded.attempts, certain = 1, error = NULL, completed_at = NULL,
               started_at = excluded.started_at, via = excluded.via
         WHERE execution_log.status = 'failed'
           AND execution_log.step_fingerprint = excluded.step_fingerprint";

    END = "
        UPDATE execution_log
           SET status = ?3, certain = ?4, result = ?5, artifact_sha256 = ?6, error = ?7,
               completed_at = ?8, attempts = CASE ?9 WHEN 1 THEN 0 ELSE attempts END
         WHERE root_id = ?1
           AND step_id = ?2
           AND status <> 'completed'";

    FORGET = "
        DELETE FROM execution_log
         WHERE root_id = ?1";
}

pub(super) fn executions(tx: &Connection, root: Id) -> Result<Vec<Execution>, StoreError> {
    let mut statement = tx.prepare_cached(OF_ROOT)?;
    let mut rows = statement.query(params![key(root)])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(row::execution(row)?);
    }
    Ok(found)
}

/// Ends before starts: the same step may be begun anew. Gives the rows that were touched.
pub(super) fn write_in_tx(tx: &Connection, advance: &Advance) -> Result<usize, StoreError> {
    let (root, now) = (key(advance.root_id), advance.now.0);
    let mut touched = 0;
    for ended in &advance.ended {
        touched += tx.prepare_cached(END)?.execute(params![
            root,
            ended.step_id,
            ended.status.as_str(),
            ended.certain,
            ended.result,
            ended.artifact.map(|hash| hash.0),
            ended.error,
            now,
            ended.attempts_forgiven,
        ])?;
    }
    for started in &advance.started {
        touched += tx.prepare_cached(START)?.execute(params![
            root,
            started.step_id,
            advance.no.0,
            advance.state.plan_no,
            started.gear,
            started.action,
            started.fingerprint.0,
            started.attempts,
            now,
            started.via,
        ])?;
    }
    Ok(touched)
}

pub(super) fn forget_in_tx(tx: &Connection, root: Id) -> Result<(), StoreError> {
    tx.prepare_cached(FORGET)?.execute(params![key(root)])?;
    Ok(())
}
