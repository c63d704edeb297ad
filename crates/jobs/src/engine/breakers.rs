//! What this engine knows of the breakers. The store decides; here it is remembered that an action
//! is well, so that a success of a healthy action costs no write.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::clock::UnixMs;
use semel_store::StoreError;

use crate::breaker::{Admission, BreakerState, Run};
use crate::limits::BREAKER_WINDOW;
use crate::store::{BreakerRow, Store};

#[derive(Default)]
pub(super) struct Breakers {
    known: Mutex<HashMap<String, Known>>,
}

#[derive(Default)]
struct Known {
    state: Option<BreakerState>,
    /// The store's window has a failure in it: successes are written, too.
    shaken: bool,
    /// Successes that the store was not told of.
    untold: usize,
}

impl Breakers {
    /// Looks at all of them.
    pub(super) async fn refresh(&self, store: &Store) -> Result<(), StoreError> {
        for row in store.breakers().await? {
            self.learn(&row);
        }
        Ok(())
    }

    /// Whether everything goes through, as far as is known here.
    pub(super) fn is_closed(&self, action: &str) -> bool {
        let known = self.known();
        let state = known.get(action).and_then(|known| known.state);
        state.is_none_or(|state| state == BreakerState::Closed)
    }

    /// Those that are known here.
    pub(super) fn states(&self) -> Vec<(String, BreakerState)> {
        let known = self.known();
        let states =
            known.iter().filter_map(|(action, known)| Some((action.clone(), known.state?)));
        states.collect()
    }

    /// Asks the store.
    pub(super) async fn admit(
        &self,
        store: &Store,
        action: &str,
        now: UnixMs,
        probe_time: Duration,
    ) -> Result<Admission, StoreError> {
        let admission = store.breaker_admit(action, now, probe_time).await?;
        if admission == Admission::Through {
            self.known().entry(action.to_owned()).or_default().state = Some(BreakerState::Closed);
        }
        Ok(admission)
    }

    /// Keeps a run that changes no breaker, and says so: it is told with the next one that may.
    pub(super) fn kept_for_later(&self, action: &str, run: Run) -> bool {
        let mut known = self.known();
        let entry = match known.get_mut(action) {
            Some(entry) => entry,
            None => known.entry(action.to_owned()).or_default(),
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
        now: UnixMs,
    ) -> Result<Option<BreakerRow>, StoreError> {
        let untold = {
            let mut known = self.known();
            known.get_mut(action).map_or(0, |entry| std::mem::take(&mut entry.untold))
        };
        let mut runs = vec![Run::Succeeded; untold];
        runs.push(run);
        let row = store.breaker_note(action, runs, now).await?;
        self.learn(&row);
        Ok(Some(row).filter(|row| row.changed))
    }

    fn learn(&self, row: &BreakerRow) {
        let mut known = self.known();
        let entry = known.entry(row.action.clone()).or_default();
        entry.state = Some(row.breaker.state);
        entry.shaken =
            row.breaker.state != BreakerState::Closed || row.breaker.window.contains('f');
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
