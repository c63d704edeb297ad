//! What time it is for what is answered for good and for what ids are kept by (mesh.md §7, §10).
//!
//! Three things must fit together: an id is accepted as new only if it cannot have been forgotten,
//! `410` is final for its sender, and the sweep forgets by the times that were written at accept. A
//! clock that has just been set gives none of these: until it has settled, the present lies between
//! the old time and the new one (`semel_core::plausible`), and between ours and PostgreSQL's, which
//! the sweeps of all brokers go by.
//!
//! - `410` needs the earliest, taking an id in needs the latest; what lies between is told to come
//!   again.
//! - A row is kept from the latest on, or from when its send was queued, should that be later: so
//!   that it is too old before its row is swept.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::clock::{Clock, UnixMs};
use semel_core::plausible::{Between, SweepClock};

/// The broker's idea of the present; one per process.
pub struct Present {
    clock: Arc<dyn Clock>,
    clocks: Mutex<SweepClock>,
}

/// What is written of the time of an accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// When it was, as people are told.
    pub(crate) now: UnixMs,
    /// From when on its id is kept.
    pub(crate) kept_from: UnixMs,
}

impl Present {
    /// By this clock, from now on.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let mut clocks = SweepClock::new();
        clocks.look_at(&*clock);
        Self { clock, clocks: Mutex::new(clocks) }
    }

    /// The store has just said what time it is there.
    pub fn heard(&self, theirs: UnixMs) {
        self.clocks().heard(theirs, self.clock.monotonic());
    }

    /// Between which times the present lies.
    pub fn between(&self) -> Between {
        self.clocks().between(self.clock.wall(), self.clock.monotonic())
    }

    pub(crate) fn stamp(&self) -> Stamp {
        let (wall, monotonic) = (self.clock.wall(), self.clock.monotonic());
        let mut clocks = self.clocks();
        let now = clocks.calendar_between(wall, monotonic).latest;
        Stamp { now, kept_from: clocks.between(wall, monotonic).latest }
    }

    pub(crate) fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    fn clocks(&self) -> MutexGuard<'_, SweepClock> {
        self.clocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
