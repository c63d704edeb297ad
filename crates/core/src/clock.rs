//! Time as a value that is handed in. This file is the only place of the product that reads the
//! machine's clock (`xtask tidy` holds that).

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

/// A moment: milliseconds since the Unix epoch, as databases hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnixMs(pub i64);

impl UnixMs {
    /// This moment and `duration` more, at the end of time at the latest.
    pub fn saturating_add(self, duration: Duration) -> Self {
        let ms = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(ms))
    }

    /// This moment and `duration` less, at the beginning of time at the earliest.
    pub fn saturating_sub(self, duration: Duration) -> Self {
        let ms = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        Self(self.0.saturating_sub(ms))
    }
}

/// Two clocks, because they answer different questions.
pub trait Clock: Send + Sync {
    /// What a calendar says. It may step in either direction: never subtract two readings to
    /// measure a wait.
    fn wall(&self) -> UnixMs;

    /// Time passed since some fixed moment of this process. It never goes back.
    fn monotonic(&self) -> Duration;

    /// Time passed since the machine was started, if that is known. Processes of one machine that
    /// follow each other know by it how much time lies between them, whatever calendars say.
    fn uptime(&self) -> Option<Uptime> {
        None
    }
}

/// How long a machine has been running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uptime {
    /// Which start: two readings can be compared if they have the same one.
    pub boot: String,
    /// The time since, in milliseconds.
    pub ms: i64,
}

/// Both clocks at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// See [`Clock::wall`].
    pub wall: UnixMs,
    /// See [`Clock::monotonic`].
    pub monotonic: Duration,
}

impl Reading {
    /// What a clock shows now.
    pub fn of(clock: &dyn Clock) -> Self {
        Self { wall: clock.wall(), monotonic: clock.monotonic() }
    }
}

/// A calendar that does not step, for what one process alone writes and compares: it starts with
/// the wall clock and goes on with the monotonic one. A machine that sleeps stops it.
#[derive(Debug, Default)]
pub struct Steady(OnceLock<Reading>);

impl Steady {
    /// The time at this moment. The first one asked for is where it starts.
    pub fn now(&self, at: Reading) -> UnixMs {
        let origin = self.0.get_or_init(|| at);
        origin.wall.saturating_add(at.monotonic.saturating_sub(origin.monotonic))
    }
}

/// The machine's clocks.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// A clock whose monotonic reading starts at zero now.
    #[expect(clippy::disallowed_methods, reason = "the one reader of the machine's clock")]
    pub fn new() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one reader of the machine's clock")]
    fn wall(&self) -> UnixMs {
        // A clock set before 1970 reads as negative instead of failing.
        let ms = match SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_millis()).unwrap_or(i64::MAX),
            Err(before) => -i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX),
        };
        UnixMs(ms)
    }

    fn monotonic(&self) -> Duration {
        self.origin.elapsed()
    }

    fn uptime(&self) -> Option<Uptime> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
        let (seconds, hundredths) = uptime.split_whitespace().next()?.split_once('.')?;
        let (seconds, hundredths): (i64, i64) = (seconds.parse().ok()?, hundredths.parse().ok()?);
        let ms = seconds.checked_mul(1000)?.checked_add(hundredths * 10)?;
        Some(Uptime { boot: boot.trim().to_owned(), ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_calendar_goes_on_whatever_is_done_to_the_other() {
        let steady = Steady::default();
        let at = |wall, s| Reading { wall: UnixMs(wall), monotonic: Duration::from_secs(s) };
        assert_eq!(steady.now(at(1_000_000, 5)), UnixMs(1_000_000));
        assert_eq!(steady.now(at(9_999_999, 6)), UnixMs(1_001_000));
        assert_eq!(steady.now(at(0, 7)), UnixMs(1_002_000));
    }
}
