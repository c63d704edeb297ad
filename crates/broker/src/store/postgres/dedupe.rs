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
        SELECT asked.sender, asked.id, dedupe.broker_message_id, history.seq,
               dedupe.request_fingerprint, dedupe.first_seen_at, dedupe.history_available
          FROM unnest($2::uuid[], $3::text[]) AS asked (sender, id)
         CROSS JOIN LATERAL (SELECT *
                               FROM mesh.client_message_dedupe
                              WHERE client_message_dedupe.mesh_id = $1
                                AND client_message_dedupe.sender_member_id = asked.sender
                                AND client_message_dedupe.client_message_id = asked.id
                              LIMIT 1) AS dedupe
          LEFT JOIN LATERAL (SELECT message_history.seq
                               FROM mesh.message_history
                              WHERE message_history.mesh_id = $1
                                AND message_history.broker_message_id = dedupe.broker_message_id
                              LIMIT 1) AS history ON TRUE";
}

impl PostgresStore {
    pub(in crate::store) async fn dedupe_look_up(
        &self,
        mesh_id: MeshId,
        keys: &[(MemberId, ClientMessageId)],
    ) -> Result<Vec<Option<Held>>, StoreError> {
        let asked: Vec<(Uuid, &str)> =
            keys.iter().map(|(sender, id)| (sender.as_uuid(), id.as_str())).collect();
        let (senders, ids): (Vec<Uuid>, Vec<&str>) = asked.iter().copied().unzip();
        let by: super::Parameters<'_> = &[&mesh_id.as_uuid(), &senders, &ids];
        let held = by_id(&self.postgres.read(LOOK_UP, by).await?)?;
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
    by_id(&tx.query(LOOK_UP, &[&mesh_id.as_uuid(), &senders, &ids]).await?)
}

fn by_id(rows: &[Row]) -> Result<HashMap<(Uuid, String), Held>, StoreError> {
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
