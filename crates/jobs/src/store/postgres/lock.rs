//! Advisory locks, held to the end of the transaction: of conversations, of names under which a job
//! may be there already, of breakers.
//!
//! Differs from sqlite: there, one writer is lock enough. Here a conversation's lock makes its
//! numbers rise in the order of commits, and lets no end of a job miss the next one (jobs.md §2).

use semel_store::statements;
use sha2::{Digest, Sha256};

/// The class of the locks; it means nothing, it must only stay the same and differ from others.
const LOCKS: i32 = 7307;

statements! {
    /// In the order of the array.
    LOCK = "
        SELECT pg_advisory_xact_lock($1, number)
          FROM unnest($2::integer[]) AS number";

    /// Those that can be had at once.
    TRY_LOCK = "
        SELECT number
          FROM unnest($2::integer[]) AS number
         WHERE pg_try_advisory_xact_lock($1, number)";
}

/// The statement that waits for locks.
pub(super) const fn lock() -> &'static str {
    LOCK
}

/// The statement that waits for none.
pub(super) const fn try_lock() -> &'static str {
    TRY_LOCK
}

/// Locks, sorted and each once.
pub(super) struct Locks {
    class: i32,
    numbers: Vec<i32>,
}

impl Locks {
    pub(super) fn of(mut numbers: Vec<i32>) -> Self {
        numbers.sort_unstable();
        numbers.dedup();
        Self { class: LOCKS, numbers }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Of either statement.
    pub(super) fn parameters(&self) -> [&(dyn tokio_postgres::types::ToSql + Sync); 2] {
        [&self.class, &self.numbers]
    }
}

/// What a lock is of.
#[derive(Debug, Clone, Copy)]
pub(super) enum Lock<'a> {
    Conversation(&'a str),
    Key(&'a str),
    Words(&'a [u8]),
    Root(&'a [u8]),
    Breaker(&'a str),
}

impl Lock<'_> {
    /// Two that share a number only wait for each other.
    pub(super) fn number(self) -> i32 {
        let (kind, name) = match self {
            Self::Conversation(name) => (b'c', name.as_bytes()),
            Self::Key(name) => (b'k', name.as_bytes()),
            Self::Words(hash) => (b'w', hash),
            Self::Root(id) => (b'r', id),
            Self::Breaker(action) => (b'b', action.as_bytes()),
        };
        let hash = Sha256::new().chain_update([kind]).chain_update(name).finalize();
        let mut four = [0; 4];
        four.iter_mut().zip(&hash).for_each(|(to, from)| *to = *from);
        i32::from_be_bytes(four)
    }
}
