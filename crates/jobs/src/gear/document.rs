//! `gear.toml`: a gear's manifest as its author writes it. Strict: what is not known is refused.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::grants::{Grants, is_pattern};
use super::groups::{Controller, Unused};
use super::manifest::{Action, Manifest, Recovery, Risk};
use super::sandbox::Limits;
use super::sandbox::count::Processes;
use super::schema::{Budget, Schema};
use crate::limits::{
    GEAR_ACTIONS_MAX, GEAR_NAMES_MAX, MANIFEST_BYTES_MAX, NAME_BYTES_MAX, STEP_TIMEOUT,
    STEP_TIMEOUT_MAX,
};

/// The file's name.
pub const FILE: &str = "gear.toml";

/// What stands for the package's folder in a command.
pub const PACKAGE: &str = "{package}";

/// A gear as its author describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// What plans and people see.
    pub manifest: Manifest,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Whether one process may serve several executions.
    pub warm: bool,
    /// What it may do.
    pub permissions: Permissions,
    /// What it may use.
    pub limits: Limits,
}

/// What a gear may do beyond its workspace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Permissions {
    /// Files and folders to read.
    pub read: Vec<PathBuf>,
    /// Files and folders to write.
    pub write: Vec<PathBuf>,
    /// Hosts to reach.
    pub network: Vec<String>,
    /// Hosts to reach although their addresses are not public.
    pub private_network: Vec<String>,
    /// Secrets to know.
    pub secrets: Vec<String>,
    /// Variables of the engine to see.
    pub environment: Vec<String>,
    /// What it may have done by jobs of its own.
    pub grants: Grants,
}

/// Why a manifest is no manifest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("gear.toml: {0}")]
pub struct Invalid(String);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    id: String,
    version: String,
    command: Vec<String>,
    #[serde(default)]
    warm: bool,
    actions: BTreeMap<String, RawAction>,
    #[serde(default)]
    permissions: RawPermissions,
    #[serde(default)]
    limits: RawLimits,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawAction {
    #[serde(default)]
    about: String,
    params: Option<Value>,
    result: Option<Value>,
    risk: Option<String>,
    #[serde(default)]
    effect: bool,
    recovery: Option<String>,
    timeout_ms: Option<u64>,
    #[serde(default)]
    always_asks: bool,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct RawPermissions {
    read: Vec<String>,
    write: Vec<String>,
    network: Vec<String>,
    private_network: Vec<String>,
    secrets: Vec<String>,
    environment: Vec<String>,
    sub_jobs: Vec<String>,
    publish: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct RawLimits {
    memory_mb: Option<u64>,
    cpu_s: Option<u64>,
    processes: Option<u64>,
    file_mb: Option<u64>,
    disk_mb: Option<u64>,
    open_files: Option<u64>,
}

impl Document {
    /// Reads a manifest.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        if text.len() > MANIFEST_BYTES_MAX {
            return Err(Invalid(format!("it has more than {MANIFEST_BYTES_MAX} bytes")));
        }
        let raw: Raw = toml::from_str(text).map_err(|error| Invalid(error.to_string()))?;
        let id = name("id", raw.id, |byte| byte == b'-')?;
        let version = short("version", raw.version)?;
        if raw.actions.is_empty() || raw.actions.len() > GEAR_ACTIONS_MAX {
            return Err(Invalid(format!("actions: 1 to {GEAR_ACTIONS_MAX}")));
        }
        let (mut actions, mut budget) = (BTreeMap::new(), Budget::default());
        for (action_name, raw) in raw.actions {
            let action_name = name("action", action_name, |byte| b"-_".contains(&byte))?;
            let action = action(&action_name, raw, &mut budget)?;
            actions.insert(action_name, action);
        }
        Ok(Self {
            manifest: Manifest { id, version, actions },
            command: command(raw.command)?,
            warm: raw.warm,
            permissions: permissions(raw.permissions)?,
            limits: limits(&raw.limits)?,
        })
    }

    /// What an operator agrees to when this is installed, in sentences; with what the host's
    /// control groups have to do with it.
    pub fn asks_for(&self, groups: &Result<Vec<Controller>, Unused>) -> Vec<String> {
        let permissions = &self.permissions;
        let mut asks = Vec::new();
        let mut ask = |what: &str, which: String| {
            if !which.is_empty() {
                asks.push(format!("{what} {which}"));
            }
        };
        ask("read files:", shown(&permissions.read));
        ask("write files:", shown(&permissions.write));
        ask("reach hosts:", permissions.network.join(", "));
        ask("reach hosts that are not public:", permissions.private_network.join(", "));
        ask("know secrets:", permissions.secrets.join(", "));
        ask("see variables:", permissions.environment.join(", "));
        let Grants { sub_jobs, publish } = &permissions.grants;
        let all = |list: &[String], everything: &str| match list.iter().any(|item| item == "*") {
            true => everything.to_owned(),
            false => list.join(", "),
        };
        ask("have these actions done in your name:", all(sub_jobs, "every action of every gear"));
        ask("send messages in your name to:", all(publish, "everybody"));
        asks.push(self.uses(groups));
        asks
    }

    /// What it may use of the host.
    fn uses(&self, groups: &Result<Vec<Controller>, Unused>) -> String {
        let Limits { memory_bytes, cpu_s, processes, file_bytes, disk_bytes, open_files } =
            &self.limits;
        let (memory_mb, file_mb, disk_mb) =
            (memory_bytes >> 20, file_bytes >> 20, disk_bytes >> 20);
        let kept = if self.warm { ", and stay for the steps of other jobs" } else { "" };
        let processes = Processes::of(*processes, groups);
        // What it writes there is the operator's, and nobody counts it.
        let others = match shown(&self.permissions.write) {
            folders if folders.is_empty() => folders,
            folders => format!(", and in {folders} as many of these as there is room for"),
        };
        format!(
            "run {processes}, each with {memory_mb} MB of memory, {cpu_s} s of processor and \
             {open_files} open files, and write {disk_mb} MB in files of {file_mb} \
             MB{others}{kept}"
        )
    }

    /// Whether it may reach any host.
    pub fn has_network(&self) -> bool {
        !(self.permissions.network.is_empty() && self.permissions.private_network.is_empty())
    }
}

