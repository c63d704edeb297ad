//! Processor time of this process and of all processes of the database server.

use std::fs;

use anyhow::{Context, Result};
use tokio_postgres::NoTls;

/// A tick of the kernel's accounting.
const TICK_US: u64 = 10_000;

/// Adds both up.
pub(super) struct Meter {
    /// The server's first process, whose children serve connections.
    server: u32,
}

impl Meter {
    /// For the server at this address, which runs on this machine.
    pub(super) async fn new(address: &str) -> Result<Self> {
        let (client, connection) = tokio_postgres::connect(address, NoTls).await?;
        tokio::spawn(connection);
        let row = client.query_one("SELECT pg_backend_pid()", &[]).await?;
        let backend: i32 = row.try_get(0)?;
        let server = parent(u32::try_from(backend)?).context("the server is on this machine")?;
        Ok(Self { server })
    }

    /// Since each of them began.
    pub(super) fn cpu_us(&self) -> Result<u64> {
        let us = ticks(std::process::id(), false).context("the kernel knows this process")?;
        // What its children used that have ended is counted with the server itself.
        let mut all = us + ticks(self.server, true).context("the kernel knows the server")?;
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            if parent(pid) == Some(self.server) {
                // It may have ended meanwhile.
                all += ticks(pid, false).unwrap_or(0);
            }
        }
        Ok(all * TICK_US)
    }
}

/// Processor time of one process.
pub(super) fn cpu_us_of(pid: u32) -> Result<u64> {
    Ok(ticks(pid, false).context("the kernel knows the process")? * TICK_US)
}

/// The fields of `/proc/PID/stat` behind the name, which may have spaces.
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(") ")?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

fn parent(pid: u32) -> Option<u32> {
    stat(pid)?.get(1)?.parse().ok()
}

/// In user mode and in the kernel, with those of children that have ended if they count.
fn ticks(pid: u32, with_children: bool) -> Option<u64> {
    let fields = stat(pid)?;
    let count = if with_children { 4 } else { 2 };
    let fields = fields.get(11..11 + count)?;
    fields.iter().map(|field| field.parse::<u64>().ok()).sum()
}
