//! What a gear talks to while it works.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::clock::UnixMs;
use semel_core::id::JobId;
use serde_json::{Value, json};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, broadcast, mpsc};

use super::children::{Parent, take_child};
use super::{Inner, News};
use crate::course::{Move, ToRun, action_name};
use crate::gear::{Desk, Ended, Failure, FailureClass, Gear, Later, Report, SubJob, SubJobEnded};
use crate::life::JobStatus;
use crate::limits::{
    LEDGER_LINES_MAX, REPORT_BYTES_MAX, REPORTS_BYTES_MAX, REPORTS_MAX, REPORTS_WAITING_BYTES_MAX,
    SUB_JOB_DEPTH_MAX, SUB_JOB_LOOK, SUB_JOBS_MAX,
};
use crate::store::{Kept, LedgerEvent};

/// A report and whose it is.
pub(super) struct Reported {
    pub(super) step_id: String,
    pub(super) report: Report,
    /// Given up when it was written.
    pub(super) held: Held,
}

/// How many reports wait is bounded by their bytes, in all jobs together.
#[derive(Clone)]
pub(super) struct Reports(mpsc::UnboundedSender<Reported>);

impl Reports {
    pub(super) fn channel() -> (Self, mpsc::UnboundedReceiver<Reported>) {
        let (told, heard) = mpsc::unbounded_channel();
        (Self(told), heard)
    }
}

/// What all reports that wait take in memory. While it is full no gear is heard, so that it grows
/// by one line of each at the most, and none is lost.
#[derive(Default)]
pub(super) struct Room {
    bytes: AtomicUsize,
    freed: Notify,
}

impl Room {
    fn hold(self: &Arc<Self>, bytes: usize) -> Held {
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
        Held { room: Arc::clone(self), bytes }
    }

    fn is_full(&self) -> bool {
        self.bytes.load(Ordering::SeqCst) >= REPORTS_WAITING_BYTES_MAX
    }

    /// Comes back when it is not full.
    async fn free(&self) {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            // From now on nothing is missed.
            freed.as_mut().enable();
            if !self.is_full() {
                return;
            }
            freed.await;
        }
    }
}

/// The bytes of a report.
pub(super) struct Held {
    room: Arc<Room>,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.room.bytes.fetch_sub(self.bytes, Ordering::SeqCst);
        self.room.freed.notify_waiters();
    }
}

/// One of the engine's slots. A job that waits for a sub-job gives it back meanwhile: otherwise
/// parents could take all slots and wait for ever.
pub(super) struct Slot(Mutex<Places>);

struct Places {
    permit: Option<OwnedSemaphorePermit>,
    /// Steps of the job that wait for sub-jobs.
    waiting: u32,
    ended: bool,
}

impl Slot {
    pub(super) fn of(permit: OwnedSemaphorePermit) -> Self {
        Self(Mutex::new(Places { permit: Some(permit), waiting: 0, ended: false }))
    }

    /// The job has ended: before anybody hears of it and comes with the next.
    pub(super) fn free(&self) {
        let mut places = self.lock();
        places.ended = true;
        drop(places.permit.take());
    }

    /// A step waits until what this gives is dropped.
    fn wait(self: &Arc<Self>, slots: &Arc<Semaphore>) -> Waiting {
        let mut places = self.lock();
        places.waiting += 1;
        drop(places.permit.take());
        Waiting { slot: Arc::clone(self), slots: Arc::clone(slots) }
    }

