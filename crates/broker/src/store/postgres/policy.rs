//! What an operator changes: a mesh's policies, and which life of the store this is.

use semel_core::clock::UnixMs;
use semel_core::id::MeshId;
use semel_store::{StoreError, statements};
use semel_wire::features::ConnectionPolicy;

use super::PostgresStore;
use crate::limits::{EPOCHS_SKIPPED, GHOST_AFTER};
use crate::store::directory::DedupeKey;
use crate::store::{Mesh, MeshChange};

statements! {
    /// Nothing when fewer rows are left than a page has.
    PAGE_END = "
        SELECT sender_member_id, client_message_id
          FROM mesh.client_message_dedupe
         WHERE mesh_id = $1
           AND (sender_member_id, client_message_id) > ($2, $3)
         ORDER BY sender_member_id, client_message_id
         LIMIT 1 OFFSET $4::bigint - 1";

    /// Never shorter; a life without end is `NULL`.
    EXTEND = "
        UPDATE mesh.client_message_dedupe
           SET expires_at = first_seen_at + $4::bigint
         WHERE mesh_id = $1
           AND (sender_member_id, client_message_id) > ($2, $3)
           AND (sender_member_id, client_message_id) <= ($5, $6)
           -- Not said as the index of what expires says it, which would be read as a whole.
           AND COALESCE(expires_at, 0) > 0
           AND ($4::bigint IS NULL OR expires_at < first_seen_at + $4::bigint)";

    /// The last page has no end, because no text is the last one in every collation.
    EXTEND_REST = "
        UPDATE mesh.client_message_dedupe
           SET expires_at = first_seen_at + $4::bigint
         WHERE mesh_id = $1
           AND (sender_member_id, client_message_id) > ($2, $3)
           -- Not said as the index of what expires says it, which would be read as a whole.
           AND COALESCE(expires_at, 0) > 0
           AND ($4::bigint IS NULL OR expires_at < first_seen_at + $4::bigint)";

    CHANGE = "
        UPDATE mesh.mesh
           SET dedupe_mode = COALESCE($4, dedupe_mode),
               dedupe_retention_days = COALESCE($5, dedupe_retention_days),
               dedupe_known_since = GREATEST(dedupe_known_since, $6),
               rate_limit = COALESCE($7, rate_limit),
               rate_window_ms = COALESCE($8, rate_window_ms),
               inline_bytes = COALESCE($9, inline_bytes),
               message_retention_days = COALESCE($10, message_retention_days),
               clone_concurrency_policy = COALESCE($11, clone_concurrency_policy)
         WHERE mesh_id = $1
           AND dedupe_mode = $2
           AND dedupe_retention_days = COALESCE($3, dedupe_retention_days)";

    RENEW = "
        UPDATE mesh.store
           SET store_epoch = $1
         WHERE one = 1";

    EPOCHS_SKIP = "
        -- Differs from sqlite: a sequence. It may be behind the rows when they were restored by
        -- parts.
        SELECT setval('mesh.session_epoch',
                      $1 + GREATEST((SELECT last_value FROM mesh.session_epoch),
                                    (SELECT COALESCE(MAX(session_epoch), 0) FROM mesh.session)))";

    /// A missing session is stale.
    SESSIONS_CLEAR = "
        DELETE FROM mesh.session";

    PRESENCE_CLEAR = "
        DELETE FROM mesh.presence";

    BROKERS_LIVE = "
        SELECT count(DISTINCT broker_id)
          FROM mesh.presence
         WHERE heartbeat_at > mesh.now_ms() - $1";
}

impl PostgresStore {
    /// Rows of one page live at least so long; gives where the page ended, if it was full.
    pub(in crate::store) async fn dedupe_extend(
        &self,
        mesh_id: MeshId,
        life_ms: Option<i64>,
        after: &DedupeKey,
        limit: i64,
    ) -> Result<Option<DedupeKey>, StoreError> {
        let run = || self.extend_once(mesh_id, life_ms, after, limit);
        self.postgres.retry(run).await
    }

    async fn extend_once(
        &self,
        mesh_id: MeshId,
        life_ms: Option<i64>,
        (sender, id): &DedupeKey,
        limit: i64,
    ) -> Result<Option<DedupeKey>, StoreError> {
        let mesh = mesh_id.as_uuid();
        let tx = self.postgres.begin().await?;
        let end = tx.query_opt(PAGE_END, &[&mesh, sender, id, &limit]).await?;
        let end: Option<DedupeKey> =
            end.map(|row| Ok::<_, StoreError>((row.try_get(0)?, row.try_get(1)?))).transpose()?;
        match &end {
            Some((last_sender, last_id)) => {
                let by: super::Parameters<'_> =
                    &[&mesh, sender, id, &life_ms, last_sender, last_id];
                tx.execute(EXTEND, by).await?;
            }
            None => {
                tx.execute(EXTEND_REST, &[&mesh, sender, id, &life_ms]).await?;
            }
        }
        tx.commit().await.map(|()| end)
    }

    /// `false` when the dedupe rule is not the one of `mesh` any more.
    pub(in crate::store) async fn mesh_change(
        &self,
        mesh: &Mesh,
        change: &MeshChange,
        known_since: UnixMs,
    ) -> Result<bool, StoreError> {
        let (mode, days) = (
            change.dedupe.map(|mode| mode.mode_name()),
            change.dedupe.and_then(|mode| mode.days()),
        );
        let number = |number: Option<u32>| number.map(i64::from);
        let (rate_limit, window) = (number(change.rate_limit), number(change.rate_window_ms));
        let (inline, retention) =
            (number(change.inline_bytes), number(change.message_retention_days));
        let policy = change.connection_policy.map(ConnectionPolicy::as_str);
        let (mesh_id, mode_was, days_was) =
            (mesh.mesh_id.as_uuid(), mesh.dedupe.mode_name(), mesh.dedupe.days());
        let by: super::Parameters<'_> = &[
            &mesh_id,
            &mode_was,
            &days_was,
            &mode,
            &days,
            &known_since.0,
            &rate_limit,
            &window,
            &inline,
            &retention,
            &policy,
        ];
        Ok(self.execute(CHANGE, by).await? == 1)
    }

    /// Brokers that have daemons now.
    pub async fn brokers_live(&self) -> Result<u64, StoreError> {
        let within = i64::try_from(GHOST_AFTER.as_millis()).unwrap_or(i64::MAX);
        let rows = self.postgres.read(BROKERS_LIVE, &[&within]).await?;
        let live: i64 = rows.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(0);
        Ok(u64::try_from(live).unwrap_or(0))
    }

    pub(in crate::store) async fn store_renew(&self, store_epoch: &str) -> Result<(), StoreError> {
        let tx = self.postgres.begin().await?;
        tx.execute(RENEW, &[&store_epoch]).await?;
        tx.query(EPOCHS_SKIP, &[&EPOCHS_SKIPPED]).await?;
        // It waits for every accept that holds a session.
        tx.execute(SESSIONS_CLEAR, &[]).await?;
        tx.execute(PRESENCE_CLEAR, &[]).await?;
        tx.commit().await
    }
}
