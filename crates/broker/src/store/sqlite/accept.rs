//! The accept transaction (mesh.md §7, B2 and B3). The writer runs one at a time, so items are
//! simply decided one after the other: an id that occurs twice in a batch finds its first row.

use std::sync::Arc;

use rusqlite::{OptionalExtension, named_params};
use semel_core::envelope::DestinationKind;
use semel_core::id::MeshId;
use semel_store::sqlite::Tx;
use semel_store::{StoreError, statements};
use uuid::Uuid;

use super::dedupe::{dedupe_insert_in_tx, held_in_tx};
use super::session::epoch_in_tx;
use super::{Key, SqliteStore, exists, key};
use crate::accept::{
    AcceptBatch, AcceptItem, Claim, Decision, Epoch, Standing, Target, Verdict, decide,
};
use crate::store::BatchDone;

statements! {
    SENDER_ACTIVE = "
        SELECT 1
          FROM member
         WHERE mesh_id = :mesh_id
           AND member_id = :member_id
           AND status = 'active'";

    TOPIC_OF = "
        SELECT 1
          FROM topic
         WHERE mesh_id = :mesh_id
           AND name = :name";

    SUBSCRIBED = "
        SELECT 1
          FROM topic_subscription
         WHERE mesh_id = :mesh_id
           AND topic = :name
           AND member_id = :member_id";

    SUBSCRIBERS = "
        SELECT member_id
          FROM topic_subscription
         WHERE mesh_id = :mesh_id
           AND topic = :name";

    MEMBER_BY_KEY = "
        SELECT member.member_id
          FROM member_key
          JOIN member ON member.mesh_id = member_key.mesh_id
                     AND member.member_id = member_key.member_id
         WHERE member_key.mesh_id = :mesh_id
           AND member_key.pubkey = :pubkey
           AND member_key.status IN ('current', 'rotated_out')
           AND member.status = 'active'";

    QUEUE_OF = "
        SELECT queue_id
          FROM queue
         WHERE mesh_id = :mesh_id
           AND name = :name";

    SEQ_TAKE = "
        UPDATE mesh
           SET next_seq = next_seq + 1
         WHERE mesh_id = :mesh_id
     RETURNING next_seq - 1";

    TOPIC_MESSAGE = "
        INSERT INTO topic_message (mesh_id, broker_message_id, sender_member_id,
                                   client_message_id, topic, reply_to_id, priority, meta, body,
                                   body_commitment, accepted_at)
        VALUES (:mesh_id, :broker_message_id, :sender, :client_message_id, :destination_ref,
                :reply_to_id, :priority, :meta, :body, :body_commitment, :now)";

    MESSAGE_QUEUE = "
        INSERT INTO message_queue (mesh_id, broker_message_id, sender_member_id,
                                   client_message_id, destination_kind, destination_ref,
                                   reply_to_id, priority, meta, body, body_commitment,
                                   accepted_at)
        VALUES (:mesh_id, :broker_message_id, :sender, :client_message_id, :destination_kind,
                :destination_ref, :reply_to_id, :priority, :meta, :body, :body_commitment, :now)";

    HISTORY = "
        INSERT INTO message_history (mesh_id, seq, broker_message_id, sender_member_id,
                                     destination_kind)
        VALUES (:mesh_id, :seq, :broker_message_id, :sender, :destination_kind)";

    DELIVERY = "
        INSERT INTO delivery_queue (mesh_id, recipient, seq, lease_until)
        VALUES (:mesh_id, :recipient, :seq, :lease_until)";

    MENTION = "
        INSERT INTO mention_index (mesh_id, member_id, seq)
        VALUES (:mesh_id, :member_id, :seq)
            ON CONFLICT DO NOTHING";
}

impl SqliteStore {
    pub(in crate::store) async fn accept(
        &self,
        batch: &Arc<AcceptBatch>,
    ) -> Result<BatchDone, StoreError> {
        let batch = Arc::clone(batch);
        self.sqlite.write(move |tx| accept_in_tx(tx, &batch)).await
    }
}

