//! Claims jobs for free slots, and keeps the claims alive.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_store::StoreError;
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};

use super::desk::Slot;
use super::runner::{self, Ride};
use super::{Inner, Leave, Running};
use crate::course::{Next, begin};
use crate::limits::CLAIM_MAX;
use crate::store::{Begin, Claim, Claimed, Claims, JobNo, NewJob, Submitted};

/// Until the engine stops.
pub(super) async fn run(inner: Arc<Inner>) {
    let mut failures = 0_u32;
    // What a claim holds no submission can begin with: no more than wait.
    let mut wanted = 1;
    while let Some(slots) = free_slots(&inner, wanted).await {
        let held = slots.num_permits();
        inner.claiming.store(held, Ordering::Relaxed);
        let claimed = claim(&inner, slots).await;
        inner.claiming.store(0, Ordering::Relaxed);
        match claimed {
            Ok(left) => {
                (wanted, failures) = (left.max(1), 0);
                if left == 0 {
                    wait(&inner).await;
                }
            }
            Err(error) => {
                failures = failures.saturating_add(1);
                tracing::warn!(error = error.chain(), "jobs could not be claimed");
                let pause = semel_core::backoff::backoff_delay(failures, (inner.parts.random)());
                tokio::time::sleep(pause).await;
            }
        }
    }
}

/// At least one; nothing when no job is to be claimed any more.
async fn free_slots(inner: &Inner, wanted: usize) -> Option<OwnedSemaphorePermit> {
    let mut slots = Arc::clone(&inner.slots).acquire_owned().await.ok()?;
    let more = wanted.saturating_sub(1).min(inner.slots.available_permits());
    let more = u32::try_from(more).unwrap_or(u32::MAX).min(CLAIM_MAX - 1);
    // Somebody else may have taken one meanwhile: then the next claim gets more.
    if let Ok(more) = Arc::clone(&inner.slots).try_acquire_many_owned(more) {
        slots.merge(more);
    }
    Some(slots)
}

/// A slot for a job that is being submitted, if the engine works and has one.
pub(super) fn free_slot(inner: &Inner, new: &NewJob) -> Option<OwnedSemaphorePermit> {
    let works = inner.works.load(Ordering::Relaxed) && inner.parts.store.begins_at_once(new);
    works.then(|| Arc::clone(&inner.slots).try_acquire_owned().ok()).flatten()
}

/// Takes a job in and, unless others wait before it, begins it in the same transaction.
///
/// In the task in which it will run: a caller that goes away must not leave a job that is claimed
/// and that nobody works on (traps.md 49).
pub(super) async fn submit(
    inner: &Arc<Inner>,
    new: NewJob,
    slot: OwnedSemaphorePermit,
) -> Result<Submitted, StoreError> {
    let (tell, told) = oneshot::channel();
    let (inner, under_way) = (Arc::clone(inner), inner.under_way.subscribe());
    tokio::spawn(async move {
        let mut before = new.fresh();
        let claim = our_claim(&inner, 1);
        let (first, next) = inner.with_facts(|facts| begin(&before, &claim, facts));
        let mut advance = first.into_advance();
        // A caller that went away does not want to know.
        let room = inner.slots.available_permits() + inner.claiming.load(Ordering::Relaxed);
        match inner.parts.store.submit_begun(new, advance.clone(), room).await {
            Ok((said, Some(no))) => {
                (before.job.no, advance.no) = (no, no);
                inner.tell(before.job.id, before.job.state.status);
                let _ = tell.send(Ok(said));
                let claimed = Claimed { before, advance };
                if let Some(ride) = launch(&inner, claimed, &next, slot, under_way) {
                    Box::pin(runner::run(inner, ride, next)).await;
                }
            }
            Ok((said, None)) => {
                drop(slot);
                if said == Submitted::Made {
                    inner.wake.notify_one();
                    inner.tell(before.job.id, before.job.state.status);
                }
                let _ = tell.send(Ok(said));
            }
            Err(error) => drop(tell.send(Err(error))),
        }
    });
    told.await.unwrap_or(Err(StoreError::Stopped))
}

fn our_claim(inner: &Inner, limit: usize) -> Claim {
    let now = inner.now();
    Claim {
        worker: inner.options.worker.clone(),
        lease_until: now.saturating_add(inner.options.lease),
        limit: u32::try_from(limit).unwrap_or(CLAIM_MAX),
        now,
    }
}

