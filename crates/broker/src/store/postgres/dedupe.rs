//! The table `client_message_dedupe`: an id is consumed if and only if its row is here.

use std::collections::HashMap;

use semel_core::clock::UnixMs;
use semel_core::fingerprint::Fingerprint;
use semel_core::id::{ClientMessageId, MemberId, MeshId, UuidId};
use semel_store::postgres::Transaction;
use semel_store::{StoreError, statements};
use tokio_postgres::Row;
use uuid::Uuid;

use super::PostgresStore;
use crate::accept::Held;

statements! {
    LOOK_UP = "
        SELECT dedupe.sender_member_id, dedupe.client_message_id, dedupe.broker_message_id,
               history.seq, dedupe.request_fingerprint, dedupe.first_seen_at,
               dedupe.history_available
          FROM unnest($2::uuid[], $3::text[]) AS asked (sender, id)
          JOIN mesh.client_message_dedupe AS dedupe
            ON dedupe.mesh_id = $1
           AND dedupe.sender_member_id = asked.sender
           AND dedupe.client_message_id = asked.id
          LEFT JOIN mesh.message_history AS history
                 ON history.mesh_id = dedupe.mesh_id
                AND history.broker_message_id = dedupe.broker_message_id";
}

impl PostgresStore {
    pub(in crate::store) async fn dedupe_look_up(
        &self,
        mesh_id: MeshId,
        keys: &[(MemberId, ClientMessageId)],
    ) -> Result<Vec<Option<Held>>, StoreError> {
        let tx = self.postgres.snapshot().await?;
        let asked: Vec<(Uuid, &str)> =
            keys.iter().map(|(sender, id)| (sender.as_uuid(), id.as_str())).collect();
        let held = held_in_tx(&tx, mesh_id, &asked).await?;
        let found = |(sender, id): &(Uuid, &str)| held.get(&(*sender, (*id).to_owned())).cloned();
        Ok(asked.iter().map(found).collect())
    }
}

/// The rows that hold these (sender, id) pairs.
pub(super) async fn held_in_tx(
    tx: &Transaction,
    mesh_id: MeshId,
    keys: &[(Uuid, &str)],
) -> Result<HashMap<(Uuid, String), Held>, StoreError> {
    let (senders, ids): (Vec<Uuid>, Vec<&str>) = keys.iter().copied().unzip();
    let rows = tx.query(LOOK_UP, &[&mesh_id.as_uuid(), &senders, &ids]).await?;
    rows.iter().map(|row| Ok(((row.try_get(0)?, row.try_get(1)?), held(row)?))).collect()
}

fn held(row: &Row) -> Result<Held, StoreError> {
    let bytes: Vec<u8> = row.try_get(4)?;
    let fingerprint = bytes.try_into().map_err(|_| StoreError::Corrupt {
        table: "client_message_dedupe",
        id: row.try_get(1).unwrap_or_default(),
        what: "the fingerprint has not 32 bytes".to_owned(),
    })?;
    Ok(Held {
        broker_message_id: UuidId::new(row.try_get(2)?),
        history_id: row.try_get(3)?,
        fingerprint: Fingerprint(fingerprint),
        first_seen_at: UnixMs(row.try_get(5)?),
        history_available: row.try_get(6)?,
    })
}