fn accept_in_tx(tx: &Tx<'_>, batch: &AcceptBatch) -> Result<BatchDone, StoreError> {
    let mut recipients = Vec::new();
    let mut verdicts = Vec::with_capacity(batch.items.len());
    for item in &batch.items {
        verdicts.push(item_in_tx(tx, batch, item, &mut recipients)?);
    }
    recipients.sort_unstable();
    recipients.dedup();
    Ok(BatchDone { verdicts, recipients })
}

fn item_in_tx(
    tx: &Tx<'_>,
    batch: &AcceptBatch,
    item: &AcceptItem,
    recipients: &mut Vec<Uuid>,
) -> Result<Verdict, StoreError> {
    let sender = item.session.member_id;
    let epoch = epoch_in_tx(tx, batch.mesh_id, &item.session)?;
    let held = match epoch {
        Epoch::Stale => None,
        Epoch::Current => held_in_tx(tx, batch.mesh_id, sender, &item.client_message_id)?,
    };
    let (claim, standing, target, to) = match &held {
        Some(held) => {
            let claim = Claim::held(held, &item.fingerprint);
            (claim, Standing::Active, Target::Ready, Vec::new())
        }
        None => {
            let by = named_params! {":mesh_id": key(batch.mesh_id), ":member_id": key(sender)};
            let active = exists(tx, SENDER_ACTIVE, by)?;
            let standing = if active { Standing::Active } else { Standing::Inactive };
            let (target, to) = target_in_tx(tx, batch.mesh_id, item)?;
            (Claim::Won, standing, target, to)
        }
    };
    match (decide(epoch, claim, standing, target), held) {
        (Decision::Accept, _) => {
            let history_id = effects_in_tx(tx, batch, item, &to)?;
            recipients.extend(to);
            let broker_message_id = item.broker_message_id;
            Ok(Verdict::Accepted { broker_message_id, history_id })
        }
        (Decision::Duplicate, Some(held)) => Ok(Verdict::Duplicate(held)),
        (Decision::Reused, Some(held)) => Ok(Verdict::Reused(held)),
        (Decision::Refuse(code), _) => Ok(Verdict::Refused(code)),
        (Decision::Close, _) => Ok(Verdict::Stale),
        (Decision::Duplicate | Decision::Reused, None) => Err(no_row(item)),
    }
}

/// The decision speaks of a row that was not read: a bug, and nothing may be written on it.
fn no_row(item: &AcceptItem) -> StoreError {
    StoreError::Corrupt {
        table: "client_message_dedupe",
        id: item.client_message_id.to_string(),
        what: "held, but not found".to_owned(),
    }
}

/// Whether the destination is there, and who gets the message.
fn target_in_tx(
    tx: &Tx<'_>,
    mesh_id: MeshId,
    item: &AcceptItem,
) -> Result<(Target, Vec<Uuid>), StoreError> {
    let (mesh, name) = (key(mesh_id), item.envelope.destination().reference());
    let named = named_params! {":mesh_id": mesh, ":name": name};
    let one = |sql: &str,
               by: &[(&str, &dyn rusqlite::ToSql)]|
     -> Result<Option<Uuid>, StoreError> {
        let found = tx.prepare_cached(sql)?.query_row(by, |row| row.get::<_, Key>(0)).optional()?;
        Ok(found.map(|key| key.0))
    };
    match item.envelope.destination().kind() {
        DestinationKind::Topic => {
            if !exists(tx, TOPIC_OF, named)? {
                return Ok((Target::NoTopic, Vec::new()));
            }
            let member = key(item.session.member_id);
            let by = named_params! {":mesh_id": mesh, ":name": name, ":member_id": member};
            if !exists(tx, SUBSCRIBED, by)? {
                return Ok((Target::NotSubscribed, Vec::new()));
            }
            let mut statement = tx.prepare_cached(SUBSCRIBERS)?;
            let rows = statement.query_map(named, |row| Ok(row.get::<_, Key>(0)?.0))?;
            Ok((Target::Ready, rows.collect::<Result<_, _>>()?))
        }
        DestinationKind::Dm => {
            let found = one(MEMBER_BY_KEY, named_params! {":mesh_id": mesh, ":pubkey": name})?;
            Ok(found.map_or((Target::NoRecipient, Vec::new()), |id| (Target::Ready, vec![id])))
        }
        DestinationKind::Queue => {
            let found = one(QUEUE_OF, named)?;
            Ok(found.map_or((Target::NoQueue, Vec::new()), |id| (Target::Ready, vec![id])))
        }
    }
}

