//! The tables `attempt` and `failure_audit`: written outside the transaction that may be undone.

use std::collections::HashMap;
use std::sync::Arc;

use semel_core::clock::UnixMs;
use semel_store::postgres::{Transaction, Work};
use semel_store::{StoreError, statements};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::{Parameters, PostgresStore, Said, Together, together};
use crate::decide::Outcome;
use crate::key::LogicalRequestKey;
use crate::limits::RESOLVE_ATTEMPTS_MAX;
use crate::store::{Attempt, Audit, AuditLine, Entry, corrupt};

statements! {
    START = "
        -- Differs from sqlite: of many attempts, which are told apart by their keys. It is seen by
        -- everybody at once and need not wait for the disk: nothing is said because of it, and what
        -- follows it is not on the disk before it.
        WITH unhurried AS MATERIALIZED (
            SELECT set_config('synchronous_commit', 'off', true) AS setting)
        INSERT INTO registrar.attempt (event, logical_request_key, attempt_id, at)
        SELECT 'started', new.key, new.attempt_id, new.at
          FROM unnest($1::bytea[], $2::text[], $3::bigint[]) AS new (key, attempt_id, at)
         WHERE (SELECT unhurried.setting FROM unhurried) = 'off'
     RETURNING logical_request_key, entry";

    END = "
        -- Differs from sqlite: of many attempts, and both tables by one statement.
        WITH ended AS (
            SELECT asked.key, asked.attempt_id, asked.closes, asked.outcome, asked.at,
                   asked.domain, asked.nonce, asked.refused
              FROM unnest($1::bytea[], $2::text[], $3::bigint[], $4::text[], $5::bigint[],
                          $6::text[], $7::bytea[], $8::boolean[])
                   AS asked (key, attempt_id, closes, outcome, at, domain, nonce, refused)),
             audited AS (
            INSERT INTO registrar.failure_audit (domain, logical_request_key, authorization_nonce,
                                                 attempt_id, outcome, at)
            SELECT ended.domain, ended.key, ended.nonce, ended.attempt_id, ended.outcome, ended.at
              FROM ended
             WHERE ended.refused)
        INSERT INTO registrar.attempt (event, logical_request_key, attempt_id, closes, outcome, at)
        SELECT CASE WHEN ended.closes IS NULL THEN 'answered' ELSE 'closed' END, ended.key,
               ended.attempt_id, ended.closes, ended.outcome, ended.at
          FROM ended
            ON CONFLICT (closes) DO NOTHING";

    ATTEMPTS = "
        SELECT entry, event, logical_request_key, attempt_id, outcome, at, closes, NULL::text,
               NULL::bytea
          FROM registrar.attempt
         WHERE entry < $1
         ORDER BY entry DESC
         LIMIT $2";

    FAILURES = "
        SELECT entry, 'refused', logical_request_key, attempt_id, outcome, at, NULL::bigint,
               domain, authorization_nonce
          FROM registrar.failure_audit
         WHERE entry < $1
         ORDER BY entry DESC
         LIMIT $2";

    RESOLVE = "
        INSERT INTO registrar.attempt (event, logical_request_key, attempt_id, closes, outcome, at)
        SELECT 'closed', started.logical_request_key, started.attempt_id, started.entry, $2, $3
          FROM registrar.attempt AS started
         WHERE started.logical_request_key = $1
           AND started.event = 'started'
           AND NOT EXISTS (SELECT 1
                             FROM registrar.attempt AS closing
                            WHERE closing.closes = started.entry)
         ORDER BY started.entry
         LIMIT $4";
}

impl PostgresStore {
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
        let rows = self.postgres.read(sql, &[&before, &i64::from(limit)]).await?;
        let line = |row: &Row| {
            Ok(AuditLine {
                entry: row.try_get(0)?,
                event: row.try_get(1)?,
                logical_request_key: row.try_get(2)?,
                attempt_id: row.try_get(3)?,
                outcome: row.try_get(4)?,
                at: UnixMs(row.try_get(5)?),
                closes: row.try_get(6)?,
                domain: row.try_get(7)?,
                nonce: row.try_get(8)?,
            })
        };
        rows.iter().map(line).collect()
    }

    pub(in crate::store) async fn attempt_start(
        &self,
        attempt: &Attempt,
    ) -> Result<Entry, StoreError> {
        self.lanes.starts.write(self, Starting(Arc::new(attempt.clone()))).await
    }

    pub(in crate::store) async fn attempt_end(
        &self,
        attempt: &Attempt,
        entry: Option<Entry>,
        outcome: Outcome,
    ) -> Result<(), StoreError> {
        let attempt = Arc::new(attempt.clone());
        self.lanes.ends.write(self, Ending { attempt, entry, outcome }).await
    }
}

