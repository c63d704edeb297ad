//! Waiting for something outside this process, never longer than a limit.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Asks until the answer is `true` or the time is up; returns the last answer.
#[expect(
    clippy::disallowed_methods,
    reason = "another program's state gives us no event to wait for, and the wait needs a limit"
)]
pub(crate) fn wait_until(limit: Duration, mut done: impl FnMut() -> Result<bool>) -> Result<bool> {
    let started = Instant::now();
    while !done()? {
        if started.elapsed() >= limit {
            return Ok(false);
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(true)
}

/// Lets the rest of the world go on for a while.
#[expect(clippy::disallowed_methods, reason = "between two faults there is nothing to wait for")]
pub(crate) fn pause(length: Duration) {
    thread::sleep(length);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_again_until_it_is_true() {
        let mut asked = 0;
        let answer = wait_until(Duration::from_secs(30), || {
            asked += 1;
            Ok(asked == 3)
        });
        assert!(answer.unwrap());
        assert_eq!(asked, 3);
    }

    #[test]
    fn gives_up_at_the_limit() {
        assert!(!wait_until(Duration::ZERO, || Ok(false)).unwrap());
    }
}
