//! `semel daemon` and the verbs that ask it, as processes: used, stopped, and killed under load.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod api;
mod ephemeral;
mod full_disk;
mod killed;
mod lost;
mod names;
mod plain;
mod process;
mod read_only;
mod storm;
mod verbs;
