//! The steps of an attempt that nobody is in the way of: looked at and written down by one
//! statement, consumed by another, with all those that came with it and without waiting between the
//! steps. A batch that fell apart after each step would come to the next one in pieces, and each
//! piece costs a transaction.
//!
//! What is decided is decided as everywhere, on the facts. The statements only look whether
//! anything is in the way: then they write nothing, and the attempt goes step by step.

use std::sync::Arc;

use semel_store::postgres::Work;
use semel_store::{StoreError, statements};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::effect::{Consuming, are_apart, found, overlooked, written};
use super::{PostgresStore, Said, Together, together};
use crate::decide::{Binding, Outcome, Time};
use crate::store::{Attempt, Done, Entry, Tried};

statements! {
    ARRIVE = "
        -- The facts as in FACTS, of who only looks, and a line for each attempt that nothing is in
        -- the way of. That line is seen by everybody at once and need not wait for the disk:
        -- nothing is said because of it, and what follows it is not on the disk before it.
        WITH unhurried AS MATERIALIZED (
            SELECT set_config('synchronous_commit', 'off', true) AS setting),
             found AS MATERIALIZED (
            SELECT (SELECT effect_key.replay_key
                      FROM registrar.effect_key
                     WHERE effect_key.logical_request_key = asked.key) AS replay_key,
                   (SELECT nonce_use.logical_request_key
                      FROM registrar.nonce_use
                     WHERE nonce_use.authorization_nonce = asked.nonce) AS used_for,
                   (SELECT 1
                      FROM registrar.grant_revoked
                     WHERE grant_revoked.authorization_nonce = asked.nonce
                     LIMIT 1) IS NOT NULL AS revoked,
                   (SELECT 1
                      FROM registrar.authority
                     WHERE authority.domain = asked.domain
                       AND authority.pubkey = asked.issuer
                     LIMIT 1) IS NOT NULL AS trusted,
                   (SELECT gate.action
                      FROM registrar.gate
                     WHERE gate.domain = asked.domain
                     ORDER BY gate.entry DESC
                     LIMIT 1) AS action,
                   (SELECT verification.verdict
                      FROM registrar.verification
                     WHERE verification.logical_request_key = asked.key) AS verdict,
                   (SELECT registration.result
                      FROM registrar.registration
                     WHERE registration.logical_request_key = asked.key) AS result,
                   (SELECT 1
                      FROM registrar.attempt AS started
                     WHERE started.logical_request_key = asked.key
                       AND started.event = 'started'
                       AND (SELECT 1
                              FROM registrar.attempt AS closing
                             WHERE closing.closes = started.entry
                             LIMIT 1) IS NULL
                     LIMIT 1) IS NOT NULL AS earlier_open,
                   (SELECT verification.verdict
                      FROM registrar.verification
                     WHERE verification.logical_request_key = asked.compensates) AS compensated,
                   (SELECT 1
                      FROM registrar.effect_key AS undoing
                     WHERE undoing.compensates = encode(asked.compensates, 'hex')
                     LIMIT 1) IS NOT NULL AS undone,
                   asked.key, asked.attempt_id, asked.at, asked.begins, asked.number
              FROM unnest($1::bytea[], $2::bytea[], $3::text[], $4::bytea[], $5::bytea[],
                          $6::text[], $7::bigint[], $8::boolean[])
                   WITH ORDINALITY
                   AS asked (key, nonce, domain, issuer, compensates, attempt_id, at, begins,
                             number)),
             begun AS (
            INSERT INTO registrar.attempt (event, logical_request_key, attempt_id, at)
            SELECT 'started', found.key, found.attempt_id, found.at
              FROM found
             WHERE found.begins
               AND found.replay_key IS NULL
               AND found.used_for IS NULL
               AND NOT found.revoked
               AND found.trusted
               AND found.action = 'open'
               AND NOT found.earlier_open
               AND (SELECT unhurried.setting FROM unhurried) = 'off'
         RETURNING logical_request_key, entry)
        SELECT found.replay_key, found.used_for, found.revoked, found.trusted, found.action,
               found.verdict, found.result, found.earlier_open, NULL::boolean, found.compensated,
               found.undone, begun.entry
          FROM found
          LEFT JOIN begun ON begun.logical_request_key = found.key
         ORDER BY found.number";
}

/// An attempt that comes.
pub(super) struct Registering(Arc<Attempt>);

impl PostgresStore {
    pub(in crate::store) async fn try_once(&self, attempt: &Attempt) -> Result<Tried, StoreError> {
        self.lanes.registers.write(self, Registering(Arc::new(attempt.clone()))).await
    }

