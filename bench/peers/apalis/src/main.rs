//! apalis doing the work that our job engine is measured by: a program of its own, called as that
//! of the other engines is.

mod apalis;
#[path = "../../src/load.rs"]
mod load;
#[path = "../../src/task.rs"]
mod task;

use anyhow::{Result, ensure};

const USAGE: &str = "usage: semel-bench-apalis apalis STEPS IN_FLIGHT MS FOLDER";

#[tokio::main]
async fn main() -> Result<()> {
    let (engine, task) = task::read(USAGE)?;
    ensure!(engine == "apalis" && task.server().is_err(), USAGE);
    task::say(&apalis::jobs(&task).await?);
    // Engines have threads of their own, some of which do not end.
    std::process::exit(0);
}
