//! The tables `effect_key`, `nonce_use` and `registration`: what is used, and what it has done.
//!
//! Differs from sqlite: transactions run side by side, so that each takes the lock of its key and
//! then of its nonce, in this order and one of each: no two of them can wait for each other. The
//! lock ends with the transaction, also when its answer was lost; who waits for it learns how it
//! ended. Should two get past it, the unique keys refuse the second, which then looks again.

use semel_core::clock::UnixMs;
use semel_store::postgres::Transaction;
use semel_store::{StoreError, statements};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;

use super::attempt::resolve_in_tx;
use super::{Parameters, PostgresStore};
use crate::decide::{Arrival, Outcome};
use crate::grant::Nonce;
use crate::key::LogicalRequestKey;
use crate::limits::CLAIM_ROUNDS_MAX;
use crate::store::{Attempt, Done, Effect, Entry, Found, Resolved, corrupt, effect};

/// The classes of locks; the numbers mean nothing, they must only stay the same and differ.
const KEY_LOCKS: i32 = 7305;
const NONCE_LOCKS: i32 = 7306;

statements! {
    LOCK = "
        SELECT pg_advisory_xact_lock($1, $2)";

    FACTS = "
        SELECT (SELECT replay_key FROM registrar.effect_key WHERE logical_request_key = $1),
               (SELECT logical_request_key FROM registrar.nonce_use WHERE authorization_nonce = $2),
               EXISTS (SELECT 1 FROM registrar.grant_revoked WHERE authorization_nonce = $2),
               EXISTS (SELECT 1 FROM registrar.authority WHERE domain = $3 AND pubkey = $4),
               (SELECT action FROM registrar.gate WHERE domain = $3 ORDER BY entry DESC LIMIT 1),
               (SELECT verdict FROM registrar.verification WHERE logical_request_key = $1),
               (SELECT result FROM registrar.registration WHERE logical_request_key = $1),
               EXISTS (SELECT 1
                         FROM registrar.attempt AS started
                        WHERE started.logical_request_key = $1
                          AND started.event = 'started'
                          AND started.entry < $5
                          AND NOT EXISTS (SELECT 1
                                            FROM registrar.attempt AS closing
                                           WHERE closing.closes = started.entry)),
               EXISTS (SELECT 1 FROM registrar.attempt WHERE closes = $5),
               (SELECT verdict FROM registrar.verification WHERE logical_request_key = $6)";

    CONSUME = "
        -- Differs from sqlite: all rows by one statement, to save round trips.
        WITH key_used AS (
            INSERT INTO registrar.effect_key (logical_request_key, replay_key, protocol_version,
                                              domain, operation, canonical_target, artifact_hash,
                                              owner_binding, run_id, authorization_nonce,
                                              consumed_at)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)),
             nonce_used AS (
            INSERT INTO registrar.nonce_use (authorization_nonce, logical_request_key, issuer,
                                             used_at)
            VALUES ($10, $1, $12, $11)),
             registered AS (
            INSERT INTO registrar.registration (logical_request_key, attempt_id, result,
                                                registered_at)
            VALUES ($1, $13, $14, $11))
        INSERT INTO registrar.attempt (event, logical_request_key, attempt_id, closes, outcome, at)
        SELECT 'closed', $1, $13, $15::bigint, $16, $11
         WHERE $15::bigint <> 0";

    EFFECT = "
        SELECT registration.result, verification.verdict, verification.note
          FROM registrar.registration
          LEFT JOIN registrar.verification
            ON verification.logical_request_key = registration.logical_request_key
         WHERE registration.logical_request_key = $1";
}

impl PostgresStore {
    pub(in crate::store) async fn look(&self, attempt: &Attempt) -> Result<Done, StoreError> {
        let asked = FactsAsked::of(attempt, Entry::LAST);
        let rows = self.postgres.read(FACTS, &asked.parameters()).await?;
        found(rows.first())?.decide(attempt, None)
    }

    pub(in crate::store) async fn consume(
        &self,
        attempt: &Attempt,
        entry: Entry,
    ) -> Result<Done, StoreError> {
        for _ in 0..CLAIM_ROUNDS_MAX {
            match self.postgres.retry(|| self.consume_once(attempt, entry)).await {
                Err(StoreError::Postgres(error))
                    if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {}
                other => return other,
            }
        }
        Err(StoreError::Contended { runs: CLAIM_ROUNDS_MAX })
    }

    async fn consume_once(&self, attempt: &Attempt, entry: Entry) -> Result<Done, StoreError> {
        let asked = FactsAsked::of(attempt, entry);
        let key_lock: Parameters<'_> = &[&KEY_LOCKS, &lock_of(asked.key)];
        let nonce_lock: Parameters<'_> = &[&NONCE_LOCKS, &lock_of(asked.nonce)];
        let facts = &asked.parameters();
        let begin = [(LOCK, key_lock), (LOCK, nonce_lock), (FACTS, facts.as_slice())];
        let (tx, mut rows) = self.postgres.begin_with(&begin).await?;
        let rows = rows.pop().unwrap_or_default();
        let done = found(rows.first())?.decide(attempt, Some(Arrival::Free))?;
        if done.outcome != Outcome::Registered {
            return Ok(done);
        }
        let consumed = Consumed::of(attempt, entry);
        tx.query_and_commit(CONSUME, &consumed.parameters()).await?;
        Ok(Done { result: Some(attempt.result.clone()), ..done })
    }

