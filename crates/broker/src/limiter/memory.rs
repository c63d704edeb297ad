//! The limiter of one broker, and the stand-in of many: the script's semantics in this process.
//!
//! Bounded three ways: a sender has at most `limit` entries, a sender whose last entry left is
//! dropped by the next sweep, and there is a most of senders. Time is the monotonic clock, so
//! somebody who sets the calendar neither frees nor blocks anybody.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::clock::Clock;

use super::{LimitRequest, Verdict};
use crate::limits::{LIMITER_FULL_SWEEP, LIMITER_SWEEP_TAKES_MIN};

pub(super) struct Memory {
    clock: Arc<dyn Clock>,
    keys_max: usize,
    senders: Mutex<Senders>,
}

#[derive(Default)]
struct Senders {
    by_key: HashMap<String, Sender>,
    takes_since_sweep: usize,
    swept_at: Duration,
}

/// One sender's window.
#[derive(Default)]
struct Sender {
    /// Oldest first: the clock is read under the lock, and never goes back.
    order: VecDeque<(Duration, Arc<str>)>,
    ids: HashSet<Arc<str>>,
    /// As the last request had it; a sweep has none of its own.
    window: Duration,
}

impl Memory {
    pub(super) fn new(clock: Arc<dyn Clock>, keys_max: usize) -> Self {
        Self { clock, keys_max, senders: Mutex::default() }
    }

    pub(super) fn take(&self, request: &LimitRequest<'_>) -> Verdict {
        let key = request.key();
        // Nothing below panics half-way through a change, so a poisoned map is whole.
        let mut senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.monotonic();
        senders.sweep_if_due(now, self.keys_max);
        if let Some(sender) = senders.by_key.get_mut(&key) {
            return sender.take(request, now);
        }
        if senders.by_key.len() >= self.keys_max {
            // Forgetting a sender would lift that one's limit, so the newcomer waits.
            return Verdict::Denied { retry_after: LIMITER_FULL_SWEEP };
        }
        let mut sender = Sender::default();
        let verdict = sender.take(request, now);
        // A denied attempt leaves nothing behind, not even an empty window.
        if verdict == Verdict::Counted {
            senders.by_key.insert(key, sender);
        }
        verdict
    }
}

impl Senders {
    /// Each sweep looks at every sender once and is paid for by as many takes, except in a full
    /// map, where the clock bounds how often it is done.
    fn sweep_if_due(&mut self, now: Duration, keys_max: usize) {
        self.takes_since_sweep += 1;
        let is_paid = self.takes_since_sweep >= self.by_key.len().max(LIMITER_SWEEP_TAKES_MIN);
        let is_full = self.by_key.len() >= keys_max;
        if is_paid || (is_full && now >= self.swept_at.saturating_add(LIMITER_FULL_SWEEP)) {
            self.by_key.retain(|_, sender| !sender.is_idle(now));
            self.takes_since_sweep = 0;
            self.swept_at = now;
        }
    }
}

impl Sender {
    fn take(&mut self, request: &LimitRequest<'_>, now: Duration) -> Verdict {
        self.window = request.window();
        while let Some((at, _)) = self.order.front()
            && at.saturating_add(self.window) <= now
        {
            if let Some((_, id)) = self.order.pop_front() {
                self.ids.remove(&id);
            }
        }
        let limit = usize::try_from(request.limit).unwrap_or(usize::MAX);
        if self.order.len() < limit {
            let id: Arc<str> = request.client_message_id.into();
            if !self.ids.insert(Arc::clone(&id)) {
                return Verdict::Free;
            }
            self.order.push_back((now, id));
            return Verdict::Counted;
        }
        if self.ids.contains(request.client_message_id) {
            return Verdict::Free;
        }
        // The oldest; a later one where the limit was lowered, and several must leave first.
        let last_to_leave = self.order.get(self.order.len() - limit);
        let retry_after = last_to_leave
            .map_or(self.window, |(at, _)| at.saturating_add(self.window).saturating_sub(now));
        Verdict::Denied { retry_after }
    }

    fn is_idle(&self, now: Duration) -> bool {
        self.order.back().is_none_or(|(at, _)| at.saturating_add(self.window) <= now)
    }
}

#[cfg(test)]
mod tests {
    use semel_testkit::clock::SimClock;

    use super::*;

    const WINDOW: Duration = Duration::from_secs(60);

    fn memory(keys_max: usize) -> (Memory, SimClock) {
        let clock = SimClock::at_ms(0);
        (Memory::new(Arc::new(clock.clone()), keys_max), clock)
    }

    fn take(memory: &Memory, sender: &str, id: &str, limit: u32) -> Verdict {
        let request =
            LimitRequest { mesh: "m", sender, client_message_id: id, limit, window: WINDOW };
        memory.take(&request)
    }

    fn held(memory: &Memory) -> (usize, usize, usize) {
        let senders = memory.senders.lock().unwrap();
        let of = |f: fn(&Sender) -> usize| senders.by_key.values().map(f).sum();
        (senders.by_key.len(), of(|s| s.order.len()), of(|s| s.ids.len()))
    }

    #[test]
    fn entries_are_bounded_by_the_limit() {
        let (memory, _) = memory(10);
        for i in 0..1000 {
            take(&memory, "a", &format!("{i}"), 7);
        }
        assert_eq!(held(&memory), (1, 7, 7));
    }

    #[test]
    fn old_entries_leave_both_lists() {
        let (memory, clock) = memory(10);
        for i in 0..1000 {
            assert_eq!(take(&memory, "a", &format!("{i}"), 2), Verdict::Counted);
            clock.advance(WINDOW / 2);
        }
        assert_eq!(held(&memory), (1, 2, 2));
    }

    #[test]
    fn idle_senders_are_swept() {
        let (memory, clock) = memory(LIMITER_SWEEP_TAKES_MIN);
        for i in 0..500 {
            take(&memory, &format!("old-{i}"), "x", 1);
        }
        clock.advance(WINDOW);
        for _ in 0..LIMITER_SWEEP_TAKES_MIN {
            take(&memory, "new", "x", 1);
        }
        assert_eq!(held(&memory), (1, 1, 1));
    }

    #[test]
    fn a_sender_that_was_only_denied_is_not_held() {
        let (memory, _) = memory(10);
        assert_eq!(take(&memory, "a", "x", 0), Verdict::Denied { retry_after: WINDOW });
        assert_eq!(held(&memory), (0, 0, 0));
    }

    #[test]
    fn a_full_map_denies_newcomers_until_somebody_is_idle() {
        let (memory, clock) = memory(3);
        for sender in ["a", "b", "c"] {
            assert_eq!(take(&memory, sender, "x", 1), Verdict::Counted);
        }
        let full = Verdict::Denied { retry_after: LIMITER_FULL_SWEEP };
        assert_eq!(take(&memory, "d", "x", 1), full);
        assert_eq!(take(&memory, "a", "x", 1), Verdict::Free);
        clock.advance(WINDOW - Duration::from_millis(1));
        assert_eq!(take(&memory, "d", "x", 1), full);
        clock.advance(LIMITER_FULL_SWEEP);
        assert_eq!(take(&memory, "d", "x", 1), Verdict::Counted);
        assert_eq!(held(&memory), (1, 1, 1));
    }
}