/// The five effects of an accepted send; the history number comes last.
fn effects_in_tx(
    tx: &Tx<'_>,
    batch: &AcceptBatch,
    item: &AcceptItem,
    to: &[Uuid],
) -> Result<i64, StoreError> {
    dedupe_insert_in_tx(tx, batch, item)?;
    message_in_tx(tx, batch, item)?;
    let mesh = key(batch.mesh_id);
    let by = named_params! {":mesh_id": mesh};
    let seq: i64 = tx.prepare_cached(SEQ_TAKE)?.query_row(by, |row| row.get(0))?;
    tx.prepare_cached(HISTORY)?.execute(named_params! {
        ":mesh_id": mesh, ":seq": seq, ":broker_message_id": key(item.broker_message_id),
        ":sender": key(item.session.member_id),
        ":destination_kind": item.envelope.destination().kind().as_str(),
    })?;
    let mut delivery = tx.prepare_cached(DELIVERY)?;
    // Only a queue's deliveries can be leased.
    let lease_until = match item.envelope.destination().kind() {
        DestinationKind::Queue => Some(0),
        DestinationKind::Topic | DestinationKind::Dm => None,
    };
    for recipient in to {
        delivery.execute(named_params! {
            ":mesh_id": mesh, ":recipient": recipient.into_bytes(), ":seq": seq,
            ":lease_until": lease_until,
        })?;
    }
    for pubkey in &item.mentions {
        let by = named_params! {":mesh_id": mesh, ":pubkey": pubkey};
        let mut statement = tx.prepare_cached(MEMBER_BY_KEY)?;
        let found = statement.query_row(by, |row| row.get::<_, Key>(0)).optional()?;
        if let Some(member) = found {
            let member = member.0.into_bytes();
            tx.prepare_cached(MENTION)?
                .execute(named_params! {":mesh_id": mesh, ":member_id": member, ":seq": seq})?;
        }
    }
    Ok(seq)
}

fn message_in_tx(tx: &Tx<'_>, batch: &AcceptBatch, item: &AcceptItem) -> Result<(), StoreError> {
    let (envelope, destination) = (&item.envelope, item.envelope.destination());
    let (mesh, id) = (key(batch.mesh_id), key(item.broker_message_id));
    let (sender, kind) = (key(item.session.member_id), destination.kind().as_str());
    let (client_id, reference) = (item.client_message_id.as_str(), destination.reference());
    let (reply_to_id, priority) = (envelope.reply_to_id(), envelope.priority().rank());
    let (meta, body) = (envelope.meta().as_str(), envelope.body());
    let mut columns: Vec<(&str, &dyn rusqlite::ToSql)> = vec![
        (":mesh_id", &mesh),
        (":broker_message_id", &id),
        (":sender", &sender),
        (":client_message_id", &client_id),
        (":destination_ref", &reference),
        (":reply_to_id", &reply_to_id),
        (":priority", &priority),
        (":meta", &meta),
        (":body", &body),
        (":body_commitment", &item.body_commitment),
        (":now", &batch.now.0),
    ];
    let sql = match destination.kind() {
        DestinationKind::Topic => TOPIC_MESSAGE,
        DestinationKind::Dm | DestinationKind::Queue => {
            columns.push((":destination_kind", &kind));
            MESSAGE_QUEUE
        }
    };
    tx.prepare_cached(sql)?.execute(columns.as_slice())?;
    Ok(())
}
