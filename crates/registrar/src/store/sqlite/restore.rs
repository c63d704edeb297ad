//! After a restore: what was used since the backup is forgotten, so nothing passes by itself.

use rusqlite::named_params;
use semel_core::clock::UnixMs;
use semel_store::{StoreError, statements};

use super::SqliteStore;

statements! {
    HOLD_ALL = "
        INSERT INTO gate (domain, action, at)
        SELECT DISTINCT domain, 'hold', :now
          FROM gate";
}

impl SqliteStore {
    pub(in crate::store) async fn gate_hold_all(&self, now: UnixMs) -> Result<u64, StoreError> {
        let write = self.sqlite.write(move |tx| {
            Ok(tx.prepare_cached(HOLD_ALL)?.execute(named_params! {":now": now.0})?)
        });
        write.await.map(|domains| domains as u64)
    }
}
