//! Which time a sweep may go by.
//!
//! A sweep deletes for good what is older than some age, so a calendar that is ahead for a few
//! seconds empties a store. Two clocks tell when that happens: the calendar steps, the monotonic
//! clock does not, and their difference moves. The rules:
//!
//! 1. After a move, and after the start, nothing is swept until the calendar has kept step with
//!    the monotonic clock for a settling time. A clock that was wrong for seconds is seen twice, on
//!    its way there and on its way back, and deletes nothing; one that was corrected, and a machine
//!    that slept, sweep again when they have settled.
//! 2. Where another clock is known (a database server's, a broker's), a sweep goes by the earlier
//!    of the two: neither of them alone can delete anything early.
//! 3. Where none is known, a leap of more than a day has to last much longer than a smaller move.
//!    (What is kept is kept for days, and a day more than was promised; nights of sleep are
//!    moves, too, and must not stop a laptop from ever sweeping.)
//!
//! A start is judged by the newest time in the store ([`SweepClock::began`]): one that is more than
//! a day later is a leap, too.
//!
//! A person who sets a lone machine a year ahead and leaves it so for a day is believed.
//!
//! What must not wait, because somebody is to be answered, asks between which two times the present
//! lies ([`Between`]): until it has settled after a move, the calendar may be right as it is or as
//! it was. Nothing is deleted by that, so that also a leap is believed as soon as it has settled.

use std::time::Duration;

use crate::clock::{Clock, UnixMs};
use crate::limits::{CLOCK_LEAP_MIN, CLOCK_MOVE_MAX, CLOCK_SETTLES_AFTER, CLOCK_SETTLES_ALONE};

/// What a look at the clocks allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sweep {
    /// A sweep, which takes this for the present.
    By(UnixMs),
    /// None. The clocks may have settled after this long; until then it is not worth looking.
    After(Duration),
}

/// The present lies between these two, which are the same while the clocks can be believed. What is
/// final is said only where both of them say so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Between {
    /// It is not earlier than this.
    pub earliest: UnixMs,
    /// It is not later than this.
    pub latest: UnixMs,
}

impl Between {
    /// A time that is beyond doubt.
    pub const fn certain(now: UnixMs) -> Self {
        Self { earliest: now, latest: now }
    }

    fn and(self, time: UnixMs) -> Self {
        Self { earliest: self.earliest.min(time), latest: self.latest.max(time) }
    }
}

/// Remembers how the clocks stood, from look to look. One per process and store.
#[derive(Debug, Clone)]
pub struct SweepClock {
    settles_after: Duration,
    settles_alone: Duration,
    seen: Option<Seen>,
    /// Another clock's time, and when it was heard by the monotonic one.
    outside: Option<(UnixMs, Duration)>,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    /// Calendar less monotonic clock, in milliseconds, after the last move.
    difference_ms: i64,
    /// When the last move was seen, by the monotonic clock.
    moved_at: Duration,
    /// When the last leap was seen, until it is believed.
    leapt_at: Option<Duration>,
    /// The difference when it had last settled, or at the start.
    settled_ms: i64,
}

impl SweepClock {
    /// Nothing was seen yet.
    pub const fn new() -> Self {
        Self::settling(CLOCK_SETTLES_AFTER, CLOCK_SETTLES_ALONE)
    }

    /// With other settling times: after any move, and after a leap that no other clock confirms.
    pub const fn settling(settles_after: Duration, settles_alone: Duration) -> Self {
        Self { settles_after, settles_alone, seen: None, outside: None }
    }

    /// The first look, beside the newest time in a store: a start that is much later than that is a
    /// leap as any other. A process that was down for long looks the same, and waits as well.
    pub fn began(&mut self, newest: Option<UnixMs>, clock: &dyn Clock) {
        let (wall, monotonic) = (clock.wall(), clock.monotonic());
        let Seen { moved_at, .. } = self.moved(wall, monotonic);
        let is_leap = newest.is_some_and(|newest| wall >= newest.saturating_add(CLOCK_LEAP_MIN));
        if is_leap && let Some(seen) = &mut self.seen {
            seen.leapt_at = Some(moved_at);
        }
    }

    /// Another clock has just said what time it is. It goes on with the monotonic one from there.
    pub const fn heard(&mut self, outside: UnixMs, monotonic: Duration) {
        self.outside = Some((outside, monotonic));
    }

    /// Looks at both clocks.
    pub fn look_at(&mut self, clock: &dyn Clock) -> Sweep {
        self.look(clock.wall(), clock.monotonic())
    }

    /// What these readings of both clocks, taken together, allow.
    pub fn look(&mut self, wall: UnixMs, monotonic: Duration) -> Sweep {
        let seen = self.moved(wall, monotonic);
        let mut left = left(seen.moved_at, self.settles_after, monotonic);
        if left.is_zero() {
            self.seen = Some(Seen { settled_ms: seen.difference_ms, ..seen });
        }
        if let (None, Some(leapt_at)) = (self.outside, seen.leapt_at) {
            left = left.max(self::left(leapt_at, self.settles_alone, monotonic));
        }
        if !left.is_zero() {
            return Sweep::After(left);
        }
        self.seen = self.seen.map(|seen| Seen { leapt_at: None, ..seen });
        Sweep::By(self.outside(monotonic).map_or(wall, |outside| wall.min(outside)))
    }

    /// Between which times the present lies by these readings, and by the other clock.
    pub fn between(&mut self, wall: UnixMs, monotonic: Duration) -> Between {
        let calendar = self.calendar_between(wall, monotonic);
        self.outside(monotonic).map_or(calendar, |outside| calendar.and(outside))
    }

    /// The same by the calendar alone.
    pub fn calendar_between(&mut self, wall: UnixMs, monotonic: Duration) -> Between {
        self.look(wall, monotonic);
        let now = Between::certain(wall);
        match self.seen {
            Some(Seen { difference_ms, settled_ms, .. }) if difference_ms != settled_ms => {
                now.and(UnixMs(settled_ms).saturating_add(monotonic))
            }
            Some(_) | None => now,
        }
    }

    /// What the other clock shows now.
    fn outside(&self, monotonic: Duration) -> Option<UnixMs> {
        let (outside, heard_at) = self.outside?;
        Some(outside.saturating_add(monotonic.saturating_sub(heard_at)))
    }

    /// Compares with the last look, and remembers this one if the clocks have parted since.
    fn moved(&mut self, wall: UnixMs, monotonic: Duration) -> Seen {
        let difference_ms = wall.saturating_sub(monotonic).0;
        let moved_at = monotonic;
        let now = match self.seen {
            None => Seen { difference_ms, moved_at, leapt_at: None, settled_ms: difference_ms },
            Some(seen) => {
                let by = Duration::from_millis(difference_ms.abs_diff(seen.difference_ms));
                if by <= CLOCK_MOVE_MAX {
                    return seen;
                }
                let leapt_at = if by >= CLOCK_LEAP_MIN { Some(monotonic) } else { seen.leapt_at };
                let Seen { settled_ms, .. } = seen;
                Seen { difference_ms, moved_at, leapt_at, settled_ms }
            }
        };
        self.seen = Some(now);
        now
    }
}

impl Default for SweepClock {
    fn default() -> Self {
        Self::new()
    }
}

/// What is left at `now` of a wait that began at `from`.
fn left(from: Duration, wait: Duration, now: Duration) -> Duration {
    (from + wait).saturating_sub(now)
}

#[cfg(test)]
mod tests;
