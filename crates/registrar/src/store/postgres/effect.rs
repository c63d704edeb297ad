//! The tables `effect_key`, `nonce_use` and `registration`: what is used, and what it has done.
//!
//! Differs from sqlite: transactions run side by side, and one of them serves many attempts: what
//! arrives while it is under way is the next one ([`Lane`]). Each attempt has two names that can be
//! used once, its key and its nonce (a compensation has a third: what it undoes), and a batch that
//! sorted its attempts by one of them would meet another batch crosswise at the other: they would
//! wait for each other (traps.md 50). So a batch does not go attempt by attempt. It takes the locks
//! of all its keys and all its nonces first, by one statement and in one order that is the same for
//! everybody: whoever waits holds only locks that come before the one it waits for, and no circle
//! can close. Whoever takes two locks alone ([`consume_in_tx`]) or only one (`resolve`,
//! `grant_revoke`) takes them in the same order. Nobody who holds them waits for anything else:
//! nobody else writes a row under these names.
//!
//! The facts are read after the locks, by a statement of its own, which sees what those who held
//! them have committed. Two attempts that share a key or a nonce never share a batch: the later one
//! must see what the earlier one did. The locks end with the transaction, also when its answer was
//! lost; who waits for them learns how it ended. Should two get past them, the unique keys refuse
//! the second, which then looks again.
//!
//! A batch whose COMMIT got no answer leaves each of those who wrote in doubt, each by its own key.
//! What was refused in it rests on what was there before, and is said.

use std::collections::HashSet;
use std::sync::Arc;

use semel_core::clock::UnixMs;
use semel_store::postgres::{Transaction, Work};
use semel_store::{StoreError, statements};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;

use super::attempt::resolve_in_tx;
use super::{Parameters, PostgresStore, Said, Together, together};
use crate::decide::{Arrival, Key, Outcome};
use crate::grant::Nonce;
use crate::key::LogicalRequestKey;
use crate::limits::CLAIM_ROUNDS_MAX;
use crate::store::{Attempt, Done, Effect, Entry, Found, Resolved, corrupt, effect};

/// The classes of locks; the numbers must only stay the same and differ. Keys come before nonces.
const KEY_LOCKS: i32 = 7305;
const NONCE_LOCKS: i32 = 7306;

