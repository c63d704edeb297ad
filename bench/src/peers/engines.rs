//! Other job engines, which bring drivers of their own: a program in `bench/peers` runs one
//! measurement of one of them and prints it as a line of JSON.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::program;
use crate::plan;
use crate::report::Measured;

/// So many callers with one job each, of so many steps. `server` is a database's address or a
/// server's program.
pub(crate) fn jobs(
    engine: &str,
    steps: usize,
    callers: usize,
    folder: &Path,
    server: Option<&str>,
) -> Result<Measured> {
    let mut command = driver(engine)?;
    let ms = plan::round().as_millis().to_string();
    command.args([engine, &steps.to_string(), &callers.to_string(), &ms]).arg(folder);
    // What it says last is the reason of a failure, not a backtrace.
    command.args(server).stdin(Stdio::null()).env("RUST_BACKTRACE", "0");
    let output = command.output().context("bench/peers does not start")?;
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no reason given");
    ensure!(output.status.success(), "{last}");
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().rfind(|line| line.starts_with('{')).context("it says nothing")?;
    let shown: Value = serde_json::from_str(line)?;
    let latencies = shown["latencies_us"].as_array().context("latencies")?.iter();
    let micros = |us: &Value| us.as_u64().and_then(|us| u32::try_from(us).ok());
    Ok(Measured {
        per_second: shown["per_second"].as_f64().context("a rate")?,
        latencies: latencies.filter_map(micros).collect(),
    })
}

/// Who runs the engine.
fn driver(engine: &str) -> Result<Command> {
    match engine {
        // They cannot be linked together with the others.
        "sqlxmq" | "apalis" => Ok(Command::new(program(engine)?)),
        // Its client that comes from a registry as compiled code is one for Python.
        "Temporal" => {
            let mut python = Command::new("python3");
            python.arg(script("temporal.py"));
            Ok(python)
        }
        // It is written for Node; what is named as its program is the folder of its packages.
        "graphile-worker" => {
            let mut node = Command::new("node");
            node.arg(script("graphile.cjs")).env("NODE_PATH", program(engine)?);
            Ok(node)
        }
        _ => Ok(Command::new(program("engines")?)),
    }
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name)
}
