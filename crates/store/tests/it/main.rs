//! The stores through their public face, on real files and a real server.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod conformance;
mod crash;
mod encrypted;
mod files;
mod full_disk;
mod group;
mod interleavings;
mod lane;
mod last_words;
mod postgres;
mod sums;
mod support;
