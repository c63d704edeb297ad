//! Every task of the daemon has somebody who notices its end (traps.md 58): one that keeps nothing
//! in memory is started again, one that the daemon cannot do without ends the daemon and says so.

use std::sync::Arc;

use semel_core::clock::Clock;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};

use crate::limits::TASK_PAUSE;
use crate::link::{Fatal, LinkState, LinkStatus, stopped};

/// Runs what `make` makes, again and again, until the daemon stops.
pub(crate) fn lasting<Task>(
    name: &'static str,
    mut stop: watch::Receiver<bool>,
    make: impl Fn() -> Task + Send + 'static,
) -> JoinHandle<()>
where
    Task: Future<Output = ()> + Send + 'static,
{
    tokio::spawn(async move {
        loop {
            let ended = tokio::spawn(make()).await;
            if *stop.borrow() {
                return;
            }
            let why = ended.map_or_else(words, |()| "it ended".to_owned());
            tracing::error!(task = name, why, "a task has ended by itself; it is started again");
            tokio::select! {
                () = tokio::time::sleep(TASK_PAUSE) => {}
                () = stopped(&mut stop) => return,
            }
        }
    })
}

/// Tells of tasks without which there is no daemon.
#[derive(Clone)]
pub(crate) struct Vital {
    pub(crate) status: watch::Sender<LinkStatus>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) stop: watch::Receiver<bool>,
}

impl Vital {
    /// Waits for the end of a task that may end by itself only when the daemon stops or was told
    /// why it must.
    pub(crate) fn watch(self, name: &'static str, task: JoinHandle<()>) -> JoinHandle<()> {
        tokio::spawn(async move {
            let ended = task.await;
            let is_known = *self.stop.borrow() || self.status.borrow().fatal.is_some();
            match ended {
                Ok(()) if is_known => {}
                Ok(()) => self.broken(name, "it ended"),
                Err(error) => self.broken(name, &words(error)),
            }
        })
    }

    /// Waits for the end of a task that ends by itself after the one above: only a panic is news.
    pub(crate) fn watch_helper(self, name: &'static str, task: JoinHandle<()>) -> JoinHandle<()> {
        tokio::spawn(async move {
            if let Err(error) = task.await {
                self.broken(name, &words(error));
            }
        })
    }

    fn broken(&self, name: &str, why: &str) {
        let why = format!("{name} has ended by itself: {why}");
        tracing::error!(why, "this daemon must end");
        let now = self.clock.wall();
        self.status.send_modify(|status| {
            (status.state, status.since) = (LinkState::Ended, now);
            status.last_error = Some(why.clone());
            status.fatal.get_or_insert(Fatal::Broken(why));
        });
    }
}

/// What a task that did not come to its end says.
fn words(error: JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "it was cancelled".to_owned() };
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("it panicked: {}", text.unwrap_or_else(|| "without a word".to_owned()))
}
