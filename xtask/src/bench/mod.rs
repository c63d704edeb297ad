//! `cargo xtask bench`: the benchmarks, with the same private servers as the tests and with peers
//! that are fetched where they are missing; then the page of all figures, a picture and the
//! README's lines.

mod page;
mod peers;
mod picture;
mod results;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::repo;
use crate::servers::Servers;
use results::Results;

/// Where the picture is, relative to the root.
pub(crate) const PICTURE: &str = "docs/bench.svg";
/// Where all figures are.
pub(crate) const PAGE: &str = "docs/performance.md";
/// Where some are.
pub(crate) const README: &str = "README.md";

const QUICK: &str = "--quick";
/// What may be said besides names.
pub(crate) const OPTIONS: [&str; 2] = [QUICK, "--long"];

/// Without names everything is measured. `--quick` measures for a moment only and keeps nothing,
/// `--long` also what takes many minutes.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    let is_quick = args.iter().any(|arg| arg == QUICK);
    let names: Vec<&str> =
        args.iter().map(String::as_str).filter(|arg| !arg.starts_with("--")).collect();
    let found = peers::find(&names)?;
    let servers = Servers::start()?;
    // The product is measured as a program, too, and is the sandbox of gears.
    repo::succeed(&mut repo::cargo(&["build", "--release", "-p", "semel", "-p", "semel-bench"]))?;
    // Not by `cargo run`, which would build the other half of the two once more.
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| repo::root().join("target"));
    let mut command = Command::new(target.join("release").join("semel-bench"));
    command.current_dir(repo::root());
    command.args(args);
    command.envs(servers.environment()).env("SEMEL_BENCH_PEERS", found);
    repo::succeed(&mut command)?;
    drop(servers);
    show(is_quick)?;
    Ok(ExitCode::SUCCESS)
}

fn show(is_quick: bool) -> Result<()> {
    let folder = if is_quick { quick_folder() } else { results_folder() };
    let results = Results::read(&folder)?;
    println!("{}", page::text(&results));
    let (file, text) = if is_quick {
        (folder.join("bench.svg"), picture::draw(&results))
    } else {
        (repo::root().join(PICTURE), picture::draw(&results))
    };
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    println!("the picture: {}", file.display());
    if !is_quick {
        fs::write(repo::root().join(PAGE), generate_page()?)?;
        fs::write(repo::root().join(README), generate_readme()?)?;
    }
    Ok(())
}

fn results_folder() -> PathBuf {
    repo::root().join("bench").join("results")
}

/// What was measured in haste.
fn quick_folder() -> PathBuf {
    repo::root().join("target").join("bench")
}

/// The picture of the results that are kept.
pub(crate) fn generate_picture() -> Result<String> {
    Ok(picture::draw(&Results::read(&results_folder())?))
}

/// The page of all figures as the results that are kept have it.
pub(crate) fn generate_page() -> Result<String> {
    let page = fs::read_to_string(repo::root().join(PAGE))?;
    page::into_page(&page, &Results::read(&results_folder())?)
}

/// The README with its section as the results that are kept have it.
pub(crate) fn generate_readme() -> Result<String> {
    let readme = fs::read_to_string(repo::root().join(README))?;
    page::into_readme(&readme, &Results::read(&results_folder())?)
}
