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
    /// When it was handed to the writer.
    pub(super) sent_at: Duration,
    /// When its last byte went out.
    pub(super) left_at: Option<Duration>,
    /// This attempt's number.
    pub(super) attempt: u32,
}

impl Flying {
    pub(super) fn new(id: OutboxId, errand: Errand, sent_at: Duration, attempt: u32) -> Self {
        Self { id, errand, sent_at, left_at: None, attempt }
    }
}

/// Everything that is on the wire of one connection.
#[derive(Default)]
pub(super) struct Flight {
    flying: HashMap<ClientMessageId, Flying>,
    ids: HashSet<OutboxId>,
    /// Oldest first, numbered from 1; what was answered meanwhile is skipped.
    order: VecDeque<(u64, ClientMessageId)>,
    /// Numbers that were given.
    departed: u64,
    /// Those up to here have left.
    left_to: u64,
    /// The last answer.
    answered_at: Duration,
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
        self.departed += 1;
        self.order.push_back((self.departed, client_message_id.clone()));
        self.flying.insert(client_message_id, flying);
    }

    /// The first so many frames have left by then: the time for their answers begins.
    pub(super) fn left(&mut self, count: u64, at: Duration) {
        let first = self.order.partition_point(|(number, _)| *number <= self.left_to);
        for (_, id) in self.order.range(first..).take_while(|(number, _)| *number <= count) {
            if let Some(flying) = self.flying.get_mut(id) {
                flying.left_at.get_or_insert(at);
            }
        }
        self.left_to = self.left_to.max(count);
    }

    /// The row that this answer is for; an answer to nothing is none.
    pub(super) fn land(
        &mut self,
        client_message_id: &ClientMessageId,
        now: Duration,
    ) -> Option<Flying> {
        let flying = self.flying.remove(client_message_id)?;
        self.ids.remove(&flying.id);
        if self.order.front().is_some_and(|(_, id)| id == client_message_id) {
            self.order.pop_front();
            // Answers come in order: the time of the next begins when its turn does.
            self.answered_at = now;
        }
        Some(flying)
    }

    /// Since when the oldest unanswered row waits for its answer; not while it has not left.
    pub(super) fn waiting_since(&mut self) -> Option<Duration> {
        loop {
            let (_, id) = self.order.front()?;
            match self.flying.get(id) {
                Some(flying) => return flying.left_at.map(|at| at.max(self.answered_at)),
                None => drop(self.order.pop_front()),
            }
        }
    }

    /// The connection is gone: everything that was on it, in the order of sending.
    pub(super) fn crash(mut self) -> Vec<Flying> {
        let order = std::mem::take(&mut self.order);
        order.iter().filter_map(|(_, id)| self.flying.remove(id)).collect()
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
        let at = Duration::from_secs;
        let fly = |seconds| Flying::new(mint.outbox_id(), Errand::Send, at(seconds), 1);
        let mut flight = Flight::default();
        let (one, mut two, three) = (fly(1), fly(2), fly(3));
        flight.depart(id("one"), one.clone());
        flight.depart(id("two"), two.clone());
        flight.left(2, at(5));
        two.left_at = Some(at(5));
        assert_eq!(flight.waiting_since(), Some(at(5)));
        let landed = flight.land(&id("one"), at(6));
        assert_eq!(landed, Some(Flying { left_at: Some(at(5)), ..one.clone() }));
        assert_eq!(flight.land(&id("one"), at(6)), None, "an answer counts once");
        flight.depart(id("three"), three.clone());
        // The same id again, after its answer.
        let again = Flying { id: one.id, ..fly(7) };
        flight.depart(id("one"), again.clone());
        assert!(flight.contains(one.id) && flight.len() == 3);
        assert_eq!(flight.crash(), [two, three, again]);
    }

    #[test]
    fn the_time_for_an_answer_begins_when_the_row_has_left_and_it_is_its_turn() {
        let mint = IdMint::new(Arc::new(SimClock::at_ms(1)), Box::new(|| 42));
        let id = |text: &str| ClientMessageId::parse(text).unwrap();
        let at = Duration::from_secs;
        let mut flight = Flight::default();
        for name in ["one", "two", "three"] {
            flight.depart(id(name), Flying::new(mint.outbox_id(), Errand::Send, at(1), 1));
        }
        assert_eq!(flight.waiting_since(), None, "nothing has left");
        flight.left(1, at(40));
        assert_eq!(flight.waiting_since(), Some(at(40)));
        flight.left(2, at(50));
        flight.land(&id("one"), at(60));
        assert_eq!(flight.waiting_since(), Some(at(60)), "it waited behind the first");
        flight.land(&id("two"), at(61));
        assert_eq!(flight.waiting_since(), None, "the third has not left");
        flight.left(3, at(70));
        assert_eq!(flight.waiting_since(), Some(at(70)));
        // Who is answered out of turn does not give the oldest more time.
        flight.depart(id("four"), Flying::new(mint.outbox_id(), Errand::Send, at(71), 1));
        flight.left(4, at(72));
        flight.land(&id("four"), at(80));
        assert_eq!(flight.waiting_since(), Some(at(70)));
    }
}
