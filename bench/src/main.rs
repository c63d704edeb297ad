//! Benchmarks: ours and what they are compared with, interleaved in one run on one disk, reported
//! as ratios. `cargo xtask bench` calls it.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark prints, and reads the clock to measure"
)]

mod broker;
mod daemon;
mod facts;
mod jobs;
mod nats;
mod registrar;
mod report;
mod store;

use anyhow::{Result, bail};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => store::run()
            .and_then(|()| broker::run())
            .and_then(|()| daemon::run())
            .and_then(|()| registrar::run())
            .and_then(|()| jobs::run()),
        ["store"] => store::run(),
        ["broker"] => broker::run(),
        ["broker", "smoke"] => broker::smoke(),
        ["daemon"] => daemon::run(),
        ["registrar"] => registrar::run(),
        ["jobs"] => jobs::run(),
        other => {
            let known = "store, broker, broker smoke, daemon, registrar, jobs";
            bail!("there is no benchmark {other:?}; there are: {known}")
        }
    }
}
