//! The table `message_history`, read again: what a member may see after a number (daemon.md,
//! "Inbox"), and messages by their number.

use rusqlite::{Connection, OptionalExtension, named_params};
use semel_core::clock::UnixMs;
use semel_core::id::{MemberId, MeshId};
use semel_store::{StoreError, statements};

use super::delivery::read_row;
use super::{Key, SqliteStore, key};
use crate::limits::HISTORY_SCAN_MAX;
use crate::store::housekeeping::made_at;
use crate::store::{HistoryPage, Messages, RawDelivery, Room, Unreadable};

statements! {
    /// Nothing when fewer rows are left than one request looks through.
    SCAN_END = "
        SELECT seq
          FROM message_history
         WHERE mesh_id = :mesh_id
           AND seq > :after_seq
         ORDER BY seq
         LIMIT 1 OFFSET :scan_max - 1";

    /// An id begins with the time at which it was made.
    NEWEST = "
        SELECT max(newest.broker_message_id)
          FROM mesh
          JOIN message_history AS newest
            ON newest.mesh_id = mesh.mesh_id
           AND newest.seq = (SELECT max(history.seq)
                               FROM message_history AS history
                              WHERE history.mesh_id = mesh.mesh_id)";

    VISIBLE = "
        SELECT history.seq
          FROM message_history AS history
          LEFT JOIN topic_message AS topic
                 ON topic.mesh_id = history.mesh_id
                AND topic.broker_message_id = history.broker_message_id
          LEFT JOIN message_queue AS direct
                 ON direct.mesh_id = history.mesh_id
                AND direct.broker_message_id = history.broker_message_id
         WHERE history.mesh_id = :mesh_id
           AND history.seq > :after_seq
           AND history.seq <= :scan_end
           AND (    history.destination_kind = 'topic'
                AND EXISTS (SELECT 1
                              FROM topic_subscription AS subscription
                             WHERE subscription.mesh_id = history.mesh_id
                               AND subscription.topic = topic.topic
                               AND subscription.member_id = :member_id
                               AND subscription.from_seq <= history.seq)
                 OR history.destination_kind = 'dm'
                AND EXISTS (SELECT 1
                              FROM member_key AS own
                             WHERE own.mesh_id = history.mesh_id
                               AND own.pubkey = direct.destination_ref
                               AND own.member_id = :member_id))
         ORDER BY history.seq
         LIMIT :limit";

    MESSAGE = "
        SELECT history.seq, history.broker_message_id, history.sender_member_id,
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
          FROM message_history AS history
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
         WHERE history.mesh_id = :mesh_id
           AND history.seq = :seq";
}

impl SqliteStore {
    /// When the newest message was taken in.
    pub(in crate::store) async fn newest(&self) -> Result<Option<UnixMs>, StoreError> {
        let read = self.sqlite.read(|connection| {
            let mut statement = connection.prepare_cached(NEWEST)?;
            let newest: Option<Key> = statement.query_row([], |row| row.get(0))?;
            Ok(newest.map(|id| made_at(id.0)))
        });
        read.await
    }

    pub(in crate::store) async fn history(
        &self,
        mesh_id: MeshId,
        member_id: MemberId,
        after_seq: i64,
        limit: i64,
        bytes_max: usize,
    ) -> Result<HistoryPage, StoreError> {
        let read = self.sqlite.read(move |connection| {
            let by = named_params! {
                ":mesh_id": key(mesh_id), ":after_seq": after_seq, ":scan_max": HISTORY_SCAN_MAX,
            };
            let mut statement = connection.prepare_cached(SCAN_END)?;
            let scanned: Option<i64> = statement.query_row(by, |row| row.get(0)).optional()?;
            let by = named_params! {
                ":mesh_id": key(mesh_id), ":member_id": key(member_id), ":after_seq": after_seq,
                ":scan_end": scanned.unwrap_or(i64::MAX), ":limit": limit,
            };
            let mut statement = connection.prepare_cached(VISIBLE)?;
            let seqs = statement.query_map(by, |row| row.get(0))?;
            let seqs: Vec<i64> = seqs.collect::<Result<_, _>>()?;
            let (mut rows, mut room) = (Vec::new(), Room::new(bytes_max));
            for seq in &seqs {
                let row = message(connection, mesh_id, *seq)?;
                if row.as_ref().is_ok_and(|row| !row.fits(&mut room)) {
                    break;
                }
                rows.push(row);
            }
            let is_cut = rows.len() < seqs.len();
            Ok(HistoryPage::new(Messages::of(rows), limit, is_cut, scanned))
        });
        read.await
    }
}

/// The message with this number, which is there, as it was read.
pub(super) fn message(
    connection: &Connection,
    mesh_id: MeshId,
    seq: i64,
) -> Result<Result<RawDelivery, Unreadable>, StoreError> {
    let found = message_if_any(connection, mesh_id, seq)?;
    Ok(found.ok_or(rusqlite::Error::QueryReturnedNoRows)?)
}

/// The same for one that may not be there.
pub(super) fn message_if_any(
    connection: &Connection,
    mesh_id: MeshId,
    seq: i64,
) -> Result<Option<Result<RawDelivery, Unreadable>>, StoreError> {
    let by = named_params! {":mesh_id": key(mesh_id), ":seq": seq};
    Ok(connection.prepare_cached(MESSAGE)?.query_row(by, read_row).optional()?)
}
