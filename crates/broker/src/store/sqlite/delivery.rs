//! The table `delivery_queue`: what each recipient has not acknowledged yet.

use rusqlite::{OptionalExtension, Row, named_params};
use semel_core::clock::UnixMs;
use semel_core::id::MeshId;
use semel_store::sqlite::Tx;
use semel_store::{StoreError, is_of_one_row, statements};
use uuid::Uuid;

use super::history::message_if_any;
use super::{Key, SqliteStore, key};
use crate::store::{Arrived, Asked, Messages, RawDelivery, Unreadable, Waiting};

statements! {
    WAITING = "
        SELECT seq
          FROM delivery_queue
         WHERE recipient = (SELECT no
                              FROM recipient
                             WHERE mesh_id = :mesh_id
                               AND id = :recipient)
           AND seq > :after_seq
         ORDER BY seq
         LIMIT :limit";

    /// Of the oldest for each of so many recipients.
    OLDEST = "
        SELECT min((SELECT seq
                      FROM delivery_queue
                     WHERE recipient = known.no
                     ORDER BY seq
                     LIMIT 1))
          FROM (SELECT no
                  FROM recipient
                 WHERE mesh_id = :mesh_id
                 ORDER BY id
                 LIMIT :recipients_max) AS known";

    MESSAGE_OF = "
        SELECT broker_message_id
          FROM message_history
         WHERE mesh_id = :mesh_id
           AND seq = :seq";

    DONE = "
        DELETE FROM delivery_queue
         WHERE recipient = (SELECT no
                              FROM recipient
                             WHERE mesh_id = :mesh_id
                               AND id = :recipient)
           AND seq > :after
           AND seq <= :seq";

    SET_ASIDE = "
        INSERT INTO delivery_set_aside (mesh_id, recipient, seq, reason, at)
        SELECT :mesh_id, :recipient, seq, :reason, :now
          FROM delivery_queue
         WHERE recipient = (SELECT no
                              FROM recipient
                             WHERE mesh_id = :mesh_id
                               AND id = :recipient)
           AND seq = :seq
            ON CONFLICT DO NOTHING";

    SET_ASIDE_END = "
        DELETE FROM delivery_queue
         WHERE recipient = (SELECT no
                              FROM recipient
                             WHERE mesh_id = :mesh_id
                               AND id = :recipient)
           AND seq = :seq";
}

impl SqliteStore {
    pub(in crate::store) async fn deliveries_of(
        &self,
        mesh_id: MeshId,
        asked: &[Asked],
    ) -> Result<Waiting, StoreError> {
        let asked = asked.to_vec();
        let read = self.sqlite.read(move |snapshot| {
            let mut statement = snapshot.prepare_cached(WAITING)?;
            let mut found = Vec::with_capacity(asked.len());
            for asked in &asked {
                let by = named_params! {
                    ":mesh_id": key(mesh_id), ":recipient": asked.recipient.into_bytes(),
                    ":after_seq": asked.after_seq, ":limit": asked.limit,
                };
                let seqs = statement.query_map(by, |row| row.get(0))?;
                found.push(seqs.collect::<Result<Vec<i64>, _>>()?);
            }
            let (waiting, seqs) = Waiting::pick(&asked, found);
            let read = |seq| message_if_any(snapshot, mesh_id, seq).transpose();
            let rows = seqs.into_iter().filter_map(read).collect::<Result<Vec<_>, _>>()?;
            let messages = Messages::of(rows);
            Ok(Waiting { messages, ..waiting })
        });
        read.await
    }

    pub(in crate::store) async fn delivery_oldest(
        &self,
        mesh_id: MeshId,
        recipients_max: i64,
    ) -> Result<Option<Uuid>, StoreError> {
        let read = self.sqlite.read(move |snapshot| {
            let by = named_params! {":mesh_id": key(mesh_id), ":recipients_max": recipients_max};
            let mut first = snapshot.prepare_cached(OLDEST)?;
            let oldest: Option<i64> = first.query_row(by, |row| row.get(0))?;
            let by = named_params! {":mesh_id": key(mesh_id), ":seq": oldest};
            let mut message = snapshot.prepare_cached(MESSAGE_OF)?;
            let found = message.query_row(by, |row| Ok(row.get::<_, Key>(0)?.0)).optional()?;
            Ok(found)
        });
        read.await
    }

    pub(in crate::store) async fn deliveries_done_along(
        &self,
        mesh_id: MeshId,
        arrived: &[Arrived],
    ) -> Result<u64, StoreError> {
        let arrived = arrived.to_vec();
        let write = self.sqlite.write_along(move |tx| {
            arrived.iter().map(|arrived| done_in_tx(tx, mesh_id, arrived)).sum()
        });
        write.await
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
    arrived: &Arrived,
) -> Result<u64, StoreError> {
    let rows = tx.prepare_cached(DONE)?.execute(named_params! {
        ":mesh_id": key(mesh_id), ":recipient": arrived.recipient.into_bytes(),
        ":after": arrived.after, ":seq": arrived.seq,
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
