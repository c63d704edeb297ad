//! The table `message_history`, read again: what a member may see after a number (daemon.md,
//! "Inbox"), and messages by their number.

use semel_core::id::{MemberId, MeshId};
use semel_store::postgres::Transaction;
use semel_store::{StoreError, statements};

use super::PostgresStore;
use super::delivery::raw;
use crate::limits::HISTORY_SCAN_MAX;
use crate::store::{HistoryPage, Messages, Room};

statements! {
    /// Nothing when fewer rows are left than one request looks through.
    SCAN_END = "
        SELECT seq
          FROM mesh.message_history
         WHERE mesh_id = $1
           AND seq > $2
         ORDER BY seq
         LIMIT 1 OFFSET $3::bigint - 1";

    VISIBLE = "
        SELECT page.seq, seen.body_bytes, seen.meta_bytes
          FROM (SELECT *
                  FROM mesh.message_history
                 WHERE mesh_id = $1
                   AND seq > $3
                   AND seq <= $4
                 ORDER BY seq
                OFFSET 0) AS page
         CROSS JOIN LATERAL
               (SELECT octet_length(topic.body)::bigint AS body_bytes,
                       octet_length(topic.meta)::bigint AS meta_bytes
                  FROM mesh.topic_message AS topic,
                       LATERAL (SELECT 1
                                  FROM mesh.topic_subscription AS subscription
                                 WHERE subscription.mesh_id = $1
                                   AND subscription.topic = topic.topic
                                   AND subscription.member_id = $2
                                   AND subscription.from_seq <= page.seq
                                 LIMIT 1) AS subscribed
                 WHERE page.destination_kind = 'topic'
                   AND topic.mesh_id = $1
                   AND topic.broker_message_id = page.broker_message_id
                 UNION ALL
                SELECT octet_length(direct.body)::bigint,
                       octet_length(direct.meta)::bigint
                  FROM mesh.message_queue AS direct,
                       LATERAL (SELECT 1
                                  FROM mesh.member_key AS own
                                 WHERE own.mesh_id = $1
                                   AND own.pubkey = direct.destination_ref
                                   AND own.member_id = $2
                                 LIMIT 1) AS mine
                 WHERE page.destination_kind = 'dm'
                   AND direct.mesh_id = $1
                   AND direct.broker_message_id = page.broker_message_id
                 LIMIT 1) AS seen
         ORDER BY page.seq
         LIMIT $5";

    /// Row by row (`LATERAL`, and nothing that could be turned round): whatever the planner knows
    /// or does not, a message costs the same.
    MESSAGES = "
        SELECT history.seq, history.broker_message_id, history.sender_member_id,
               sender.name, sender_key.pubkey, history.destination_kind,
               COALESCE(topic.client_message_id, direct.client_message_id),
               COALESCE(topic.topic, direct.destination_ref),
               COALESCE(topic.reply_to_id, direct.reply_to_id),
               COALESCE(topic.priority, direct.priority)::bigint,
               COALESCE(topic.meta, direct.meta),
               COALESCE(topic.body, direct.body),
               COALESCE(topic.body_commitment, direct.body_commitment),
               COALESCE(topic.accepted_at, direct.accepted_at),
               COALESCE(topic.request_fingerprint, direct.request_fingerprint)
          FROM unnest($2::bigint[]) AS asked (seq)
         CROSS JOIN LATERAL
               (SELECT *
                  FROM mesh.message_history
                 WHERE message_history.mesh_id = $1
                   AND message_history.seq = asked.seq
                 LIMIT 1) AS history
         CROSS JOIN LATERAL
               (SELECT member.name
                  FROM mesh.member
                 WHERE member.mesh_id = $1
                   AND member.member_id = history.sender_member_id
                 LIMIT 1) AS sender
          LEFT JOIN LATERAL
               (SELECT *
                  FROM mesh.topic_message
                 WHERE topic_message.mesh_id = $1
                   AND topic_message.broker_message_id = history.broker_message_id
                 LIMIT 1) AS topic ON TRUE
          LEFT JOIN LATERAL
               (SELECT *
                  FROM mesh.message_queue
                 WHERE message_queue.mesh_id = $1
                   AND message_queue.broker_message_id = history.broker_message_id
                 LIMIT 1) AS direct ON TRUE
          LEFT JOIN LATERAL
               (SELECT member_key.pubkey
                  FROM mesh.member_key
                 WHERE member_key.mesh_id = $1
                   AND member_key.member_id = history.sender_member_id
                   AND member_key.status <> 'rotated_out'
                 LIMIT 1) AS sender_key ON TRUE
         ORDER BY history.seq";
}

impl PostgresStore {
    pub(in crate::store) async fn history(
        &self,
        mesh_id: MeshId,
        member_id: MemberId,
        after_seq: i64,
        limit: i64,
        bytes_max: usize,
    ) -> Result<HistoryPage, StoreError> {
        // One snapshot for what is looked through and for what is found there.
        let tx = self.postgres.snapshot().await?;
        let mesh = mesh_id.as_uuid();
        let end = tx.query_opt(SCAN_END, &[&mesh, &after_seq, &HISTORY_SCAN_MAX]).await?;
        let scanned: Option<i64> = end.map(|row| row.try_get(0)).transpose()?;
        let (member, scan_end) = (member_id.as_uuid(), scanned.unwrap_or(i64::MAX));
        let by: super::Parameters<'_> = &[&mesh, &member, &after_seq, &scan_end, &limit];
        let rows = tx.query(VISIBLE, by).await?;
        let (mut seqs, mut room) = (Vec::new(), Room::new(bytes_max));
        for row in &rows {
            // A row that is damaged may have neither.
            let bytes = |column| -> Result<usize, StoreError> {
                let count: Option<i64> = row.try_get(column)?;
                Ok(usize::try_from(count.unwrap_or(0)).unwrap_or(usize::MAX))
            };
            if !room.admits(bytes(1)?, bytes(2)?) {
                break;
            }
            seqs.push(row.try_get(0)?);
        }
        let messages = messages_in_tx(&tx, mesh_id, &seqs).await?;
        Ok(HistoryPage::new(messages, limit, seqs.len() < rows.len(), scanned))
    }
}

/// The messages with these numbers, in order.
pub(super) async fn messages_in_tx(
    tx: &Transaction,
    mesh_id: MeshId,
    seqs: &[i64],
) -> Result<Messages, StoreError> {
    let rows = tx.query(MESSAGES, &[&mesh_id.as_uuid(), &seqs]).await?;
    let rows = rows.iter().map(raw).collect::<Result<Vec<_>, _>>()?;
    Ok(Messages::of(rows.into_iter().map(Ok)))
}
