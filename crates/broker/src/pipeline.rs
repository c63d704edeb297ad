//! From a send to its answer: decode → B0 → B1 → batch → B2/B3 → answer (mesh.md §7).
//!
//! Every mesh has a lane, a task of its own: a daemon that goes away cancels nothing half-way. In
//! it sends pass three stations in their order: their ids are looked up (B0), they are checked
//! (B1), and the transaction (B2, B3) takes whatever has got so far when it begins (`gate.rs`): a
//! lone send costs one commit, a crowd shares them. An id whose first attempt is not committed yet
//! is not known in the first station; the transaction finds it.
//!
//! SQLite's writer is given the next transaction while the last one is committed and answered, so
//! that it never waits for us; should that one be lost, the next takes nothing. And while ids are
//! new, the first two stations are passed inside the transaction (`way.rs`, `door.rs`).
//!
//! | phase | what | refused with |
//! |---|---|---|
//! | B0 | is the id known? Then it is answered, before any limit | – |
//! | B1 | too old to judge (in doubt: wait), then size, then rate | `410`, `413`, `429` |
//! | B2, B3 | the store's transaction | the table of `docs/design/broker.md` |
//!
//! `5xx` is said only of what was undone. What nobody can know is not answered: the connections
//! that wait for it are closed. What comes behind a send that was put off is put off as well
//! (`order.rs`).

mod door;
mod gate;
mod line;
mod order;
mod way;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesOrdered;
use semel_core::clock::{Clock, UnixMs};
use semel_core::id::MeshId;
use semel_core::plausible::Between;
use semel_store::sqlite::Sequence;
use semel_store::{Fate, StoreError};
use tokio::sync::{mpsc, oneshot};

use self::door::{Arrival, AtTheDoor, Checked, Guests, Names, allowed};
use self::gate::{Gate, Stage, Taken};
use self::order::Place;
use self::way::{Saw, Way};
use crate::accept::{AcceptBatch, AcceptItem, Claim, Session, Verdict};
use crate::hints::Hints;
use crate::hub::Hub;
use crate::life::StoreLife;
use crate::limiter::{self, Limiter, LimiterCounts};
use crate::limits::{BATCH_MAX, LANE_QUEUE_MAX, LOOK_UPS_AT_ONCE};
use crate::metrics::{LaneMetrics, Metrics};
use crate::present::Present;
use crate::store::{Audience, BatchDone, Mesh, Next, Store};

/// What a send is answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// What the tables say.
    Decided(Verdict),
    /// `503`: the store was away, it was undone, the same id may be sent again.
    Later,
    /// `503` for a send that the store refuses by itself: nobody else waits for it.
    Stuck,
    /// No answer can be given: close the connection.
    Close,
}

/// A send on its way.
struct Waiting {
    item: AcceptItem,
    arrival: Arrival,
    reply: oneshot::Sender<Answer>,
}

impl Waiting {
    /// A daemon that went away will ask again.
    fn answer(self, lane: &LaneMetrics, answer: Answer) {
        lane.answered(&self.item, &answer);
        let _ = self.reply.send(answer);
    }
}

/// A transaction that has ended; one that never began took nothing.
struct Ran {
    taken: Option<Taken>,
    done: Result<BatchDone, StoreError>,
}

/// Where the items of a batch came from.
#[derive(Clone, Copy)]
struct Origin<'a> {
    guests: &'a Arc<Guests>,
    /// Which of the guests is the first item.
    first: usize,
    /// One for each item.
    places: &'a [Place],
}

/// The lanes of all meshes.
pub struct Pipeline {
    shared: Arc<Shared>,
    lanes: Mutex<HashMap<MeshId, Lane>>,
}

/// Where sends of a mesh are handed in.
struct Lane {
    sends: mpsc::Sender<Waiting>,
    /// Only sessions of higher epochs.
    after_epoch: i64,
    /// The highest epoch of a session that was given this lane.
    newest_epoch: i64,
}

struct Shared {
    store: Store,
    life: StoreLife,
    limiter: Limiter,
    clock: Arc<dyn Clock>,
    present: Arc<Present>,
    hub: Arc<Hub>,
    hints: Option<Hints>,
    metrics: Arc<Metrics>,
}

impl Pipeline {
    /// A pipeline over this store, of a broker that is alone.
    pub fn new(
        store: Store,
        life: StoreLife,
        limiter: Limiter,
        clock: Arc<dyn Clock>,
        hub: Arc<Hub>,
    ) -> Self {
        Self::with_hints(store, life, limiter, clock, hub, None)
    }

