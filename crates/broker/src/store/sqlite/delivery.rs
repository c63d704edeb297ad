//! The table `delivery_queue`: what each recipient has not acknowledged yet.

use rusqlite::{OptionalExtension, Row, named_params};
use semel_core::clock::UnixMs;
use semel_core::id::MeshId;
use semel_store::sqlite::Tx;
use semel_store::{StoreError, is_of_one_row, statements};
use uuid::Uuid;

use super::{Key, SqliteStore, key};
use crate::store::{Messages, RawDelivery, Unreadable};

statements! {
    WAITING = "
        SELECT delivery.seq, history.broker_message_id, history.sender_member_id,
               sender.name, sender_key.pubkey, history.destination_kind,
               COALESCE(topic.client_message_id, direct.client_message_id),
               COALESCE(topic.topic, direct.destination_ref),
               COALESCE(topic.reply_to_id, direct.reply_to_id),
               COALESCE(topic.priority, direct.priority),
               COALESCE(topic.meta, direct.meta),
               COALESCE(topic.body, direct.body),
               COALESCE(topic.body_commitment, direct.body_commitment),
               COALESCE(topic.accepted_at, direct.accepted_at),
               COALESCE(topic.request_fingerprint, direct.request_fingerprint)
          FROM delivery_queue AS delivery
          JOIN message_history AS history
            ON history.mesh_id = delivery.mesh_id AND history.seq = delivery.seq
          JOIN member AS sender
            ON sender.mesh_id = history.mesh_id AND sender.member_id = history.sender_member_id
          LEFT JOIN topic_message AS topic
                 ON topic.mesh_id = history.mesh_id
                AND topic.broker_message_id = history.broker_message_id
          LEFT JOIN message_queue AS direct
                 ON direct.mesh_id = history.mesh_id
                AND direct.broker_message_id = history.broker_message_id
          LEFT JOIN member_key AS sender_key
                 ON sender_key.mesh_id = sender.mesh_id
                AND sender_key.member_id = sender.member_id
                AND sender_key.status <> 'rotated_out'
         WHERE delivery.mesh_id = :mesh_id
           AND delivery.recipient = :recipient
           AND delivery.seq > :after_seq
         ORDER BY delivery.seq
         LIMIT :limit";

    /// Of the next recipient along the primary key.
    OLDEST_OF_NEXT = "
        SELECT recipient, seq
          FROM delivery_queue
         WHERE mesh_id = :mesh_id
           AND recipient > :after
         ORDER BY recipient, seq
         LIMIT 1";

    MESSAGE_OF = "
        SELECT broker_message_id
          FROM message_history
         WHERE mesh_id = :mesh_id
           AND seq = :seq";

    DONE = "
        DELETE FROM delivery_queue
         WHERE mesh_id = :mesh_id
           AND recipient = :recipient
           AND seq <= :seq";

    SET_ASIDE = "
        INSERT INTO delivery_set_aside (mesh_id, recipient, seq, reason, at)
        SELECT mesh_id, recipient, seq, :reason, :now
          FROM delivery_queue
         WHERE mesh_id = :mesh_id
           AND recipient = :recipient
           AND seq = :seq
            ON CONFLICT DO NOTHING";

    SET_ASIDE_END = "
        DELETE FROM delivery_queue
         WHERE mesh_id = :mesh_id
           AND recipient = :recipient
           AND seq = :seq";
}

impl SqliteStore {
    pub(in crate::store) async fn deliveries(
        &self,
        mesh_id: MeshId,
        recipient: Uuid,
        after_seq: i64,
        limit: i64,
    ) -> Result<Messages, StoreError> {
        let read = self.sqlite.read(move |connection| {
            let mut statement = connection.prepare_cached(WAITING)?;
            let by = named_params! {
                ":mesh_id": key(mesh_id), ":recipient": recipient.into_bytes(),
                ":after_seq": after_seq, ":limit": limit,
            };
            let rows = statement.query_map(by, read_row)?;
            Ok(Messages::of(rows.collect::<Result<Vec<_>, _>>()?))
        });
        read.await
    }