statements! {
    LOCK = "
        -- Sorted inside, where OFFSET keeps it: locks are taken in the order of these rows. Whoever
        -- writes in the same round trip looks for the setting, which ends with the locks.
        SELECT pg_advisory_xact_lock(sorted.class, sorted.number),
               (SELECT set_config('semel.locked', 'on', true))
          FROM (SELECT DISTINCT asked.class, asked.number
                  FROM unnest($1::integer[], $2::integer[]) AS asked (class, number)
                 ORDER BY asked.class, asked.number
                OFFSET 0) AS sorted";

    FACTS = "
        -- Limits inside, so that every look-up goes row by row, whatever the plan was made on.
        SELECT (SELECT effect_key.replay_key
                  FROM registrar.effect_key
                 WHERE effect_key.logical_request_key = asked.key),
               (SELECT nonce_use.logical_request_key
                  FROM registrar.nonce_use
                 WHERE nonce_use.authorization_nonce = asked.nonce),
               (SELECT 1
                  FROM registrar.grant_revoked
                 WHERE grant_revoked.authorization_nonce = asked.nonce
                 LIMIT 1) IS NOT NULL,
               (SELECT 1
                  FROM registrar.authority
                 WHERE authority.domain = asked.domain
                   AND authority.pubkey = asked.issuer
                 LIMIT 1) IS NOT NULL,
               (SELECT gate.action
                  FROM registrar.gate
                 WHERE gate.domain = asked.domain
                 ORDER BY gate.entry DESC
                 LIMIT 1),
               (SELECT verification.verdict
                  FROM registrar.verification
                 WHERE verification.logical_request_key = asked.key),
               (SELECT registration.result
                  FROM registrar.registration
                 WHERE registration.logical_request_key = asked.key),
               (SELECT 1
                  FROM registrar.attempt AS started
                 WHERE started.logical_request_key = asked.key
                   AND started.event = 'started'
                   AND started.entry < asked.entry
                   AND (SELECT 1
                          FROM registrar.attempt AS closing
                         WHERE closing.closes = started.entry
                         LIMIT 1) IS NULL
                 LIMIT 1) IS NOT NULL,
               (SELECT (SELECT 1
                          FROM registrar.attempt AS closing
                         WHERE closing.closes = mine.entry
                         LIMIT 1) IS NULL
                  FROM registrar.attempt AS mine
                 WHERE mine.entry = asked.entry),
               (SELECT verification.verdict
                  FROM registrar.verification
                 WHERE verification.logical_request_key = asked.compensates),
               (SELECT 1
                  FROM registrar.effect_key AS undoing
                 WHERE undoing.compensates = encode(asked.compensates, 'hex')
                 LIMIT 1) IS NOT NULL
          FROM unnest($1::bytea[], $2::bytea[], $3::text[], $4::bytea[], $5::bigint[], $6::bytea[])
               WITH ORDINALITY
               AS asked (key, nonce, domain, issuer, entry, compensates, number)
         ORDER BY asked.number";

    CONSUME = "
        -- Differs from sqlite: all rows by one statement, to save round trips.
        WITH new AS (
            SELECT asked.key, asked.replay_key, asked.version, asked.domain, asked.operation,
                   asked.target, asked.artifact_hash, asked.owner, asked.run, asked.nonce,
                   asked.at, asked.issuer, asked.attempt_id, asked.result, asked.entry
              FROM unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::text[], $5::text[],
                          $6::text[], $7::bytea[], $8::text[], $9::text[], $10::bytea[],
                          $11::bigint[], $12::bytea[], $13::text[], $14::bytea[], $15::bigint[])
                   AS asked (key, replay_key, version, domain, operation, target, artifact_hash,
                             owner, run, nonce, at, issuer, attempt_id, result, entry)),
             key_used AS (
            INSERT INTO registrar.effect_key (logical_request_key, replay_key, protocol_version,
                                              domain, operation, canonical_target, artifact_hash,
                                              owner_binding, run_id, authorization_nonce,
                                              consumed_at, compensates)
            SELECT new.key, new.replay_key, new.version, new.domain, new.operation, new.target,
                   new.artifact_hash, new.owner, new.run, new.nonce, new.at,
                   CASE WHEN new.operation = 'compensate' THEN new.target END
              FROM new),
             nonce_used AS (
            INSERT INTO registrar.nonce_use (authorization_nonce, logical_request_key, issuer,
                                             used_at)
            SELECT new.nonce, new.key, new.issuer, new.at
              FROM new),
             registered AS (
            INSERT INTO registrar.registration (logical_request_key, attempt_id, result,
                                                registered_at)
            SELECT new.key, new.attempt_id, new.result, new.at
              FROM new)
        INSERT INTO registrar.attempt (event, logical_request_key, attempt_id, closes, outcome, at)
        SELECT 'closed', new.key, new.attempt_id, new.entry, $16, new.at
          FROM new
         WHERE new.entry <> 0";

    /// The same for those that nothing is in the way of, under locks that were taken in the same
    /// round trip; gives their keys. What was free when they came is still free, or its unique key
    /// refuses all of them.
    CONSUME_FREE = "
        WITH new AS (
            SELECT asked.key, asked.replay_key, asked.version, asked.domain, asked.operation,
                   asked.target, asked.artifact_hash, asked.owner, asked.run, asked.nonce,
                   asked.at, asked.issuer, asked.attempt_id, asked.result, asked.entry
              FROM unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::text[], $5::text[],
                          $6::text[], $7::bytea[], $8::text[], $9::text[], $10::bytea[],
                          $11::bigint[], $12::bytea[], $13::text[], $14::bytea[], $15::bigint[])
                   AS asked (key, replay_key, version, domain, operation, target, artifact_hash,
                             owner, run, nonce, at, issuer, attempt_id, result, entry)
             WHERE current_setting('semel.locked', true) = 'on'
               AND (SELECT 1
                      FROM registrar.grant_revoked
                     WHERE grant_revoked.authorization_nonce = asked.nonce
                     LIMIT 1) IS NULL
               AND (SELECT 1
                      FROM registrar.authority
                     WHERE authority.domain = asked.domain
                       AND authority.pubkey = asked.issuer
                     LIMIT 1) IS NOT NULL
               AND (SELECT gate.action
                      FROM registrar.gate
                     WHERE gate.domain = asked.domain
                     ORDER BY gate.entry DESC
                     LIMIT 1) = 'open'
               -- Of the attempts up to this one, it alone is open.
               AND ARRAY (SELECT started.entry
                            FROM registrar.attempt AS started
                           WHERE started.logical_request_key = asked.key
                             AND started.event = 'started'
                             AND started.entry <= asked.entry
                             AND (SELECT 1
                                    FROM registrar.attempt AS closing
                                   WHERE closing.closes = started.entry
                                   LIMIT 1) IS NULL
                           LIMIT 2) = ARRAY[asked.entry]),
             key_used AS (
            INSERT INTO registrar.effect_key (logical_request_key, replay_key, protocol_version,
                                              domain, operation, canonical_target, artifact_hash,
                                              owner_binding, run_id, authorization_nonce,
                                              consumed_at, compensates)
            SELECT new.key, new.replay_key, new.version, new.domain, new.operation, new.target,
                   new.artifact_hash, new.owner, new.run, new.nonce, new.at,
                   CASE WHEN new.operation = 'compensate' THEN new.target END
              FROM new),
             nonce_used AS (
            INSERT INTO registrar.nonce_use (authorization_nonce, logical_request_key, issuer,
                                             used_at)
            SELECT new.nonce, new.key, new.issuer, new.at
              FROM new),
             registered AS (
            INSERT INTO registrar.registration (logical_request_key, attempt_id, result,
                                                registered_at)
            SELECT new.key, new.attempt_id, new.result, new.at
              FROM new),
             closed AS (
            INSERT INTO registrar.attempt (event, logical_request_key, attempt_id, closes, outcome,
                                           at)
            SELECT 'closed', new.key, new.attempt_id, new.entry, $16, new.at
              FROM new)
        SELECT new.key
          FROM new";

    EFFECT = "
        SELECT registration.result, verification.verdict, verification.note
          FROM registrar.registration
          LEFT JOIN registrar.verification
            ON verification.logical_request_key = registration.logical_request_key
         WHERE registration.logical_request_key = $1";
}

