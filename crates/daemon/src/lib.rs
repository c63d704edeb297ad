//! A host's daemon. So far: the outbox's table and the transactions that move its rows.

pub mod store;
