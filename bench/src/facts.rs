//! What machine this is: figures mean nothing without it.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

/// Cores, kernel, SQLite, and how fast the disk of `folder` makes a small write durable.
pub(crate) fn machine(folder: &Path) -> Result<Value> {
    let cores = std::thread::available_parallelism()?.get();
    let kernel = rustix::system::uname();
    let us = fdatasync_us(folder)?;
    Ok(json!({
        "cores": cores,
        "kernel": kernel.release().to_string_lossy(),
        "sqlite": rusqlite::version(),
        "fdatasync_us": us.round(),
    }))
}

/// Median time of writing 4 KiB at the end of a file and syncing it.
fn fdatasync_us(folder: &Path) -> Result<f64> {
    let mut file = File::create(folder.join("fdatasync"))?;
    let mut times = Vec::new();
    let until = Instant::now() + Duration::from_millis(500);
    while Instant::now() < until {
        let start = Instant::now();
        file.write_all(&[7; 4096])?;
        file.sync_data()?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2].as_secs_f64() * 1e6)
}