/// What `begin` has found to be next, beside what it has written: kept here because a transaction
/// may be run twice, and the last run counts.
type Nexts = Arc<Mutex<Vec<(JobNo, Next)>>>;

/// Says how many more wait, as far as is known.
async fn claim(inner: &Arc<Inner>, mut slots: OwnedSemaphorePermit) -> Result<usize, StoreError> {
    let claim = our_claim(inner, slots.num_permits());
    let nexts = Nexts::default();
    let (sink, engine) = (Arc::clone(&nexts), Arc::clone(inner));
    let begin: Begin = Arc::new(move |kept, claim| {
        let (first, next) = engine.with_facts(|facts| begin(kept, claim, facts));
        sink.lock().unwrap_or_else(PoisonError::into_inner).push((kept.job.no, next));
        first.into_advance()
    });
    let Claims { jobs, left } = inner.parts.store.claim(claim, begin).await?;
    let mut nexts = std::mem::take(&mut *nexts.lock().unwrap_or_else(PoisonError::into_inner));
    for claimed in jobs {
        let no = claimed.advance.no;
        let place = nexts.iter().rposition(|(own, _)| *own == no);
        let next = place.map_or(Next::Over, |place| nexts.swap_remove(place).1);
        let Some(slot) = slots.split(1) else { continue };
        let under_way = inner.under_way.subscribe();
        if let Some(ride) = launch(inner, claimed, &next, slot, under_way) {
            tokio::spawn(runner::run(Arc::clone(inner), ride, next));
        }
    }
    Ok(left)
}

/// A job was claimed; gives what runs it, if there is anything to do.
fn launch(
    inner: &Inner,
    claimed: Claimed,
    next: &Next,
    slot: OwnedSemaphorePermit,
    under_way: watch::Receiver<()>,
) -> Option<Ride> {
    let Claimed { before, advance } = claimed;
    if before.job.state.started_at.is_none() {
        let waited = advance.now.0.saturating_sub(before.job.created_at.0).max(0);
        inner.metrics.waited(Duration::from_millis(waited.cast_unsigned()));
    }
    let mut kept = before;
    kept.apply(&advance);
    let id = kept.job.id;
    inner.tell(id, advance.state.status);
    if advance.state.completed_at.is_some() {
        inner.metrics.ended(advance.state.status, advance.state.failure_class);
    }
    if matches!(next, Next::Over | Next::Wait(_)) {
        return None;
    }
    let (leave, leaving) = watch::channel(Leave::Stay);
    let running = Running { no: kept.job.no, fence: kept.job.state.fence, leave };
    inner.running().insert(id, running);
    Some(Ride { kept, slot: Arc::new(Slot::of(slot)), leaving, _under_way: under_way })
}

/// Until there is a signal; the poll is only the safety net.
async fn wait(inner: &Inner) {
    loop {
        let woken = tokio::time::timeout(inner.options.poll, inner.wake.notified()).await;
        if woken.is_ok() || inner.slots.is_closed() {
            return;
        }
        match inner.parts.store.anything_due(inner.now()).await {
            Ok(false) => {}
            Ok(true) => return,
            Err(error) => {
                tracing::debug!(error = error.chain(), "the store could not be asked");
                return;
            }
        }
    }
}

/// Makes the claims last, and leaves jobs that are no longer ours.
pub(super) async fn renew(inner: Arc<Inner>) {
    let mut ticks = tokio::time::interval(inner.options.lease / 3);
    loop {
        ticks.tick().await;
        let held: Vec<_> = inner.running().values().map(|job| (job.no, job.fence)).collect();
        if held.is_empty() {
            continue;
        }
        let lease_until = inner.now().saturating_add(inner.options.lease);
        match inner.parts.store.renew(held.clone(), lease_until).await {
            Ok(lost) => {
                // A job that was claimed anew in the meantime has another fence.
                let ours =
                    |job: &&Running| lost.contains(&job.no) && held.contains(&(job.no, job.fence));
                for job in inner.running().values().filter(ours) {
                    job.leave.send_replace(Leave::Lost);
                }
            }
            Err(error) => tracing::warn!(error = error.chain(), "claims could not be renewed"),
        }
    }
}
