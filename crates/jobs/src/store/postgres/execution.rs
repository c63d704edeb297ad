//! The table `execution_log`: one line per effect.

use std::collections::HashMap;

use semel_store::postgres::Transaction;
use semel_store::{StoreError, statements};
use uuid::Uuid;

use super::row::{self, Id, count};
use crate::dispatch::ExecutionStatus;
use crate::store::{Advance, Ended, Execution, Started, corrupt};

statements! {
    OF_ROOTS = "
        SELECT step_id, job_no, plan_no, gear, action, step_fingerprint, status, attempts, certain,
               result::text, artifact_sha256, error::text, started_at, completed_at, root_id, via
          FROM jobs.execution_log
         WHERE root_id = ANY ($1::uuid[])
         ORDER BY root_id, step_id";

    /// What was ended by an earlier statement.
    START = "
        WITH begun AS (
            INSERT INTO jobs.execution_log (root_id, step_id, job_no, plan_no, gear, action,
                                            step_fingerprint, status, attempts, certain,
                                            started_at, via)
            SELECT new.root_id, new.step_id, new.job_no, new.plan_no, new.gear, new.action,
                   new.fingerprint, 'started', new.attempts, TRUE, new.at, new.via
              FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::bigint[], $5::text[],
                          $6::text[], $7::bytea[], $8::bigint[], $9::bigint[], $10::text[])
                   AS new (root_id, step_id, job_no, plan_no, gear, action, fingerprint, attempts,
                           at, via)
                ON CONFLICT (root_id, step_id) DO UPDATE
               SET job_no = excluded.job_no, plan_no = excluded.plan_no, status = 'started',
                   attempts = excluded.attempts, certain = TRUE, error = NULL,
                   completed_at = NULL, started_at = excluded.started_at,
                   via = excluded.via
             WHERE execution_log.status = 'failed'
               AND execution_log.step_fingerprint = excluded.step_fingerprint
         RETURNING 1)
        SELECT jobs.touched(count(*), $11) FROM begun";

    FORGET = "
        DELETE FROM jobs.execution_log
         WHERE root_id = ANY ($1::uuid[])";
}

/// By root, each in the order of its steps.
pub(super) async fn executions(
    tx: &Transaction,
    roots: impl Iterator<Item = Id>,
) -> Result<HashMap<Id, Vec<Execution>>, StoreError> {
    let roots: Vec<Uuid> = roots.map(|root| root.as_uuid()).collect();
    let mut found: HashMap<Id, Vec<Execution>> = HashMap::new();
    if roots.is_empty() {
        return Ok(found);
    }
    for row in tx.query(OF_ROOTS, &[&roots]).await? {
        let (root, execution) = row::execution(&row)?;
        found.entry(root).or_default().push(execution);
    }
    Ok(found)
}

pub(super) async fn forget_in_tx(tx: &Transaction, roots: &[Uuid]) -> Result<(), StoreError> {
    tx.execute(FORGET, &[&roots]).await.map(drop)
}

/// The parameters of the ends in `ADVANCE`, kept alive.
#[derive(Default)]
pub(super) struct Ends<'a> {
    roots: Vec<Uuid>,
    steps: Vec<&'a str>,
    statuses: Vec<&'static str>,
    certain: Vec<bool>,
    results: Vec<Option<&'a str>>,
    artifacts: Vec<Option<&'a [u8]>>,
    errors: Vec<Option<&'a str>>,
    at: Vec<i64>,
    forgiven: Vec<bool>,
    told: i64,
}