    /// A pipeline that tells other brokers of its commits.
    pub fn with_hints(
        store: Store,
        life: StoreLife,
        limiter: Limiter,
        clock: Arc<dyn Clock>,
        hub: Arc<Hub>,
        hints: Option<Hints>,
    ) -> Self {
        let metrics = Arc::new(Metrics::default());
        let present = Arc::new(Present::new(Arc::clone(&clock)));
        let shared = Shared { store, life, limiter, clock, present, hub, hints, metrics };
        let shared = Arc::new(shared);
        Self { shared, lanes: Mutex::new(HashMap::new()) }
    }

    /// What is counted here and by everything that works with it.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.shared.metrics
    }

    /// By which time the age of sends is judged.
    pub fn present(&self) -> &Present {
        &self.shared.present
    }

    /// Counts what a member asks beside its sends.
    pub fn limiter(&self) -> &Limiter {
        &self.shared.limiter
    }

    /// How the limiter decided so far.
    pub fn limiter_counts(&self) -> LimiterCounts {
        self.shared.limiter.counts()
    }

    /// Hands a send in, in the order of the calls; waits while the lane is full. The answer comes
    /// over the channel; none comes when the lane ends, which is like [`Answer::Close`].
    pub async fn submit(
        &self,
        mesh: &Arc<Mesh>,
        item: AcceptItem,
        enqueued_at: UnixMs,
    ) -> oneshot::Receiver<Answer> {
        let (reply, answer) = oneshot::channel();
        let Some(lane) = self.lane(mesh, &item.session) else { return answer };
        // A lane that has ended drops the send, and with it the channel: that is an answer.
        let arrival = Arrival { mesh: Arc::clone(mesh), enqueued_at, place: 0 };
        let _ = lane.send(Waiting { item, arrival, reply }).await;
        answer
    }

    /// The mesh's lane; none for a session that has lost sends with one that died.
    fn lane(&self, mesh: &Arc<Mesh>, session: &Session) -> Option<mpsc::Sender<Waiting>> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let lane = lanes.entry(mesh.mesh_id).or_insert_with(|| self.open(mesh, i64::MIN));
        if lane.sends.is_closed() {
            // Whatever its sessions have under way would overtake what was lost. Later ones have
            // higher epochs, and begin with what is due.
            *lane = self.open(mesh, lane.newest_epoch);
        }
        lane.newest_epoch = lane.newest_epoch.max(session.epoch);
        (session.epoch > lane.after_epoch).then(|| lane.sends.clone())
    }

    fn open(&self, mesh: &Arc<Mesh>, after_epoch: i64) -> Lane {
        let (sends, waiting) = mpsc::channel(LANE_QUEUE_MAX);
        let shared = Arc::clone(&self.shared);
        let counted = shared.metrics.lane(mesh);
        let rows_max = shared.store.batch_rows();
        let gate = Arc::new(Gate::new(mesh.mesh_id, rows_max, Arc::clone(&shared.present)));
        let serving = tokio::spawn(async move { shared.serve(&counted, &gate, waiting).await });
        let mesh_id = mesh.mesh_id;
        drop(tokio::spawn(async move {
            if serving.await.is_err_and(|error| error.is_panic()) {
                tracing::error!(%mesh_id, "a lane has ended; the next send opens another one");
            }
        }));
        Lane { sends, after_epoch, newest_epoch: after_epoch }
    }
}

