//! Claims jobs for free slots.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_store::StoreError;
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};

use super::Inner;
use super::desk::Slot;
use super::lease::Place;
use super::runner::{self, Ride};
use crate::course::{Next, begin};
use crate::limits::{CLAIM_MAX, JOBS_WAITING_MAX, SIGNAL_PATIENCE};
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
    if inner.running().len() >= inner.options.workers.saturating_add(JOBS_WAITING_MAX) {
        // They wait for others or for room. Some more are taken now and then, because what they
        // wait for may be among them.
        let mut stopping = inner.stopping.subscribe();
        let stop = stopping.wait_for(|stop| *stop);
        let _ = tokio::time::timeout(inner.options.poll, stop).await;
    }
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
        if let Next::Left = next {
            drop(slot);
            let said = inner.parts.store.submit(new).await;
            if let Ok(Submitted::Made) = said {
                inner.tell(before.job.id, before.job.state.status);
            }
            return drop(tell.send(said));
        }
        let mut advance = first.into_advance();
        let place = Place::take(&inner, new.id, before.job.no, claim.fence);
        let lease_ends = inner.lease_from_now();
        let room = inner.slots.available_permits() + inner.claiming.load(Ordering::Relaxed);
        // A caller that went away does not want to know.
        match inner.parts.store.submit_begun(new, advance.clone(), room).await {
            Ok((said, Some(no))) => {
                (before.job.no, advance.no) = (no, no);
                inner.tell(before.job.id, before.job.state.status);
                let _ = tell.send(Ok(said));
                let claimed = Claimed { before, advance };
                let claimed = Begun { claimed, next, place, lease_ends };
                if let Some((ride, next)) = launch(&inner, claimed, slot, under_way).await {
                    Box::pin(runner::run(inner, ride, next)).await;
                }
            }
            Ok((said, None)) => {
                drop((slot, place));
                if said == Submitted::Made {
                    inner.wake.notify_one();
                    inner.tell(before.job.id, before.job.state.status);
                }
                let _ = tell.send(Ok(said));
            }
            Err(error) => drop(tell.send(Err(error))),
        }
    });
    // Whatever ended the task, the job may be there.
    let gone = || StoreError::Uncertain { cause: "the submission has ended".into() };
    told.await.unwrap_or_else(|_| Err(gone()))
}

fn our_claim(inner: &Inner, limit: usize) -> Claim {
    let now = inner.now();
    Claim {
        worker: inner.options.worker.clone(),
        fence: inner.new_fence(),
        lease: inner.options.lease,
        limit: u32::try_from(limit).unwrap_or(CLAIM_MAX),
        held: inner.held(),
        home: inner.home(),
        now,
    }
}

/// What `begin` has found to be next, beside what it has written: kept here because a transaction
/// may be run twice, and the last run counts.
type Nexts = Arc<Mutex<HashMap<JobNo, (Next, Place)>>>;

/// Says how many more wait, as far as is known.
async fn claim(inner: &Arc<Inner>, mut slots: OwnedSemaphorePermit) -> Result<usize, StoreError> {
    let claim = our_claim(inner, slots.num_permits());
    let lease_ends = inner.lease_from_now();
    let (nexts, passed) = (Nexts::default(), Arc::new(AtomicUsize::new(0)));
    let (sink, engine, passing) = (Arc::clone(&nexts), Arc::clone(inner), Arc::clone(&passed));
    let begin: Begin = Arc::new(move |kept, claim| {
        let (first, next) = engine.with_facts(|facts| begin(kept, claim, facts));
        if let Next::Left = next {
            let is_left = engine.pass_over(kept.job.no);
            passing.fetch_add(usize::from(is_left), Ordering::Relaxed);
            return None;
        }
        let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
        // Before the next one is taken, the place of an earlier run is given up.
        drop(sink.remove(&kept.job.no));
        let place = Place::take(&engine, kept.job.id, kept.job.no, claim.fence);
        sink.insert(kept.job.no, (next, place));
        Some(first.into_advance())
    });
    let claims = inner.parts.store.claim(claim, begin).await;
    // Places of jobs that were not claimed after all are given up with it.
    let mut nexts = std::mem::take(&mut *nexts.lock().unwrap_or_else(PoisonError::into_inner));
    let Claims { jobs, left } = claims?;
    for claimed in jobs {
        let Some((next, place)) = nexts.remove(&claimed.advance.no) else { continue };
        let Some(slot) = slots.split(1) else { continue };
        let begun = Begun { claimed, next, place, lease_ends };
        let (inner, under_way) = (Arc::clone(inner), inner.under_way.subscribe());
        if begun.is_over() {
            drop(launch(&inner, begun, slot, under_way).await);
            continue;
        }
        tokio::spawn(async move {
            if let Some((ride, next)) = launch(&inner, begun, slot, under_way).await {
                runner::run(inner, ride, next).await;
            }
        });
    }
    // Behind what is left to others there may be something for us.
    Ok(left.max(passed.load(Ordering::Relaxed).saturating_mul(2)))
}

