//! The steps of an attempt that nobody is in the way of: looked at, written down and consumed, with
//! all those that came with it and without waiting between the steps. A batch that fell apart after
//! each step would come to the next one in pieces, and each piece costs a transaction.

use std::sync::Arc;

use semel_store::StoreError;
use semel_store::postgres::Work;

use super::attempt::Starting;
use super::effect::{Consuming, Looking};
use super::{PostgresStore, together};
use crate::decide::Outcome;
use crate::store::{Attempt, Done, Entry, Tried};

/// An attempt that comes.
pub(super) struct Registering(Arc<Attempt>);

impl PostgresStore {
    pub(in crate::store) async fn try_once(&self, attempt: &Attempt) -> Result<Tried, StoreError> {
        self.lanes.registers.write(self, Registering(Arc::new(attempt.clone()))).await
    }

    /// Those that the look lets pass are written down, each under its entry; the others have been
    /// told by the look.
    async fn look_all(&self, batch: &[Registering]) -> Vec<Result<Tried, StoreError>> {
        let looking: Vec<Looking> =
            batch.iter().map(|Registering(attempt)| Looking(Arc::clone(attempt))).collect();
        together(self, &looking).await.into_iter().map(|done| done.map(Tried::Looked)).collect()
    }
}

impl Work<Registering, Tried> for PostgresStore {
    /// Who shares a key or a nonce with an earlier one must see what that one did.
    fn fits(batch: &[Registering], Registering(next): &Registering) -> bool {
        batch.iter().all(|Registering(earlier)| {
            earlier.valid.logical_request_key != next.valid.logical_request_key
                && earlier.grant.nonce != next.grant.nonce
        })
    }

    async fn run(&self, batch: Vec<Registering>) -> Vec<Result<Tried, StoreError>> {
        let mut tried = self.look_all(&batch).await;
        let mut going = Vec::with_capacity(batch.len());
        for (tried, Registering(attempt)) in tried.iter_mut().zip(&batch) {
            if matches!(tried, Ok(Tried::Looked(Done { outcome: Outcome::Registered, .. }))) {
                going.push((tried, attempt));
            }
        }
        let starting: Vec<Starting> =
            going.iter().map(|(_, attempt)| Starting(Arc::clone(attempt))).collect();
        let entries = together(self, &starting).await;
        let mut begun: Vec<(&mut Result<Tried, StoreError>, Entry)> = Vec::new();
        let mut consuming = Vec::with_capacity(going.len());
        for ((tried, attempt), entry) in going.into_iter().zip(entries) {
            match entry {
                Err(error) => *tried = Err(error),
                Ok(entry) => {
                    begun.push((tried, entry));
                    consuming.push(Consuming { attempt: Arc::clone(attempt), entry });
                }
            }
        }
        let done = together(self, &consuming).await;
        for ((tried, entry), done) in begun.into_iter().zip(done) {
            *tried = Ok(Tried::Acted(entry, done));
        }
        tried
    }
}
