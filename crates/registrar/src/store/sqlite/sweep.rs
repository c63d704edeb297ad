//! The table `sweep`, and what it lets the ledgers forget.

use rusqlite::named_params;
use semel_core::clock::UnixMs;
use semel_store::{StoreError, statements};

use super::SqliteStore;
use crate::store::{Entry, Pass, old_among};

statements! {
    SWEEP = "
        INSERT INTO sweep (before, at)
        VALUES (:before, :now)";

    /// Of each ledger the last line, and of the grants the one that ends last: no other is found
    /// without reading them all.
    NEWEST = "
        SELECT nullif(max(coalesce((SELECT at
                                      FROM attempt
                                     WHERE entry = (SELECT max(entry) FROM attempt)), 0),
                          coalesce((SELECT at
                                      FROM failure_audit
                                     WHERE entry = (SELECT max(entry) FROM failure_audit)), 0),
                          coalesce((SELECT issued_at
                                      FROM grant_issued
                                     WHERE not_after = (SELECT max(not_after)
                                                          FROM grant_issued)), 0)), 0)";

    NEXT_ATTEMPTS = "
        SELECT entry, at
          FROM attempt
         WHERE entry > :after
         ORDER BY entry
         LIMIT :limit";

    SWEEP_STARTED = "
        DELETE FROM attempt
         WHERE entry > :after
           AND entry <= :last
           AND event = 'started'
           AND at < :before
           AND EXISTS (SELECT 1
                         FROM attempt AS closing
                        WHERE closing.closes = attempt.entry
                          AND closing.at < :before)";

    SWEEP_ENDED = "
        DELETE FROM attempt
         WHERE entry > :after
           AND entry <= :last
           AND event <> 'started'
           AND at < :before
           AND NOT EXISTS (SELECT 1
                             FROM attempt AS started
                            WHERE started.entry = attempt.closes)";

    NEXT_FAILURES = "
        SELECT entry, at
          FROM failure_audit
         WHERE entry > :after
         ORDER BY entry
         LIMIT :limit";

    SWEEP_FAILURES = "
        DELETE FROM failure_audit
         WHERE entry > :after
           AND entry <= :last
           AND at < :before";

    SWEEP_GRANTS = "
        DELETE FROM grant_issued
         WHERE authorization_nonce IN (SELECT over.authorization_nonce
                                         FROM grant_issued AS over
                                        WHERE over.not_after < :before
                                          AND over.issued_at < :before
                                        LIMIT :limit)";
}

impl SqliteStore {
    pub(in crate::store) async fn sweep_begin(
        &self,
        before: UnixMs,
        now: UnixMs,
    ) -> Result<(), StoreError> {
        let write = self.sqlite.write(move |tx| {
            tx.prepare_cached(SWEEP)?
                .execute(named_params! {":before": before.0, ":now": now.0})?;
            Ok(())
        });
        write.await
    }

    /// When something was last written that a sweep may take.
    pub(in crate::store) async fn newest(&self) -> Result<Option<UnixMs>, StoreError> {
        let read = self.sqlite.read(|connection| {
            let newest: Option<i64> =
                connection.prepare_cached(NEWEST)?.query_row([], |row| row.get(0))?;
            Ok(newest.map(UnixMs))
        });
        read.await
    }

    pub(in crate::store) async fn attempt_sweep(
        &self,
        before: UnixMs,
        after: Entry,
        limit: i64,
    ) -> Result<Pass, StoreError> {
        self.ledger_sweep(NEXT_ATTEMPTS, &[SWEEP_STARTED, SWEEP_ENDED], (before, after, limit))
            .await
    }

    pub(in crate::store) async fn failure_sweep(
        &self,
        before: UnixMs,
        after: Entry,
        limit: i64,
    ) -> Result<Pass, StoreError> {
        self.ledger_sweep(NEXT_FAILURES, &[SWEEP_FAILURES], (before, after, limit)).await
    }

    /// The lines after `after`, in their order; over when all that come next are too young.
    async fn ledger_sweep(
        &self,
        next: &'static str,
        sweeps: &'static [&'static str],
        (before, after, limit): (UnixMs, Entry, i64),
    ) -> Result<Pass, StoreError> {
        let write = self.sqlite.write(move |tx| {
            let by = named_params! {":after": after.0, ":limit": limit};
            let mut next = tx.prepare_cached(next)?;
            let lines = next.query_map(by, |row| Ok((row.get(0)?, row.get(1)?)))?;
            let Some(last) = old_among(lines.collect::<Result<_, _>>()?, before) else {
                return Ok(Pass::OVER);
            };
            let mut rows = 0;
            for sweep in sweeps {
                let by = named_params! {":after": after.0, ":last": last.0, ":before": before.0};
                rows += tx.prepare_cached(sweep)?.execute(by)? as u64;
            }
            Ok(Pass { rows, next: Some(last) })
        });
        write.await
    }

    pub(in crate::store) async fn grant_sweep(
        &self,
        before: UnixMs,
        limit: i64,
    ) -> Result<u64, StoreError> {
        let write = self.sqlite.write(move |tx| {
            let by = named_params! {":before": before.0, ":limit": limit};
            Ok(tx.prepare_cached(SWEEP_GRANTS)?.execute(by)?)
        });
        write.await.map(|rows| rows as u64)
    }
}
