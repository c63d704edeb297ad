//! The table `request_nonce`: a signed request is served once.

use semel_core::clock::UnixMs;
use semel_core::id::MeshId;
use semel_store::{StoreError, statements};

use super::PostgresStore;
use super::member::member_by_key_in_tx;
use crate::limits::NONCES_OVER_MAX;
use crate::store::{Admitted, MemberStatus, NewRequest};

statements! {
    NONCE_INSERT = "
        INSERT INTO mesh.request_nonce (mesh_id, pubkey, nonce, expires_at)
        VALUES ($1, $2, $3, $4)
            ON CONFLICT DO NOTHING";

    NONCE_SWEEP = "
        -- Differs from sqlite: by ctid, which is never planned as a scan of the table; rows that
        -- another sweep holds are left to it.
        DELETE FROM mesh.request_nonce
         WHERE ctid = ANY (ARRAY (
               SELECT ended.ctid
                 FROM mesh.request_nonce AS ended
                WHERE ended.expires_at <= $1
                ORDER BY ended.expires_at
                LIMIT $2
                  FOR UPDATE SKIP LOCKED))";
}

impl PostgresStore {
    pub(in crate::store) async fn request_admit(
        &self,
        mesh_id: MeshId,
        request: &NewRequest,
        now: UnixMs,
    ) -> Result<Admitted, StoreError> {
        self.postgres.retry(|| self.admit_once(mesh_id, request, now)).await
    }

    async fn admit_once(
        &self,
        mesh_id: MeshId,
        request: &NewRequest,
        now: UnixMs,
    ) -> Result<Admitted, StoreError> {
        let tx = self.postgres.begin().await?;
        let member = member_by_key_in_tx(&tx, mesh_id, &request.pubkey).await?;
        // A key that was rotated out speaks for nobody.
        let current = |pubkey: &Option<String>| pubkey.as_ref() == Some(&request.pubkey);
        let Some(member) = member.filter(|member| current(&member.pubkey)) else {
            return Ok(Admitted::Unknown);
        };
        if member.status != MemberStatus::Active {
            return Ok(Admitted::Inactive);
        }
        tx.execute(NONCE_SWEEP, &[&now.0, &NONCES_OVER_MAX]).await?;
        let (mesh, nonce) = (mesh_id.as_uuid(), request.nonce.as_slice());
        let by: super::Parameters<'_> = &[&mesh, &request.pubkey, &nonce, &request.expires_at.0];
        let new = tx.execute(NONCE_INSERT, by).await?;
        tx.commit().await?;
        let (member_id, role) = (member.member_id, member.role);
        Ok(if new == 1 { Admitted::Member { member_id, role } } else { Admitted::NonceReused })
    }

    pub(in crate::store) async fn nonce_sweep(
        &self,
        now: UnixMs,
        limit: i64,
    ) -> Result<u64, StoreError> {
        self.execute(NONCE_SWEEP, &[&now.0, &limit]).await
    }
}
