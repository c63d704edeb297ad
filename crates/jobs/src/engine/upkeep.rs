//! What must be looked at now and then: questions that nobody answered, jobs that are too old,
//! breakers that other engines have moved, and every night what the registrar may forget and
//! breakers that nobody has heard of for long.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use semel_core::plausible::Sweep;
use semel_registrar::limits::{SWEEP_DELAY, SWEEP_INTERVAL, SWEEP_STEPS_ASKED_MAX};
use semel_store::StoreError;

use super::children::cancel_orphans;
use super::{Engine, Inner, artifacts};
use crate::limits::{BREAKER_KEPT, SWEEP_LONG_MAX, SWEEP_MAX, SWEEP_ROUNDS_MAX, UPKEEP};
use crate::store::Age;

/// Until the engine stops.
pub(super) async fn run(inner: Arc<Inner>) {
    let mut ticks = tokio::time::interval(UPKEEP.min(inner.options.lease));
    let mut night = inner.parts.clock.monotonic() + SWEEP_DELAY;
    loop {
        ticks.tick().await;
        if let Err(error) = once(&inner).await {
            tracing::warn!(error = error.chain(), "upkeep failed");
        }
        match nightly(&inner, night).await {
            Ok(next) => night = next,
            Err(error) => {
                tracing::warn!(error = error.chain(), "the nightly sweep failed");
            }
        }
    }
}

/// Sweeps when the night has come; gives when it comes next. What was left is for the next tick.
async fn nightly(inner: &Inner, night: Duration) -> Result<Duration, StoreError> {
    let now = inner.parts.clock.monotonic();
    if now < night {
        return Ok(night);
    }
    let retention = inner.options.registrar_retention;
    let swept = inner.parts.registrar.sweep_settled(retention, SWEEP_STEPS_ASKED_MAX).await?;
    let swept = match swept {
        Ok(swept) => swept,
        Err(wait) => return Ok(now + wait),
    };
    inner.parts.store.breakers_forget(inner.now().saturating_sub(BREAKER_KEPT)).await?;
    tracing::info!(grants = swept.grants, more = swept.more, "the registrar has swept");
    if !swept.more {
        artifacts::remove_left(inner).await?;
    }
    Ok(if swept.more { now } else { now + SWEEP_INTERVAL })
}

async fn once(inner: &Arc<Inner>) -> Result<(), StoreError> {
    let now = inner.now();
    if let Err(error) = cancel_orphans(inner).await {
        tracing::warn!(error = error.chain(), "sub-jobs of cancelled jobs go on for now");
    }
    inner.parts.gears.learn_origins().await;
    inner.breakers.refresh(&inner.parts.store).await?;
    inner.metrics.waiting(inner.parts.store.depth().await?.0);
    for id in inner.parts.store.expired(now, SWEEP_MAX).await? {
        // One that cannot be read must not keep everybody else waiting.
        if let Err(error) = Engine::expire(inner, id).await {
            tracing::warn!(%id, error = error.chain(), "a question could not be closed");
        }
    }
    match settled(inner).await? {
        Sweep::By(now) => {
            let before = now.saturating_sub(inner.options.retention);
            sweep(inner, Age { before, now }).await
        }
        Sweep::After(_) => Ok(()),
    }
}

/// Which time a sweep goes by: what goes is gone for good, so that it is a clock that can be
/// believed, or none yet. An engine alone has written down by its own when jobs ended, which lags
/// behind a calendar that was put ahead and behind a machine that slept; it began with that
/// calendar, though, and says nothing for it.
async fn settled(inner: &Inner) -> Result<Sweep, StoreError> {
    let theirs = inner.parts.store.time().await?;
    let found = {
        let mut sweeps = inner.sweeps.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(theirs) = theirs {
            sweeps.heard(theirs, inner.parts.clock.monotonic());
        }
        sweeps.look_at(&*inner.parts.clock)
    };
    Ok(match (found, theirs) {
        (Sweep::By(now), None) => Sweep::By(now.min(inner.now())),
        (found, _) => found,
    })
}

/// Cancels what cancelled jobs have asked for as soon as one was cancelled here. Whatever is missed
/// is found by the next upkeep.
pub(super) async fn after_cancels(inner: Arc<Inner>) {
    loop {
        inner.orphans.notified().await;
        if let Err(error) = cancel_orphans(&inner).await {
            tracing::warn!(error = error.chain(), "sub-jobs of a cancelled job go on for now");
        }
    }
}

/// Removes what is too old, a bounded number of jobs at a time.
async fn sweep(inner: &Inner, age: Age) -> Result<(), StoreError> {
    let mut limit = SWEEP_MAX;
    for _ in 0..SWEEP_ROUNDS_MAX {
        let removed = match inner.parts.store.sweep(age, limit).await {
            Err(StoreError::TooManyRows { .. }) if limit > SWEEP_LONG_MAX => {
                limit = SWEEP_LONG_MAX;
                continue;
            }
            removed => removed?,
        };
        let last = removed.len() < usize::try_from(limit).unwrap_or(usize::MAX);
        for id in removed {
            artifacts::remove(&inner.options.workspaces, id).await;
        }
        if last {
            break;
        }
    }
    Ok(())
}
