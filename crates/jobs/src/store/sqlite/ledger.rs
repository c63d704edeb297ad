//! The table `ledger`: what happened, line by line.

use rusqlite::{Connection, params};
use semel_core::clock::UnixMs;
use semel_store::{StoreError, statements};

use super::SqliteStore;
use super::job::{by_no, no_of};
use super::row::Id;
use crate::store::{JobNo, Ledger, LedgerEvent, LedgerLine, Line, corrupt};

statements! {
    ADD = "
        INSERT INTO ledger (job_no, entry, at, event, step_id, detail)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

    AFTER = "
        SELECT entry, at, event, step_id, detail
          FROM ledger
         WHERE job_no = ?1
           AND entry > ?2
         ORDER BY entry
         LIMIT ?3";

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
            let lines = lines(tx, no, after, limit)?;
            Ok(Some(Ledger { lines, status: job.state.status, entries: job.state.entries }))
        });
        read.await
    }
}

fn lines(
    tx: &Connection,
    no: JobNo,
    after: i64,
    limit: u32,
) -> Result<Vec<LedgerLine>, StoreError> {
    let mut statement = tx.prepare_cached(AFTER)?;
    let mut rows = statement.query(params![no.0, after, limit])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let entry: i64 = row.get(0)?;
        let event: String = row.get(2)?;
        let wrong = || corrupt("ledger", format!("{}/{entry}", no.0), "no such event");
        let line = Line {
            event: LedgerEvent::parse(&event).ok_or_else(wrong)?,
            step_id: row.get(3)?,
            detail: row.get(4)?,
        };
        found.push(LedgerLine { entry, at: UnixMs(row.get(1)?), line });
    }
    Ok(found)
}

/// The last line gets the number `last`.
pub(super) fn add_in_tx(
    tx: &Connection,
    no: JobNo,
    lines: &[Line],
    last: i64,
    now: UnixMs,
) -> Result<(), StoreError> {
    let mut entry = last - i64::try_from(lines.len()).unwrap_or(0);
    for line in lines {
        entry += 1;
        let (event, step) = (line.event.as_str(), &line.step_id);
        tx.prepare_cached(ADD)?.execute(params![no.0, entry, now.0, event, step, line.detail])?;
    }
    Ok(())
}

pub(super) fn forget_in_tx(tx: &Connection, no: JobNo) -> Result<(), StoreError> {
    tx.prepare_cached(FORGET)?.execute(params![no.0])?;
    Ok(())
}