    pub(in crate::store) async fn delivery_oldest(
        &self,
        mesh_id: MeshId,
        recipients_max: i64,
    ) -> Result<Option<Uuid>, StoreError> {
        let read = self.sqlite.read(move |snapshot| {
            let mut next = snapshot.prepare_cached(OLDEST_OF_NEXT)?;
            // No recipient comes before this one.
            let (mut after, mut oldest) = (Vec::new(), None::<i64>);
            for _ in 0..recipients_max {
                let by = named_params! {":mesh_id": key(mesh_id), ":after": after};
                let found = next.query_row(by, |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
                let Some((recipient, seq)) = found else { break };
                after = recipient;
                oldest = Some(oldest.map_or(seq, |oldest| oldest.min(seq)));
            }
            let by = named_params! {":mesh_id": key(mesh_id), ":seq": oldest};
            let mut message = snapshot.prepare_cached(MESSAGE_OF)?;
            let found = message.query_row(by, |row| Ok(row.get::<_, Key>(0)?.0)).optional()?;
            Ok(found)
        });
        read.await
    }

    pub(in crate::store) async fn deliveries_done(
        &self,
        mesh_id: MeshId,
        recipient: Uuid,
        seq: i64,
    ) -> Result<u64, StoreError> {
        self.sqlite.write(move |tx| done_in_tx(tx, mesh_id, recipient, seq)).await
    }

    pub(in crate::store) async fn deliveries_done_along(
        &self,
        mesh_id: MeshId,
        recipient: Uuid,
        seq: i64,
    ) -> Result<u64, StoreError> {
        self.sqlite.write_along(move |tx| done_in_tx(tx, mesh_id, recipient, seq)).await
    }

    pub(in crate::store) async fn deliveries_set_aside(
        &self,
        mesh_id: MeshId,
        recipient: Uuid,
        seqs: &[i64],
        reason: &'static str,
        now: UnixMs,
    ) -> Result<u64, StoreError> {
        let seqs = seqs.to_vec();
        let write = self.sqlite.write(move |tx| {
            let mut moved = 0;
            for seq in &seqs {
                let recipient = recipient.into_bytes();
                moved += set_aside_in_tx(tx, mesh_id, recipient, *seq, reason, now)?;
            }
            Ok(moved)
        });
        write.await
    }
}

pub(super) fn set_aside_in_tx(
    tx: &Tx<'_>,
    mesh_id: MeshId,
    recipient: [u8; 16],
    seq: i64,
    reason: &'static str,
    now: UnixMs,
) -> Result<u64, StoreError> {
    let moved = tx.prepare_cached(SET_ASIDE)?.execute(named_params! {
        ":mesh_id": key(mesh_id), ":recipient": recipient, ":seq": seq, ":reason": reason,
        ":now": now.0,
    })?;
    tx.prepare_cached(SET_ASIDE_END)?.execute(named_params! {
        ":mesh_id": key(mesh_id), ":recipient": recipient, ":seq": seq,
    })?;
    Ok(moved as u64)
}

pub(super) fn done_in_tx(
    tx: &Tx<'_>,
    mesh_id: MeshId,
    recipient: Uuid,
    seq: i64,
) -> Result<u64, StoreError> {
    let rows = tx.prepare_cached(DONE)?.execute(named_params! {
        ":mesh_id": key(mesh_id), ":recipient": recipient.into_bytes(), ":seq": seq,
    })?;
    Ok(rows as u64)
}

/// A row whose values are not what their columns hold is damaged, and the others can be read.
pub(super) fn read_row(row: &Row<'_>) -> rusqlite::Result<Result<RawDelivery, Unreadable>> {
    let seq = row.get(0)?;
    match raw(row) {
        Ok(raw) => Ok(Ok(raw)),
        Err(error) if is_of_one_row(&error) => Ok(Err(Unreadable { seq, why: error.to_string() })),
        Err(error) => Err(error),
    }
}

fn raw(row: &Row<'_>) -> rusqlite::Result<RawDelivery> {
    Ok(RawDelivery {
        seq: row.get(0)?,
        broker_message_id: row.get::<_, Key>(1)?.id(),
        sender_member_id: row.get::<_, Key>(2)?.id(),
        sender_name: row.get(3)?,
        sender_pubkey: row.get(4)?,
        destination_kind: row.get(5)?,
        client_message_id: row.get(6)?,
        destination_ref: row.get(7)?,
        reply_to_id: row.get(8)?,
        priority: row.get(9)?,
        meta: row.get(10)?,
        body: row.get(11)?,
        body_commitment: row.get(12)?,
        accepted_at: UnixMs(row.get(13)?),
        request_fingerprint: row.get(14)?,
    })
}
