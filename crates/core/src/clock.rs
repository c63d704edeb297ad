//! Time as a value that is handed in. This file is the only place of the product that reads the
//! machine's clock (`xtask tidy` holds that).

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
}
