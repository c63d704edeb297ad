//! The job engine as a process: killed wherever it can be, alone and beside another, and what
//! people and the world see of it (jobs.md).

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod artifact;
mod backup;
mod breaker;
mod cluster;
mod crash;
mod door;
mod full_disk;
mod lost;
mod mesh;
mod order;
mod person;
mod process;
mod refused;
mod relay;
mod restored;
mod table;
mod unfit;
mod unsure;
mod world;
