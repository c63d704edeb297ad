//! What housekeeping deletes: ids that have expired, and messages that are too old (mesh.md §7).
//!
//! Differs from sqlite: another broker may sweep at the same time. Whoever deletes a message row
//! deletes what hangs on it; the other one waits for that, finds nothing, and goes on.

use semel_core::clock::UnixMs;
use semel_core::id::MeshId;
use semel_store::{StoreError, statements};
use tokio_postgres::Row;
use uuid::Uuid;

use super::PostgresStore;
use crate::store::housekeeping::{made_before, runs};

statements! {
    /// A mesh that is permanent now keeps also what it accepted before it was, and one that has
    /// told daemons a longer retention keeps what was accepted under a shorter one.
    EXPIRED = "
        -- Differs from sqlite: by ctid, which is never planned as a scan of the table; rows that
        -- another sweep holds are left to it.
        DELETE FROM mesh.client_message_dedupe
         WHERE ctid = ANY (ARRAY (
               SELECT expired.ctid
                 FROM mesh.client_message_dedupe AS expired
                WHERE expired.expires_at <= $1
                  AND (SELECT 1
                         FROM mesh.mesh
                        WHERE mesh.mesh_id = expired.mesh_id
                          AND mesh.dedupe_mode = 'retention_scoped'
                          AND expired.first_seen_at
                              <= $1 - (mesh.dedupe_retention_days + 1) * 86400000
                        LIMIT 1) IS NOT NULL
                ORDER BY expired.expires_at
                LIMIT $2
                  FOR UPDATE OF expired SKIP LOCKED))";

    /// By age alone: what was never delivered goes too, or a member that stays away would keep
    /// its messages for ever. A message's id begins with the time at which it was made, so that the
    /// key finds the oldest.
    DOOMED = "
        SELECT broker_message_id
          FROM mesh.topic_message
         WHERE mesh_id = $1
           AND broker_message_id < $4
           AND accepted_at < $2
         UNION ALL
        SELECT broker_message_id
          FROM mesh.message_queue
         WHERE mesh_id = $1
           AND broker_message_id < $4
           AND accepted_at < $2
         ORDER BY broker_message_id
         LIMIT $3";

    TOPIC_DELETE = "
        DELETE FROM mesh.topic_message
         WHERE ctid = ANY (ARRAY (
               SELECT doomed.ctid
                 FROM unnest($2::uuid[]) AS asked (message),
                      LATERAL (SELECT message.ctid
                                 FROM mesh.topic_message AS message
                                WHERE message.mesh_id = $1
                                  AND message.broker_message_id = asked.message
                                LIMIT 1) AS doomed))
     RETURNING broker_message_id, sender_member_id, client_message_id";

    DIRECT_DELETE = "
        DELETE FROM mesh.message_queue
         WHERE ctid = ANY (ARRAY (
               SELECT doomed.ctid
                 FROM unnest($2::uuid[]) AS asked (message),
                      LATERAL (SELECT message.ctid
                                 FROM mesh.message_queue AS message
                                WHERE message.mesh_id = $1
                                  AND message.broker_message_id = asked.message
                                LIMIT 1) AS doomed))
     RETURNING broker_message_id, sender_member_id, client_message_id";

    /// The id may have expired and belong to a later message, which stays.
    HISTORY_UNAVAILABLE = "
        UPDATE mesh.client_message_dedupe AS dedupe
           SET history_available = FALSE
          -- Differs from sqlite: the mesh comes with the rows, or a plan may read all of it.
          FROM (SELECT $1::uuid, asked.message, asked.sender, asked.id
                  FROM unnest($2::uuid[], $3::uuid[], $4::text[]) AS asked (message, sender, id)
                OFFSET 0) AS gone (mesh_id, message, sender, id)
         WHERE dedupe.mesh_id = gone.mesh_id
           AND dedupe.sender_member_id = gone.sender
           AND dedupe.client_message_id = gone.id
           AND dedupe.broker_message_id = gone.message";

    HISTORY_DELETE = "
        DELETE FROM mesh.message_history
         WHERE ctid = ANY (ARRAY (
               SELECT doomed.ctid
                 FROM unnest($2::uuid[]) AS asked (message),
                      LATERAL (SELECT history.ctid
                                 FROM mesh.message_history AS history
                                WHERE history.mesh_id = $1
                                  AND history.broker_message_id = asked.message
                                LIMIT 1) AS doomed))
     RETURNING seq";

    /// From holder to holder along the primary key: members to whom nothing is left cost nothing.
    /// Locked, because work that is taken at the same moment is not where it was any more.
    DELIVERIES_DOOMED = "
        WITH RECURSIVE holder AS (
            (SELECT recipient
               FROM mesh.delivery_queue
              WHERE mesh_id = $1
              ORDER BY recipient, seq
              LIMIT 1)
             UNION ALL
            SELECT next.recipient
              FROM holder,
                   LATERAL (SELECT row.recipient
                              FROM mesh.delivery_queue AS row
                             WHERE row.mesh_id = $1
                               AND row.recipient > holder.recipient
                             ORDER BY row.recipient, row.seq
                             LIMIT 1) AS next
        )
        SELECT doomed.recipient, doomed.seq
          FROM holder,
               LATERAL (SELECT row.recipient, row.seq
                          FROM mesh.delivery_queue AS row
                         WHERE row.mesh_id = $1
                           AND row.recipient = holder.recipient
                           AND row.seq BETWEEN $2 AND $3
                         ORDER BY row.seq
                           FOR UPDATE) AS doomed";

    DELIVERIES_DELETE = "
        DELETE FROM mesh.delivery_queue
         WHERE ctid = ANY (ARRAY (
               SELECT doomed.ctid
                 FROM unnest($2::uuid[], $3::bigint[]) AS asked (recipient, seq),
                      LATERAL (SELECT row.ctid
                                 FROM mesh.delivery_queue AS row
                                WHERE row.mesh_id = $1
                                  AND row.recipient = asked.recipient
                                  AND row.seq = asked.seq
                                LIMIT 1) AS doomed))";

    SET_ASIDE_DELETE = "
        WITH RECURSIVE holder AS (
            (SELECT recipient
               FROM mesh.delivery_set_aside
              WHERE mesh_id = $1
              ORDER BY recipient, seq
              LIMIT 1)
             UNION ALL
            SELECT next.recipient
              FROM holder,
                   LATERAL (SELECT row.recipient
                              FROM mesh.delivery_set_aside AS row
                             WHERE row.mesh_id = $1
                               AND row.recipient > holder.recipient
                             ORDER BY row.recipient, row.seq
                             LIMIT 1) AS next
        )
        DELETE FROM mesh.delivery_set_aside
         WHERE ctid = ANY (ARRAY (
               SELECT doomed.ctid
                 FROM holder,
                      LATERAL (SELECT row.ctid
                                 FROM mesh.delivery_set_aside AS row
                                WHERE row.mesh_id = $1
                                  AND row.recipient = holder.recipient
                                  AND row.seq BETWEEN $2 AND $3
                               OFFSET 0) AS doomed))";

    MENTIONS_DELETE = "
        WITH RECURSIVE holder AS (
            (SELECT member_id
               FROM mesh.mention_index
              WHERE mesh_id = $1
              ORDER BY member_id, seq
              LIMIT 1)
             UNION ALL
            SELECT next.member_id
              FROM holder,
                   LATERAL (SELECT row.member_id
                              FROM mesh.mention_index AS row
                             WHERE row.mesh_id = $1
                               AND row.member_id > holder.member_id
                             ORDER BY row.member_id, row.seq
                             LIMIT 1) AS next
        )
        DELETE FROM mesh.mention_index
         WHERE ctid = ANY (ARRAY (
               SELECT doomed.ctid
                 FROM holder,
                      LATERAL (SELECT row.ctid
                                 FROM mesh.mention_index AS row
                                WHERE row.mesh_id = $1
                                  AND row.member_id = holder.member_id
                                  AND row.seq BETWEEN $2 AND $3
                               OFFSET 0) AS doomed))";
}

