//! After a restore: what was used since the backup is forgotten, so nothing passes by itself. A
//! domain that nobody has opened is held as it is; that of jobs is open without a line to say so.

use rusqlite::named_params;
use semel_core::clock::UnixMs;
use semel_store::{StoreError, statements};

use super::SqliteStore;
use crate::store::JOBS_DOMAIN;

statements! {
    HOLD_ALL = "
        INSERT INTO gate (domain, action, at)
        SELECT domain, 'hold', :now
          FROM gate
         UNION
        SELECT :jobs, 'hold', :now";
}

impl SqliteStore {
    pub(in crate::store) async fn gate_hold_all(&self, now: UnixMs) -> Result<u64, StoreError> {
        let write = self.sqlite.write(move |tx| {
            let by = named_params! {":now": now.0, ":jobs": JOBS_DOMAIN};
            Ok(tx.prepare_cached(HOLD_ALL)?.execute(by)?)
        });
        write.await.map(|domains| domains as u64)
    }
}
