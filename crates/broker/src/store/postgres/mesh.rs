//! The table `mesh`, and its first `member` with its `member_key`.

use semel_core::clock::UnixMs;
use semel_core::id::{MeshId, UuidId};
use semel_store::postgres::Transaction;
use semel_store::{StoreError, statements};
use tokio_postgres::Row;

use super::PostgresStore;
use super::invite::invite_insert_in_tx;
use crate::accept::DedupeMode;
use crate::store::session::policy;
use crate::store::{Mesh, NewInvite, NewMember};

statements! {
    MESH_INSERT = "
        INSERT INTO mesh.mesh (mesh_id, slug, created_at)
        VALUES ($1, $2, $3)
            ON CONFLICT DO NOTHING";

    MESH_FIND = "
        SELECT mesh_id, slug, dedupe_mode, dedupe_retention_days, rate_limit, rate_window_ms,
               inline_bytes, blob_bytes, message_retention_days, clone_concurrency_policy,
               dedupe_known_since, next_seq
          FROM mesh.mesh
         WHERE slug = $1";

    /// Every slug is at least empty: said so that the index gives both the rows and their order.
    MESH_LIST = "
        SELECT mesh_id, slug, dedupe_mode, dedupe_retention_days, rate_limit, rate_window_ms,
               inline_bytes, blob_bytes, message_retention_days, clone_concurrency_policy,
               dedupe_known_since, next_seq
          FROM mesh.mesh
         WHERE slug >= ''
         ORDER BY slug";

    MEMBER_INSERT = "
        INSERT INTO mesh.member (mesh_id, member_id, name, role, status, joined_at)
        VALUES ($1, $2, $3, $4, 'active', $5)
            ON CONFLICT (mesh_id, name) WHERE status || '' = 'active' DO NOTHING";

    KEY_INSERT = "
        INSERT INTO mesh.member_key (mesh_id, key_id, member_id, pubkey, status, created_at)
        VALUES ($1, $2, $3, $4, 'current', $5)";
}

impl PostgresStore {
    pub(in crate::store) async fn mesh_create(
        &self,
        mesh_id: MeshId,
        slug: &str,
        owner: &NewMember,
        now: UnixMs,
    ) -> Result<bool, StoreError> {
        let tx = self.postgres.begin().await?;
        let by: super::Parameters<'_> = &[&mesh_id.as_uuid(), &slug, &now.0];
        let made = tx.execute(MESH_INSERT, by).await? == 1;
        if made {
            member_insert_in_tx(&tx, mesh_id, owner, now).await?;
        }
        tx.commit().await.map(|()| made)
    }

    pub(in crate::store) async fn mesh_create_invited(
        &self,
        mesh_id: MeshId,
        slug: &str,
        invite: &NewInvite,
        now: UnixMs,
    ) -> Result<bool, StoreError> {
        let tx = self.postgres.begin().await?;
        let by: super::Parameters<'_> = &[&mesh_id.as_uuid(), &slug, &now.0];
        let made = tx.execute(MESH_INSERT, by).await? == 1;
        if made {
            invite_insert_in_tx(&tx, mesh_id, invite, now).await?;
        }
        tx.commit().await.map(|()| made)
    }

    pub(in crate::store) async fn mesh_find(&self, slug: &str) -> Result<Option<Mesh>, StoreError> {
        let tx = self.postgres.snapshot().await?;
        let row = tx.query_opt(MESH_FIND, &[&slug]).await?;
        row.as_ref().map(mesh).transpose()
    }

    pub(in crate::store) async fn mesh_list(&self) -> Result<Vec<Mesh>, StoreError> {
        let tx = self.postgres.snapshot().await?;
        tx.query(MESH_LIST, &[]).await?.iter().map(mesh).collect()
    }

    pub(in crate::store) async fn member_add(
        &self,
        mesh_id: MeshId,
        member: &NewMember,
        now: UnixMs,
    ) -> Result<bool, StoreError> {
        let tx = self.postgres.begin().await?;
        let added = member_insert_in_tx(&tx, mesh_id, member, now).await?;
        tx.commit().await.map(|()| added)
    }
}

/// `false` when somebody who is active is called so already: nothing was written. Whoever comes in
/// by that name at the same moment is waited for.
pub(super) async fn member_insert_in_tx(
    tx: &Transaction,
    mesh_id: MeshId,
    member: &NewMember,
    now: UnixMs,
) -> Result<bool, StoreError> {
    let (mesh, id, role) = (mesh_id.as_uuid(), member.member_id.as_uuid(), member.role.as_str());
    if tx.execute(MEMBER_INSERT, &[&mesh, &id, &member.name, &role, &now.0]).await? == 0 {
        return Ok(false);
    }
    tx.execute(KEY_INSERT, &[&mesh, &member.key_id, &id, &member.pubkey, &now.0]).await?;
    Ok(true)
}

fn mesh(row: &Row) -> Result<Mesh, StoreError> {
    let slug: String = row.try_get(1)?;
    let dedupe = DedupeMode::read(&slug, row.try_get(2)?, row.try_get(3)?)?;
    let number = |column: usize| -> Result<u32, StoreError> {
        let number: i64 = row.try_get(column)?;
        u32::try_from(number).map_err(|_| StoreError::Corrupt {
            table: "mesh",
            id: slug.clone(),
            what: format!("column {column} is {number}"),
        })
    };
    Ok(Mesh {
        mesh_id: UuidId::new(row.try_get(0)?),
        dedupe,
        rate_limit: number(4)?,
        rate_window_ms: number(5)?,
        inline_bytes: number(6)?,
        blob_bytes: u64::try_from(row.try_get::<_, i64>(7)?).unwrap_or(0),
        message_retention_days: number(8)?,
        connection_policy: policy(&slug, row.try_get(9)?)?,
        dedupe_known_since: UnixMs(row.try_get(10)?),
        next_seq: row.try_get(11)?,
        slug,
    })
}
