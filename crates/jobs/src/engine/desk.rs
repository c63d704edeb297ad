//! What a gear talks to while it works.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use semel_core::id::JobId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, mpsc};

use super::{Engine, Inner, News};
use crate::gear::{Desk, Failure, FailureClass, Later, Report, SubJob, SubJobEnded};
use crate::life::JobStatus;
use crate::limits::{REPORTS_MAX, SUB_JOB_DEPTH_MAX};
use crate::store::Kept;

/// Reports that may wait to be written.
const WAITING_MAX: usize = 1024;

/// A report and whose it is.
pub(super) struct Reported {
    pub(super) step_id: String,
    pub(super) report: Report,
}

#[derive(Clone)]
pub(super) struct Reports(mpsc::Sender<Reported>);

impl Reports {
    pub(super) fn channel() -> (Self, mpsc::Receiver<Reported>) {
        let (told, heard) = mpsc::channel(WAITING_MAX);
        (Self(told), heard)
    }
}

/// One of the engine's slots. A job that waits for a sub-job gives it back meanwhile: otherwise
/// parents could take all slots and wait for ever.
pub(super) struct Slot {
    permit: Mutex<Option<OwnedSemaphorePermit>>,
    waiting: AtomicU32,
}

impl Slot {
    pub(super) fn of(permit: OwnedSemaphorePermit) -> Self {
        Self { permit: Mutex::new(Some(permit)), waiting: AtomicU32::new(0) }
    }

    /// The job has ended: before anybody hears of it and comes with the next.
    pub(super) fn free(&self) {
        drop(self.lock().take());
    }

    fn give_back(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        drop(self.lock().take());
    }

    async fn take_again(&self, slots: &Arc<Semaphore>) {
        if self.waiting.fetch_sub(1, Ordering::SeqCst) > 1 {
            return;
        }
        // Closed only when the engine stops, and then nobody counts any more.
        if let Ok(permit) = Arc::clone(slots).acquire_owned().await {
            *self.lock() = Some(permit);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<OwnedSemaphorePermit>> {
        self.permit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The desk of one step.
pub(super) struct StepDesk {
    inner: Arc<Inner>,
    parent: JobId,
    execution_id: String,
    depth: u32,
    step_id: String,
    reports: Reports,
    slot: Arc<Slot>,
    told: AtomicU32,
}

impl StepDesk {
    pub(super) fn new(
        inner: &Arc<Inner>,
        kept: &Kept,
        step_id: &str,
        reports: Reports,
        slot: Arc<Slot>,
    ) -> Self {
        Self {
            inner: Arc::clone(inner),
            parent: kept.job.id,
            execution_id: format!("{}:{step_id}", kept.job.root_id),
            depth: kept.job.depth,
            step_id: step_id.to_owned(),
            reports,
            slot,
            told: AtomicU32::new(0),
        }
    }
}

impl Desk for StepDesk {
    fn report(&self, report: Report) {
        if self.told.fetch_add(1, Ordering::Relaxed) >= REPORTS_MAX {
            return;
        }
        let reported = Reported { step_id: self.step_id.clone(), report };
        if self.reports.0.try_send(reported).is_err() {
            tracing::debug!(execution_id = self.execution_id, "a gear's report was dropped");
        }
    }

    fn sub_job(&self, asked: SubJob) -> Later<'_, SubJobEnded> {
        Box::pin(async move {
            let refuse = |code: &str, message: String| {
                SubJobEnded::Failed(Failure::new(FailureClass::UserError, code, message))
            };
            if self.depth + 1 > SUB_JOB_DEPTH_MAX {
                return refuse(
                    "sub_job_too_deep",
                    "too many jobs are inside each other".to_owned(),
                );
            }
            let key = format!("sub:{}:{}", self.execution_id, asked.number);
            // Subscribed before it is made, so that its end is not missed.
            let news = self.inner.news.subscribe();
            let made = Engine::take_sub_job(&self.inner, self.parent, self.depth, key, asked.asked);
            match made.await {
                Ok(id) => {
                    self.slot.give_back();
                    let ended = wait(&self.inner, id, news).await;
                    self.slot.take_again(&self.inner.slots).await;
                    ended
                }
                Err(message) => refuse("sub_job_refused", message),
            }
        })
    }
}

/// Until the job has ended, here or at another engine.
async fn wait(inner: &Inner, id: JobId, mut news: broadcast::Receiver<News>) -> SubJobEnded {
    loop {
        if let Ok(Some(kept)) = inner.parts.store.job(id).await {
            let state = &kept.job.state;
            match state.status {
                JobStatus::Completed => {
                    return SubJobEnded::Completed(crate::view::result(&kept));
                }
                JobStatus::Failed | JobStatus::Cancelled => {
                    let failure = state.error.as_deref().map(crate::course::failure_of);
                    return SubJobEnded::Failed(failure.unwrap_or_else(|| {
                        let message = "the sub-job was cancelled";
                        Failure::new(FailureClass::UserError, "cancelled", message)
                    }));
                }
                JobStatus::Pending
                | JobStatus::Planning
                | JobStatus::Validating
                | JobStatus::AwaitingApproval
                | JobStatus::Executing => {}
            }
        }
        // News of this engine come at once; those of others are found by looking.
        let heard = async {
            loop {
                match news.recv().await {
                    Ok(news) if news.id != id => {}
                    Ok(_) | Err(_) => return,
                }
            }
        };
        let _ = tokio::time::timeout(inner.options.poll * 5, heard).await;
    }
}
