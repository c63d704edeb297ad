//! `semel broker` as processes: served, administered, stopped, and killed under load.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking"
)]

mod daemon;
mod draining;
mod full_disk;
mod joined;
mod killed;
mod lost;
mod operator;
mod process;
mod registrar;
mod renewed;
mod tls;
mod verbs;
