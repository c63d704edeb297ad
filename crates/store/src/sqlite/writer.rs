//! The writer thread and its group commit (ARCHITECTURE.md, "How a write goes").
//!
//! One transaction carries every write that arrived while the last one was committed; all are
//! answered after the COMMIT. Three things can go wrong, and each is said differently:
//!
//! | what | the write at fault | its neighbours |
//! |---|---|---|
//! | a write returns `Err`, panics, changes too many rows | undone | committed |
//! | SQLite ends the transaction, or the disk is full | undone | undone too |
//! | COMMIT fails, or an I/O error or corruption shows | uncertain; the writer stops | the same |
//!
//! The writer's last word is [`OnUncertain`], unless it was asked to close: before anybody is
//! answered where an outcome is unknown, before anything is logged, and also when its thread
//! panics. Whoever then gets no answer knows nothing of its write; who was not begun is told so.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::caller::{Caller, Callers};
use super::group::{Group, Lost, Statements};
use super::job::{Awaited, Job, Place, Riding, Sequence, Tx, cause};
use super::lock::Serving;
use super::log::Keeper;
use super::queue::{Queue, Urgency};
use super::{OnUncertain, SqliteOptions};
use crate::{StoreError, limits};

pub(super) struct Writer {
    queue: Arc<Queue<Box<dyn Job>>>,
    callers: Callers,
    /// Transactions that are on disk, each by a sync of its own.
    commits: Arc<AtomicU64>,
}

/// How a write is handed in.
#[derive(Clone, Copy)]
pub(super) struct How<'a> {
    /// Whose work it is: one who waits alone looks for the answer, and must not while there is
    /// work for many.
    pub(super) many: usize,
    pub(super) sequence: Option<&'a Arc<Sequence>>,
}

impl How<'_> {
    pub(super) const ALONE: Self = Self { many: 1, sequence: None };
}

impl Writer {
    pub(super) fn start(
        connection: Connection,
        keeper: Keeper,
        options: &SqliteOptions,
        serving: Option<Arc<Serving>>,
    ) -> std::io::Result<Self> {
        let queue = Arc::new(Queue::new(options.queue_max, 1));
        let commits = Arc::new(AtomicU64::new(0));
        let thread = Thread {
            queue: Arc::clone(&queue),
            commits: Arc::clone(&commits),
            on_uncertain: Arc::clone(&options.on_uncertain),
            has_told: Cell::new(false),
            group_max: options.group_max.max(1),
            ride_wait: options.ride_wait,
            rows_max: options.write_rows_max,
        };
        let running =
            Running { thread, keeper: Some(keeper), connection: Some(connection), serving };
        std::thread::Builder::new().name("sqlite-write".to_owned()).spawn(move || running.run())?;
        Ok(Self { queue, callers: Callers::default(), commits })
    }

    /// For a file that is only read.
    pub(super) fn none() -> Self {
        let queue = Queue::new(0, 0);
        queue.close();
        Self { queue: Arc::new(queue), callers: Callers::default(), commits: Arc::default() }
    }

    /// Boxed before anything else: futures are moved as a whole, and a write may carry much.
    pub(super) fn write<T, F, Then>(
        &self,
        how: How<'_>,
        f: F,
        then: Then,
    ) -> impl Future<Output = Result<T, StoreError>> + Send + use<'_, T, F, Then>
    where
        F: FnMut(&Tx<'_>) -> Result<T, StoreError> + Send + 'static,
        Then: FnOnce(&T) + Send + 'static,
        T: Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let (place, many) = (how.sequence.map(Place::next), how.many);
        let job: Box<dyn Job> = Box::new(Awaited { f, place, then, result: None, reply });
        async move {
            let caller = Caller::enter(&self.callers, many);
            self.queue.push(job, Urgency::Awaited).await?;
            caller.wait(answer, no_answer).await
        }
    }

