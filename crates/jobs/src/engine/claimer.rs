//! Claims jobs for free slots, and keeps the claims alive.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_store::StoreError;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::desk::Slot;
use super::runner::{self, Ride};
use super::{Inner, Leave, Running};
use crate::course::{Next, begin};
use crate::limits::CLAIM_MAX;
use crate::store::{Begin, Claim, Claimed, JobNo};

/// Until the engine stops.
pub(super) async fn run(inner: Arc<Inner>) {
    let mut failures = 0_u32;
    while let Some(slots) = free_slots(&inner).await {
        match claim(&inner, slots).await {
            Ok(0) => wait(&inner).await,
            Ok(_) => failures = 0,
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
async fn free_slots(inner: &Inner) -> Option<Vec<OwnedSemaphorePermit>> {
    let first = Arc::clone(&inner.slots).acquire_owned().await.ok()?;
    let mut slots = vec![first];
    let max = usize::try_from(CLAIM_MAX).unwrap_or(usize::MAX);
    while slots.len() < max
        && let Ok(slot) = Arc::clone(&inner.slots).try_acquire_owned()
    {
        slots.push(slot);
    }
    Some(slots)
}

/// What `begin` has found to be next, beside what it has written: kept here because a transaction
/// may be run twice, and the last run counts.
type Nexts = Arc<Mutex<Vec<(JobNo, Next)>>>;

async fn claim(
    inner: &Arc<Inner>,
    mut slots: Vec<OwnedSemaphorePermit>,
) -> Result<usize, StoreError> {
    let now = inner.now();
    let claim = Claim {
        worker: inner.options.worker.clone(),
        lease_until: now.saturating_add(inner.options.lease),
        limit: u32::try_from(slots.len()).unwrap_or(CLAIM_MAX),
        now,
    };
    let nexts = Nexts::default();
    let (sink, engine) = (Arc::clone(&nexts), Arc::clone(inner));
    let begin: Begin = Arc::new(move |kept, claim| {
        let (first, next) = engine.with_facts(|facts| begin(kept, claim, facts));
        sink.lock().unwrap_or_else(PoisonError::into_inner).push((kept.job.no, next));
        first.into_advance()
    });
    let claimed = inner.parts.store.claim(claim, begin).await?;
    let mut nexts = std::mem::take(&mut *nexts.lock().unwrap_or_else(PoisonError::into_inner));
    let count = claimed.len();
    for Claimed { before, advance } in claimed {
        let place = nexts.iter().rposition(|(no, _)| *no == advance.no);
        let next = place.map_or(Next::Over, |place| nexts.swap_remove(place).1);
        if before.job.state.started_at.is_none() {
            let waited = now.0.saturating_sub(before.job.created_at.0).max(0).cast_unsigned();
            inner.metrics.waited(Duration::from_millis(waited));
        }
        let mut kept = before;
        kept.apply(&advance);
        let id = kept.job.id;
        inner.tell(id, advance.state.status);
        if advance.state.completed_at.is_some() {
            inner.metrics.ended(advance.state.status, advance.state.failure_class);
        }
        if matches!(next, Next::Over | Next::Wait(_)) {
            continue;
        }
        let Some(slot) = slots.pop() else { continue };
        let (leave, leaving) = watch::channel(Leave::Stay);
        let running = Running { no: kept.job.no, fence: kept.job.state.fence, leave };
        inner.running().insert(id, running);
        let slot = Arc::new(Slot::of(slot));
        let ride = Ride { kept, slot, leaving, _under_way: inner.under_way.subscribe() };
        tokio::spawn(runner::run(Arc::clone(inner), ride, next));
    }
    Ok(count)
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
