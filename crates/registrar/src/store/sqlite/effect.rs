//! The tables `effect_key`, `nonce_use` and `registration`: what is used, and what it has done.

use rusqlite::{Connection, OptionalExtension, named_params};
use semel_core::clock::UnixMs;
use semel_store::sqlite::Tx;
use semel_store::{StoreError, statements};

use super::SqliteStore;
use super::attempt::{close_in_tx, resolve_in_tx};
use crate::decide::{Arrival, Outcome};
use crate::key::LogicalRequestKey;
use crate::store::{Attempt, Done, Effect, Entry, Found, Resolved, effect};

statements! {
    FACTS = "
        SELECT (SELECT replay_key FROM effect_key WHERE logical_request_key = :key),
               (SELECT logical_request_key FROM nonce_use WHERE authorization_nonce = :nonce),
               EXISTS (SELECT 1 FROM grant_revoked WHERE authorization_nonce = :nonce),
               EXISTS (SELECT 1 FROM authority WHERE domain = :domain AND pubkey = :issuer),
               (SELECT action FROM gate WHERE domain = :domain ORDER BY entry DESC LIMIT 1),
               (SELECT verdict FROM verification WHERE logical_request_key = :key),
               (SELECT result FROM registration WHERE logical_request_key = :key),
               EXISTS (SELECT 1
                         FROM attempt AS started
                        WHERE started.logical_request_key = :key
                          AND started.event = 'started'
                          AND started.entry < :entry
                          AND NOT EXISTS (SELECT 1
                                            FROM attempt AS closing
                                           WHERE closing.closes = started.entry)),
               (SELECT NOT EXISTS (SELECT 1
                                     FROM attempt AS closing
                                    WHERE closing.closes = mine.entry)
                  FROM attempt AS mine
                 WHERE mine.entry = :entry),
               (SELECT verdict FROM verification WHERE logical_request_key = :compensates),
               EXISTS (SELECT 1
                         FROM effect_key
                        WHERE compensates = lower(hex(:compensates)))";

    EFFECT_KEY = "
        INSERT INTO effect_key (logical_request_key, replay_key, protocol_version, domain,
                                operation, canonical_target, artifact_hash, owner_binding, run_id,
                                authorization_nonce, consumed_at, compensates)
        VALUES (:key, :replay_key, :protocol_version, :domain, :operation, :canonical_target,
                :artifact_hash, :owner_binding, :run_id, :nonce, :now,
                CASE WHEN :operation = 'compensate' THEN :canonical_target END)";

    NONCE_USE = "
        INSERT INTO nonce_use (authorization_nonce, logical_request_key, issuer, used_at)
        VALUES (:nonce, :key, :issuer, :now)";

    REGISTRATION = "
        INSERT INTO registration (logical_request_key, attempt_id, result, registered_at)
        VALUES (:key, :attempt_id, :result, :now)";

    EFFECT = "
        SELECT registration.result, verification.verdict, verification.note
          FROM registration
          LEFT JOIN verification
            ON verification.logical_request_key = registration.logical_request_key
         WHERE registration.logical_request_key = :key";
}

impl SqliteStore {
    pub(in crate::store) async fn look(&self, attempt: &Attempt) -> Result<Done, StoreError> {
        let attempt = attempt.clone();
        let read = self.sqlite.read(move |tx| {
            facts_in_tx(tx, &attempt, Entry::LAST)?.decide(&attempt, Entry::LAST, None)
        });
        read.await
    }

    pub(in crate::store) async fn consume(
        &self,
        attempt: &Attempt,
        entry: Entry,
    ) -> Result<Done, StoreError> {
        let attempt = attempt.clone();
        let write = self.sqlite.write(move |tx| {
            let done = claim_in_tx(tx, &attempt, entry, Some(Arrival::Free))?;
            if done.outcome == Outcome::Registered {
                close_in_tx(tx, &attempt, entry, done.outcome)?;
            }
            Ok(done)
        });
        write.await
    }

