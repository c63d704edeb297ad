//! Storage that every part of Semel shares: SQLite behind one writer thread with group commit,
//! PostgreSQL behind a pool that is honest about lost commits, and forward-only migrations for
//! both. It knows none of our tables and depends on no other crate of ours.
//!
//! Two promises hold for both stores (ARCHITECTURE.md, "How a write goes"; mesh.md §10):
//! - nothing is answered before it is on disk;
//! - an error says whether the write was undone or whether nobody can know ([`Fate`]).

mod either;
mod error;
mod planted;
mod statements;

pub mod handover;
pub mod limits;
pub mod migration;
pub mod parameters;
pub mod postgres;
pub mod sqlite;
pub mod tls;

pub use error::{Fate, OpenError, StoreError, is_of_one_row};
