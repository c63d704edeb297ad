//! The table `ledger`: what happened, line by line.

use rusqlite::{Connection, params};
use semel_core::clock::UnixMs;
use semel_store::{StoreError, statements};

use super::SqliteStore;
use super::job::{by_no, no_of};
use super::row::Id;
use crate::store::lines::{Lines, Row, rows, span};
use crate::store::{Job, JobNo, Ledger, Line};

statements! {
    ADD = "
        INSERT INTO ledger (job_no, entry, at, lines)
        VALUES (?1, ?2, ?3, ?4)";

    AFTER = "
        SELECT entry, at, lines
          FROM ledger
         WHERE job_no = ?1
           AND entry > ?2
           AND entry < ?3
         ORDER BY entry";

    FORGET = "
        DELETE FROM ledger
         WHERE job_no = ?1";
}

impl SqliteStore {
    pub(in crate::store) async fn ledger(
        &self,
        id: Id,
        after: i64,
        limit: u32,
    ) -> Result<Option<Ledger>, StoreError> {
        let read = self.sqlite.read(move |tx| {
            let Some(no) = no_of(tx, id)? else { return Ok(None) };
            let Some(job) = by_no(tx, no)? else { return Ok(None) };
            let mut lines = Lines::of((no, job.created_at, job.source), after, limit);
            let (above, below) = span(after, limit);
            let mut statement = tx.prepare_cached(AFTER)?;
            let mut rows = statement.query(params![no.0, above, below])?;
            while let Some(row) = rows.next()? {
                let text: String = row.get(2)?;
                lines.add(&Row { entry: row.get(0)?, at: row.get(1)?, lines: &text })?;
            }
            let (status, entries) = (job.state.status, job.state.entries);
            Ok(Some(Ledger { lines: lines.into_found(), status, entries }))
        });
        read.await
    }
}

/// Reads all lines of a job, and keeps none.
pub(super) fn read_all(tx: &Connection, job: &Job) -> Result<(), StoreError> {
    let mut lines = Lines::of((job.no, job.created_at, job.source), 0, 0);
    let mut statement = tx.prepare_cached(AFTER)?;
    let mut rows = statement.query(params![job.no.0, i64::MIN, i64::MAX])?;
    while let Some(row) = rows.next()? {
        let text: String = row.get(2)?;
        lines.add(&Row { entry: row.get(0)?, at: row.get(1)?, lines: &text })?;
    }
    Ok(())
}

/// The last line gets the number `last`.
pub(super) fn add_in_tx(
    tx: &Connection,
    no: JobNo,
    lines: &[Line],
    last: i64,
    now: UnixMs,
) -> Result<(), StoreError> {
    for (entry, text) in rows(lines, last) {
        tx.prepare_cached(ADD)?.execute(params![no.0, entry, now.0, text])?;
    }
    Ok(())
}

pub(super) fn forget_in_tx(tx: &Connection, no: JobNo) -> Result<(), StoreError> {
    tx.prepare_cached(FORGET)?.execute(params![no.0])?;
    Ok(())
}
