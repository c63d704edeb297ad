//! What this engine has claimed, and for how long it is sure of it.
//!
//! A fence keeps a worker that was presumed dead from writing, not from acting. So whoever cannot
//! renew its claims stops what it runs before anybody else can have it, by the monotonic clock and
//! counted from before the last renewal was sent.

use std::sync::Arc;
use std::time::Duration;

use semel_core::id::JobId;
use semel_store::StoreError;
use tokio::sync::watch;

use super::{Inner, Leave};
use crate::limits::{LEAVE_BEFORE, RENEWALS};
use crate::store::{JobNo, Store};

/// A job that is being claimed or is under way.
pub(super) struct Running {
    /// Nothing yet while it is being submitted.
    pub(super) no: JobNo,
    pub(super) fence: i64,
    /// When others may have it, by the monotonic clock; nothing while the claim is not answered.
    lease_ends: Option<Duration>,
    pub(super) leave: watch::Sender<Leave>,
}

/// A job's place among those under way. It is given up however its worker ends, by a panic too:
/// then nobody renews the claim any more, and it is recovered.
pub(super) struct Place {
    inner: Arc<Inner>,
    id: JobId,
    fence: i64,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut running = self.inner.running();
        if running.get(&self.id).is_some_and(|running| running.fence == self.fence) {
            running.remove(&self.id);
        }
    }
}

impl Place {
    /// For a job that is about to be claimed: somebody who ends it as soon as the claim is written
    /// finds its worker here.
    pub(super) fn take(inner: &Arc<Inner>, id: JobId, no: JobNo, fence: i64) -> Self {
        let (leave, _) = watch::channel(Leave::Stay);
        let running = Running { no, fence, lease_ends: None, leave };
        inner.running().insert(id, running);
        Self { inner: Arc::clone(inner), id, fence }
    }

    /// The claim is written and lasts so long; nothing when the job was ended meanwhile.
    pub(super) fn hold(&self, no: JobNo, lease_ends: Duration) -> Option<watch::Receiver<Leave>> {
        let mut all = self.inner.running();
        let running = all.get_mut(&self.id).filter(|running| running.fence == self.fence)?;
        (running.no, running.lease_ends) = (no, Some(lease_ends));
        let leaving = running.leave.subscribe();
        let stays = *leaving.borrow() == Leave::Stay;
        stays.then_some(leaving)
    }
}

impl Inner {
    /// What is not to be claimed here: it is already, or about to be, or is left to others.
    pub(super) fn held(&self) -> Vec<JobNo> {
        let mut held: Vec<JobNo> = self.running().values().map(|job| job.no).collect();
        held.extend(self.passed_over());
        held
    }

    /// When a claim ends that is asked for now.
    pub(super) fn lease_from_now(&self) -> Duration {
        self.parts.clock.monotonic() + self.options.lease
    }

    /// How long before its end a claim is given up.
    fn leave_before(&self) -> Duration {
        LEAVE_BEFORE.min(self.options.lease / 2)
    }

    /// Whether a claim that ends then is as good as over.
    pub(super) fn is_late(&self, lease_ends: Duration) -> bool {
        self.parts.clock.monotonic() + self.leave_before() >= lease_ends
    }

    /// Makes one claim last, however late its answer came. Gives its end, if it is still ours.
    pub(super) async fn renew_one(
        &self,
        no: JobNo,
        fence: i64,
    ) -> Result<Option<Duration>, StoreError> {
        let lease_ends = self.lease_from_now();
        let (lease, now) = (self.options.lease, self.now());
        let lost = self.parts.store.renew(vec![(no, fence)], lease, now).await?;
        Ok(lost.is_empty().then_some(lease_ends))
    }
}

/// Makes the claims last, and leaves jobs that are no longer ours: in time, and as soon as a signal
/// may have been missed.
pub(super) async fn renew(inner: Arc<Inner>) {
    let mut ticks = tokio::time::interval(inner.options.lease / RENEWALS);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = inner.renew_now.notified() => {}
        }
        if let Err(error) = renew_once(&inner).await {
            tracing::warn!(error = error.chain(), "claims could not be renewed");
        }
    }
}

async fn renew_once(inner: &Inner) -> Result<(), StoreError> {
    // One whose claim is not answered yet may not be there yet.
    let held = inner
        .running()
        .values()
        .filter(|job| job.lease_ends.is_some())
        .map(|job| (job.no, job.fence))
        .collect::<Vec<_>>();
    if held.is_empty() {
        return Ok(());
    }
    let (lease, now, lease_ends) = (inner.options.lease, inner.now(), inner.lease_from_now());
    let lost = inner.parts.store.renew(held.clone(), lease, now).await?;
    // A job that was claimed anew in the meantime has another fence.
    for job in inner.running().values_mut().filter(|job| held.contains(&(job.no, job.fence))) {
        if lost.contains(&job.no) {
            job.leave.send_replace(Leave::Lost);
        } else {
            job.lease_ends = job.lease_ends.max(Some(lease_ends));
        }
    }
    Ok(())
}

/// Stops what runs here under claims that could not be renewed. A file has one engine, from which
/// nobody can take anything.
pub(super) async fn leave_in_time(inner: Arc<Inner>) {
    if matches!(inner.parts.store, Store::Sqlite(_)) || semel_store::planted!("fence") {
        return std::future::pending().await;
    }
    let mut ticks = tokio::time::interval(inner.leave_before() / 8);
    loop {
        ticks.tick().await;
        for job in inner.running().values() {
            let late = job.lease_ends.is_some_and(|ends| inner.is_late(ends));
            if late && *job.leave.borrow() == Leave::Stay {
                tracing::error!(
                    job = job.no.0,
                    "a claim could not be renewed: its steps are stopped"
                );
                job.leave.send_replace(Leave::Lost);
            }
        }
    }
}
