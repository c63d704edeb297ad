//! The registrar through a real socket, on real databases.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod cases;
mod crash;
mod crash_postgres;
mod crash_sweep;
mod crosswise;
mod embedded;
mod faults;
mod fitness;
mod hostile;
mod lost;
mod support;
mod sweep;
