//! Measures how late this program's tasks get their turn (jobs.md §11): whatever blocks a thread
//! blocks everybody who waits for it.

use std::sync::Arc;
use std::time::Duration;

use super::Inner;
use crate::limits::{
    WATCHDOG_DUMP, WATCHDOG_IDLE, WATCHDOG_INTERVAL, WATCHDOG_QUIET, WATCHDOG_WARN,
};

/// Until the engine stops.
pub(super) async fn run(inner: Arc<Inner>) {
    let clock = &inner.parts.clock;
    let mut warned = None::<Duration>;
    loop {
        let idle = inner.running().is_empty();
        let pause = if idle { WATCHDOG_IDLE } else { WATCHDOG_INTERVAL };
        let before = clock.monotonic();
        tokio::time::sleep(pause).await;
        let now = clock.monotonic();
        let late = now.saturating_sub(before + pause);
        if late < WATCHDOG_WARN {
            continue;
        }
        // One line says it; a hundred a second would be the next trouble.
        let quiet = warned.is_some_and(|at| now.saturating_sub(at) < WATCHDOG_QUIET);
        if quiet && late < WATCHDOG_DUMP {
            continue;
        }
        warned = Some(now);
        let late_ms = u64::try_from(late.as_millis()).unwrap_or(u64::MAX);
        let running: Vec<String> =
            inner.running().keys().take(20).map(ToString::to_string).collect();
        let running = running.join(" ");
        if late >= WATCHDOG_DUMP {
            let (free, workers) = (inner.slots.available_permits(), inner.options.workers);
            tracing::error!(
                late_ms,
                running,
                free,
                workers,
                "tasks did not get their turn for long"
            );
        } else {
            tracing::warn!(late_ms, running, "tasks get their turn late");
        }
    }
}
