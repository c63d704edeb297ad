//! The table `job`: claiming. What is due goes first, then what waits, by priority and age; both
//! are read from the end of an index that holds nothing else, so that the cost is flat.
//!
//! Differs from sqlite: any number of engines claim at once, each what no other holds. A claim
//! waits for nobody; a job whose end would have to wait for its conversation is left for the next
//! one.

use std::collections::HashSet;

use semel_core::clock::UnixMs;
use semel_store::postgres::Transaction;
use semel_store::{StoreError, statements};

use super::PostgresStore;
use super::advance::{conversation_locks, frees_another, let_go, write_and_commit};
use super::execution::executions;
use super::lock::{self, Lock};
use super::row;
use crate::store::{Advance, Begin, Claim, Claimed, Job, JobNo, Kept};

statements! {
    CLAIMABLE = "
        WITH due AS (
            SELECT no, id, root_id, retry_of, parent_id, depth, source, priority, conversation,
                   request, carries_plan, key, answer::text, plan::text, plan_no, status,
                   step_index, revision_count, replan_count, fence, worker, deaths, ready, due_at,
                   held_by, budget_ms, deadline_at, question::text, expires_at, error::text,
                   failure_class, failed_action, entries, started_at, completed_at, created_at
              FROM jobs.job
             WHERE due_at <= $1
             ORDER BY due_at, no
             LIMIT $2
               FOR UPDATE SKIP LOCKED
        ), waiting AS (
            SELECT no, id, root_id, retry_of, parent_id, depth, source, priority, conversation,
                   request, carries_plan, key, answer::text, plan::text, plan_no, status,
                   step_index, revision_count, replan_count, fence, worker, deaths, ready, due_at,
                   held_by, budget_ms, deadline_at, question::text, expires_at, error::text,
                   failure_class, failed_action, entries, started_at, completed_at, created_at
              FROM jobs.job
             WHERE ready
             ORDER BY priority, no
             LIMIT $2 - (SELECT count(*) FROM due)
               FOR UPDATE SKIP LOCKED
        )
        TABLE due
        UNION ALL
        TABLE waiting";

    ANYTHING = "
        SELECT EXISTS (SELECT 1 FROM jobs.job WHERE due_at <= $1)
               OR EXISTS (SELECT 1 FROM jobs.job WHERE ready)";

    RENEW_HOLD = "
        SELECT no
          FROM jobs.job
         WHERE no = ANY ($1::bigint[])
         ORDER BY no
           FOR UPDATE";

    RENEW = "
        UPDATE jobs.job
           SET due_at = $3
          FROM unnest($1::bigint[], $2::bigint[]) AS held (no, fence)
         WHERE job.no = ANY ($1)
           AND job.no = held.no
           AND job.fence = held.fence
           AND job.worker IS NOT NULL
     RETURNING job.no, job.fence";
}

impl PostgresStore {
    pub(in crate::store) async fn claim(
        &self,
        claim: Claim,
        begin: Begin,
    ) -> Result<Vec<Claimed>, StoreError> {
        // A task of its own: a caller that goes away must not leave jobs claimed by nobody.
        let store = self.clone();
        let running = tokio::spawn(async move { store.claim_now(&claim, &begin).await });
        let gone = |_| StoreError::Uncertain { cause: "the claim has ended".into() };
        running.await.map_err(gone)?
    }

    async fn claim_now(&self, claim: &Claim, begin: &Begin) -> Result<Vec<Claimed>, StoreError> {
        let run = || self.claim_once(claim, begin);
        match self.postgres().retry(run).await? {
            Done::Claimed(claimed) => Ok(claimed),
            Done::Unknown(mut claimed) => {
                let moves: Vec<&Advance> = claimed.iter().map(|job| &job.advance).collect();
                let mut there = self.settle(&moves).await?.into_iter();
                claimed.retain(|_| there.next().unwrap_or(false));
                Ok(claimed)
            }
        }
    }

