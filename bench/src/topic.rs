//! A burst to a topic with a thousand subscribers, over real connections: what another member waits
//! for its own accepts meanwhile, and what a delivery costs the broker when all subscribers are
//! connected. The broker has a runtime of its own, so that its processor time can be told from that
//! of the subscribers.

mod burst;
mod daemon;
mod served;

use anyhow::{Context, Result};

use crate::report::{Bar, Rounds, Unit, publish};
use crate::{broker, facts, plan};
use burst::{Crowd, Shown};
pub(crate) use daemon::{Daemon, message, to_member};
use served::Served;
pub(crate) use served::{MESH, keys};

/// What is measured on one store, by the names of its rows.
struct Names {
    offline: &'static str,
    online: &'static str,
    cpu: &'static str,
    deliveries: &'static str,
}

const SQLITE: Names = Names {
    offline: "another's accepts (p99) in a burst to 1,000, SQLite",
    online: "another's accepts (p99) in a burst to 1,000 online, SQLite",
    cpu: "broker's CPU for a delivery to 1,000 online, SQLite",
    deliveries: "deliveries to 1,000 online, SQLite",
};
const POSTGRES: Names = Names {
    offline: "another's accepts (p99) in a burst to 1,000, PostgreSQL",
    online: "another's accepts (p99) in a burst to 1,000 online, PostgreSQL",
    cpu: "broker's CPU for a delivery to 1,000 online, PostgreSQL",
    deliveries: "deliveries to 1,000 online, PostgreSQL",
};
const WANTED_WAIT: &str = "50 ms";
const WANTED_CPU: &str = "6 µs";

const BARS: &[Bar] = &[
    Bar::at_most(SQLITE.offline, 1.0, WANTED_WAIT),
    Bar::at_most(SQLITE.online, 1.0, WANTED_WAIT),
    Bar::at_most(POSTGRES.offline, 1.0, WANTED_WAIT),
    Bar::at_most(POSTGRES.online, 1.0, WANTED_WAIT),
    Bar::at_most(SQLITE.cpu, 1.0, WANTED_CPU),
    Bar::at_most(POSTGRES.cpu, 1.0, WANTED_CPU),
];

/// Runs everything, interleaved.
pub(crate) fn run() -> Result<()> {
    let folder = tempfile::tempdir_in(plan::target())?;
    let server = std::env::var("SEMEL_TEST_POSTGRES")
        .context("SEMEL_TEST_POSTGRES is not set: run `cargo xtask bench`")?;
    let machine = facts::machine(folder.path())?;
    let mut rounds = Rounds::default();
    rounds.wanted(WANTED_WAIT, 50.0);
    rounds.wanted(WANTED_CPU, 6.0);
    for round in 0..plan::rounds() {
        for (crowd, name) in [(Crowd::Away, "away"), (Crowd::Online, "online")] {
            let path = folder.path().join(format!("{name}-{round}.db"));
            let served = Served::start(async || broker::sqlite(&path).await)?;
            shown(&mut rounds, &SQLITE, crowd, &burst::run(served, crowd)?);
            let served = Served::start(async || {
                let address = broker::fresh(&server).await?;
                broker::postgres_at(&address).await
            })?;
            shown(&mut rounds, &POSTGRES, crowd, &burst::run(served, crowd)?);
        }
    }
    publish("topic", &machine, &rounds, BARS)
}

fn shown(rounds: &mut Rounds, names: &Names, crowd: Crowd, shown: &Shown) {
    match crowd {
        Crowd::Away => rounds.value(names.offline, Unit::Ms, shown.others_ms),
        Crowd::Online => {
            rounds.value(names.online, Unit::Ms, shown.others_ms);
            rounds.value(names.cpu, Unit::CpuUs, shown.cpu_us);
            rounds.add(names.deliveries, shown.per_second);
        }
    }
}