fn shown(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Lower-case letters and digits, and `other` between them.
fn name(what: &str, text: String, other: impl Fn(u8) -> bool) -> Result<String, Invalid> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    let ends = bytes.first().is_some_and(|byte| plain(*byte))
        && bytes.last().is_some_and(|byte| plain(*byte));
    if ends && bytes.len() <= 64 && bytes.iter().all(|byte| plain(*byte) || other(*byte)) {
        return Ok(text);
    }
    Err(Invalid(format!("{what} {text:?}: 1 to 64 lower-case letters, digits and hyphens")))
}

fn short(what: &str, text: String) -> Result<String, Invalid> {
    let fine = !text.is_empty() && text.len() <= 64 && text.bytes().all(|b| b.is_ascii_graphic());
    if fine { Ok(text) } else { Err(Invalid(format!("{what}: 1 to 64 printable characters"))) }
}

fn action(name: &str, raw: RawAction, budget: &mut Budget) -> Result<Action, Invalid> {
    let invalid = |text: &str| Invalid(format!("action {name}: {text}"));
    let risk = match raw.risk {
        None => Risk::Medium,
        Some(risk) => {
            Risk::parse(&risk).ok_or_else(|| invalid("risk: low, medium, high or critical"))?
        }
    };
    // What has no effect may be run again. A risk is an effect, whatever the manifest forgets.
    let harmless = !raw.effect && risk == Risk::Low;
    let recovery = match raw.recovery {
        None if harmless => Recovery::Idempotent,
        None => Recovery::Ask,
        Some(recovery) => Recovery::parse(&recovery)
            .ok_or_else(|| invalid("recovery: idempotent, resolve or ask"))?,
    };
    let timeout = raw.timeout_ms.map_or(STEP_TIMEOUT, Duration::from_millis);
    if timeout.is_zero() || timeout > STEP_TIMEOUT_MAX {
        return Err(invalid(&format!("timeout_ms: 1 to {}", STEP_TIMEOUT_MAX.as_millis())));
    }
    let params = raw.params.unwrap_or_else(|| json!({"type": "object"}));
    for (which, schema) in [("params", Some(&params)), ("result", raw.result.as_ref())] {
        let checked = schema.map(|schema| Schema::read(schema, budget));
        if let Some(Err(error)) = checked {
            return Err(invalid(&format!("{which} is not a JSON Schema: {error}")));
        }
    }
    Ok(Action {
        about: raw.about,
        params,
        result: raw.result,
        risk,
        recovery,
        timeout,
        always_asks: raw.always_asks,
    })
}

fn command(command: Vec<String>) -> Result<Vec<String>, Invalid> {
    let program = command.first().map(String::as_str).unwrap_or_default();
    let inside = program.strip_prefix(PACKAGE).and_then(|rest| rest.strip_prefix('/'));
    let fine = match inside {
        Some(path) => is_plain(Path::new(path)),
        None => program.starts_with('/') || (!program.is_empty() && !program.contains('/')),
    };
    let whole = command.len() <= GEAR_NAMES_MAX && command.iter().all(|part| !part.contains('\0'));
    if fine && whole {
        return Ok(command);
    }
    let text = "command: a file of the package ({package}/…), a full path, or a program's name";
    Err(Invalid(text.to_owned()))
}

/// Whether a path leads down, and only down.
pub(crate) fn is_plain(path: &Path) -> bool {
    path.components().next().is_some()
        && path.components().all(|part| matches!(part, Component::Normal(_)))
}

