//! The job engine on real databases.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod breaker_faults;
mod breakers;
mod claims;
mod cost;
mod crash;
mod differential;
mod faults;
mod letters;
mod life;
mod lost;
mod people;
mod submits;
mod suite;
mod support;
mod waking;
