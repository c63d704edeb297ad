//! The table `invite`, and who joins by one.

use rusqlite::{OptionalExtension, named_params};
use semel_core::clock::UnixMs;
use semel_core::id::{MemberId, MeshId};
use semel_store::sqlite::Tx;
use semel_store::{StoreError, statements};

use super::member::member_by_key_in_tx;
use super::mesh::member_insert_in_tx;
use super::{SqliteStore, exists, key};
use crate::limits::INVITES_MAX;
use crate::store::{Join, Joined, MemberStatus, NewInvite, NewMember, Role};

statements! {
    INVITES_FULL = "
        SELECT 1
          FROM invite
         WHERE mesh_id = :mesh_id
           AND expires_at > :now
         LIMIT 1 OFFSET :max - 1";

    INVITE_INSERT = "
        INSERT INTO invite (mesh_id, token_hash, role, uses_left, expires_at, created_by,
                            created_at)
        VALUES (:mesh_id, :token_hash, :role, :uses, :expires_at, :created_by, :now)";

    USABLE = "
        SELECT role
          FROM invite
         WHERE mesh_id = :mesh_id
           AND token_hash = :token_hash
           AND uses_left > 0
           AND expires_at > :now";

    SPEND = "
        UPDATE invite
           SET uses_left = uses_left - 1
         WHERE mesh_id = :mesh_id
           AND token_hash = :token_hash";

    JOINED_BY = "
        SELECT joined_by
          FROM member
         WHERE mesh_id = :mesh_id
           AND member_id = :member_id";

    JOINED = "
        UPDATE member
           SET joined_by = :token_hash
         WHERE mesh_id = :mesh_id
           AND member_id = :member_id";

    KEY_ID_FIND = "
        SELECT 1
          FROM member_key
         WHERE mesh_id = :mesh_id
           AND key_id = :key_id";

    INVITE_SWEEP = "
        DELETE FROM invite
         WHERE (mesh_id, token_hash) IN (
               SELECT ended.mesh_id, ended.token_hash
                 FROM invite AS ended
                WHERE ended.expires_at <= :now
                ORDER BY ended.expires_at
                LIMIT :limit)";
}

impl SqliteStore {
    pub(in crate::store) async fn invite_create(
        &self,
        mesh_id: MeshId,
        invite: &NewInvite,
        now: UnixMs,
    ) -> Result<bool, StoreError> {
        let invite = invite.clone();
        let write = self.sqlite.write(move |tx| {
            let by = named_params! {
                ":mesh_id": key(mesh_id), ":now": now.0, ":max": INVITES_MAX,
            };
            if exists(tx, INVITES_FULL, by)? {
                return Ok(false);
            }
            invite_insert_in_tx(tx, mesh_id, &invite, now).map(|()| true)
        });
        write.await
    }

    pub(in crate::store) async fn join(
        &self,
        mesh_id: MeshId,
        join: &Join,
        now: UnixMs,
    ) -> Result<Joined, StoreError> {
        let join = join.clone();
        self.sqlite.write(move |tx| join_in_tx(tx, mesh_id, &join, now)).await
    }

    pub(in crate::store) async fn invite_sweep(
        &self,
        now: UnixMs,
        limit: i64,
    ) -> Result<u64, StoreError> {
        let write = self.sqlite.write(move |tx| {
            let by = named_params! {":now": now.0, ":limit": limit};
            Ok(tx.prepare_cached(INVITE_SWEEP)?.execute(by)?)
        });
        write.await.map(|rows| rows as u64)
    }
}

pub(super) fn invite_insert_in_tx(
    tx: &Tx<'_>,
    mesh_id: MeshId,
    invite: &NewInvite,
    now: UnixMs,
) -> Result<(), StoreError> {
    tx.prepare_cached(INVITE_INSERT)?.execute(named_params! {
        ":mesh_id": key(mesh_id), ":token_hash": invite.token_hash,
        ":role": invite.role.as_str(), ":uses": invite.uses,
        ":expires_at": invite.expires_at.0, ":created_by": invite.created_by.map(key),
        ":now": now.0,
    })?;
    Ok(())
}

fn join_in_tx(
    tx: &Tx<'_>,
    mesh_id: MeshId,
    join: &Join,
    now: UnixMs,
) -> Result<Joined, StoreError> {
    if let Some(member) = member_by_key_in_tx(tx, mesh_id, &join.pubkey)? {
        if member.status != MemberStatus::Active {
            return Ok(Joined::Inactive);
        }
        let joined_by = joined_by_in_tx(tx, mesh_id, member.member_id)?;
        let again = joined_by == Some(join.token_hash);
        return Ok(if again { Joined::Again(member.member_id) } else { Joined::Already });
    }
    let by = named_params! {
        ":mesh_id": key(mesh_id), ":token_hash": join.token_hash, ":now": now.0,
    };
    let mut usable = tx.prepare_cached(USABLE)?;
    let role: Option<String> = usable.query_row(by, |row| row.get(0)).optional()?;
    let Some(role) = role.as_deref().and_then(Role::parse) else {
        return Ok(Joined::InviteInvalid);
    };
    // Said only to who has a valid invite, which is not spent.
    let by_key_id = named_params! {":mesh_id": key(mesh_id), ":key_id": join.key_id};
    if exists(tx, KEY_ID_FIND, by_key_id)? {
        return Ok(Joined::KeyIdTaken);
    }
    let member = NewMember {
        member_id: join.member_id,
        name: join.name.clone(),
        role,
        key_id: join.key_id.clone(),
        pubkey: join.pubkey.clone(),
    };
    if !member_insert_in_tx(tx, mesh_id, &member, now)? {
        return Ok(Joined::NameTaken);
    }
    tx.prepare_cached(SPEND)?.execute(&by[..2])?;
    tx.prepare_cached(JOINED)?.execute(named_params! {
        ":mesh_id": key(mesh_id), ":member_id": key(join.member_id),
        ":token_hash": join.token_hash,
    })?;
    Ok(Joined::New(join.member_id))
}

fn joined_by_in_tx(
    tx: &Tx<'_>,
    mesh_id: MeshId,
    member_id: MemberId,
) -> Result<Option<[u8; 32]>, StoreError> {
    let by = named_params! {":mesh_id": key(mesh_id), ":member_id": key(member_id)};
    Ok(tx.prepare_cached(JOINED_BY)?.query_row(by, |row| row.get(0))?)
}