    pub(in crate::store) async fn resolve(
        &self,
        key: LogicalRequestKey,
        now: UnixMs,
    ) -> Result<Resolved, StoreError> {
        let write = self.sqlite.write(move |tx| {
            let effect = effect_in_tx(tx, key)?;
            let outcome = if effect.is_some() { "RESOLVED_COMMITTED" } else { "RESOLVED_ABSENT" };
            let closed = resolve_in_tx(tx, key, outcome, now)?;
            Ok(Resolved { effect, closed })
        });
        write.await
    }

    pub(in crate::store) async fn effect_find(
        &self,
        key: LogicalRequestKey,
    ) -> Result<Option<Effect>, StoreError> {
        self.sqlite.read(move |tx| effect_in_tx(tx, key)).await
    }
}

/// Consumes key and nonce and writes the registration, in the caller's own transaction, if the
/// decision is [`Outcome::Registered`]; otherwise it writes nothing, and what the caller does next
/// is not allowed.
pub fn consume_in_tx(tx: &Tx<'_>, attempt: &Attempt) -> Result<Done, StoreError> {
    claim_in_tx(tx, attempt, Entry::NONE, None)
}

fn claim_in_tx(
    tx: &Tx<'_>,
    attempt: &Attempt,
    entry: Entry,
    arrival: Option<Arrival>,
) -> Result<Done, StoreError> {
    let done = facts_in_tx(tx, attempt, entry)?.decide(attempt, entry, arrival)?;
    if done.outcome != Outcome::Registered {
        return Ok(done);
    }
    let (valid, grant) = (&attempt.valid, &attempt.grant);
    let (envelope, key) = (&valid.envelope, valid.logical_request_key.0.0);
    tx.prepare_cached(EFFECT_KEY)?.execute(named_params! {
        ":key": key, ":replay_key": valid.replay_key.0.0,
        ":protocol_version": envelope.protocol_version.cast_signed(),
        ":domain": envelope.domain, ":operation": envelope.operation,
        ":canonical_target": envelope.canonical_target,
        ":artifact_hash": envelope.artifact_hash.0, ":owner_binding": envelope.owner_binding,
        ":run_id": envelope.run_id, ":nonce": grant.nonce.0.0, ":now": attempt.now.0,
    })?;
    tx.prepare_cached(NONCE_USE)?.execute(named_params! {
        ":nonce": grant.nonce.0.0, ":key": key, ":issuer": grant.issuer.0, ":now": attempt.now.0,
    })?;
    tx.prepare_cached(REGISTRATION)?.execute(named_params! {
        ":key": key, ":attempt_id": attempt.attempt_id, ":result": attempt.result,
        ":now": attempt.now.0,
    })?;
    Ok(Done { result: Some(attempt.result.clone()), ..done })
}

fn facts_in_tx(tx: &Connection, attempt: &Attempt, entry: Entry) -> Result<Found, StoreError> {
    let by = named_params! {
        ":key": attempt.valid.logical_request_key.0.0, ":nonce": attempt.grant.nonce.0.0,
        ":domain": attempt.valid.envelope.domain, ":issuer": attempt.grant.issuer.0,
        ":entry": entry.0, ":compensates": attempt.compensates.map(|key| key.0.0),
    };
    let found = tx.prepare_cached(FACTS)?.query_row(by, |row| {
        Ok(Found {
            replay_key: row.get(0)?,
            used_for: row.get(1)?,
            revoked: row.get(2)?,
            trusted: row.get(3)?,
            gate: row.get(4)?,
            verdict: row.get(5)?,
            result: row.get(6)?,
            earlier_open: row.get(7)?,
            mine_open: row.get(8)?,
            compensated: row.get(9)?,
            undone: row.get(10)?,
        })
    })?;
    Ok(found)
}

fn effect_in_tx(tx: &Connection, key: LogicalRequestKey) -> Result<Option<Effect>, StoreError> {
    let mut found = tx.prepare_cached(EFFECT)?;
    let row = found.query_row(named_params! {":key": key.0.0}, |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?))
    });
    let Some((result, verdict, note)) = row.optional()? else { return Ok(None) };
    effect(result, verdict, note)
}
