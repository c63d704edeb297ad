//! What is to be measured, as `cargo xtask bench` says it, and what came of it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::load::Shown;

/// What is to be measured.
pub(crate) struct Task {
    pub(crate) steps: usize,
    pub(crate) in_flight: usize,
    pub(crate) round: Duration,
    /// Empty, on the disk that is measured.
    pub(crate) folder: PathBuf,
    /// A database's address or a server's program, for engines that need one.
    pub(crate) server: Option<String>,
}

impl Task {
    pub(crate) fn server(&self) -> Result<&str> {
        self.server.as_deref().context("this engine needs a server")
    }
}

/// The engine's name, and its task.
pub(crate) fn read(usage: &'static str) -> Result<(String, Task)> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [engine, steps, in_flight, ms, folder, server @ ..] = arguments.as_slice() else {
        bail!(usage)
    };
    let task = Task {
        steps: steps.parse()?,
        in_flight: in_flight.parse()?,
        round: Duration::from_millis(ms.parse()?),
        folder: PathBuf::from(folder),
        server: server.first().cloned(),
    };
    std::fs::create_dir_all(&task.folder)?;
    Ok((engine.clone(), task))
}

/// One line of JSON.
pub(crate) fn say(shown: &Shown) {
    println!("{}", json!({"per_second": shown.per_second, "latencies_us": shown.latencies_us}));
}
