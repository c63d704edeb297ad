//! The table `verification`: a verdict flags an effect, and stays.

use semel_core::clock::UnixMs;
use semel_store::{StoreError, statements};

use super::{Parameters, PostgresStore};
use crate::key::LogicalRequestKey;
use crate::store::{Verdict, Verifying};

statements! {
    VERIFY = "
        -- Differs from sqlite: first, so that of two verifiers the second waits for the first.
        INSERT INTO registrar.verification (logical_request_key, verdict, note, at)
        SELECT registration.logical_request_key, $2, $3, $4
          FROM registrar.registration
         WHERE registration.logical_request_key = $1
            ON CONFLICT DO NOTHING";

    VERIFIED = "
        SELECT verification.verdict
          FROM registrar.verification
         WHERE verification.logical_request_key = $1";
}

impl PostgresStore {
    pub(in crate::store) async fn verify(
        &self,
        key: LogicalRequestKey,
        verdict: Verdict,
        note: &str,
        now: UnixMs,
    ) -> Result<Verifying, StoreError> {
        let (bytes, word) = (key.0.0.as_slice(), verdict.as_str());
        let verify: Parameters<'_> = &[&bytes, &word, &note, &now.0];
        let by: Parameters<'_> = &[&bytes];
        let run = async || {
            let tx = self.postgres.begin().await?;
            let mut rows = tx.commit_with(&[(VERIFY, verify), (VERIFIED, by)]).await?;
            let Some(row) = rows.pop().and_then(|mut rows| rows.pop()) else {
                return Ok(Verifying::NoEffect);
            };
            let found: String = row.try_get(0)?;
            Ok(if found == word { Verifying::Written } else { Verifying::Other })
        };
        self.postgres.retry(run).await
    }
}
