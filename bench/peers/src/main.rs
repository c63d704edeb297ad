//! Other job engines doing the work that ours is measured by: so many callers, each of whom hands
//! in a job and waits until its end is kept. One measurement per call, printed as one line of JSON;
//! `cargo xtask bench` calls it between measurements of ours.

mod dbos;
mod effectum;
mod load;
mod restate;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;

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

const USAGE: &str =
    "usage: semel-bench-peers effectum|DBOS|Restate STEPS IN_FLIGHT MS FOLDER [SERVER]";

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [engine, steps, in_flight, ms, folder, server @ ..] = arguments.as_slice() else {
        bail!(USAGE)
    };
    let task = Task {
        steps: steps.parse()?,
        in_flight: in_flight.parse()?,
        round: Duration::from_millis(ms.parse()?),
        folder: PathBuf::from(folder),
        server: server.first().cloned(),
    };
    std::fs::create_dir_all(&task.folder)?;
    let shown = match engine.as_str() {
        "effectum" => effectum::jobs(&task).await?,
        "DBOS" => dbos::jobs(&task).await?,
        "Restate" => restate::jobs(&task).await?,
        _ => bail!(USAGE),
    };
    println!("{}", json!({"per_second": shown.per_second, "latencies_us": shown.latencies_us}));
    // Engines have threads of their own, some of which do not end.
    std::process::exit(0);
}
