//! sqlxmq doing the work that our job engine is measured by: a program of its own, called as that
//! of the other engines is.

#[path = "../../src/load.rs"]
mod load;
mod sqlxmq;
#[path = "../../src/task.rs"]
mod task;

use anyhow::{Result, ensure};

const USAGE: &str = "usage: semel-bench-sqlxmq sqlxmq STEPS IN_FLIGHT MS FOLDER SERVER";

#[tokio::main]
async fn main() -> Result<()> {
    let (engine, task) = task::read(USAGE)?;
    ensure!(engine == "sqlxmq", USAGE);
    task::say(&sqlxmq::jobs(&task).await?);
    // Engines have threads of their own, some of which do not end.
    std::process::exit(0);
}
