//! The accept transaction (mesh.md §7, B2 and B3): a constant number of statements, whatever the
//! size of the batch.
//!
//! Differs from sqlite: other brokers write at the same time. So the session rows are locked
//! first and held to the end; ids are claimed by inserting in key order, and those that were not
//! claimed are read by a *new* statement (one with both would see neither row in a race); the
//! mesh's counter comes last, in one round trip with what is keyed by it and COMMIT, so that
//! history numbers are given in the order of commits and nobody waits for the counter for long.
//!
//! Two round trips: BEGIN with the locks, the claims and the questions; then, once their answers
//! were read, the effects with COMMIT. Tables are looked up row by row (`LATERAL`): a plan that was
//! made while a table was small must not read a mesh's whole history once it is large.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use semel_core::clock::UnixMs;
use semel_core::envelope::DestinationKind;
use semel_core::id::MeshId;
use semel_store::postgres::{Asked, Transaction};
use semel_store::{StoreError, statements};
use tokio_postgres::Row;
use uuid::Uuid;

use super::PostgresStore;
use super::dedupe::held_in_tx;
use crate::accept::{
    AcceptBatch, AcceptItem, Claim, Decision, Epoch, Held, Session, Standing, Target, Verdict,
    decide,
};
use crate::limits::CLAIM_ROUNDS_MAX;
use crate::store::BatchDone;

