//! Other job engines doing the work that ours is measured by: so many callers, each of whom hands
//! in a job and waits until its end is kept. One measurement per call, printed as one line of JSON;
//! `cargo xtask bench` calls it between measurements of ours.

mod dbos;
mod effectum;
mod load;
mod restate;
mod task;

use anyhow::{Result, bail};

const USAGE: &str =
    "usage: semel-bench-peers effectum|DBOS|Restate STEPS IN_FLIGHT MS FOLDER [SERVER]";

#[tokio::main]
async fn main() -> Result<()> {
    let (engine, task) = task::read(USAGE)?;
    let shown = match engine.as_str() {
        "effectum" => effectum::jobs(&task).await?,
        "DBOS" => dbos::jobs(&task).await?,
        "Restate" => restate::jobs(&task).await?,
        _ => bail!(USAGE),
    };
    task::say(&shown);
    // Engines have threads of their own, some of which do not end.
    std::process::exit(0);
}
