//! After a restore: what was used since the backup is forgotten, so nothing passes by itself. A
//! domain that nobody has opened is held as it is; that of jobs is open without a line to say so.

use semel_core::clock::UnixMs;
use semel_store::{StoreError, statements};

use super::PostgresStore;
use crate::store::JOBS_DOMAIN;

statements! {
    HOLD_ALL = "
        INSERT INTO registrar.gate (domain, action, at)
        SELECT domain, 'hold', $1::bigint
          FROM registrar.gate
         UNION
        SELECT $2::text, 'hold', $1::bigint";
}

impl PostgresStore {
    pub(in crate::store) async fn gate_hold_all(&self, now: UnixMs) -> Result<u64, StoreError> {
        let run = async || {
            let tx = self.postgres.begin().await?;
            let domains = tx.execute(HOLD_ALL, &[&now.0, &JOBS_DOMAIN]).await?;
            tx.commit().await.map(|()| domains)
        };
        self.postgres.retry(run).await
    }
}