statements! {
    SESSIONS = "
        SELECT asked.member_id, asked.instance_id, held.session_epoch
          FROM unnest($2::uuid[], $3::uuid[]) AS asked (member_id, instance_id),
               LATERAL (SELECT session.session_epoch
                          FROM mesh.session
                         WHERE session.mesh_id = $1
                           AND session.member_id = asked.member_id
                           AND session.instance_id = asked.instance_id
                           FOR SHARE) AS held";

    /// Sent before BEGIN was answered: an id that was claimed outside of the transaction would stay
    /// claimed without its message.
    CLAIM = "
        INSERT INTO mesh.client_message_dedupe (mesh_id, sender_member_id, client_message_id,
                                                broker_message_id, request_fingerprint,
                                                destination_kind, destination_ref,
                                                first_seen_at, expires_at)
        SELECT $1, new.sender, new.id, new.message, new.fingerprint, new.kind, new.reference,
               $8, $9
          FROM unnest($2::uuid[], $3::text[], $4::uuid[], $5::bytea[], $6::text[], $7::text[])
               AS new (sender, id, message, fingerprint, kind, reference)
         WHERE current_setting('semel.tx', true) = 'on'
         ORDER BY new.sender, new.id
            ON CONFLICT DO NOTHING
     RETURNING broker_message_id";

    /// Ids of messages that do not exist; not those that somebody else has taken over meanwhile.
    TAKE_OVER = "
        -- Differs from sqlite: the mesh comes with the rows, or a plan may read all of it.
        UPDATE mesh.client_message_dedupe AS dedupe
           SET broker_message_id = new.message, first_seen_at = $6, expires_at = $7
          FROM (SELECT $1::uuid, asked.sender, asked.id, asked.orphan, asked.message
                  FROM unnest($2::uuid[], $3::text[], $4::uuid[], $5::uuid[])
                       AS asked (sender, id, orphan, message)
                OFFSET 0) AS new (mesh_id, sender, id, orphan, message)
         WHERE dedupe.mesh_id = new.mesh_id
           AND dedupe.sender_member_id = new.sender
           AND dedupe.client_message_id = new.id
           AND dedupe.broker_message_id = new.orphan
     RETURNING dedupe.broker_message_id";

    SENDERS = "
        SELECT active.member_id
          FROM unnest($2::uuid[]) AS asked (member_id),
               LATERAL (SELECT member.member_id
                          FROM mesh.member
                         WHERE member.mesh_id = $1
                           AND member.member_id = asked.member_id
                           AND member.status = 'active'
                         LIMIT 1) AS active";

    /// A queue is held to the end, so that it is not deleted before its work is in it.
    TARGETS = "
        SELECT asked.number::bigint,
               (SELECT 1
                  FROM mesh.topic
                 WHERE asked.kind = 'topic'
                   AND topic.mesh_id = $1
                   AND topic.name = asked.reference
                 LIMIT 1) IS NOT NULL,
               (SELECT 1
                  FROM mesh.topic_subscription AS subscription
                 WHERE asked.kind = 'topic'
                   AND subscription.mesh_id = $1
                   AND subscription.topic = asked.reference
                   AND subscription.member_id = asked.sender
                 LIMIT 1) IS NOT NULL,
               (SELECT recipient.member_id
                  FROM mesh.member_key AS named,
                       LATERAL (SELECT member.member_id
                                  FROM mesh.member
                                 WHERE member.mesh_id = $1
                                   AND member.member_id = named.member_id
                                   AND member.status = 'active'
                                 LIMIT 1) AS recipient
                 WHERE asked.kind = 'dm'
                   AND named.mesh_id = $1
                   AND named.pubkey = asked.reference
                   AND named.status IN ('current', 'rotated_out')),
               (SELECT queue.queue_id
                  FROM mesh.queue
                 WHERE asked.kind = 'queue'
                   AND queue.mesh_id = $1
                   AND queue.name = asked.reference
                   FOR KEY SHARE)
          FROM unnest($2::text[], $3::text[], $4::uuid[])
               WITH ORDINALITY AS asked (kind, reference, sender, number)";

    TAKE_BACK = "
        DELETE FROM mesh.client_message_dedupe
         WHERE ctid = ANY (ARRAY (
               SELECT claimed.ctid
                 FROM unnest($2::uuid[], $3::text[]) AS asked (sender, id),
                      LATERAL (SELECT dedupe.ctid
                                 FROM mesh.client_message_dedupe AS dedupe
                                WHERE dedupe.mesh_id = $1
                                  AND dedupe.sender_member_id = asked.sender
                                  AND dedupe.client_message_id = asked.id
                                LIMIT 1) AS claimed))";

    TOPIC_MESSAGES = "
        INSERT INTO mesh.topic_message (mesh_id, broker_message_id, sender_member_id,
                                        client_message_id, topic, reply_to_id, priority, meta,
                                        body, body_commitment, accepted_at,
                                        request_fingerprint)
        SELECT $1, new.message, new.sender, new.id, new.reference, new.reply_to, new.priority,
               new.meta, new.body, new.commitment, $12, new.fingerprint
          FROM unnest($2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[],
                      $8::smallint[], $9::text[], $10::bytea[], $11::bytea[], $13::bytea[])
               AS new (message, sender, id, kind, reference, reply_to, priority, meta, body,
                       commitment, fingerprint)
         WHERE new.kind = 'topic'";

    DIRECT_MESSAGES = "
        INSERT INTO mesh.message_queue (mesh_id, broker_message_id, sender_member_id,
                                        client_message_id, destination_kind, destination_ref,
                                        reply_to_id, priority, meta, body, body_commitment,
                                        accepted_at, request_fingerprint)
        SELECT $1, new.message, new.sender, new.id, new.kind, new.reference, new.reply_to,
               new.priority, new.meta, new.body, new.commitment, $12, new.fingerprint
          FROM unnest($2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[],
                      $8::smallint[], $9::text[], $10::bytea[], $11::bytea[], $13::bytea[])
               AS new (message, sender, id, kind, reference, reply_to, priority, meta, body,
                       commitment, fingerprint)
         WHERE new.kind <> 'topic'";

    /// The counter and everything that is keyed by it.
    NUMBERED = "
        WITH counter AS (
            UPDATE mesh.mesh
               SET next_seq = next_seq + $2
             WHERE mesh_id = $1
         RETURNING next_seq - $2 AS first
        ), accepted AS (
            SELECT counter.first + new.number - 1 AS seq, new.message, new.sender, new.kind,
                   new.reference, new.recipient
              FROM counter,
                   unnest($3::uuid[], $4::uuid[], $5::text[], $6::text[], $7::uuid[])
                   WITH ORDINALITY
                   AS new (message, sender, kind, reference, recipient, number)
        ), history AS (
            INSERT INTO mesh.message_history (mesh_id, seq, broker_message_id,
                                              sender_member_id, destination_kind)
            SELECT $1, seq, message, sender, kind
              FROM accepted
        ), mentions AS (
            INSERT INTO mesh.mention_index (mesh_id, member_id, seq)
            SELECT DISTINCT $1::uuid, named.member_id, accepted.seq
              FROM unnest($8::uuid[], $9::text[]) AS mention (message, pubkey)
              JOIN accepted ON accepted.message = mention.message,
                   LATERAL (SELECT member_key.member_id
                              FROM mesh.member_key
                             WHERE member_key.mesh_id = $1
                               AND member_key.pubkey = mention.pubkey
                               AND member_key.status IN ('current', 'rotated_out')
                             LIMIT 1) AS named,
                   LATERAL (SELECT 1
                              FROM mesh.member
                             WHERE member.mesh_id = $1
                               AND member.member_id = named.member_id
                               AND member.status = 'active'
                             LIMIT 1) AS mentioned
        ), deliveries AS (
            INSERT INTO mesh.delivery_queue (mesh_id, recipient, seq, lease_until)
            SELECT $1, recipient, seq, CASE kind WHEN 'queue' THEN 0 END
              FROM accepted
             WHERE kind <> 'topic'
             UNION ALL
            SELECT $1, subscription.member_id, accepted.seq, NULL
              FROM accepted,
                   LATERAL (SELECT member_id
                              FROM mesh.topic_subscription
                             WHERE topic_subscription.mesh_id = $1
                               AND topic_subscription.topic = accepted.reference
                            OFFSET 0) AS subscription
             WHERE accepted.kind = 'topic'
         RETURNING recipient
        )
        SELECT (SELECT first FROM counter), ARRAY (SELECT DISTINCT recipient FROM deliveries)";
}

