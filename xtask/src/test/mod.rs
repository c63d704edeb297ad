//! `cargo xtask test`: every test of the repository against private servers, and one last line that
//! says how many passed and failed.

mod count;
mod stream;

use std::process::{Command, ExitCode, Stdio};

use anyhow::Result;

use crate::repo;
use crate::servers::{self, Servers};
use count::Tally;

/// Checks outside cargo, as arguments of `python3`. Each ends with its own `N passed, N failed`.
const PYTHON_CHECKS: &[&[&str]] = &[
    &["conformance/verify.py", "conformance/fingerprint.json"],
    &["conformance/registrar.py", "conformance/registrar.json"],
];

/// The last line of stdout is the count, also when a step could not run.
pub(crate) fn run(runner_args: &[String]) -> ExitCode {
    let tally = all(runner_args).unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        Tally::ONE_FAILURE
    });
    println!("{tally}");
    if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The servers end with this function, so nothing of theirs follows the last line.
fn all(runner_args: &[String]) -> Result<Tally> {
    let python = servers::python()?;
    servers::strace()?;
    // Where it cannot be had, clocks do not step, and the runs that would do it say so.
    let _ = servers::faketime().map_err(|error| eprintln!("xtask: {error:#}"));
    let servers = Servers::start()?;
    let mut tally = cargo_tests(runner_args, &servers);
    for check in PYTHON_CHECKS {
        let mut command = Command::new(&python);
        command.args(*check).env("PYTHONUNBUFFERED", "1").current_dir(repo::root());
        tally += counted(command, &servers, |lines| count::script(lines).or_failure_if_empty());
    }
    Ok(tally)
}

/// nextest does not run documentation tests, plain `cargo test` does.
fn cargo_tests(runner_args: &[String], servers: &Servers) -> Tally {
    if has_nextest() {
        let mut nextest = repo::cargo(&["nextest", "run", "--workspace", "--no-fail-fast"]);
        nextest.args(runner_args);
        let doc = repo::cargo(&["test", "--workspace", "--doc", "--no-fail-fast"]);
        counted(nextest, servers, |lines| count::nextest(lines).or_failure_if_empty())
            + counted(doc, servers, count::cargo_test)
    } else {
        let mut test = repo::cargo(&["test", "--workspace", "--no-fail-fast"]);
        test.args(runner_args);
        counted(test, servers, |lines| count::cargo_test(lines).or_failure_if_empty())
    }
}

fn has_nextest() -> bool {
    let mut command = repo::cargo(&["nextest", "--version"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A step that cannot run is a failure like any other: the steps after it still run.
fn counted(mut command: Command, servers: &Servers, count: impl Fn(&[String]) -> Tally) -> Tally {
    // The program looks at this variable. What passes at a desk passes in CI, and the other way.
    command.env("CI", "true").envs(servers.environment());
    match stream::run(&mut command) {
        Ok((status, lines)) => count(&lines).with_exit(status.success()),
        Err(error) => {
            eprintln!("xtask: {error:#}");
            Tally::ONE_FAILURE
        }
    }
}
