//! The job engine on real databases.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod breakers;
mod claims;
mod cost;
mod crash;
mod differential;
mod letters;
mod life;
mod people;
mod submits;
mod suite;
mod support;
mod waking;
