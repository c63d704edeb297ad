//! Where sends wait for their transaction once they have been checked: those of a session in their
//! order, sessions in turns (`line.rs`). It takes what is there when it begins, up to the rows that
//! a transaction may write, and need not be told before.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::clock::UnixMs;
use semel_core::envelope::DestinationKind;
use semel_core::id::MeshId;
use tokio::sync::oneshot;

use super::door::{Checked, Guests};
use super::line::{Batch, Line, Queued};
use super::order::{Place, PutOff, ToldToWait};
use super::{Answer, Waiting};
use crate::accept::{AcceptBatch, AcceptItem, Session, Verdict};
use crate::limiter;
use crate::limits::{AUDIENCE_BELIEVED, LINE_BYTES_MAX, LINE_MAX, SEND_ROWS, TOPICS_MAX};
use crate::present::{Present, Stamp};
use crate::store::Audience;

pub(super) struct Gate {
    pub(super) mesh_id: MeshId,
    rows_max: usize,
    present: Arc<Present>,
    state: Mutex<State>,
    /// How many get what is sent to a topic, and when that was asked, where it is asked before.
    audiences: Mutex<HashMap<String, (usize, Duration)>>,
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

impl Queued for (Waiting, Stage) {
    fn session(&self) -> Session {
        self.0.item.session
    }

    fn bytes(&self) -> usize {
        let envelope = &self.0.item.envelope;
        envelope.body().len() + envelope.meta().as_str().len()
    }
}

#[derive(Default)]
struct State {
    line: Line<(Waiting, Stage)>,
    /// A transaction was asked for that has not taken anything yet.
    asked: bool,
    /// How many the last one took, and whether it left any.
    last: usize,
    has_left: bool,
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
    /// About how many rows it writes.
    pub(super) rows: usize,
    /// It is committed before anything larger is begun.
    pub(super) is_ahead: bool,
}

impl Gate {
    /// Of a store whose accept transactions write so many rows.
    pub(super) fn new(mesh_id: MeshId, rows_max: usize, present: Arc<Present>) -> Self {
        let (state, audiences, put_off, told_to_wait) = Default::default();
        Self { mesh_id, rows_max, present, state, audiences, put_off, told_to_wait }
    }

    pub(super) fn pass(&self, sends: impl Iterator<Item = (Waiting, Stage)>) {
        let mut state = self.state();
        sends.for_each(|send| state.line.push(send));
    }

    /// The same for what was checked, or could not be looked up. Gives back what is answered
    /// instead.
    pub(super) fn admit(&self, batch: Vec<(Waiting, Option<Checked>)>) -> Vec<(Waiting, Verdict)> {
        let now = self.present.monotonic();
        let mut told_to_wait = self.told_to_wait();
        let (mut admitted, mut denied) = (Vec::with_capacity(batch.len()), Vec::new());
        for (waiting, checked) in batch {
            let (item, place) = (&waiting.item, waiting.arrival.place);
            let in_order = |checked| told_to_wait.in_order(item, place, checked, now);
            match checked.map(in_order) {
                None => admitted.push((waiting, Stage::Undecided)),
                Some(Ok(cost)) => admitted.push((waiting, Stage::Checked(cost))),
                Some(Err(verdict)) => denied.push((waiting, verdict)),
            }
        }
        drop(told_to_wait);
        self.pass(admitted.into_iter());
        denied
    }

    /// Whether more may be looked up for it; those that already are find a place.
    pub(super) fn has_room(&self) -> bool {
        let state = self.state();
        state.line.len() < LINE_MAX && state.line.bytes() < LINE_BYTES_MAX
    }

    /// Whether the last transaction could not take all.
    pub(super) fn has_left(&self) -> bool {
        self.state().has_left
    }

    /// Whether sends come in crowds.
    pub(super) fn is_crowded(&self) -> bool {
        self.state().last > 1
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state().line.is_empty()
    }

    /// About how many it will take, if a transaction is to be asked for: once for each that begins.
    pub(super) fn ask(&self) -> Option<usize> {
        let mut state = self.state();
        let wanted = !state.asked && !state.line.is_empty();
        state.asked |= wanted;
        wanted.then_some(state.line.len().max(state.last))
    }

    /// The transaction that was asked for will not take anything.
    pub(super) fn give_up(&self) {
        self.state().asked = false;
    }

