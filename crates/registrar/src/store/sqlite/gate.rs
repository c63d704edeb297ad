//! The table `gate`: the last line of a domain is its state.

use rusqlite::{OptionalExtension, named_params};
use semel_core::clock::UnixMs;
use semel_store::{StoreError, statements};

use super::SqliteStore;
use crate::decide::Gate;
use crate::store::gate_of;

statements! {
    GATE_SHOW = "
        SELECT action
          FROM gate
         WHERE domain = :domain
         ORDER BY entry DESC
         LIMIT 1";

    GATE_SET = "
        INSERT INTO gate (domain, action, at)
        VALUES (:domain, :action, :now)";
}

impl SqliteStore {
    pub(in crate::store) async fn gate(&self, domain: &str) -> Result<Gate, StoreError> {
        let domain = domain.to_owned();
        let read = self.sqlite.read(move |tx| {
            let mut show = tx.prepare_cached(GATE_SHOW)?;
            let action: Option<String> =
                show.query_row(named_params! {":domain": domain}, |row| row.get(0)).optional()?;
            gate_of(&domain, action.as_deref())
        });
        read.await
    }

    pub(in crate::store) async fn gate_set(
        &self,
        domain: &str,
        gate: Gate,
        now: UnixMs,
    ) -> Result<(), StoreError> {
        let domain = domain.to_owned();
        let write = self.sqlite.write(move |tx| {
            let by = named_params! {":domain": domain, ":action": gate.as_str(), ":now": now.0};
            tx.prepare_cached(GATE_SET)?.execute(by)?;
            Ok(())
        });
        write.await
    }
}
