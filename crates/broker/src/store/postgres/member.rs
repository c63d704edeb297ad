//! The table `member`, read and changed by people: lists, profiles, and the end of a membership.

use semel_core::clock::UnixMs;
use semel_core::id::{MemberId, MeshId, UuidId};
use semel_store::postgres::Transaction;
use semel_store::{StoreError, statements};
use tokio_postgres::Row;
use uuid::Uuid;

use super::PostgresStore;
use super::audit::audit_in_tx;
use crate::store::directory::standing;
use crate::store::{Audited, Ended, Member, MemberStatus};

statements! {
    MEMBER_LIST = "
        SELECT member.member_id, member.name, member.role, member.status, member.profile,
               member.joined_at, own.pubkey
          FROM mesh.member
          LEFT JOIN mesh.member_key AS own
                 ON own.mesh_id = member.mesh_id
                AND own.member_id = member.member_id
                AND own.status <> 'rotated_out'
         WHERE member.mesh_id = $1
           AND member.member_id > $2
         ORDER BY member.member_id
         LIMIT $3";

    MEMBER_BY_KEY = "
        SELECT member.member_id, member.name, member.role, member.status, member.profile,
               member.joined_at, own.pubkey
          FROM (SELECT named.member_id
                  FROM mesh.member_key AS named
                 WHERE named.mesh_id = $1
                   AND named.pubkey = $2
                 LIMIT 1) AS asked,
               LATERAL (SELECT known.member_id, known.name, known.role, known.status,
                               known.profile, known.joined_at
                          FROM mesh.member AS known
                         WHERE known.mesh_id = $1
                           AND known.member_id = asked.member_id
                         LIMIT 1) AS member
          LEFT JOIN LATERAL (SELECT shown.pubkey
                               FROM mesh.member_key AS shown
                              WHERE shown.mesh_id = $1
                                AND shown.member_id = member.member_id
                                AND shown.status <> 'rotated_out'
                              LIMIT 1) AS own ON TRUE";

    PROFILE = "
        UPDATE mesh.member
           SET profile = $3
         WHERE mesh_id = $1
           AND member_id = $2
           AND status = 'active'";

    OWNERS = "
        -- Differs from sqlite: locked, so that two owners cannot end each other at once.
        SELECT member_id
          FROM mesh.member
         WHERE mesh_id = $1
           AND role = 'owner'
           AND status = 'active'
         ORDER BY member_id
           FOR UPDATE";

    END = "
        UPDATE mesh.member
           SET status = $3
         WHERE mesh_id = $1
           AND member_id = $2
           AND status = 'active'";

    /// A key that was rotated out stays so: a member has one that is not.
    KEYS_END = "
        UPDATE mesh.member_key
           SET status = 'revoked'
         WHERE mesh_id = $1
           AND member_id = $2
           AND status <> 'rotated_out'";

    SESSIONS_END = "
        DELETE FROM mesh.session
         WHERE mesh_id = $1
           AND member_id = $2";

    PRESENCE_END = "
        DELETE FROM mesh.presence
         WHERE mesh_id = $1
           AND member_id = $2";
}

impl PostgresStore {
    pub(in crate::store) async fn member_list(
        &self,
        mesh_id: MeshId,
        after: Option<MemberId>,
        limit: i64,
    ) -> Result<Vec<Member>, StoreError> {
        let after = after.map_or(Uuid::nil(), |after| after.as_uuid());
        let tx = self.postgres.snapshot().await?;
        let rows = tx.query(MEMBER_LIST, &[&mesh_id.as_uuid(), &after, &limit]).await?;
        rows.iter().map(member).collect()
    }

    pub(in crate::store) async fn member_by_key(
        &self,
        mesh_id: MeshId,
        pubkey: &str,
    ) -> Result<Option<Member>, StoreError> {
        let tx = self.postgres.snapshot().await?;
        member_by_key_in_tx(&tx, mesh_id, pubkey).await
    }

    pub(in crate::store) async fn member_profile(
        &self,
        mesh_id: MeshId,
        member_id: MemberId,
        profile: &str,
    ) -> Result<bool, StoreError> {
        let (mesh, member) = (mesh_id.as_uuid(), member_id.as_uuid());
        Ok(self.execute(PROFILE, &[&mesh, &member, &profile]).await? == 1)
    }

    pub(in crate::store) async fn member_end(
        &self,
        mesh_id: MeshId,
        member_id: MemberId,
        status: MemberStatus,
        audited: Audited,
    ) -> Result<Ended, StoreError> {
        let run = || self.end_once(mesh_id, member_id, status, audited);
        self.postgres.retry(run).await
    }

    async fn end_once(
        &self,
        mesh_id: MeshId,
        member_id: MemberId,
        status: MemberStatus,
        audited: Audited,
    ) -> Result<Ended, StoreError> {
        let (mesh, member) = (mesh_id.as_uuid(), member_id.as_uuid());
        let tx = self.postgres.begin().await?;
        let owners = tx.query(OWNERS, &[&mesh]).await?;
        let owners: Vec<Uuid> =
            owners.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        if owners == [member] {
            return Ok(Ended::LastOwner);
        }
        if tx.execute(END, &[&mesh, &member, &status.as_str()]).await? == 0 {
            return Ok(Ended::NotActive);
        }
        // The deletion waits for every accept that holds a session of the member.
        for statement in [KEYS_END, SESSIONS_END, PRESENCE_END] {
            tx.execute(statement, &[&mesh, &member]).await?;
        }
        audit_in_tx(&tx, mesh_id, &[audited.member_end(member_id, status)]).await?;
        tx.commit().await.map(|()| Ended::Done)
    }
}

/// Who has this key, current or not.
pub(super) async fn member_by_key_in_tx(
    tx: &Transaction,
    mesh_id: MeshId,
    pubkey: &str,
) -> Result<Option<Member>, StoreError> {
    let row = tx.query_opt(MEMBER_BY_KEY, &[&mesh_id.as_uuid(), &pubkey]).await?;
    row.as_ref().map(member).transpose()
}

fn member(row: &Row) -> Result<Member, StoreError> {
    let member_id = UuidId::new(row.try_get(0)?);
    let (role, status) = standing(member_id, row.try_get(2)?, row.try_get(3)?)?;
    Ok(Member {
        member_id,
        name: row.try_get(1)?,
        role,
        status,
        pubkey: row.try_get(6)?,
        profile: row.try_get(4)?,
        joined_at: UnixMs(row.try_get(5)?),
    })
}
