//! What the sender learns about rows is written down behind its back: the loss of such a mark is
//! harmless, because sending again is (decision 009). Marks are applied in the order in which they
//! were made, many at a time, and the sender is told once they are on disk: until then the rows in
//! the file do not say what it knows.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use semel_core::clock::{Clock, UnixMs};
use semel_core::id::OutboxId;
use semel_core::outbox::{OutboxStatus, Outcome};
use semel_store::StoreError;
use semel_store::sqlite::Tx;
use tokio::sync::mpsc;

use crate::inbox::Inbox;
use crate::limits::{CLAIM_HELD_MAX, LOST_MARKS_RETRY, MARKS_BATCH_MAX, MARKS_HURRY, MARKS_LINGER};
use crate::outbox::Outbox;
use crate::store::event::EventKind;
use crate::store::outbox::{
    Delivery, Moved, outbox_accepted_in_tx, outbox_claim_in_tx, outbox_committed_in_tx,
    outbox_disowned_in_tx, outbox_expire_in_tx, outbox_limited_in_tx, outbox_permanent_in_tx,
    outbox_restart_in_tx, outbox_sent_in_tx, outbox_transient_in_tx,
};
use crate::store::{claim, link};

/// Something that became of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// It is on the wire.
    Claimed,
    /// The broker has it.
    Accepted(Delivery),
    /// Both at once: its answer came before its claim was written.
    Sent(Delivery),
    /// It may be tried again; if it waits on its own, not before this.
    Transient { why: String, next_attempt_at: Option<UnixMs> },
    /// The broker takes nothing of anybody just now: no attempt of the row's.
    Limited { why: String },
    /// The broker refused it, or can not judge it.
    Permanent { why: String, outcome: Outcome },
    /// Its connection is gone.
    Restart,
    /// It is too old to be sent, or is given up by an operator.
    Expired { why: String },
    /// The broker had it all along.
    Committed(Delivery),
    /// The broker never had it and never will.
    Absent,
    /// The broker can not tell any more.
    TooOld,
    /// A restored broker has it again.
    Offered(Delivery),
    /// A restored broker did not take it again: what it had accepted is lost, or was delivered.
    Disowned { why: String },
    /// Everything up to it was offered to a restored broker.
    OfferedTo,
}

impl Change {
    /// Whether the row is due again, once this is on disk. Nothing is sent before that, or what was
    /// accepted later would overtake it.
    pub(crate) const fn returns(&self) -> bool {
        matches!(self, Self::Restart | Self::Transient { .. } | Self::Limited { .. })
    }

    /// Whether the row is not on the wire any more.
    const fn lands(&self) -> bool {
        match self {
            Self::Accepted(_)
            | Self::Sent(_)
            | Self::Transient { .. }
            | Self::Limited { .. }
            | Self::Permanent { .. }
            | Self::Restart => true,
            Self::Claimed
            | Self::Expired { .. }
            | Self::Committed(_)
            | Self::Absent
            | Self::TooOld
            | Self::Offered(_)
            | Self::Disowned { .. }
            | Self::OfferedTo => false,
        }
    }

    /// Whether nobody waits for this to be on disk.
    const fn can_wait(&self) -> bool {
        match self {
            Self::Claimed | Self::Accepted(_) | Self::Sent(_) | Self::Offered(_) => true,
            Self::Transient { .. }
            | Self::Limited { .. }
            | Self::Permanent { .. }
            | Self::Restart
            | Self::Disowned { .. }
            | Self::Expired { .. }
            | Self::Committed(_)
            | Self::Absent
            | Self::TooOld
            | Self::OfferedTo => false,
        }
    }
}

/// What is on disk: the row, and whether it is due again.
pub(crate) type Settled = (OutboxId, bool);

/// A change of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) id: OutboxId,
    pub(crate) change: Change,
}

/// A claim that waits for its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    mark: Mark,
    /// How many were written without it.
    batches: u32,
}

