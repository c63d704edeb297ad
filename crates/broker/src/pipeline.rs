//! From a send to its answer: decode → B0 → B1 → batch → B2/B3 → answer (mesh.md §7).
//!
//! Every mesh has a lane of two stations, each a task of its own: a daemon that goes away cancels
//! nothing half-way. The first looks ids up (B0) and checks (B1), the second runs the transaction
//! (B2, B3). Each has one batch under way, and takes what has arrived meanwhile as its next: a lone
//! send costs one commit, a crowd shares them, and sends stay in their order. An id whose first
//! attempt is still in the second station is not known in the first; the transaction finds it.
//!
//! | phase | what | refused with |
//! |---|---|---|
//! | B0 | is the id known? Then it is answered, before any limit | – |
//! | B1 | too old to judge, then size, then rate | `410`, `413`, `429` |
//! | B2, B3 | the store's transaction | the table of `docs/design/broker.md` |
//!
//! `5xx` is said only of what was undone. What nobody can know is not answered: the connections
//! that wait for it are closed. What comes behind a send that was put off is put off as well
//! (`order.rs`).

mod order;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use semel_core::clock::{Clock, UnixMs};
use semel_core::code::Code;
use semel_core::id::MeshId;
use semel_store::{Fate, StoreError};
use tokio::sync::{mpsc, oneshot};

use self::order::{PutOff, ToldToWait};
use crate::accept::{AcceptBatch, AcceptItem, Claim, Verdict};
use crate::hints::Hints;
use crate::hub::Hub;
use crate::life::StoreLife;
use crate::limiter::{self, LimitRequest, Limiter, LimiterCounts};
use crate::limits::{BATCH_MAX, LANE_QUEUE_MAX};
use crate::metrics::{LaneMetrics, Metrics};
use crate::store::{BatchDone, Mesh, Store};

/// What a send is answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// What the table says.
    Decided(Verdict),
    /// Refused before the transaction.
    Refused(Code),
    /// `429`.
    RateLimited {
        /// When to come back.
        retry_after: Duration,
    },
    /// `503`: the store was away, it was undone, the same id may be sent again.
    Later,
    /// `503` for a send that the store refuses by itself: nobody else waits for it.
    Stuck,
    /// No answer can be given: close the connection.
    Close,
}

/// A send on its way.
struct Waiting {
    /// The rules that its connection was told: a lane outlives a change of them.
    mesh: Arc<Mesh>,
    item: AcceptItem,
    enqueued_at: UnixMs,
    reply: oneshot::Sender<Answer>,
}

impl Waiting {
    /// A daemon that went away will ask again.
    fn answer(self, lane: &LaneMetrics, answer: Answer) {
        lane.answered(&self.item, &answer);
        let _ = self.reply.send(answer);
    }
}

/// A send that passed B1, and what it cost; nothing of one that could not be looked up, which has
/// its place in the order all the same.
type Passed = (Waiting, Option<limiter::Verdict>);

/// The lanes of all meshes.
pub struct Pipeline {
    shared: Arc<Shared>,
    lanes: Mutex<HashMap<MeshId, mpsc::Sender<Waiting>>>,
}

struct Shared {
    store: Store,
    life: StoreLife,
    limiter: Limiter,
    clock: Arc<dyn Clock>,
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
        let shared = Arc::new(Shared { store, life, limiter, clock, hub, hints, metrics });
        Self { shared, lanes: Mutex::new(HashMap::new()) }
    }

    /// What is counted here and by everything that works with it.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.shared.metrics
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
        let lane = self.lane(mesh);
        // A lane that has ended drops the send, and with it the channel: that is an answer.
        let mesh = Arc::clone(mesh);
        let _ = lane.send(Waiting { mesh, item, enqueued_at, reply }).await;
        answer
    }

    fn lane(&self, mesh: &Arc<Mesh>) -> mpsc::Sender<Waiting> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let lane = lanes.entry(mesh.mesh_id).or_insert_with(|| {
            let (lane, waiting) = mpsc::channel(LANE_QUEUE_MAX);
            let (passed, batches) = mpsc::channel(BATCH_MAX);
            let (first, second) = (Arc::clone(&self.shared), Arc::clone(&self.shared));
            let counted = Arc::new(first.metrics.lane(mesh));
            let counted_too = Arc::clone(&counted);
            drop(tokio::spawn(async move {
                first.look_up_and_check(&counted, waiting, &passed).await;
            }));
            drop(tokio::spawn(async move { second.run_batches(&counted_too, batches).await }));
            lane
        });
        lane.clone()
    }
}

