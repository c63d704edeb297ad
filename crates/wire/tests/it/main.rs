//! The wire from outside: exact bytes, round trips, refusals, sizes, and the document.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod document;
mod examples;
mod mutated;
mod refusals;
mod round_trip;
mod salvage;
mod sizes;
mod strategies;
