//! A backup becomes the store again. What was accepted after the backup is lost to it, so that it
//! must not pass for the store it was: it gets a new `store_epoch` before anybody can open it, and
//! daemons then offer what they know was done (mesh.md §10).

use std::path::Path;

use semel_core::clock::UnixMs;
use semel_store::StoreError;
use semel_store::sqlite::{self, Existing, OnUncertain, RestoreError};

use super::{APPLICATION_ID, SqliteStore};

impl SqliteStore {
    /// Writes a consistent copy to `target`, which must not exist, while the store is in use.
    pub async fn backup_into(&self, target: &Path) -> Result<(), StoreError> {
        self.sqlite.backup_into(target).await
    }

    /// Puts the backup `from` where the store `to` is, as another life of it.
    pub async fn restore(
        from: &Path,
        to: &Path,
        existing: Existing,
        store_epoch: &str,
        now: UnixMs,
        on_uncertain: OnUncertain,
    ) -> Result<(), RestoreError> {
        let renew = async |copy: &Path| {
            let store = Self::open(copy, store_epoch.to_owned(), now, on_uncertain).await?;
            let sound = sqlite::refuse_damaged(&store.sqlite).await;
            let renewed = store.store_renew(store_epoch).await;
            store.close().await;
            sound.and(renewed.map_err(RestoreError::from))
        };
        sqlite::restore(from, to, existing, APPLICATION_ID, renew).await
    }
}
