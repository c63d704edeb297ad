//! The accept transaction (mesh.md §7, B2 and B3). The writer runs one at a time, so items are
//! simply decided one after the other: an id that occurs twice in a batch finds its first row.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rusqlite::{CachedStatement, OptionalExtension, Row, named_params, params};
use semel_core::envelope::{Destination, DestinationKind};
use semel_core::id::{MemberId, MeshId};
use semel_store::sqlite::{Sequence, Tx};
use semel_store::{StoreError, statements};
use uuid::Uuid;

use super::dedupe::{claim_in_tx, claiming, held_in_tx, unclaim_in_tx};
use super::session::epoch_in_tx;
use super::topic::audience_in_tx;
use super::{Key, SqliteStore, exists, key, store_epoch_in_tx};
use crate::accept::{
    AcceptBatch, AcceptItem, Claim, Decision, Door, Epoch, Held, Session, Standing, Target,
    Verdict, decide,
};
use crate::store::{Audience, BatchDone, Fresh, Next, Sender};

statements! {
    SENDER_ACTIVE = "
        SELECT member.name, member_key.pubkey
          FROM member
          LEFT JOIN member_key ON member_key.mesh_id = member.mesh_id
                              AND member_key.member_id = member.member_id
                              AND member_key.status <> 'rotated_out'
         WHERE member.mesh_id = :mesh_id
           AND member.member_id = :member_id
           AND member.status = 'active'";

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
        SELECT subscription.member_id, recipient.no
          FROM topic_subscription AS subscription
          LEFT JOIN recipient ON recipient.mesh_id = subscription.mesh_id
                             AND recipient.id = subscription.member_id
         WHERE subscription.mesh_id = :mesh_id
           AND subscription.topic = :name";

    MEMBER_BY_KEY = "
        SELECT member.member_id, recipient.no
          FROM member_key
          JOIN member ON member.mesh_id = member_key.mesh_id
                     AND member.member_id = member_key.member_id
          LEFT JOIN recipient ON recipient.mesh_id = member.mesh_id
                             AND recipient.id = member.member_id
         WHERE member_key.mesh_id = :mesh_id
           AND member_key.pubkey = :pubkey
           AND member_key.status IN ('current', 'rotated_out')
           AND member.status = 'active'";

    QUEUE_OF = "
        SELECT queue.queue_id, recipient.no
          FROM queue
          LEFT JOIN recipient ON recipient.mesh_id = queue.mesh_id
                             AND recipient.id = queue.queue_id
         WHERE queue.mesh_id = :mesh_id
           AND queue.name = :name";

    /// One that nothing was sent to before.
    RECIPIENT = "
        INSERT INTO recipient (mesh_id, id)
        VALUES (?1, ?2)
     RETURNING no";

    SEQ_NEXT = "
        SELECT next_seq
          FROM mesh
         WHERE mesh_id = ?1";

    SEQ_TAKEN = "
        UPDATE mesh
           SET next_seq = ?2
         WHERE mesh_id = ?1";

    TOPIC_MESSAGE = "
        INSERT INTO topic_message (mesh_id, broker_message_id, sender_member_id,
                                   client_message_id, topic, reply_to_id, priority, meta, body,
                                   body_commitment, accepted_at, seq, request_fingerprint)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)";

    MESSAGE_QUEUE = "
        INSERT INTO message_queue (mesh_id, broker_message_id, sender_member_id,
                                   client_message_id, destination_ref, reply_to_id, priority,
                                   meta, body, body_commitment, accepted_at, seq,
                                   request_fingerprint, destination_kind)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)";

    /// Of all messages from this one on.
    TOPIC_HISTORY = "
        INSERT INTO message_history (mesh_id, seq, broker_message_id, sender_member_id,
                                     destination_kind)
        SELECT mesh_id, seq, broker_message_id, sender_member_id, 'topic'
          FROM topic_message
         WHERE rowid >= ?1
         ORDER BY rowid";

    QUEUE_HISTORY = "
        INSERT INTO message_history (mesh_id, seq, broker_message_id, sender_member_id,
                                     destination_kind)
        SELECT mesh_id, seq, broker_message_id, sender_member_id, destination_kind
          FROM message_queue
         WHERE rowid >= ?1
         ORDER BY rowid";

    DELIVERY = "
        INSERT INTO delivery_queue (recipient, seq, lease_until)
        VALUES (?1, ?2, ?3)";

    MENTION = "
        INSERT INTO mention_index (mesh_id, member_id, seq)
        VALUES (?1, ?2, ?3)
            ON CONFLICT DO NOTHING";
}

