//! An engine that has nothing to do is at rest: it waits to be told, and looks now and then.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use semel_core::clock::{Clock, SystemClock, UnixMs};
use tokio::sync::Notify;

use crate::support::{PATIENCE, Setup};

/// Counts how often it is asked: whatever wakes up in an engine asks it.
struct Counting {
    clock: SystemClock,
    asked: AtomicUsize,
    calendar: AtomicUsize,
    seen: Notify,
}

impl Clock for Counting {
    fn wall(&self) -> UnixMs {
        self.calendar.fetch_add(1, Ordering::SeqCst);
        self.seen.notify_one();
        self.clock.wall()
    }

    fn monotonic(&self) -> Duration {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.clock.monotonic()
    }
}

impl Counting {
    /// Until the calendar was looked at so often.
    async fn calendar(&self, looks: usize) {
        let looked = async {
            while self.calendar.load(Ordering::SeqCst) < looks {
                self.seen.notified().await;
            }
        };
        tokio::time::timeout(PATIENCE, looked).await.expect("the calendar is looked at");
    }
}

/// Between two looks at the calendar, which are five seconds apart. One that asks the store ten
/// times a second, or measures as often how late it is, asks for the time a hundred times.
#[tokio::test]
async fn an_engine_without_jobs_is_at_rest() {
    let clock = Arc::new(Counting {
        clock: SystemClock::new(),
        asked: AtomicUsize::new(0),
        calendar: AtomicUsize::new(0),
        seen: Notify::new(),
    });
    let lease = Duration::from_secs(30);
    let poll = semel_jobs::limits::POLL;
    let setup =
        Setup { clock: Arc::clone(&clock) as Arc<dyn Clock>, lease, poll, ..Setup::default() };
    let bench = setup.open().await;
    // What is done at the start is done.
    clock.calendar(clock.calendar.load(Ordering::SeqCst) + 2).await;
    let before = clock.asked.load(Ordering::SeqCst);
    clock.calendar(clock.calendar.load(Ordering::SeqCst) + 1).await;
    let asked = clock.asked.load(Ordering::SeqCst) - before;
    assert!(asked <= 40, "the time was asked for {asked} times");
    bench.engine.stop().await;
}
