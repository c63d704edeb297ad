//! What an operator changes: a mesh's policies, and which life of the store this is.

use rusqlite::{OptionalExtension, named_params};
use semel_core::clock::UnixMs;
use semel_core::id::MeshId;
use semel_store::{StoreError, statements};
use semel_wire::features::ConnectionPolicy;

use super::{Key, SqliteStore, key};
use crate::limits::EPOCHS_SKIPPED;
use crate::store::directory::DedupeKey;
use crate::store::{Mesh, MeshChange};

statements! {
    /// Nothing when fewer rows are left than a page has.
    PAGE_END = "
        SELECT sender_member_id, client_message_id
          FROM client_message_dedupe
         WHERE mesh_id = :mesh_id
           AND (sender_member_id, client_message_id) > (:sender, :client_message_id)
         ORDER BY sender_member_id, client_message_id
         LIMIT 1 OFFSET :limit - 1";

    /// Never shorter; a life without end is `NULL`.
    EXTEND = "
        UPDATE client_message_dedupe
           SET expires_at = first_seen_at + :life_ms
         WHERE mesh_id = :mesh_id
           AND (sender_member_id, client_message_id) > (:sender, :client_message_id)
           AND (sender_member_id, client_message_id) <= (:last_sender, :last_id)
           AND expires_at IS NOT NULL
           AND (:life_ms IS NULL OR expires_at < first_seen_at + :life_ms)";

    CHANGE = "
        UPDATE mesh
           SET dedupe_mode = COALESCE(:mode, dedupe_mode),
               dedupe_retention_days = COALESCE(:days, dedupe_retention_days),
               dedupe_known_since = MAX(dedupe_known_since, :known_since),
               rate_limit = COALESCE(:rate_limit, rate_limit),
               rate_window_ms = COALESCE(:rate_window_ms, rate_window_ms),
               inline_bytes = COALESCE(:inline_bytes, inline_bytes),
               message_retention_days = COALESCE(:message_days, message_retention_days),
               clone_concurrency_policy = COALESCE(:policy, clone_concurrency_policy)
         WHERE mesh_id = :mesh_id
           AND dedupe_mode = :mode_was
           AND dedupe_retention_days = COALESCE(:days_was, dedupe_retention_days)";

    RENEW = "
        UPDATE store
           SET store_epoch = :store_epoch,
               next_session_epoch = next_session_epoch + :skipped
         WHERE one = 1";

    /// A missing session is stale.
    SESSIONS_CLEAR = "
        DELETE FROM session";

    PRESENCE_CLEAR = "
        DELETE FROM presence";
}

/// After every sender and id.
const LAST: ([u8; 16], &str) = ([0xff; 16], "\u{10ffff}");

impl SqliteStore {
    /// Rows of one page live at least so long; gives where the page ended, if it was full.
    pub(in crate::store) async fn dedupe_extend(
        &self,
        mesh_id: MeshId,
        life_ms: Option<i64>,
        after: DedupeKey,
        limit: i64,
    ) -> Result<Option<DedupeKey>, StoreError> {
        let write = self.sqlite.write(move |tx| {
            let (mesh, sender, id) = (key(mesh_id), after.0.into_bytes(), &after.1);
            let by = named_params! {
                ":mesh_id": mesh, ":sender": sender, ":client_message_id": id, ":limit": limit,
            };
            let end: Option<(Key, String)> = tx
                .prepare_cached(PAGE_END)?
                .query_row(by, |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()?;
            let end = end.map(|(sender, id)| (sender.0, id));
            let (last_sender, last_id) =
                end.as_ref().map_or(LAST, |(sender, id)| (sender.into_bytes(), id.as_str()));
            tx.prepare_cached(EXTEND)?.execute(named_params! {
                ":mesh_id": mesh, ":sender": sender, ":client_message_id": id,
                ":last_sender": last_sender, ":last_id": last_id, ":life_ms": life_ms,
            })?;
            Ok(end)
        });
        write.await
    }

    /// `false` when the dedupe rule is not the one of `mesh` any more.
    pub(in crate::store) async fn mesh_change(
        &self,
        mesh: &Mesh,
        change: &MeshChange,
        known_since: UnixMs,
    ) -> Result<bool, StoreError> {
        let (mesh_id, was, change) = (mesh.mesh_id, mesh.dedupe, change.clone());
        let write = self.sqlite.write(move |tx| {
            let rows = tx.prepare_cached(CHANGE)?.execute(named_params! {
                ":mesh_id": key(mesh_id), ":known_since": known_since.0,
                ":mode": change.dedupe.map(|mode| mode.mode_name()),
                ":days": change.dedupe.and_then(|mode| mode.days()),
                ":rate_limit": change.rate_limit, ":rate_window_ms": change.rate_window_ms,
                ":inline_bytes": change.inline_bytes,
                ":message_days": change.message_retention_days,
                ":policy": change.connection_policy.map(ConnectionPolicy::as_str),
                ":mode_was": was.mode_name(), ":days_was": was.days(),
            })?;
            Ok(rows == 1)
        });
        write.await
    }

    pub(in crate::store) async fn store_renew(&self, store_epoch: &str) -> Result<(), StoreError> {
        let store_epoch = store_epoch.to_owned();
        let write = self.sqlite.write(move |tx| {
            let by = named_params! {":store_epoch": store_epoch, ":skipped": EPOCHS_SKIPPED};
            tx.prepare_cached(RENEW)?.execute(by)?;
            tx.prepare_cached(SESSIONS_CLEAR)?.execute([])?;
            tx.prepare_cached(PRESENCE_CLEAR)?.execute([])?;
            Ok(())
        });
        write.await
    }
}
