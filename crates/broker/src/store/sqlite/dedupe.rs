//! The table `client_message_dedupe`: an id is consumed if and only if its row is here.

use rusqlite::{CachedStatement, Connection, OptionalExtension, Row, params};
use semel_core::clock::UnixMs;
use semel_core::fingerprint::Fingerprint;
use semel_core::id::{ClientMessageId, MemberId, MeshId};
use semel_store::{StoreError, statements};

use super::session::epoch_in_tx;
use super::{Key, SqliteStore, key, store_epoch_in_tx};
use crate::accept::{AcceptBatch, AcceptItem, Epoch, Held, Session};
use crate::store::{LookedUp, Resolved};

statements! {
    LOOK_UP = "
        SELECT broker_message_id,
               CASE destination_kind
                    WHEN 'topic' THEN (SELECT topic.seq
                                         FROM topic_message AS topic
                                        WHERE topic.mesh_id = ?1
                                          AND topic.broker_message_id = dedupe.broker_message_id)
                    ELSE (SELECT direct.seq
                            FROM message_queue AS direct
                           WHERE direct.mesh_id = ?1
                             AND direct.broker_message_id = dedupe.broker_message_id)
               END,
               request_fingerprint, first_seen_at, history_available
          FROM client_message_dedupe AS dedupe
         WHERE mesh_id = ?1
           AND sender_member_id = ?2
           AND client_message_id = ?3";

    CLAIM = "
        INSERT INTO client_message_dedupe (mesh_id, sender_member_id, client_message_id,
                                           broker_message_id, request_fingerprint,
                                           destination_kind, destination_ref, first_seen_at,
                                           expires_at)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
            ON CONFLICT DO NOTHING";

    UNCLAIM = "
        DELETE FROM client_message_dedupe
         WHERE mesh_id = ?1
           AND sender_member_id = ?2
           AND client_message_id = ?3";
}

impl SqliteStore {
    pub(in crate::store) async fn dedupe_look_up(
        &self,
        mesh_id: MeshId,
        keys: &[(MemberId, ClientMessageId)],
    ) -> Result<LookedUp, StoreError> {
        let (keys, many) = (keys.to_vec(), keys.len());
        self.sqlite.read_for(many, move |snapshot| look_up_in_tx(snapshot, mesh_id, &keys)).await
    }

    pub(in crate::store) async fn resolve(
        &self,
        mesh_id: MeshId,
        session: &Session,
        ids: &[ClientMessageId],
    ) -> Result<Resolved, StoreError> {
        let session = *session;
        let keys: Vec<_> = ids.iter().map(|id| (session.member_id, id.clone())).collect();
        let read =
            self.sqlite.read(move |snapshot| match epoch_in_tx(snapshot, mesh_id, &session)? {
                Epoch::Current => look_up_in_tx(snapshot, mesh_id, &keys).map(Resolved::Current),
                Epoch::Stale => Ok(Resolved::Stale),
            });
        read.await
    }
}

fn look_up_in_tx(
    tx: &Connection,
    mesh_id: MeshId,
    keys: &[(MemberId, ClientMessageId)],
) -> Result<LookedUp, StoreError> {
    let (mut look_up, mesh) = (tx.prepare_cached(LOOK_UP)?, key(mesh_id));
    let found = keys.iter().map(|(sender, id)| {
        let by = params![mesh, key(*sender), id.as_str()];
        Ok(look_up.query_row(by, held).optional()?.filter(|held| !held.is_orphan()))
    });
    Ok(LookedUp {
        held: found.collect::<Result<_, StoreError>>()?,
        store_epoch: store_epoch_in_tx(tx)?,
    })
}

/// The row that holds this id.
pub(super) fn held_in_tx(
    tx: &Connection,
    mesh_id: MeshId,
    sender: MemberId,
    id: &ClientMessageId,
) -> Result<Option<Held>, StoreError> {
    let by = params![key(mesh_id), key(sender), id.as_str()];
    Ok(tx.prepare_cached(LOOK_UP)?.query_row(by, held).optional()?)
}

/// What [`claim_in_tx`] runs, for as many items as there are.
pub(super) fn claiming(tx: &Connection) -> Result<CachedStatement<'_>, StoreError> {
    Ok(tx.prepare_cached(CLAIM)?)
}

/// Takes the id for this item; `false` when somebody holds it.
pub(super) fn claim_in_tx(
    claiming: &mut CachedStatement<'_>,
    batch: &AcceptBatch,
    item: &AcceptItem,
) -> Result<bool, StoreError> {
    let destination = item.envelope.destination();
    let inserted = claiming.execute(params![
        key(batch.mesh_id),
        key(item.session.member_id),
        item.client_message_id.as_str(),
        key(item.broker_message_id),
        item.fingerprint.0,
        destination.kind().as_str(),
        destination.reference(),
        batch.now.0,
        batch.expires_at.map(|at| at.0),
    ])?;
    Ok(inserted == 1)
}

/// Gives an id back that this transaction has just taken.
pub(super) fn unclaim_in_tx(
    tx: &Connection,
    batch: &AcceptBatch,
    item: &AcceptItem,
) -> Result<(), StoreError> {
    let by =
        params![key(batch.mesh_id), key(item.session.member_id), item.client_message_id.as_str()];
    tx.prepare_cached(UNCLAIM)?.execute(by)?;
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