    async fn claim_once(&self, claim: &Claim, begin: &Begin) -> Result<Done, StoreError> {
        let by: super::Parameters<'_> = &[&claim.now.0, &i64::from(claim.limit)];
        let (tx, mut rows) = self.postgres().begin_with(&[(CLAIMABLE, by)]).await?;
        let jobs = rows.pop().unwrap_or_default();
        if jobs.is_empty() {
            return Ok(Done::Claimed(Vec::new()));
        }
        let jobs: Vec<Job> = jobs.iter().map(row::job).collect::<Result<_, _>>()?;
        let claimed = begun(&tx, jobs).await?.into_iter().map(|before| {
            let advance = begin(&before, claim);
            Claimed { before, advance }
        });
        let mut claimed: Vec<Claimed> = claimed.collect();
        keep_lockable(&tx, &mut claimed).await?;
        if claimed.is_empty() {
            let_go(tx).await;
            return Ok(Done::Claimed(claimed));
        }
        let moves: Vec<&Advance> = claimed.iter().map(|job| &job.advance).collect();
        match write_and_commit(tx, &moves).await {
            Ok(()) => {
                if moves.iter().any(|advance| frees_another(advance)) {
                    self.shared.bell.ring();
                }
                Ok(Done::Claimed(claimed))
            }
            Err(StoreError::Uncertain { .. }) => Ok(Done::Unknown(claimed)),
            Err(error) => Err(error),
        }
    }

    pub(in crate::store) async fn renew(
        &self,
        held: Vec<(JobNo, i64)>,
        lease_until: UnixMs,
    ) -> Result<Vec<JobNo>, StoreError> {
        let nos: Vec<i64> = held.iter().map(|(no, _)| no.0).collect();
        let fences: Vec<i64> = held.iter().map(|(_, fence)| *fence).collect();
        let run = async || {
            let (tx, _) = self.postgres().begin_with(&[(RENEW_HOLD, &[&nos])]).await?;
            tx.query_and_commit(RENEW, &[&nos, &fences, &lease_until.0]).await
        };
        let rows = self.postgres().retry(run).await?;
        let mut kept = HashSet::new();
        for row in rows {
            kept.insert((JobNo(row.try_get(0)?), row.try_get::<_, i64>(1)?));
        }
        Ok(held.into_iter().filter(|job| !kept.contains(job)).map(|(no, _)| no).collect())
    }

    pub(in crate::store) async fn anything_due(&self, now: UnixMs) -> Result<bool, StoreError> {
        let rows = self.postgres().read(ANYTHING, &[&now.0]).await?;
        Ok(rows.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(false))
    }
}

/// What became of a claim.
enum Done {
    Claimed(Vec<Claimed>),
    /// The COMMIT got no answer.
    Unknown(Vec<Claimed>),
}

/// Jobs with their executions. Those that nobody has begun have none: most claims read no more than
/// the jobs.
async fn begun(tx: &Transaction, jobs: Vec<Job>) -> Result<Vec<Kept>, StoreError> {
    let old = |job: &&Job| job.state.fence > 0 || job.root_id != job.id;
    let found = executions(tx, jobs.iter().filter(old).map(|job| job.root_id)).await?;
    let kept = jobs.into_iter().map(|job| {
        let executions = found.get(&job.root_id).cloned().unwrap_or_default();
        Kept { job, executions }
    });
    Ok(kept.collect())
}

/// Of those whose first move is their end, only the ones whose conversation is free right now.
async fn keep_lockable(tx: &Transaction, claimed: &mut Vec<Claimed>) -> Result<(), StoreError> {
    let moves: Vec<&Advance> = claimed.iter().map(|job| &job.advance).collect();
    let locks = conversation_locks(&moves);
    if locks.is_empty() {
        return Ok(());
    }
    let rows = tx.query(lock::try_lock(), &locks.parameters()).await?;
    let had = rows.iter().map(|row| row.try_get(0));
    let had: HashSet<i32> = had.collect::<Result<_, _>>()?;
    claimed.retain(|Claimed { advance, .. }| {
        let name = advance.conversation.as_deref().filter(|_| frees_another(advance));
        name.is_none_or(|name| had.contains(&Lock::Conversation(name).number()))
    });
    Ok(())
}
