//! The table `job`: dead letters, questions that nobody answered, and what is too old.

use semel_core::clock::UnixMs;
use semel_store::{StoreError, statements};
use tokio_postgres::Row;
use uuid::Uuid;

use super::row::Id;
use super::{PostgresStore, execution, ledger};
use crate::gear::FailureClass;
use crate::store::{Pattern, corrupt};

statements! {
    PATTERNS = "
        SELECT failure_class, failed_action, count(*), max(completed_at)
          FROM jobs.job
         WHERE completed_at >= $1
           AND failure_class IS NOT NULL
         GROUP BY failure_class, failed_action
         ORDER BY count(*) DESC, failure_class, failed_action NULLS FIRST
         LIMIT 100";

    /// Of a job and those that repeat it only the last counts.
    FAILED = "
        -- Differs from sqlite: a limit inside, or a plan may first read whatever was repeated.
        SELECT no, id
          FROM jobs.job
         WHERE failure_class = $1
           AND no > $2
           AND (SELECT 1
                  FROM jobs.job AS repeat
                 WHERE repeat.root_id = job.root_id
                   AND repeat.retry_of IS NOT NULL
                   AND repeat.no > job.no
                 LIMIT 1) IS NULL
         ORDER BY no
         LIMIT $3";

    EXPIRED = "
        SELECT id
          FROM jobs.job
         WHERE expires_at <= $1
         ORDER BY expires_at, no
         LIMIT $2";

    /// The root of others goes after them: its executions are theirs, too. So does a sub-job after
    /// its parent: whose gear, run again, would have it made again.
    OLD = "
        -- Differs from sqlite: a limit inside, or a plan may first read whatever was repeated.
        SELECT no
          FROM jobs.job
         WHERE completed_at < $1
           AND (retry_of IS NOT NULL
                OR (SELECT 1
                      FROM jobs.job AS repeat
                     WHERE repeat.root_id = job.id
                       AND repeat.retry_of IS NOT NULL
                     LIMIT 1) IS NULL)
           AND (parent_id IS NULL
                OR (SELECT 1
                      FROM jobs.job AS parent
                     WHERE parent.id = job.parent_id
                     LIMIT 1) IS NULL)
         ORDER BY completed_at, no
         LIMIT $2
           FOR UPDATE OF job SKIP LOCKED";

    /// A key stays. That of a sub-job is known to its parent's gear only, which is gone by now.
    KNOWN = "
        SELECT id
          FROM jobs.job
         WHERE id = ANY ($1::uuid[])";

    REMOVE = "
        -- Differs from sqlite: a repeat may have come since they were looked for. Whoever repeats
        -- one holds it, so that none can come any more.
        WITH removed AS (
            DELETE FROM jobs.job
             WHERE no = ANY ($1::bigint[])
               AND (retry_of IS NOT NULL
                    OR (SELECT 1
                          FROM jobs.job AS repeat
                         WHERE repeat.root_id = job.id
                           AND repeat.retry_of IS NOT NULL
                         LIMIT 1) IS NULL)
         RETURNING no, id, root_id, retry_of, completed_at, source, key, fingerprint, status
        ), spent AS (
            INSERT INTO jobs.spent_key (scope, key, fingerprint, job_id, status, ended_at)
            SELECT 'job', key, fingerprint, id, status, completed_at
              FROM removed
             WHERE key IS NOT NULL
               AND source <> 'sub_job'
        )
        SELECT no, id, root_id, retry_of, completed_at
          FROM removed";
}

impl PostgresStore {
    pub(in crate::store) async fn patterns(
        &self,
        since: UnixMs,
    ) -> Result<Vec<Pattern>, StoreError> {
        let rows = self.postgres().read(PATTERNS, &[&since.0]).await?;
        let pattern = |row: &Row| {
            let class: &str = row.try_get(0)?;
            let wrong = || corrupt("job", "", format!("{class:?} is no class"));
            Ok(Pattern {
                class: FailureClass::parse(class).ok_or_else(wrong)?,
                action: row.try_get(1)?,
                count: row.try_get::<_, i64>(2)?.cast_unsigned(),
                last_at: UnixMs(row.try_get(3)?),
            })
        };
        rows.iter().map(pattern).collect()
    }

    pub(in crate::store) async fn failed(
        &self,
        class: FailureClass,
        after: i64,
        limit: u32,
    ) -> Result<Vec<(i64, Id)>, StoreError> {
        let by: super::Parameters<'_> = &[&class.as_str(), &after, &i64::from(limit)];
        let rows = self.postgres().read(FAILED, by).await?;
        rows.iter().map(|row| Ok((row.try_get(0)?, Id::new(row.try_get(1)?)))).collect()
    }

    pub(in crate::store) async fn expired(
        &self,
        now: UnixMs,
        limit: u32,
    ) -> Result<Vec<Id>, StoreError> {
        let rows = self.postgres().read(EXPIRED, &[&now.0, &i64::from(limit)]).await?;
        rows.iter().map(|row| Ok(Id::new(row.try_get(0)?))).collect()
    }

    pub(in crate::store) async fn sweep(
        &self,
        before: UnixMs,
        limit: u32,
    ) -> Result<Vec<Id>, StoreError> {
        self.postgres().retry(|| self.sweep_once(before, limit)).await
    }

    async fn sweep_once(&self, before: UnixMs, limit: u32) -> Result<Vec<Id>, StoreError> {
        let by: super::Parameters<'_> = &[&before.0, &i64::from(limit)];
        let (tx, mut rows) = self.postgres().begin_with(&[(OLD, by)]).await?;
        let rows = rows.pop().unwrap_or_default();
        let nos = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i64>, _>>()?;
        if nos.is_empty() {
            return Ok(Vec::new());
        }
        let mut removed = Vec::new();
        let mut roots: Vec<Uuid> = Vec::new();
        for row in tx.query(REMOVE, &[&nos]).await? {
            let (no, id, root): (i64, Uuid, Uuid) =
                (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            if row.try_get::<_, Option<Uuid>>(3)?.is_none() {
                roots.push(root);
            }
            removed.push((row.try_get::<_, i64>(4)?, no, id));
        }
        removed.sort_unstable();
        let nos: Vec<i64> = removed.iter().map(|(_, no, _)| *no).collect();
        ledger::forget_in_tx(&tx, &nos).await?;
        execution::forget_in_tx(&tx, &roots).await?;
        tx.commit().await?;
        Ok(removed.into_iter().map(|(_, _, id)| Id::new(id)).collect())
    }

    pub(in crate::store) async fn known(&self, ids: Vec<Id>) -> Result<Vec<Id>, StoreError> {
        let ids: Vec<Uuid> = ids.iter().map(Id::as_uuid).collect();
        let rows = self.postgres().read(KNOWN, &[&ids]).await?;
        rows.iter().map(|row| Ok(Id::new(row.try_get(0)?))).collect()
    }
}
