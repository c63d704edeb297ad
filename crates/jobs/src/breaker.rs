//! A breaker per action (jobs.md §7): closed, open, half-open. Pure; the store keeps it, and one
//! row is one breaker for the whole cluster.

use std::time::Duration;

use semel_core::clock::UnixMs;
use semel_core::status;

use crate::gear::FailureClass;
use crate::limits::{BREAKER_OPEN, BREAKER_OPEN_MAX, BREAKER_RUNS_MIN, BREAKER_WINDOW};

status! {
    /// Where a breaker stands.
    pub enum BreakerState {
        /// Everything goes through.
        Closed = "closed",
        /// Nothing does.
        Open = "open",
        /// One probe does.
        HalfOpen = "half_open",
    }
}

/// A breaker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breaker {
    /// Where it stands.
    pub state: BreakerState,
    /// The last runs, the newest last: `f` failed, `s` succeeded.
    pub window: String,
    /// When a probe may be tried; while one is, when it is given up.
    pub until: UnixMs,
    /// For how long it opens.
    pub open_for: Duration,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            state: BreakerState::Closed,
            window: String::new(),
            until: UnixMs(0),
            open_for: BREAKER_OPEN,
        }
    }
}

/// How a run ended, as a breaker sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// The other side answered, if only to say no.
    Succeeded,
    /// It did not, or not in time.
    Failed,
}

impl Run {
    /// Only what may pass counts against an action: bad input says nothing of it.
    pub const fn of(failure: Option<FailureClass>) -> Self {
        match failure {
            Some(FailureClass::Transient) => Self::Failed,
            Some(
                FailureClass::GearBug
                | FailureClass::PlanRejected
                | FailureClass::UserError
                | FailureClass::ResourceLimit,
            )
            | None => Self::Succeeded,
        }
    }
}

/// Whether a step may be dispatched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Go.
    Through,
    /// Go, as the one probe.
    Probe,
    /// Not before this moment.
    Held(UnixMs),
}

impl Breaker {
    /// Asks for admission. The probe has this long before somebody else may try.
    pub fn admit(&mut self, now: UnixMs, probe_time: Duration) -> Admission {
        match self.state {
            BreakerState::Closed => Admission::Through,
            BreakerState::Open | BreakerState::HalfOpen if now < self.until => {
                Admission::Held(self.until)
            }
            BreakerState::Open | BreakerState::HalfOpen => {
                self.state = BreakerState::HalfOpen;
                self.until = now.saturating_add(probe_time);
                Admission::Probe
            }
        }
    }

    /// Takes note of runs, in their order. Says whether this has opened or closed it.
    pub fn note(&mut self, runs: &[Run], now: UnixMs) -> bool {
        let before = self.state;
        // What an engine has kept to itself was before the probe, and says nothing of it.
        let told = match before {
            BreakerState::Closed => runs,
            BreakerState::Open | BreakerState::HalfOpen => &runs[runs.len().saturating_sub(1)..],
        };
        for run in told {
            self.note_one(*run, now);
        }
        self.state != before
    }

    fn note_one(&mut self, run: Run, now: UnixMs) {
        match (self.state, run) {
            (BreakerState::Closed, run) => {
                self.window.push(if run == Run::Failed { 'f' } else { 's' });
                let surplus = self.window.len().saturating_sub(BREAKER_WINDOW);
                self.window.drain(..surplus);
                let failed = self.window.bytes().filter(|run| *run == b'f').count();
                if self.window.len() >= BREAKER_RUNS_MIN && failed * 2 > self.window.len() {
                    self.state = BreakerState::Open;
                    self.until = now.saturating_add(self.open_for);
                }
            }
            (BreakerState::HalfOpen, Run::Succeeded) => *self = Self::default(),
            (BreakerState::HalfOpen, Run::Failed) => {
                self.state = BreakerState::Open;
                self.open_for = (self.open_for * 2).min(BREAKER_OPEN_MAX);
                self.until = now.saturating_add(self.open_for);
            }
            // Those who were under way when it opened say nothing new.
            (BreakerState::Open, Run::Succeeded | Run::Failed) => {}
        }
    }
}

#[cfg(test)]
mod tests;
