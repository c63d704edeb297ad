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
use super::accept::is_current_in_tx;
use crate::accept::{Held, Session};
use crate::store::{LookedUp, Resolved};

statements! {
    LOOK_UP = "
        -- Differs from sqlite: the epoch of the store comes with it, both are of one moment.
        SELECT store.store_epoch, found.sender, found.id, found.broker_message_id, found.seq,
               found.request_fingerprint, found.first_seen_at, found.history_available
          FROM mesh.store
          LEFT JOIN (SELECT asked.sender, asked.id, dedupe.broker_message_id, history.seq,
                            dedupe.request_fingerprint, dedupe.first_seen_at,
                            dedupe.history_available
                       FROM unnest($2::uuid[], $3::text[]) AS asked (sender, id)
                      CROSS JOIN LATERAL
                            (SELECT *
                               FROM mesh.client_message_dedupe
                              WHERE client_message_dedupe.mesh_id = $1
                                AND client_message_dedupe.sender_member_id = asked.sender
                                AND client_message_dedupe.client_message_id = asked.id
                              LIMIT 1) AS dedupe
                       LEFT JOIN LATERAL
                            (SELECT message_history.seq
                               FROM mesh.message_history
                              WHERE message_history.mesh_id = $1
                                AND message_history.broker_message_id = dedupe.broker_message_id
                              LIMIT 1) AS history ON TRUE) AS found ON TRUE
         WHERE store.one = 1";
}

impl PostgresStore {
    pub(in crate::store) async fn dedupe_look_up(
        &self,
        mesh_id: MeshId,
        keys: &[(MemberId, ClientMessageId)],
    ) -> Result<LookedUp, StoreError> {
        let asked: Vec<(Uuid, &str)> =
            keys.iter().map(|(sender, id)| (sender.as_uuid(), id.as_str())).collect();
        let (senders, ids): (Vec<Uuid>, Vec<&str>) = asked.iter().copied().unzip();
        let by: super::Parameters<'_> = &[&mesh_id.as_uuid(), &senders, &ids];
        looked_up(&asked, &self.postgres.read(LOOK_UP, by).await?)
    }

    pub(in crate::store) async fn resolve(
        &self,
        mesh_id: MeshId,
        session: &Session,
        ids: &[ClientMessageId],
    ) -> Result<Resolved, StoreError> {
        self.postgres.retry(|| self.resolve_once(mesh_id, session, ids)).await
    }

    async fn resolve_once(
        &self,
        mesh_id: MeshId,
        session: &Session,
        ids: &[ClientMessageId],
    ) -> Result<Resolved, StoreError> {
        let sender = session.member_id.as_uuid();
        let tx = self.postgres.begin().await?;
        // Held while the ids are read: no newer connection, and no other life of the store, can
        // come between.
        if !is_current_in_tx(&tx, mesh_id, session).await? {
            return Ok(Resolved::Stale);
        }
        let asked: Vec<(Uuid, &str)> = ids.iter().map(|id| (sender, id.as_str())).collect();
        let (senders, ids): (Vec<Uuid>, Vec<&str>) = asked.iter().copied().unzip();
        let rows = tx.query(LOOK_UP, &[&mesh_id.as_uuid(), &senders, &ids]).await?;
        looked_up(&asked, &rows).map(Resolved::Current)
    }
}

/// What the rows say of those that were asked for, in their order.
fn looked_up(asked: &[(Uuid, &str)], rows: &[Row]) -> Result<LookedUp, StoreError> {
    let first = rows.first().ok_or_else(super::no_epoch)?;
    let mut held = by_id(rows)?;
    held.retain(|_, held| !held.is_orphan());
    let found = |(sender, id): &(Uuid, &str)| held.get(&(*sender, (*id).to_owned())).cloned();
    Ok(LookedUp { store_epoch: first.try_get(0)?, held: asked.iter().map(found).collect() })
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
    let mut by_id = HashMap::with_capacity(rows.len());
    for row in rows {
        // A row without a sender brings the store's epoch alone.
        if let Some(sender) = row.try_get(1)? {
            by_id.insert((sender, row.try_get(2)?), held(row)?);
        }
    }
    Ok(by_id)
}

fn held(row: &Row) -> Result<Held, StoreError> {
    let bytes: Vec<u8> = row.try_get(5)?;
    let fingerprint = bytes.try_into().map_err(|_| StoreError::Corrupt {
        table: "client_message_dedupe",
        id: row.try_get(2).unwrap_or_default(),
        what: "the fingerprint has not 32 bytes".to_owned(),
    })?;
    Ok(Held {
        broker_message_id: UuidId::new(row.try_get(3)?),
        history_id: row.try_get(4)?,
        fingerprint: Fingerprint(fingerprint),
        first_seen_at: UnixMs(row.try_get(6)?),
        history_available: row.try_get(7)?,
    })
}
