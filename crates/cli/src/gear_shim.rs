//! `semel gear-shim`: the stages of the sandbox. The engine runs it, people do not.

use semel_jobs::gear::sandbox::probe::{self, PROBE};
use semel_jobs::gear::sandbox::shim::{self, FAILED, Stage};

use crate::print;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Which stage
    stage: String,
}

/// Comes back with the code to end with: the gear's own, or that something is wrong here.
pub(crate) fn run(arguments: &Arguments) -> i32 {
    if arguments.stage == PROBE {
        let printed = print(&format!("{}\n", probe::here()));
        return if printed.is_ok() { 0 } else { FAILED };
    }
    Stage::parse(&arguments.stage).map_or(FAILED, shim::run)
}
