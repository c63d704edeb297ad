//! `cargo xtask ci`: exactly what CI runs, in order, ending at the first step that fails.

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::{deny, repo, test, tidy};

/// An error carries the name of the step that could not run or did not pass.
pub(crate) fn run() -> Result<ExitCode> {
    step("fmt");
    repo::succeed(&mut repo::cargo(&["fmt", "--all", "--check"])).context("ci: fmt failed")?;

    step("deny");
    let code = deny::run().context("ci: deny failed")?;
    if code != ExitCode::SUCCESS {
        eprintln!("xtask: ci: deny failed");
        return Ok(code);
    }

    step("clippy");
    let clippy = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    repo::succeed(&mut repo::cargo(&clippy)).context("ci: clippy failed")?;

    step("tidy");
    let code = tidy::run().context("ci: tidy failed")?;
    if code != ExitCode::SUCCESS {
        eprintln!("xtask: ci: tidy failed");
        return Ok(code);
    }

    step("test");
    let code = test::run(&[]);
    if code != ExitCode::SUCCESS {
        eprintln!("xtask: ci: test failed");
    }
    Ok(code)
}

fn step(name: &str) {
    eprintln!("ci: {name}");
}
