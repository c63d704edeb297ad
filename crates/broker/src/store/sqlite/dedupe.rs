//! The table `client_message_dedupe`: an id is consumed if and only if its row is here.

use rusqlite::{Connection, OptionalExtension, Row, named_params};
use semel_core::clock::UnixMs;
use semel_core::fingerprint::Fingerprint;
use semel_core::id::{ClientMessageId, MemberId, MeshId};
use semel_store::{StoreError, statements};

use super::{Key, SqliteStore, key};
use crate::accept::{AcceptBatch, AcceptItem, Held};

statements! {
    LOOK_UP = "
        SELECT dedupe.broker_message_id, history.seq, dedupe.request_fingerprint,
               dedupe.first_seen_at, dedupe.history_available
          FROM client_message_dedupe AS dedupe
          LEFT JOIN message_history AS history
                 ON history.mesh_id = dedupe.mesh_id
                AND history.broker_message_id = dedupe.broker_message_id
         WHERE dedupe.mesh_id = :mesh_id
           AND dedupe.sender_member_id = :sender
           AND dedupe.client_message_id = :client_message_id";

    INSERT = "
        INSERT INTO client_message_dedupe (mesh_id, sender_member_id, client_message_id,
                                           broker_message_id, request_fingerprint,
                                           destination_kind, destination_ref, first_seen_at,
                                           expires_at)
        VALUES (:mesh_id, :sender, :client_message_id, :broker_message_id, :fingerprint,
                :destination_kind, :destination_ref, :now, :expires_at)";
}

impl SqliteStore {
    pub(in crate::store) async fn dedupe_look_up(
        &self,
        mesh_id: MeshId,
        keys: &[(MemberId, ClientMessageId)],
    ) -> Result<Vec<Option<Held>>, StoreError> {
        let keys = keys.to_vec();
        let read = self.sqlite.read(move |connection| {
            keys.iter().map(|(sender, id)| held_in_tx(connection, mesh_id, *sender, id)).collect()
        });
        read.await
    }
}

/// The row that holds this id.
pub(super) fn held_in_tx(
    tx: &Connection,
    mesh_id: MeshId,
    sender: MemberId,
    id: &ClientMessageId,
) -> Result<Option<Held>, StoreError> {
    let by = named_params! {
        ":mesh_id": key(mesh_id), ":sender": key(sender), ":client_message_id": id.as_str(),
    };
    Ok(tx.prepare_cached(LOOK_UP)?.query_row(by, held).optional()?)
}

pub(super) fn dedupe_insert_in_tx(
    tx: &Connection,
    batch: &AcceptBatch,
    item: &AcceptItem,
) -> Result<(), StoreError> {
    let destination = item.envelope.destination();
    tx.prepare_cached(INSERT)?.execute(named_params! {
        ":mesh_id": key(batch.mesh_id),
        ":sender": key(item.session.member_id),
        ":client_message_id": item.client_message_id.as_str(),
        ":broker_message_id": key(item.broker_message_id),
        ":fingerprint": item.fingerprint.0,
        ":destination_kind": destination.kind().as_str(),
        ":destination_ref": destination.reference(),
        ":now": batch.now.0,
        ":expires_at": batch.expires_at.map(|at| at.0),
    })?;
    Ok(())
}

fn held(row: &Row<'_>) -> rusqlite::Result<Held> {
    Ok(Held {
        broker_message_id: row.get::<_, Key>(0)?.id(),
        history_id: row.get(1)?,
        fingerprint: Fingerprint(row.get(2)?),
        first_seen_at: UnixMs(row.get(3)?),
        history_available: row.get(4)?,
    })
}
