//! The broker through its public face, on real databases.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking"
)]

mod ages;
mod answers;
mod begun;
mod budget;
mod client;
mod conversation;
mod differential;
mod door;
mod fan_out;
mod faults;
mod hints;
mod housekeeping;
mod http;
mod lanes;
mod life;
mod limiter;
mod metrics;
mod order;
mod parts;
mod powerloss;
mod presence;
mod queues;
mod reconnects;
mod sessions;
mod store;
mod support;