    pub(super) fn write_along<T, F>(
        &self,
        urgency: Urgency,
        f: F,
    ) -> impl Future<Output = Result<T, StoreError>> + Send + use<'_, T, F>
    where
        F: FnMut(&Tx<'_>) -> Result<T, StoreError> + Send + 'static,
        T: Send + 'static,
    {
        let ((reply, answer), then) = (oneshot::channel(), |_: &T| {});
        let job: Box<dyn Job> = Box::new(Awaited { f, place: None, then, result: None, reply });
        async move {
            self.queue.push(job, urgency).await?;
            answer.await.unwrap_or_else(|_| Err(no_answer()))
        }
    }

    pub(super) fn ride<F>(&self, f: F) -> Result<(), StoreError>
    where
        F: FnMut(&Tx<'_>) -> Result<(), StoreError> + Send + 'static,
    {
        self.queue.push_riding(Box::new(Riding(f)))
    }

    pub(super) fn queue_len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    pub(super) async fn close(&self) {
        self.queue.close();
        self.queue.drained().await;
    }
}

/// Of a write that was handed in: its thread has ended over it, before or after the commit.
fn no_answer() -> StoreError {
    StoreError::Uncertain { cause: "the writer has ended".into() }
}

/// A writer that nobody can reach any more commits what it was given and ends.
impl Drop for Writer {
    fn drop(&mut self) {
        self.queue.close();
    }
}

struct Thread {
    queue: Arc<Queue<Box<dyn Job>>>,
    commits: Arc<AtomicU64>,
    on_uncertain: OnUncertain,
    /// It was called, once.
    has_told: Cell<bool>,
    group_max: usize,
    ride_wait: Duration,
    rows_max: u64,
}

/// The thread and its connection. However it ends, nobody waits for it any longer.
struct Running {
    thread: Thread,
    keeper: Option<Keeper>,
    connection: Option<Connection>,
    serving: Option<Arc<Serving>>,
}

impl Running {
    fn run(mut self) {
        if let (Some(connection), Some(keeper)) = (&self.connection, &mut self.keeper) {
            let is_asked = self.thread.run(connection, keeper);
            // It was asked to close, or has told already.
            self.thread.has_told.set(true);
            if is_asked {
                keeper.close(connection);
                drop(self.connection.take());
                keeper.closed();
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.thread.tell(&StoreError::Uncertain { cause: "the writer has panicked".into() });
        self.thread.refuse_the_rest();
        drop(self.connection.take());
        drop(self.keeper.take());
        drop(self.serving.take());
        self.thread.queue.thread_ended();
    }
}

impl Thread {
    /// Whether it was asked to end.
    fn run(&self, connection: &Connection, keeper: &mut Keeper) -> bool {
        let mut statements = match Statements::prepare(connection) {
            Ok(statements) => statements,
            Err(error) => return self.stop(cause(&error), Vec::new()),
        };
        let mut waiting = VecDeque::with_capacity(self.group_max);
        while let Some(urgency) = self.next(&mut waiting) {
            let mut group = Group::new(connection, &mut statements);
            let outcome = self.commit(&mut group, &mut waiting, urgency);
            let size = group.size();
            // After a commit those that did not fit are the next group's.
            let lost = if outcome.is_ok() { 0 } else { waiting.len() };
            let jobs = group.into_jobs().chain(waiting.drain(..lost));
            match outcome {
                Ok(()) => {
                    let commits = self.commits.fetch_add(1, Ordering::Relaxed) + 1;
                    // All are answered, whoever of those who are told of it panics.
                    let told = |job: Box<dyn Job>| {
                        catch_unwind(AssertUnwindSafe(|| job.committed())).is_ok()
                    };
                    if jobs.map(told).filter(|told| !told).count() > 0 {
                        let cause = "the receiver of a commit's result has panicked";
                        return self.stop(cause.into(), Vec::new());
                    }
                    keeper.after_commit(connection, commits, size);
                }
                Err(Lost::Undone(error, cause)) => {
                    jobs.for_each(|job| job.failed(error(Arc::clone(&cause))));
                    tracing::warn!(%cause, "a group of writes was rolled back");
                }
                Err(Lost::Uncertain(cause)) => return self.stop(cause, jobs.collect()),
            }
        }
        true
    }

    /// Sleeps until there is something for a group.
    fn next(&self, waiting: &mut VecDeque<Box<dyn Job>>) -> Option<Urgency> {
        if waiting.is_empty() {
            return self.queue.drain(waiting, self.group_max, self.ride_wait);
        }
        Some(Urgency::Awaited)
    }

    /// One transaction. On `Ok` every job of the group may be answered; what is still in `waiting`
    /// was not begun, because the group had changed enough.
    ///
    /// Much work that nobody waits for is run at once, and the transaction then stays open for a
    /// moment: who is in a hurry finds it done. Not longer, because other processes write too.
    fn commit(
        &self,
        group: &mut Group<'_, '_>,
        waiting: &mut VecDeque<Box<dyn Job>>,
        mut urgency: Urgency,
    ) -> Result<(), Lost> {
        group.begin()?;
        loop {
            while let Some(job) = waiting.pop_front() {
                group.add(job, self.rows_max)?;
                if group.is_full() {
                    return group.commit();
                }
            }
            let room = self.group_max.saturating_sub(group.len());
            if room == 0 {
                return group.commit();
            }
            let more = match (self.queue.drain_more(waiting, room), urgency) {
                (None, Urgency::Shortly) => {
                    // Once.
                    urgency = Urgency::Awaited;
                    self.queue.drain_awaited(waiting, room, limits::MUCH_WAITS)
                }
                (more, _) => more,
            };
            match more {
                Some(more) => urgency = urgency.max(more),
                None => return group.commit(),
            }
        }
    }

    /// Ends the writer after an uncertain outcome: the process is told first, then the callers, and
    /// the log last of all.
    fn stop(&self, cause: Arc<str>, jobs: Vec<Box<dyn Job>>) -> bool {
        self.tell(&StoreError::Uncertain { cause: Arc::clone(&cause) });
        for job in jobs {
            job.failed(StoreError::Uncertain { cause: Arc::clone(&cause) });
        }
        self.refuse_the_rest();
        tracing::error!(%cause, "the outcome of a commit is unknown, writing stops");
        false
    }

    fn tell(&self, uncertain: &StoreError) {
        if !self.has_told.replace(true) {
            (self.on_uncertain)(uncertain);
        }
    }

    /// What waits was never begun, and nothing more is taken.
    fn refuse_the_rest(&self) {
        for job in self.queue.abandon() {
            job.failed(StoreError::Stopped);
        }
    }
}
