//! The tables `mesh`, `member`, `member_key`, `topic`, `topic_subscription` and `queue`.

use rusqlite::{OptionalExtension, Row, named_params};
use semel_core::clock::UnixMs;
use semel_core::id::{MemberId, MeshId, QueueId};
use semel_store::sqlite::Tx;
use semel_store::{StoreError, statements};

use super::audit::audit_in_tx;
use super::{Key, SqliteStore, exists, key};
use crate::accept::DedupeMode;
use crate::store::session::policy;
use crate::store::{Audited, MemberStatus, Mesh, NewMember};

statements! {
    MESH_INSERT = "
        INSERT INTO mesh (mesh_id, slug, created_at)
        VALUES (:mesh_id, :slug, :now)
            ON CONFLICT DO NOTHING";

    MESH_FIND = "
        SELECT mesh_id, slug, dedupe_mode, dedupe_retention_days, rate_limit, rate_window_ms,
               inline_bytes, blob_bytes, message_retention_days, clone_concurrency_policy
          FROM mesh
         WHERE slug = :slug";

    /// Every slug is at least empty: said so that the index gives both the rows and their order.
    MESH_LIST = "
        SELECT mesh_id, slug, dedupe_mode, dedupe_retention_days, rate_limit, rate_window_ms,
               inline_bytes, blob_bytes, message_retention_days, clone_concurrency_policy
          FROM mesh
         WHERE slug >= ''
         ORDER BY slug";

    MEMBER_INSERT = "
        INSERT INTO member (mesh_id, member_id, name, role, status, joined_at)
        VALUES (:mesh_id, :member_id, :name, :role, 'active', :now)";

    KEY_INSERT = "
        INSERT INTO member_key (mesh_id, key_id, member_id, pubkey, status, created_at)
        VALUES (:mesh_id, :key_id, :member_id, :pubkey, 'current', :now)";

    MEMBER_END = "
        UPDATE member
           SET status = :status
         WHERE mesh_id = :mesh_id
           AND member_id = :member_id
           AND status = 'active'";

    /// A key that was rotated out stays so: a member has one that is not.
    KEYS_END = "
        UPDATE member_key
           SET status = 'revoked'
         WHERE mesh_id = :mesh_id
           AND member_id = :member_id
           AND status <> 'rotated_out'";

    SESSIONS_END = "
        DELETE FROM session
         WHERE mesh_id = :mesh_id
           AND member_id = :member_id";

    PRESENCE_END = "
        DELETE FROM presence
         WHERE mesh_id = :mesh_id
           AND member_id = :member_id";

    TOPIC_INSERT = "
        INSERT INTO topic (mesh_id, name, created_at)
        VALUES (:mesh_id, :name, :now)
            ON CONFLICT DO NOTHING";

    TOPIC_FIND = "
        SELECT 1
          FROM topic
         WHERE mesh_id = :mesh_id
           AND name = :name";

    SUBSCRIBE = "
        INSERT INTO topic_subscription (mesh_id, topic, member_id)
        VALUES (:mesh_id, :name, :member_id)
            ON CONFLICT DO NOTHING";

    QUEUE_INSERT = "
        INSERT INTO queue (mesh_id, name, queue_id, created_at)
        VALUES (:mesh_id, :name, :queue_id, :now)
            ON CONFLICT DO NOTHING";
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
    ) -> Result<(), StoreError> {
        let member = member.clone();
        self.sqlite.write(move |tx| member_insert_in_tx(tx, mesh_id, &member, now)).await
    }

    pub(in crate::store) async fn member_end(
        &self,
        mesh_id: MeshId,
        member_id: MemberId,
        status: MemberStatus,
        audited: Audited,
    ) -> Result<bool, StoreError> {
        let write = self.sqlite.write(move |tx| {
            let ended = tx.execute(
                MEMBER_END,
                named_params! {
                    ":mesh_id": key(mesh_id), ":member_id": key(member_id),
                    ":status": status.as_str(),
                },
            )? == 1;
            if ended {
                for statement in [KEYS_END, SESSIONS_END, PRESENCE_END] {
                    let by = named_params! {
                        ":mesh_id": key(mesh_id), ":member_id": key(member_id),
                    };
                    tx.execute(statement, by)?;
                }
                audit_in_tx(tx, mesh_id, &[audited.member_end(member_id, status)])?;
            }
            Ok(ended)
        });
        write.await
    }

    pub(in crate::store) async fn topic_create(
        &self,
        mesh_id: MeshId,
        name: &str,
        now: UnixMs,
    ) -> Result<(), StoreError> {
        let name = name.to_owned();
        let write = self.sqlite.write(move |tx| {
            tx.execute(
                TOPIC_INSERT,
                named_params! {
                    ":mesh_id": key(mesh_id), ":name": name, ":now": now.0,
                },
            )?;
            Ok(())
        });
        write.await
    }

    pub(in crate::store) async fn topic_subscribe(
        &self,
        mesh_id: MeshId,
        name: &str,
        member_id: MemberId,
    ) -> Result<bool, StoreError> {
        let name = name.to_owned();
        let write = self.sqlite.write(move |tx| {
            let found = exists(
                tx,
                TOPIC_FIND,
                named_params! {
                    ":mesh_id": key(mesh_id), ":name": name,
                },
            )?;
            if found {
                tx.execute(
                    SUBSCRIBE,
                    named_params! {
                        ":mesh_id": key(mesh_id), ":name": name, ":member_id": key(member_id),
                    },
                )?;
            }
            Ok(found)
        });
        write.await
    }

    pub(in crate::store) async fn queue_create(
        &self,
        mesh_id: MeshId,
        name: &str,
        queue_id: QueueId,
        now: UnixMs,
    ) -> Result<(), StoreError> {
        let name = name.to_owned();
        let write = self.sqlite.write(move |tx| {
            tx.execute(
                QUEUE_INSERT,
                named_params! {
                    ":mesh_id": key(mesh_id), ":name": name, ":queue_id": key(queue_id),
                    ":now": now.0,
                },
            )?;
            Ok(())
        });
        write.await
    }
}

fn member_insert_in_tx(
    tx: &Tx<'_>,
    mesh_id: MeshId,
    member: &NewMember,
    now: UnixMs,
) -> Result<(), StoreError> {
    tx.execute(
        MEMBER_INSERT,
        named_params! {
            ":mesh_id": key(mesh_id), ":member_id": key(member.member_id), ":name": member.name,
            ":role": member.role.as_str(), ":now": now.0,
        },
    )?;
    tx.execute(
        KEY_INSERT,
        named_params! {
            ":mesh_id": key(mesh_id), ":key_id": member.key_id, ":member_id": key(member.member_id),
            ":pubkey": member.pubkey, ":now": now.0,
        },
    )?;
    Ok(())
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
    })
}
