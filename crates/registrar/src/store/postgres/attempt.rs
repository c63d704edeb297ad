//! The tables `attempt` and `failure_audit`: written outside the transaction that may be undone.

use std::collections::HashMap;

use semel_core::clock::UnixMs;
use semel_store::postgres::{Transaction, Work};
use semel_store::{StoreError, statements};

use super::{Parameters, PostgresStore, Said, Together, together};
use crate::decide::Outcome;
use crate::key::LogicalRequestKey;
use crate::limits::RESOLVE_ATTEMPTS_MAX;
use crate::store::{Attempt, Entry, corrupt};

statements! {
    START = "
        -- Differs from sqlite: of many attempts, which are told apart by their keys.
        INSERT INTO registrar.attempt (event, logical_request_key, attempt_id, at)
        SELECT 'started', new.key, new.attempt_id, new.at
          FROM unnest($1::bytea[], $2::text[], $3::bigint[]) AS new (key, attempt_id, at)
     RETURNING logical_request_key, entry";

    CLOSE = "
        INSERT INTO registrar.attempt (event, logical_request_key, attempt_id, closes, outcome, at)
        VALUES ('closed', $1, $2, $3, $4, $5)
            ON CONFLICT (closes) DO NOTHING";

    ANSWER = "
        INSERT INTO registrar.attempt (event, logical_request_key, attempt_id, outcome, at)
        VALUES ('answered', $1, $2, $3, $4)";

    FAILURE = "
        INSERT INTO registrar.failure_audit (domain, logical_request_key, authorization_nonce,
                                             attempt_id, outcome, at)
        VALUES ($1, $2, $3, $4, $5, $6)";

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
    pub(in crate::store) async fn attempt_start(
        &self,
        attempt: &Attempt,
    ) -> Result<Entry, StoreError> {
        self.lanes.starts.write(self, Starting(attempt.clone())).await
    }

    pub(in crate::store) async fn attempt_end(
        &self,
        attempt: &Attempt,
        entry: Option<Entry>,
        outcome: Outcome,
    ) -> Result<(), StoreError> {
        let (valid, word) = (&attempt.valid, outcome.as_str());
        let (key, nonce) = (valid.logical_request_key.0.0, attempt.grant.nonce.0.0);
        let (key, nonce, id) = (key.as_slice(), nonce.as_slice(), &attempt.attempt_id);
        let closes = entry.map_or(0, |entry| entry.0);
        let close: Parameters<'_> = &[&key, id, &closes, &word, &attempt.now.0];
        let answer: Parameters<'_> = &[&key, id, &word, &attempt.now.0];
        let domain = &valid.envelope.domain;
        let failure: Parameters<'_> = &[domain, &key, &nonce, id, &word, &attempt.now.0];
        let mut asked = match entry {
            Some(_) => vec![(CLOSE, close)],
            None => vec![(ANSWER, answer)],
        };
        if outcome.code().is_some() {
            asked.push((FAILURE, failure));
        }
        let run = async || {
            let (tx, _) = self.postgres.begin_with(&[]).await?;
            tx.commit_with(&asked).await.map(drop)
        };
        self.postgres.retry(run).await
    }
}

/// An attempt that begins.
pub(super) struct Starting(Attempt);

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
