//! Benchmarks: ours and what they are compared with, interleaved in one run on one disk, reported
//! as ratios. `cargo xtask bench` calls it.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark prints, and reads the clock to measure"
)]

mod broker;
mod crowd;
mod daemon;
mod facts;
mod growth;
mod jobs;
mod peers;
mod plan;
mod program;
mod registrar;
mod report;
mod store;
mod topic;

use anyhow::{Context, Result};

type Part = (&'static str, fn() -> Result<()>);

const PARTS: &[Part] = &[
    ("store", store::run),
    ("broker", broker::run),
    ("topic", topic::run),
    ("crowd", crowd::run),
    ("daemon", daemon::run),
    ("registrar", registrar::run),
    ("jobs", jobs::run),
    ("program", program::run),
    ("growth", growth::run),
];

fn main() -> Result<()> {
    let mut wanted = plan::Plan::default();
    let mut names = Vec::new();
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--quick" => wanted.quick = true,
            "--long" => wanted.long = true,
            _ => names.push(argument),
        }
    }
    plan::set(wanted);
    if names.is_empty() {
        return PARTS.iter().try_for_each(|(_, run)| run());
    }
    let part = |name: &String| {
        let known = || PARTS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let found = PARTS.iter().find(|(part, _)| part == name);
        found.with_context(|| format!("there is no benchmark {name:?}; there are: {}", known()))
    };
    let parts = names.iter().map(part).collect::<Result<Vec<_>>>()?;
    parts.into_iter().try_for_each(|(_, run)| run())
}
