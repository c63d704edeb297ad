//! After a restore: what was used since the backup is forgotten, so nothing passes by itself.

use semel_core::clock::UnixMs;
use semel_store::{StoreError, statements};

use super::PostgresStore;

statements! {
    HOLD_ALL = "
        INSERT INTO registrar.gate (domain, action, at)
        SELECT DISTINCT domain, 'hold', $1::bigint
          FROM registrar.gate";
}

impl PostgresStore {
    pub(in crate::store) async fn gate_hold_all(&self, now: UnixMs) -> Result<u64, StoreError> {
        let run = async || {
            let tx = self.postgres.begin().await?;
            let domains = tx.execute(HOLD_ALL, &[&now.0]).await?;
            tx.commit().await.map(|()| domains)
        };
        self.postgres.retry(run).await
    }
}
