//! Room for processes of gears: one bound for all that live in an engine, whatever they do.
//!
//! A step has a place before its gear is asked, so that waiting for room costs it no time. A gear
//! takes as much room as it has calls or processes that live, whichever are more: a call that finds
//! an idle process needs no other one, and an idle process, or one that takes long to end, is
//! counted for as long as it is there. When somebody waits, idle processes of others are ended.
//!
//! Steps that wait for a sub-job keep their processes. So that these cannot keep their sub-jobs
//! from running, one step at a time of each depth has a place beyond the bound: the deepest of all
//! can always go on, and with its end those above it.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use tokio::sync::oneshot;

/// Who has processes that wait for more.
pub(crate) trait Spare: Send + Sync {
    /// Ends one that does nothing; whether there was one.
    fn end_one(&self) -> bool;
}

/// The calls and the processes of one gear.
pub struct Lane {
    number: u64,
    /// Where they are counted, once a step has had a place: a gear on trial has no engine.
    room: OnceLock<Room>,
    spare: OnceLock<Weak<dyn Spare>>,
}

impl Default for Lane {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { number, room: OnceLock::new(), spare: OnceLock::new() }
    }
}

impl Lane {
    /// Of a gear whose processes may wait for more.
    pub(crate) fn with_spare(spare: Weak<dyn Spare>) -> Self {
        Self { spare: OnceLock::from(spare), ..Self::default() }
    }

    /// A process that lives until what this gives is dropped.
    pub(crate) fn lives(&self) -> Lives {
        let room = self.room.get().cloned();
        if let Some(room) = &room {
            room.change(self.number, |counts| counts.living += 1);
        }
        Lives { room, number: self.number, is_ending: false }
    }
}

/// A process that lives.
#[must_use]
pub(crate) struct Lives {
    room: Option<Room>,
    number: u64,
    is_ending: bool,
}

impl Lives {
    /// It does nothing for anybody any more, and is not gone yet.
    pub(crate) fn ends(&mut self) {
        if let Some(room) = &self.room
            && !self.is_ending
        {
            self.is_ending = true;
            room.change(self.number, |counts| counts.ending += 1);
        }
    }
}

impl Drop for Lives {
    fn drop(&mut self) {
        let Some(room) = &self.room else { return };
        let ending = usize::from(self.is_ending);
        room.change(self.number, |counts| {
            counts.living = counts.living.saturating_sub(1);
            counts.ending = counts.ending.saturating_sub(ending);
        });
        room.serve();
    }
}

/// The room of an engine. Cheap to share.
#[derive(Clone)]
pub struct Room(Arc<Shared>);

struct Shared {
    most: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    lanes: HashMap<u64, Counts>,
    /// What all of them need.
    used: usize,
    /// Depths of which a step has a place beyond the bound.
    beyond: BTreeSet<u32>,
    /// Of each gear and depth in the order in which they came.
    waiting: BTreeMap<(u64, u32), VecDeque<Waiting>>,
    came: u64,
}

#[derive(Default)]
struct Counts {
    calls: usize,
    living: usize,
    /// Of these, those that no call will have.
    ending: usize,
    spare: Option<Weak<dyn Spare>>,
}

impl Counts {
    fn needs(&self) -> usize {
        (self.calls + self.ending).max(self.living)
    }

    /// Processes that nobody has a call for.
    fn idle(&self) -> usize {
        self.living.saturating_sub(self.calls + self.ending)
    }
}

struct Waiting {
    came: u64,
    lane: Arc<Lane>,
    told: oneshot::Sender<Place>,
}

/// The right of a step to a process.
#[must_use]
pub struct Place {
    room: Room,
    number: u64,
    beyond: Option<u32>,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(depth) = self.beyond {
            self.room.lock().beyond.remove(&depth);
        }
        self.room.change(self.number, |counts| counts.calls = counts.calls.saturating_sub(1));
        self.room.serve();
    }
}

