//! Who waits for a transaction: the sends of each session in their order, and the sessions in
//! turns, each by the rows that its sends write. A session that fans out to thousands takes its
//! turn like any other, and one that has just come is served before those that have been served.

use std::collections::{HashMap, VecDeque};

use crate::accept::Session;
use crate::limits::{BATCH_MAX, BATCH_ROWS, TURN_ROWS};

/// Deficit round robin over sessions, newcomers first.
pub(super) struct Line<T> {
    sessions: HashMap<Session, Waits<T>>,
    /// Those that have not had a turn since they came.
    new: VecDeque<Session>,
    old: VecDeque<Session>,
    len: usize,
    bytes: usize,
}

struct Waits<T> {
    sends: VecDeque<T>,
    /// Rows that it may still write in this turn; less than nothing after a large send.
    credit: i64,
}

/// What a line must know of a send.
pub(super) trait Queued {
    /// Whose order it keeps.
    fn session(&self) -> Session;
    /// What it holds in memory.
    fn bytes(&self) -> usize;
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        let (sessions, new, old) = Default::default();
        Self { sessions, new, old, len: 0, bytes: 0 }
    }
}

impl<T: Queued> Line<T> {
    pub(super) fn push(&mut self, send: T) {
        let session = send.session();
        self.len += 1;
        self.bytes += send.bytes();
        let waits = self.sessions.entry(session).or_insert_with(|| {
            self.new.push_back(session);
            Waits { sends: VecDeque::new(), credit: TURN_ROWS }
        });
        waits.sends.push_back(send);
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The sends of the next transaction, and the rows that they write: as many as it may write,
    /// and one at the least, however large. A lone send is not asked for its rows.
    pub(super) fn take(&mut self, mut rows_of: impl FnMut(&T) -> usize) -> (Vec<T>, usize) {
        let (mut taken, mut rows) = (Vec::with_capacity(self.len.min(BATCH_MAX)), 0);
        let is_alone = self.len == 1;
        while taken.len() < BATCH_MAX && self.len > 0 {
            let Some(waits) = self.whose_turn() else { break };
            let Some(send) = waits.sends.front() else { break };
            let cost = if is_alone { 1 } else { rows_of(send) };
            if !taken.is_empty() && rows + cost > BATCH_ROWS {
                break;
            }
            waits.credit -= i64::try_from(cost).unwrap_or(i64::MAX);
            let Some(send) = waits.sends.pop_front() else { break };
            rows += cost;
            self.len -= 1;
            self.bytes -= send.bytes();
            taken.push(send);
        }
        if self.len == 0 {
            // What they owe is forgotten with them: nobody waited.
            *self = Self::default();
        }
        (taken, rows)
    }

    /// The session whose turn it is, with something to send.
    fn whose_turn(&mut self) -> Option<&mut Waits<T>> {
        loop {
            let is_new = !self.new.is_empty();
            let session = *self.new.front().or_else(|| self.old.front())?;
            let waits = self.sessions.get_mut(&session)?;
            if waits.credit > 0 && !waits.sends.is_empty() {
                return self.sessions.get_mut(&session);
            }
            if is_new {
                self.new.pop_front()
            } else {
                self.old.pop_front()
            };
            // One that has nothing more waits for its next turn, or it would be new each time.
            if !waits.sends.is_empty() || is_new {
                waits.credit = waits.credit.saturating_add(TURN_ROWS).min(TURN_ROWS);
                self.old.push_back(session);
            } else {
                self.sessions.remove(&session);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use semel_core::id::UuidId;
    use uuid::Uuid;

    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Send {
        from: u128,
        number: usize,
        rows: usize,
    }

    impl Queued for Send {
        fn session(&self) -> Session {
            let member_id = UuidId::new(Uuid::from_u128(self.from));
            Session { member_id, instance_id: UuidId::new(Uuid::nil()), epoch: 1 }
        }

        fn bytes(&self) -> usize {
            10
        }
    }

    fn line(sends: &[(u128, usize, usize)]) -> Line<Send> {
        let mut line = Line::default();
        for (from, count, rows) in sends {
            (0..*count).for_each(|number| line.push(Send { from: *from, number, rows: *rows }));
        }
        line
    }

    fn take(line: &mut Line<Send>) -> Vec<Send> {
        let (taken, rows) = line.take(|send| send.rows);
        let sum: usize = taken.iter().map(|send| send.rows).sum();
        assert!(rows == sum || taken.len() == 1, "{rows} {sum}");
        taken
    }

    #[test]
    fn a_batch_is_cut_by_the_rows_that_it_writes() {
        let mut line = line(&[(1, 1000, 1003)]);
        let (mut batches, mut next) = (0, 0);
        while !line.is_empty() {
            let taken = take(&mut line);
            assert!((1..=BATCH_ROWS / 1003).contains(&taken.len()), "{}", taken.len());
            for send in taken {
                assert_eq!(send.number, next, "in the order of their session");
                next += 1;
            }
            batches += 1;
        }
        assert_eq!((next, line.bytes()), (1000, 0));
        assert!(batches >= 1000 * 1003 / BATCH_ROWS);
    }

    #[test]
    fn small_sends_share_a_batch_up_to_its_limit() {
        let mut line = line(&[(1, 600, 4), (2, 600, 4)]);
        assert_eq!(take(&mut line).len(), BATCH_MAX);
    }

    #[test]
    fn a_send_that_is_more_than_a_batch_goes_alone() {
        let mut line = line(&[(1, 3, 2 * BATCH_ROWS), (2, 1, 4)]);
        let numbers = |taken: &[Send]| -> Vec<(u128, usize)> {
            taken.iter().map(|send| (send.from, send.number)).collect()
        };
        assert_eq!(numbers(&take(&mut line)), [(1, 0)]);
        assert_eq!(numbers(&take(&mut line)), [(2, 0)], "somebody else's turn");
        assert_eq!(numbers(&take(&mut line)), [(1, 1)]);
        assert_eq!(numbers(&take(&mut line)), [(1, 2)]);
    }

    #[test]
    fn who_comes_during_a_fan_out_is_in_the_next_batch() {
        let mut line = line(&[(1, 1000, 1003), (2, 1000, 1003), (3, 1000, 1003)]);
        for round in 0..100 {
            take(&mut line);
            line.push(Send { from: 4, number: round, rows: 4 });
            let next = take(&mut line);
            assert!(next.iter().any(|send| send.from == 4), "{next:?}");
        }
    }

    #[test]
    fn all_who_fan_out_get_their_turn() {
        let mut line = line(&[(1, 1000, 1003), (2, 1000, 103)]);
        let mut rows = [0; 3];
        for _ in 0..20 {
            take(&mut line).iter().for_each(|send| rows[send.from as usize] += send.rows);
        }
        assert!(rows[1].abs_diff(rows[2]) <= 2 * BATCH_ROWS, "{rows:?}");
    }
}