/// An attempt that looks.
pub(super) struct Looking(pub(super) Arc<Attempt>);

/// An attempt that is written down, and wants to consume.
pub(super) struct Consuming {
    pub(super) attempt: Arc<Attempt>,
    pub(super) entry: Entry,
}

impl PostgresStore {
    pub(in crate::store) async fn look(&self, attempt: &Attempt) -> Result<Done, StoreError> {
        self.lanes.looks.write(self, Looking(Arc::new(attempt.clone()))).await
    }

    pub(in crate::store) async fn consume(
        &self,
        attempt: &Attempt,
        entry: Entry,
    ) -> Result<Done, StoreError> {
        let attempt = Arc::new(attempt.clone());
        self.lanes.consumes.write(self, Consuming { attempt, entry }).await
    }

    async fn consume_once(&self, batch: &[Consuming]) -> Result<Said<Done>, StoreError> {
        let (mut locks, mut asked) = (Locks::default(), FactsAsked::default());
        for Consuming { attempt, entry } in batch {
            locks.add(attempt);
            asked.add(attempt, *entry);
        }
        let (lock_by, facts_by) = (locks.parameters(), asked.parameters());
        let begin = [(LOCK, lock_by.as_slice()), (FACTS, facts_by.as_slice())];
        let (tx, mut rows) = self.postgres.begin_with(&begin).await?;
        let rows = rows.pop().unwrap_or_default();
        let attempts = batch.iter().map(|consuming| (&*consuming.attempt, consuming.entry));
        let mut said = decided(&rows, attempts, Some(Arrival::Free))?;
        let mut consumed = Consumed::default();
        for (done, Consuming { attempt, entry }) in said.iter_mut().zip(batch) {
            if let Some(done) = registered(done) {
                consumed.add(attempt, *entry);
                done.result = Some(attempt.result.clone());
            }
        }
        if consumed.keys.is_empty() {
            return Ok(said);
        }
        match tx.query_and_commit(CONSUME, &consumed.parameters()).await {
            Ok(_) => Ok(said),
            Err(StoreError::Uncertain { cause }) => {
                for done in &mut said {
                    if registered(done).is_some() {
                        *done = Err(StoreError::Uncertain { cause: cause.clone() });
                    }
                }
                Ok(said)
            }
            Err(error) => Err(error),
        }
    }

