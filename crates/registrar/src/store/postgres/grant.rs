//! The tables `authority`, `grant_issued` and `grant_revoked`.

use semel_core::clock::UnixMs;
use semel_core::hex::Hex;
use semel_store::{StoreError, statements};

use super::{Parameters, PostgresStore};
use crate::grant::{Grant, Nonce};
use crate::key::LogicalRequestKey;
use crate::store::{GrantState, Granted, Revoking, fixed, grant_state};

statements! {
    TRUST = "
        INSERT INTO registrar.authority (domain, pubkey, trusted_at)
        VALUES ($1, $2, $3)
            ON CONFLICT DO NOTHING";

    TRUSTED = "
        SELECT 1
          FROM registrar.authority
         WHERE domain = $1
           AND pubkey = $2";

    GRANT_ISSUE = "
        INSERT INTO registrar.grant_issued (authorization_nonce, domain, logical_request_key,
                                            not_before, not_after, issuer, issued_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7)";

    GRANT_LIST = "
        SELECT issued.authorization_nonce, issued.logical_request_key, issued.not_before,
               issued.not_after, issued.issued_at,
               EXISTS (SELECT 1
                         FROM registrar.nonce_use
                        WHERE nonce_use.authorization_nonce = issued.authorization_nonce),
               EXISTS (SELECT 1
                         FROM registrar.grant_revoked
                        WHERE grant_revoked.authorization_nonce = issued.authorization_nonce)
          FROM registrar.grant_issued AS issued
         WHERE issued.domain = $1
           AND issued.authorization_nonce > $2
         ORDER BY issued.authorization_nonce
         LIMIT $3";

    NONCE_LOCK = "
        -- Differs from sqlite: the lock that who consumes it takes, too.
        SELECT pg_advisory_xact_lock($1, $2)";

    GRANT_STATE = "
        SELECT EXISTS (SELECT 1 FROM registrar.nonce_use WHERE authorization_nonce = $1),
               EXISTS (SELECT 1 FROM registrar.grant_revoked WHERE authorization_nonce = $1)
          FROM registrar.grant_issued
         WHERE authorization_nonce = $1";

    GRANT_REVOKE = "
        INSERT INTO registrar.grant_revoked (authorization_nonce, revoked_at)
        VALUES ($1, $2)";
}

impl PostgresStore {
    pub(in crate::store) async fn grant_issue(
        &self,
        grant: &Grant,
        now: UnixMs,
    ) -> Result<(), StoreError> {
        let nonce = grant.nonce.0.0.as_slice();
        let key = grant.logical_request_key.0.0.as_slice();
        let (domain, issuer) = (&grant.domain, grant.issuer.0.as_slice());
        let trust: Parameters<'_> = &[domain, &issuer, &now.0];
        let (from, to) = (grant.not_before.0, grant.not_after.0);
        let issue: Parameters<'_> = &[&nonce, domain, &key, &from, &to, &issuer, &now.0];
        let run = async || {
            let tx = self.postgres.begin().await?;
            tx.commit_with(&[(TRUST, trust), (GRANT_ISSUE, issue)]).await.map(drop)
        };
        self.postgres.retry(run).await
    }

    pub(in crate::store) async fn grant_list(
        &self,
        domain: &str,
        after: Option<Nonce>,
        limit: u32,
    ) -> Result<Vec<Granted>, StoreError> {
        let after = after.map_or(Vec::new(), |nonce| nonce.0.0.to_vec());
        let by: Parameters<'_> = &[&domain, &after, &i64::from(limit)];
        let mut grants = Vec::new();
        for row in self.postgres.read(GRANT_LIST, by).await? {
            grants.push(Granted {
                nonce: Nonce(fixed("grant_issued", row.try_get(0)?)?),
                logical_request_key: LogicalRequestKey(fixed("grant_issued", row.try_get(1)?)?),
                window: (UnixMs(row.try_get(2)?), UnixMs(row.try_get(3)?)),
                issued_at: UnixMs(row.try_get(4)?),
                state: grant_state(row.try_get(5)?, row.try_get(6)?),
            });
        }
        Ok(grants)
    }

    pub(in crate::store) async fn grant_revoke(
        &self,
        nonce: Nonce,
        now: UnixMs,
    ) -> Result<Revoking, StoreError> {
        let bytes = nonce.0.0.as_slice();
        let run = async || {
            let (class, lock) = super::effect::nonce_lock(nonce);
            let lock: Parameters<'_> = &[&class, &lock];
            let by: Parameters<'_> = &[&bytes];
            let asked = [(NONCE_LOCK, lock), (GRANT_STATE, by)];
            let (tx, mut rows) = self.postgres.begin_with(&asked).await?;
            let Some(row) = rows.pop().and_then(|mut rows| rows.pop()) else {
                return Ok(Revoking::Unknown);
            };
            match grant_state(row.try_get(0)?, row.try_get(1)?) {
                GrantState::Consumed => Ok(Revoking::Consumed),
                GrantState::Revoked => Ok(Revoking::Revoked),
                GrantState::Issued => {
                    tx.query_and_commit(GRANT_REVOKE, &[&bytes, &now.0]).await?;
                    Ok(Revoking::Revoked)
                }
            }
        };
        self.postgres.retry(run).await
    }

    pub(in crate::store) async fn trusts(
        &self,
        domain: &str,
        issuer: Hex<32>,
    ) -> Result<bool, StoreError> {
        let rows = self.postgres.read(TRUSTED, &[&domain, &issuer.0.as_slice()]).await?;
        Ok(!rows.is_empty())
    }
}
