//! A breaker per action, or per action and host (jobs.md §7): closed, open, half-open. Pure; the
//! store keeps it, and one row is one breaker for the whole cluster.
//!
//! While it is half open only its probe decides, which has a number: those that were under way when
//! it opened end at any time, and a probe that was given up may come back late.

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
    /// The number of the last probe; never used again.
    pub probe: i64,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            state: BreakerState::Closed,
            window: String::new(),
            until: UnixMs(0),
            open_for: BREAKER_OPEN,
            probe: 0,
        }
    }
}

/// How a run ended, as a breaker sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// It gave its result.
    Succeeded,
    /// The other side did not answer, not in time, or with an error that may pass.
    Failed,
    /// It broke on our side. That does not count against an action, but a probe that broke has not
    /// shown that it works.
    Broke,
    /// It was refused, or we have stopped it: says nothing.
    Refused,
}

impl Run {
    /// Only what may pass counts against an action: bad input says nothing of it.
    pub const fn of(failure: Option<FailureClass>) -> Self {
        match failure {
            None => Self::Succeeded,
            Some(FailureClass::Transient) => Self::Failed,
            Some(FailureClass::GearBug | FailureClass::ResourceLimit) => Self::Broke,
            Some(FailureClass::PlanRejected | FailureClass::UserError) => Self::Refused,
        }
    }

    /// Whether it says something although it was no probe.
    pub const fn counts(self) -> bool {
        match self {
            Self::Succeeded | Self::Failed => true,
            Self::Broke | Self::Refused => false,
        }
    }
}

/// Whether a step may be dispatched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Go.
    Through,
    /// Go, as the one probe, under this number.
    Probe(i64),
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
                self.probe += 1;
                Admission::Probe(self.probe)
            }
        }
    }

    /// Takes note of runs, in their order; the last may be the probe of this number. Says whether
    /// this has opened or closed it.
    pub fn note(&mut self, runs: &[Run], probe: Option<i64>, now: UnixMs) -> bool {
        let before = self.state;
        match before {
            BreakerState::Closed => runs.iter().for_each(|run| self.count(*run, now)),
            // What an engine has kept to itself was before the probe, and says nothing of it.
            BreakerState::HalfOpen if probe == Some(self.probe) => {
                runs.last().into_iter().for_each(|run| self.decide(*run, now));
            }
            // Those who were under way when it opened say nothing new.
            BreakerState::HalfOpen | BreakerState::Open => {}
        }
        // A probe that says nothing leaves the place to another, and has changed nothing.
        let is_open = |state| state != BreakerState::Closed;
        self.state != before && !(is_open(before) && runs.last() == Some(&Run::Refused))
    }

    /// As it is when somebody has closed it; its numbers go on.
    #[must_use]
    pub fn closed(&self) -> Self {
        Self { probe: self.probe, ..Self::default() }
    }

    fn count(&mut self, run: Run, now: UnixMs) {
        if self.state != BreakerState::Closed || !run.counts() {
            return;
        }
        self.window.push(if run == Run::Failed { 'f' } else { 's' });
        let surplus = self.window.len().saturating_sub(BREAKER_WINDOW);
        self.window.drain(..surplus);
        let failed = self.window.bytes().filter(|run| *run == b'f').count();
        if self.window.len() >= BREAKER_RUNS_MIN && failed * 2 > self.window.len() {
            self.state = BreakerState::Open;
            self.until = now.saturating_add(self.open_for);
        }
    }

    fn decide(&mut self, run: Run, now: UnixMs) {
        match run {
            Run::Succeeded => *self = self.closed(),
            Run::Failed | Run::Broke => {
                self.state = BreakerState::Open;
                self.open_for = (self.open_for * 2).min(BREAKER_OPEN_MAX);
                self.until = now.saturating_add(self.open_for);
            }
            Run::Refused => (self.state, self.until) = (BreakerState::Open, now),
        }
    }
}

#[cfg(test)]
mod tests;