    /// Consumes for those that nothing is in the way of any more; gives their keys. Nothing is
    /// written for the others.
    pub(super) async fn consume_free(
        &self,
        batch: &[Consuming],
    ) -> Result<HashSet<Vec<u8>>, StoreError> {
        let (mut locks, mut consumed) = (Locks::default(), Consumed::default());
        for Consuming { attempt, entry } in batch {
            locks.add(attempt);
            consumed.add(attempt, *entry);
        }
        let (lock_by, consume_by) = (locks.parameters(), consumed.parameters());
        let both = [(LOCK, lock_by.as_slice()), (CONSUME_FREE, consume_by.as_slice())];
        let mut rows = self.postgres.transact(&both).await?;
        let rows = rows.pop().unwrap_or_default();
        Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
    }

    pub(in crate::store) async fn resolve(
        &self,
        key: LogicalRequestKey,
        now: UnixMs,
    ) -> Result<Resolved, StoreError> {
        let bytes = key.0.0.as_slice();
        let run = async || {
            let (class, number) = ([KEY_LOCKS].as_slice(), [lock_of(bytes)]);
            let lock: Parameters<'_> = &[&class, &number.as_slice()];
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

impl Together for Looking {
    type Answer = Done;

    async fn at_once(store: &PostgresStore, batch: &[Self]) -> Result<Said<Done>, StoreError> {
        let mut asked = FactsAsked::default();
        batch.iter().for_each(|Looking(attempt)| asked.add(attempt, Entry::LAST));
        let rows = store.postgres.read(FACTS, &asked.parameters()).await?;
        decided(&rows, batch.iter().map(|Looking(attempt)| (&**attempt, Entry::LAST)), None)
    }
}

impl Together for Consuming {
    type Answer = Done;

    async fn at_once(store: &PostgresStore, batch: &[Self]) -> Result<Said<Done>, StoreError> {
        for _ in 0..CLAIM_ROUNDS_MAX {
            match store.postgres.retry(|| store.consume_once(batch)).await {
                Err(StoreError::Postgres(error))
                    if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {}
                other => return other,
            }
        }
        Err(StoreError::Contended { runs: CLAIM_ROUNDS_MAX })
    }
}

impl Work<Looking, Done> for PostgresStore {
    /// Nothing is written: they do not see each other.
    fn fits(_: &[Looking], _: &Looking) -> bool {
        true
    }

    async fn run(&self, batch: Vec<Looking>) -> Vec<Result<Done, StoreError>> {
        together(self, &batch).await
    }
}

impl Work<Consuming, Done> for PostgresStore {
    /// Who shares something with an earlier one must see what that one did.
    fn fits(batch: &[Consuming], next: &Consuming) -> bool {
        batch.iter().all(|earlier| are_apart(&earlier.attempt, &next.attempt))
    }

    async fn run(&self, batch: Vec<Consuming>) -> Vec<Result<Done, StoreError>> {
        together(self, &batch).await
    }
}

/// Whether two attempts share nothing that can be used once: no key, no nonce, no effect that they
/// undo.
pub(super) fn are_apart(one: &Attempt, other: &Attempt) -> bool {
    one.valid.logical_request_key != other.valid.logical_request_key
        && one.grant.nonce != other.grant.nonce
        && (one.compensates.is_none() || one.compensates != other.compensates)
}

/// What was decided, if rows are to be written for it.
fn registered(said: &mut Result<Done, StoreError>) -> Option<&mut Done> {
    said.as_mut().ok().filter(|done| done.outcome == Outcome::Registered)
}

/// Decides each by its own row. One whose rows make no sense spoils it for nobody else.
fn decided<'a>(
    rows: &[Row],
    attempts: impl ExactSizeIterator<Item = (&'a Attempt, Entry)>,
    arrival: Option<Arrival>,
) -> Result<Said<Done>, StoreError> {
    if rows.len() != attempts.len() {
        return Err(overlooked());
    }
    let both = rows.iter().zip(attempts);
    let each = both.map(|(row, (attempt, entry))| found(row)?.decide(attempt, entry, arrival));
    Ok(each.collect())
}

pub(super) fn overlooked() -> StoreError {
    corrupt("effect_key", String::new(), "a look has not found a row for each".to_owned())
}

/// Consumes key and nonce and writes the registration, in the caller's own transaction, if the
/// decision is [`Outcome::Registered`]; otherwise it writes nothing, and what the caller does next
/// is not allowed. Once in a transaction: the locks of a second call might come before these.
pub async fn consume_in_tx(tx: &Transaction, attempt: &Attempt) -> Result<Done, StoreError> {
    let (mut locks, mut asked) = (Locks::default(), FactsAsked::default());
    locks.add(attempt);
    asked.add(attempt, Entry::NONE);
    tx.query(LOCK, &locks.parameters()).await?;
    let rows = tx.query(FACTS, &asked.parameters()).await?;
    let done = found(rows.first().ok_or_else(overlooked)?)?.decide(attempt, Entry::NONE, None)?;
    if done.outcome != Outcome::Registered {
        return Ok(done);
    }
    let mut consumed = Consumed::default();
    consumed.add(attempt, Entry::NONE);
    tx.execute(CONSUME, &consumed.parameters()).await?;
    Ok(Done { result: Some(attempt.result.clone()), ..done })
}

/// Which lock of its class: the first four bytes. Two names that share a number wait for each other
/// without need and nothing worse: a lock only makes others wait, and what is decided rests on rows
/// that are found by the whole name. Within one batch it is one lock.
fn lock_of(bytes: &[u8]) -> i32 {
    let mut four = [0; 4];
    four.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    i32::from_be_bytes(four)
}

/// Class and number of a nonce's lock.
pub(super) fn nonce_lock(nonce: Nonce) -> (i32, i32) {
    (NONCE_LOCKS, lock_of(&nonce.0.0))
}

/// The parameters of `LOCK`, kept alive.
#[derive(Default)]
struct Locks {
    classes: Vec<i32>,
    numbers: Vec<i32>,
}

impl Locks {
    fn add(&mut self, attempt: &Attempt) {
        self.classes.extend([KEY_LOCKS, NONCE_LOCKS]);
        self.numbers.push(lock_of(&attempt.valid.logical_request_key.0.0));
        self.numbers.push(lock_of(&attempt.grant.nonce.0.0));
        if let Some(key) = &attempt.compensates {
            self.classes.push(KEY_LOCKS);
            self.numbers.push(lock_of(&key.0.0));
        }
    }

    fn parameters(&self) -> [&(dyn ToSql + Sync); 2] {
        [&self.classes, &self.numbers]
    }
}

/// The parameters of `FACTS`, kept alive.
#[derive(Default)]
struct FactsAsked<'a> {
    keys: Vec<&'a [u8]>,
    nonces: Vec<&'a [u8]>,
    domains: Vec<&'a str>,
    issuers: Vec<&'a [u8]>,
    entries: Vec<i64>,
    compensates: Vec<Option<&'a [u8]>>,
}

impl<'a> FactsAsked<'a> {
    fn add(&mut self, attempt: &'a Attempt, entry: Entry) {
        self.keys.push(&attempt.valid.logical_request_key.0.0);
        self.nonces.push(&attempt.grant.nonce.0.0);
        self.domains.push(&attempt.valid.envelope.domain);
        self.issuers.push(&attempt.grant.issuer.0);
        self.entries.push(entry.0);
        self.compensates.push(attempt.compensates.as_ref().map(|key| key.0.0.as_slice()));
    }

    fn parameters(&self) -> [&(dyn ToSql + Sync); 6] {
        [&self.keys, &self.nonces, &self.domains, &self.issuers, &self.entries, &self.compensates]
    }
}

/// The parameters of `CONSUME`, kept alive.
#[derive(Default)]
struct Consumed<'a> {
    keys: Vec<&'a [u8]>,
    replay_keys: Vec<&'a [u8]>,
    versions: Vec<i64>,
    domains: Vec<&'a str>,
    operations: Vec<&'a str>,
    targets: Vec<&'a str>,
    artifact_hashes: Vec<&'a [u8]>,
    owners: Vec<&'a str>,
    runs: Vec<&'a str>,
    nonces: Vec<&'a [u8]>,
    times: Vec<i64>,
    issuers: Vec<&'a [u8]>,
    attempt_ids: Vec<&'a str>,
    results: Vec<&'a [u8]>,
    entries: Vec<i64>,
}

impl<'a> Consumed<'a> {
    fn add(&mut self, attempt: &'a Attempt, entry: Entry) {
        let Attempt { valid, grant, attempt_id, result, now, .. } = attempt;
        let envelope = &valid.envelope;
        self.keys.push(&valid.logical_request_key.0.0);
        self.replay_keys.push(&valid.replay_key.0.0);
        self.versions.push(envelope.protocol_version.cast_signed());
        self.domains.push(&envelope.domain);
        self.operations.push(&envelope.operation);
        self.targets.push(&envelope.canonical_target);
        self.artifact_hashes.push(&envelope.artifact_hash.0);
        self.owners.push(&envelope.owner_binding);
        self.runs.push(&envelope.run_id);
        self.nonces.push(&grant.nonce.0.0);
        self.times.push(now.0);
        self.issuers.push(&grant.issuer.0);
        self.attempt_ids.push(attempt_id);
        self.results.push(result);
        self.entries.push(entry.0);
    }

