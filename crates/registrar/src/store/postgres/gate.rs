//! The table `gate`: the last line of a domain is its state.

use semel_core::clock::UnixMs;
use semel_store::{StoreError, statements};

use super::PostgresStore;
use crate::decide::Gate;
use crate::store::gate_of;

statements! {
    GATE_SHOW = "
        SELECT action
          FROM registrar.gate
         WHERE domain = $1
         ORDER BY entry DESC
         LIMIT 1";

    GATE_SET = "
        INSERT INTO registrar.gate (domain, action, at)
        VALUES ($1, $2, $3)";
}

impl PostgresStore {
    pub(in crate::store) async fn gate(&self, domain: &str) -> Result<Gate, StoreError> {
        let rows = self.postgres.read(GATE_SHOW, &[&domain]).await?;
        let action: Option<String> = rows.first().map(|row| row.try_get(0)).transpose()?;
        gate_of(domain, action.as_deref())
    }

    pub(in crate::store) async fn gate_set(
        &self,
        domain: &str,
        gate: Gate,
        now: UnixMs,
    ) -> Result<(), StoreError> {
        let run = async || {
            let tx = self.postgres.begin().await?;
            tx.query_and_commit(GATE_SET, &[&domain, &gate.as_str(), &now.0]).await.map(drop)
        };
        self.postgres.retry(run).await
    }
}
