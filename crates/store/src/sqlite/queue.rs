//! The queue in front of a database thread: bounded, filled from async code, drained by threads.
//!
//! A plain lock and a condition variable instead of a channel, because the writer wants *all* that
//! waits at once, and to know whether anybody waits for any of it.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};

use crate::{StoreError, limits};

/// Whether an item is worth a commit of its own, now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// After a while.
    Riding,
    /// After a moment: it is much, though nobody waits for it.
    Shortly,
    Awaited,
}

pub(super) struct Queue<Item> {
    state: Mutex<State<Item>>,
    wake: Condvar,
    /// Free places; a place is taken while an item waits.
    places: Semaphore,
    /// Told once per thread that ended.
    ended: Notify,
}

struct State<Item> {
    items: VecDeque<Item>,
    /// Of the most urgent item.
    urgency: Urgency,
    /// Threads that sleep until something is worth doing.
    parked: usize,
    /// What is not more urgent than this does not wake who lingers.
    woken_above: Option<Urgency>,
    open: bool,
    threads: usize,
}

impl<Item> Queue<Item> {
    pub(super) fn new(places: usize, threads: usize) -> Self {
        Self {
            state: Mutex::new(State {
                items: VecDeque::new(),
                urgency: Urgency::Riding,
                parked: 0,
                woken_above: None,
                open: true,
                threads,
            }),
            wake: Condvar::new(),
            places: Semaphore::new(places),
            ended: Notify::new(),
        }
    }

    /// Waits for a free place, then hands the item over.
    pub(super) async fn push(&self, item: Item, urgency: Urgency) -> Result<(), StoreError> {
        let place = self.places.acquire().await.map_err(|_| StoreError::Stopped)?;
        place.forget();
        self.put(item, urgency)
    }

    /// Hands an item over that nobody waits for, if there is a free place.
    pub(super) fn push_riding(&self, item: Item) -> Result<(), StoreError> {
        let place = self.places.try_acquire().map_err(|_| self.refusal())?;
        place.forget();
        self.put(item, Urgency::Riding)
    }

    fn refusal(&self) -> StoreError {
        if self.lock().open { StoreError::Busy } else { StoreError::Stopped }
    }

    fn put(&self, item: Item, urgency: Urgency) -> Result<(), StoreError> {
        let mut state = self.lock();
        if !state.open {
            return Err(StoreError::Stopped);
        }
        state.items.push_back(item);
        state.urgency = state.urgency.max(urgency);
        let worth_waking = match state.woken_above {
            Some(other) => urgency > other,
            // A rider needs no wake-up while another item is there: that one has caused it.
            None => urgency == Urgency::Awaited || state.items.len() == 1,
        };
        if worth_waking && state.parked > 0 {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Sleeps until an item is there and takes it; `None` once the queue is closed and empty.
    pub(super) fn pop(&self) -> Option<Item> {
        let mut state = self.lock();
        loop {
            if let Some(item) = state.items.pop_front() {
                self.places.add_permits(1);
                return Some(item);
            }
            if !state.open {
                return None;
            }
            state = self.park(state);
        }
    }

    /// Sleeps until an item is there and takes up to `max`; says how urgent they are. When only
    /// riders wait it lingers for `ride_wait` first. `None` once the queue is closed and empty.
    pub(super) fn drain(
        &self,
        into: &mut VecDeque<Item>,
        max: usize,
        ride_wait: Duration,
    ) -> Option<Urgency> {
        self.look_around(|state| !state.items.is_empty());
        let mut state = self.lock();
        while state.items.is_empty() {
            if !state.open {
                return None;
            }
            state = self.park(state);
        }
        state = self.linger(state, Urgency::Riding, ride_wait);
        Some(self.take(&mut state, into, max))
    }

    /// Sleeps until something more urgent than this waits, but not longer than so.
    fn linger<'a>(
        &self,
        mut state: MutexGuard<'a, State<Item>>,
        than: Urgency,
        patience: Duration,
    ) -> MutexGuard<'a, State<Item>> {
        let mut is_over = false;
        while state.urgency <= than && state.open && !is_over {
            state.woken_above = Some(than);
            state.parked += 1;
            let waited = self.wake.wait_timeout(state, patience);
            let (woken, time) = waited.unwrap_or_else(PoisonError::into_inner);
            (state, is_over) = (woken, time.timed_out());
            state.parked -= 1;
            state.woken_above = None;
        }
        state
    }

    /// Lets others run for a moment, until there is something to do.
    fn look_around(&self, is_enough: impl Fn(&State<Item>) -> bool) {
        for _ in 0..limits::YIELDS_BEFORE_SLEEP {
            if is_enough(&self.lock()) {
                break;
            }
            std::thread::yield_now();
        }
    }

    /// Takes up to `max` more items without sleeping; `None` if there are none.
    pub(super) fn drain_more(&self, into: &mut VecDeque<Item>, max: usize) -> Option<Urgency> {
        let mut state = self.lock();
        (!state.items.is_empty()).then(|| self.take(&mut state, into, max))
    }

    /// The same, but sleeps that long for somebody who waits.
    pub(super) fn drain_awaited(
        &self,
        into: &mut VecDeque<Item>,
        max: usize,
        patience: Duration,
    ) -> Option<Urgency> {
        self.look_around(|state| state.urgency > Urgency::Shortly);
        let mut state = self.linger(self.lock(), Urgency::Shortly, patience);
        (!state.items.is_empty()).then(|| self.take(&mut state, into, max))
    }

    fn take(&self, state: &mut State<Item>, into: &mut VecDeque<Item>, max: usize) -> Urgency {
        let urgency = state.urgency;
        let count = state.items.len().min(max);
        into.extend(state.items.drain(..count));
        // What stays behind has waited for a whole group: no lingering for it.
        state.urgency = if state.items.is_empty() { Urgency::Riding } else { Urgency::Awaited };
        self.places.add_permits(count);
        urgency
    }

    fn park<'a>(&self, mut state: MutexGuard<'a, State<Item>>) -> MutexGuard<'a, State<Item>> {
        state.parked += 1;
        let mut state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        state.parked -= 1;
        state
    }

    pub(super) fn len(&self) -> usize {
        self.lock().items.len()
    }

    /// Refuses new items; what waits is still taken.
    pub(super) fn close(&self) {
        self.lock().open = false;
        self.places.close();
        self.wake.notify_all();
    }

    /// Refuses new items and gives back those that wait.
    pub(super) fn abandon(&self) -> Vec<Item> {
        self.close();
        self.lock().items.drain(..).collect()
    }

    /// A thread says that it is done with the queue.
    pub(super) fn thread_ended(&self) {
        self.lock().threads -= 1;
        self.ended.notify_waiters();
    }

    /// Waits until every thread has ended.
    pub(super) async fn drained(&self) {
        loop {
            let told = self.ended.notified();
            if self.lock().threads == 0 {
                return;
            }
            told.await;
        }
    }

    /// A panic elsewhere cannot leave the state half changed, so a poisoned lock is still good.
    fn lock(&self) -> MutexGuard<'_, State<Item>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
