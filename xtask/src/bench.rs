//! `cargo xtask bench`: the benchmarks, with the same private servers as the tests.

use std::process::ExitCode;

use anyhow::Result;

use crate::repo;
use crate::servers::Servers;

/// `args` go to the benchmark program untouched.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    let servers = Servers::start()?;
    let mut command = repo::cargo(&["run", "--release", "--package", "semel-bench", "--"]);
    command.args(args).envs(servers.environment());
    repo::succeed(&mut command)?;
    Ok(ExitCode::SUCCESS)
}
