//! The tables `authority`, `grant_issued` and `grant_revoked`.

use rusqlite::{OptionalExtension, named_params};
use semel_core::clock::UnixMs;
use semel_core::hex::Hex;
use semel_store::{StoreError, statements};

use super::SqliteStore;
use crate::grant::{Grant, Nonce};
use crate::key::LogicalRequestKey;
use crate::store::{GrantState, Granted, Revoking, fixed, grant_state};

statements! {
    TRUST = "
        -- Differs from postgres: the trigger that refuses to replace a row is asked first.
        INSERT INTO authority (domain, pubkey, trusted_at)
        SELECT :domain, :pubkey, :now
         WHERE NOT EXISTS (SELECT 1
                             FROM authority
                            WHERE domain = :domain
                              AND pubkey = :pubkey)";

    TRUSTED = "
        SELECT 1
          FROM authority
         WHERE domain = :domain
           AND pubkey = :pubkey";

    GRANT_ISSUE = "
        INSERT INTO grant_issued (authorization_nonce, domain, logical_request_key, not_before,
                                  not_after, issuer, issued_at)
        VALUES (:nonce, :domain, :key, :not_before, :not_after, :issuer, :now)";

    GRANT_LIST = "
        SELECT issued.authorization_nonce, issued.logical_request_key, issued.not_before,
               issued.not_after, issued.issued_at,
               EXISTS (SELECT 1
                         FROM nonce_use
                        WHERE nonce_use.authorization_nonce = issued.authorization_nonce),
               EXISTS (SELECT 1
                         FROM grant_revoked
                        WHERE grant_revoked.authorization_nonce = issued.authorization_nonce)
          FROM grant_issued AS issued
         WHERE issued.domain = :domain
           AND issued.authorization_nonce > :after
         ORDER BY issued.authorization_nonce
         LIMIT :limit";

    GRANT_STATE = "
        SELECT EXISTS (SELECT 1 FROM nonce_use WHERE authorization_nonce = :nonce),
               EXISTS (SELECT 1 FROM grant_revoked WHERE authorization_nonce = :nonce)
          FROM grant_issued
         WHERE authorization_nonce = :nonce";

    GRANT_REVOKE = "
        INSERT INTO grant_revoked (authorization_nonce, revoked_at)
        VALUES (:nonce, :now)";
}

impl SqliteStore {
    pub(in crate::store) async fn grant_issue(
        &self,
        grant: &Grant,
        now: UnixMs,
    ) -> Result<(), StoreError> {
        let grant = grant.clone();
        let write = self.sqlite.write(move |tx| {
            tx.prepare_cached(TRUST)?.execute(named_params! {
                ":domain": grant.domain, ":pubkey": grant.issuer.0, ":now": now.0,
            })?;
            tx.prepare_cached(GRANT_ISSUE)?.execute(named_params! {
                ":nonce": grant.nonce.0.0, ":domain": grant.domain,
                ":key": grant.logical_request_key.0.0, ":not_before": grant.not_before.0,
                ":not_after": grant.not_after.0, ":issuer": grant.issuer.0, ":now": now.0,
            })?;
            Ok(())
        });
        write.await
    }

    pub(in crate::store) async fn grant_list(
        &self,
        domain: &str,
        after: Option<Nonce>,
        limit: u32,
    ) -> Result<Vec<Granted>, StoreError> {
        let domain = domain.to_owned();
        let after = after.map_or(Vec::new(), |nonce| nonce.0.0.to_vec());
        let read = self.sqlite.read(move |tx| {
            let by = named_params! {":domain": domain, ":after": after, ":limit": limit};
            let mut list = tx.prepare_cached(GRANT_LIST)?;
            let mut rows = list.query(by)?;
            let mut grants = Vec::new();
            while let Some(row) = rows.next()? {
                grants.push(Granted {
                    nonce: Nonce(fixed("grant_issued", row.get(0)?)?),
                    logical_request_key: LogicalRequestKey(fixed("grant_issued", row.get(1)?)?),
                    window: (UnixMs(row.get(2)?), UnixMs(row.get(3)?)),
                    issued_at: UnixMs(row.get(4)?),
                    state: grant_state(row.get(5)?, row.get(6)?),
                });
            }
            Ok(grants)
        });
        read.await
    }

    pub(in crate::store) async fn grant_revoke(
        &self,
        nonce: Nonce,
        now: UnixMs,
    ) -> Result<Revoking, StoreError> {
        let write = self.sqlite.write(move |tx| {
            let by = named_params! {":nonce": nonce.0.0, ":now": now.0};
            let mut state = tx.prepare_cached(GRANT_STATE)?;
            let state = state.query_row(&by[..1], |row| Ok(grant_state(row.get(0)?, row.get(1)?)));
            match state.optional()? {
                None => Ok(Revoking::Unknown),
                Some(GrantState::Consumed) => Ok(Revoking::Consumed),
                Some(GrantState::Revoked) => Ok(Revoking::Revoked),
                Some(GrantState::Issued) => {
                    tx.prepare_cached(GRANT_REVOKE)?.execute(by)?;
                    Ok(Revoking::Revoked)
                }
            }
        });
        write.await
    }

    pub(in crate::store) async fn trusts(
        &self,
        domain: &str,
        issuer: Hex<32>,
    ) -> Result<bool, StoreError> {
        let domain = domain.to_owned();
        let read = self.sqlite.read(move |tx| {
            let by = named_params! {":domain": domain, ":pubkey": issuer.0};
            let mut trusted = tx.prepare_cached(TRUSTED)?;
            Ok(trusted.query_row(by, |_| Ok(())).optional()?.is_some())
        });
        read.await
    }
}
