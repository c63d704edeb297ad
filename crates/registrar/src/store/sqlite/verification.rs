//! The table `verification`: a verdict flags an effect, and stays.

use rusqlite::{OptionalExtension, named_params};
use semel_core::clock::UnixMs;
use semel_store::{StoreError, statements};

use super::SqliteStore;
use crate::key::LogicalRequestKey;
use crate::store::{Verdict, Verifying};

statements! {
    VERIFIED = "
        SELECT verification.verdict
          FROM registration
          LEFT JOIN verification
            ON verification.logical_request_key = registration.logical_request_key
         WHERE registration.logical_request_key = :key";

    VERIFY = "
        INSERT INTO verification (logical_request_key, verdict, note, at)
        VALUES (:key, :verdict, :note, :now)";
}

impl SqliteStore {
    pub(in crate::store) async fn verify(
        &self,
        key: LogicalRequestKey,
        verdict: Verdict,
        note: &str,
        now: UnixMs,
    ) -> Result<Verifying, StoreError> {
        let note = note.to_owned();
        let write = self.sqlite.write(move |tx| {
            let mut verified = tx.prepare_cached(VERIFIED)?;
            let found: Option<Option<String>> =
                verified.query_row(named_params! {":key": key.0.0}, |row| row.get(0)).optional()?;
            match found {
                None => Ok(Verifying::NoEffect),
                Some(Some(word)) if word == verdict.as_str() => Ok(Verifying::Written),
                Some(Some(_)) => Ok(Verifying::Other),
                Some(None) => {
                    tx.prepare_cached(VERIFY)?.execute(named_params! {
                        ":key": key.0.0, ":verdict": verdict.as_str(), ":note": note,
                        ":now": now.0,
                    })?;
                    Ok(Verifying::Written)
                }
            }
        });
        write.await
    }
}
