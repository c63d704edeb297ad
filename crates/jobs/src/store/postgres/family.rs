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
        SELECT child.id
          FROM jobs.job AS child
         WHERE child.parent_id IS NOT NULL
           AND child.completed_at IS NULL
           AND (SELECT COALESCE((SELECT again.status
                                   FROM jobs.job AS again
                                  WHERE again.root_id = parent.root_id
                                    AND again.retry_of IS NOT NULL
                                  ORDER BY again.no DESC
                                  LIMIT 1), parent.status)
                  FROM jobs.job AS parent
                 WHERE parent.id = child.parent_id) = 'cancelled'
         ORDER BY child.parent_id
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
