//! The table `job`: dead letters, questions that nobody answered, and what is too old.

use rusqlite::{OptionalExtension, params};
use semel_core::clock::UnixMs;
use semel_store::{StoreError, statements};

use super::job::{by_no, id_at, no_of};
use super::row::{Id, id_of};
use super::{SqliteStore, execution, ledger};
use crate::gear::FailureClass;
use crate::store::{Age, JobNo, Pattern, corrupt};

statements! {
    PATTERNS = "
        SELECT failure_class, failed_action, count(*), max(completed_at)
          FROM job
         WHERE completed_at >= ?1
           AND failure_class IS NOT NULL
         GROUP BY failure_class, failed_action
         ORDER BY count(*) DESC, failure_class, failed_action
         LIMIT 100";

    /// Of a job and those that repeat it only the last counts.
    FAILED = "
        SELECT no, id
          FROM job
         WHERE failure_class = ?1
           AND no > ?2
           AND NOT EXISTS (SELECT 1
                             FROM job AS repeat
                            WHERE repeat.root_id = job.root_id
                              AND repeat.retry_of IS NOT NULL
                              AND repeat.no > job.no)
         ORDER BY no
         LIMIT ?3";

    EXPIRED = "
        SELECT no
          FROM job
         WHERE expires_at <= ?1
         ORDER BY expires_at, no
         LIMIT ?2";

    /// The first job that came since then, and not later than now.
    YOUNG = "
        -- Differs from postgres: all times there are of one clock, the server's.
        SELECT no
          FROM job
         WHERE created_at BETWEEN ?1 AND ?2
         ORDER BY no
         LIMIT 1";

    /// The root of others goes after them: its executions are theirs, too. So does a sub-job after
    /// its parent: whose gear, run again, would have it made again. What came after a young one is
    /// young itself, whatever a calendar has said that was behind for a while.
    OLD = "
        SELECT no
          FROM job
         WHERE completed_at < ?1
           AND no < ?3
           AND (retry_of IS NOT NULL
                OR NOT EXISTS (SELECT 1
                                 FROM job AS repeat
                                WHERE repeat.root_id = job.id
                                  AND repeat.retry_of IS NOT NULL))
           AND (parent_id IS NULL
                OR NOT EXISTS (SELECT 1 FROM job AS parent WHERE parent.id = job.parent_id))
         ORDER BY completed_at, no
         LIMIT ?2";

    /// A key stays. That of a sub-job is known to its parent's gear only, which is gone by now.
    SPEND = "
        INSERT INTO spent_key (scope, key, fingerprint, job_id, status, ended_at)
        SELECT 'job', key, fingerprint, id, status, completed_at
          FROM job
         WHERE no = ?1
           AND key IS NOT NULL
           AND source <> 'sub_job'";

    REMOVE = "
        DELETE FROM job
         WHERE no = ?1";
}

impl SqliteStore {
    pub(in crate::store) async fn patterns(
        &self,
        since: UnixMs,
    ) -> Result<Vec<Pattern>, StoreError> {
        let read = self.sqlite.read(move |tx| {
            let mut statement = tx.prepare_cached(PATTERNS)?;
            let mut rows = statement.query(params![since.0])?;
            let mut found = Vec::new();
            while let Some(row) = rows.next()? {
                let class: String = row.get(0)?;
                let wrong = || corrupt("job", "", format!("{class:?} is no class"));
                found.push(Pattern {
                    class: FailureClass::parse(&class).ok_or_else(wrong)?,
                    action: row.get(1)?,
                    count: row.get::<_, i64>(2)?.cast_unsigned(),
                    last_at: UnixMs(row.get(3)?),
                });
            }
            Ok(found)
        });
        read.await
    }

    pub(in crate::store) async fn failed(
        &self,
        class: FailureClass,
        after: i64,
        limit: u32,
    ) -> Result<Vec<(i64, Id)>, StoreError> {
        let read = self.sqlite.read(move |tx| {
            let mut statement = tx.prepare_cached(FAILED)?;
            let by = params![class.as_str(), after, limit];
            let rows = statement.query_map(by, |row| Ok((row.get(0)?, id_of(row.get(1)?))))?;
            Ok(rows.collect::<Result<_, _>>()?)
        });
        read.await
    }

    pub(in crate::store) async fn expired(
        &self,
        now: UnixMs,
        limit: u32,
    ) -> Result<Vec<Id>, StoreError> {
        let read = self.sqlite.read(move |tx| {
            let mut statement = tx.prepare_cached(EXPIRED)?;
            let rows = statement.query_map(params![now.0, limit], |row| row.get(0).map(JobNo))?;
            let mut found = Vec::new();
            for no in rows {
                found.extend(id_at(tx, no?)?);
            }
            Ok(found)
        });
        read.await
    }

    pub(in crate::store) async fn sweep(
        &self,
        Age { before, now }: Age,
        limit: u32,
    ) -> Result<Vec<Id>, StoreError> {
        // Before the writer's turn: it passes by all that is old. Later jobs have higher numbers.
        let read = self.sqlite.read(move |tx| {
            let mut statement = tx.prepare_cached(YOUNG)?;
            Ok(statement.query_row(params![before.0, now.0], |row| row.get(0)).optional()?)
        });
        let young: i64 = read.await?.unwrap_or(i64::MAX);
        let write = self.sqlite.write(move |tx| {
            let mut statement = tx.prepare_cached(OLD)?;
            let by = params![before.0, limit, young];
            let rows = statement.query_map(by, |row| row.get(0).map(JobNo))?;
            let mut removed = Vec::new();
            for no in rows.collect::<Result<Vec<_>, _>>()? {
                let Some(job) = by_no(tx, no)? else { continue };
                if job.retry_of.is_none() {
                    execution::forget_in_tx(tx, job.root_id)?;
                }
                tx.prepare_cached(SPEND)?.execute(params![no.0])?;
                tx.prepare_cached(REMOVE)?.execute(params![no.0])?;
                // A ledger goes only after its job.
                ledger::forget_in_tx(tx, no)?;
                removed.push(job.id);
            }
            Ok(removed)
        });
        write.await
    }

    pub(in crate::store) async fn known(&self, mut ids: Vec<Id>) -> Result<Vec<Id>, StoreError> {
        let read = self.sqlite.read(move |tx| {
            let mut found = Ok(());
            ids.retain(|id| match no_of(tx, *id) {
                Ok(no) => no.is_some(),
                Err(error) => {
                    found = Err(error);
                    true
                }
            });
            found.map(|()| ids)
        });
        read.await
    }
}
