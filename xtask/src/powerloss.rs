//! `cargo xtask powerloss`: the power cuts of the daemon's and the broker's tests, as many as
//! wanted of each.

use std::process::ExitCode;

use anyhow::Result;

use crate::repo;
use crate::servers;

/// Unless somebody says otherwise.
pub(crate) const IMAGES: u64 = 20_000;

const TESTS: [&[&str]; 2] = [
    &["--package", "semel-daemon", "--test", "powerloss", "--"],
    &["--package", "semel-broker", "--test", "it", "--", "powerloss::"],
];

/// The tests print what they found.
pub(crate) fn run(images: u64, seed: Option<u64>) -> Result<ExitCode> {
    servers::strace()?;
    for test in TESTS {
        let mut command = repo::cargo(&[&["test"], test, &["--nocapture"]].concat());
        command.env("SEMEL_POWERLOSS_IMAGES", images.to_string());
        command.env("SEMEL_POWERLOSS_SEED", seed.unwrap_or(1).to_string());
        repo::succeed(&mut command)?;
    }
    Ok(ExitCode::SUCCESS)
}
