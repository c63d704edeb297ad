//! The table `delivery_queue`: what each recipient has not acknowledged yet.

use semel_core::clock::UnixMs;
use semel_core::id::{MeshId, UuidId};
use semel_store::postgres::Transaction;
use semel_store::{StoreError, statements};
use tokio_postgres::Row;
use uuid::Uuid;

use super::PostgresStore;
use super::history::messages_in_tx;
use crate::store::{Arrived, Asked, RawDelivery, Waiting};

statements! {
    /// Of as many recipients as are asked about, each along the primary key.
    WAITING = "
        SELECT asked.number::bigint, waiting.seq
          FROM unnest($2::uuid[], $3::bigint[])
               WITH ORDINALITY AS asked (recipient, after_seq, number),
               LATERAL (SELECT delivery_queue.seq
                          FROM mesh.delivery_queue
                         WHERE delivery_queue.mesh_id = $1
                           AND delivery_queue.recipient = asked.recipient
                           AND delivery_queue.seq > asked.after_seq
                         ORDER BY delivery_queue.seq
                         LIMIT $4) AS waiting";

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
           AND seq > $3
           AND seq <= $4";

    DONE_OF_MANY = "
        DELETE FROM mesh.delivery_queue
         WHERE ctid = ANY (ARRAY (
               SELECT over.ctid
                 FROM unnest($2::uuid[], $3::bigint[], $4::bigint[])
                      AS asked (recipient, after, seq),
                      LATERAL (SELECT waiting.ctid
                                 FROM mesh.delivery_queue AS waiting
                                WHERE waiting.mesh_id = $1
                                  AND waiting.recipient = asked.recipient
                                  AND waiting.seq > asked.after
                                  AND waiting.seq <= asked.seq
                               OFFSET 0) AS over))";

    SET_ASIDE = "
        INSERT INTO mesh.delivery_set_aside (mesh_id, recipient, seq, reason, at)
        SELECT $1, $2, found.seq, $4, $5
          FROM unnest($3::bigint[]) AS asked (seq),
               LATERAL (SELECT waiting.seq
                          FROM mesh.delivery_queue AS waiting
                         WHERE waiting.mesh_id = $1
                           AND waiting.recipient = $2
                           AND waiting.seq = asked.seq
                         LIMIT 1) AS found
            ON CONFLICT DO NOTHING";

    SET_ASIDE_END = "
        DELETE FROM mesh.delivery_queue
         WHERE ctid = ANY (ARRAY (
               SELECT found.ctid
                 FROM unnest($3::bigint[]) AS asked (seq),
                      LATERAL (SELECT waiting.ctid
                                 FROM mesh.delivery_queue AS waiting
                                WHERE waiting.mesh_id = $1
                                  AND waiting.recipient = $2
                                  AND waiting.seq = asked.seq
                                LIMIT 1) AS found))";
}

impl PostgresStore {
    pub(in crate::store) async fn deliveries_of(
        &self,
        mesh_id: MeshId,
        asked: &[Asked],
    ) -> Result<Waiting, StoreError> {
        let (recipients, after): (Vec<Uuid>, Vec<i64>) =
            asked.iter().map(|asked| (asked.recipient, asked.after_seq)).unzip();
        let limit = asked.iter().map(|asked| asked.limit).max().unwrap_or(0);
        let tx = self.postgres.snapshot().await?;
        let by: super::Parameters<'_> = &[&mesh_id.as_uuid(), &recipients, &after, &limit];
        let mut found = vec![Vec::new(); asked.len()];
        for row in tx.query(WAITING, by).await? {
            let number: i64 = row.try_get(0)?;
            let whose = usize::try_from(number - 1).ok().and_then(|at| found.get_mut(at));
            if let Some(seqs) = whose {
                seqs.push(row.try_get::<_, i64>(1)?);
            }
        }
        found.iter_mut().for_each(|seqs| seqs.sort_unstable());
        let (waiting, seqs) = Waiting::pick(asked, found);
        let seqs: Vec<i64> = seqs.into_iter().collect();
        Ok(Waiting { messages: messages_in_tx(&tx, mesh_id, &seqs).await?, ..waiting })
    }

    pub(in crate::store) async fn delivery_oldest(
        &self,
        mesh_id: MeshId,
        recipients_max: i64,
    ) -> Result<Option<Uuid>, StoreError> {
        let rows = self.postgres.read(OLDEST, &[&mesh_id.as_uuid(), &recipients_max]).await?;
        Ok(rows.first().map(|row| row.try_get(0)).transpose()?)
    }

    pub(in crate::store) async fn deliveries_done_along(
        &self,
        mesh_id: MeshId,
        arrived: &[Arrived],
    ) -> Result<u64, StoreError> {
        // In one order, so that two of these cannot wait for each other.
        let mut arrived = arrived.to_vec();
        arrived.sort_unstable_by_key(|arrived| arrived.recipient);
        let recipients: Vec<Uuid> = arrived.iter().map(|arrived| arrived.recipient).collect();
        let (after, seqs): (Vec<i64>, Vec<i64>) =
            arrived.iter().map(|arrived| (arrived.after, arrived.seq)).unzip();
        self.execute(DONE_OF_MANY, &[&mesh_id.as_uuid(), &recipients, &after, &seqs]).await
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
    (after, seq): (i64, i64),
) -> Result<u64, StoreError> {
    tx.execute(DONE, &[&mesh_id.as_uuid(), &recipient, &after, &seq]).await
}

pub(super) fn raw(row: &Row) -> Result<RawDelivery, StoreError> {
    let (commitment, fingerprint): (Option<Vec<u8>>, Option<Vec<u8>>) =
        (row.try_get(12)?, row.try_get(14)?);
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
        request_fingerprint: fingerprint.and_then(|bytes| bytes.try_into().ok()),
    })
}