/// Who died in a batch, and why: told only once that is on disk.
struct Died {
    id: OutboxId,
    why: String,
}

/// Applies marks until their sender is gone; `settled` says which are on disk.
pub(crate) async fn run(
    outbox: Arc<Outbox>,
    inbox: Arc<Inbox>,
    clock: Arc<dyn Clock>,
    mut marks: mpsc::Receiver<Mark>,
    settled: mpsc::UnboundedSender<Vec<Settled>>,
) {
    let mut batch = Vec::new();
    // What was known of these rows did not reach the file, which may say that they are on the
    // wire. At most a window of them: none is claimed in the file before they are cleared.
    let mut lost: BTreeSet<OutboxId> = BTreeSet::new();
    // Of these, what would be due again: until the file says so nothing may pass it.
    let mut owed: Vec<Settled> = Vec::new();
    // Claims whose answers may come with the next batch.
    let mut held: Vec<Held> = Vec::new();
    let mut open = true;
    while open {
        let more = marks.recv_many(&mut batch, MARKS_BATCH_MAX);
        let more = match (held.is_empty(), lost.is_empty()) {
            (true, true) => Ok(more.await),
            (false, _) => tokio::time::timeout(MARKS_LINGER, more).await,
            (true, false) => tokio::time::timeout(LOST_MARKS_RETRY, more).await,
        };
        match more {
            Ok(0) if held.is_empty() => return,
            Ok(0) => open = false,
            Ok(_) => linger(&mut batch, &mut marks).await,
            Err(_) => {}
        }
        let (now, later) = split(std::mem::take(&mut held), std::mem::take(&mut batch));
        held = later;
        if now.is_empty() && lost.is_empty() {
            continue;
        }
        let ids = now.iter().map(|mark| (mark.id, mark.change.returns()));
        let mut ids: Vec<Settled> = ids.collect();
        let batch: Arc<[Mark]> = joined(now).into();
        let returning: Arc<[OutboxId]> = lost.iter().copied().collect();
        match write(&outbox, &clock, &batch, &returning).await {
            Ok(died) => {
                for Died { id, why } in died {
                    let data = serde_json::json!({"outbox_id": id.to_string(), "reason": why});
                    inbox.announce(EventKind::OutboxDead, &data);
                }
                if !lost.is_empty() {
                    lost.clear();
                    ids.append(&mut owed);
                    outbox.fresh.look.notify_one();
                }
            }
            // They are sent again, and the broker knows them.
            Err(error) => {
                outbox.lose_marks();
                owed.extend(ids.extract_if(.., |(_, returns)| *returns));
                lost.extend(batch.iter().filter(|mark| mark.change.lands()).map(|mark| mark.id));
                tracing::error!(error = error.chain(), "marks of rows could not be written");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        let _ = settled.send(ids);
    }
}

/// Waits for company, unless somebody waits for a mark or there are many.
async fn linger(batch: &mut Vec<Mark>, marks: &mut mpsc::Receiver<Mark>) {
    let over = tokio::time::sleep(MARKS_LINGER);
    tokio::pin!(over);
    while !hurried(batch) {
        let room = MARKS_BATCH_MAX - batch.len();
        tokio::select! {
            more = marks.recv_many(batch, room) => if more == 0 { return },
            () = &mut over => return,
        }
    }
}

fn hurried(marks: &[Mark]) -> bool {
    are_many(marks) || are_awaited(marks)
}

fn are_many(marks: &[Mark]) -> bool {
    marks.len() >= MARKS_HURRY
}

fn are_awaited(marks: &[Mark]) -> bool {
    marks.iter().any(|mark| !mark.change.can_wait())
}

/// What is written now, and the claims that wait a while for their answers: a claim and its answer
/// are one write. Where somebody waits for a mark, everything is.
fn split(held: Vec<Held>, new: Vec<Mark>) -> (Vec<Mark>, Vec<Held>) {
    let crowded = are_many(&new) && !are_awaited(&new);
    let answered: HashSet<OutboxId> = match crowded {
        true => new.iter().filter(|mark| mark.change != Change::Claimed).map(|m| m.id).collect(),
        false => HashSet::new(),
    };
    let new = new.into_iter().map(|mark| Held { mark, batches: 0 });
    let (mut now, mut later) = (Vec::new(), Vec::new());
    for Held { mark, batches } in held.into_iter().chain(new) {
        let is_open = mark.change == Change::Claimed && !answered.contains(&mark.id);
        if crowded && is_open && batches < CLAIM_HELD_MAX {
            later.push(Held { mark, batches: batches + 1 });
        } else {
            now.push(mark);
        }
    }
    (now, later)
}

/// A claim and the acceptance that follows it become one.
fn joined(marks: Vec<Mark>) -> Vec<Mark> {
    let mut claims: HashMap<OutboxId, usize> = HashMap::new();
    let mut joined: Vec<Mark> = Vec::with_capacity(marks.len());
    for mark in marks {
        match (&mark.change, claims.remove(&mark.id)) {
            (Change::Claimed, _) => {
                claims.insert(mark.id, joined.len());
                joined.push(mark);
            }
            (Change::Accepted(delivery), Some(claim)) => {
                joined[claim].change = Change::Sent(*delivery);
            }
            (_, _) => joined.push(mark),
        }
    }
    joined
}

async fn write(
    outbox: &Outbox,
    clock: &Arc<dyn Clock>,
    marks: &Arc<[Mark]>,
    returning: &Arc<[OutboxId]>,
) -> Result<Vec<Died>, StoreError> {
    outbox.admit_lost_marks().await?;
    let (marks, now, life) = (Arc::clone(marks), clock.wall(), outbox.life());
    let returning = Arc::clone(returning);
    let are_awaited = are_awaited(&marks) || !returning.is_empty();
    let (many, are_many) = (marks.len() + returning.len(), are_many(&marks));
    let write = move |tx: &Tx<'_>| {
        let mut died = Vec::new();
        for id in returning.iter() {
            // Those that the file never had on the wire are left as they are.
            outbox_restart_in_tx(tx, *id)?;
        }
        for mark in marks.iter() {
            died.extend(apply(tx, mark, now, life)?);
        }
        Ok(died)
    };
    match (are_awaited, are_many) {
        (true, _) => outbox.sqlite.write_for(many, write).await,
        (false, true) => outbox.sqlite.write_much_along(write).await,
        (false, false) => outbox.sqlite.write_along(write).await,
    }
}

fn apply(tx: &Tx<'_>, mark: &Mark, now: UnixMs, life: i64) -> Result<Option<Died>, StoreError> {
    let id = mark.id;
    let (moved, why) = match &mark.change {
        Change::Claimed => (outbox_claim_in_tx(tx, id)?, None),
        Change::Accepted(delivery) => (outbox_accepted_in_tx(tx, id, delivery, now)?, None),
        Change::Sent(delivery) => (outbox_sent_in_tx(tx, id, delivery, now)?, None),
        Change::Transient { why, next_attempt_at } => {
            (outbox_transient_in_tx(tx, id, why, *next_attempt_at)?, None)
        }
        Change::Limited { why } => (outbox_limited_in_tx(tx, id, why)?, None),
        Change::Disowned { why } => (outbox_disowned_in_tx(tx, id, why)?, Some(why)),
        Change::Permanent { why, outcome } => {
            (outbox_permanent_in_tx(tx, id, why, *outcome)?, Some(why))
        }
        Change::Restart => (outbox_restart_in_tx(tx, id)?, None),
        Change::Expired { why } => (outbox_expire_in_tx(tx, id, why, life)?, Some(why)),
        Change::Committed(delivery) => (outbox_committed_in_tx(tx, id, delivery, now)?, None),
        Change::Absent => {
            claim::resolve_refused_in_tx(tx, id)?;
            return Ok(None);
        }
        Change::TooOld => {
            claim::resolve_too_old_in_tx(tx, id)?;
            return Ok(None);
        }
        Change::Offered(delivery) => {
            claim::offer_taken_in_tx(tx, id, delivery)?;
            return Ok(None);
        }
        Change::OfferedTo => {
            link::offered_to_in_tx(tx, &id.to_string())?;
            return Ok(None);
        }
    };
    match moved {
        Moved::To(OutboxStatus::Dead) => Ok(why.map(|why| Died { id, why: why.clone() })),
        Moved::To(_) => Ok(None),
        Moved::Illegal { found, event } => {
            tracing::error!(%id, %found, %event, "a row has an unexpected status");
            Ok(None)
        }
        Moved::Absent => {
            tracing::error!(%id, "a row of the sender is missing");
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use semel_core::id::UuidId;
    use semel_core::mint::IdMint;
    use semel_testkit::clock::SimClock;

    use super::*;

    #[test]
    fn a_claim_and_its_acceptance_become_one_and_nothing_else_does() {
        let mint = IdMint::new(Arc::new(SimClock::at_ms(1)), Box::new(|| 42));
        let (one, two) = (mint.outbox_id(), mint.outbox_id());
        let delivery =
            Delivery { broker_message_id: UuidId::new(uuid::Uuid::nil()), history_id: None };
        let mark = |id, change| Mark { id, change };
        let marks = vec![
            mark(one, Change::Claimed),
            mark(two, Change::Claimed),
            mark(two, Change::Restart),
            mark(one, Change::Accepted(delivery)),
            mark(two, Change::Accepted(delivery)),
        ];
        let expected = [
            mark(one, Change::Sent(delivery)),
            mark(two, Change::Claimed),
            mark(two, Change::Restart),
            mark(two, Change::Accepted(delivery)),
        ];
        assert_eq!(joined(marks), expected);
    }

    #[test]
    fn in_a_crowd_a_claim_waits_a_while_for_its_answer() {
        let mint = IdMint::new(Arc::new(SimClock::at_ms(1)), Box::new(|| 42));
        let claims = |count| -> Vec<Mark> {
            let claim = |_| Mark { id: mint.outbox_id(), change: Change::Claimed };
            (0..count).map(claim).collect()
        };
        let (waiting, mut new) = (claims(3), claims(MARKS_HURRY));
        let held = |mark: &Mark, batches| Held { mark: mark.clone(), batches };
        let before = vec![held(&waiting[0], 1), held(&waiting[1], CLAIM_HELD_MAX)];
        let before = [before, vec![held(&waiting[2], 1)]].concat();
        let delivery =
            Delivery { broker_message_id: UuidId::new(uuid::Uuid::nil()), history_id: None };
        let answer = |mark: &Mark| Mark { id: mark.id, change: Change::Accepted(delivery) };
        let answers = [answer(&waiting[0]), answer(&new[0])];
        new.extend(answers.clone());
        let (now, later) = split(before.clone(), new.clone());
        let open = new[1..MARKS_HURRY].iter().map(|mark| held(mark, 1));
        let open: Vec<Held> = std::iter::once(held(&waiting[2], 2)).chain(open).collect();
        assert_eq!(later, open, "those without an answer");
        let [first, second] = answers;
        let (answered, over) = (waiting[0].clone(), waiting[1].clone());
        assert_eq!(now, [answered, over, new[0].clone(), first, second]);
        // Somebody waits for one of them, or there are few.
        new.push(Mark { id: new[1].id, change: Change::Restart });
        assert_eq!(split(Vec::new(), new.clone()), (new, Vec::new()));
        assert_eq!(split(before, Vec::new()), (waiting, Vec::new()));
    }
}
