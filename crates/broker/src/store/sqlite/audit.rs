//! The table `audit_event`: what an operator may want to know later.

use rusqlite::named_params;
use semel_core::clock::UnixMs;
use semel_core::id::MeshId;
use semel_store::sqlite::Tx;
use semel_store::{StoreError, statements};

use super::{Key, SqliteStore, key};
use crate::store::AuditEvent;

statements! {
    AUDIT_INSERT = "
        INSERT INTO audit_event (mesh_id, id, at, kind, detail)
        VALUES (:mesh_id, :id, :at, :kind, :detail)";

    AUDIT_LIST = "
        SELECT id, at, kind, detail
          FROM audit_event
         WHERE mesh_id = :mesh_id
         ORDER BY id DESC
         LIMIT :limit";

    AUDIT_EXPIRED = "
        DELETE FROM audit_event
         WHERE (mesh_id, id) IN (SELECT old.mesh_id, old.id
                                   FROM audit_event AS old
                                  WHERE old.at < :older_than
                                  ORDER BY old.at
                                  LIMIT :limit)";
}

impl SqliteStore {
    pub(in crate::store) async fn audit_list(
        &self,
        mesh_id: MeshId,
        limit: i64,
    ) -> Result<Vec<AuditEvent>, StoreError> {
        let read = self.sqlite.read(move |connection| {
            let mut statement = connection.prepare_cached(AUDIT_LIST)?;
            let by = named_params! {":mesh_id": key(mesh_id), ":limit": limit};
            let rows = statement.query_map(by, |row| {
                Ok(AuditEvent {
                    id: row.get::<_, Key>(0)?.id(),
                    at: UnixMs(row.get(1)?),
                    kind: row.get(2)?,
                    detail: row.get(3)?,
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        });
        read.await
    }

    pub(in crate::store) async fn audit_sweep(
        &self,
        older_than: UnixMs,
        limit: i64,
    ) -> Result<u64, StoreError> {
        let write = self.sqlite.write(move |tx| {
            let by = named_params! {":older_than": older_than.0, ":limit": limit};
            Ok(tx.prepare_cached(AUDIT_EXPIRED)?.execute(by)?)
        });
        write.await.map(|rows| rows as u64)
    }
}

pub(super) fn audit_in_tx(
    tx: &Tx<'_>,
    mesh_id: MeshId,
    events: &[AuditEvent],
) -> Result<(), StoreError> {
    for event in events {
        tx.prepare_cached(AUDIT_INSERT)?.execute(named_params! {
            ":mesh_id": key(mesh_id), ":id": key(event.id), ":at": event.at.0,
            ":kind": event.kind, ":detail": event.detail,
        })?;
    }
    Ok(())
}
