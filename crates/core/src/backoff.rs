//! The wait between two attempts: exponential with full jitter (mesh.md §6).

use std::time::Duration;

use crate::limits::{BACKOFF_BASE_MS, BACKOFF_CAP_MS};

/// The longest wait after `attempts` failed attempts: 250 ms, doubled each time, at most 60 s.
pub fn backoff_ceiling(attempts: u32) -> Duration {
    let doublings = attempts.saturating_sub(1).min(u64::BITS - 1);
    let ms = BACKOFF_BASE_MS.saturating_mul(1 << doublings).min(BACKOFF_CAP_MS);
    Duration::from_millis(ms)
}

/// The wait itself: evenly spread from zero to the ceiling, so that many senders that failed
/// together do not come back together. `random` is any evenly spread number.
pub fn backoff_delay(attempts: u32, random: u64) -> Duration {
    backoff_delay_within(Duration::from_millis(BACKOFF_CAP_MS), attempts, random)
}

/// As [`backoff_delay`], and spread over `cap` where the ceiling is higher.
pub fn backoff_delay_within(cap: Duration, attempts: u32, random: u64) -> Duration {
    let ceiling_ms = backoff_ceiling(attempts).min(cap).as_millis();
    // The upper half of the product is `random` scaled to 0..=ceiling without a modulo's bias.
    let ms = (u128::from(random) * (ceiling_ms + 1)) >> u64::BITS;
    Duration::from_millis(u64::try_from(ms).unwrap_or(BACKOFF_CAP_MS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ceiling_doubles_from_250_ms_to_60_s() {
        let ms: Vec<u128> = (0..=10).map(|n| backoff_ceiling(n).as_millis()).collect();
        assert_eq!(ms, [250, 250, 500, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]);
        assert_eq!(backoff_ceiling(u32::MAX).as_millis(), 60_000);
    }

    #[test]
    fn jitter_reaches_both_ends() {
        assert_eq!(backoff_delay(3, 0), Duration::ZERO);
        assert_eq!(backoff_delay(3, u64::MAX), Duration::from_secs(1));
        let cap = Duration::from_secs(10);
        assert_eq!(backoff_delay_within(cap, 9, u64::MAX), cap);
        assert_eq!(backoff_delay_within(cap, 9, u64::MAX / 2), cap / 2, "spread, not cut");
        assert_eq!(backoff_delay_within(cap, 3, u64::MAX), Duration::from_secs(1));
    }

    proptest! {
        #[test]
        fn delay_never_exceeds_its_ceiling(attempts: u32, random: u64) {
            prop_assert!(backoff_delay(attempts, random) <= backoff_ceiling(attempts));
        }
    }
}