impl PostgresStore {
    pub(in crate::store) async fn accept(
        &self,
        batch: &Arc<AcceptBatch>,
    ) -> Result<BatchDone, StoreError> {
        let repeated = first_repeated(&batch.items);
        let (now, later) = batch.items.split_at(repeated);
        if later.is_empty() {
            return self.accept_distinct(batch).await;
        }
        let part = |items: &[AcceptItem]| {
            Arc::new(AcceptBatch { items: items.to_vec(), ..(**batch).clone() })
        };
        let mut done = self.accept_distinct(&part(now)).await?;
        // What came before is committed: whatever the rest failed of, the whole was not undone.
        let rest = Box::pin(self.accept(&part(later)))
            .await
            .map_err(|error| StoreError::Uncertain { cause: error.chain().into() })?;
        done.verdicts.extend(rest.verdicts);
        done.recipients.extend(rest.recipients);
        Ok(done)
    }

    /// Runs the transaction until it is decided: again when a claim lost to a row that vanished,
    /// and again after a COMMIT without an answer, when the claim finds what that one left.
    async fn accept_distinct(&self, batch: &AcceptBatch) -> Result<BatchDone, StoreError> {
        let mut uncertain = None;
        for _ in 0..CLAIM_ROUNDS_MAX {
            match self.postgres.retry(|| self.accept_once(batch)).await {
                Ok(Some(done)) => return Ok(done),
                Ok(None) => {}
                Err(error @ StoreError::Uncertain { .. }) => uncertain = Some(error),
                // Nothing definite may be said of a batch that may have been committed.
                Err(error) => return Err(uncertain.unwrap_or(error)),
            }
        }
        Err(uncertain.unwrap_or(StoreError::Contended { runs: CLAIM_ROUNDS_MAX }))
    }

