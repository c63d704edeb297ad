//! The daemon's databases, one file per table.

pub mod outbox;