    /// Consumes for those that are written down.
    async fn consume_all(&self, batch: &[Consuming]) -> Said<Done> {
        if batch.is_empty() {
            return Vec::new();
        }
        let free = match self.consume_free(batch).await {
            Ok(free) => free,
            Err(StoreError::Uncertain { cause }) => {
                let unknown = || StoreError::Uncertain { cause: cause.clone() };
                return batch.iter().map(|_| Err(unknown())).collect();
            }
            // Whatever refuses them all is found again by those whom it concerns.
            Err(_) => return together(self, batch).await,
        };
        let mut said = Vec::with_capacity(batch.len());
        for consuming in batch {
            let key = consuming.attempt.valid.logical_request_key.0.0;
            if free.contains(key.as_slice()) {
                said.push(Ok(written(&consuming.attempt)));
            } else {
                said.extend(together(self, std::slice::from_ref(consuming)).await);
            }
        }
        said
    }
}

impl Together for Registering {
    /// What the look has found, and the line of the attempt, if it has one now.
    type Answer = (Result<Done, StoreError>, Option<Entry>);

    /// One statement, which is its own transaction.
    async fn at_once(
        store: &PostgresStore,
        batch: &[Self],
    ) -> Result<Said<Self::Answer>, StoreError> {
        let mut arrived = Arrived::default();
        batch.iter().for_each(|Registering(attempt)| arrived.add(attempt));
        let rows = store.postgres.write(ARRIVE, &arrived.parameters()).await?;
        if rows.len() != batch.len() {
            return Err(overlooked());
        }
        let both = rows.iter().zip(batch);
        let each = both.map(|(row, Registering(attempt))| {
            let entry: Option<i64> = row.try_get(11)?;
            Ok((looked(row, attempt), entry.map(Entry)))
        });
        Ok(each.collect())
    }
}

fn looked(row: &Row, attempt: &Attempt) -> Result<Done, StoreError> {
    found(row)?.decide(attempt, Entry::LAST, None)
}

impl Work<Registering, Tried> for PostgresStore {
    /// Who shares something with an earlier one must see what that one did.
    fn fits(batch: &[Registering], Registering(next): &Registering) -> bool {
        batch.iter().all(|Registering(earlier)| are_apart(earlier, next))
    }

    async fn run(&self, batch: Vec<Registering>) -> Vec<Result<Tried, StoreError>> {
        let mut tried = Vec::with_capacity(batch.len());
        let (mut places, mut consuming) = (Vec::new(), Vec::with_capacity(batch.len()));
        let arrived = together(self, &batch).await;
        for (arrived, Registering(attempt)) in arrived.into_iter().zip(&batch) {
            let now = match arrived {
                Err(error) => Err(error),
                Ok((looked, None)) => looked.map(Tried::Looked),
                Ok((looked, Some(entry))) => {
                    if matches!(looked, Ok(Done { outcome: Outcome::Registered, .. })) {
                        places.push(tried.len());
                        consuming.push(Consuming { attempt: Arc::clone(attempt), entry });
                    }
                    Ok(Tried::Acted(entry, looked))
                }
            };
            tried.push(now);
        }
        let done = self.consume_all(&consuming).await;
        for ((place, Consuming { entry, .. }), done) in places.iter().zip(&consuming).zip(done) {
            if let Some(tried) = tried.get_mut(*place) {
                *tried = Ok(Tried::Acted(*entry, done));
            }
        }
        tried
    }
}

/// The parameters of `ARRIVE`, kept alive.
#[derive(Default)]
struct Arrived<'a> {
    keys: Vec<&'a [u8]>,
    nonces: Vec<&'a [u8]>,
    domains: Vec<&'a str>,
    issuers: Vec<&'a [u8]>,
    compensates: Vec<Option<&'a [u8]>>,
    attempt_ids: Vec<&'a str>,
    times: Vec<i64>,
    begins: Vec<bool>,
}

impl<'a> Arrived<'a> {
    fn add(&mut self, attempt: &'a Attempt) {
        let Attempt { valid, grant, compensates, attempt_id, now, .. } = attempt;
        let fits = grant.binding(valid) == Binding::Bound && grant.time(valid, *now) == Time::Fresh;
        self.keys.push(&valid.logical_request_key.0.0);
        self.nonces.push(&grant.nonce.0.0);
        self.domains.push(&valid.envelope.domain);
        self.issuers.push(&grant.issuer.0);
        self.compensates.push(compensates.as_ref().map(|key| key.0.0.as_slice()));
        self.attempt_ids.push(attempt_id);
        self.times.push(now.0);
        // What is to be compensated is looked at again under the locks.
        self.begins.push(fits && compensates.is_none());
    }

    fn parameters(&self) -> [&(dyn ToSql + Sync); 8] {
        [
            &self.keys,
            &self.nonces,
            &self.domains,
            &self.issuers,
            &self.compensates,
            &self.attempt_ids,
            &self.times,
            &self.begins,
        ]
    }
}