impl Shared {
    /// The first station.
    async fn look_up_and_check(
        &self,
        lane: &LaneMetrics,
        mut waiting: mpsc::Receiver<Waiting>,
        passed: &mpsc::Sender<Passed>,
    ) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        let mut told_to_wait = ToldToWait::default();
        while gathered(&mut waiting, &mut batch).await {
            let now = self.clock.wall();
            let batch = std::mem::take(&mut batch);
            let unknown = match self.answer_known(lane, batch, now).await {
                Ok(unknown) => unknown,
                Err(undecided) => {
                    for waiting in undecided {
                        drop(passed.send((waiting, None)).await);
                    }
                    continue;
                }
            };
            let checked = unknown.into_iter().map(|waiting| self.check(waiting, now));
            for (waiting, checked) in join_all(checked).await {
                let monotonic = self.clock.monotonic();
                match told_to_wait.in_order(&waiting.item, checked, monotonic) {
                    // Without the second station nobody is answered, which closes connections.
                    Ok(cost) => drop(passed.send((waiting, Some(cost))).await),
                    Err(answer) => waiting.answer(lane, answer),
                }
            }
        }
    }

    /// The second station.
    async fn run_batches(&self, lane: &LaneMetrics, mut passed: mpsc::Receiver<Passed>) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        let mut put_off = PutOff::default();
        while gathered(&mut passed, &mut batch).await {
            let monotonic = self.clock.monotonic();
            let mut running = Vec::with_capacity(batch.len());
            for (waiting, cost) in batch.drain(..) {
                match (put_off.behind(&waiting.item, monotonic), cost) {
                    (None, Some(cost)) => running.push((waiting, cost)),
                    (answer, _) => {
                        let answer = answer.unwrap_or(Answer::Later);
                        put_off.answered(&waiting.item, &answer, monotonic);
                        waiting.answer(lane, answer);
                    }
                }
            }
            self.run_batch(lane, running, &mut put_off).await;
        }
    }

    async fn run_batch(
        &self,
        lane: &LaneMetrics,
        sends: Vec<(Waiting, limiter::Verdict)>,
        put_off: &mut PutOff,
    ) {
        let now = self.clock.wall();
        let Some((first, _)) = sends.first() else { return };
        let mesh_id = first.mesh.mesh_id;
        // Connections may know different policies of the mesh: the longest promise counts.
        let expiries = sends.iter().map(|(waiting, _)| waiting.mesh.dedupe.expires_at(now));
        let expires_at = expiries.reduce(later).flatten();
        let sends = sends.into_iter().map(|(waiting, cost)| (waiting.item, (waiting.reply, cost)));
        let (items, replies): (Vec<_>, Vec<_>) = sends.unzip();
        let batch = Arc::new(AcceptBatch { mesh_id, now, expires_at, items });
        if cfg!(semel_plant = "ack") {
            for (item, (reply, _)) in batch.items.iter().zip(replies) {
                let (broker_message_id, history_id) = (item.broker_message_id, 1);
                let early = Verdict::Accepted { broker_message_id, history_id };
                let _ = reply.send(Answer::Decided(early));
            }
            self.accept(&batch).await;
            return;
        }
        let answers = self.accept(&batch).await;
        let monotonic = self.clock.monotonic();
        for ((item, (reply, cost)), answer) in batch.items.iter().zip(replies).zip(answers) {
            lane.answered(item, &answer);
            put_off.answered(item, &answer, monotonic);
            let refused = matches!(answer, Answer::Decided(Verdict::Refused(_)));
            if refused && cost == limiter::Verdict::Counted {
                self.metrics.spent_then_refused.inc();
            }
            // A daemon that went away will ask again.
            let _ = reply.send(answer);
        }
    }

    /// B0. Gives back those that are not known, or all of them when the store could not be asked.
    async fn answer_known(
        &self,
        lane: &LaneMetrics,
        batch: Vec<Waiting>,
        now: UnixMs,
    ) -> Result<Vec<Waiting>, Vec<Waiting>> {
        let Some(mesh_id) = batch.first().map(|waiting| waiting.mesh.mesh_id) else {
            return Ok(batch);
        };
        let key = |waiting: &Waiting| {
            (waiting.item.session.member_id, waiting.item.client_message_id.clone())
        };
        let keys: Vec<_> = batch.iter().map(key).collect();
        let held = match self.store.dedupe_look_up(mesh_id, &keys).await {
            Ok(found) if self.life.goes_on(&found.store_epoch) => found.held,
            Ok(_) => {
                // What another life of the store knows says nothing about this one's sends.
                batch.into_iter().for_each(|waiting| waiting.answer(lane, Answer::Close));
                return Ok(Vec::new());
            }
            Err(error) => {
                tracing::warn!(error = error.chain(), "ids could not be looked up");
                return Err(batch);
            }
        };
        let mut unknown = Vec::new();
        for (waiting, held) in batch.into_iter().zip(held) {
            let Some(held) = held else {
                unknown.push(waiting);
                continue;
            };
            let too_old = waiting.mesh.too_old(waiting.enqueued_at, now);
            let answer = match (Claim::held(&held, &waiting.item.fingerprint), too_old) {
                // This request may have been accepted and forgotten before the other one came.
                (Claim::HeldDiffers, true) => Answer::Refused(Code::KeyTooOldToJudge),
                (Claim::HeldDiffers, false) => Answer::Decided(Verdict::Reused(held)),
                (Claim::HeldMatch | Claim::Won, _) => Answer::Decided(Verdict::Duplicate(held)),
            };
            self.metrics.hits_looked_up.inc();
            waiting.answer(lane, answer);
        }
        Ok(unknown)
    }

    /// B1. Age comes before every refusal: what is too old to judge is never refused.
    async fn check(
        &self,
        waiting: Waiting,
        now: UnixMs,
    ) -> (Waiting, Result<limiter::Verdict, Answer>) {
        let (item, mesh) = (&waiting.item, &waiting.mesh);
        let too_large = item.envelope.body().len() > mesh.inline_bytes as usize;
        let checked = if mesh.too_old(waiting.enqueued_at, now) {
            Err(Answer::Refused(Code::KeyTooOldToJudge))
        } else if too_large {
            Err(Answer::Refused(Code::PayloadTooLarge))
        } else {
            self.within_the_limit(mesh, item).await
        };
        (waiting, checked)
    }

    async fn within_the_limit(
        &self,
        mesh: &Mesh,
        item: &AcceptItem,
    ) -> Result<limiter::Verdict, Answer> {
        let (mesh_id, sender) = (mesh.mesh_id.to_string(), item.session.member_id.to_string());
        let request = LimitRequest {
            mesh: &mesh_id,
            sender: &sender,
            client_message_id: item.client_message_id.as_str(),
            limit: mesh.rate_limit,
            window: Duration::from_millis(u64::from(mesh.rate_window_ms)),
        };
        match self.limiter.take(&request).await.verdict {
            cost @ (limiter::Verdict::Counted | limiter::Verdict::Free) => Ok(cost),
            limiter::Verdict::Denied { retry_after } => Err(Answer::RateLimited { retry_after }),
        }
    }

    /// B2 and B3. A statement that was refused for its data is found by running items alone.
    async fn accept(&self, batch: &Arc<AcceptBatch>) -> Vec<Answer> {
        let started = self.clock.monotonic();
        let accepted = self.store.accept(batch).await;
        let took = self.clock.monotonic().saturating_sub(started);
        self.metrics.batch(batch.items.len(), took);
        match accepted {
            Ok(done) => self.told(batch, done),
            Err(StoreError::Sqlite(_) | StoreError::Postgres(_)) if batch.items.len() > 1 => {
                let mut answers = Vec::with_capacity(batch.items.len());
                for item in &batch.items {
                    // The store went away meanwhile: what comes behind must not overtake.
                    if let Some(last @ (Answer::Later | Answer::Close)) = answers.last() {
                        answers.push(last.clone());
                        continue;
                    }
                    let alone = AcceptBatch { items: vec![item.clone()], ..(**batch).clone() };
                    answers.extend(Box::pin(self.accept(&Arc::new(alone))).await);
                }
                answers
            }
            Err(error) => {
                tracing::error!(error = error.chain(), "a batch was not accepted");
                let answer = match (error.fate(), &error) {
                    (Fate::Uncertain, _) => Answer::Close,
                    (Fate::Undone, StoreError::Sqlite(_) | StoreError::Postgres(_)) => {
                        Answer::Stuck
                    }
                    (Fate::Undone, _) => Answer::Later,
                };
                vec![answer; batch.items.len()]
            }
        }
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

/// Takes what is there, once everybody who is ready to add to it has run: fewer and larger batches
/// under load, and no wait without. `false` when nothing comes any more.
async fn gathered<Item>(from: &mut mpsc::Receiver<Item>, batch: &mut Vec<Item>) -> bool {
    if from.recv_many(batch, BATCH_MAX).await == 0 {
        return false;
    }
    tokio::task::yield_now().await;
    while batch.len() < BATCH_MAX
        && let Ok(more) = from.try_recv()
    {
        batch.push(more);
    }
    true
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
