//! `cargo xtask powerloss`: the power cuts of `crates/daemon/tests/powerloss`, as many as wanted.

use std::process::ExitCode;

use anyhow::Result;

use crate::repo;
use crate::servers;

/// Unless somebody says otherwise.
pub(crate) const IMAGES: u64 = 20_000;

/// The test prints what it found.
pub(crate) fn run(images: u64, seed: Option<u64>) -> Result<ExitCode> {
    servers::strace()?;
    let test = ["test", "--package", "semel-daemon", "--test", "powerloss", "--", "--nocapture"];
    let mut command = repo::cargo(&test);
    command.env("SEMEL_POWERLOSS_IMAGES", images.to_string());
    command.env("SEMEL_POWERLOSS_SEED", seed.unwrap_or(1).to_string());
    repo::succeed(&mut command)?;
    Ok(ExitCode::SUCCESS)
}
