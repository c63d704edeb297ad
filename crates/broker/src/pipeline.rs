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
//! that wait for it are closed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use semel_core::clock::{Clock, UnixMs};
use semel_core::code::Code;
use semel_core::id::MeshId;
use semel_store::{Fate, StoreError};
use tokio::sync::{mpsc, oneshot};

use crate::accept::{AcceptBatch, AcceptItem, Claim, Verdict};
use crate::hints::Hints;
use crate::hub::Hub;
use crate::limiter::{self, LimitRequest, Limiter};
use crate::limits::{BATCH_MAX, LANE_QUEUE_MAX};
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
    /// `503`: it was undone, the same id may be sent again.
    Later,
    /// No answer can be given: close the connection.
    Close,
}

/// A send on its way.
struct Waiting {
    item: AcceptItem,
    enqueued_at: UnixMs,
    reply: oneshot::Sender<Answer>,
}

/// The lanes of all meshes.
pub struct Pipeline {
    shared: Arc<Shared>,
    lanes: Mutex<HashMap<MeshId, mpsc::Sender<Waiting>>>,
}

struct Shared {
    store: Store,
    limiter: Limiter,
    clock: Arc<dyn Clock>,
    hub: Arc<Hub>,
    hints: Option<Hints>,
}

impl Pipeline {
    /// A pipeline over this store, of a broker that is alone.
    pub fn new(store: Store, limiter: Limiter, clock: Arc<dyn Clock>, hub: Arc<Hub>) -> Self {
        Self::with_hints(store, limiter, clock, hub, None)
    }

    /// A pipeline that tells other brokers of its commits.
    pub fn with_hints(
        store: Store,
        limiter: Limiter,
        clock: Arc<dyn Clock>,
        hub: Arc<Hub>,
        hints: Option<Hints>,
    ) -> Self {
        let shared = Arc::new(Shared { store, limiter, clock, hub, hints });
        Self { shared, lanes: Mutex::new(HashMap::new()) }
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
        let _ = lane.send(Waiting { item, enqueued_at, reply }).await;
        answer
    }

    fn lane(&self, mesh: &Arc<Mesh>) -> mpsc::Sender<Waiting> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let lane = lanes.entry(mesh.mesh_id).or_insert_with(|| {
            let (lane, waiting) = mpsc::channel(LANE_QUEUE_MAX);
            let (passed, batches) = mpsc::channel(BATCH_MAX);
            let (first, second) = (Arc::clone(&self.shared), Arc::clone(&self.shared));
            let (mesh, mesh_too) = (Arc::clone(mesh), Arc::clone(mesh));
            drop(tokio::spawn(async move {
                first.look_up_and_check(&mesh, waiting, &passed).await;
            }));
            drop(tokio::spawn(async move { second.run_batches(&mesh_too, batches).await }));
            lane
        });
        lane.clone()
    }
}