    /// Takes what the job needs to go on, unless another of its steps waits by now.
    async fn take_again(&self, slots: &Arc<Semaphore>) {
        let needs =
            |places: &Places| places.waiting == 0 && places.permit.is_none() && !places.ended;
        if !needs(&self.lock()) {
            return;
        }
        // Closed only when the engine stops, and then nobody counts any more.
        let Ok(permit) = Arc::clone(slots).acquire_owned().await else { return };
        let mut places = self.lock();
        if needs(&places) {
            places.permit = Some(permit);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A step that waits for a sub-job, or for room.
pub(super) struct Waiting {
    slot: Arc<Slot>,
    slots: Arc<Semaphore>,
}

impl Waiting {
    /// The step goes on once its job has a slot again.
    pub(super) async fn over(self) {
        let (slot, slots) = (Arc::clone(&self.slot), Arc::clone(&self.slots));
        drop(self);
        slot.take_again(&slots).await;
    }
}

impl Drop for Waiting {
    /// A wait that is given up (the step's time is over) counts no more, and the job takes a slot
    /// again as soon as there is one.
    fn drop(&mut self) {
        self.slot.lock().waiting -= 1;
        let (slot, slots) = (Arc::clone(&self.slot), Arc::clone(&self.slots));
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(runtime.spawn(async move { slot.take_again(&slots).await }));
        }
    }
}

/// The desk of one step.
pub(super) struct StepDesk {
    inner: Arc<Inner>,
    parent: JobId,
    execution_id: String,
    depth: u32,
    deadline_at: Option<UnixMs>,
    step_id: String,
    /// Whose desk it is.
    gear: Arc<dyn Gear>,
    reports: Reports,
    slot: Arc<Slot>,
    told: AtomicU32,
    told_bytes: AtomicUsize,
    /// Sub-jobs that were asked for.
    asked: AtomicU32,
    /// Sub-jobs that may have done something, or still may, and that nobody knows the end of.
    in_doubt: AtomicU32,
}

impl StepDesk {
    pub(super) fn new(
        inner: &Arc<Inner>,
        kept: &Kept,
        to_run: &ToRun,
        reports: Reports,
        slot: Arc<Slot>,
    ) -> Self {
        Self {
            inner: Arc::clone(inner),
            parent: kept.job.id,
            execution_id: format!("{}:{}", kept.job.root_id, to_run.step_id),
            depth: kept.job.depth,
            deadline_at: kept.job.state.deadline_at,
            step_id: to_run.step_id.clone(),
            gear: Arc::clone(&to_run.prepared.gear),
            reports,
            slot,
            told: AtomicU32::new(0),
            told_bytes: AtomicUsize::new(0),
            asked: AtomicU32::new(0),
            in_doubt: AtomicU32::new(0),
        }
    }

    /// What the step ended with, whatever its gear has made of its sub-jobs: it has not failed for
    /// certain while one of them may have done something.
    pub(super) fn judge(&self, ended: Ended) -> Ended {
        match ended {
            Ended::Failed(failure) if self.in_doubt.load(Ordering::SeqCst) > 0 => {
                Ended::Uncertain(failure)
            }
            ended @ (Ended::Done(_) | Ended::Failed(_) | Ended::Uncertain(_)) => ended,
        }
    }

    /// The step waits for room, and its job holds no slot for as long as that takes: what the room
    /// is taken by may wait for jobs that need one.
    pub(super) fn waits(&self) -> Waiting {
        self.slot.wait(&self.inner.slots)
    }

    /// Whether the gear may ask for this: its manifest says by which actions.
    fn allow(&self, asked: &Value) -> Result<(), (&'static str, String)> {
        if self.depth + 1 > SUB_JOB_DEPTH_MAX {
            let text = "sub-jobs are nested too deep".to_owned();
            return Err(("sub_job_too_deep", text));
        }
        if self.asked.fetch_add(1, Ordering::Relaxed) >= SUB_JOBS_MAX {
            let text = format!("an attempt has at most {SUB_JOBS_MAX} sub-jobs");
            return Err(("too_many_sub_jobs", text));
        }
        let grants = self.gear.grants();
        let name = |step: &Value, field: &str| {
            step.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let refused = match asked.pointer("/plan/steps").and_then(Value::as_array) {
            Some(steps) => {
                let mut wanted =
                    steps.iter().map(|step| (name(step, "gear"), name(step, "action")));
                let refused = wanted.find(|(gear, action)| !grants.has_action(gear, action));
                refused.map(|(gear, action)| action_name(&gear, &action))
            }
            None => (!grants.has_all_actions()).then(|| "*".to_owned()),
        };
        let Some(action) = refused else { return Ok(()) };
        let own = &self.gear.manifest().id;
        let text = format!("{own} declares no {action} in permissions.sub_jobs of its gear.toml");
        Err(("sub_job_not_allowed", text))
    }

    /// What is left of the job's time.
    fn left(&self) -> Duration {
        let now = self.inner.now();
        let deadline = self.deadline_at.unwrap_or(now);
        Duration::from_millis(deadline.0.saturating_sub(now.0).max(1).cast_unsigned())
    }
}

impl Desk for StepDesk {
    fn report(&self, report: Report) {
        let report = report.cut_to(REPORT_BYTES_MAX);
        let bytes = report.bytes();
        let lines = self.told.fetch_add(1, Ordering::Relaxed);
        let before = self.told_bytes.fetch_add(bytes, Ordering::Relaxed);
        let is_over = |lines: u32, bytes: usize| lines >= REPORTS_MAX || bytes > REPORTS_BYTES_MAX;
        let report = match (is_over(lines, before), is_over(lines + 1, before + bytes)) {
            (true, _) => return,
            // The last one that is kept says so.
            (false, true) => {
                let message = "an attempt may not write more lines than this; the rest is left out";
                Report::Log { message: message.to_owned(), side_effect: false }
            }
            (false, false) => report,
        };
        let held = self.inner.reports.hold(bytes);
        let reported = Reported { step_id: self.step_id.clone(), report, held };
        if self.reports.0.send(reported).is_err() {
            tracing::debug!(
                execution_id = self.execution_id,
                "the messages of a gear are no longer read"
            );
        }
    }

    fn is_full(&self) -> bool {
        self.inner.reports.is_full()
    }

    fn room(&self) -> Later<'_, ()> {
        Box::pin(self.inner.reports.free())
    }

    fn sub_job(&self, asked: SubJob) -> Later<'_, SubJobEnded> {
        Box::pin(async move {
            let refuse = |code: &str, message: String| {
                SubJobEnded::Failed(Failure::new(FailureClass::UserError, code, message))
            };
            if let Err((code, text)) = self.allow(&asked.asked) {
                return refuse(code, text);
            }
            let key = format!("sub:{}:{}", self.execution_id, asked.number);
            // Subscribed before it is made, so that its end is not missed.
            let news = self.inner.news.subscribe();
            let parent = Parent {
                id: self.parent,
                gear: self.gear.manifest().id.clone(),
                grants: self.gear.grants().clone(),
                depth: self.depth,
                left: self.left(),
            };
            // Also when this is given up before it is over.
            self.in_doubt.fetch_add(1, Ordering::SeqCst);
            let (ended, is_certain) =
                match take_child(&self.inner, &parent, &key, &asked.asked).await {
                    Ok(id) => {
                        let waiting = self.slot.wait(&self.inner.slots);
                        let ended = wait(&self.inner, id, news).await;
                        waiting.over().await;
                        ended
                    }
                    Err(refusal) => (refuse("sub_job_refused", refusal.to_string()), true),
                };
            self.in_doubt.fetch_sub(u32::from(is_certain), Ordering::SeqCst);
            ended
        })
    }
}

/// Hands what gears said to the ledger. It waits until what this gives is dropped: once it is
/// written.
pub(super) fn tell(step: &mut Move, said: &mut Vec<Reported>) -> Vec<Held> {
    let room = LEDGER_LINES_MAX.saturating_sub(step.advance().state.entries).max(0);
    said.truncate(usize::try_from(room).unwrap_or(0));
    let told = said.drain(..).map(|Reported { step_id, report, held }| {
        let (event, detail) = match report {
            Report::Log { message, side_effect } => {
                (LedgerEvent::Log, json!({"message": message, "side_effect": side_effect}))
            }
            Report::Progress { percent, message } => {
                (LedgerEvent::Progress, json!({"percent": percent, "message": message}))
            }
        };
        step.line(event, Some(step_id), detail.to_string());
        held
    });
    told.collect()
}

/// Until the job has ended, here or at another engine; and whether that is all that it did.
async fn wait(
    inner: &Inner,
    id: JobId,
    mut news: broadcast::Receiver<News>,
) -> (SubJobEnded, bool) {
    loop {
        if let Ok(Some(kept)) = inner.parts.store.job(id).await {
            let state = &kept.job.state;
            match state.status {
                JobStatus::Completed => {
                    return (SubJobEnded::Completed(crate::view::result(&kept)), true);
                }
                JobStatus::Failed | JobStatus::Cancelled => {
                    let failure = state.error.as_deref().map(crate::course::failure_of);
                    let failure = failure.unwrap_or_else(|| {
                        let message = "the sub-job was cancelled";
                        Failure::new(FailureClass::UserError, "cancelled", message)
                    });
                    let is_certain = kept.executions.iter().all(|line| line.certain);
                    return (SubJobEnded::Failed(failure), is_certain);
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
        let _ = tokio::time::timeout(SUB_JOB_LOOK, heard).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn permit(slots: &Arc<Semaphore>) -> OwnedSemaphorePermit {
        Arc::clone(slots).acquire_owned().await.expect("open")
    }

    /// Everything that can go on does.
    async fn settle() {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    /// One step's wait is over while another one's begins: the job holds no slot meanwhile, or the
    /// sub-job that it waits for may never get one.
    #[tokio::test]
    async fn a_job_of_which_a_step_waits_holds_no_slot() {
        let slots = Arc::new(Semaphore::new(1));
        let slot = Arc::new(Slot::of(permit(&slots).await));
        let first = slot.wait(&slots);
        let sub_job = permit(&slots).await;
        let over = tokio::spawn(first.over());
        settle().await;
        assert!(!over.is_finished(), "there is no slot");
        let second = slot.wait(&slots);
        drop(sub_job);
        over.await.expect("no panic");
        settle().await;
        assert_eq!(slots.available_permits(), 1);
        second.over().await;
        settle().await;
        assert_eq!(slots.available_permits(), 0, "it goes on, with a slot");
    }

    #[tokio::test]
    async fn who_finds_no_room_for_a_report_waits_until_one_was_written() {
        let room = Arc::new(Room::default());
        let half = || room.hold(REPORTS_WAITING_BYTES_MAX / 2);
        let (first, second) = (half(), half());
        assert!(room.is_full());
        let of = Arc::clone(&room);
        let waiting = tokio::spawn(async move { of.free().await });
        settle().await;
        assert!(!waiting.is_finished(), "there is no room");
        drop(first);
        waiting.await.expect("no panic");
        drop(second);
        assert_eq!(room.bytes.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn a_wait_that_is_given_up_ends_with_a_slot_again() {
        let slots = Arc::new(Semaphore::new(1));
        let slot = Arc::new(Slot::of(permit(&slots).await));
        drop(slot.wait(&slots));
        settle().await;
        assert_eq!(slots.available_permits(), 0);
        slot.free();
        assert_eq!(slots.available_permits(), 1);
    }
}
