//! Packs a state without loss, so that the set of visited states is exact and not one of hashes.

use crate::state::{Conn, Row, State, Store};

/// A state, as the key of a set.
pub(crate) type Key = [u64; 3];

impl State {
    /// The packed state.
    pub(crate) fn key(&self) -> Key {
        let mut packer = Packer { words: [0; 3], word: 0, used: 0 };
        for conn in &self.conns {
            packer.conn(conn);
        }
        for tx in self.txs {
            packer.push(u64::from(tx.bits()), 8);
        }
        packer.row(&self.row);
        packer.store(&self.store);
        packer.push(u64::from(self.age), 2);
        packer.push(u64::from(self.instance), 1);
        packer.push(u64::from(self.used), 3);
        packer.push(u64::from(self.lied), 1);
        packer.words
    }
}

/// Fills words with fields; no field crosses from one word into the next.
struct Packer {
    words: Key,
    word: usize,
    used: u32,
}

impl Packer {
    fn push(&mut self, value: u64, width: u32) {
        assert!(value < 1 << width, "a field of the state has outgrown its bits");
        if self.used + width > u64::BITS {
            self.word += 1;
            self.used = 0;
        }
        self.words[self.word] |= value << self.used;
        self.used += width;
    }

    fn flags<const N: usize>(&mut self, flags: [bool; N]) {
        for flag in flags {
            self.push(u64::from(flag), 1);
        }
    }

    fn conn(&mut self, conn: &Conn) {
        self.flags([conn.open, conn.acked, conn.ack, conn.attempt, conn.closed, conn.resolve]);
        self.push(u64::from(conn.instance), 1);
        self.push(u64::from(conn.store_epoch), 1);
        self.push(u64::from(conn.epoch), 3);
        self.push(conn.hello as u64, 2);
        self.push(u64::from(conn.sends), 2);
        self.push(u64::from(conn.answers), 7);
    }

    fn row(&mut self, row: &Row) {
        self.flags([row.maybe_sent, row.other_store, row.unwritten, row.told_failed]);
        self.push(row.status as u64, 3);
        self.push(u64::from(row.seen_store), 2);
    }

    fn store(&mut self, store: &Store) {
        self.push(u64::from(store.store_epoch), 1);
        self.push(store.dedupe as u64, 2);
        self.push(u64::from(store.messages), 2);
        self.push(u64::from(store.ever), 1);
        for epoch in store.session {
            self.push(u64::from(epoch), 3);
        }
        self.push(u64::from(store.sequence), 3);
    }
}
