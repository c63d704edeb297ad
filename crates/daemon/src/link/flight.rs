//! What is on the wire: one open attempt per id and connection, in the order of sending.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use semel_core::id::{ClientMessageId, OutboxId};

use crate::limits::FAILING_MAX;

/// Why a row is on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Errand {
    /// It is sent.
    Send,
    /// It is done, and offered again to a broker that was restored.
    Offer,
}

/// A row on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Flying {
    pub(super) id: OutboxId,
    pub(super) errand: Errand,
    pub(super) sent_at: Duration,
    /// This attempt's number.
    pub(super) attempt: u32,
}

/// Everything that is on the wire of one connection.
#[derive(Default)]
pub(super) struct Flight {
    flying: HashMap<ClientMessageId, Flying>,
    ids: HashSet<OutboxId>,
    /// Oldest first; what was answered meanwhile is skipped.
    order: VecDeque<(Duration, ClientMessageId)>,
}

impl Flight {
    pub(super) fn len(&self) -> usize {
        self.flying.len()
    }

    pub(super) fn contains(&self, id: OutboxId) -> bool {
        self.ids.contains(&id)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = OutboxId> + '_ {
        self.ids.iter().copied()
    }

    pub(super) fn depart(&mut self, client_message_id: ClientMessageId, flying: Flying) {
        self.ids.insert(flying.id);
        self.order.push_back((flying.sent_at, client_message_id.clone()));
        self.flying.insert(client_message_id, flying);
    }

    /// The row that this answer is for; an answer to nothing is none.
    pub(super) fn land(&mut self, client_message_id: &ClientMessageId) -> Option<Flying> {
        let flying = self.flying.remove(client_message_id)?;
        self.ids.remove(&flying.id);
        Some(flying)
    }

    /// When the oldest unanswered row was sent.
    pub(super) fn oldest(&mut self) -> Option<Duration> {
        loop {
            let (sent_at, id) = self.order.front()?;
            match self.flying.get(id) {
                Some(flying) if flying.sent_at == *sent_at => return Some(*sent_at),
                Some(_) | None => drop(self.order.pop_front()),
            }
        }
    }

    /// The connection is gone: everything that was on it, in the order of sending.
    pub(super) fn crash(mut self) -> Vec<Flying> {
        let order = std::mem::take(&mut self.order);
        order.iter().filter_map(|(_, id)| self.land(id)).collect()
    }
}

/// What the broker could not take (`5xx`), on one connection. While its store is away that is
/// everything, and everything stays in order; a row that fails while others get through is stuck.
#[derive(Default)]
pub(super) struct Failing {
    /// Rows that it took.
    taken: u64,
    /// How many those were when a row failed first.
    since: HashMap<OutboxId, u64>,
}

impl Failing {
    pub(super) fn taken(&mut self, id: OutboxId) {
        self.taken += 1;
        self.since.remove(&id);
    }

    /// Whether others got through since this row failed first.
    pub(super) fn is_stuck(&mut self, id: OutboxId) -> bool {
        if self.since.len() >= FAILING_MAX {
            // It costs patience alone.
            self.since.clear();
        }
        *self.since.entry(id).or_insert(self.taken) < self.taken
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use semel_core::mint::IdMint;
    use semel_testkit::clock::SimClock;

    use super::*;

    #[test]
    fn answers_find_their_rows_and_the_oldest_is_known() {
        let mint = IdMint::new(Arc::new(SimClock::at_ms(1)), Box::new(|| 42));
        let id = |text: &str| ClientMessageId::parse(text).unwrap();
        let fly = |seconds| Flying {
            id: mint.outbox_id(),
            errand: Errand::Send,
            sent_at: Duration::from_secs(seconds),
            attempt: 1,
        };
        let mut flight = Flight::default();
        let (one, two, three) = (fly(1), fly(2), fly(3));
        flight.depart(id("one"), one.clone());
        flight.depart(id("two"), two.clone());
        assert_eq!(flight.oldest(), Some(one.sent_at));
        assert_eq!(flight.land(&id("one")), Some(one.clone()));
        assert_eq!(flight.land(&id("one")), None, "an answer counts once");
        assert_eq!(flight.oldest(), Some(two.sent_at));
        flight.depart(id("three"), three.clone());
        // The same id again, after its answer.
        let again = Flying { id: one.id, ..fly(4) };
        flight.depart(id("one"), again.clone());
        assert!(flight.contains(one.id) && flight.len() == 3);
        assert_eq!(flight.crash(), [two, three, again]);
    }
}