impl Shared {
    async fn serve(
        self: &Arc<Self>,
        lane: &LaneMetrics,
        gate: &Arc<Gate>,
        mut waiting: mpsc::Receiver<Waiting>,
    ) {
        let (mut arrived, mut next_place): (Vec<Waiting>, Place) = (Vec::new(), 0);
        let (mut looked_up, mut checked) = (FuturesOrdered::new(), FuturesOrdered::new());
        let (mut running, mut sequence) = (FuturesOrdered::new(), Arc::default());
        let mut way = Way::new(self.store.has_doors() && self.limiter.is_here());
        let mut open = true;
        while open || !(looked_up.is_empty() && checked.is_empty() && running.is_empty()) {
            let looking = looked_up.len() + checked.len();
            let is_clear = looking == 0 && running.is_empty() && gate.is_empty();
            // A limiter that is slow must not let them pile up before it.
            let has_room = looking < LOOK_UPS_AT_ONCE
                && gate.has_room()
                && way.is_free(looking, is_clear, gate.has_left());
            tokio::select! {
                biased;
                Some(ran) = running.next() => {
                    way.saw(self.ended(lane, gate, ran).await);
                    if running.is_empty() {
                        sequence = Arc::default();
                    }
                }
                Some(batch) = checked.next() => {
                    way.saw(self.pass(lane, gate, batch));
                }
                Some((unknown, saw)) = looked_up.next() => {
                    way.looked_up(saw);
                    checked.push_back(self.check_all(gate.mesh_id, unknown));
                }
                count = waiting.recv_many(&mut arrived, BATCH_MAX), if open && has_room => {
                    open = count > 0;
                    if gate.is_crowded() {
                        // Those who were answered together come back together.
                        tokio::task::yield_now().await;
                        while arrived.len() < BATCH_MAX && let Ok(more) = waiting.try_recv() {
                            arrived.push(more);
                        }
                    }
                    for waiting in &mut arrived {
                        waiting.arrival.place = next_place;
                        next_place += 1;
                    }
                    if way.is_by_the_door() {
                        gate.pass(arrived.drain(..).map(|waiting| (waiting, Stage::New)));
                    } else {
                        let arrived = std::mem::take(&mut arrived);
                        looked_up.push_back(self.answer_known(lane, gate, arrived));
                    }
                }
            }
            if running.len() < self.store.batches_at_once()
                && let Some(about) = gate.ask()
            {
                // Who has company is in no hurry.
                let about = about + running.len();
                running.push_back(self.run_next(gate, Arc::clone(&sequence), about));
            }
        }
    }

    /// B1 for what is not known; nothing is said of what could not be looked up.
    async fn check_all(
        &self,
        mesh_id: MeshId,
        unknown: Result<Vec<Waiting>, Vec<Waiting>>,
    ) -> Vec<(Waiting, Option<Checked>)> {
        let now = self.present.between();
        let unknown = match unknown {
            Ok(unknown) => unknown,
            Err(undecided) => {
                return undecided.into_iter().map(|waiting| (waiting, None)).collect();
            }
        };
        let mut names = Names::of(mesh_id);
        unknown.iter().for_each(|waiting| names.learn(waiting.item.session.member_id));
        let checks = unknown.iter().map(|waiting| self.check(waiting, &names, now));
        let checked = join_all(checks).await;
        unknown.into_iter().zip(checked.into_iter().map(Some)).collect()
    }

    /// What was checked waits for its transaction, or is answered.
    fn pass(&self, lane: &LaneMetrics, gate: &Gate, batch: Vec<(Waiting, Option<Checked>)>) -> Saw {
        let mut saw = Saw::New;
        for (waiting, verdict) in gate.admit(batch) {
            saw = saw.and(&verdict);
            waiting.answer(lane, Answer::Decided(verdict));
        }
        saw
    }

