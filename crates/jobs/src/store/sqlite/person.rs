//! A person's word: read, decided and written in one transaction, together with the use of its
//! grant.

use semel_registrar::decide::Outcome;
use semel_registrar::store::Attempt as GrantUse;
use semel_registrar::store::sqlite::consume_in_tx;
use semel_store::StoreError;

use super::SqliteStore;
use super::advance::advance_in_tx;
use super::job::kept_of;
use super::row::Id;
use crate::store::{Advanced, Answering, Wrote, corrupt};

impl SqliteStore {
    pub(in crate::store) async fn person(
        &self,
        id: Id,
        grant: Option<Box<GrantUse>>,
        decide: Answering,
    ) -> Result<Wrote, StoreError> {
        let write = self.sqlite.write(move |tx| {
            let Some(kept) = kept_of(tx, id)? else { return Ok(Wrote::NotFound) };
            let advance = match decide(&kept) {
                Ok(advance) => advance,
                Err(refusal) => return Ok(Wrote::Refused(refusal)),
            };
            if let Some(grant) = &grant {
                let used = consume_in_tx(tx, grant)?;
                if used.outcome != Outcome::Registered {
                    return Ok(Wrote::GrantRefused(used.outcome));
                }
            }
            match advance_in_tx(tx, &advance)? {
                Advanced::Written => Ok(Wrote::Written(Box::new(advance))),
                Advanced::Lost => Err(corrupt("job", id, "it changed within a transaction")),
            }
        });
        write.await
    }
}