    pub(in crate::store) async fn resolve(
        &self,
        key: LogicalRequestKey,
        now: UnixMs,
    ) -> Result<Resolved, StoreError> {
        let bytes = key.0.0.as_slice();
        let run = async || {
            let lock: Parameters<'_> = &[&KEY_LOCKS, &lock_of(bytes)];
            let by: Parameters<'_> = &[&bytes];
            let (tx, mut rows) = self.postgres.begin_with(&[(LOCK, lock), (EFFECT, by)]).await?;
            let effect = effect_of(rows.pop().unwrap_or_default().first())?;
            let outcome = if effect.is_some() { "RESOLVED_COMMITTED" } else { "RESOLVED_ABSENT" };
            let closed = resolve_in_tx(&tx, key, outcome, now).await?;
            tx.commit().await.map(|()| Resolved { effect, closed })
        };
        self.postgres.retry(run).await
    }

    pub(in crate::store) async fn effect_find(
        &self,
        key: LogicalRequestKey,
    ) -> Result<Option<Effect>, StoreError> {
        let rows = self.postgres.read(EFFECT, &[&key.0.0.as_slice()]).await?;
        effect_of(rows.first())
    }
}

/// Consumes key and nonce and writes the registration, in the caller's own transaction, if the
/// decision is [`Outcome::Registered`]; otherwise it writes nothing, and what the caller does next
/// is not allowed.
pub async fn consume_in_tx(tx: &Transaction, attempt: &Attempt) -> Result<Done, StoreError> {
    let asked = FactsAsked::of(attempt, Entry::NONE);
    tx.query(LOCK, &[&KEY_LOCKS, &lock_of(asked.key)]).await?;
    tx.query(LOCK, &[&NONCE_LOCKS, &lock_of(asked.nonce)]).await?;
    let rows = tx.query(FACTS, &asked.parameters()).await?;
    let done = found(rows.first())?.decide(attempt, None)?;
    if done.outcome != Outcome::Registered {
        return Ok(done);
    }
    tx.execute(CONSUME, &Consumed::of(attempt, Entry::NONE).parameters()).await?;
    Ok(Done { result: Some(attempt.result.clone()), ..done })
}

/// Which lock of its class. Two keys that share one only wait for each other.
fn lock_of(bytes: &[u8]) -> i32 {
    let mut four = [0; 4];
    four.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    i32::from_be_bytes(four)
}

/// Class and number of a nonce's lock.
pub(super) fn nonce_lock(nonce: Nonce) -> (i32, i32) {
    (NONCE_LOCKS, lock_of(&nonce.0.0))
}

/// The parameters of `FACTS`, kept alive.
struct FactsAsked<'a> {
    key: &'a [u8],
    nonce: &'a [u8],
    issuer: &'a [u8],
    domain: &'a str,
    entry: i64,
    compensates: Option<&'a [u8]>,
}

impl<'a> FactsAsked<'a> {
    fn of(attempt: &'a Attempt, entry: Entry) -> FactsAsked<'a> {
        FactsAsked {
            key: &attempt.valid.logical_request_key.0.0,
            nonce: &attempt.grant.nonce.0.0,
            issuer: &attempt.grant.issuer.0,
            domain: &attempt.valid.envelope.domain,
            entry: entry.0,
            compensates: attempt.compensates.as_ref().map(|key| key.0.0.as_slice()),
        }
    }

    fn parameters(&self) -> [&(dyn tokio_postgres::types::ToSql + Sync); 6] {
        [&self.key, &self.nonce, &self.domain, &self.issuer, &self.entry, &self.compensates]
    }
}

/// The parameters of `CONSUME`, kept alive.
struct Consumed<'a> {
    attempt: &'a Attempt,
    key: &'a [u8],
    replay_key: &'a [u8],
    version: i64,
    artifact_hash: &'a [u8],
    nonce: &'a [u8],
    issuer: &'a [u8],
    entry: i64,
    outcome: &'static str,
}

impl<'a> Consumed<'a> {
    fn of(attempt: &'a Attempt, entry: Entry) -> Consumed<'a> {
        let envelope = &attempt.valid.envelope;
        Consumed {
            attempt,
            key: &attempt.valid.logical_request_key.0.0,
            replay_key: &attempt.valid.replay_key.0.0,
            version: envelope.protocol_version.cast_signed(),
            artifact_hash: &envelope.artifact_hash.0,
            nonce: &attempt.grant.nonce.0.0,
            issuer: &attempt.grant.issuer.0,
            entry: entry.0,
            outcome: Outcome::Registered.as_str(),
        }
    }

    fn parameters(&self) -> [&(dyn tokio_postgres::types::ToSql + Sync); 16] {
        let Attempt { valid, attempt_id, result, now, .. } = self.attempt;
        let envelope = &valid.envelope;
        [
            &self.key,
            &self.replay_key,
            &self.version,
            &envelope.domain,
            &envelope.operation,
            &envelope.canonical_target,
            &self.artifact_hash,
            &envelope.owner_binding,
            &envelope.run_id,
            &self.nonce,
            &now.0,
            &self.issuer,
            attempt_id,
            result,
            &self.entry,
            &self.outcome,
        ]
    }
}

fn found(row: Option<&Row>) -> Result<Found, StoreError> {
    let none = || corrupt("effect_key", String::new(), "a look has found no row".to_owned());
    let row = row.ok_or_else(none)?;
    Ok(Found {
        replay_key: row.try_get(0)?,
        used_for: row.try_get(1)?,
        revoked: row.try_get(2)?,
        trusted: row.try_get(3)?,
        gate: row.try_get(4)?,
        verdict: row.try_get(5)?,
        result: row.try_get(6)?,
        earlier_open: row.try_get(7)?,
        mine_closed: row.try_get(8)?,
        compensated: row.try_get(9)?,
    })
}

fn effect_of(row: Option<&Row>) -> Result<Option<Effect>, StoreError> {
    let Some(row) = row else { return Ok(None) };
    effect(row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)
}