    async fn run_next(
        self: &Arc<Self>,
        gate: &Arc<Gate>,
        before: Arc<Sequence>,
        about: usize,
    ) -> Ran {
        let slot = Arc::new(Mutex::new(None));
        let (shared, gate, filled) = (Arc::clone(self), Arc::clone(gate), Arc::clone(&slot));
        let take = move |audience: &mut Audience<'_>| {
            let taken = gate.take(audience);
            let batch = (!taken.batch.items.is_empty()).then(|| Arc::clone(&taken.batch));
            let next = batch.map(|batch| {
                let door = AtTheDoor::of(&shared, &gate, &taken.guests, 0);
                Next { batch, door, is_ahead: taken.is_ahead }
            });
            *filled.lock().unwrap_or_else(PoisonError::into_inner) = Some(taken);
            next
        };
        let done = self.store.accept_next(&before, about, take).await;
        let taken = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ran { taken, done }
    }

    /// Answers a batch.
    async fn ended(self: &Arc<Self>, lane: &LaneMetrics, gate: &Arc<Gate>, ran: Ran) -> Saw {
        let taken = match (ran.taken, &ran.done) {
            (Some(taken), _) => taken,
            (None, Ok(_) | Err(StoreError::Behind)) => {
                gate.give_up();
                return Saw::New;
            }
            (None, Err(_)) => gate.take(&mut |_, _| None),
        };
        let Taken { batch, replies, guests, places, put_off, at, rows, is_ahead: _ } = taken;
        let took = self.clock.monotonic().saturating_sub(at);
        let answers = if batch.items.is_empty() {
            Vec::new()
        } else {
            self.metrics.batch(batch.items.len(), rows, took);
            let origin = Origin { guests: &guests, first: 0, places: &places };
            self.answers(gate, origin, &batch, ran.done).await
        };
        gate.answered(&batch, &places, &answers);
        let (mut saw, said) = (Saw::New, guests.said());
        let told = batch.items.iter().zip(replies).zip(said.iter());
        for (((item, reply), said), answer) in told.zip(answers) {
            lane.answered(item, &answer);
            if let Answer::Decided(verdict) = &answer {
                saw = saw.and(verdict);
                let refused = matches!(verdict, Verdict::Refused(_));
                if refused && *said == Some(Ok(limiter::Verdict::Counted)) {
                    self.metrics.spent_then_refused.inc();
                }
            }
            // A daemon that went away will ask again.
            let _ = reply.send(answer);
        }
        for (waiting, answer) in put_off {
            waiting.answer(lane, answer);
        }
        saw
    }

    /// B0. Gives back those that are not known, or all of them when the store could not be asked.
    async fn answer_known(
        &self,
        lane: &LaneMetrics,
        gate: &Gate,
        batch: Vec<Waiting>,
    ) -> (Result<Vec<Waiting>, Vec<Waiting>>, Saw) {
        let now = self.present.between();
        let Some(mesh_id) = batch.first().map(|waiting| waiting.arrival.mesh.mesh_id) else {
            return (Ok(batch), Saw::New);
        };
        let key = |waiting: &Waiting| {
            (waiting.item.session.member_id, waiting.item.client_message_id.clone())
        };
        let keys: Vec<_> = batch.iter().map(key).collect();
        let look_up = self.store.dedupe_look_up(mesh_id, &keys);
        let (found, ()) = tokio::join!(look_up, self.learn_audiences(gate, &batch));
        let held = match found {
            Ok(found) if self.life.goes_on(&found.store_epoch) => found.held,
            Ok(_) => {
                // What another life of the store knows says nothing about this one's sends.
                batch.into_iter().for_each(|waiting| waiting.answer(lane, Answer::Close));
                return (Ok(Vec::new()), Saw::New);
            }
            Err(error) => {
                tracing::warn!(error = error.chain(), "ids could not be looked up");
                return (Err(batch), Saw::New);
            }
        };
        let (mut unknown, mut saw) = (Vec::new(), Saw::New);
        for (waiting, held) in batch.into_iter().zip(held) {
            let Some(held) = held else {
                unknown.push(waiting);
                continue;
            };
            let verdict = match Claim::held(&held, &waiting.item.fingerprint) {
                // This request may have been accepted and forgotten before the other one came.
                Claim::HeldDiffers => {
                    let objection = waiting.arrival.age(now).objection();
                    objection.unwrap_or(Verdict::Reused(held))
                }
                Claim::HeldMatch | Claim::Won => Verdict::Duplicate(held),
            };
            self.metrics.hits_looked_up.inc();
            saw = Saw::Known;
            waiting.answer(lane, Answer::Decided(verdict));
        }
        (Ok(unknown), saw)
    }

    /// How many get what is sent to each topic, where the transaction cannot tell before it begins.
    /// It only cuts batches: what could not be asked is asked with the next one.
    async fn learn_audiences(&self, gate: &Gate, batch: &[Waiting]) {
        if self.store.has_doors() {
            return;
        }
        let topics = gate.unknown_topics(batch);
        if topics.is_empty() {
            return;
        }
        match self.store.audiences(gate.mesh_id, &topics).await {
            Ok(audiences) => gate.learn(topics, audiences),
            Err(error) => tracing::warn!(error = error.chain(), "subscribers were not counted"),
        }
    }

    async fn check(&self, waiting: &Waiting, names: &Names, now: Between) -> Checked {
        waiting.arrival.check(&waiting.item, now)?;
        let request = names.request(&waiting.item, &waiting.arrival.mesh);
        allowed(self.limiter.take(&request).await)
    }

    /// What became of B2 and B3. A statement that was refused for its data is found by running
    /// items alone, and what was too much for one transaction is run in halves.
    async fn answers(
        self: &Arc<Self>,
        gate: &Arc<Gate>,
        origin: Origin<'_>,
        batch: &Arc<AcceptBatch>,
        done: Result<BatchDone, StoreError>,
    ) -> Vec<Answer> {
        let error = match done {
            Ok(_) if self.life.has_ended() => return vec![Answer::Close; batch.items.len()],
            Ok(done) => return self.told(batch, done),
            Err(error) => error,
        };
        self.metrics.failed(&error);
        let Some(size) = part_size(&error, batch.items.len()) else {
            return vec![undone(&error); batch.items.len()];
        };
        tracing::warn!(error = error.chain(), size, "a batch is run in parts");
        let mut answers: Vec<Answer> = Vec::with_capacity(batch.items.len());
        while answers.len() < batch.items.len() {
            // The store went away meanwhile: what comes behind must not overtake.
            if let Some(last @ (Answer::Later | Answer::Close)) = answers.last() {
                let last = last.clone();
                answers.resize(batch.items.len(), last);
                break;
            }
            let from = answers.len();
            let rest = (&batch.items[from..], &origin.places[from..]);
            match self.next_part(gate, rest, size) {
                Err(answer) => answers.push(answer),
                Ok(count) => {
                    let items = batch.items[from..from + count].to_vec();
                    let part = AcceptBatch { items, ..(**batch).clone() };
                    let places = &origin.places[from..from + count];
                    let origin = Origin { first: origin.first + from, places, ..origin };
                    answers.extend(self.part(gate, origin, part).await);
                }
            }
        }
        answers
    }

    /// How many of these come next, or what the first of them is answered: one that shared its
    /// transaction was lost with it, and comes again first.
    fn next_part(
        &self,
        gate: &Gate,
        (items, places): (&[AcceptItem], &[Place]),
        size: usize,
    ) -> Result<usize, Answer> {
        let (mut put_off, now) = (gate.put_off(), self.clock.monotonic());
        let mut count = 0;
        for (item, place) in items.iter().zip(places).take(size) {
            match put_off.behind(item, *place, now) {
                Some(answer) if count == 0 => return Err(answer),
                Some(_) => break,
                None => count += 1,
            }
        }
        Ok(count)
    }

    /// Runs these in a transaction of their own.
    async fn part(
        self: &Arc<Self>,
        gate: &Arc<Gate>,
        origin: Origin<'_>,
        part: AcceptBatch,
    ) -> Vec<Answer> {
        let part = Arc::new(part);
        let door = AtTheDoor::of(self, gate, origin.guests, origin.first);
        let next = Next { batch: Arc::clone(&part), door, is_ahead: false };
        let (before, count) = (Arc::default(), part.items.len());
        let done = self.store.accept_next(&before, count, move |_| Some(next)).await;
        let mut answers = Box::pin(self.answers(gate, origin, &part, done)).await;
        answers.resize(count, Answer::Close);
        answers
    }

    fn told(&self, batch: &AcceptBatch, done: BatchDone) -> Vec<Answer> {
        self.hub.hand_over(batch, &done);
        if let Some(hints) = self.hints.as_ref().filter(|_| !done.recipients.is_empty()) {
            hints.touched(batch.mesh_id);
        }
        let hit =
            |verdict: &&Verdict| matches!(verdict, Verdict::Duplicate(_) | Verdict::Reused(_));
        self.metrics.hits_claimed.inc_by(done.verdicts.iter().filter(hit).count() as u64);
        done.verdicts.into_iter().map(Answer::Decided).collect()
    }
}

/// What can be said of sends whose transaction failed.
fn undone(error: &StoreError) -> Answer {
    tracing::error!(error = error.chain(), "a batch was not accepted");
    match (error.fate(), error) {
        (Fate::Uncertain, _) => Answer::Close,
        (Fate::Undone, error) if is_about_data(error) => Answer::Stuck,
        (Fate::Undone, StoreError::TooManyRows { .. }) => Answer::Stuck,
        (Fate::Undone, _) => Answer::Later,
    }
}

/// How many of a batch that failed are run together next; nothing if that would be no better.
fn part_size(error: &StoreError, count: usize) -> Option<usize> {
    if count < 2 {
        return None;
    }
    if matches!(error, StoreError::TooManyRows { .. }) {
        return Some(count.div_ceil(2));
    }
    is_about_data(error).then_some(1)
}

/// Whether one of the sends may be why. What somebody has cancelled is nobody's fault: the others
/// must not overtake it.
fn is_about_data(error: &StoreError) -> bool {
    matches!(error, StoreError::Sqlite(_) | StoreError::Postgres(_)) && !error.passes()
}

#[cfg(test)]
mod tests;
