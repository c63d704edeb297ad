//! The table `invite`, and who joins by one.

use semel_core::clock::UnixMs;
use semel_core::id::{MemberId, MeshId};
use semel_store::postgres::Transaction;
use semel_store::{StoreError, statements};
use tokio_postgres::error::SqlState;

use super::PostgresStore;
use super::member::member_by_key_in_tx;
use super::mesh::member_insert_in_tx;
use crate::limits::{CLAIM_ROUNDS_MAX, INVITES_MAX};
use crate::store::{Join, Joined, MemberStatus, NewInvite, NewMember, Role};

statements! {
    INVITES_FULL = "
        SELECT 1
          FROM mesh.invite
         WHERE mesh_id = $1
           AND expires_at > $2
         LIMIT 1 OFFSET $3::bigint - 1";

    INVITE_INSERT = "
        INSERT INTO mesh.invite (mesh_id, token_hash, role, uses_left, expires_at, created_by,
                                 created_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7)";

    USABLE = "
        -- Differs from sqlite: locked, so that two who join with it go one after the other.
        SELECT role, uses_left > 0 AND expires_at > $3
          FROM mesh.invite
         WHERE mesh_id = $1
           AND token_hash = $2
           FOR UPDATE";

    SPEND = "
        UPDATE mesh.invite
           SET uses_left = uses_left - 1
         WHERE mesh_id = $1
           AND token_hash = $2";

    JOINED_BY = "
        SELECT joined_by
          FROM mesh.member
         WHERE mesh_id = $1
           AND member_id = $2";

    JOINED = "
        UPDATE mesh.member
           SET joined_by = $3
         WHERE mesh_id = $1
           AND member_id = $2";

    KEY_ID_FIND = "
        SELECT 1
          FROM mesh.member_key
         WHERE mesh_id = $1
           AND key_id = $2";

    INVITE_SWEEP = "
        -- Differs from sqlite: by ctid, which is never planned as a scan of the table; rows that
        -- another sweep holds are left to it.
        DELETE FROM mesh.invite
         WHERE ctid = ANY (ARRAY (
               SELECT ended.ctid
                 FROM mesh.invite AS ended
                WHERE ended.expires_at <= $1
                ORDER BY ended.expires_at
                LIMIT $2
                  FOR UPDATE SKIP LOCKED))";
}

impl PostgresStore {
    pub(in crate::store) async fn invite_create(
        &self,
        mesh_id: MeshId,
        invite: &NewInvite,
        now: UnixMs,
    ) -> Result<bool, StoreError> {
        let mesh = mesh_id.as_uuid();
        let tx = self.postgres.begin().await?;
        if tx.query_opt(INVITES_FULL, &[&mesh, &now.0, &INVITES_MAX]).await?.is_some() {
            return Ok(false);
        }
        invite_insert_in_tx(&tx, mesh_id, invite, now).await?;
        tx.commit().await.map(|()| true)
    }

    /// Differs from sqlite: another broker may let the same key in by another invite at the same
    /// moment. Who comes second goes round again, and finds the first.
    pub(in crate::store) async fn join(
        &self,
        mesh_id: MeshId,
        join: &Join,
        now: UnixMs,
    ) -> Result<Joined, StoreError> {
        for _ in 0..CLAIM_ROUNDS_MAX {
            match self.postgres.retry(|| self.join_once(mesh_id, join, now)).await {
                Err(StoreError::Postgres(error))
                    if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {}
                other => return other,
            }
        }
        Err(StoreError::Contended { runs: CLAIM_ROUNDS_MAX })
    }

    async fn join_once(
        &self,
        mesh_id: MeshId,
        join: &Join,
        now: UnixMs,
    ) -> Result<Joined, StoreError> {
        let (mesh, hash) = (mesh_id.as_uuid(), join.token_hash.as_slice());
        let tx = self.postgres.begin().await?;
        let invite = tx.query_opt(USABLE, &[&mesh, &hash, &now.0]).await?;
        if let Some(there) = there_in_tx(&tx, mesh_id, join).await? {
            return Ok(there);
        }
        let Some(invite) = invite.filter(|row| matches!(row.try_get(1), Ok(true))) else {
            return Ok(Joined::InviteInvalid);
        };
        let Some(role) = Role::parse(invite.try_get(0)?) else { return Ok(Joined::InviteInvalid) };
        // Said only to who has a valid invite, which is not spent.
        if tx.query_opt(KEY_ID_FIND, &[&mesh, &join.key_id]).await?.is_some() {
            return Ok(Joined::KeyIdTaken);
        }
        let member = NewMember {
            member_id: join.member_id,
            name: join.name.clone(),
            role,
            key_id: join.key_id.clone(),
            pubkey: join.pubkey.clone(),
        };
        if !member_insert_in_tx(&tx, mesh_id, &member, now).await? {
            // Perhaps by itself, which has just come in by another invite.
            let there = there_in_tx(&tx, mesh_id, join).await?;
            return Ok(there.unwrap_or(Joined::NameTaken));
        }
        tx.execute(SPEND, &[&mesh, &hash]).await?;
        tx.execute(JOINED, &[&mesh, &join.member_id.as_uuid(), &hash]).await?;
        tx.commit().await.map(|()| Joined::New(join.member_id))
    }

    pub(in crate::store) async fn invite_sweep(
        &self,
        now: UnixMs,
        limit: i64,
    ) -> Result<u64, StoreError> {
        self.execute(INVITE_SWEEP, &[&now.0, &limit]).await
    }
}

/// What a join comes to if its key is known.
async fn there_in_tx(
    tx: &Transaction,
    mesh_id: MeshId,
    join: &Join,
) -> Result<Option<Joined>, StoreError> {
    let Some(member) = member_by_key_in_tx(tx, mesh_id, &join.pubkey).await? else {
        return Ok(None);
    };
    if member.status != MemberStatus::Active {
        return Ok(Some(Joined::Inactive));
    }
    let joined_by = joined_by_in_tx(tx, mesh_id, member.member_id).await?;
    let again = joined_by.as_deref() == Some(join.token_hash.as_slice());
    Ok(Some(if again { Joined::Again(member.member_id) } else { Joined::Already }))
}

async fn joined_by_in_tx(
    tx: &Transaction,
    mesh_id: MeshId,
    member_id: MemberId,
) -> Result<Option<Vec<u8>>, StoreError> {
    let row = tx.query_opt(JOINED_BY, &[&mesh_id.as_uuid(), &member_id.as_uuid()]).await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?.flatten())
}

pub(super) async fn invite_insert_in_tx(
    tx: &Transaction,
    mesh_id: MeshId,
    invite: &NewInvite,
    now: UnixMs,
) -> Result<(), StoreError> {
    let (mesh, expires_at) = (mesh_id.as_uuid(), invite.expires_at.0);
    let (hash, role, uses) =
        (invite.token_hash.as_slice(), invite.role.as_str(), i64::from(invite.uses));
    let created_by = invite.created_by.map(|member| member.as_uuid());
    let by: super::Parameters<'_> = &[&mesh, &hash, &role, &uses, &expires_at, &created_by, &now.0];
    tx.execute(INVITE_INSERT, by).await.map(drop)
}
