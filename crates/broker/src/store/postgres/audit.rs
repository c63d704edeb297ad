//! The table `audit_event`: what an operator may want to know later.

use semel_core::clock::UnixMs;
use semel_core::id::{MeshId, UuidId};
use semel_store::postgres::Transaction;
use semel_store::{StoreError, statements};

use super::PostgresStore;
use crate::store::AuditEvent;

statements! {
    AUDIT_INSERT = "
        INSERT INTO mesh.audit_event (mesh_id, id, at, kind, detail)
        VALUES ($1, $2, $3, $4, $5)";

    AUDIT_LIST = "
        SELECT id, at, kind, detail
          FROM mesh.audit_event
         WHERE mesh_id = $1
         ORDER BY id DESC
         LIMIT $2";

    AUDIT_EXPIRED = "
        -- Differs from sqlite: by ctid, which is never planned as a scan of the table; rows that
        -- another sweep holds are left to it.
        DELETE FROM mesh.audit_event
         WHERE ctid = ANY (ARRAY (
               SELECT old.ctid
                 FROM mesh.audit_event AS old
                WHERE old.at < $1
                ORDER BY old.at
                LIMIT $2
                  FOR UPDATE SKIP LOCKED))";
}

impl PostgresStore {
    pub(in crate::store) async fn audit_list(
        &self,
        mesh_id: MeshId,
        limit: i64,
    ) -> Result<Vec<AuditEvent>, StoreError> {
        let tx = self.postgres.snapshot().await?;
        let rows = tx.query(AUDIT_LIST, &[&mesh_id.as_uuid(), &limit]).await?;
        let event = |row: &tokio_postgres::Row| {
            Ok(AuditEvent {
                id: UuidId::new(row.try_get(0)?),
                at: UnixMs(row.try_get(1)?),
                kind: row.try_get(2)?,
                detail: row.try_get(3)?,
            })
        };
        rows.iter().map(event).collect()
    }

    pub(in crate::store) async fn audit_sweep(
        &self,
        older_than: UnixMs,
        limit: i64,
    ) -> Result<u64, StoreError> {
        self.execute(AUDIT_EXPIRED, &[&older_than.0, &limit]).await
    }
}

pub(super) async fn audit_in_tx(
    tx: &Transaction,
    mesh_id: MeshId,
    events: &[AuditEvent],
) -> Result<(), StoreError> {
    let mesh = mesh_id.as_uuid();
    for event in events {
        let (id, at, kind, detail) = (event.id.as_uuid(), event.at.0, &event.kind, &event.detail);
        tx.execute(AUDIT_INSERT, &[&mesh, &id, &at, kind, detail]).await?;
    }
    Ok(())
}
