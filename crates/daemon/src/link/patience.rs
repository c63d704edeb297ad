//! How long to wait before the next attempt to connect (mesh.md §6).

use std::time::Duration;

use semel_core::backoff::{backoff_delay, backoff_delay_within};

use crate::limits::RECONNECT_CAP;

/// Whether anybody was there the last time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// The network answered, if only to say that nobody listens: the broker may be back at once.
    Answered,
    /// Nothing came back.
    Silent,
}

/// Attempts in a row that came to nothing, or to a connection that did not last.
#[derive(Debug, Default)]
pub(super) struct Patience {
    attempts: u32,
}

impl Patience {
    /// A connection that lasted begins anew. One that did not is no better than none: whatever
    /// ended it may end the next one, too.
    pub(super) fn ended(&mut self, lived: Duration, steady_after: Duration) {
        self.attempts = if lived >= steady_after { 1 } else { self.attempts.saturating_add(1) };
    }

    /// There was no connection.
    pub(super) fn failed(&mut self) {
        self.attempts = self.attempts.saturating_add(1);
    }

    pub(super) fn wait(&self, reach: Reach, random: u64) -> Duration {
        match reach {
            Reach::Answered => backoff_delay_within(RECONNECT_CAP, self.attempts, random),
            Reach::Silent => backoff_delay(self.attempts, random),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_connection_that_lasted_begins_anew() {
        let steady = Duration::from_secs(5);
        let longest = |patience: &Patience, reach| patience.wait(reach, u64::MAX).as_millis();
        let mut patience = Patience::default();
        for ms in [250, 500, 1000, 2000] {
            patience.ended(Duration::from_secs(1), steady);
            assert_eq!(longest(&patience, Reach::Answered), ms);
        }
        patience.failed();
        assert_eq!(longest(&patience, Reach::Answered), 4000);
        patience.ended(steady, steady);
        assert_eq!(longest(&patience, Reach::Answered), 250);
    }

    #[test]
    fn a_broker_that_may_be_back_at_once_is_not_waited_for_long() {
        let mut patience = Patience::default();
        (0..20).for_each(|_| patience.failed());
        assert_eq!(patience.wait(Reach::Answered, u64::MAX), Duration::from_secs(10));
        assert_eq!(patience.wait(Reach::Answered, u64::MAX / 2), Duration::from_secs(5));
        assert_eq!(patience.wait(Reach::Silent, u64::MAX), Duration::from_secs(60));
    }
}
