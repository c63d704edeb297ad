//! What must be looked at now and then: questions that nobody answered, jobs that are too old,
//! breakers that other engines have moved, and every night what the registrar may forget.

use std::sync::Arc;
use std::time::Duration;

use semel_core::clock::UnixMs;
use semel_registrar::limits::{SWEEP_DELAY, SWEEP_INTERVAL};
use semel_store::StoreError;

use super::{Engine, Inner};
use crate::limits::{SWEEP_LONG_MAX, SWEEP_MAX, SWEEP_ROUNDS_MAX, UPKEEP};

/// Until the engine stops.
pub(super) async fn run(inner: Arc<Inner>) {
    let mut ticks = tokio::time::interval(UPKEEP.min(inner.options.lease));
    let mut night = inner.parts.clock.monotonic() + SWEEP_DELAY;
    loop {
        ticks.tick().await;
        if let Err(error) = once(&inner).await {
            tracing::warn!(error = error.chain(), "upkeep was not done");
        }
        match registrar_sweep(&inner, night).await {
            Ok(next) => night = next,
            Err(error) => {
                tracing::warn!(error = error.chain(), "the registrar could not sweep");
            }
        }
    }
}

/// Sweeps when the night has come; gives when it comes next. What was left is for the next tick.
async fn registrar_sweep(inner: &Inner, night: Duration) -> Result<Duration, StoreError> {
    let now = inner.parts.clock.monotonic();
    if now < night {
        return Ok(night);
    }
    let swept = inner.parts.registrar.sweep(inner.options.registrar_retention).await?;
    tracing::info!(grants = swept.grants, more = swept.more, "the registrar has swept");
    Ok(if swept.more { now } else { now + SWEEP_INTERVAL })
}

async fn once(inner: &Arc<Inner>) -> Result<(), StoreError> {
    let now = inner.now();
    inner.breakers.refresh(&inner.parts.store).await?;
    inner.metrics.waiting(inner.parts.store.depth().await?.0);
    for id in inner.parts.store.expired(now, SWEEP_MAX).await? {
        Engine::expire(inner, id).await?;
    }
    let before = now.saturating_sub(inner.options.retention);
    sweep(inner, before).await
}

/// Removes what is too old, a bounded number of jobs at a time.
async fn sweep(inner: &Inner, before: UnixMs) -> Result<(), StoreError> {
    let mut limit = SWEEP_MAX;
    for _ in 0..SWEEP_ROUNDS_MAX {
        let removed = match inner.parts.store.sweep(before, limit).await {
            Err(StoreError::TooManyRows { .. }) if limit > SWEEP_LONG_MAX => {
                limit = SWEEP_LONG_MAX;
                continue;
            }
            removed => removed?,
        };
        let last = removed.len() < usize::try_from(limit).unwrap_or(usize::MAX);
        for id in removed {
            let folder = inner.options.workspaces.join(id.to_string());
            if let Err(error) = tokio::fs::remove_dir_all(&folder).await
                && error.kind() != std::io::ErrorKind::NotFound
            {
                tracing::warn!(%id, %error, "a workspace was not removed");
            }
        }
        if last {
            break;
        }
    }
    Ok(())
}
