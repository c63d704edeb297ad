//! Processes that have done what they were told and wait for more of the same gear.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;

use super::Worker;
use crate::limits::{WARM_EXECUTIONS_MAX, WARM_IDLE, WARM_MAX};

/// Those that wait, the one that waited least last.
#[derive(Default)]
pub(super) struct Warm(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    next: u64,
    workers: Vec<(u64, Worker)>,
}

impl Warm {
    /// One that waits and has said nothing since.
    pub(super) async fn take(&self) -> Option<Worker> {
        loop {
            let (_, mut worker) = self.lock().workers.pop()?;
            // Whoever speaks unasked, or is at its end, is not to be trusted with more.
            if worker.running.line().now_or_never().is_none() {
                return Some(worker);
            }
            worker.running.kill().await;
        }
    }

    /// Lets one wait, for a while.
    pub(super) async fn give(self: &Arc<Self>, worker: Worker) {
        let too_many = {
            let mut waiting = self.lock();
            let id = waiting.next;
            waiting.next += 1;
            waiting.workers.push((id, worker));
            let pool = Arc::downgrade(self);
            tokio::spawn(async move {
                tokio::time::sleep(WARM_IDLE).await;
                let idle = pool.upgrade().and_then(|pool| pool.remove(id));
                if let Some(worker) = idle {
                    worker.running.kill().await;
                }
            });
            (waiting.workers.len() > WARM_MAX).then(|| waiting.workers.remove(0).1)
        };
        if let Some(worker) = too_many {
            worker.running.kill().await;
        }
    }

    fn remove(&self, id: u64) -> Option<Worker> {
        let mut waiting = self.lock();
        let at = waiting.workers.iter().position(|(waits, _)| *waits == id)?;
        Some(waiting.workers.remove(at).1)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Worker {
    /// Whether it may serve once more.
    pub(super) fn is_reusable(&self) -> bool {
        !self.was_stopped && self.executions < WARM_EXECUTIONS_MAX
    }
}
