//! The time by which an engine judges leases, pauses and deadlines.
//!
//! Calendars step: by hand, by a time server, after a pause of the machine. Between two looks at a
//! calendar time passes by the monotonic clock, so that no step ends a lease or a job. The calendar
//! is the store's where engines share one, and this machine's where there is only one.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use semel_core::clock::{Clock, UnixMs};
use semel_store::StoreError;

use super::Inner;
use crate::limits::{CLOCK_LOOK, CLOCK_SLEW_MAX};
use crate::store::{Calendar, Store};

/// A clock that does not step.
pub(super) struct Steady {
    clock: Arc<dyn Clock>,
    /// The calendar's time when the monotonic clock began, in milliseconds.
    began: AtomicI64,
}

impl Steady {
    /// Goes on from here.
    pub(super) fn from(clock: Arc<dyn Clock>, now: UnixMs) -> Self {
        let began = AtomicI64::new(now.0.saturating_sub(millis(clock.monotonic())));
        Self { clock, began }
    }

    /// The time.
    pub(super) fn now(&self) -> UnixMs {
        let passed = millis(self.clock.monotonic());
        UnixMs(self.began.load(Ordering::Relaxed).saturating_add(passed))
    }

    /// A calendar says so: small differences are followed, so that no error grows. Gives how far
    /// the calendar is ahead when it has stepped.
    pub(super) fn compare(&self, calendar: UnixMs) -> Option<i64> {
        let ahead = calendar.0.saturating_sub(self.now().0);
        if ahead.unsigned_abs() > u64::try_from(CLOCK_SLEW_MAX.as_millis()).unwrap_or(u64::MAX) {
            return Some(ahead);
        }
        self.began.fetch_add(ahead, Ordering::Relaxed);
        None
    }

    /// Goes by another calendar from now on.
    pub(super) fn step(&self, ahead: i64) {
        self.began.fetch_add(ahead, Ordering::Relaxed);
    }
}

/// Compares the clocks now and then, until the engine stops.
pub(super) async fn watch(inner: Arc<Inner>) {
    let mut ticks = tokio::time::interval(CLOCK_LOOK.min(inner.options.lease));
    let mut noted = 0;
    loop {
        ticks.tick().await;
        if let Err(error) = look(&inner, &mut noted).await {
            tracing::warn!(error = error.chain(), "the clocks could not be compared");
        }
    }
}

impl Inner {
    /// The clock of the database says so.
    pub(super) fn follow(&self, now: UnixMs) {
        if let Some(ahead_ms) = self.steady.compare(now) {
            tracing::warn!(
                ahead_ms,
                "the clock of the database has stepped, or this host stood still"
            );
            self.steady.step(ahead_ms);
        }
    }
}

async fn look(inner: &Inner, noted: &mut i64) -> Result<(), StoreError> {
    if matches!(inner.parts.store, Store::Postgres(_)) {
        // An engine with a home hears the time as often, whenever it says that it lives.
        if inner.options.home.is_none()
            && let Some(now) = inner.parts.store.time().await?
        {
            inner.follow(now);
        }
        return Ok(());
    }
    let ahead_ms = inner.steady.compare(inner.parts.clock.wall()).unwrap_or(0);
    if ahead_ms.abs_diff(*noted) > u64::try_from(CLOCK_SLEW_MAX.as_millis()).unwrap_or(u64::MAX) {
        tracing::warn!(ahead_ms, "the clock has stepped: jobs continue by elapsed time");
        let uptime = inner.parts.clock.uptime();
        let note = Calendar::new(ahead_ms, inner.now(), uptime.as_ref());
        inner.parts.store.note_calendar(note).await?;
        *noted = ahead_ms;
    }
    Ok(())
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use semel_testkit::clock::SimClock;

    use super::*;

    #[test]
    fn a_step_of_the_calendar_is_told_and_not_followed() {
        let sim = SimClock::at_ms(1_000_000);
        let steady = Steady::from(Arc::new(sim.clone()), sim.wall());
        sim.advance(Duration::from_secs(5));
        sim.step_wall_ms(3_600_000);
        assert_eq!(steady.now(), UnixMs(1_005_000));
        assert_eq!(steady.compare(sim.wall()), Some(3_600_000));
        assert_eq!(steady.now(), UnixMs(1_005_000));
        sim.step_wall_ms(-3_600_000 + 400);
        assert_eq!(steady.compare(sim.wall()), None, "a calendar that is put right bit by bit");
        assert_eq!(steady.now(), UnixMs(1_005_400));
        steady.step(-400);
        assert_eq!(steady.now(), UnixMs(1_005_000));
    }
}
