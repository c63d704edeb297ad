//! Whether the broker can do its work now (`GET /readyz`): whether its store takes what is written.
//! A full disk answers every read. Anybody may ask, so that the answer is kept for a moment.

use std::time::Duration;

use semel_store::StoreError;
use tokio::sync::Mutex;

use crate::connection::Broker;
use crate::limits::READY_KEPT;

/// The last answer, and when it was found on the monotonic clock.
#[derive(Debug, Default)]
pub(crate) struct Readiness(Mutex<Option<(Duration, Answer)>>);

type Answer = Result<(), &'static str>;

impl Readiness {
    /// Why nothing can be accepted now, if so. Those who ask at once share one look.
    pub(crate) async fn look(&self, broker: &Broker) -> Answer {
        let mut last = self.0.lock().await;
        if let Some((at, answer)) = *last
            && broker.clock.monotonic().saturating_sub(at) < READY_KEPT
        {
            return answer;
        }
        let answer = broker.store.probe().await.map_err(|error| {
            tracing::warn!(error = error.chain(), "the broker is not ready");
            say(&error)
        });
        *last = Some((broker.clock.monotonic(), answer));
        answer
    }
}

fn say(error: &StoreError) -> &'static str {
    match error {
        StoreError::Full => "the disk of the store is full\n",
        StoreError::Unavailable { .. } => "the store is not reachable\n",
        StoreError::Sqlite(_)
        | StoreError::Postgres(_)
        | StoreError::RolledBack { .. }
        | StoreError::Panicked
        | StoreError::TooManyRows { .. }
        | StoreError::Behind
        | StoreError::Uncertain { .. }
        | StoreError::Contended { .. }
        | StoreError::Copy { .. }
        | StoreError::Busy
        | StoreError::Stopped
        | StoreError::Damaged { .. }
        | StoreError::Corrupt { .. } => "the store accepts no writes\n",
    }
}