    /// `None` when a claim was lost to a row that is not there any more.
    async fn accept_once(&self, batch: &AcceptBatch) -> Result<Option<BatchDone>, StoreError> {
        let (tx, facts) = self.claim_and_read(batch).await?;
        let Some(decided) = facts.decide(batch) else { return Ok(None) };
        let accepted: Vec<usize> = (0..decided.len()).filter(|n| decided[*n].is_none()).collect();
        if accepted.is_empty() {
            // Dropping the transaction takes back whatever was claimed.
            let verdicts = decided.into_iter().flatten().collect();
            return Ok(Some(BatchDone { verdicts, recipients: Vec::new(), fresh: Vec::new() }));
        }
        let refused = facts.claimed.iter().filter(|n| decided[**n].is_some());
        let refused: Vec<&AcceptItem> = refused.map(|n| &batch.items[*n]).collect();
        let items: Vec<(&AcceptItem, Option<Uuid>)> =
            accepted.iter().map(|n| (&batch.items[*n], facts.targets[*n].1)).collect();
        let (first_seq, recipients) = effects_and_commit(tx, batch, &refused, &items).await?;
        let mut numbers = first_seq..;
        let verdicts = decided.into_iter().enumerate().map(|(n, verdict)| {
            verdict.unwrap_or_else(|| Verdict::Accepted {
                broker_message_id: batch.items[n].broker_message_id,
                history_id: numbers.next().unwrap_or(first_seq),
            })
        });
        Ok(Some(BatchDone { verdicts: verdicts.collect(), recipients, fresh: Vec::new() }))
    }

    /// The first round trip: BEGIN, the sessions' locks, the claims, and what is to be known.
    async fn claim_and_read(
        &self,
        batch: &AcceptBatch,
    ) -> Result<(Transaction, Facts), StoreError> {
        let mesh = batch.mesh_id.as_uuid();
        let items = &batch.items;
        let senders: Vec<Uuid> = items.iter().map(sender).collect();
        let ids: Vec<&str> = items.iter().map(|i| i.client_message_id.as_str()).collect();
        let messages: Vec<Uuid> = items.iter().map(|i| i.broker_message_id.as_uuid()).collect();
        let prints: Vec<&[u8]> = items.iter().map(|i| i.fingerprint.0.as_slice()).collect();
        let kinds: Vec<&str> = items.iter().map(|item| destination(item).0).collect();
        let names: Vec<&str> = items.iter().map(|item| destination(item).1).collect();
        let expires_at: Option<i64> = batch.expires_at.map(|UnixMs(at)| at);
        let asked = Questions::of(items);
        #[rustfmt::skip]
        let claims: super::Parameters<'_> = &[
            &mesh, &senders, &ids, &messages, &prints, &kinds, &names, &batch.now.0, &expires_at,
        ];
        // The sessions' locks come first.
        let (tx, rows) = self
            .postgres
            .begin_with(&[
                (SESSIONS, &[&mesh, &asked.members, &asked.instances]),
                (CLAIM, claims),
                (SENDERS, &[&mesh, &asked.members]),
                (TARGETS, &[&mesh, &asked.kinds, &asked.names, &asked.senders]),
            ])
            .await?;
        let [sessions, claims, active, targets] = &rows[..] else { return Err(unanswered()) };
        let won: HashSet<Uuid> = column(claims, 0)?;
        let mut claimed: HashSet<usize> =
            (0..items.len()).filter(|n| won.contains(&messages[*n])).collect();
        let lost = (0..items.len()).filter(|n| !claimed.contains(n));
        let lost: Vec<(Uuid, &str)> = lost.map(|n| (senders[n], ids[n])).collect();
        let mut held = HashMap::new();
        if !lost.is_empty() {
            held = held_in_tx(&tx, batch.mesh_id, &lost).await?;
            claimed.extend(take_over_in_tx(&tx, batch, &mut held).await?);
        }
        let epochs = sessions
            .iter()
            .map(|row| Ok(((row.try_get(0)?, row.try_get(1)?), row.try_get(2)?)))
            .collect::<Result<_, StoreError>>()?;
        let targets = asked.answered(targets)?;
        Ok((tx, Facts { epochs, claimed, held, active: column(active, 0)?, targets }))
    }
}

