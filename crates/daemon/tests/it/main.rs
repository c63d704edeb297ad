//! The daemon's engine beside a real broker, and beside one that does as the test says: real files,
//! real sockets.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking"
)]

mod clock;
mod damage;
mod delivery;
mod fresh;
mod named;
mod older;
mod poison;
mod recover;
mod room;
mod rules;
mod scripted;
mod support;
mod verified;
