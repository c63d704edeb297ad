//! The table `mesh`, and its first `member` with its `member_key`.

use rusqlite::{OptionalExtension, Row, named_params};
use semel_core::clock::UnixMs;
use semel_core::id::MeshId;
use semel_store::sqlite::Tx;
use semel_store::{StoreError, statements};

use super::invite::invite_insert_in_tx;
use super::{Key, SqliteStore, key};
use crate::accept::DedupeMode;
use crate::store::session::policy;
use crate::store::{Mesh, NewInvite, NewMember};

statements! {
    MESH_INSERT = "
        INSERT INTO mesh (mesh_id, slug, created_at)
        VALUES (:mesh_id, :slug, :now)
            ON CONFLICT DO NOTHING";

    MESH_FIND = "
        SELECT mesh_id, slug, dedupe_mode, dedupe_retention_days, rate_limit, rate_window_ms,
               inline_bytes, blob_bytes, message_retention_days, clone_concurrency_policy,
               dedupe_known_since, next_seq
          FROM mesh
         WHERE slug = :slug";

    /// Every slug is at least empty: said so that the index gives both the rows and their order.
    MESH_LIST = "
        SELECT mesh_id, slug, dedupe_mode, dedupe_retention_days, rate_limit, rate_window_ms,
               inline_bytes, blob_bytes, message_retention_days, clone_concurrency_policy,
               dedupe_known_since, next_seq
          FROM mesh
         WHERE slug >= ''
         ORDER BY slug";

    MEMBER_INSERT = "
        INSERT INTO member (mesh_id, member_id, name, role, status, joined_at)
        VALUES (:mesh_id, :member_id, :name, :role, 'active', :now)
            ON CONFLICT (mesh_id, name) WHERE status = 'active' DO NOTHING";

    KEY_INSERT = "
        INSERT INTO member_key (mesh_id, key_id, member_id, pubkey, status, created_at)
        VALUES (:mesh_id, :key_id, :member_id, :pubkey, 'current', :now)";
}

impl SqliteStore {
    pub(in crate::store) async fn mesh_create(
        &self,
        mesh_id: MeshId,
        slug: &str,
        owner: &NewMember,
        now: UnixMs,
    ) -> Result<bool, StoreError> {
        let (slug, owner) = (slug.to_owned(), owner.clone());
        let write = self.sqlite.write(move |tx| {
            let made = tx.execute(
                MESH_INSERT,
                named_params! {
                    ":mesh_id": key(mesh_id), ":slug": slug, ":now": now.0,
                },
            )?;
            if made == 1 {
                member_insert_in_tx(tx, mesh_id, &owner, now)?;
            }
            Ok(made == 1)
        });
        write.await
    }

    pub(in crate::store) async fn mesh_create_invited(
        &self,
        mesh_id: MeshId,
        slug: &str,
        invite: &NewInvite,
        now: UnixMs,
    ) -> Result<bool, StoreError> {
        let (slug, invite) = (slug.to_owned(), invite.clone());
        let write = self.sqlite.write(move |tx| {
            let by = named_params! { ":mesh_id": key(mesh_id), ":slug": slug, ":now": now.0 };
            let made = tx.execute(MESH_INSERT, by)? == 1;
            if made {
                invite_insert_in_tx(tx, mesh_id, &invite, now)?;
            }
            Ok(made)
        });
        write.await
    }

    pub(in crate::store) async fn mesh_find(&self, slug: &str) -> Result<Option<Mesh>, StoreError> {
        let slug = slug.to_owned();
        let read = self.sqlite.read(move |connection| {
            let mut statement = connection.prepare_cached(MESH_FIND)?;
            let found = statement.query_row([&slug], |row| Ok(mesh(row))).optional()?;
            found.transpose()
        });
        read.await
    }

    pub(in crate::store) async fn mesh_list(&self) -> Result<Vec<Mesh>, StoreError> {
        let read = self.sqlite.read(|connection| {
            let mut statement = connection.prepare_cached(MESH_LIST)?;
            let rows = statement.query_map([], |row| Ok(mesh(row)))?;
            rows.map(|row| row?).collect()
        });
        read.await
    }

    pub(in crate::store) async fn member_add(
        &self,
        mesh_id: MeshId,
        member: &NewMember,
        now: UnixMs,
    ) -> Result<bool, StoreError> {
        let member = member.clone();
        self.sqlite.write(move |tx| member_insert_in_tx(tx, mesh_id, &member, now)).await
    }
}

/// `false` when somebody who is active is called so already: nothing was written.
pub(super) fn member_insert_in_tx(
    tx: &Tx<'_>,
    mesh_id: MeshId,
    member: &NewMember,
    now: UnixMs,
) -> Result<bool, StoreError> {
    let made = tx.execute(
        MEMBER_INSERT,
        named_params! {
            ":mesh_id": key(mesh_id), ":member_id": key(member.member_id), ":name": member.name,
            ":role": member.role.as_str(), ":now": now.0,
        },
    )?;
    if made == 0 {
        return Ok(false);
    }
    tx.execute(
        KEY_INSERT,
        named_params! {
            ":mesh_id": key(mesh_id), ":key_id": member.key_id, ":member_id": key(member.member_id),
            ":pubkey": member.pubkey, ":now": now.0,
        },
    )?;
    Ok(true)
}

fn mesh(row: &Row<'_>) -> Result<Mesh, StoreError> {
    let slug: String = row.get(1)?;
    let dedupe = DedupeMode::read(&slug, &row.get::<_, String>(2)?, row.get(3)?)?;
    let connection_policy = policy(&slug, &row.get::<_, String>(9)?)?;
    Ok(Mesh {
        mesh_id: row.get::<_, Key>(0)?.id(),
        slug,
        dedupe,
        rate_limit: row.get(4)?,
        rate_window_ms: row.get(5)?,
        inline_bytes: row.get(6)?,
        blob_bytes: u64::try_from(row.get::<_, i64>(7)?).unwrap_or(0),
        message_retention_days: row.get(8)?,
        connection_policy,
        dedupe_known_since: UnixMs(row.get(10)?),
        next_seq: row.get(11)?,
    })
}
