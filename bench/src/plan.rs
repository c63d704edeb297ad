//! How often and how long everything is measured, and where it is written.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// Three rounds, of which the middle one counts.
const ROUNDS: usize = 3;
const ROUND: Duration = Duration::from_millis(1500);
const ROUND_QUICK: Duration = Duration::from_millis(300);

/// What the command line has asked for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Plan {
    /// One short round: shows that everything runs, and nothing else.
    pub(crate) quick: bool,
    /// Also what takes many minutes.
    pub(crate) long: bool,
}

static PLAN: OnceLock<Plan> = OnceLock::new();

/// Once, before anything is measured.
pub(crate) fn set(plan: Plan) {
    let _ = PLAN.set(plan);
}

pub(crate) fn get() -> Plan {
    PLAN.get().copied().unwrap_or_default()
}

pub(crate) fn rounds() -> usize {
    if get().quick { 1 } else { ROUNDS }
}

/// How long one side of a comparison runs before the other has its turn.
pub(crate) fn round() -> Duration {
    if get().quick { ROUND_QUICK } else { ROUND }
}

/// A hundredth of it when nobody wants to wait.
pub(crate) fn amount(whole: usize) -> usize {
    if get().quick { whole / 100 } else { whole }
}

/// Everything is measured on the disk that holds the repository.
pub(crate) fn target() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join("target")
}

/// What was measured in haste is not kept beside the rest.
pub(crate) fn results() -> PathBuf {
    if get().quick {
        target().join("bench")
    } else {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("results")
    }
}
