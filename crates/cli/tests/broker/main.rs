//! `semel broker` as processes: served, administered, stopped, and killed under load.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::expect_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking, and says what it has measured"
)]

mod daemon;
mod draining;
mod exchanged;
mod full_disk;
mod joined;
mod killed;
mod lost;
mod operator;
mod process;
mod recorded;
mod registrar;
mod renewed;
mod secured;
mod tls;
mod unfit;
mod unread;
mod verbs;
