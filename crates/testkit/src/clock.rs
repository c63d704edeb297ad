//! A clock that moves only when it is told to.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::clock::{Clock, UnixMs};

/// Simulated time; clones share it.
#[derive(Debug, Clone)]
pub struct SimClock(Arc<Mutex<Now>>);

#[derive(Debug)]
struct Now {
    wall: UnixMs,
    monotonic: Duration,
}

impl SimClock {
    /// A clock whose calendar shows this many milliseconds since the epoch.
    pub fn at_ms(ms: i64) -> Self {
        Self(Arc::new(Mutex::new(Now { wall: UnixMs(ms), monotonic: Duration::ZERO })))
    }

    /// Time passes: both clocks go on.
    pub fn advance(&self, duration: Duration) {
        self.with(|now| {
            now.wall = now.wall.saturating_add(duration);
            now.monotonic += duration;
        });
    }

    /// Somebody sets the calendar; no time passes.
    pub fn step_wall_ms(&self, ms: i64) {
        self.with(|now| now.wall = UnixMs(now.wall.0.saturating_add(ms)));
    }

    fn with<T>(&self, f: impl FnOnce(&mut Now) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Clock for SimClock {
    fn wall(&self) -> UnixMs {
        self.with(|now| now.wall)
    }

    fn monotonic(&self) -> Duration {
        self.with(|now| now.monotonic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_of_the_calendar_is_not_time_passing() {
        let clock = SimClock::at_ms(1_000);
        clock.advance(Duration::from_millis(5));
        clock.step_wall_ms(-100);
        assert_eq!(clock.wall(), UnixMs(905));
        assert_eq!(clock.monotonic(), Duration::from_millis(5));
    }
}
