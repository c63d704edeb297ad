//! The peers: other programs that promise something alike, in the same run on the same disk, synced
//! for every answer as ours are. `cargo xtask bench` finds or fetches them and names them in a
//! file.

pub(crate) mod engines;
pub(crate) mod nats;
pub(crate) mod rabbit;
pub(crate) mod redis;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};

/// The variable that names the file.
const FOUND: &str = "SEMEL_BENCH_PEERS";

fn found() -> Result<Map<String, Value>> {
    let file = std::env::var_os(FOUND)
        .with_context(|| format!("{FOUND} is not set: run `cargo xtask bench`"))?;
    Ok(serde_json::from_slice(&std::fs::read(file)?)?)
}

/// The versions of those that are there.
pub(crate) fn versions() -> Map<String, Value> {
    let all = found().unwrap_or_default().into_iter();
    all.filter_map(|(peer, entry)| Some((peer, entry.get("version")?.clone()))).collect()
}

/// The program of a peer, or why there is none.
pub(crate) fn program(peer: &str) -> Result<PathBuf> {
    let found = found()?;
    let entry = found.get(peer).with_context(|| format!("{FOUND} does not name it"))?;
    if let Some(why) = entry.get("missing").and_then(Value::as_str) {
        bail!("{why}");
    }
    let program = entry.get("program").and_then(Value::as_str).context("a program")?;
    Ok(PathBuf::from(program))
}
