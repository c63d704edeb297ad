//! What was just committed, on its way to somebody who would otherwise read it back.
//!
//! A reader that has seen everything in a table *follows* it: from then on whoever commits offers
//! it the new rows, in memory. It never relies on that: what does not fit is not kept, and the
//! reader is told to read the table again, as is everybody who starts.
//!
//! | the reader | |
//! |---|---|
//! | [`Handover::follow`], then reads the table | what is committed meanwhile may come both ways |
//! | read all there is: [`Handover::take`] from now on | `None`: it follows no more, and reads |
//! | did not, or rows changed in another way | [`Handover::leave`] |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// New rows by their key, which is the order in which they are taken.
pub struct Handover<Key, Row> {
    state: Mutex<State<Key, Row>>,
    rows_max: usize,
    bytes_max: usize,
}

struct State<Key, Row> {
    follows: bool,
    rows: BTreeMap<Key, (usize, Row)>,
    bytes: usize,
    /// Read from the table, and perhaps not offered yet.
    read: BTreeSet<Key>,
}

/// Some of what was offered.
#[derive(Debug, PartialEq, Eq)]
pub struct Taken<Key, Row> {
    /// In order.
    pub rows: Vec<(Key, Row)>,
    /// Whether there is more.
    pub more: bool,
}

impl<Key: Ord, Row> Handover<Key, Row> {
    /// Nobody follows yet. Holds so many rows and bytes at the most.
    pub const fn new(rows_max: usize, bytes_max: usize) -> Self {
        let state =
            State { follows: false, rows: BTreeMap::new(), bytes: 0, read: BTreeSet::new() };
        Self { state: Mutex::new(state), rows_max, bytes_max }
    }

    /// Keeps what is offered from now on, and nothing from before.
    pub fn follow(&self) {
        self.lock().reset(true);
    }

    /// Keeps nothing.
    pub fn leave(&self) {
        self.lock().reset(false);
    }

    /// Offers a row that was committed. Without anybody who follows nothing is made of it.
    pub fn offer(&self, key: Key, bytes: usize, row: impl FnOnce() -> Row) {
        let mut state = self.lock();
        if !state.follows || state.read.remove(&key) {
            return;
        }
        if state.rows.len() >= self.rows_max || state.bytes.saturating_add(bytes) > self.bytes_max {
            state.reset(false);
            return;
        }
        state.bytes += bytes;
        state.rows.insert(key, (bytes, row()));
    }

    /// The next rows; `None` if the table is to be read.
    pub fn take(&self, limit: usize) -> Option<Taken<Key, Row>> {
        let mut state = self.lock();
        if !state.follows {
            return None;
        }
        let mut rows = Vec::with_capacity(limit.min(state.rows.len()));
        while rows.len() < limit
            && let Some((key, (bytes, row))) = state.rows.pop_first()
        {
            state.bytes -= bytes;
            rows.push((key, row));
        }
        Some(Taken { rows, more: !state.rows.is_empty() })
    }

    /// These were read from the table since [`Handover::follow`]: they are not taken here as well,
    /// also if they are offered only now.
    pub fn forget(&self, keys: impl Iterator<Item = Key>) {
        let mut state = self.lock();
        for key in keys {
            match state.rows.remove(&key) {
                Some((bytes, _)) => state.bytes -= bytes,
                None => drop(state.read.insert(key)),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<Key, Row>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Key: Ord, Row> State<Key, Row> {
    fn reset(&mut self, follows: bool) {
        *self = Self { follows, rows: BTreeMap::new(), bytes: 0, read: BTreeSet::new() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(taken: Option<Taken<i32, ()>>) -> Option<(Vec<i32>, bool)> {
        taken.map(|taken| (taken.rows.into_iter().map(|(key, ())| key).collect(), taken.more))
    }

    #[test]
    fn who_follows_gets_what_is_offered_in_the_order_of_keys() {
        let handover = Handover::new(10, 100);
        handover.offer(1, 1, || ());
        assert_eq!(keys(handover.take(9)), None, "nobody followed");
        handover.follow();
        for key in [4, 7, 2, 3] {
            handover.offer(key, 1, || ());
        }
        handover.forget([7, 8].into_iter());
        handover.offer(8, 1, || ());
        assert_eq!(keys(handover.take(2)), Some((vec![2, 3], true)));
        assert_eq!(keys(handover.take(2)), Some((vec![4], false)));
        assert_eq!(keys(handover.take(2)), Some((vec![], false)), "and goes on following");
        handover.offer(5, 1, || ());
        handover.leave();
        assert_eq!(keys(handover.take(9)), None);
        handover.follow();
        assert_eq!(keys(handover.take(9)), Some((vec![], false)), "what was left is in the table");
    }

    #[test]
    fn too_many_rows_or_bytes_send_the_reader_back_to_the_table() {
        let handover = Handover::new(2, 100);
        for (sizes, follows) in [
            (vec![1, 1], true),
            (vec![1, 1, 1], false),
            (vec![50, 50], true),
            (vec![50, 51], false),
        ] {
            handover.follow();
            for (key, bytes) in sizes.iter().enumerate() {
                handover.offer(key, *bytes, || ());
            }
            assert_eq!(handover.take(9).is_some(), follows, "{sizes:?}");
        }
        handover.follow();
        for key in 0..100 {
            handover.offer(key, 100, || ());
            assert!(handover.take(1).is_some(), "what was taken makes room");
        }
    }
}
