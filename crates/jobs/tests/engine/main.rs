//! The engine in this process, over real files: what it does with plans, step by step.

#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod artifacts;
mod breaker;
mod children;
mod groups;
mod homes;
mod idle;
mod life;
mod lost;
mod permits;
mod planning;
mod sent_on;
mod support;
mod sweep;
mod time;