impl Shared {
    /// The first station.
    async fn look_up_and_check(
        &self,
        mesh: &Mesh,
        mut waiting: mpsc::Receiver<Waiting>,
        passed: &mpsc::Sender<Waiting>,
    ) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while waiting.recv_many(&mut batch, BATCH_MAX).await > 0 {
            let now = self.clock.wall();
            let batch = std::mem::take(&mut batch);
            let Some(unknown) = self.answer_known(mesh, batch, now).await else { continue };
            let checked = unknown.into_iter().map(|waiting| self.check(mesh, waiting, now));
            for waiting in join_all(checked).await.into_iter().flatten() {
                // Without the second station nobody is answered, which closes connections.
                let _ = passed.send(waiting).await;
            }
        }
    }

    /// The second station.
    async fn run_batches(&self, mesh: &Mesh, mut passed: mpsc::Receiver<Waiting>) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while passed.recv_many(&mut batch, BATCH_MAX).await > 0 {
            let sends = batch.drain(..).map(|waiting| (waiting.item, waiting.reply));
            let (items, replies): (Vec<_>, Vec<_>) = sends.unzip();
            let now = self.clock.wall();
            let expires_at = mesh.dedupe.expires_at(now);
            let batch = Arc::new(AcceptBatch { mesh_id: mesh.mesh_id, now, expires_at, items });
            let answers = self.accept(&batch).await;
            for (reply, answer) in replies.into_iter().zip(answers) {
                // A daemon that went away will ask again.
                let _ = reply.send(answer);
            }
        }
    }

    /// B0. Gives back those that are not known, or nothing when the store could not be asked.
    async fn answer_known(
        &self,
        mesh: &Mesh,
        batch: Vec<Waiting>,
        now: UnixMs,
    ) -> Option<Vec<Waiting>> {
        let key = |waiting: &Waiting| {
            (waiting.item.session.member_id, waiting.item.client_message_id.clone())
        };
        let keys: Vec<_> = batch.iter().map(key).collect();
        let held = match self.store.dedupe_look_up(mesh.mesh_id, &keys).await {
            Ok(held) => held,
            Err(error) => {
                tracing::warn!(error = error.chain(), "ids could not be looked up");
                batch.into_iter().for_each(|waiting| drop(waiting.reply.send(Answer::Later)));
                return None;
            }
        };
        let mut unknown = Vec::new();
        for (waiting, held) in batch.into_iter().zip(held) {
            let Some(held) = held else {
                unknown.push(waiting);
                continue;
            };
            let too_old = mesh.dedupe.too_old(waiting.enqueued_at, now);
            let answer = match (Claim::held(&held, &waiting.item.fingerprint), too_old) {
                // This request may have been accepted and forgotten before the other one came.
                (Claim::HeldDiffers, true) => Answer::Refused(Code::KeyTooOldToJudge),
                (Claim::HeldDiffers, false) => Answer::Decided(Verdict::Reused(held)),
                (Claim::HeldMatch | Claim::Won, _) => Answer::Decided(Verdict::Duplicate(held)),
            };
            let _ = waiting.reply.send(answer);
        }
        Some(unknown)
    }

    /// B1. Age comes before every refusal: what is too old to judge is never refused.
    async fn check(&self, mesh: &Mesh, waiting: Waiting, now: UnixMs) -> Option<Waiting> {
        let item = &waiting.item;
        let too_large = item.envelope.body().len() > mesh.inline_bytes as usize;
        let refusal = if mesh.dedupe.too_old(waiting.enqueued_at, now) {
            Some(Answer::Refused(Code::KeyTooOldToJudge))
        } else if too_large {
            Some(Answer::Refused(Code::PayloadTooLarge))
        } else {
            self.over_the_limit(mesh, item).await
        };
        match refusal {
            None => Some(waiting),
            Some(answer) => {
                let _ = waiting.reply.send(answer);
                None
            }
        }
    }

    async fn over_the_limit(&self, mesh: &Mesh, item: &AcceptItem) -> Option<Answer> {
        let (mesh_id, sender) = (mesh.mesh_id.to_string(), item.session.member_id.to_string());
        let request = LimitRequest {
            mesh: &mesh_id,
            sender: &sender,
            client_message_id: item.client_message_id.as_str(),
            limit: mesh.rate_limit,
            window: Duration::from_millis(u64::from(mesh.rate_window_ms)),
        };
        match self.limiter.take(&request).await.verdict {
            limiter::Verdict::Counted | limiter::Verdict::Free => None,
            limiter::Verdict::Denied { retry_after } => Some(Answer::RateLimited { retry_after }),
        }
    }

    /// B2 and B3. A statement that was refused for its data is found by running items alone.
    async fn accept(&self, batch: &Arc<AcceptBatch>) -> Vec<Answer> {
        match self.store.accept(batch).await {
            Ok(done) => self.told(batch, done),
            Err(StoreError::Sqlite(_) | StoreError::Postgres(_)) if batch.items.len() > 1 => {
                let mut answers = Vec::with_capacity(batch.items.len());
                for item in &batch.items {
                    let alone = AcceptBatch { items: vec![item.clone()], ..(**batch).clone() };
                    answers.extend(Box::pin(self.accept(&Arc::new(alone))).await);
                }
                answers
            }
            Err(error) => {
                tracing::error!(error = error.chain(), "a batch was not accepted");
                let answer = match error.fate() {
                    Fate::Undone => Answer::Later,
                    Fate::Uncertain => Answer::Close,
                };
                vec![answer; batch.items.len()]
            }
        }
    }

    fn told(&self, batch: &AcceptBatch, done: BatchDone) -> Vec<Answer> {
        self.hub.wake(batch.mesh_id, &done.recipients);
        if let Some(hints) = self.hints.as_ref().filter(|_| !done.recipients.is_empty()) {
            hints.touched(batch.mesh_id);
        }
        done.verdicts.into_iter().map(Answer::Decided).collect()
    }
}
