//! The table `ledger`: what happened, line by line.

use semel_core::clock::UnixMs;
use semel_store::postgres::Transaction;
use semel_store::{StoreError, statements};

use super::PostgresStore;
use super::row::{Id, count};
use crate::life::JobStatus;
use crate::store::{Advance, Ledger, LedgerEvent, LedgerLine, Line, corrupt};

statements! {
    ADD = "
        INSERT INTO jobs.ledger (job_no, entry, at, event, step_id, detail)
        SELECT new.job_no, new.entry, new.at, new.event, new.step_id, new.detail::json
          FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[])
               AS new (job_no, entry, at, event, step_id, detail)";

    STANDING = "
        SELECT no, status, entries
          FROM jobs.job
         WHERE id = $1";

    AFTER = "
        SELECT entry, at, event, step_id, detail::text
          FROM jobs.ledger
         WHERE job_no = $1
           AND entry > $2
         ORDER BY entry
         LIMIT $3";

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
        let lines = lines(&tx, no, after, limit).await?;
        Ok(Some(Ledger { lines, status, entries }))
    }
}

async fn lines(
    tx: &Transaction,
    no: i64,
    after: i64,
    limit: u32,
) -> Result<Vec<LedgerLine>, StoreError> {
    let rows = tx.query(AFTER, &[&no, &after, &i64::from(limit)]).await?;
    let line = |row: &tokio_postgres::Row| {
        let entry: i64 = row.try_get(0)?;
        let event: &str = row.try_get(2)?;
        let wrong = || corrupt("ledger", format!("{no}/{entry}"), "no such event");
        let line = Line {
            event: LedgerEvent::parse(event).ok_or_else(wrong)?,
            step_id: row.try_get(3)?,
            detail: row.try_get(4)?,
        };
        Ok(LedgerLine { entry, at: UnixMs(row.try_get(1)?), line })
    };
    rows.iter().map(line).collect()
}

pub(super) async fn forget_in_tx(tx: &Transaction, nos: &[i64]) -> Result<(), StoreError> {
    tx.execute(FORGET, &[&nos]).await.map(drop)
}

/// The parameters of `ADD`, kept alive.
#[derive(Default)]
pub(super) struct Lines<'a> {
    jobs: Vec<i64>,
    entries: Vec<i64>,
    at: Vec<i64>,
    events: Vec<&'static str>,
    steps: Vec<Option<&'a str>>,
    details: Vec<&'a str>,
}

impl<'a> Lines<'a> {
    pub(super) const SQL: &'static str = ADD;

    /// The last line of each gets the number `state.entries`.
    pub(super) fn of(advances: &[&'a Advance]) -> Self {
        let mut lines = Self::default();
        for advance in advances {
            let mut entry = advance.state.entries - count(advance.lines.len());
            for line in &advance.lines {
                entry += 1;
                lines.jobs.push(advance.no.0);
                lines.entries.push(entry);
                lines.at.push(advance.now.0);
                lines.events.push(line.event.as_str());
                lines.steps.push(line.step_id.as_deref());
                lines.details.push(&line.detail);
            }
        }
        lines
    }

    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    pub(super) fn parameters(&self) -> [&(dyn tokio_postgres::types::ToSql + Sync); 6] {
        [&self.jobs, &self.entries, &self.at, &self.events, &self.steps, &self.details]
    }
}