/// A job that was claimed, with what is next and its place among those under way.
struct Begun {
    claimed: Claimed,
    next: Next,
    place: Place,
    lease_ends: Duration,
}

impl Begun {
    fn is_over(&self) -> bool {
        matches!(self.next, Next::Over | Next::Left | Next::Wait(_))
    }
}

/// A job was claimed; gives what runs it, if there is anything to do.
async fn launch(
    inner: &Arc<Inner>,
    begun: Begun,
    slot: OwnedSemaphorePermit,
    under_way: watch::Receiver<()>,
) -> Option<(Ride, Next)> {
    let is_over = begun.is_over();
    let Begun { claimed: Claimed { before, advance }, next, place, mut lease_ends } = begun;
    if before.job.state.started_at.is_none() {
        let waited = advance.now.0.saturating_sub(before.job.created_at.0).max(0);
        inner.metrics.waited(Duration::from_millis(waited.cast_unsigned()));
    }
    let mut kept = before;
    kept.apply(&advance);
    inner.tell(kept.job.id, advance.state.status);
    if advance.state.completed_at.is_some() {
        inner.metrics.ended(advance.state.status, advance.state.failure_class);
    }
    if is_over {
        return None;
    }
    let (no, fence) = (kept.job.no, kept.job.state.fence);
    // The answer may have been long on its way: nothing is run that may be somebody else's by now.
    if inner.is_late(lease_ends) {
        lease_ends = match inner.renew_one(no, fence).await {
            Ok(Some(lease_ends)) => lease_ends,
            Ok(None) => return None,
            Err(error) => {
                tracing::warn!(job = %kept.job.id, error = error.chain(), "a claim came too late");
                return None;
            }
        };
    }
    let leaving = place.hold(no, lease_ends)?;
    let slot = Arc::new(Slot::of(slot));
    Some((Ride { kept, slot, leaving, _place: place, _under_way: under_way }, next))
}

/// Until there is a signal or a job is due; the poll is only the safety net.
async fn wait(inner: &Inner) {
    // While jobs come and go nobody needs to be asked.
    let mut pause = SIGNAL_PATIENCE.min(inner.options.poll);
    loop {
        let woken = tokio::time::timeout(pause, inner.wake.notified()).await;
        if woken.is_ok() || inner.slots.is_closed() {
            return;
        }
        match inner.parts.store.next_due(inner.now(), inner.held(), inner.home()).await {
            Ok(Some(Duration::ZERO)) => return,
            Ok(due_in) => pause = pause_for(due_in, inner.options.poll, (inner.parts.random)()),
            Err(error) => {
                tracing::debug!(error = error.chain(), "the store could not be asked");
                return;
            }
        }
    }
}

/// How long nothing needs to be looked for when the next job is due then: engines that share a
/// store do not look all at once.
fn pause_for(due_in: Option<Duration>, poll: Duration, random: u64) -> Duration {
    let quarter = poll / 4;
    let jitter = u64::try_from(quarter.as_nanos()).unwrap_or(u64::MAX).max(1);
    let poll = poll - quarter + Duration::from_nanos(random % jitter);
    due_in.map_or(poll, |due_in| due_in.min(poll))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_nothing_to_do_waits_for_what_is_due_and_no_longer_than_for_the_poll() {
        let poll = Duration::from_secs(4);
        for random in [0, 1, 7, u64::MAX / 2, u64::MAX] {
            let idle = pause_for(None, poll, random);
            assert!(idle >= poll * 3 / 4 && idle <= poll, "{idle:?}");
            let soon = Duration::from_millis(300);
            assert_eq!(pause_for(Some(soon), poll, random), soon);
            assert_eq!(pause_for(Some(poll * 9), poll, random), idle);
            assert_eq!(pause_for(None, Duration::ZERO, random), Duration::ZERO);
        }
    }
}