impl SqliteStore {
    pub(in crate::store) async fn accept(
        &self,
        batch: &Arc<AcceptBatch>,
    ) -> Result<BatchDone, StoreError> {
        let batch = Arc::clone(batch);
        self.sqlite.write_for(batch.items.len(), move |tx| accept_in_tx(tx, &batch, None)).await
    }

    pub(in crate::store) async fn accept_next(
        &self,
        before: &Arc<Sequence>,
        about: usize,
        take: impl FnOnce(&mut Audience<'_>) -> Option<Next> + Send + 'static,
    ) -> Result<BatchDone, StoreError> {
        let (mut take, mut next) = (Some(take), None);
        let write = move |tx: &Tx<'_>| {
            // A transaction that is run again is the same batch.
            if let Some(take) = take.take() {
                // What cannot be counted cannot be accepted either.
                next = take(&mut |mesh_id, topic| audience_in_tx(tx, mesh_id, topic).ok());
            }
            let Some(Next { batch, door, is_ahead }) = &mut next else {
                return Ok(BatchDone::default());
            };
            if *is_ahead {
                tx.commit_next();
            }
            accept_in_tx(tx, batch, door.as_deref_mut())
        };
        self.sqlite.write_behind(before, about, write).await
    }
}

fn accept_in_tx(
    tx: &Tx<'_>,
    batch: &AcceptBatch,
    door: Option<&mut (dyn Door + 'static)>,
) -> Result<BatchDone, StoreError> {
    if let Some(door) = &door
        && !door.goes_on(&store_epoch_in_tx(tx)?)
    {
        // What another life of the store knows says nothing about this one's sends.
        let verdicts = vec![Verdict::Stale; batch.items.len()];
        return Ok(BatchDone { verdicts, ..BatchDone::default() });
    }
    let mesh = key(batch.mesh_id);
    let first_seq: i64 = tx.prepare_cached(SEQ_NEXT)?.query_row([mesh], |row| row.get(0))?;
    let mut run = Run {
        tx,
        batch,
        door,
        mesh,
        next_seq: first_seq,
        epochs: HashMap::new(),
        senders: HashMap::new(),
        targets: HashMap::new(),
        recipients: HashSet::new(),
        fresh: Vec::with_capacity(batch.items.len()),
        claiming: claiming(tx)?,
        messages: [tx.prepare_cached(TOPIC_MESSAGE)?, tx.prepare_cached(MESSAGE_QUEUE)?],
        first: [None, None],
        delivery: tx.prepare_cached(DELIVERY)?,
    };
    let items = batch.items.iter().enumerate();
    let verdicts = items.map(|(index, item)| run.item(index, item)).collect::<Result<_, _>>()?;
    for (first, sql) in run.first.into_iter().zip([TOPIC_HISTORY, QUEUE_HISTORY]) {
        if let Some(first) = first {
            tx.prepare_cached(sql)?.execute([first])?;
        }
    }
    if run.next_seq > first_seq {
        tx.prepare_cached(SEQ_TAKEN)?.execute(params![mesh, run.next_seq])?;
    }
    let mut recipients: Vec<Uuid> = run.recipients.into_iter().collect();
    recipients.sort_unstable();
    Ok(BatchDone { verdicts, recipients, fresh: run.fresh })
}

/// Whether a destination is there, and who gets what is sent to it.
#[derive(Clone)]
struct Found {
    target: Target,
    to: Arc<[Uuid]>,
    /// Theirs in the rows of deliveries.
    numbers: Arc<[i64]>,
}

/// One batch. Nobody else writes meanwhile, so what was read once holds to its end.
struct Run<'a> {
    tx: &'a Tx<'a>,
    batch: &'a AcceptBatch,
    door: Option<&'a mut (dyn Door + 'static)>,
    mesh: [u8; 16],
    next_seq: i64,
    epochs: HashMap<Session, Epoch>,
    /// Those who may send.
    senders: HashMap<MemberId, Option<Arc<Sender>>>,
    targets: HashMap<(MemberId, &'a Destination), Found>,
    recipients: HashSet<Uuid>,
    fresh: Vec<Fresh>,
    /// What runs for every item, looked up once.
    claiming: CachedStatement<'a>,
    /// Of topics, and of members and queues.
    messages: [CachedStatement<'a>; 2],
    /// The rows of the first ones.
    first: [Option<i64>; 2],
    delivery: CachedStatement<'a>,
}

impl<'a> Run<'a> {
    fn item(&mut self, index: usize, item: &'a AcceptItem) -> Result<Verdict, StoreError> {
        let (mesh_id, sender) = (self.batch.mesh_id, item.session.member_id);
        let epoch = self.epoch(&item.session)?;
        let shown = self.sender(sender)?;
        let standing = if shown.is_some() { Standing::Active } else { Standing::Inactive };
        let Found { target, to, numbers } = self.target(item)?;
        // Claimed only where a claim would be kept, so that none has to be taken back.
        let kept = decide(epoch, Claim::Won, standing, target) == Decision::Accept;
        let mut claimed = kept && claim_in_tx(&mut self.claiming, self.batch, item)?;
        let mut held = match (claimed, epoch) {
            (true, _) | (false, Epoch::Stale) => None,
            (false, Epoch::Current) => {
                held_in_tx(self.tx, mesh_id, sender, &item.client_message_id)?
            }
        };
        if held.as_ref().is_some_and(|held| is_sent_again(held, item)) {
            held = None;
            if kept {
                unclaim_in_tx(self.tx, self.batch, item)?;
                claimed = claim_in_tx(&mut self.claiming, self.batch, item)?;
            }
        }
        let claim = held.as_ref().map_or(Claim::Won, |held| Claim::held(held, &item.fingerprint));
        if let Some(verdict) = self.stopped(index, item, epoch, claim) {
            if claimed {
                unclaim_in_tx(self.tx, self.batch, item)?;
            }
            return Ok(verdict);
        }
        match (decide(epoch, claim, standing, target), held, shown) {
            (Decision::Accept, _, Some(sender)) if claimed => {
                let history_id = self.effects(item, &to, &numbers)?;
                let broker_message_id = item.broker_message_id;
                self.fresh.push(Fresh { item: index, seq: history_id, sender, to });
                Ok(Verdict::Accepted { broker_message_id, history_id })
            }
            (Decision::Duplicate, Some(held), _) => Ok(Verdict::Duplicate(held)),
            (Decision::Reused, Some(held), _) => Ok(Verdict::Reused(held)),
            (Decision::Refuse(code), _, _) => Ok(Verdict::Refused(code)),
            (Decision::Close, _, _) => Ok(Verdict::Stale),
            (Decision::Accept | Decision::Duplicate | Decision::Reused, _, _) => Err(no_row(item)),
        }
    }

    /// What B1 says against an item, where it was not asked before.
    fn stopped(
        &mut self,
        index: usize,
        item: &AcceptItem,
        epoch: Epoch,
        claim: Claim,
    ) -> Option<Verdict> {
        let door = self.door.as_deref_mut()?;
        match (epoch, claim) {
            (Epoch::Current, Claim::Won) => door.check(index, item).err(),
            // It may have been accepted and forgotten before the other one came.
            (Epoch::Current, Claim::HeldDiffers) => door.age(index).objection(),
            (Epoch::Current, Claim::HeldMatch) | (Epoch::Stale, _) => None,
        }
    }

    fn epoch(&mut self, session: &Session) -> Result<Epoch, StoreError> {
        if let Some(epoch) = self.epochs.get(session) {
            return Ok(*epoch);
        }
        let epoch = epoch_in_tx(self.tx, self.batch.mesh_id, session)?;
        self.epochs.insert(*session, epoch);
        Ok(epoch)
    }

    /// How an active member is shown; nothing of one that may not send.
    fn sender(&mut self, member_id: MemberId) -> Result<Option<Arc<Sender>>, StoreError> {
        if let Some(sender) = self.senders.get(&member_id) {
            return Ok(sender.clone());
        }
        let by = named_params! {":mesh_id": self.mesh, ":member_id": key(member_id)};
        let mut statement = self.tx.prepare_cached(SENDER_ACTIVE)?;
        let found = statement
            .query_row(by, |row| Ok(Arc::new(Sender { name: row.get(0)?, pubkey: row.get(1)? })));
        let sender = found.optional()?;
        self.senders.insert(member_id, sender.clone());
        Ok(sender)
    }

    fn target(&mut self, item: &'a AcceptItem) -> Result<Found, StoreError> {
        let asked = (item.session.member_id, item.envelope.destination());
        if let Some(found) = self.targets.get(&asked) {
            return Ok(found.clone());
        }
        let (target, known) = target_in_tx(self.tx, self.batch.mesh_id, item)?;
        let mut numbers = Vec::with_capacity(known.len());
        for (id, number) in &known {
            numbers.push(match number {
                Some(number) => *number,
                None => {
                    let mut statement = self.tx.prepare_cached(RECIPIENT)?;
                    statement.query_row(params![self.mesh, id.into_bytes()], |row| row.get(0))?
                }
            });
        }
        let to = known.into_iter().map(|(id, _)| id).collect();
        let found = Found { target, to, numbers: numbers.into() };
        self.targets.insert(asked, found.clone());
        Ok(found)
    }

    /// What an accepted send leaves besides its claim.
    fn effects(
        &mut self,
        item: &AcceptItem,
        to: &[Uuid],
        numbers: &[i64],
    ) -> Result<i64, StoreError> {
        let (tx, mesh, seq) = (self.tx, self.mesh, self.next_seq);
        message_in_tx(&mut self.messages, self.batch, item, seq)?;
        let kind = item.envelope.destination().kind();
        self.first[table(kind)].get_or_insert_with(|| tx.last_insert_rowid());
        // Only a queue's deliveries can be leased.
        let lease_until = match kind {
            DestinationKind::Queue => Some(0),
            DestinationKind::Topic | DestinationKind::Dm => None,
        };
        for number in numbers {
            self.delivery.execute(params![number, seq, lease_until])?;
        }
        self.recipients.extend(to);
        for pubkey in &item.mentions {
            let by = named_params! {":mesh_id": mesh, ":pubkey": pubkey};
            let mut statement = tx.prepare_cached(MEMBER_BY_KEY)?;
            let found = statement.query_row(by, |row| row.get::<_, Key>(0)).optional()?;
            if let Some(Key(member)) = found {
                tx.prepare_cached(MENTION)?.execute(params![mesh, member.into_bytes(), seq])?;
            }
        }
        self.next_seq += 1;
        Ok(seq)
    }
}

/// Whether this is what an id without its message was claimed for.
fn is_sent_again(held: &Held, item: &AcceptItem) -> bool {
    held.is_orphan() && Claim::held(held, &item.fingerprint) == Claim::HeldMatch
}

/// The decision speaks of a row that was not read: a bug, and nothing may be written on it.
fn no_row(item: &AcceptItem) -> StoreError {
    StoreError::Corrupt {
        table: "client_message_dedupe",
        id: item.client_message_id.to_string(),
        what: "held, but not found".to_owned(),
    }
}

/// Somebody who gets a message, and the number, if there is one.
type Recipient = (Uuid, Option<i64>);

fn recipient(row: &Row<'_>) -> rusqlite::Result<Recipient> {
    Ok((row.get::<_, Key>(0)?.0, row.get(1)?))
}

/// Whether the destination is there, and who gets the message.
fn target_in_tx(
    tx: &Tx<'_>,
    mesh_id: MeshId,
    item: &AcceptItem,
) -> Result<(Target, Vec<Recipient>), StoreError> {
    let (mesh, name) = (key(mesh_id), item.envelope.destination().reference());
    let named = named_params! {":mesh_id": mesh, ":name": name};
    let one =
        |sql: &str, by: &[(&str, &dyn rusqlite::ToSql)]| -> Result<Option<Recipient>, StoreError> {
            Ok(tx.prepare_cached(sql)?.query_row(by, recipient).optional()?)
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
            let rows = statement.query_map(named, recipient)?;
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

/// Which of the two tables of messages.
fn table(kind: DestinationKind) -> usize {
    match kind {
        DestinationKind::Topic => 0,
        DestinationKind::Dm | DestinationKind::Queue => 1,
    }
}

fn message_in_tx(
    [of_topic, direct]: &mut [CachedStatement<'_>; 2],
    batch: &AcceptBatch,
    item: &AcceptItem,
    seq: i64,
) -> Result<(), StoreError> {
    let (envelope, destination) = (&item.envelope, item.envelope.destination());
    let (mesh, id) = (key(batch.mesh_id), key(item.broker_message_id));
    let (sender, client_id) = (key(item.session.member_id), item.client_message_id.as_str());
    let (reply_to_id, priority) = (envelope.reply_to_id(), envelope.priority().rank());
    let (meta, body, commitment) =
        (envelope.meta().as_str(), envelope.body(), item.body_commitment);
    let (to, now) = (destination.reference(), batch.now.0);
    let fingerprint = item.fingerprint.0;
    match destination.kind() {
        #[rustfmt::skip]
        DestinationKind::Topic => of_topic.execute(params![
            mesh, id, sender, client_id, to, reply_to_id, priority, meta, body, commitment, now,
            seq, fingerprint
        ])?,
        #[rustfmt::skip]
        kind @ (DestinationKind::Dm | DestinationKind::Queue) => direct.execute(params![
            mesh, id, sender, client_id, to, reply_to_id, priority, meta, body, commitment, now,
            seq, fingerprint, kind.as_str()
        ])?,
    };
    Ok(())
}
