//! The table `member`, read and changed by people: lists, profiles, and the end of a membership.

use rusqlite::{Connection, OptionalExtension, Row, named_params};
use semel_core::clock::UnixMs;
use semel_core::id::{MemberId, MeshId, UuidId};
use semel_store::{StoreError, statements};
use uuid::Uuid;

use super::audit::audit_in_tx;
use super::{Key, SqliteStore, exists, key};
use crate::store::directory::standing;
use crate::store::{Audited, Ended, Member, MemberStatus};

statements! {
    MEMBER_LIST = "
        SELECT member.member_id, member.name, member.role, member.status, member.profile,
               member.joined_at, own.pubkey
          FROM member
          LEFT JOIN member_key AS own
                 ON own.mesh_id = member.mesh_id
                AND own.member_id = member.member_id
                AND own.status <> 'rotated_out'
         WHERE member.mesh_id = :mesh_id
           AND member.member_id > :after
         ORDER BY member.member_id
         LIMIT :limit";

    MEMBER_BY_KEY = "
        SELECT member.member_id, member.name, member.role, member.status, member.profile,
               member.joined_at, own.pubkey
          FROM member_key AS asked
          JOIN member
            ON member.mesh_id = asked.mesh_id
           AND member.member_id = asked.member_id
          LEFT JOIN member_key AS own
                 ON own.mesh_id = member.mesh_id
                AND own.member_id = member.member_id
                AND own.status <> 'rotated_out'
         WHERE asked.mesh_id = :mesh_id
           AND asked.pubkey = :pubkey";

    PROFILE = "
        UPDATE member
           SET profile = :profile
         WHERE mesh_id = :mesh_id
           AND member_id = :member_id
           AND status = 'active'";

    OWNER = "
        SELECT 1
          FROM member
         WHERE mesh_id = :mesh_id
           AND member_id = :member_id
           AND role = 'owner'
           AND status = 'active'";

    OTHER_OWNER = "
        SELECT 1
          FROM member
         WHERE mesh_id = :mesh_id
           AND member_id <> :member_id
           AND role = 'owner'
           AND status = 'active'
         LIMIT 1";

    END = "
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
}

impl SqliteStore {
    pub(in crate::store) async fn member_list(
        &self,
        mesh_id: MeshId,
        after: Option<MemberId>,
        limit: i64,
    ) -> Result<Vec<Member>, StoreError> {
        let after = key(after.unwrap_or(UuidId::new(Uuid::nil())));
        let read = self.sqlite.read(move |connection| {
            let by = named_params! {":mesh_id": key(mesh_id), ":after": after, ":limit": limit};
            let mut statement = connection.prepare_cached(MEMBER_LIST)?;
            let rows = statement.query_map(by, |row| Ok(member(row)))?;
            rows.map(|row| row?).collect()
        });
        read.await
    }

    pub(in crate::store) async fn member_by_key(
        &self,
        mesh_id: MeshId,
        pubkey: &str,
    ) -> Result<Option<Member>, StoreError> {
        let pubkey = pubkey.to_owned();
        let read = self.sqlite.read(move |c| member_by_key_in_tx(c, mesh_id, &pubkey));
        read.await
    }

    pub(in crate::store) async fn member_profile(
        &self,
        mesh_id: MeshId,
        member_id: MemberId,
        profile: &str,
    ) -> Result<bool, StoreError> {
        let profile = profile.to_owned();
        let write = self.sqlite.write(move |tx| {
            let rows = tx.prepare_cached(PROFILE)?.execute(named_params! {
                ":mesh_id": key(mesh_id), ":member_id": key(member_id), ":profile": profile,
            })?;
            Ok(rows == 1)
        });
        write.await
    }

    pub(in crate::store) async fn member_end(
        &self,
        mesh_id: MeshId,
        member_id: MemberId,
        status: MemberStatus,
        audited: Audited,
    ) -> Result<Ended, StoreError> {
        let write = self.sqlite.write(move |tx| {
            let by = named_params! {":mesh_id": key(mesh_id), ":member_id": key(member_id)};
            if exists(tx, OWNER, by)? && !exists(tx, OTHER_OWNER, by)? {
                return Ok(Ended::LastOwner);
            }
            let ended = tx.prepare_cached(END)?.execute(named_params! {
                ":mesh_id": key(mesh_id), ":member_id": key(member_id),
                ":status": status.as_str(),
            })?;
            if ended == 0 {
                return Ok(Ended::NotActive);
            }
            for statement in [KEYS_END, SESSIONS_END, PRESENCE_END] {
                tx.prepare_cached(statement)?.execute(by)?;
            }
            audit_in_tx(tx, mesh_id, &[audited.member_end(member_id, status)])?;
            Ok(Ended::Done)
        });
        write.await
    }
}

/// Who has this key, current or not.
pub(super) fn member_by_key_in_tx(
    tx: &Connection,
    mesh_id: MeshId,
    pubkey: &str,
) -> Result<Option<Member>, StoreError> {
    let by = named_params! {":mesh_id": key(mesh_id), ":pubkey": pubkey};
    let mut statement = tx.prepare_cached(MEMBER_BY_KEY)?;
    statement.query_row(by, |row| Ok(member(row))).optional()?.transpose()
}

fn member(row: &Row<'_>) -> Result<Member, StoreError> {
    let member_id = row.get::<_, Key>(0)?.id();
    let (role, status): (String, String) = (row.get(2)?, row.get(3)?);
    let (role, status) = standing(member_id, &role, &status)?;
    Ok(Member {
        member_id,
        name: row.get(1)?,
        role,
        status,
        pubkey: row.get(6)?,
        profile: row.get(4)?,
        joined_at: UnixMs(row.get(5)?),
    })
}
