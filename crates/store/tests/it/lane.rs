//! Writes that share transactions: one that panics, and callers that go away.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use semel_store::limits::LANE_QUEUE_MAX;
use semel_store::postgres::{Lane, Work};
use semel_store::{Fate, StoreError};
use tokio::sync::Semaphore;

/// One item for each run; each waits for its permit.
#[derive(Clone)]
struct Slow {
    go_on: Arc<Semaphore>,
    runs: Arc<AtomicUsize>,
}

impl Slow {
    fn new() -> Self {
        Self { go_on: Arc::new(Semaphore::new(0)), runs: Arc::default() }
    }
}

impl Work<&'static str, usize> for Slow {
    fn fits(batch: &[&'static str], _: &&'static str) -> bool {
        batch.is_empty()
    }

    async fn run(&self, batch: Vec<&'static str>) -> Vec<Result<usize, StoreError>> {
        self.go_on.acquire().await.unwrap().forget();
        assert!(!batch.contains(&"panic"), "on purpose");
        batch.iter().map(|_| Ok(self.runs.fetch_add(1, Ordering::SeqCst))).collect()
    }
}

#[tokio::test]
async fn a_transaction_that_panics_leaves_nobody_waiting() {
    let (lane, work) = (Arc::new(Lane::new(1)), Slow::new());
    let written = ["first", "panic", "last"].map(|item| {
        let (lane, work) = (Arc::clone(&lane), work.clone());
        tokio::spawn(async move { lane.write(&work, item).await })
    });
    // All three are handed in before the first one ends.
    tokio::task::yield_now().await;
    work.go_on.add_permits(3);
    let [first, panic, last] = written;
    assert_eq!(first.await.unwrap().unwrap(), 0);
    let error = panic.await.unwrap().expect_err("nobody can know");
    assert_eq!(error.fate(), Fate::Uncertain, "{error:?}");
    assert_eq!(last.await.unwrap().unwrap(), 1);
}

#[tokio::test]
async fn a_caller_that_goes_away_gives_no_place_back_that_its_item_holds() {
    const MORE: usize = 10;
    let (lane, work) = (Arc::new(Lane::new(1)), Slow::new());
    for _ in 0..LANE_QUEUE_MAX + MORE {
        let mut write = Box::pin(tokio::task::unconstrained(lane.write(&work, "item")));
        // Handed in, or waiting outside; then its caller goes away.
        assert!(futures_util::poll!(&mut write).is_pending());
    }
    work.go_on.add_permits(LANE_QUEUE_MAX + MORE + 1);
    lane.write(&work, "the last").await.unwrap();
    assert_eq!(work.runs.load(Ordering::SeqCst), LANE_QUEUE_MAX + 1, "the others never came in");
}