impl PostgresStore {
    pub(in crate::store) async fn dedupe_sweep(
        &self,
        now: UnixMs,
        limit: i64,
    ) -> Result<u64, StoreError> {
        self.execute(EXPIRED, &[&now.0, &limit]).await
    }

    pub(in crate::store) async fn retention_sweep(
        &self,
        mesh_id: MeshId,
        older_than: UnixMs,
        limit: i64,
    ) -> Result<u64, StoreError> {
        self.postgres.retry(|| self.retention_once(mesh_id, older_than, limit)).await
    }

    async fn retention_once(
        &self,
        mesh_id: MeshId,
        older_than: UnixMs,
        limit: i64,
    ) -> Result<u64, StoreError> {
        let mesh = mesh_id.as_uuid();
        let tx = self.postgres.begin().await?;
        let by: super::Parameters<'_> = &[&mesh, &older_than.0, &limit, &made_before(older_than)];
        let doomed: Vec<Uuid> = column(&tx.query(DOOMED, by).await?, 0)?;
        let mut gone = tx.query(TOPIC_DELETE, &[&mesh, &doomed]).await?;
        gone.extend(tx.query(DIRECT_DELETE, &[&mesh, &doomed]).await?);
        let (messages, senders): (Vec<Uuid>, Vec<Uuid>) = (column(&gone, 0)?, column(&gone, 1)?);
        let ids: Vec<String> = column(&gone, 2)?;
        tx.execute(HISTORY_UNAVAILABLE, &[&mesh, &messages, &senders, &ids]).await?;
        let history = tx.query(HISTORY_DELETE, &[&mesh, &messages]).await?;
        for (first, last) in runs(column(&history, 0)?) {
            let doomed = tx.query(DELIVERIES_DOOMED, &[&mesh, &first, &last]).await?;
            let (recipients, seqs): (Vec<Uuid>, Vec<i64>) =
                (column(&doomed, 0)?, column(&doomed, 1)?);
            if !doomed.is_empty() {
                tx.execute(DELIVERIES_DELETE, &[&mesh, &recipients, &seqs]).await?;
            }
            tx.execute(SET_ASIDE_DELETE, &[&mesh, &first, &last]).await?;
            tx.execute(MENTIONS_DELETE, &[&mesh, &first, &last]).await?;
        }
        tx.commit().await.map(|()| messages.len() as u64)
    }
}

fn column<T>(rows: &[Row], number: usize) -> Result<Vec<T>, StoreError>
where
    T: for<'a> tokio_postgres::types::FromSql<'a>,
{
    rows.iter().map(|row| Ok(row.try_get(number)?)).collect()
}
