//! The table `sweep`, and what it lets the ledgers forget.

use semel_core::clock::UnixMs;
use semel_store::{StoreError, statements};

use super::effect::overlooked;
use super::{Parameters, PostgresStore};
use crate::store::{Entry, Pass, old_among};

statements! {
    NOW = "
        SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";

    SWEEP = "
        INSERT INTO registrar.sweep (before, at)
        VALUES ($1, $2)";

    NEXT_ATTEMPTS = "
        SELECT entry, at
          FROM registrar.attempt
         WHERE entry > $1
         ORDER BY entry
         LIMIT $2";

    SWEEP_STARTED = "
        -- Limits inside, so that every look-up goes row by row, whatever the plan was made on.
        DELETE FROM registrar.attempt
         WHERE entry > $1
           AND entry <= $2
           AND event = 'started'
           AND at < $3
           AND (SELECT 1
                  FROM registrar.attempt AS closing
                 WHERE closing.closes = attempt.entry
                   AND closing.at < $3
                 LIMIT 1) IS NOT NULL";

    SWEEP_ENDED = "
        DELETE FROM registrar.attempt
         WHERE entry > $1
           AND entry <= $2
           AND event <> 'started'
           AND at < $3
           AND (SELECT 1
                  FROM registrar.attempt AS started
                 WHERE started.entry = attempt.closes
                 LIMIT 1) IS NULL";

    NEXT_FAILURES = "
        SELECT entry, at
          FROM registrar.failure_audit
         WHERE entry > $1
         ORDER BY entry
         LIMIT $2";

    SWEEP_FAILURES = "
        DELETE FROM registrar.failure_audit
         WHERE entry > $1
           AND entry <= $2
           AND at < $3";

    SWEEP_GRANTS = "
        DELETE FROM registrar.grant_issued
         WHERE authorization_nonce = ANY (ARRAY(SELECT over.authorization_nonce
                                                  FROM registrar.grant_issued AS over
                                                 WHERE over.not_after < $1
                                                   AND over.issued_at < $1
                                                 LIMIT $2))";
}

impl PostgresStore {
    pub(in crate::store) async fn now(&self) -> Result<UnixMs, StoreError> {
        let rows = self.postgres.read(NOW, &[]).await?;
        let row = rows.first().ok_or_else(overlooked)?;
        Ok(UnixMs(row.try_get(0)?))
    }

    pub(in crate::store) async fn sweep_begin(
        &self,
        before: UnixMs,
        now: UnixMs,
    ) -> Result<(), StoreError> {
        self.postgres.write(SWEEP, &[&before.0, &now.0]).await.map(drop)
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

    /// The lines after `after`, in their order; over when all that come next are too young. Two
    /// registrars that sweep at once find that the other one was faster.
    async fn ledger_sweep(
        &self,
        next: &'static str,
        sweeps: &'static [&'static str],
        (before, after, limit): (UnixMs, Entry, i64),
    ) -> Result<Pass, StoreError> {
        let run = async || {
            let by: Parameters<'_> = &[&after.0, &limit];
            let (tx, mut found) = self.postgres.begin_with(&[(next, by)]).await?;
            let mut lines = Vec::new();
            for row in found.pop().unwrap_or_default() {
                lines.push((row.try_get(0)?, row.try_get(1)?));
            }
            let Some(last) = old_among(lines, before) else { return Ok(Pass::OVER) };
            let mut rows = 0;
            for sweep in sweeps {
                rows += tx.execute(sweep, &[&after.0, &last.0, &before.0]).await?;
            }
            tx.commit().await.map(|()| Pass { rows, next: Some(last) })
        };
        self.postgres.retry(run).await
    }

    pub(in crate::store) async fn grant_sweep(
        &self,
        before: UnixMs,
        limit: i64,
    ) -> Result<u64, StoreError> {
        let run = async || {
            let tx = self.postgres.begin().await?;
            let rows = tx.execute(SWEEP_GRANTS, &[&before.0, &limit]).await?;
            tx.commit().await.map(|()| rows)
        };
        self.postgres.retry(run).await
    }
}
