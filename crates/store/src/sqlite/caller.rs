//! Who waits for a database thread, and how.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use crate::{StoreError, limits};

/// Counts a caller for as long as it lives.
pub(super) struct Caller<'a>(&'a AtomicUsize);

impl<'a> Caller<'a> {
    pub(super) fn enter(callers: &'a AtomicUsize) -> Self {
        callers.fetch_add(1, Ordering::Relaxed);
        Self(callers)
    }

    fn is_alone(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 1
    }

    /// Waits for the thread's answer; without one it never began.
    ///
    /// Waking a thread on a core that fell asleep meanwhile can take longer than the work, so a
    /// caller who is alone looks around a few times before it sleeps.
    pub(super) async fn wait<T>(
        self,
        mut answer: oneshot::Receiver<Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        if self.is_alone() {
            for _ in 0..limits::YIELDS_WHEN_ALONE {
                match answer.try_recv() {
                    Ok(result) => return result,
                    Err(TryRecvError::Empty) => tokio::task::yield_now().await,
                    Err(TryRecvError::Closed) => return Err(StoreError::Stopped),
                }
            }
        }
        answer.await.map_err(|_| StoreError::Stopped)?
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
