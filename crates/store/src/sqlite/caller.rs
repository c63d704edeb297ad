//! Who waits for a database thread, and how.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use crate::{StoreError, limits};

/// The callers of one thread, or of several that share their work.
#[derive(Default)]
pub(super) struct Callers {
    /// Those who are inside now.
    inside: AtomicUsize,
    patience: Patience,
}

/// Counts a caller, or as many as it stands for, for as long as it lives.
pub(super) struct Caller<'a> {
    all: &'a Callers,
    many: usize,
}

impl<'a> Caller<'a> {
    pub(super) fn enter(all: &'a Callers, many: usize) -> Self {
        all.inside.fetch_add(many, Ordering::Relaxed);
        Self { all, many }
    }

    fn is_alone(&self) -> bool {
        self.all.inside.load(Ordering::Relaxed) == 1
    }

    /// Waits for the thread's answer; `none` says what is known when it ends without one.
    ///
    /// Waking a thread on a core that fell asleep meanwhile can take longer than the work, so a
    /// caller who is alone looks around a few times before it sleeps.
    pub(super) async fn wait<T>(
        self,
        mut answer: oneshot::Receiver<Result<T, StoreError>>,
        none: fn() -> StoreError,
    ) -> Result<T, StoreError> {
        if self.is_alone() && self.all.patience.may_look() {
            for _ in 0..limits::YIELDS_WHEN_ALONE {
                match answer.try_recv() {
                    Ok(result) => {
                        self.all.patience.found();
                        return result;
                    }
                    Err(TryRecvError::Empty) => tokio::task::yield_now().await,
                    Err(TryRecvError::Closed) => return Err(none()),
                }
            }
            self.all.patience.in_vain();
        }
        answer.await.unwrap_or_else(|_| Err(none()))
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        self.all.inside.fetch_sub(self.many, Ordering::Relaxed);
    }
}

/// Whether looking around is worth it. One caller may bring the work of many, and then the answer
/// comes late and the core is wanted by others: who looked in vain looks less often from then on.
/// A guess: two callers who change it at once do no harm.
#[derive(Default)]
struct Patience {
    /// Times in a row that it was in vain.
    vain: AtomicU32,
    /// Waits to be slept through before the next look.
    asleep: AtomicU32,
}

impl Patience {
    fn may_look(&self) -> bool {
        let asleep = self.asleep.load(Ordering::Relaxed);
        self.asleep.store(asleep.saturating_sub(1), Ordering::Relaxed);
        asleep == 0
    }

    fn found(&self) {
        self.vain.store(0, Ordering::Relaxed);
    }

    fn in_vain(&self) {
        let vain = (self.vain.load(Ordering::Relaxed) + 1).min(limits::LOOKS_IN_VAIN_MAX);
        self.vain.store(vain, Ordering::Relaxed);
        self.asleep.store((1 << vain) - 1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many waits look around, when each look ends like this.
    fn looks(patience: &Patience, waits: u32, look: fn(&Patience)) -> u32 {
        (0..waits).map(|_| u32::from(patience.may_look())).fold(0, |looks, looked| {
            if looked == 1 {
                look(patience);
            }
            looks + looked
        })
    }

    #[test]
    fn who_finds_its_answer_always_looks() {
        assert_eq!(looks(&Patience::default(), 1000, Patience::found), 1000);
    }

    #[test]
    fn who_looks_in_vain_looks_ever_more_seldom_and_never_stops() {
        let patience = Patience::default();
        assert!(looks(&patience, 10_000, Patience::in_vain) < 10_000 / 60);
        assert!(looks(&patience, 64, Patience::in_vain) >= 1);
    }

    #[test]
    fn one_answer_in_time_brings_all_looks_back() {
        let patience = Patience::default();
        looks(&patience, 1000, Patience::in_vain);
        looks(&patience, 64, Patience::found);
        assert_eq!(looks(&patience, 100, Patience::found), 100);
    }
}