/// An attempt that begins.
pub(super) struct Starting(pub(super) Arc<Attempt>);

impl Together for Starting {
    type Answer = Entry;

    /// One statement, which is its own transaction.
    async fn at_once(store: &PostgresStore, batch: &[Self]) -> Result<Said<Entry>, StoreError> {
        let mut keys: Vec<&[u8]> = Vec::with_capacity(batch.len());
        let mut ids: Vec<&str> = Vec::with_capacity(batch.len());
        let mut times = Vec::with_capacity(batch.len());
        for Starting(attempt) in batch {
            keys.push(&attempt.valid.logical_request_key.0.0);
            ids.push(&attempt.attempt_id);
            times.push(attempt.now.0);
        }
        let rows = store.postgres.write(START, &[&keys, &ids, &times]).await?;
        let mut entries: HashMap<&[u8], Entry> = HashMap::with_capacity(rows.len());
        for row in &rows {
            entries.insert(row.try_get(0)?, Entry(row.try_get(1)?));
        }
        let none = || corrupt("attempt", String::new(), "no entry was given".to_owned());
        Ok(keys.iter().map(|key| entries.get(key).copied().ok_or_else(none)).collect())
    }
}

impl Work<Starting, Entry> for PostgresStore {
    /// Their entries are told apart by their keys.
    fn fits(batch: &[Starting], Starting(next): &Starting) -> bool {
        let key = next.valid.logical_request_key;
        batch.iter().all(|Starting(earlier)| earlier.valid.logical_request_key != key)
    }

    async fn run(&self, batch: Vec<Starting>) -> Vec<Result<Entry, StoreError>> {
        together(self, &batch).await
    }
}

/// An attempt that ends without having consumed anything.
pub(super) struct Ending {
    attempt: Arc<Attempt>,
    entry: Option<Entry>,
    outcome: Outcome,
}

impl Together for Ending {
    type Answer = ();

    /// One statement, which is its own transaction.
    async fn at_once(store: &PostgresStore, batch: &[Self]) -> Result<Said<()>, StoreError> {
        let mut ended = Ended::default();
        batch.iter().for_each(|ending| ended.add(ending));
        store.postgres.write(END, &ended.parameters()).await?;
        Ok(batch.iter().map(|_| Ok(())).collect())
    }
}

impl Work<Ending, ()> for PostgresStore {
    /// No end depends on another one.
    fn fits(_: &[Ending], _: &Ending) -> bool {
        true
    }

    async fn run(&self, batch: Vec<Ending>) -> Vec<Result<(), StoreError>> {
        together(self, &batch).await
    }
}

/// The parameters of `END`, kept alive.
#[derive(Default)]
struct Ended<'a> {
    keys: Vec<&'a [u8]>,
    attempt_ids: Vec<&'a str>,
    closes: Vec<Option<i64>>,
    outcomes: Vec<&'static str>,
    times: Vec<i64>,
    domains: Vec<&'a str>,
    nonces: Vec<&'a [u8]>,
    refused: Vec<bool>,
}

impl<'a> Ended<'a> {
    fn add(&mut self, Ending { attempt, entry, outcome }: &'a Ending) {
        self.keys.push(&attempt.valid.logical_request_key.0.0);
        self.attempt_ids.push(&attempt.attempt_id);
        self.closes.push(entry.map(|entry| entry.0));
        self.outcomes.push(outcome.as_str());
        self.times.push(attempt.now.0);
        self.domains.push(&attempt.valid.envelope.domain);
        self.nonces.push(&attempt.grant.nonce.0.0);
        self.refused.push(outcome.code().is_some());
    }

    fn parameters(&self) -> [&(dyn ToSql + Sync); 8] {
        [
            &self.keys,
            &self.attempt_ids,
            &self.closes,
            &self.outcomes,
            &self.times,
            &self.domains,
            &self.nonces,
            &self.refused,
        ]
    }
}

/// Closes the attempts of a key whose end nobody has told.
pub(super) async fn resolve_in_tx(
    tx: &Transaction,
    key: LogicalRequestKey,
    outcome: &str,
    now: UnixMs,
) -> Result<u64, StoreError> {
    let by: Parameters<'_> = &[&key.0.0.as_slice(), &outcome, &now.0, &RESOLVE_ATTEMPTS_MAX];
    tx.execute(RESOLVE, by).await
}
