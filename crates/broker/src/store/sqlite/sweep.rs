//! What housekeeping deletes: ids that have expired, and messages that are too old (mesh.md §7).

use rusqlite::{Row, named_params};
use semel_core::clock::UnixMs;
use semel_core::id::MeshId;
use semel_store::sqlite::Tx;
use semel_store::{StoreError, statements};

use super::{Key, SqliteStore, key};
use crate::limits::SWEEP_ROWS;
use crate::store::housekeeping::{made_before, runs};

statements! {
    /// A mesh that is permanent now keeps also what it accepted before it was, and one that has
    /// told daemons a longer retention keeps what was accepted under a shorter one.
    EXPIRED = "
        DELETE FROM client_message_dedupe
         WHERE (mesh_id, sender_member_id, client_message_id) IN (
               SELECT expired.mesh_id, expired.sender_member_id, expired.client_message_id
                 FROM client_message_dedupe AS expired
                WHERE expired.expires_at <= :now
                  AND EXISTS (SELECT 1
                                FROM mesh
                               WHERE mesh.mesh_id = expired.mesh_id
                                 AND mesh.dedupe_mode = 'retention_scoped'
                                 AND expired.first_seen_at
                                     <= :now - (mesh.dedupe_retention_days + 1) * 86400000)
                ORDER BY expired.expires_at
                LIMIT :limit)";

    /// By age alone: what was never delivered goes too, or a member that stays away would keep
    /// its messages for ever. A message's id begins with the time at which it was made, so that the
    /// key finds the oldest.
    DOOMED = "
        SELECT broker_message_id, sender_member_id, client_message_id, seq
          FROM topic_message
         WHERE mesh_id = :mesh_id
           AND broker_message_id < :made_before
           AND accepted_at < :older_than
         UNION ALL
        SELECT broker_message_id, sender_member_id, client_message_id, seq
          FROM message_queue
         WHERE mesh_id = :mesh_id
           AND broker_message_id < :made_before
           AND accepted_at < :older_than
         ORDER BY broker_message_id
         LIMIT :limit";

    TOPIC_DELETE = "
        DELETE FROM topic_message
         WHERE mesh_id = :mesh_id
           AND broker_message_id = :broker_message_id";

    DIRECT_DELETE = "
        DELETE FROM message_queue
         WHERE mesh_id = :mesh_id
           AND broker_message_id = :broker_message_id";

    /// The id may have expired and belong to a later message, which stays.
    HISTORY_UNAVAILABLE = "
        UPDATE client_message_dedupe
           SET history_available = 0
         WHERE mesh_id = :mesh_id
           AND sender_member_id = :sender
           AND client_message_id = :client_message_id
           AND broker_message_id = :broker_message_id";

    HISTORY_DELETE = "
        DELETE FROM message_history
         WHERE mesh_id = :mesh_id
           AND seq = :seq
           AND broker_message_id = :broker_message_id";

    DELIVERIES_DELETE = "
        DELETE FROM delivery_queue
         WHERE recipient IN (SELECT no
                               FROM recipient
                              WHERE mesh_id = :mesh_id)
           AND seq BETWEEN :first AND :last";

    SET_ASIDE_DELETE = "
        DELETE FROM delivery_set_aside
         WHERE mesh_id = :mesh_id
           AND recipient IN (SELECT member_id
                               FROM member
                              WHERE mesh_id = :mesh_id)
           AND seq BETWEEN :first AND :last";

    MENTIONS_DELETE = "
        DELETE FROM mention_index
         WHERE mesh_id = :mesh_id
           AND member_id IN (SELECT member_id
                               FROM member
                              WHERE mesh_id = :mesh_id)
           AND seq BETWEEN :first AND :last";
}

impl SqliteStore {
    pub(in crate::store) async fn dedupe_sweep(
        &self,
        now: UnixMs,
        limit: i64,
    ) -> Result<u64, StoreError> {
        let write = self.sqlite.write(move |tx| {
            let by = named_params! {":now": now.0, ":limit": limit};
            Ok(tx.prepare_cached(EXPIRED)?.execute(by)?)
        });
        write.await.map(|rows| rows as u64)
    }

    pub(in crate::store) async fn retention_sweep(
        &self,
        mesh_id: MeshId,
        older_than: UnixMs,
        limit: i64,
    ) -> Result<u64, StoreError> {
        let write = self.sqlite.write(move |tx| retention_in_tx(tx, mesh_id, older_than, limit));
        write.await
    }
}

/// A message that is to go.
struct Doomed {
    broker_message_id: [u8; 16],
    sender: [u8; 16],
    client_message_id: String,
    seq: i64,
}

fn retention_in_tx(
    tx: &Tx<'_>,
    mesh_id: MeshId,
    older_than: UnixMs,
    limit: i64,
) -> Result<u64, StoreError> {
    let mesh = key(mesh_id);
    let by = named_params! {
        ":mesh_id": mesh, ":made_before": made_before(older_than).into_bytes(),
        ":older_than": older_than.0, ":limit": limit,
    };
    let mut statement = tx.prepare_cached(DOOMED)?;
    let doomed: Vec<Doomed> = statement.query_map(by, doomed)?.collect::<Result<_, _>>()?;
    let mut rows = 0;
    for message in &doomed {
        let id = message.broker_message_id;
        let by = named_params! {":mesh_id": mesh, ":broker_message_id": id};
        tx.prepare_cached(TOPIC_DELETE)?.execute(by)?;
        tx.prepare_cached(DIRECT_DELETE)?.execute(by)?;
        tx.prepare_cached(HISTORY_UNAVAILABLE)?.execute(named_params! {
            ":mesh_id": mesh, ":broker_message_id": id, ":sender": message.sender,
            ":client_message_id": message.client_message_id,
        })?;
        let by = named_params! {
            ":mesh_id": mesh, ":broker_message_id": id, ":seq": message.seq,
        };
        tx.prepare_cached(HISTORY_DELETE)?.execute(by)?;
    }
    for (first, last) in runs(doomed.iter().map(|message| message.seq).collect()) {
        let by = named_params! {":mesh_id": mesh, ":first": first, ":last": last};
        rows += tx.prepare_cached(DELIVERIES_DELETE)?.execute(by)?;
        rows += tx.prepare_cached(SET_ASIDE_DELETE)?.execute(by)?;
        rows += tx.prepare_cached(MENTIONS_DELETE)?.execute(by)?;
    }
    // Everybody waits for it: the sweep is undone and comes again with fewer.
    if rows as u64 > SWEEP_ROWS && doomed.len() > 1 {
        return Err(StoreError::TooManyRows { rows: rows as u64, max: SWEEP_ROWS });
    }
    Ok(doomed.len() as u64)
}

fn doomed(row: &Row<'_>) -> rusqlite::Result<Doomed> {
    Ok(Doomed {
        broker_message_id: row.get::<_, Key>(0)?.0.into_bytes(),
        sender: row.get::<_, Key>(1)?.0.into_bytes(),
        client_message_id: row.get(2)?,
        seq: row.get(3)?,
    })
}