fn permissions(raw: RawPermissions) -> Result<Permissions, Invalid> {
    let lists = [
        &raw.read,
        &raw.write,
        &raw.network,
        &raw.private_network,
        &raw.secrets,
        &raw.environment,
        &raw.sub_jobs,
        &raw.publish,
    ];
    if lists.iter().any(|list| list.len() > GEAR_NAMES_MAX) {
        return Err(Invalid(format!("permissions: at most {GEAR_NAMES_MAX} of a kind")));
    }
    for host in raw.network.iter().chain(&raw.private_network) {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
        let name = host.strip_prefix("*.").unwrap_or(host);
        if name.is_empty() || name.len() > 255 || !name.bytes().all(plain) {
            return Err(Invalid(format!("{host:?}: a host, host:port, or *.domain")));
        }
    }
    for secret in &raw.secrets {
        super::secrets::SecretName::parse(secret).map_err(Invalid)?;
    }
    for variable in &raw.environment {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let ours = ["LD_", "SEMEL", "DYLD_", "GCONV"].iter().any(|own| variable.starts_with(own));
        if variable.is_empty() || ours || !variable.bytes().all(plain) {
            return Err(Invalid(format!("{variable:?}: not a variable that a gear may see")));
        }
    }
    for pattern in &raw.sub_jobs {
        if !is_pattern(pattern) {
            return Err(Invalid(format!("{pattern:?}: gear.action, gear.* or *")));
        }
    }
    for receiver in &raw.publish {
        let is_receiver = receiver == "*" || receiver.starts_with(['#', '@']) || is_key(receiver);
        if !is_receiver || receiver.len() > NAME_BYTES_MAX || receiver.contains(char::is_control) {
            return Err(Invalid(format!("{receiver:?}: #topic, @name, a member's key or *")));
        }
    }
    let (read, write) = (paths(&raw.read)?, paths(&raw.write)?);
    apart(&read, &write)?;
    Ok(Permissions {
        read,
        write,
        network: raw.network,
        private_network: raw.private_network,
        secrets: raw.secrets,
        environment: raw.environment,
        grants: Grants { sub_jobs: raw.sub_jobs, publish: raw.publish },
    })
}

/// The key of a member, in hexadecimal digits.
fn is_key(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn paths(globs: &[String]) -> Result<Vec<PathBuf>, Invalid> {
    globs.iter().map(|glob| path_of(glob)).collect()
}

/// What lies in a folder that the gear may write to is in its hand: it needs no other permission,
/// and a path in there is whatever the gear makes of it.
fn apart(read: &[PathBuf], write: &[PathBuf]) -> Result<(), Invalid> {
    for (at, folder) in write.iter().enumerate() {
        let others = write.iter().enumerate().filter(|(other, _)| *other != at);
        let mut others = others.map(|(_, path)| path).chain(read);
        if let Some(path) = others.find(|path| path.starts_with(folder)) {
            let (path, folder) = (path.display(), folder.display());
            return Err(Invalid(format!("{path} lies in {folder}, which it may write to")));
        }
    }
    Ok(())
}

/// `/folder/**` is the folder and what is in it, `/file` is the file. Other patterns could not be
/// enforced by the kernel, and are refused for that.
fn path_of(glob: &str) -> Result<PathBuf, Invalid> {
    let path = glob.strip_suffix("/**").unwrap_or(glob);
    let rest = path.strip_prefix('/').map(Path::new);
    let fine = rest.is_some_and(is_plain) && !path.contains(['*', '?', '[', '\0']);
    match fine {
        true => Ok(PathBuf::from(path)),
        false => Err(Invalid(format!("{glob:?}: /a/full/path or /a/folder/**"))),
    }
}

fn limits(raw: &RawLimits) -> Result<Limits, Invalid> {
    let within = |what: &str, value: Option<u64>, default: u64, most: u64| {
        let value = value.unwrap_or(default);
        match (1..=most).contains(&value) {
            true => Ok(value),
            false => Err(Invalid(format!("limits.{what}: 1 to {most}"))),
        }
    };
    let usual = Limits::default();
    let memory_mb = usual.memory_bytes >> 20;
    let file_mb = usual.file_bytes >> 20;
    let disk_mb = usual.disk_bytes >> 20;
    Ok(Limits {
        memory_bytes: within("memory_mb", raw.memory_mb, memory_mb, 1 << 20)? << 20,
        cpu_s: within("cpu_s", raw.cpu_s, usual.cpu_s, 86_400)?,
        processes: within("processes", raw.processes, usual.processes, 4096)?,
        file_bytes: within("file_mb", raw.file_mb, file_mb, 1 << 20)? << 20,
        disk_bytes: within("disk_mb", raw.disk_mb, disk_mb, 1 << 20)? << 20,
        open_files: within("open_files", raw.open_files, usual.open_files, 65_536)?,
    })
}

#[cfg(test)]
mod tests;
