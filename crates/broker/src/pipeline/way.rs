//! Which way sends take. Nearly all are new, and a look-up before the transaction finds nothing:
//! on SQLite they go straight to the transaction, which looks them up and checks them by itself.
//! Where ids are known, or senders are told to wait, they are looked up and checked before, so that
//! these cost no transaction.

use crate::accept::Verdict;
use crate::limits::LOOK_FIRST_BATCHES;

/// What was among the sends of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Saw {
    /// Nothing that a look before the transaction would have found.
    New,
    /// A known id, or a sender that is to wait.
    Known,
}

impl Saw {
    pub(super) const fn and(self, verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Duplicate(_) | Verdict::Reused(_) | Verdict::RateLimited { .. } => Self::Known,
            Verdict::Accepted { .. } | Verdict::Refused(_) | Verdict::Stale => self,
        }
    }
}

/// The way of a lane.
pub(super) struct Way {
    has_door: bool,
    by_the_door: bool,
    /// Batches that are to be looked up before; one after the other without anything known.
    look_first: usize,
}

impl Way {
    pub(super) const fn new(has_door: bool) -> Self {
        Self { has_door, by_the_door: has_door, look_first: 0 }
    }

    pub(super) const fn is_by_the_door(&self) -> bool {
        self.by_the_door
    }

    /// A batch came out of the checks or of its transaction.
    pub(super) fn saw(&mut self, saw: Saw) {
        if saw == Saw::Known {
            self.look_first = LOOK_FIRST_BATCHES;
        }
    }

    /// A batch was looked up before.
    pub(super) fn looked_up(&mut self, saw: Saw) {
        self.look_first = self.look_first.saturating_sub(1);
        self.saw(saw);
    }

    /// Whether more may come, with so many batches before the gate and perhaps nothing anywhere.
    /// Nobody takes another way while somebody on the last one is still to be checked: checks are
    /// made in the order of arrival. But where a transaction could not take all, the way stays as
    /// it is until there is less to do, or others would wait for a whole fan-out.
    pub(super) const fn is_free(&mut self, looking: usize, is_clear: bool, has_left: bool) -> bool {
        let wants_door = self.has_door && self.look_first == 0;
        let may_change = if wants_door { looking == 0 } else { is_clear };
        if may_change {
            self.by_the_door = wants_door;
        }
        self.by_the_door == wants_door || (self.by_the_door && has_left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_sends_go_straight_to_the_transaction_until_one_is_known() {
        let mut way = Way::new(true);
        assert!(way.is_free(0, false, false) && way.is_by_the_door());
        way.saw(Saw::Known);
        assert!(!way.is_free(0, false, false), "somebody is still to be checked in a transaction");
        assert!(way.is_free(0, false, true) && way.is_by_the_door(), "there is too much of them");
        assert!(way.is_free(0, true, false) && !way.is_by_the_door());
        for _ in 1..LOOK_FIRST_BATCHES {
            way.looked_up(Saw::New);
            assert!(way.is_free(1, false, false) && !way.is_by_the_door());
        }
        way.looked_up(Saw::New);
        assert!(!way.is_free(1, false, false), "somebody is still to be checked before");
        assert!(way.is_free(0, false, false) && way.is_by_the_door());
    }

    #[test]
    fn what_is_known_begins_the_count_again() {
        let mut way = Way::new(true);
        way.saw(Saw::Known);
        assert!(way.is_free(0, true, false));
        for _ in 0..LOOK_FIRST_BATCHES * 3 {
            way.looked_up(Saw::New);
            way.looked_up(Saw::Known);
        }
        assert!(way.is_free(0, true, false) && !way.is_by_the_door());
    }

    #[test]
    fn without_a_door_all_are_looked_up_before() {
        let mut way = Way::new(false);
        assert!(way.is_free(1, false, false) && !way.is_by_the_door());
        way.looked_up(Saw::New);
        assert!(way.is_free(1, false, false) && !way.is_by_the_door());
    }
}
