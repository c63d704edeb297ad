//! What this host can enforce, found out by doing it in a process of its own (`gear-shim probe`).

use std::path::Path;

use serde_json::{Map, Value, json};
use tokio::process::Command;
use tokio::time::timeout;

use super::count::Host;
use super::shim::enter_namespaces;
use super::{Ability, confine};
use crate::limits::PROBE_TIMEOUT;

/// The name of the probe on the command line.
pub const PROBE: &str = "probe";

/// What this process can do to itself, as a document. It is of no other use afterwards.
pub fn here() -> Value {
    // Who it is outside of the namespaces, and what can be written inside.
    let is_root = rustix::process::geteuid().is_root();
    let namespaces = enter_namespaces();
    let host = Host { is_root, ..Host::here() };
    let counted = !is_root || (namespaces.is_ok() && host.counts());
    let count =
        if counted { Ok(()) } else { Err("root's processes are not counted on this host".into()) };
    let calls = confine::drop_capabilities();
    let files = calls.and_then(|()| confine::restrict_files(confine::Grounds::default()));
    let calls = confine::restrict_calls(false);
    let mut found = Map::new();
    for (ability, able) in [
        (Ability::Namespaces, namespaces),
        (Ability::ProcessCount, count),
        (Ability::Files, files),
        (Ability::SystemCalls, calls),
    ] {
        let value = able.map_or_else(|error| json!(error.to_string()), |()| json!(true));
        found.insert(ability.as_str().to_owned(), value);
    }
    Value::Object(found)
}

/// What the host cannot enforce, and why.
pub async fn missing(shim: &Path) -> std::io::Result<Vec<(Ability, String)>> {
    let asking = Command::new(shim)
        .arg(super::COMMAND)
        .arg(PROBE)
        .env_clear()
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .output();
    let asked = timeout(PROBE_TIMEOUT, asking).await;
    let asked = asked.map_err(|_| std::io::ErrorKind::TimedOut)??;
    let found: Value = serde_json::from_slice(&asked.stdout)?;
    let why = |ability: &Ability| match found.get(ability.as_str()) {
        Some(Value::Bool(true)) => None,
        Some(Value::String(why)) => Some((*ability, why.clone())),
        Some(_) | None => Some((*ability, "this could not be determined".to_owned())),
    };
    Ok(Ability::ALL.iter().filter_map(why).collect())
}
