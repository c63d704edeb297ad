//! The table `request_nonce`: a signed request is served once.

use rusqlite::named_params;
use semel_core::clock::UnixMs;
use semel_core::id::MeshId;
use semel_store::{StoreError, statements};

use super::member::member_by_key_in_tx;
use super::{SqliteStore, key};
use crate::limits::NONCES_OVER_MAX;
use crate::store::{Admitted, MemberStatus, NewRequest};

statements! {
    NONCE_INSERT = "
        INSERT INTO request_nonce (mesh_id, pubkey, nonce, expires_at)
        VALUES (:mesh_id, :pubkey, :nonce, :expires_at)
            ON CONFLICT DO NOTHING";

    NONCE_SWEEP = "
        DELETE FROM request_nonce
         WHERE (mesh_id, pubkey, nonce) IN (
               SELECT ended.mesh_id, ended.pubkey, ended.nonce
                 FROM request_nonce AS ended
                WHERE ended.expires_at <= :now
                ORDER BY ended.expires_at
                LIMIT :limit)";
}

impl SqliteStore {
    pub(in crate::store) async fn request_admit(
        &self,
        mesh_id: MeshId,
        request: &NewRequest,
        now: UnixMs,
    ) -> Result<Admitted, StoreError> {
        let request = request.clone();
        let write = self.sqlite.write(move |tx| {
            let member = member_by_key_in_tx(tx, mesh_id, &request.pubkey)?;
            // A key that was rotated out speaks for nobody.
            let current = |pubkey: &Option<String>| pubkey.as_ref() == Some(&request.pubkey);
            let Some(member) = member.filter(|member| current(&member.pubkey)) else {
                return Ok(Admitted::Unknown);
            };
            if member.status != MemberStatus::Active {
                return Ok(Admitted::Inactive);
            }
            let by = named_params! {":now": now.0, ":limit": NONCES_OVER_MAX};
            tx.prepare_cached(NONCE_SWEEP)?.execute(by)?;
            let new = tx.prepare_cached(NONCE_INSERT)?.execute(named_params! {
                ":mesh_id": key(mesh_id), ":pubkey": request.pubkey, ":nonce": request.nonce,
                ":expires_at": request.expires_at.0,
            })?;
            let (member_id, role) = (member.member_id, member.role);
            Ok(if new == 1 { Admitted::Member { member_id, role } } else { Admitted::NonceReused })
        });
        write.await
    }

    pub(in crate::store) async fn nonce_sweep(
        &self,
        now: UnixMs,
        limit: i64,
    ) -> Result<u64, StoreError> {
        let write = self.sqlite.write(move |tx| {
            let by = named_params! {":now": now.0, ":limit": limit};
            Ok(tx.prepare_cached(NONCE_SWEEP)?.execute(by)?)
        });
        write.await.map(|rows| rows as u64)
    }
}
