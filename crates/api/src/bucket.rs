//! How often a token may call: a burst at once, and a steady rate in the long run. One number per
//! token (the time at which its bucket would be full again), changed without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Tokens that are told apart; after a rotation two are valid.
const TOKENS: usize = 4;

/// The buckets of a door.
pub(crate) struct Buckets {
    interval_us: u64,
    burst_us: u64,
    full_at_us: [AtomicU64; TOKENS],
}

impl Buckets {
    /// Full ones.
    pub(crate) fn new(burst: u32, per_second: u32) -> Self {
        let interval_us = 1_000_000 / u64::from(per_second.max(1));
        let burst_us = interval_us * u64::from(burst.max(1));
        Self { interval_us, burst_us, full_at_us: Default::default() }
    }

    /// Takes one call from a token's bucket, or says how long to wait for it.
    pub(crate) fn take(&self, token: u64, now: Duration) -> Result<(), Duration> {
        let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX / 2);
        let slot = usize::try_from(token % TOKENS as u64).unwrap_or(0);
        let cell = &self.full_at_us[slot];
        let mut full_at = cell.load(Ordering::Relaxed);
        loop {
            let next = full_at.max(now) + self.interval_us;
            if next - now > self.burst_us {
                return Err(Duration::from_micros(next - now - self.burst_us));
            }
            match cell.compare_exchange_weak(full_at, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(other) => full_at = other,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_the_steady_rate() {
        let buckets = Buckets::new(10, 100);
        let at = Duration::from_millis;
        let taken =
            |from: Duration| (0..1000).take_while(|_| buckets.take(1, from).is_ok()).count();
        assert_eq!(taken(at(0)), 10);
        assert_eq!(buckets.take(1, at(0)), Err(at(10)));
        assert!(buckets.take(2, at(0)).is_ok(), "another token has its own");
        assert_eq!(taken(at(30)), 3);
        assert_eq!(taken(at(10_000)), 10, "no more than a burst is saved up");
    }
}
