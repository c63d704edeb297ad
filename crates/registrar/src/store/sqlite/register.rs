//! The steps of an attempt that nobody is in the way of. Differs from postgres: one after the
//! other, as the one writer shares its commits by itself.

use semel_store::StoreError;

use super::SqliteStore;
use crate::decide::Outcome;
use crate::store::{Attempt, Tried};

impl SqliteStore {
    pub(in crate::store) async fn try_once(&self, attempt: &Attempt) -> Result<Tried, StoreError> {
        let looked = self.look(attempt).await?;
        if looked.outcome != Outcome::Registered {
            return Ok(Tried::Looked(looked));
        }
        let entry = self.attempt_start(attempt).await?;
        Ok(Tried::Acted(entry, self.consume(attempt, entry).await))
    }
}
