//! What this engine knows of the breakers. The store decides; here it is remembered that an action
//! is well, so that a success of a healthy action costs no write.
//!
//! Many ask the store at once, and its answers come in any order: one that says "closed" and was
//! asked for before the breaker was known to be open is old.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::clock::UnixMs;
use semel_store::StoreError;

use crate::breaker::{Admission, BreakerState, Run};
use crate::limits::{BREAKER_WINDOW, BREAKERS_KNOWN_MAX};
use crate::store::{BreakerRow, Store};

#[derive(Default)]
pub(super) struct Breakers {
    known: Mutex<All>,
}

#[derive(Default)]
struct All {
    actions: HashMap<String, Known>,
    /// How often a breaker was found to have opened.
    openings: u64,
}

/// A moment, as the number of openings before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Moment(u64);

#[derive(Default)]
struct Known {
    state: Option<BreakerState>,
    /// After the last time that it was found to have opened.
    opened: Moment,
    /// The store's window has a failure in it: successes are written, too.
    shaken: bool,
    /// Successes that the store was not told of.
    untold: usize,
}

impl Breakers {
    /// Looks at all of them.
    pub(super) async fn refresh(&self, store: &Store) -> Result<(), StoreError> {
        let asked = self.moment();
        for row in store.breakers().await? {
            self.learn(&row, asked);
        }
        Ok(())
    }

    /// Whether everything goes through, as far as is known here.
    pub(super) fn is_closed(&self, action: &str) -> bool {
        let known = self.known();
        let state = known.actions.get(action).and_then(|known| known.state);
        state.is_none_or(|state| state == BreakerState::Closed)
    }

    /// Those that are known here.
    pub(super) fn states(&self) -> Vec<(String, BreakerState)> {
        let known = self.known();
        let states = known.actions.iter();
        states.filter_map(|(action, known)| Some((action.clone(), known.state?))).collect()
    }

    /// Asks the store.
    pub(super) async fn admit(
        &self,
        store: &Store,
        action: &str,
        now: UnixMs,
        probe_time: Duration,
    ) -> Result<Admission, StoreError> {
        let asked = self.moment();
        let admission = store.breaker_admit(action, now, probe_time).await?;
        if admission == Admission::Through {
            self.known().found(action, BreakerState::Closed, asked);
        }
        Ok(admission)
    }

    /// Keeps a run that changes no breaker, and says so: it is told with the next one that may.
    pub(super) fn kept_for_later(&self, action: &str, run: Run, probe: Option<i64>) -> bool {
        if probe.is_some() {
            return false;
        }
        if !run.counts() {
            return true;
        }
        let mut known = self.known();
        known.make_room();
        // Every step comes here: what is known already costs no copy of its name.
        let entry = match known.actions.get_mut(action) {
            Some(entry) => entry,
            None => known.actions.entry(action.to_owned()).or_default(),
        };
        let kept_for_later = run == Run::Succeeded && !entry.shaken;
        if kept_for_later {
            entry.untold = (entry.untold + 1).min(BREAKER_WINDOW);
        }
        kept_for_later
    }

    /// Tells of a run; gives the breaker when it was opened or closed by it.
    pub(super) async fn note(
        &self,
        store: &Store,
        action: &str,
        run: Run,
        probe: Option<i64>,
        now: UnixMs,
    ) -> Result<Option<BreakerRow>, StoreError> {
        let (asked, untold) = {
            let mut known = self.known();
            let untold = std::mem::take(&mut known.entry(action).untold);
            (known.moment(), untold)
        };
        let mut runs = vec![Run::Succeeded; untold];
        runs.push(run);
        let row = store.breaker_note(action, runs, probe, now).await?;
        self.learn(&row, asked);
        Ok(Some(row).filter(|row| row.changed))
    }

    fn learn(&self, row: &BreakerRow, asked: Moment) {
        let (mut known, state) = (self.known(), row.breaker.state);
        if let Some(entry) = known.found(&row.action, state, asked) {
            entry.shaken = state != BreakerState::Closed || row.breaker.window.contains('f');
        }
    }

    fn moment(&self) -> Moment {
        self.known().moment()
    }

    fn known(&self) -> MutexGuard<'_, All> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl All {
    const fn moment(&self) -> Moment {
        Moment(self.openings)
    }

    /// Hosts come and go: what is well is forgotten when there is too much of it. The store's
    /// window has no failure then, and successes change nothing.
    fn make_room(&mut self) {
        if self.actions.len() >= BREAKERS_KNOWN_MAX {
            let is_open = |state: BreakerState| state != BreakerState::Closed;
            self.actions.retain(|_, known| known.shaken || known.state.is_some_and(is_open));
        }
    }

    fn entry(&mut self, action: &str) -> &mut Known {
        self.actions.entry(action.to_owned()).or_default()
    }

    /// What the store answered to somebody who asked then; nothing if that is old.
    fn found(&mut self, action: &str, state: BreakerState, asked: Moment) -> Option<&mut Known> {
        let is_open = |state: BreakerState| state != BreakerState::Closed;
        let entry = self.actions.entry(action.to_owned()).or_default();
        if entry.opened > asked && !is_open(state) {
            return None;
        }
        if is_open(state) && !entry.state.is_some_and(is_open) {
            self.openings += 1;
            entry.opened = Moment(self.openings);
        }
        entry.state = Some(state);
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::breaker::Breaker;

    const ACTION: &str = "test.hold";

    fn row(state: BreakerState, window: &str) -> BreakerRow {
        let breaker = Breaker { state, window: window.to_owned(), ..Breaker::default() };
        BreakerRow { action: ACTION.to_owned(), breaker, changed: false }
    }

    #[test]
    fn an_answer_from_before_it_opened_does_not_close_it() {
        let breakers = Breakers::default();
        let before = breakers.moment();
        breakers.learn(&row(BreakerState::Open, "fffff"), before);
        breakers.learn(&row(BreakerState::Closed, "ffff"), before);
        breakers.known().found(ACTION, BreakerState::Closed, before);
        breakers.learn(&row(BreakerState::Closed, ""), before);
        assert!(!breakers.is_closed(ACTION));
        assert!(!breakers.kept_for_later(ACTION, Run::Succeeded, None), "a success is told");
        // Who asks from now on is believed.
        let after = breakers.moment();
        breakers.learn(&row(BreakerState::HalfOpen, "fffff"), after);
        assert!(!breakers.is_closed(ACTION));
        breakers.learn(&row(BreakerState::Closed, ""), after);
        assert!(breakers.is_closed(ACTION));
        // Also when it opens once more.
        breakers.learn(&row(BreakerState::Open, "fffff"), after);
        breakers.learn(&row(BreakerState::Closed, ""), after);
        assert!(!breakers.is_closed(ACTION));
    }

    #[test]
    fn what_is_well_is_forgotten_before_there_is_too_much_of_it() {
        let breakers = Breakers::default();
        let asked = breakers.moment();
        breakers.learn(&row(BreakerState::Open, "fffff"), asked);
        for host in 0..BREAKERS_KNOWN_MAX * 3 {
            let name = format!("http.request host-{host}");
            assert!(breakers.kept_for_later(&name, Run::Succeeded, None));
            assert!(breakers.kept_for_later("http.request gone", Run::Refused, None));
        }
        assert!(breakers.known().actions.len() <= BREAKERS_KNOWN_MAX);
        assert!(!breakers.is_closed(ACTION), "what is open is remembered");
        assert!(!breakers.kept_for_later(ACTION, Run::Refused, Some(1)), "a probe is always told");
    }
}
