//! Who waits for a transaction: the sends of each session in their order, and the sessions in
//! turns, each by the rows that its sends write. A session that fans out to thousands takes its
//! turn like any other, and one that has just come is served before those that have been served.
//! Small sends go before large ones, in transactions of their own, up to two of these at a time:
//! they do not wait for the rows of large ones.

use std::collections::{HashMap, VecDeque};

use crate::accept::Session;
use crate::limits::{BATCH_MAX, SMALL_FIRST_MAX, SMALL_FIRST_ROWS, TURN_ROWS};

/// Deficit round robin over sessions, newcomers first.
pub(super) struct Line<T> {
    sessions: HashMap<Session, Waits<T>>,
    /// Those that have not had a turn since they came.
    new: VecDeque<Session>,
    old: VecDeque<Session>,
    len: usize,
    bytes: usize,
    /// So often in a row large sends have let small ones go before them.
    let_go: u32,
}

/// The sends of a transaction.
pub(super) struct Batch<T> {
    pub(super) sends: Vec<T>,
    /// What they write.
    pub(super) rows: usize,
    /// Larger ones have let them go first, and must not be in the same transaction.
    pub(super) is_ahead: bool,
}

/// A session whose next send is a large one, while small ones are taken.
struct PassedBy {
    session: Session,
    is_new: bool,
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
        Self { sessions, new, old, len: 0, bytes: 0, let_go: 0 }
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

    /// The sends of the next transaction: as many as it may write rows, and one at the least,
    /// however large. A lone send is not asked for its rows.
    pub(super) fn take(
        &mut self,
        rows_max: usize,
        mut rows_of: impl FnMut(&T) -> usize,
    ) -> Batch<T> {
        let mut passed_by = Vec::new();
        let may_pass_by = self.let_go < SMALL_FIRST_MAX;
        let passing = may_pass_by.then_some(&mut passed_by);
        let mut batch = self.take_some(rows_max, &mut rows_of, passing);
        let let_go = std::mem::take(&mut self.let_go);
        if !passed_by.is_empty() {
            self.put_back(passed_by);
            if batch.sends.is_empty() {
                return self.take_some(rows_max, &mut rows_of, None);
            }
            (self.let_go, batch.is_ahead) = (let_go + 1, true);
        }
        batch
    }

    /// Those whose turn it is. Large ones are passed by, where that is asked for.
    fn take_some(
        &mut self,
        rows_max: usize,
        rows_of: &mut impl FnMut(&T) -> usize,
        mut passed_by: Option<&mut Vec<PassedBy>>,
    ) -> Batch<T> {
        let (mut taken, mut rows) = (Vec::with_capacity(self.len.min(BATCH_MAX)), 0);
        let is_alone = self.len == 1;
        while taken.len() < BATCH_MAX && self.len > 0 {
            let Some((session, waits)) = self.whose_turn() else { break };
            let Some(send) = waits.sends.front() else { break };
            let cost = if is_alone { 1 } else { rows_of(send) };
            let turn = i64::try_from(cost).unwrap_or(i64::MAX);
            if turn > TURN_ROWS
                && let Some(passed_by) = &mut passed_by
            {
                passed_by.push(self.pass_by(session));
                continue;
            }
            let has_let_go = passed_by.as_ref().is_some_and(|passed_by| !passed_by.is_empty());
            let most = if has_let_go { rows_max.min(SMALL_FIRST_ROWS) } else { rows_max };
            if !taken.is_empty() && rows + cost > most {
                break;
            }
            waits.credit -= turn;
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
        Batch { sends: taken, rows, is_ahead: false }
    }

    /// Takes the session whose turn it is out of the turns.
    fn pass_by(&mut self, session: Session) -> PassedBy {
        let is_new = self.new.pop_front().is_some();
        if !is_new {
            self.old.pop_front();
        }
        PassedBy { session, is_new }
    }

    /// Their turn is still the next one.
    fn put_back(&mut self, passed_by: Vec<PassedBy>) {
        for PassedBy { session, is_new } in passed_by.into_iter().rev() {
            let turns = if is_new { &mut self.new } else { &mut self.old };
            turns.push_front(session);
        }
    }

    /// The session whose turn it is, with something to send: the first of the new ones, or else of
    /// the old ones.
    fn whose_turn(&mut self) -> Option<(Session, &mut Waits<T>)> {
        loop {
            let is_new = !self.new.is_empty();
            let session = *self.new.front().or_else(|| self.old.front())?;
            let waits = self.sessions.get_mut(&session)?;
            if waits.credit > 0 && !waits.sends.is_empty() {
                return self.sessions.get_mut(&session).map(|waits| (session, waits));
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

    const BATCH_ROWS: usize = 2500;

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
        let Batch { sends, rows, .. } = line.take(BATCH_ROWS, |send| send.rows);
        let sum: usize = sends.iter().map(|send| send.rows).sum();
        assert!(rows == sum || sends.len() == 1, "{rows} {sum}");
        sends
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
        assert_eq!(numbers(&take(&mut line)), [(2, 0)], "a small one goes before");
        assert_eq!(numbers(&take(&mut line)), [(1, 0)]);
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
    fn small_sends_do_not_wait_for_large_ones_nor_the_other_way_round() {
        let mut line = line(&[(1, 100, 1003), (2, 100, 1003)]);
        for round in 0..20 {
            for _ in 0..SMALL_FIRST_MAX {
                (4..8).for_each(|from| line.push(Send { from, number: round, rows: 4 }));
                let Batch { sends, rows, is_ahead } = line.take(BATCH_ROWS, |send| send.rows);
                assert!(is_ahead, "they are committed before the large ones are begun");
                assert_eq!((sends.len(), rows), (4, 16), "all of them, and nothing else");
            }
            // More of them have come: it is the turn of the large ones all the same.
            (4..8).for_each(|from| line.push(Send { from, number: round, rows: 4 }));
            let Batch { sends, is_ahead, .. } = line.take(BATCH_ROWS, |send| send.rows);
            let large = sends.iter().filter(|send| send.from < 4).count();
            assert!(large > 0 && !is_ahead, "{sends:?}");
            while line.take(BATCH_ROWS, |send| send.rows).is_ahead {}
        }
    }

    #[test]
    fn who_passes_by_a_large_send_keeps_the_order_of_its_session() {
        let mut line = line(&[(1, 2, 4), (1, 1, 1003), (1, 2, 4), (2, 1, 1003)]);
        let mut taken = Vec::new();
        while !line.is_empty() {
            taken.extend(take(&mut line).into_iter().filter(|send| send.from == 1));
        }
        let rows: Vec<usize> = taken.iter().map(|send| send.rows).collect();
        assert_eq!(rows, [4, 4, 1003, 4, 4]);
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