impl Room {
    /// For so many processes at a time, and one more for each depth of sub-jobs.
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Shared { most, state: Mutex::default() }))
    }

    /// Waits until a step of a job so deep inside others may have a process of this gear.
    pub async fn place(&self, lane: &Arc<Lane>, depth: u32) -> Place {
        // A gear is one engine's.
        let _ = lane.room.set(self.clone());
        let hears = {
            let mut state = self.lock();
            if let Some(beyond) = state.admit(lane, depth, self.0.most) {
                return Place { room: self.clone(), number: lane.number, beyond };
            }
            let (told, hears) = oneshot::channel();
            state.came += 1;
            let waiting = Waiting { came: state.came, lane: Arc::clone(lane), told };
            state.waiting.entry((lane.number, depth)).or_default().push_back(waiting);
            hears
        };
        self.serve();
        match hears.await {
            Ok(place) => place,
            // It is told or waits for as long as somebody listens.
            Err(_) => std::future::pending().await,
        }
    }

    /// Gives places to those who wait, and ends what is idle for the others.
    fn serve(&self) {
        let (mut given, mut spares) = (Vec::new(), Vec::new());
        {
            let mut state = self.lock();
            if state.waiting.is_empty() {
                return;
            }
            while let Some((waiting, beyond)) = state.next(self.0.most) {
                let (room, number) = (self.clone(), waiting.lane.number);
                given.push((waiting.told, Place { room, number, beyond }));
            }
            let waiting: usize = state.waiting.values().map(VecDeque::len).sum();
            let ending: usize = state.lanes.values().map(|counts| counts.ending).sum();
            let mut wanted = waiting.saturating_sub(ending);
            for counts in state.lanes.values() {
                // Let go of outside: with a gear's last name its processes go, and are counted.
                let Some(spare) = counts.spare.as_ref().and_then(Weak::upgrade) else { continue };
                let idle = counts.idle().min(wanted);
                wanted -= idle;
                spares.push((spare, idle));
            }
        }
        for (told, place) in given {
            // Who has gone away leaves the place to the next.
            drop(told.send(place));
        }
        for (spare, idle) in spares {
            for _ in 0..idle {
                // It may have found something to do; then there is news when that is done.
                let _ = spare.end_one();
            }
        }
    }

    fn change(&self, number: u64, change: impl FnOnce(&mut Counts)) {
        self.lock().change(number, change);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn change(&mut self, number: u64, change: impl FnOnce(&mut Counts)) {
        let counts = self.lanes.entry(number).or_default();
        self.used -= counts.needs();
        change(counts);
        self.used += counts.needs();
        if counts.needs() == 0 {
            self.lanes.remove(&number);
        }
    }

    /// Who has waited longest of those for whom there is room.
    fn next(&mut self, most: usize) -> Option<(Waiting, Option<u32>)> {
        self.waiting.retain(|_, queue| {
            while queue.front().is_some_and(|first| first.told.is_closed()) {
                queue.pop_front();
            }
            !queue.is_empty()
        });
        let first = |(key, queue): (&(u64, u32), &VecDeque<Waiting>)| {
            queue.front().map(|first| (first.came, *key, Arc::clone(&first.lane)))
        };
        let mut firsts: Vec<_> = self.waiting.iter().filter_map(first).collect();
        firsts.sort_unstable_by_key(|(came, ..)| *came);
        firsts.into_iter().find_map(|(_, key, lane)| {
            let beyond = self.admit(&lane, key.1, most)?;
            Some((self.waiting.get_mut(&key)?.pop_front()?, beyond))
        })
    }

    /// Takes somebody in, if there is room: within the bound, or beyond it.
    fn admit(&mut self, lane: &Lane, depth: u32, most: usize) -> Option<Option<u32>> {
        let counts = self.lanes.get(&lane.number);
        let needs_more = counts.is_none_or(|counts| counts.idle() == 0);
        let most = most + self.beyond.len();
        let beyond = if !needs_more || self.used < most {
            None
        } else if depth > 0 && self.used == most && !self.beyond.contains(&depth) {
            self.beyond.insert(depth);
            Some(depth)
        } else {
            return None;
        };
        self.change(lane.number, |counts| {
            counts.calls += 1;
            counts.spare = counts.spare.take().or_else(|| lane.spare.get().cloned());
        });
        Some(beyond)
    }
}

#[cfg(test)]
mod tests;
