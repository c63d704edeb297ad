//! What machine this is: figures mean nothing without it.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};
use tokio_postgres::NoTls;

/// Processor, kernel, databases, and how fast the disk of `folder` makes a small write durable.
pub(crate) fn machine(folder: &Path) -> Result<Value> {
    let cores = std::thread::available_parallelism()?.get();
    let kernel = rustix::system::uname();
    let us = fdatasync_us(folder)?;
    Ok(json!({
        "cores": cores,
        "cpu": cpu(),
        "kernel": kernel.release().to_string_lossy(),
        "sqlite": rusqlite::version(),
        "postgres": postgres(),
        "fdatasync_us": us.round(),
        "fdatasync_per_second": (1e6 / us).round(),
        "peers": crate::peers::versions(),
        "build": if cfg!(debug_assertions) { "debug" } else { "release" },
    }))
}

fn cpu() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The version of the server that the stores are measured on.
fn postgres() -> Option<String> {
    let server = std::env::var("SEMEL_TEST_POSTGRES").ok()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(&server, NoTls).await.ok()?;
        tokio::spawn(connection);
        let row = client.query_one("SHOW server_version", &[]).await.ok()?;
        let version: String = row.try_get(0).ok()?;
        version.split_whitespace().next().map(str::to_owned)
    })
}

/// Median time of writing 4 KiB at the end of a file and syncing it.
pub(crate) fn fdatasync_us(folder: &Path) -> Result<f64> {
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