impl<'a> Ends<'a> {
    pub(super) fn of(advances: &[&'a Advance]) -> Result<Self, StoreError> {
        let mut ends = Self::default();
        for advance in advances {
            for (ended, forgiven) in folded(advance)? {
                ends.roots.push(advance.root_id.as_uuid());
                ends.steps.push(&ended.step_id);
                ends.statuses.push(ended.status.as_str());
                ends.certain.push(ended.certain);
                ends.results.push(ended.result.as_deref());
                ends.artifacts.push(ended.artifact.as_ref().map(|hash| hash.0.as_slice()));
                ends.errors.push(ended.error.as_deref());
                ends.at.push(advance.now.0);
                ends.forgiven.push(forgiven);
            }
        }
        ends.told = count(ends.steps.len());
        Ok(ends)
    }

    #[rustfmt::skip]
    pub(super) fn parameters(&self) -> [&(dyn tokio_postgres::types::ToSql + Sync); 10] {
        [
            &self.roots, &self.steps, &self.statuses, &self.certain, &self.results,
            &self.artifacts, &self.errors, &self.at, &self.forgiven, &self.told,
        ]
    }
}

/// What is left of ends of the same step one after the other: the last of them, and whether any of
/// them forgives. One statement touches a row once.
fn folded(advance: &Advance) -> Result<Vec<(&Ended, bool)>, StoreError> {
    let mut ends: Vec<(&Ended, bool)> = Vec::with_capacity(advance.ended.len());
    for ended in &advance.ended {
        match ends.iter_mut().find(|(before, _)| before.step_id == ended.step_id) {
            Some((before, _)) if before.status == ExecutionStatus::Completed => {
                let what = "an execution is not as the holder of the fence knows it";
                return Err(corrupt("execution_log", advance.root_id, what));
            }
            Some((before, forgiven)) => {
                *before = ended;
                *forgiven |= ended.attempts_forgiven;
            }
            None => ends.push((ended, ended.attempts_forgiven)),
        }
    }
    Ok(ends)
}

/// The parameters of `START`, and of the starts in `ADVANCE`, kept alive.
#[derive(Default)]
pub(super) struct Starts<'a> {
    roots: Vec<Uuid>,
    steps: Vec<&'a str>,
    jobs: Vec<i64>,
    plans: Vec<i64>,
    gears: Vec<&'a str>,
    actions: Vec<&'a str>,
    fingerprints: Vec<&'a [u8]>,
    attempts: Vec<i64>,
    at: Vec<i64>,
    via: Vec<Option<&'a str>>,
    told: i64,
}

impl<'a> Starts<'a> {
    pub(super) const SQL: &'static str = START;

    /// What begins, and apart from it what has ended in the same move: one statement touches a row
    /// once.
    pub(super) fn of(advances: &[&'a Advance]) -> (Self, Self) {
        let (mut starts, mut again) = (Self::default(), Self::default());
        let all = advances.iter().flat_map(|advance| advance.started.iter().map(|s| (*advance, s)));
        for (advance, started) in all {
            let ended = advance.ended.iter().any(|ended| ended.step_id == started.step_id);
            if ended { &mut again } else { &mut starts }.add(advance, started);
        }
        (starts, again)
    }

    fn add(&mut self, advance: &Advance, started: &'a Started) {
        self.roots.push(advance.root_id.as_uuid());
        self.steps.push(&started.step_id);
        self.jobs.push(advance.no.0);
        self.plans.push(i64::from(advance.state.plan_no));
        self.gears.push(&started.gear);
        self.actions.push(&started.action);
        self.fingerprints.push(&started.fingerprint.0);
        self.attempts.push(i64::from(started.attempts));
        self.at.push(advance.now.0);
        self.via.push(started.via.as_deref());
        self.told = count(self.steps.len());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    #[rustfmt::skip]
    pub(super) fn parameters(&self) -> [&(dyn tokio_postgres::types::ToSql + Sync); 11] {
        [
            &self.roots, &self.steps, &self.jobs, &self.plans, &self.gears, &self.actions,
            &self.fingerprints, &self.attempts, &self.at, &self.via, &self.told,
        ]
    }

    /// Without the numbers of jobs that have none yet.
    #[rustfmt::skip]
    pub(super) fn of_new_jobs(&self) -> [&(dyn tokio_postgres::types::ToSql + Sync); 9] {
        [
            &self.roots, &self.steps, &self.plans, &self.gears, &self.actions,
            &self.fingerprints, &self.attempts, &self.at, &self.via,
        ]
    }
}