/// Takes over what is held for messages that do not exist, for those who send them again; gives
/// their places. An orphan that was lost to somebody else is not held as far as we know.
async fn take_over_in_tx(
    tx: &Transaction,
    batch: &AcceptBatch,
    held: &mut HashMap<(Uuid, String), Held>,
) -> Result<Vec<usize>, StoreError> {
    let (mut senders, mut ids, mut orphans) = (Vec::new(), Vec::new(), Vec::new());
    let (mut messages, mut places) = (Vec::new(), Vec::new());
    for (n, item) in batch.items.iter().enumerate() {
        let key = (sender(item), item.client_message_id.to_string());
        let orphan = held.get(&key).filter(|held| held.is_orphan());
        if let Some(orphan) = orphan
            && Claim::held(orphan, &item.fingerprint) == Claim::HeldMatch
        {
            orphans.push(orphan.broker_message_id.as_uuid());
            messages.push(item.broker_message_id.as_uuid());
            places.push(n);
            held.remove(&key);
            senders.push(key.0);
            ids.push(key.1);
        }
    }
    if places.is_empty() {
        return Ok(places);
    }
    tracing::warn!(mesh_id = %batch.mesh_id, ?ids, "ids without their messages are sent again");
    let expires_at = batch.expires_at.map(|UnixMs(at)| at);
    let mesh = batch.mesh_id.as_uuid();
    #[rustfmt::skip]
    let by: super::Parameters<'_> = &[
        &mesh, &senders, &ids, &orphans, &messages, &batch.now.0, &expires_at,
    ];
    let taken: HashSet<Uuid> = column(&tx.query(TAKE_OVER, by).await?, 0)?;
    places.retain(|n| taken.contains(&batch.items[*n].broker_message_id.as_uuid()));
    Ok(places)
}

fn sender(item: &AcceptItem) -> Uuid {
    item.session.member_id.as_uuid()
}

fn destination(item: &AcceptItem) -> (&'static str, &str) {
    let destination = item.envelope.destination();
    (destination.kind().as_str(), destination.reference())
}

fn unanswered() -> StoreError {
    StoreError::RolledBack { cause: "a statement was not answered".into() }
}

/// What a batch asks of the other tables, each thing once: most batches have few senders and few
/// destinations.
struct Questions<'a> {
    /// In the order of their keys, in which their sessions are locked.
    members: Vec<Uuid>,
    instances: Vec<Uuid>,
    kinds: Vec<&'a str>,
    names: Vec<&'a str>,
    senders: Vec<Uuid>,
    /// Which of the destinations each item has.
    of_item: Vec<usize>,
}

impl<'a> Questions<'a> {
    fn of(items: &'a [AcceptItem]) -> Self {
        let session = |item: &AcceptItem| (sender(item), item.session.instance_id.as_uuid());
        let sessions: BTreeSet<(Uuid, Uuid)> = items.iter().map(session).collect();
        let (members, instances) = sessions.into_iter().unzip();
        let mut numbers = HashMap::new();
        let (mut kinds, mut names, mut senders) = (Vec::new(), Vec::new(), Vec::new());
        let of_item = items.iter().map(|item| {
            let (kind, name) = destination(item);
            *numbers.entry((kind, name, sender(item))).or_insert_with(|| {
                kinds.push(kind);
                names.push(name);
                senders.push(sender(item));
                kinds.len() - 1
            })
        });
        let of_item = of_item.collect();
        Self { members, instances, kinds, names, senders, of_item }
    }

    /// The answers of `TARGETS`, by item.
    fn answered(&self, rows: &[Row]) -> Result<Vec<(Target, Option<Uuid>)>, StoreError> {
        let mut answers = vec![None; self.kinds.len()];
        for row in rows {
            let number: i64 = row.try_get(0)?;
            let n = usize::try_from(number - 1).unwrap_or(usize::MAX);
            let (Some(kind), Some(answer)) = (self.kinds.get(n), answers.get_mut(n)) else {
                continue;
            };
            *answer = Some(target(kind, row)?);
        }
        let of_item = self.of_item.iter();
        of_item.map(|n| answers.get(*n).copied().flatten().ok_or_else(unanswered)).collect()
    }
}

fn target(kind: &str, row: &Row) -> Result<(Target, Option<Uuid>), StoreError> {
    let (topic, subscribed): (bool, bool) = (row.try_get(1)?, row.try_get(2)?);
    let (member, queue): (Option<Uuid>, Option<Uuid>) = (row.try_get(3)?, row.try_get(4)?);
    let kind = DestinationKind::parse(kind).ok_or_else(unanswered)?;
    Ok(match (kind, topic, subscribed, member, queue) {
        (DestinationKind::Topic, false, _, _, _) => (Target::NoTopic, None),
        (DestinationKind::Topic, true, false, _, _) => (Target::NotSubscribed, None),
        (DestinationKind::Topic, true, true, _, _) => (Target::Ready, None),
        (DestinationKind::Dm, _, _, None, _) => (Target::NoRecipient, None),
        (DestinationKind::Dm, _, _, member, _) => (Target::Ready, member),
        (DestinationKind::Queue, _, _, _, None) => (Target::NoQueue, None),
        (DestinationKind::Queue, _, _, _, queue) => (Target::Ready, queue),
    })
}

