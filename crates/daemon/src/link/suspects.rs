//! Which row it was, when the broker closes because of something that it could not read (`4008`).
//!
//! The broker says no more than that, and a row at which it closes each time would be sent for
//! ever, with everything behind it. So what was on the wire goes out one at a time from then on,
//! until a connection ends with one row alone on it. Twice, and that row is given up.

use semel_core::id::OutboxId;

use super::flight::Flying;
use crate::limits::BLAMED_MAX;

/// What is known of it.
#[derive(Default)]
pub(super) struct Suspects {
    /// So many more are sent one at a time.
    left: usize,
    /// Who was alone on the wire when the broker closed, and how often in a row.
    blamed: Option<(OutboxId, u32)>,
}

impl Suspects {
    /// Whether rows go out one at a time, each after everything else was answered.
    pub(super) const fn are_left(&self) -> bool {
        self.left > 0
    }

    /// How many may be on the wire.
    pub(super) const fn window(&self, usual: usize) -> usize {
        if self.are_left() { 1 } else { usual }
    }

    /// One of them was answered.
    pub(super) const fn answered(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    /// The broker closed while these were on the wire; which of them it was, once that is known.
    pub(super) fn closed_on(&mut self, flying: &[Flying]) -> Option<OutboxId> {
        let [alone] = flying else {
            self.left = self.left.max(flying.len());
            return None;
        };
        if !self.are_left() {
            // Alone by chance: it may have been one of our questions.
            self.left = 1;
            return None;
        }
        let before = self.blamed.filter(|(id, _)| *id == alone.id).map_or(0, |(_, times)| times);
        self.blamed = Some((alone.id, before + 1));
        if before + 1 < BLAMED_MAX {
            return None;
        }
        *self = Self::default();
        Some(alone.id)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use semel_core::mint::IdMint;
    use semel_testkit::clock::SimClock;

    use super::super::flight::Errand;
    use super::*;

    #[test]
    fn who_is_alone_when_the_broker_closes_is_found() {
        let mint = IdMint::new(Arc::new(SimClock::at_ms(1)), Box::new(|| 42));
        let fly = || Flying::new(mint.outbox_id(), Errand::Send, Duration::ZERO, 1);
        let all = [fly(), fly(), fly()];
        let mut suspects = Suspects::default();
        assert_eq!(suspects.window(256), 256);
        assert_eq!(suspects.closed_on(&[]), None, "none of ours");
        assert_eq!(suspects.closed_on(&all), None);
        assert_eq!(suspects.window(256), 1);
        suspects.answered();
        assert_eq!(suspects.closed_on(&all[1..2]), None, "once may be chance");
        assert_eq!(suspects.closed_on(&all[1..2]), Some(all[1].id));
        assert_eq!(suspects.window(256), 256, "it is found");
        // All of them turn out to be harmless.
        assert_eq!(suspects.closed_on(&all), None);
        all.iter().for_each(|_| suspects.answered());
        assert_eq!(suspects.window(256), 256);
        assert_eq!(suspects.closed_on(&all[..1]), None, "it was alone by chance");
        assert_eq!(suspects.closed_on(&all[..1]), None);
        assert_eq!(suspects.closed_on(&all[1..2]), None, "another one");
    }
}
