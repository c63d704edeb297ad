//! Where sends wait for their transaction, in their order, once they have been checked. It takes
//! what is there when it begins, and need not be told before.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::clock::UnixMs;
use semel_core::id::MeshId;
use tokio::sync::oneshot;

use super::door::Guests;
use super::order::{Place, PutOff, ToldToWait};
use super::{Answer, Waiting};
use crate::accept::{AcceptBatch, AcceptItem, Verdict};
use crate::limiter;
use crate::limits::BATCH_MAX;
use crate::present::{Present, Stamp};

pub(super) struct Gate {
    pub(super) mesh_id: MeshId,
    present: Arc<Present>,
    line: Mutex<Line>,
    put_off: Mutex<PutOff>,
    told_to_wait: Mutex<ToldToWait>,
}

/// How far a send has come.
#[derive(Clone, Copy)]
pub(super) enum Stage {
    /// Its id is to be looked up, and it is to be checked, in the transaction.
    New,
    /// It was checked, and this is what it cost.
    Checked(limiter::Verdict),
    /// Its id could not be looked up; it has its place in the order all the same.
    Undecided,
}

#[derive(Default)]
struct Line {
    passed: VecDeque<(Waiting, Stage)>,
    /// A transaction was asked for that has not taken anything yet.
    asked: bool,
    /// How many the last one took.
    last: usize,
    /// How many were taken so far.
    taken: Place,
}

/// What a transaction took, and whom to tell of it.
pub(super) struct Taken {
    pub(super) batch: Arc<AcceptBatch>,
    /// One for each of the batch, and so of the guests.
    pub(super) replies: Vec<oneshot::Sender<Answer>>,
    pub(super) guests: Arc<Guests>,
    /// Where each of the batch came in the lane.
    pub(super) places: Vec<Place>,
    /// Those that must wait behind others.
    pub(super) put_off: Vec<(Waiting, Answer)>,
    pub(super) at: Duration,
}

impl Gate {
    pub(super) fn new(mesh_id: MeshId, present: Arc<Present>) -> Self {
        let (line, put_off, told_to_wait) = Default::default();
        Self { mesh_id, present, line, put_off, told_to_wait }
    }

    pub(super) fn pass(&self, sends: impl Iterator<Item = (Waiting, Stage)>) {
        self.line().passed.extend(sends);
    }

    /// Whether more may be looked up for it; those that already are find a place.
    pub(super) fn has_room(&self) -> bool {
        self.line().passed.len() < BATCH_MAX
    }

    /// Whether sends come in crowds.
    pub(super) fn is_crowded(&self) -> bool {
        self.line().last > 1
    }

    pub(super) fn is_empty(&self) -> bool {
        self.line().passed.is_empty()
    }

    /// About how many it will take, if a transaction is to be asked for: once for each that begins.
    pub(super) fn ask(&self) -> Option<usize> {
        let mut line = self.line();
        let wanted = !line.asked && !line.passed.is_empty();
        line.asked |= wanted;
        wanted.then_some(line.passed.len().max(line.last))
    }

    /// The transaction that was asked for will not take anything.
    pub(super) fn give_up(&self) {
        self.line().asked = false;
    }

    /// What the transaction that was asked for begins with.
    pub(super) fn take(&self) -> Taken {
        let (Stamp { now, kept_from }, at) = (self.present.stamp(), self.present.monotonic());
        let mut behind = self.put_off();
        let first = self.first();
        let (mut items, mut replies) =
            (Vec::with_capacity(first.len()), Vec::with_capacity(first.len()));
        let (mut said, mut arrivals) =
            (Vec::with_capacity(first.len()), Vec::with_capacity(first.len()));
        let mut places = Vec::with_capacity(first.len());
        let (mut put_off, mut expires_at) = (Vec::new(), Some(kept_from));
        for (place, (waiting, stage)) in first {
            let checked = match (behind.behind(&waiting.item, place, at), stage) {
                (None, Stage::New) => None,
                (None, Stage::Checked(cost)) => Some(Ok(cost)),
                (answer, _) => {
                    let answer = answer.unwrap_or(Answer::Later);
                    behind.answered(&waiting.item, place, &answer, at);
                    put_off.push((waiting, answer));
                    continue;
                }
            };
            // Connections may know different policies of the mesh: the longest promise counts. What
            // was queued by a clock that is ahead is too old only that much later.
            let kept_from = kept_from.max(waiting.arrival.enqueued_at);
            expires_at = later(expires_at, waiting.arrival.mesh.dedupe.expires_at(kept_from));
            items.push(waiting.item);
            replies.push(waiting.reply);
            places.push(place);
            said.push(checked);
            arrivals.push(waiting.arrival);
        }
        if cfg!(semel_plant = "ack") {
            answer_early(&items, &mut replies);
        }
        let batch = Arc::new(AcceptBatch { mesh_id: self.mesh_id, now, expires_at, items });
        let guests = Arc::new(Guests::new(arrivals, said));
        Taken { batch, replies, guests, places, put_off, at }
    }

    /// In the order in which they came.
    fn first(&self) -> Vec<(Place, (Waiting, Stage))> {
        let mut line = self.line();
        line.asked = false;
        let count = line.passed.len().min(BATCH_MAX);
        line.last = count;
        let from = line.taken;
        line.taken += count as Place;
        (from..).zip(line.passed.drain(..count)).collect()
    }

    /// Remembers what became of a batch, for what comes behind it.
    pub(super) fn answered(&self, batch: &AcceptBatch, places: &[Place], answers: &[Answer]) {
        let (mut behind, now) = (self.put_off(), self.present.monotonic());
        for ((item, place), answer) in batch.items.iter().zip(places).zip(answers) {
            behind.answered(item, *place, answer, now);
        }
    }

    pub(super) fn put_off(&self) -> MutexGuard<'_, PutOff> {
        self.put_off.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn told_to_wait(&self) -> MutexGuard<'_, ToldToWait> {
        self.told_to_wait.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bug that the chaos run must find: answers before the commit.
fn answer_early(items: &[AcceptItem], replies: &mut [oneshot::Sender<Answer>]) {
    for (item, reply) in items.iter().zip(replies) {
        let (broker_message_id, history_id) = (item.broker_message_id, 1);
        let early = Verdict::Accepted { broker_message_id, history_id };
        let _ = std::mem::replace(reply, oneshot::channel().0).send(Answer::Decided(early));
    }
}

/// The later of two expiries; never is the latest.
fn later(one: Option<UnixMs>, other: Option<UnixMs>) -> Option<UnixMs> {
    one.zip(other).map(|(one, other)| one.max(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_is_the_latest_expiry() {
        let (day, week) = (Some(UnixMs(1)), Some(UnixMs(7)));
        assert_eq!((later(day, week), later(day, None), later(None, week)), (week, None, None));
    }
}