/// What was read inside the transaction, by item.
struct Facts {
    epochs: HashMap<(Uuid, Uuid), i64>,
    /// Items whose claim was inserted.
    claimed: HashSet<usize>,
    held: HashMap<(Uuid, String), Held>,
    active: HashSet<Uuid>,
    targets: Vec<(Target, Option<Uuid>)>,
}

impl Facts {
    /// A verdict per item, `None` where it is accepted; nothing at all when a claim was lost to
    /// nobody: the other side rolled back, or a sweep was there.
    fn decide(&self, batch: &AcceptBatch) -> Option<Vec<Option<Verdict>>> {
        batch.items.iter().enumerate().map(|(n, item)| self.decide_one(n, item)).collect()
    }

    fn decide_one(&self, n: usize, item: &AcceptItem) -> Option<Option<Verdict>> {
        let session = &item.session;
        let (sender, instance) = (session.member_id.as_uuid(), session.instance_id.as_uuid());
        let current = self.epochs.get(&(sender, instance)) == Some(&session.epoch);
        let epoch = if current { Epoch::Current } else { Epoch::Stale };
        let active = self.active.contains(&sender);
        let standing = if active { Standing::Active } else { Standing::Inactive };
        let held = self.held.get(&(sender, item.client_message_id.to_string()));
        let claim = match (self.claimed.contains(&n), held) {
            (true, _) => Claim::Won,
            (false, Some(held)) => Claim::held(held, &item.fingerprint),
            (false, None) => return None,
        };
        let decision = decide(epoch, claim, standing, self.targets[n].0);
        Some(match (decision, held) {
            (Decision::Accept, _) => None,
            (Decision::Close, _) => Some(Verdict::Stale),
            (Decision::Refuse(code), _) => Some(Verdict::Refused(code)),
            (Decision::Duplicate, Some(held)) => Some(duplicate(item, held)),
            (Decision::Reused, Some(held)) => Some(Verdict::Reused(held.clone())),
            (Decision::Duplicate | Decision::Reused, None) => return None,
        })
    }
}

/// A row that carries this very item's message id is what an earlier run of it left behind.
fn duplicate(item: &AcceptItem, held: &Held) -> Verdict {
    match held.history_id {
        Some(history_id) if held.broker_message_id == item.broker_message_id => {
            Verdict::Accepted { broker_message_id: held.broker_message_id, history_id }
        }
        Some(_) | None => Verdict::Duplicate(held.clone()),
    }
}

fn column<T>(rows: &[Row], number: usize) -> Result<HashSet<T>, StoreError>
where
    T: for<'a> tokio_postgres::types::FromSql<'a> + std::hash::Hash + Eq,
{
    rows.iter().map(|row| Ok(row.try_get(number)?)).collect()
}

