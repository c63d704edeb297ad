//! The table `job`: who asked for whom, and who repeats whom.

use rusqlite::{OptionalExtension, params};
use semel_store::{StoreError, statements};

use super::SqliteStore;
use super::row::{Id, id_of, key};
use crate::life::JobStatus;
use crate::store::{JobNo, corrupt};

statements! {
    NEWEST_REPEAT = "
        SELECT id, status
          FROM job INDEXED BY job_root
         WHERE root_id = ?1
           AND retry_of IS NOT NULL
         ORDER BY no DESC
         LIMIT 1";

    /// A parent that is repeated asks for the same sub-jobs: the newest of them decides.
    ORPHANS = "
        SELECT child.id
          FROM job AS child INDEXED BY job_parent
         WHERE child.parent_id IS NOT NULL
           AND child.completed_at IS NULL
           AND (SELECT COALESCE((SELECT again.status
                                   FROM job AS again
                                  WHERE again.root_id = parent.root_id
                                    AND again.retry_of IS NOT NULL
                                  ORDER BY again.no DESC
                                  LIMIT 1), parent.status)
                  FROM job AS parent
                 WHERE parent.id = child.parent_id) = 'cancelled'
         ORDER BY child.parent_id
         LIMIT ?1";

    NOTE_RESTORED = "
        INSERT INTO restored (one, until_no)
        SELECT 1, COALESCE(max(no), 0)
          FROM job
         WHERE no > 0
            ON CONFLICT (one) DO UPDATE
           SET until_no = excluded.until_no";

    RESTORED = "
        SELECT until_no
          FROM restored
         WHERE one = 1";
}

impl SqliteStore {
    pub(in crate::store) async fn note_restored(&self) -> Result<(), StoreError> {
        self.sqlite.write(|tx| Ok(tx.prepare_cached(NOTE_RESTORED)?.execute([]).map(drop)?)).await
    }

    pub(in crate::store) async fn is_restored(&self, no: JobNo) -> Result<bool, StoreError> {
        let read = self.sqlite.read(move |tx| {
            let mut statement = tx.prepare_cached(RESTORED)?;
            let until: Option<i64> = statement.query_row([], |row| row.get(0)).optional()?;
            Ok(until.is_some_and(|until| no.0 <= until))
        });
        read.await
    }

    pub(in crate::store) async fn newest_repeat(
        &self,
        root_id: Id,
    ) -> Result<Option<(Id, JobStatus)>, StoreError> {
        let read = self.sqlite.read(move |tx| {
            let mut statement = tx.prepare_cached(NEWEST_REPEAT)?;
            let found = statement.query_row(params![key(root_id)], |row| {
                Ok((id_of(row.get(0)?), row.get::<_, String>(1)?))
            });
            let Some((id, status)) = found.optional()? else { return Ok(None) };
            let wrong = || corrupt("job", id, format!("{status:?} is no status"));
            Ok(Some((id, JobStatus::parse(&status).ok_or_else(wrong)?)))
        });
        read.await
    }

    pub(in crate::store) async fn orphans(&self, limit: u32) -> Result<Vec<Id>, StoreError> {
        let read = self.sqlite.read(move |tx| {
            let mut statement = tx.prepare_cached(ORPHANS)?;
            let rows = statement.query_map([limit], |row| row.get(0).map(id_of))?;
            Ok(rows.collect::<Result<_, _>>()?)
        });
        read.await
    }
}
