//! Tasks and threads that their owner cannot do without. Each has a name, and its end before the
//! owner's stop is told to whoever waits in [`Vital::ended`]: by a panic, by coming to an end, or
//! by being dropped. A process that lives on without one of its parts answers some and lets others
//! wait for ever; one that ends is started again.
//!
//! Whoever owns parts owns a [`Vital`] and shows it, so that the command line, which alone ends the
//! process, waits for all of them:
//!
//! ```
//! # use semel_vital::{How, Vital};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let vital = Vital::default();
//! let sweeping = vital.spawn("sweeper", async { /* for ever, one would hope */ });
//! let ended = vital.ended().await;
//! assert_eq!((ended.name, ended.how), ("sweeper", How::Returned));
//! # sweeping.await.unwrap();
//! # }
//! ```

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The parts of one owner. Nobody is told of ends after [`Vital::stop`], nor after it is dropped.
#[derive(Debug, Default)]
pub struct Vital {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    stopping: AtomicBool,
    /// The first that ended; the others follow from it.
    first: watch::Sender<Option<Ended>>,
}

/// A part has ended that should not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Which.
    pub name: &'static str,
    /// In which way.
    pub how: How,
}

/// In which way a part has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// The panic itself went to the panic hook.
    Panicked,
    /// It came to its end.
    Returned,
    /// Somebody has aborted or dropped it.
    Dropped,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.how {
            How::Panicked => "has panicked",
            How::Returned => "has ended",
            How::Dropped => "was dropped",
        };
        write!(f, "the part {:?} {how}", self.name)
    }
}

impl std::error::Error for Ended {}

impl Vital {
    /// Spawns a part. The handle is for whoever waits for its end after the stop.
    pub fn spawn<Part>(&self, name: &'static str, part: Part) -> JoinHandle<Part::Output>
    where
        Part: Future<Output: Send> + Send + 'static,
    {
        tokio::spawn(self.keep(name, part))
    }

    /// The same for a part that is spawned, or run, in another way.
    pub fn keep<Part: Future>(
        &self,
        name: &'static str,
        part: Part,
    ) -> impl Future<Output = Part::Output> + use<Part> {
        let guard = self.guard(name);
        async move {
            let output = part.await;
            guard.returned();
            output
        }
    }

    /// The same for a thread: it holds the guard for as long as it lives.
    pub fn guard(&self, name: &'static str) -> Guard {
        Guard { name, how: How::Dropped, shared: Arc::clone(&self.shared) }
    }

    /// Parts may end from now on.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
    }

    /// Which part has ended before the stop, if any.
    pub fn has_ended(&self) -> Option<Ended> {
        *self.shared.first.borrow()
    }

    /// Comes back once a part has ended before the stop: with the first.
    pub async fn ended(&self) -> Ended {
        let mut first = self.shared.first.subscribe();
        // The sender is held here, so the wait ends only by a value.
        match first.wait_for(Option::is_some).await.map(|first| *first) {
            Ok(Some(ended)) => ended,
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Vital {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Lives as long as its part.
#[derive(Debug)]
pub struct Guard {
    name: &'static str,
    how: How,
    shared: Arc<Shared>,
}

impl Guard {
    /// The part came to its end.
    pub fn returned(mut self) {
        self.how = How::Returned;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        let how = if std::thread::panicking() { How::Panicked } else { self.how };
        let ended = Ended { name: self.name, how };
        // Told before it is logged: a log line can fail, and this must not.
        self.shared.first.send_if_modified(|first| match first {
            Some(_) => false,
            None => {
                *first = Some(ended);
                true
            }
        });
        tracing::error!(part = self.name, "{ended}, and nothing works without it");
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    fn ended(name: &'static str, how: How) -> Ended {
        Ended { name, how }
    }

    #[tokio::test]
    async fn every_way_to_end_is_told_and_named() {
        let vital = Vital::default();
        let task = vital.spawn("reader", async { panic!("planted") });
        assert_eq!(vital.ended().await, ended("reader", How::Panicked));
        assert!(task.await.unwrap_err().is_panic());

        let vital = Vital::default();
        assert_eq!(vital.spawn("writer", async { 7 }).await.unwrap(), 7);
        assert_eq!(vital.ended().await, ended("writer", How::Returned));

        let vital = Vital::default();
        vital.spawn("sweeper", pending::<()>()).abort();
        assert_eq!(vital.ended().await, ended("sweeper", How::Dropped));
    }

    #[tokio::test]
    async fn a_part_that_panics_after_its_first_sleep_is_told_too() {
        let vital = Vital::default();
        let (go, gone) = tokio::sync::oneshot::channel::<()>();
        let held = String::from("something");
        vital.spawn("late", async move {
            gone.await.unwrap();
            assert!(held.is_empty(), "planted");
        });
        tokio::task::yield_now().await;
        assert_eq!(vital.has_ended(), None);
        go.send(()).unwrap();
        assert_eq!(vital.ended().await, ended("late", How::Panicked));
    }

    #[tokio::test]
    async fn threads_and_sets_of_tasks_are_watched_alike() {
        let vital = Vital::default();
        let guard = vital.guard("thread");
        let thread = std::thread::spawn(move || {
            let _guard = guard;
            panic!("planted");
        });
        assert_eq!(vital.ended().await, ended("thread", How::Panicked));
        assert!(thread.join().is_err());

        let vital = Vital::default();
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(vital.keep("one of many", pending::<()>()));
        drop(tasks);
        assert_eq!(vital.ended().await, ended("one of many", How::Dropped));
    }

    #[tokio::test]
    async fn the_first_is_told_and_none_after_the_stop() {
        let vital = Vital::default();
        vital.guard("first").returned();
        drop(vital.guard("second"));
        assert_eq!(vital.ended().await, ended("first", How::Returned));

        let vital = Vital::default();
        let last = vital.guard("last");
        vital.stop();
        drop(last);
        assert_eq!(vital.has_ended(), None);
    }

    #[test]
    fn it_is_said_as_a_sentence() {
        let said = ended("link", How::Panicked).to_string();
        assert_eq!(said, "the part \"link\" has panicked");
    }
}
