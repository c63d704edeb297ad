//! The table `message_history`, read again: what a member may see after a number (daemon.md,
//! "Inbox"), and messages by their number.

use semel_core::id::{MemberId, MeshId};
use semel_store::postgres::Transaction;
use semel_store::{StoreError, statements};

use super::PostgresStore;
use super::delivery::raw;
use crate::limits::HISTORY_SCAN_MAX;
use crate::store::{Delivery, HistoryPage};

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
        SELECT history.seq
          FROM mesh.message_history AS history
          LEFT JOIN mesh.topic_message AS topic
                 ON topic.mesh_id = history.mesh_id
                AND topic.broker_message_id = history.broker_message_id
          LEFT JOIN mesh.message_queue AS direct
                 ON direct.mesh_id = history.mesh_id
                AND direct.broker_message_id = history.broker_message_id
         WHERE history.mesh_id = $1
           AND history.seq > $3
           AND history.seq <= $4
           AND (    history.destination_kind = 'topic'
                AND EXISTS (SELECT 1
                              FROM mesh.topic_subscription AS subscription
                             WHERE subscription.mesh_id = history.mesh_id
                               AND subscription.topic = topic.topic
                               AND subscription.member_id = $2)
                 OR history.destination_kind = 'dm'
                AND EXISTS (SELECT 1
                              FROM mesh.member_key AS own
                             WHERE own.mesh_id = history.mesh_id
                               AND own.pubkey = direct.destination_ref
                               AND own.member_id = $2))
         ORDER BY history.seq
         LIMIT $5";

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
               COALESCE(topic.accepted_at, direct.accepted_at)
          FROM mesh.message_history AS history
          JOIN mesh.member AS sender
            ON sender.mesh_id = history.mesh_id AND sender.member_id = history.sender_member_id
          LEFT JOIN mesh.topic_message AS topic
                 ON topic.mesh_id = history.mesh_id
                AND topic.broker_message_id = history.broker_message_id
          LEFT JOIN mesh.message_queue AS direct
                 ON direct.mesh_id = history.mesh_id
                AND direct.broker_message_id = history.broker_message_id
          LEFT JOIN mesh.member_key AS sender_key
                 ON sender_key.mesh_id = sender.mesh_id
                AND sender_key.member_id = sender.member_id
                AND sender_key.status <> 'rotated_out'
         WHERE history.mesh_id = $1
           AND history.seq = ANY ($2)
         ORDER BY history.seq";
}

impl PostgresStore {
    pub(in crate::store) async fn history(
        &self,
        mesh_id: MeshId,
        member_id: MemberId,
        after_seq: i64,
        limit: i64,
    ) -> Result<HistoryPage, StoreError> {
        // One snapshot for what is looked through and for what is found there.
        let tx = self.postgres.snapshot().await?;
        let mesh = mesh_id.as_uuid();
        let end = tx.query_opt(SCAN_END, &[&mesh, &after_seq, &HISTORY_SCAN_MAX]).await?;
        let scanned: Option<i64> = end.map(|row| row.try_get(0)).transpose()?;
        let (member, scan_end) = (member_id.as_uuid(), scanned.unwrap_or(i64::MAX));
        let by: super::Parameters<'_> = &[&mesh, &member, &after_seq, &scan_end, &limit];
        let rows = tx.query(VISIBLE, by).await?;
        let seqs = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i64>, _>>()?;
        Ok(HistoryPage::new(messages_in_tx(&tx, mesh_id, &seqs).await?, limit, scanned))
    }
}

/// The messages with these numbers, in order.
pub(super) async fn messages_in_tx(
    tx: &Transaction,
    mesh_id: MeshId,
    seqs: &[i64],
) -> Result<Vec<Delivery>, StoreError> {
    let rows = tx.query(MESSAGES, &[&mesh_id.as_uuid(), &seqs]).await?;
    rows.iter().map(|row| raw(row)?.checked()).collect()
}
