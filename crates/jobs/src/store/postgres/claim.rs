//! The table `job`: claiming. What is due goes first, then what waits, by priority and age; both
//! are read from the end of an index that holds nothing else, so that the cost is flat.
//!
//! Differs from sqlite: any number of engines claim at once, each what no other holds. A claim
//! waits for nobody; a job whose end would have to wait for its conversation is left for the next
//! one. Whether a lease is over is judged by the server's clock, whatever those of the engines say.

use std::collections::HashSet;
use std::time::Duration;

use semel_core::clock::UnixMs;
use semel_store::postgres::Transaction;
use semel_store::{StoreError, statements};

use super::PostgresStore;
use super::advance::{conversation_locks, frees_another, let_go, wakes_another, write_and_commit};
use super::execution::executions;
use super::lock::{self, Lock};
use super::row;
use super::settle::Settled;
use crate::limits::HOME_REMEMBERED;
use crate::store::{Advance, Begin, Claim, Claimed, Home, Job, JobNo, Kept, Neighbour, corrupt};

statements! {
    CLAIMABLE = "
        -- Limits inside, so that every look-up goes row by row, whatever the plan was made on. By
        -- home, so that nothing is read of what waits for another engine; a few more are locked
        -- than are claimed then, which whoever looks meanwhile finds again at once.
        WITH RECURSIVE due_in (home) AS (
            (SELECT COALESCE(home, '')
               FROM jobs.job
              WHERE due_at IS NOT NULL
              ORDER BY COALESCE(home, '')
              LIMIT 1)
             UNION ALL
            SELECT (SELECT COALESCE(job.home, '')
                      FROM jobs.job
                     WHERE due_at IS NOT NULL
                       AND COALESCE(job.home, '') > due_in.home
                     ORDER BY COALESCE(job.home, '')
                     LIMIT 1)
              FROM due_in
             WHERE due_in.home IS NOT NULL
        ), waiting_in (home) AS (
            (SELECT COALESCE(home, '')
               FROM jobs.job
              WHERE ready
              ORDER BY COALESCE(home, '')
              LIMIT 1)
             UNION ALL
            SELECT (SELECT COALESCE(job.home, '')
                      FROM jobs.job
                     WHERE ready
                       AND COALESCE(job.home, '') > waiting_in.home
                     ORDER BY COALESCE(job.home, '')
                     LIMIT 1)
              FROM waiting_in
             WHERE waiting_in.home IS NOT NULL
        ), due AS (
            SELECT found.*
              FROM due_in
             CROSS JOIN LATERAL (
                   SELECT no, id, root_id, retry_of, parent_id, depth, source, priority,
                          conversation, request, carries_plan, key, answer::text, plan::text,
                          plan_no, status, step_index, revision_count, replan_count, fence,
                          worker, deaths, ready, due_at, held_by, budget_ms, deadline_at,
                          question::text, expires_at, error::text, failure_class,
                          failed_action, entries, started_at, completed_at, created_at, home,
                          asker, consent, grants::text, jobs.now_ms()
                     FROM jobs.job
                    WHERE due_at <= jobs.now_ms()
                      AND COALESCE(home, '') = due_in.home
                      AND no <> ALL ($2::bigint[])
                    ORDER BY due_at, no
                    LIMIT $1
                      FOR UPDATE SKIP LOCKED) AS found
             WHERE due_in.home IN ('', $3)
                OR (SELECT 1
                      FROM jobs.home AS other
                     WHERE other.id = due_in.home
                       AND other.seen_at > jobs.now_ms() - $4::bigint
                     LIMIT 1) IS NULL
             ORDER BY found.due_at, found.no
             LIMIT $1
        ), waiting AS (
            SELECT found.*
              FROM waiting_in
             CROSS JOIN LATERAL (
                   SELECT no, id, root_id, retry_of, parent_id, depth, source, priority,
                          conversation, request, carries_plan, key, answer::text, plan::text,
                          plan_no, status, step_index, revision_count, replan_count, fence,
                          worker, deaths, ready, due_at, held_by, budget_ms, deadline_at,
                          question::text, expires_at, error::text, failure_class,
                          failed_action, entries, started_at, completed_at, created_at, home,
                          asker, consent, grants::text, jobs.now_ms()
                     FROM jobs.job
                    WHERE ready
                      AND COALESCE(home, '') = waiting_in.home
                      AND no <> ALL ($2::bigint[])
                    ORDER BY priority, no
                    LIMIT $1 - (SELECT count(*) FROM due)
                      FOR UPDATE SKIP LOCKED) AS found
             WHERE waiting_in.home IN ('', $3)
                OR (SELECT 1
                      FROM jobs.home AS other
                     WHERE other.id = waiting_in.home
                       AND other.seen_at > jobs.now_ms() - $4::bigint
                     LIMIT 1) IS NULL
             ORDER BY found.priority, found.no
             LIMIT $1 - (SELECT count(*) FROM due)
        )
        TABLE due
        UNION ALL
        TABLE waiting";

    /// In milliseconds from now.
    NEXT_DUE = "
        WITH RECURSIVE due_in (home) AS (
            (SELECT COALESCE(home, '')
               FROM jobs.job
              WHERE due_at IS NOT NULL
              ORDER BY COALESCE(home, '')
              LIMIT 1)
             UNION ALL
            SELECT (SELECT COALESCE(job.home, '')
                      FROM jobs.job
                     WHERE due_at IS NOT NULL
                       AND COALESCE(job.home, '') > due_in.home
                     ORDER BY COALESCE(job.home, '')
                     LIMIT 1)
              FROM due_in
             WHERE due_in.home IS NOT NULL
        ), waiting_in (home) AS (
            (SELECT COALESCE(home, '')
               FROM jobs.job
              WHERE ready
              ORDER BY COALESCE(home, '')
              LIMIT 1)
             UNION ALL
            SELECT (SELECT COALESCE(job.home, '')
                      FROM jobs.job
                     WHERE ready
                       AND COALESCE(job.home, '') > waiting_in.home
                     ORDER BY COALESCE(job.home, '')
                     LIMIT 1)
              FROM waiting_in
             WHERE waiting_in.home IS NOT NULL
        )
        SELECT CASE WHEN EXISTS (
                    SELECT 1
                      FROM waiting_in
                     CROSS JOIN LATERAL (
                           SELECT 1
                             FROM jobs.job
                            WHERE ready
                              AND COALESCE(home, '') = waiting_in.home
                              AND no <> ALL ($1::bigint[])
                            LIMIT 1) AS found
                     WHERE waiting_in.home IN ('', $2)
                        OR (SELECT 1
                              FROM jobs.home AS other
                             WHERE other.id = waiting_in.home
                               AND other.seen_at > jobs.now_ms() - $3::bigint
                             LIMIT 1) IS NULL)
                    THEN 0
                    ELSE (SELECT min(found.due_at) - jobs.now_ms()
                            FROM due_in
                           CROSS JOIN LATERAL (
                                 SELECT due_at
                                   FROM jobs.job
                                  WHERE due_at IS NOT NULL
                                    AND COALESCE(home, '') = due_in.home
                                    AND no <> ALL ($1::bigint[])
                                  ORDER BY due_at, no
                                  LIMIT 1) AS found
                           WHERE due_in.home IN ('', $2)
                              OR (SELECT 1
                                    FROM jobs.home AS other
                                   WHERE other.id = due_in.home
                                     AND other.seen_at > jobs.now_ms() - $3::bigint
                                   LIMIT 1) IS NULL)
               END";

    TIME = "
        SELECT jobs.now_ms()";

    /// One commit says that an engine lives, and hears of the others and of the time.
    LIVE = "
        WITH said AS (
            INSERT INTO jobs.home (id, seen_at, actions)
            VALUES ($1, jobs.now_ms(), $2)
                ON CONFLICT (id) DO UPDATE
               SET seen_at = excluded.seen_at,
                   actions = excluded.actions)
        SELECT jobs.now_ms(), other.id, other.actions
          FROM (SELECT 1 AS one) AS always
          LEFT JOIN LATERAL (SELECT home.id, home.actions
                               FROM jobs.home
                              WHERE home.seen_at > jobs.now_ms() - $3::bigint
                                AND home.id <> $1
                              ORDER BY home.seen_at DESC
                              LIMIT 1000) AS other ON TRUE";

    HEARD_OF = "
        SELECT jobs.now_ms() - max(seen_at)
          FROM jobs.home
         WHERE seen_at BETWEEN jobs.now_ms() - $1::bigint AND jobs.now_ms() + $1::bigint";

    RENEW_HOLD = "
        SELECT no
          FROM jobs.job
         WHERE no = ANY ($1::bigint[])
         ORDER BY no
           FOR UPDATE";

    RENEW = "
        UPDATE jobs.job
           SET due_at = jobs.now_ms() + $3
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
                // As long as it can still be ours: nobody else would work on it meanwhile.
                let mut settled = self.settle_within(&moves, claim.lease).await?.into_iter();
                claimed.retain(|_| settled.next() == Some(Settled::Written));
                Ok(claimed)
            }
        }
    }

    async fn claim_once(&self, claim: &Claim, begin: &Begin) -> Result<Done, StoreError> {
        let held = numbers(&claim.held);
        let (home, lives_for) = home(claim.home.as_ref());
        let by: super::Parameters<'_> = &[&i64::from(claim.limit), &held, &home, &lives_for];
        let (tx, mut rows) = self.postgres().begin_with(&[(CLAIMABLE, by)]).await?;
        let rows = rows.pop().unwrap_or_default();
        let Some(first) = rows.first() else { return Ok(Done::Claimed(Vec::new())) };
        let now = UnixMs(first.try_get(first.len() - 1)?);
        let claim = Claim { now, ..claim.clone() };
        let jobs: Vec<Job> = rows.iter().map(row::job).collect::<Result<_, _>>()?;
        let claimed = begun(&tx, jobs).await?.into_iter().filter_map(|before| {
            let advance = begin(&before, &claim)?;
            Some(Claimed { before, advance })
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
                if moves.iter().any(|advance| wakes_another(advance)) {
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
        lease: Duration,
    ) -> Result<Vec<JobNo>, StoreError> {
        let lease = ms(lease);
        let nos: Vec<i64> = held.iter().map(|(no, _)| no.0).collect();
        let fences: Vec<i64> = held.iter().map(|(_, fence)| *fence).collect();
        let run = async || {
            let (tx, _) = self.postgres().begin_with(&[(RENEW_HOLD, &[&nos])]).await?;
            tx.query_and_commit(RENEW, &[&nos, &fences, &lease]).await
        };
        let rows = self.postgres().retry(run).await?;
        let mut kept = HashSet::new();
        for row in rows {
            kept.insert((JobNo(row.try_get(0)?), row.try_get::<_, i64>(1)?));
        }
        Ok(held.into_iter().filter(|job| !kept.contains(job)).map(|(no, _)| no).collect())
    }

    pub(in crate::store) async fn next_due(
        &self,
        held: Vec<JobNo>,
        at: Option<Home>,
    ) -> Result<Option<i64>, StoreError> {
        let (home, lives_for) = home(at.as_ref());
        let rows = self.postgres().read(NEXT_DUE, &[&numbers(&held), &home, &lives_for]).await?;
        Ok(rows.first().map(|row| row.try_get(0)).transpose()?.flatten())
    }

    /// The home's engine lives and can run this. Gives the other homes, and the time.
    pub(in crate::store) async fn live(
        &self,
        home: &str,
        actions: &[String],
    ) -> Result<(Vec<Neighbour>, UnixMs), StoreError> {
        let remembered = ms(HOME_REMEMBERED);
        let rows = self.postgres().write(LIVE, &[&home, &actions, &remembered]).await?;
        let missing = || corrupt("home", home, "the server has no time");
        let now = UnixMs(rows.first().ok_or_else(missing)?.try_get(0)?);
        let mut others = Vec::with_capacity(rows.len());
        for row in &rows {
            let Some(home) = row.try_get(1)? else { continue };
            let actions = row.try_get::<_, Vec<String>>(2)?.into_iter().collect();
            others.push(Neighbour { home, actions });
        }
        Ok((others, now))
    }

    /// What a clock that was ahead has written is nobody's life.
    pub(in crate::store) async fn heard_of(
        &self,
        within: Duration,
    ) -> Result<Option<Duration>, StoreError> {
        let within = i64::try_from(within.as_millis()).unwrap_or(i64::MAX);
        let rows = self.postgres().read(HEARD_OF, &[&within]).await?;
        let ago: Option<i64> = rows.first().map(|row| row.try_get(0)).transpose()?.flatten();
        Ok(ago.map(|ms| Duration::from_millis(ms.max(0).cast_unsigned())))
    }

    pub(in crate::store) async fn probe(&self) -> Result<(), StoreError> {
        self.postgres().probe().await
    }

    pub(in crate::store) async fn time(&self) -> Result<UnixMs, StoreError> {
        let rows = self.postgres().read(TIME, &[]).await?;
        let missing = || corrupt("job", "-", "the server has no time");
        Ok(UnixMs(rows.first().ok_or_else(missing)?.try_get(0)?))
    }
}

fn ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// As parameters of a statement.
fn home(home: Option<&Home>) -> (Option<&str>, i64) {
    (home.map(|home| home.id.as_str()), home.map_or(0, |home| ms(home.lives_for)))
}

fn numbers(nos: &[JobNo]) -> Vec<i64> {
    nos.iter().map(|no| no.0).collect()
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
