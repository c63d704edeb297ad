//! Processes that serve one call after the other.
//!
//! Starting one costs a hundred times what a short call does, and under load most of the machine.
//! So a call for which none is free waits first for as long as a start takes: by then one that
//! serves a short call is back, and a few serve everybody. Only who has waited in vain starts
//! another, a few at a time, and still takes the one that comes back first.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{sleep, timeout};

use super::super::room::Spare;
use super::Worker;
use crate::limits::{
    WARM_EXECUTIONS_MAX, WARM_IDLE_LOOKS, WARM_LOOK, WARM_MAX, WARM_START_MAX, WARM_STARTS_AT_ONCE,
    WARM_SURPLUS_LOOKS, WARM_SURPLUS_MAX, WARM_WAIT,
};

/// The processes of one gear.
pub(super) struct Warm {
    pool: Mutex<Pool>,
    /// Processes that live: they wait, serve, or are being started.
    living: Arc<AtomicUsize>,
    starts: Arc<Semaphore>,
}

#[derive(Default)]
struct Pool {
    /// Those that wait, the one that waited least last, each with the look at which it came.
    idle: Vec<(u64, Worker)>,
    /// Calls for which none was free.
    calls: VecDeque<oneshot::Sender<Worker>>,
    /// How often was looked for those that have waited for too long.
    looks: u64,
    is_looked_after: bool,
}

/// How a call comes to a process.
pub(super) enum Turn {
    /// This one is free.
    Serve(Box<Worker>),
    /// It starts one.
    Start(Starting),
}

/// The right to start a process.
pub(super) struct Starting {
    living: Living,
    permit: OwnedSemaphorePermit,
}

/// Counts a process for as long as there is one.
#[must_use]
pub(super) struct Living(Arc<AtomicUsize>);

impl Living {
    fn one_more(living: &Arc<AtomicUsize>) -> Self {
        living.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(living))
    }
}

impl Drop for Living {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Starting {
    /// It was started. Another may be once this one speaks, or cannot be waited for any longer.
    pub(super) fn started(self) -> (Living, oneshot::Sender<()>) {
        let Self { living, permit } = self;
        let (silent, speaks) = oneshot::channel();
        tokio::spawn(async move {
            // That the other end is gone is all that is wanted.
            let _ = timeout(WARM_START_MAX, speaks).await;
            drop(permit);
        });
        (living, silent)
    }
}

impl Default for Warm {
    fn default() -> Self {
        Self {
            pool: Mutex::default(),
            living: Arc::default(),
            starts: Arc::new(Semaphore::new(WARM_STARTS_AT_ONCE)),
        }
    }
}

impl Warm {
    /// One that is free and has said nothing since it was, or the right to start one.
    pub(super) async fn turn(&self) -> Turn {
        loop {
            let mut worker = match self.free_or_call() {
                Ok(worker) => worker,
                Err(call) => match self.wait(call).await {
                    Ok(worker) => worker,
                    Err(starting) => return Turn::Start(starting),
                },
            };
            // Whoever speaks unasked, has too much on disk, or is at its end, is not to be trusted
            // with more.
            if worker.running.line().now_or_never().is_none() && !worker.disk.is_over() {
                return Turn::Serve(Box::new(worker));
            }
            worker.running.kill().await;
        }
    }

    fn free_or_call(&self) -> Result<Worker, oneshot::Receiver<Worker>> {
        let mut pool = self.lock();
        if let Some((_, worker)) = pool.idle.pop() {
            return Ok(worker);
        }
        let (call, answer) = oneshot::channel();
        // Calls that have gone elsewhere.
        pool.calls.retain(|call| !call.is_closed());
        pool.calls.push_back(call);
        Err(answer)
    }

