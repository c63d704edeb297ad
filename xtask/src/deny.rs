//! What may be in the dependency graph: licences, banned crates, where packages come from. The
//! rules are `deny.toml`, in cargo-deny's format; decision 050 says why they are held here.
//!
//! `check` is a pure function of the rules and the graph. The graph is what `cargo tree` says is
//! built: `cargo metadata` also names crates that no chosen feature turns on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use spdx::{Expression, Licensee, ParseMode};

use crate::repo;

const REGISTRY: &str = "registry+";

/// The part of cargo-deny's format that is held; another key is refused, not overlooked.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    graph: Graph,
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Graph {
    targets: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Bans {
    wildcards: Denied,
    /// Our own crates name each other by path, without a version.
    allow_wildcard_paths: bool,
    deny: Vec<Ban>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Ban {
    #[serde(rename = "crate")]
    name: String,
    #[serde(default)]
    deny_multiple_versions: bool,
    reason: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Sources {
    unknown_registry: Denied,
    unknown_git: Denied,
}

/// The only level that is held: a rule that warns is no rule.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Denied {
    Deny,
}

/// A package that is built.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
    license: String,
}

/// Prints what is not allowed; failure is one finding or more.
pub(crate) fn run() -> Result<ExitCode> {
    let rules = rules()?;
    let mut packages = BTreeSet::new();
    for target in &rules.graph.targets {
        packages.extend(read_tree(&tree(target)?)?);
    }
    let lock = fs::read_to_string(repo::root().join("Cargo.lock")).context("Cargo.lock")?;
    let manifest = fs::read_to_string(repo::root().join("Cargo.toml")).context("Cargo.toml")?;
    let found = check(&rules, &packages, &lock, &manifest)?;
    for finding in &found {
        println!("{finding}");
    }
    println!("deny: {} packages, {} not allowed", packages.len(), found.len());
    Ok(if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn rules() -> Result<Rules> {
    let text = fs::read_to_string(repo::root().join("deny.toml")).context("deny.toml")?;
    toml::from_str(&text).context("deny.toml")
}

/// What is built for one target, tests and build scripts included.
fn tree(target: &str) -> Result<String> {
    let args = ["tree", "--workspace", "--locked", "--target", target];
    let mut command = repo::cargo(&args);
    command.args(["--edges", "normal,build,dev", "--prefix", "none", "--format", "{p}\t{l}"]);
    let output =
        command.output().with_context(|| format!("cannot run {}", repo::line(&command)))?;
    let problem = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}", repo::line(&command), problem.trim());
    String::from_utf8(output.stdout).context("cargo tree")
}

/// Lines of `name vVERSION (more)\tLICENSE (*)`.
fn read_tree(text: &str) -> Result<BTreeSet<Package>> {
    let lines = text.lines().filter(|line| !line.is_empty());
    let package = |line: &str| {
        let (package, license) = line.split_once('\t')?;
        let (name, rest) = package.split_once(' ')?;
        let version = rest.split(' ').next()?.strip_prefix('v')?;
        let license = license.trim_end_matches(" (*)").trim();
        let [name, version, license] = [name, version, license].map(str::to_owned);
        Some(Package { name, version, license })
    };
    lines.map(|line| package(line).with_context(|| format!("cargo tree said {line:?}"))).collect()
}

fn check(
    rules: &Rules,
    packages: &BTreeSet<Package>,
    lock: &str,
    manifest: &str,
) -> Result<Vec<String>> {
    let mut found = Vec::new();
    licenses(&rules.licenses, packages, &mut found)?;
    bans(&rules.bans, packages, &mut found);
    wildcards(&rules.bans, manifest, &mut found)?;
    sources(&rules.sources, lock, &mut found)?;
    Ok(found)
}

fn licenses(rules: &Licenses, packages: &BTreeSet<Package>, found: &mut Vec<String>) -> Result<()> {
    let read = |name: &String| Licensee::parse(name).with_context(|| format!("license {name}"));
    let allowed = rules.allow.iter().map(read).collect::<Result<Vec<_>>>()?;
    for Package { name, version, license } in packages {
        // Older packages write a stroke for OR.
        let is_allowed = Expression::parse_mode(license, ParseMode::LAX).is_ok_and(|expression| {
            expression.evaluate(|wanted| allowed.iter().any(|has| has.satisfies(wanted)))
        });
        if !is_allowed {
            found.push(format!("{name} {version}: license {license:?} is not allowed"));
        }
    }
    Ok(())
}

fn bans(rules: &Bans, packages: &BTreeSet<Package>, found: &mut Vec<String>) {
    for Ban { name, deny_multiple_versions, reason } in &rules.deny {
        let versions: BTreeSet<&str> = packages
            .iter()
            .filter(|package| package.name == *name)
            .map(|package| package.version.as_str())
            .collect();
        let most = usize::from(*deny_multiple_versions);
        if versions.len() > most {
            let versions = versions.into_iter().collect::<Vec<_>>().join(", ");
            found.push(format!("{name} {versions}: banned: {reason}"));
        }
    }
}

/// All versions stand in the workspace's manifest.
fn wildcards(rules: &Bans, manifest: &str, found: &mut Vec<String>) -> Result<()> {
    let Denied::Deny = rules.wildcards;
    let manifest: toml::Table = toml::from_str(manifest).context("Cargo.toml")?;
    let dependencies = manifest
        .get("workspace")
        .and_then(|workspace| workspace.get("dependencies")?.as_table())
        .context("Cargo.toml has no workspace.dependencies")?;
    for (name, wanted) in dependencies {
        let is_ours = rules.allow_wildcard_paths && wanted.get("path").is_some();
        let version = wanted.as_str().or_else(|| wanted.get("version")?.as_str());
        if !is_ours && version.is_none_or(|version| version.contains('*')) {
            found.push(format!("{name}: any version is taken"));
        }
    }
    Ok(())
}

/// One registry, and nothing from a repository.
fn sources(rules: &Sources, lock: &str, found: &mut Vec<String>) -> Result<()> {
    let Sources { unknown_registry: Denied::Deny, unknown_git: Denied::Deny } = rules;
    let lock: toml::Table = toml::from_str(lock).context("Cargo.lock")?;
    let packages = lock.get("package").and_then(toml::Value::as_array).context("Cargo.lock")?;
    let mut registries: BTreeMap<&str, &str> = BTreeMap::new();
    for package in packages {
        let text = |key: &str| package.get(key).and_then(toml::Value::as_str);
        let name = text("name").unwrap_or_default();
        match text("source") {
            None => {}
            Some(source) if source.starts_with(REGISTRY) => {
                registries.entry(source).or_insert(name);
                if text("checksum").is_none() {
                    found.push(format!("{name}: Cargo.lock has no checksum of it"));
                }
            }
            Some(source) => found.push(format!("{name}: comes from {source}")),
        }
    }
    if registries.len() > 1 {
        let named: Vec<_> =
            registries.iter().map(|(from, name)| format!("{name} ({from})")).collect();
        found.push(format!("more than one registry: {}", named.join(", ")));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
