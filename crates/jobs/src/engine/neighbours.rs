//! Engines of other homes over one store, and what each can run.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::clock::UnixMs;
use semel_store::StoreError;

use super::Inner;
use crate::limits::{HOME_GONE_AFTER, PASSED_OVER, PASSED_OVER_MAX, RENEWALS};
use crate::store::{Home, JobNo, Neighbour};

/// What was heard last.
#[derive(Default)]
pub(super) struct Neighbours {
    heard: Mutex<Arc<Heard>>,
    /// Jobs that are left to them, and until when, by the monotonic clock.
    passed_over: Mutex<HashMap<JobNo, Duration>>,
}

#[derive(Default)]
struct Heard {
    /// What can be run here, as it was told to the others.
    here: HashSet<String>,
    others: Vec<Neighbour>,
    /// What others have said since is not known.
    at: Option<UnixMs>,
}

impl Neighbours {
    fn heard(&self) -> Arc<Heard> {
        Arc::clone(&self.heard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn passed_over(&self, now: Duration) -> MutexGuard<'_, HashMap<JobNo, Duration>> {
        let mut all = self.passed_over.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, until| *until > now);
        all
    }
}

impl Inner {
    /// This engine's, where several share a store.
    pub(super) fn home(&self) -> Option<Home> {
        let id = self.options.home.clone()?;
        Some(Home { id, lives_for: self.options.lease * HOME_GONE_AFTER })
    }

    /// Says that this engine lives and what it can run, and hears of others.
    pub(super) async fn live(&self) -> Result<(), StoreError> {
        let Some(home) = &self.options.home else { return Ok(()) };
        let gears = Arc::clone(&self.parts.gears);
        let ready = tokio::task::spawn_blocking(move || gears.ready()).await;
        let actions = ready.map_err(|_| StoreError::Stopped)?;
        let at = self.now();
        let (others, now) = self.parts.store.live(home, &actions).await?;
        if let Some(now) = now {
            self.follow(now);
        }
        let heard = Heard { here: actions.into_iter().collect(), others, at: Some(at) };
        *self.neighbours.heard.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(heard);
        Ok(())
    }

    /// Jobs that are left to others for now.
    pub(super) fn passed_over(&self) -> Vec<JobNo> {
        self.neighbours.passed_over(self.parts.clock.monotonic()).keys().copied().collect()
    }

    /// Leaves a job to others: whoever is first to look must not always be the wrong one. Says
    /// whether it is left alone from now on.
    pub(super) fn pass_over(&self, no: JobNo) -> bool {
        let now = self.parts.clock.monotonic();
        let mut all = self.neighbours.passed_over(now);
        let has_room = all.len() < PASSED_OVER_MAX;
        if has_room {
            all.insert(no, now + PASSED_OVER);
        }
        has_room
    }

    /// Whether another engine can run all of these and this one cannot. Whoever took the job in
    /// could, but may not have said so yet.
    pub(super) fn is_for_another(&self, actions: &[String], submitted_at: UnixMs) -> bool {
        let heard = self.neighbours.heard();
        let told_within = self.options.lease / RENEWALS * 2;
        let can = |all: &HashSet<String>| actions.iter().all(|action| all.contains(action));
        !can(&heard.here)
            && (heard.at.is_none_or(|at| at <= submitted_at.saturating_add(told_within))
                || heard.others.iter().any(|other| can(&other.actions)))
    }
}

/// Says again and again that this engine lives. Not where claims are renewed: that must not wait
/// for anything that may take long here.
pub(super) async fn tell(inner: Arc<Inner>) {
    let mut ticks = tokio::time::interval(inner.options.lease / RENEWALS);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = inner.live().await {
            tracing::warn!(error = error.chain(), "the state of this engine could not be stored");
        }
    }
}
