//! The table `job`: who asked for whom, and who repeats whom.

use semel_store::{StoreError, statements};
use uuid::Uuid;

use super::PostgresStore;
use super::row::Id;
use crate::life::JobStatus;
use crate::store::{JobNo, corrupt};

statements! {
    NEWEST_REPEAT = "
        SELECT id, status
          FROM jobs.job
         WHERE root_id = $1
           AND retry_of IS NOT NULL
         ORDER BY no DESC
         LIMIT 1";

    /// A parent that is repeated asks for the same sub-jobs: the newest of them decides.
    NOTE_RESTORED = "
        INSERT INTO jobs.restored (one, until_no)
        SELECT TRUE, COALESCE((SELECT no FROM jobs.job ORDER BY no DESC LIMIT 1), 0)
            ON CONFLICT (one) DO UPDATE
           SET until_no = excluded.until_no";

    IS_RESTORED = "
        SELECT 1
          FROM jobs.restored
         WHERE one
           AND until_no >= $1";

    ORPHANS = "
        -- Differs from sqlite: from parent to parent, each of which is looked at once, whatever it
        -- has asked for.
        WITH RECURSIVE parent AS (
            (SELECT first.parent_id
               FROM jobs.job AS first
              WHERE first.parent_id IS NOT NULL
                AND first.completed_at IS NULL
              ORDER BY first.parent_id
              LIMIT 1)
             UNION ALL
            SELECT next.parent_id
              FROM parent,
                   LATERAL (SELECT other.parent_id
                              FROM jobs.job AS other
                             WHERE other.parent_id > parent.parent_id
                               AND other.completed_at IS NULL
                             ORDER BY other.parent_id
                             LIMIT 1) AS next
        )
        SELECT orphan.id
          FROM parent,
               LATERAL (SELECT child.id
                          FROM jobs.job AS child
                         WHERE child.parent_id = parent.parent_id
                           AND child.completed_at IS NULL
                           AND (SELECT COALESCE((SELECT again.status
                                                   FROM jobs.job AS again
                                                  WHERE again.root_id = asking.root_id
                                                    AND again.retry_of IS NOT NULL
                                                  ORDER BY again.no DESC
                                                  LIMIT 1), asking.status)
                                  FROM jobs.job AS asking
                                 WHERE asking.id = parent.parent_id
                                 LIMIT 1) = 'cancelled'
                         LIMIT $1) AS orphan
         LIMIT $1";
}

impl PostgresStore {
    pub(in crate::store) async fn newest_repeat(
        &self,
        root_id: Id,
    ) -> Result<Option<(Id, JobStatus)>, StoreError> {
        let rows = self.postgres().read(NEWEST_REPEAT, &[&root_id.as_uuid()]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let (id, status): (Uuid, &str) = (row.try_get(0)?, row.try_get(1)?);
        let wrong = || corrupt("job", id, format!("{status:?} is no status"));
        Ok(Some((Id::new(id), JobStatus::parse(status).ok_or_else(wrong)?)))
    }

    pub(in crate::store) async fn note_restored(&self) -> Result<(), StoreError> {
        self.postgres().write(NOTE_RESTORED, &[]).await.map(drop)
    }

    pub(in crate::store) async fn is_restored(&self, no: JobNo) -> Result<bool, StoreError> {
        Ok(!self.postgres().read(IS_RESTORED, &[&no.0]).await?.is_empty())
    }

    pub(in crate::store) async fn orphans(&self, limit: u32) -> Result<Vec<Id>, StoreError> {
        let rows = self.postgres().read(ORPHANS, &[&i64::from(limit)]).await?;
        rows.iter().map(|row| Ok(Id::new(row.try_get(0)?))).collect()
    }
}