    /// Topics of these sends whose audience is to be asked for.
    pub(super) fn unknown_topics(&self, sends: &[Waiting]) -> Vec<String> {
        let (now, audiences) = (self.present.monotonic(), self.audiences());
        let is_known = |topic: &str| {
            let asked = audiences.get(topic);
            asked.is_some_and(|(_, at)| now.saturating_sub(*at) < AUDIENCE_BELIEVED)
        };
        let topics = sends.iter().map(|waiting| waiting.item.envelope.destination());
        let topics = topics.filter(|to| to.kind() == DestinationKind::Topic);
        let mut unknown: Vec<String> =
            topics.map(|to| to.reference().to_owned()).filter(|topic| !is_known(topic)).collect();
        unknown.sort_unstable();
        unknown.dedup();
        unknown
    }

    /// The store was asked.
    pub(super) fn learn(&self, topics: Vec<String>, audiences: Vec<usize>) {
        let (now, mut known) = (self.present.monotonic(), self.audiences());
        if known.len() >= usize::try_from(TOPICS_MAX).unwrap_or(usize::MAX) {
            known.clear();
        }
        known.extend(topics.into_iter().zip(audiences.into_iter().map(|count| (count, now))));
    }

    /// What the transaction that was asked for begins with. The store may know how many get each of
    /// them; otherwise it is what was learned.
    pub(super) fn take(&self, audience: &mut Audience<'_>) -> Taken {
        let (Stamp { now, kept_from }, at) = (self.present.stamp(), self.present.monotonic());
        let mut behind = self.put_off();
        let Batch { sends: first, rows, is_ahead } = self.first(audience);
        let (mut items, mut replies) =
            (Vec::with_capacity(first.len()), Vec::with_capacity(first.len()));
        let (mut said, mut arrivals) =
            (Vec::with_capacity(first.len()), Vec::with_capacity(first.len()));
        let mut places = Vec::with_capacity(first.len());
        let (mut put_off, mut expires_at) = (Vec::new(), Some(kept_from));
        for (waiting, stage) in first {
            let place = waiting.arrival.place;
            let checked = match (behind.behind(&waiting.item, place, at), stage) {
                (None, Stage::New) => None,
                (None, Stage::Checked(cost)) => Some(Ok(cost)),
                (answer, _) => {
                    let answer = answer.unwrap_or(Answer::Later);
                    behind.answered(&waiting.item, place, &answer, at, &self.told_to_wait());
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
        if semel_store::planted!("ack") {
            answer_early(&items, &mut replies);
        }
        let batch = Arc::new(AcceptBatch { mesh_id: self.mesh_id, now, expires_at, items });
        let guests = Arc::new(Guests::new(arrivals, said));
        Taken { batch, replies, guests, places, put_off, at, rows, is_ahead }
    }

    /// Those whose turn it is, each session's in the order in which they came.
    fn first(&self, audience: &mut Audience<'_>) -> Batch<(Waiting, Stage)> {
        let mut state = self.state();
        state.asked = false;
        let (known, mut counted) = (self.audiences(), HashMap::new());
        let taken = state.line.take(self.rows_max, |(waiting, _)| {
            let item = &waiting.item;
            let to = item.envelope.destination();
            let deliveries = match to.kind() {
                DestinationKind::Dm | DestinationKind::Queue => 1,
                DestinationKind::Topic => *counted.entry(to.clone()).or_insert_with(|| {
                    let learned = || known.get(to.reference()).map(|(count, _)| *count);
                    audience(self.mesh_id, to.reference()).or_else(learned).unwrap_or(1)
                }),
            };
            SEND_ROWS + deliveries + item.mentions.len()
        });
        state.last = taken.sends.len();
        state.has_left = !state.line.is_empty();
        taken
    }

    /// Remembers what became of a batch, for what comes behind it.
    pub(super) fn answered(&self, batch: &AcceptBatch, places: &[Place], answers: &[Answer]) {
        let (mut behind, now) = (self.put_off(), self.present.monotonic());
        let told_to_wait = self.told_to_wait();
        for ((item, place), answer) in batch.items.iter().zip(places).zip(answers) {
            behind.answered(item, *place, answer, now, &told_to_wait);
        }
    }

    pub(super) fn put_off(&self) -> MutexGuard<'_, PutOff> {
        self.put_off.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn told_to_wait(&self) -> MutexGuard<'_, ToldToWait> {
        self.told_to_wait.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn audiences(&self) -> MutexGuard<'_, HashMap<String, (usize, Duration)>> {
        self.audiences.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
