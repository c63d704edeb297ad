//! What this host can enforce, found out by doing it in a process of its own (`gear-shim probe`).

use std::path::Path;

use serde_json::{Map, Value, json};
use tokio::process::Command;
use tokio::time::timeout;

use super::shim::enter_namespaces;
use super::{Ability, confine};
use crate::limits::PROBE_TIMEOUT;

/// The name of the probe on the command line.
pub const PROBE: &str = "probe";

/// What this process can do to itself, as a document. It is of no other use afterwards.
pub fn here() -> Value {
    let is_root = rustix::process::geteuid().is_root();
    let namespaces = enter_namespaces();
    // The number of processes of a namespace is there since Linux 6.14, and not where `/proc/sys`
    // cannot be written.
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split('.').map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let writable = rustix::fs::access("/proc/sys/kernel/pid_max", rustix::fs::Access::WRITE_OK);
    let by_namespace = namespaces.is_ok() && version >= (6, 14) && writable.is_ok();
    let counted = !is_root || by_namespace;
    let count = if counted { Ok(()) } else { Err("root is not counted on this host".into()) };
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
        Some(_) | None => Some((*ability, "it could not be found out".to_owned())),
    };
    Ok(Ability::ALL.iter().filter_map(why).collect())
}
