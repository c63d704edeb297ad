//! How far the clocks of two machines may differ before a signature counts as too old or too new.

use semel_core::clock::UnixMs;

/// Five minutes (broker.md, "Handshake"). A nonce must be remembered for twice as long.
pub const CLOCK_SKEW_MS_MAX: u64 = 5 * 60 * 1000;

/// Whether a signer's `time` is near enough to ours.
pub fn clock_skew_ok(server_time: UnixMs, time: UnixMs) -> bool {
    server_time.0.abs_diff(time.0) <= CLOCK_SKEW_MS_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_minutes_either_way_and_no_overflow() {
        let now = 1_700_000_000_000;
        for (time, ok) in [
            (now, true),
            (now - 300_000, true),
            (now + 300_000, true),
            (now - 300_001, false),
            (now + 300_001, false),
            (i64::MIN, false),
            (i64::MAX, false),
        ] {
            assert_eq!(clock_skew_ok(UnixMs(now), UnixMs(time)), ok, "{time}");
        }
    }
}
