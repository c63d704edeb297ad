//! The table `delivery_queue`: what each recipient has not acknowledged yet.

use semel_core::clock::UnixMs;
use semel_core::id::{MeshId, UuidId};
use semel_store::postgres::Transaction;
use semel_store::{StoreError, statements};
use tokio_postgres::Row;
use uuid::Uuid;

use super::PostgresStore;
use crate::store::{Delivery, RawDelivery};

statements! {
    WAITING = "
        SELECT delivery.seq, history.broker_message_id, history.sender_member_id,
               sender.name, sender_key.pubkey, history.destination_kind,
               COALESCE(topic.client_message_id, direct.client_message_id),
               COALESCE(topic.topic, direct.destination_ref),
               COALESCE(topic.reply_to_id, direct.reply_to_id),
               COALESCE(topic.priority, direct.priority)::bigint,
               COALESCE(topic.meta, direct.meta),
               COALESCE(topic.body, direct.body),
               COALESCE(topic.body_commitment, direct.body_commitment),
               COALESCE(topic.accepted_at, direct.accepted_at)
          FROM mesh.delivery_queue AS delivery
          JOIN mesh.message_history AS history
            ON history.mesh_id = delivery.mesh_id AND history.seq = delivery.seq
          JOIN mesh.member AS sender
            ON sender.mesh_id = history.mesh_id AND sender.member_id = history.sender_member_id
          LEFT JOIN mesh.topic_message AS topic
                 ON topic.mesh_id = history.mesh_id
                AND topic.broker_message_id = history.broker_message_id
          LEFT JOIN mesh.message_queue AS direct
                 ON direct.mesh_id = history.mesh_id
                AND direct.broker_message_id = history.broker_message_id
          LEFT JOIN mesh.member_key AS sender_key
                 ON sender_key.mesh_id = sender.mesh_id
                AND sender_key.member_id = sender.member_id
                AND sender_key.status <> 'rotated_out'
         WHERE delivery.mesh_id = $1
           AND delivery.recipient = $2
           AND delivery.seq > $3
         ORDER BY delivery.seq
         LIMIT $4";

    /// From recipient to recipient along the primary key, one row each.
    OLDEST = "
        WITH RECURSIVE head AS (
            (SELECT 1::bigint AS number, recipient, seq
               FROM mesh.delivery_queue
              WHERE mesh_id = $1
              ORDER BY recipient, seq
              LIMIT 1)
             UNION ALL
            SELECT head.number + 1, next.recipient, next.seq
              FROM head,
                   LATERAL (SELECT recipient, seq
                              FROM mesh.delivery_queue
                             WHERE mesh_id = $1
                               AND recipient > head.recipient
                             ORDER BY recipient, seq
                             LIMIT 1) AS next
             WHERE head.number < $2
        )
        SELECT broker_message_id
          FROM mesh.message_history
         WHERE mesh_id = $1
           AND seq = (SELECT min(seq) FROM head)";

    DONE = "
        DELETE FROM mesh.delivery_queue
         WHERE mesh_id = $1
           AND recipient = $2
           AND seq <= $3";

    SET_ASIDE = "
        INSERT INTO mesh.delivery_set_aside (mesh_id, recipient, seq, reason, at)
        SELECT mesh_id, recipient, seq, $4, $5
          FROM mesh.delivery_queue
         WHERE mesh_id = $1
           AND recipient = $2
           AND seq = ANY ($3)
            ON CONFLICT DO NOTHING";

    SET_ASIDE_END = "
        DELETE FROM mesh.delivery_queue
         WHERE mesh_id = $1
           AND recipient = $2
           AND seq = ANY ($3)";
}

impl PostgresStore {
    pub(in crate::store) async fn deliveries(
        &self,
        mesh_id: MeshId,
        recipient: Uuid,
        after_seq: i64,
        limit: i64,
    ) -> Result<Vec<Delivery>, StoreError> {
        let tx = self.postgres.snapshot().await?;
        let by: super::Parameters<'_> = &[&mesh_id.as_uuid(), &recipient, &after_seq, &limit];
        let rows = tx.query(WAITING, by).await?;
        rows.iter().map(|row| raw(row)?.checked()).collect()
    }

    pub(in crate::store) async fn delivery_oldest(
        &self,
        mesh_id: MeshId,
        recipients_max: i64,
    ) -> Result<Option<Uuid>, StoreError> {
        let rows = self.postgres.read(OLDEST, &[&mesh_id.as_uuid(), &recipients_max]).await?;
        Ok(rows.first().map(|row| row.try_get(0)).transpose()?)
    }

    pub(in crate::store) async fn deliveries_done(
        &self,
        mesh_id: MeshId,
        recipient: Uuid,
        seq: i64,
    ) -> Result<u64, StoreError> {
        self.execute(DONE, &[&mesh_id.as_uuid(), &recipient, &seq]).await
    }

    pub(in crate::store) async fn deliveries_set_aside(
        &self,
        mesh_id: MeshId,
        recipient: Uuid,
        seqs: &[i64],
        reason: &'static str,
        now: UnixMs,
    ) -> Result<u64, StoreError> {
        let run = async || {
            let tx = self.postgres.begin().await?;
            let moved = set_aside_in_tx(&tx, mesh_id, recipient, seqs, reason, now).await?;
            tx.commit().await.map(|()| moved)
        };
        self.postgres.retry(run).await
    }
}

pub(super) async fn set_aside_in_tx(
    tx: &Transaction,
    mesh_id: MeshId,
    recipient: Uuid,
    seqs: &[i64],
    reason: &'static str,
    now: UnixMs,
) -> Result<u64, StoreError> {
    let mesh = mesh_id.as_uuid();
    let by: super::Parameters<'_> = &[&mesh, &recipient, &seqs, &reason, &now.0];
    let moved = tx.execute(SET_ASIDE, by).await?;
    tx.execute(SET_ASIDE_END, &[&mesh, &recipient, &seqs]).await?;
    Ok(moved)
}

pub(super) async fn done_in_tx(
    tx: &Transaction,
    mesh_id: MeshId,
    recipient: Uuid,
    seq: i64,
) -> Result<u64, StoreError> {
    tx.execute(DONE, &[&mesh_id.as_uuid(), &recipient, &seq]).await
}

pub(super) fn raw(row: &Row) -> Result<RawDelivery, StoreError> {
    let commitment: Option<Vec<u8>> = row.try_get(12)?;
    Ok(RawDelivery {
        seq: row.try_get(0)?,
        broker_message_id: UuidId::new(row.try_get(1)?),
        sender_member_id: UuidId::new(row.try_get(2)?),
        sender_name: row.try_get(3)?,
        sender_pubkey: row.try_get(4)?,
        destination_kind: row.try_get(5)?,
        client_message_id: row.try_get(6)?,
        destination_ref: row.try_get(7)?,
        reply_to_id: row.try_get(8)?,
        priority: row.try_get(9)?,
        meta: row.try_get(10)?,
        body: row.try_get(11)?,
        body_commitment: commitment.and_then(|bytes| bytes.try_into().ok()),
        accepted_at: UnixMs(row.try_get(13)?),
    })
}