    fn parameters(&self) -> [&(dyn ToSql + Sync); 16] {
        [
            &self.keys,
            &self.replay_keys,
            &self.versions,
            &self.domains,
            &self.operations,
            &self.targets,
            &self.artifact_hashes,
            &self.owners,
            &self.runs,
            &self.nonces,
            &self.times,
            &self.issuers,
            &self.attempt_ids,
            &self.results,
            &self.entries,
            &REGISTERED,
        ]
    }
}

/// What is said of an attempt for which rows were written.
pub(super) fn written(attempt: &Attempt) -> Done {
    let result = Some(attempt.result.clone());
    Done { outcome: Outcome::Registered, key: Key::Free, result, trusted: true }
}

const REGISTERED: &str = Outcome::Registered.as_str();

pub(super) fn found(row: &Row) -> Result<Found, StoreError> {
    Ok(Found {
        replay_key: row.try_get(0)?,
        used_for: row.try_get(1)?,
        revoked: row.try_get(2)?,
        trusted: row.try_get(3)?,
        gate: row.try_get(4)?,
        verdict: row.try_get(5)?,
        result: row.try_get(6)?,
        earlier_open: row.try_get(7)?,
        mine_open: row.try_get(8)?,
        compensated: row.try_get(9)?,
        undone: row.try_get(10)?,
    })
}

fn effect_of(row: Option<&Row>) -> Result<Option<Effect>, StoreError> {
    let Some(row) = row else { return Ok(None) };
    effect(row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)
}