/// The last round trip: refused claims are taken back, the messages, then what is numbered, and
/// COMMIT. Gives the first history number of the batch, and who has something new.
async fn effects_and_commit(
    tx: Transaction,
    batch: &AcceptBatch,
    refused: &[&AcceptItem],
    items: &[(&AcceptItem, Option<Uuid>)],
) -> Result<(i64, Vec<Uuid>), StoreError> {
    let mesh = batch.mesh_id.as_uuid();
    let back: Vec<Uuid> = refused.iter().map(|item| sender(item)).collect();
    let back_ids: Vec<&str> = refused.iter().map(|i| i.client_message_id.as_str()).collect();
    let messages: Vec<Uuid> = items.iter().map(|(i, _)| i.broker_message_id.as_uuid()).collect();
    let senders: Vec<Uuid> = items.iter().map(|(item, _)| sender(item)).collect();
    let ids: Vec<&str> = items.iter().map(|(i, _)| i.client_message_id.as_str()).collect();
    let envelopes = || items.iter().map(|(item, _)| &item.envelope);
    let kinds: Vec<&str> = items.iter().map(|(item, _)| destination(item).0).collect();
    let names: Vec<&str> = items.iter().map(|(item, _)| destination(item).1).collect();
    let replies: Vec<Option<&str>> = envelopes().map(|e| e.reply_to_id()).collect();
    let priorities: Vec<i16> =
        envelopes().map(|e| i16::try_from(e.priority().rank()).unwrap_or(i16::MAX)).collect();
    let metas: Vec<&str> = envelopes().map(|e| e.meta().as_str()).collect();
    let bodies: Vec<&[u8]> = envelopes().map(|e| e.body()).collect();
    let commitments: Vec<Option<&[u8]>> =
        items.iter().map(|(i, _)| i.body_commitment.as_ref().map(<[u8; 32]>::as_slice)).collect();
    let fingerprints: Vec<&[u8]> = items.iter().map(|(i, _)| &i.fingerprint.0[..]).collect();
    let recipients: Vec<Option<Uuid>> = items.iter().map(|(_, recipient)| *recipient).collect();
    let mentions = || items.iter().flat_map(|(i, _)| i.mentions.iter().map(move |key| (i, key)));
    let mentioning: Vec<Uuid> = mentions().map(|(i, _)| i.broker_message_id.as_uuid()).collect();
    let mentioned: Vec<&str> = mentions().map(|(_, pubkey)| pubkey.as_str()).collect();
    let count = i64::try_from(items.len()).unwrap_or(i64::MAX);
    #[rustfmt::skip]
    let columns: super::Parameters<'_> = &[
        &mesh, &messages, &senders, &ids, &kinds, &names, &replies, &priorities, &metas, &bodies,
        &commitments, &batch.now.0, &fingerprints,
    ];
    #[rustfmt::skip]
    let numbered: super::Parameters<'_> = &[
        &mesh, &count, &messages, &senders, &kinds, &names, &recipients, &mentioning, &mentioned,
    ];
    let taken_back: super::Parameters<'_> = &[&mesh, &back, &back_ids];
    let is_topic = |kind: &&str| *kind == DestinationKind::Topic.as_str();
    let asked = [
        (!refused.is_empty()).then_some((TAKE_BACK, taken_back)),
        kinds.iter().any(is_topic).then_some((TOPIC_MESSAGES, columns)),
        kinds.iter().any(|kind| !is_topic(kind)).then_some((DIRECT_MESSAGES, columns)),
        Some((NUMBERED, numbered)),
    ];
    let asked: Vec<Asked<'_>> = asked.into_iter().flatten().collect();
    let rows = tx.commit_with(&asked).await?;
    let corrupt = || StoreError::Corrupt {
        table: "mesh",
        id: batch.mesh_id.to_string(),
        what: "the mesh has no counter".to_owned(),
    };
    let row = rows.last().and_then(|rows| rows.first()).ok_or_else(corrupt)?;
    let first: Option<i64> = row.try_get(0)?;
    Ok((first.ok_or_else(corrupt)?, row.try_get(1)?))
}

/// Where an id occurs for the second time. It is answered from its first occurrence, and what comes
/// after it must not overtake it, so the batch is cut there.
fn first_repeated(items: &[AcceptItem]) -> usize {
    let mut seen = HashSet::new();
    let mut keys = items.iter().map(|item| (item.session.member_id, &item.client_message_id));
    keys.position(|key| !seen.insert(key)).unwrap_or(items.len())
}

/// Whether the session is its daemon's current one; its row is locked until the transaction ends.
pub(super) async fn is_current_in_tx(
    tx: &Transaction,
    mesh_id: MeshId,
    session: &Session,
) -> Result<bool, StoreError> {
    let (members, instances) =
        (vec![session.member_id.as_uuid()], vec![session.instance_id.as_uuid()]);
    let row = tx.query_opt(SESSIONS, &[&mesh_id.as_uuid(), &members, &instances]).await?;
    let epoch: Option<i64> = row.map(|row| row.try_get(2)).transpose()?;
    Ok(epoch == Some(session.epoch))
}
