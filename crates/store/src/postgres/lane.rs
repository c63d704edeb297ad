//! Single rows are too slow: what arrives while a transaction is under way becomes the next one.
//!
//! A lane has no task of its own. Whoever finds it idle starts one that writes for as long as
//! anything waits; a caller that goes away cancels nothing that was handed in (traps.md 49), and
//! gives no place back that its item still holds. A transaction that panics takes its own batch
//! along and nobody else's.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::StoreError;
use crate::limits::{LANE_BATCH_MAX, LANE_QUEUE_MAX};

/// Where one caller waits, and its item's place in the lane.
struct Waits<Answer> {
    answer: oneshot::Sender<Result<Answer, StoreError>>,
    _place: OwnedSemaphorePermit,
}

/// What the transactions of a lane do.
pub trait Work<Item, Answer>: Clone + Send + Sync + 'static {
    /// Items that share a transaction at the most.
    const ITEMS_MAX: usize = LANE_BATCH_MAX;

    /// Whether an item may share a transaction with those before it.
    fn fits(batch: &[Item], item: &Item) -> bool;

    /// Writes them; answers one by one.
    fn run(&self, batch: Vec<Item>)
    -> impl Future<Output = Vec<Result<Answer, StoreError>>> + Send;
}

/// Writes that share transactions, a few of which are under way at once.
pub struct Lane<Item, Answer> {
    shared: Arc<Shared<Item, Answer>>,
}

struct Shared<Item, Answer> {
    queue: Mutex<Queue<Item, Answer>>,
    /// One more waits outside.
    room: Arc<Semaphore>,
    at_once: usize,
}

struct Queue<Item, Answer> {
    waiting: VecDeque<(Item, Waits<Answer>)>,
    running: usize,
}

impl<Item: Send + 'static, Answer: Send + 'static> Lane<Item, Answer> {
    /// With so many transactions at once.
    pub fn new(at_once: usize) -> Self {
        let queue = Queue { waiting: VecDeque::new(), running: 0 };
        let room = Arc::new(Semaphore::new(LANE_QUEUE_MAX));
        Self { shared: Arc::new(Shared { queue: Mutex::new(queue), room, at_once }) }
    }

    /// Hands an item in and waits for its answer.
    pub async fn write(
        &self,
        work: &impl Work<Item, Answer>,
        item: Item,
    ) -> Result<Answer, StoreError> {
        let room = Arc::clone(&self.shared.room);
        let Ok(place) = room.acquire_owned().await else { return Err(StoreError::Stopped) };
        let (answer, answered) = oneshot::channel();
        let idle = {
            let mut queue = self.shared.lock();
            queue.waiting.push_back((item, Waits { answer, _place: place }));
            let idle = queue.running < self.shared.at_once;
            queue.running += usize::from(idle);
            idle
        };
        if idle {
            let (shared, work) = (Arc::clone(&self.shared), work.clone());
            drop(tokio::spawn(async move { shared.drain(work).await }));
        }
        let gone = || StoreError::Uncertain { cause: "the writer has ended".into() };
        answered.await.unwrap_or_else(|_| Err(gone()))
    }
}

impl<Item: Send, Answer: Send> Shared<Item, Answer> {
    fn lock(&self) -> MutexGuard<'_, Queue<Item, Answer>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes until nothing waits.
    async fn drain<W: Work<Item, Answer>>(&self, work: W) {
        let mut running = Running { lane: self, over: false };
        while let Some((batch, answers)) = running.next::<W>() {
            // Those whose batch panicked hear that nobody can know; the others go on.
            let Ok(written) = AssertUnwindSafe(work.run(batch)).catch_unwind().await else {
                tracing::error!("a transaction that was shared has panicked");
                continue;
            };
            for (waits, written) in answers.into_iter().zip(written) {
                // Whoever went away does not want to know.
                let _ = waits.answer.send(written);
            }
        }
    }
}

type Batch<Item, Answer> = (Vec<Item>, Vec<Waits<Answer>>);

/// A task that drains the lane; it is counted until it ends, however that comes.
struct Running<'l, Item: Send, Answer: Send> {
    lane: &'l Shared<Item, Answer>,
    over: bool,
}

impl<Item: Send, Answer: Send> Running<'_, Item, Answer> {
    /// Those at the front that fit together. To find none and to be counted out is one step, or
    /// what comes between would wait for nobody.
    fn next<W: Work<Item, Answer>>(&mut self) -> Option<Batch<Item, Answer>> {
        let mut queue = self.lane.lock();
        let (mut batch, mut answers) = (Vec::new(), Vec::new());
        while let Some((item, answer)) = queue.waiting.pop_front() {
            if batch.len() >= W::ITEMS_MAX || !W::fits(&batch, &item) {
                queue.waiting.push_front((item, answer));
                break;
            }
            batch.push(item);
            answers.push(answer);
        }
        if batch.is_empty() {
            queue.running -= 1;
            self.over = true;
            return None;
        }
        Some((batch, answers))
    }
}

impl<Item: Send, Answer: Send> Drop for Running<'_, Item, Answer> {
    fn drop(&mut self) {
        if !self.over {
            self.lane.lock().running -= 1;
        }
    }
}