    async fn wait(&self, mut call: oneshot::Receiver<Worker>) -> Result<Worker, Starting> {
        // Where there is none at all, none will come.
        if self.living.load(Ordering::Relaxed) > 0
            && let Ok(Ok(worker)) = timeout(WARM_WAIT, &mut call).await
        {
            return Ok(worker);
        }
        let permit = tokio::select! {
            biased;
            Ok(worker) = &mut call => return Ok(worker),
            Ok(permit) = Arc::clone(&self.starts).acquire_owned() => permit,
            // Neither is ever closed.
            else => std::future::pending().await,
        };
        call.close();
        if let Ok(worker) = call.try_recv() {
            return Ok(worker);
        }
        Err(Starting { living: Living::one_more(&self.living), permit })
    }

    /// Hands one to the next call, or lets it wait for a while.
    pub(super) async fn give(self: &Arc<Self>, worker: Worker) {
        let too_many = {
            let mut pool = self.lock();
            let kept = pool.hand_over(worker);
            let look = pool.looks;
            pool.idle.extend(kept.map(|worker| (look, worker)));
            if !pool.idle.is_empty() && !pool.is_looked_after {
                pool.is_looked_after = true;
                tokio::spawn(look_after(Arc::downgrade(self)));
            }
            (pool.idle.len() > WARM_SURPLUS_MAX).then(|| pool.idle.remove(0).1)
        };
        if let Some(worker) = too_many {
            worker.running.kill().await;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Spare for Warm {
    /// The one that has waited longest.
    fn end_one(&self) -> bool {
        let Ok(runtime) = Handle::try_current() else { return false };
        let worker = {
            let mut pool = self.lock();
            if pool.idle.is_empty() {
                return false;
            }
            pool.idle.remove(0).1
        };
        let mut worker = worker;
        worker.running.ends();
        runtime.spawn(worker.running.kill());
        true
    }
}

impl Pool {
    /// Gives it back when nobody waits for one.
    fn hand_over(&mut self, mut worker: Worker) -> Option<Worker> {
        while let Some(call) = self.calls.pop_front() {
            match call.send(worker) {
                Ok(()) => return None,
                Err(back) => worker = back,
            }
        }
        Some(worker)
    }

    /// Those that have waited for too long: a few may wait for long, what was needed beside them
    /// only for a moment. One that has too much on disk waits no longer at all.
    fn too_long(&mut self) -> Vec<Worker> {
        self.looks += 1;
        let (looks, surplus) = (self.looks, self.idle.len().saturating_sub(WARM_MAX));
        let is_over = |(place, (came, _)): (usize, &(u64, Worker))| {
            let most = if place < surplus { WARM_SURPLUS_LOOKS } else { WARM_IDLE_LOOKS };
            looks.saturating_sub(*came) > most
        };
        // The one that came first is first.
        let over = self.idle.iter().enumerate().take_while(|entry| is_over(*entry)).count();
        let mut ended: Vec<Worker> = self.idle.drain(..over).map(|(_, worker)| worker).collect();
        ended.extend(self.idle.extract_if(.., |(_, worker)| worker.disk.is_over()).map(|of| of.1));
        ended
    }
}

/// Should it panic, the next worker that is given back has it started again.
struct Looking(std::sync::Weak<Warm>);

impl Drop for Looking {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(warm) = self.0.upgrade()
        {
            warm.lock().is_looked_after = false;
        }
    }
}

/// Ends those that have waited for too long, until none waits.
async fn look_after(warm: std::sync::Weak<Warm>) {
    let looking = Looking(warm);
    loop {
        sleep(WARM_LOOK).await;
        let Some(warm) = looking.0.upgrade() else { return };
        let over = warm.lock().too_long();
        for worker in over {
            worker.running.kill().await;
        }
        let mut pool = warm.lock();
        if pool.idle.is_empty() {
            pool.is_looked_after = false;
            return;
        }
    }
}

impl Worker {
    /// Whether it may serve once more.
    pub(super) fn is_reusable(&self) -> bool {
        !self.was_stopped && self.executions < WARM_EXECUTIONS_MAX
    }
}
