//! What becomes of a broker when one of its tasks panics.

use std::time::Duration;

use semel_broker::limits::Timings;

use crate::client::serve_timed;
use crate::support;

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_cannot_look_after_its_sessions_ends_and_says_so() {
    // There is no such interval: the task panics when it begins.
    let timings = Timings { heartbeat: Duration::ZERO, ..Timings::default() };
    let served = serve_timed(support::sqlite().await, 7, false, timings).await;
    let ended = served.stopped.await.unwrap().unwrap_err();
    assert_eq!(ended.to_string(), "the part \"sessions\" has panicked");
}
