//! Threads that each own a connection and run closures one at a time: readers and maintenance. A
//! panic ends none of them: the next closure finds the connection as it was.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::caller::{Caller, Callers};
use super::lock::Serving;
use super::queue::{Queue, Urgency};
use crate::{StoreError, limits};

type Task = Box<dyn FnOnce(&Connection) + Send>;

/// How a lane runs a closure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// Inside a read transaction: everything the closure reads is of one moment.
    Snapshot,
    /// As it is: VACUUM and friends refuse to run in a transaction.
    Bare,
}

pub(super) struct Lane {
    queue: Arc<Queue<Task>>,
    style: Style,
    callers: Callers,
}

impl Lane {
    pub(super) fn start(
        name: &str,
        connections: Vec<Connection>,
        style: Style,
        serving: Option<&Arc<Serving>>,
    ) -> std::io::Result<Self> {
        let queue = Arc::new(Queue::new(limits::READER_QUEUE_MAX, connections.len()));
        let lane = Self { queue, style, callers: Callers::default() };
        for connection in connections {
            let (queue, serving) = (Arc::clone(&lane.queue), serving.cloned());
            std::thread::Builder::new().name(name.to_owned()).spawn(move || {
                while let Some(task) = queue.pop() {
                    // The hook has said where; whoever waits hears of it.
                    let _ = catch_unwind(AssertUnwindSafe(|| task(&connection)));
                    leave_transaction(&connection);
                }
                drop(connection);
                drop(serving);
                queue.thread_ended();
            })?;
        }
        Ok(lane)
    }

    pub(super) fn run<T, F>(
        &self,
        many: usize,
        f: F,
    ) -> impl Future<Output = Result<T, StoreError>> + Send + use<'_, T, F>
    where
        F: FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
        T: Send + 'static,
    {
        let ((reply, answer), style) = (oneshot::channel(), self.style);
        let task: Task = Box::new(move |connection| {
            // A caller that went away does not want the answer.
            let _ = reply.send(run_one(connection, style, f));
        });
        async move {
            let caller = Caller::enter(&self.callers, many);
            self.queue.push(task, Urgency::Awaited).await?;
            caller.wait(answer, || StoreError::Panicked).await
        }
    }

    /// Hands in work that nobody waits for.
    pub(super) fn hand_in(
        &self,
        f: impl FnOnce(&Connection) + Send + 'static,
    ) -> Result<(), StoreError> {
        self.queue.push_riding(Box::new(f))
    }

    pub(super) async fn close(&self) {
        self.queue.close();
        self.queue.drained().await;
    }
}

/// Threads of a lane that nobody can reach any more end by themselves.
impl Drop for Lane {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// One that stayed open would be the next caller's, and hold the log back for ever.
fn leave_transaction(connection: &Connection) {
    if !connection.is_autocommit()
        && let Err(error) = connection.execute_batch("ROLLBACK")
    {
        tracing::error!(%error, "a transaction could not be left");
    }
}

fn run_one<T, F>(connection: &Connection, style: Style, f: F) -> Result<T, StoreError>
where
    F: FnOnce(&Connection) -> Result<T, StoreError>,
{
    let call = || catch_unwind(AssertUnwindSafe(|| f(connection)));
    let result = match style {
        Style::Bare => call(),
        Style::Snapshot => {
            connection.prepare_cached("BEGIN DEFERRED")?.execute([])?;
            let result = call();
            connection.prepare_cached("ROLLBACK")?.execute([])?;
            result
        }
    };
    result.unwrap_or(Err(StoreError::Panicked))
}
