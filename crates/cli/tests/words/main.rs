//! The command line as its users meet it: what it says, and what it answers.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod completions;
mod demo;
mod doctor;
mod golden;
mod program;
