//! The table `ledger`: what happened, line by line.

use semel_core::clock::UnixMs;
use semel_store::postgres::Transaction;
use semel_store::{StoreError, statements};
use uuid::Uuid;

use super::PostgresStore;
use super::row::Id;
use crate::life::JobStatus;
use crate::store::{Advance, JobNo, Ledger, Source, corrupt, lines};

statements! {
    STANDING = "
        SELECT no, status, entries, created_at, source
          FROM jobs.job
         WHERE id = $1";

    AFTER = "
        SELECT entry, at, lines::text
          FROM jobs.ledger
         WHERE job_no = $1
           AND entry > $2
           AND entry < $3
         ORDER BY entry";

    FORGET = "
        DELETE FROM jobs.ledger
         WHERE job_no = ANY ($1::bigint[])";
}

impl PostgresStore {
    pub(in crate::store) async fn ledger(
        &self,
        id: Id,
        after: i64,
        limit: u32,
    ) -> Result<Option<Ledger>, StoreError> {
        let tx = self.postgres().snapshot().await?;
        let Some(row) = tx.query_opt(STANDING, &[&id.as_uuid()]).await? else { return Ok(None) };
        let (no, status, entries): (i64, &str, i64) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let wrong = || corrupt("job", id, "no such status");
        let status = JobStatus::parse(status).ok_or_else(wrong)?;
        let source: &str = row.try_get(4)?;
        let source = Source::parse(source).ok_or_else(|| corrupt("job", id, "no such source"))?;
        let at = UnixMs(row.try_get(3)?);
        let mut lines = lines::Lines::of((JobNo(no), at, source), after, limit);
        let (above, below) = lines::span(after, limit);
        for row in tx.query(AFTER, &[&no, &above, &below]).await? {
            let (entry, at) = (row.try_get(0)?, row.try_get(1)?);
            lines.add(&lines::Row { entry, at, lines: row.try_get(2)? })?;
        }
        Ok(Some(Ledger { lines: lines.into_found(), status, entries }))
    }
}

pub(super) async fn forget_in_tx(tx: &Transaction, nos: &[i64]) -> Result<(), StoreError> {
    tx.execute(FORGET, &[&nos]).await.map(drop)
}

/// The parameters of the lines in `ADVANCE`, kept alive.
#[derive(Default)]
pub(super) struct Added {
    jobs: Vec<i64>,
    roots: Vec<Uuid>,
    entries: Vec<i64>,
    at: Vec<i64>,
    lines: Vec<String>,
    fences: Vec<i64>,
}

impl Added {
    /// The last line of each gets the number `state.entries`.
    pub(super) fn of(advances: &[&Advance]) -> Self {
        let mut added = Self::default();
        for advance in advances {
            for (entry, text) in lines::rows(&advance.lines, advance.state.entries) {
                added.jobs.push(advance.no.0);
                added.roots.push(advance.root_id.as_uuid());
                added.entries.push(entry);
                added.at.push(advance.now.0);
                added.lines.push(text);
                added.fences.push(advance.state.fence);
            }
        }
        added
    }

    pub(super) fn parameters(&self) -> [&(dyn tokio_postgres::types::ToSql + Sync); 5] {
        [&self.jobs, &self.entries, &self.at, &self.lines, &self.fences]
    }

    /// By the ids of jobs that have no numbers yet and repeat no others.
    pub(super) fn of_new_jobs(&self) -> [&(dyn tokio_postgres::types::ToSql + Sync); 5] {
        [&self.roots, &self.entries, &self.at, &self.lines, &self.fences]
    }
}
