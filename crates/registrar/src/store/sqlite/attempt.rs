//! The tables `attempt` and `failure_audit`: written outside the transaction that may be undone.

use rusqlite::named_params;
use semel_core::clock::UnixMs;
use semel_store::sqlite::Tx;
use semel_store::{StoreError, statements};

use super::SqliteStore;
use crate::decide::Outcome;
use crate::key::LogicalRequestKey;
use crate::limits::RESOLVE_ATTEMPTS_MAX;
use crate::store::{Attempt, Audit, AuditLine, Entry};

statements! {
    START = "
        INSERT INTO attempt (event, logical_request_key, attempt_id, at)
        VALUES ('started', :key, :attempt_id, :now)
     RETURNING entry";

    CLOSE = "
        INSERT INTO attempt (event, logical_request_key, attempt_id, closes, outcome, at)
        SELECT 'closed', :key, :attempt_id, :entry, :outcome, :now
         WHERE NOT EXISTS (SELECT 1
                             FROM attempt
                            WHERE closes = :entry)";

    ANSWER = "
        INSERT INTO attempt (event, logical_request_key, attempt_id, outcome, at)
        VALUES ('answered', :key, :attempt_id, :outcome, :now)";

    FAILURE = "
        INSERT INTO failure_audit (domain, logical_request_key, authorization_nonce, attempt_id,
                                   outcome, at)
        VALUES (:domain, :key, :nonce, :attempt_id, :outcome, :now)";

    ATTEMPTS = "
        SELECT entry, event, logical_request_key, attempt_id, outcome, at, closes, NULL, NULL
          FROM attempt
         WHERE entry < :before
         ORDER BY entry DESC
         LIMIT :limit";

    FAILURES = "
        SELECT entry, 'refused', logical_request_key, attempt_id, outcome, at, NULL, domain,
               authorization_nonce
          FROM failure_audit
         WHERE entry < :before
         ORDER BY entry DESC
         LIMIT :limit";

    RESOLVE = "
        INSERT INTO attempt (event, logical_request_key, attempt_id, closes, outcome, at)
        SELECT 'closed', started.logical_request_key, started.attempt_id, started.entry, :outcome,
               :now
          FROM attempt AS started
         WHERE started.logical_request_key = :key
           AND started.event = 'started'
           AND NOT EXISTS (SELECT 1
                             FROM attempt AS closing
                            WHERE closing.closes = started.entry)
         ORDER BY started.entry
         LIMIT :limit";
}

impl SqliteStore {
    pub(in crate::store) async fn audit(
        &self,
        audit: Audit,
        before: i64,
        limit: u32,
    ) -> Result<Vec<AuditLine>, StoreError> {
        let sql = match audit {
            Audit::Attempts => ATTEMPTS,
            Audit::Failures => FAILURES,
        };
        let read = self.sqlite.read(move |tx| {
            let mut statement = tx.prepare_cached(sql)?;
            let by = named_params! {":before": before, ":limit": limit};
            let lines = statement.query_map(by, |row| {
                Ok(AuditLine {
                    entry: row.get(0)?,
                    event: row.get(1)?,
                    logical_request_key: row.get(2)?,
                    attempt_id: row.get(3)?,
                    outcome: row.get(4)?,
                    at: UnixMs(row.get(5)?),
                    closes: row.get(6)?,
                    domain: row.get(7)?,
                    nonce: row.get(8)?,
                })
            })?;
            Ok(lines.collect::<Result<_, _>>()?)
        });
        read.await
    }

    pub(in crate::store) async fn attempt_start(
        &self,
        attempt: &Attempt,
    ) -> Result<Entry, StoreError> {
        let (key, attempt_id) = (attempt.valid.logical_request_key, attempt.attempt_id.clone());
        let now = attempt.now;
        let write = self.sqlite.write(move |tx| {
            let by = named_params! {":key": key.0.0, ":attempt_id": attempt_id, ":now": now.0};
            Ok(Entry(tx.prepare_cached(START)?.query_row(by, |row| row.get(0))?))
        });
        write.await
    }

    pub(in crate::store) async fn attempt_end(
        &self,
        attempt: &Attempt,
        entry: Option<Entry>,
        outcome: Outcome,
    ) -> Result<(), StoreError> {
        let attempt = attempt.clone();
        let write = self.sqlite.write(move |tx| {
            match entry {
                Some(entry) => close_in_tx(tx, &attempt, entry, outcome)?,
                None => answer_in_tx(tx, &attempt, outcome)?,
            }
            if outcome.code().is_some() {
                failure_in_tx(tx, &attempt, outcome)?;
            }
            Ok(())
        });
        write.await
    }
}

pub(super) fn close_in_tx(
    tx: &Tx<'_>,
    attempt: &Attempt,
    entry: Entry,
    outcome: Outcome,
) -> Result<(), StoreError> {
    tx.prepare_cached(CLOSE)?.execute(named_params! {
        ":key": attempt.valid.logical_request_key.0.0, ":attempt_id": attempt.attempt_id,
        ":entry": entry.0, ":outcome": outcome.as_str(), ":now": attempt.now.0,
    })?;
    Ok(())
}

fn answer_in_tx(tx: &Tx<'_>, attempt: &Attempt, outcome: Outcome) -> Result<(), StoreError> {
    tx.prepare_cached(ANSWER)?.execute(named_params! {
        ":key": attempt.valid.logical_request_key.0.0, ":attempt_id": attempt.attempt_id,
        ":outcome": outcome.as_str(), ":now": attempt.now.0,
    })?;
    Ok(())
}

fn failure_in_tx(tx: &Tx<'_>, attempt: &Attempt, outcome: Outcome) -> Result<(), StoreError> {
    tx.prepare_cached(FAILURE)?.execute(named_params! {
        ":domain": attempt.valid.envelope.domain,
        ":key": attempt.valid.logical_request_key.0.0, ":nonce": attempt.grant.nonce.0.0,
        ":attempt_id": attempt.attempt_id, ":outcome": outcome.as_str(), ":now": attempt.now.0,
    })?;
    Ok(())
}

/// Closes the attempts of a key whose end nobody has told.
pub(super) fn resolve_in_tx(
    tx: &Tx<'_>,
    key: LogicalRequestKey,
    outcome: &str,
    now: UnixMs,
) -> Result<u64, StoreError> {
    let closed = tx.prepare_cached(RESOLVE)?.execute(named_params! {
        ":key": key.0.0, ":outcome": outcome, ":now": now.0, ":limit": RESOLVE_ATTEMPTS_MAX,
    })?;
    Ok(closed as u64)
}
