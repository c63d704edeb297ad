//! What programs do while there is nothing to do: wake-ups of one process that has everything, and
//! commits of brokers and engines that share a database.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio_postgres::NoTls;

use super::Running;
use crate::broker::fresh;
use crate::plan;
use crate::report::{Bar, Rounds, Unit};

const WAKE_UPS: &str = "idle `semel up`, wake-ups";
const WAKE_UPS_MAX: &str = "10 wake-ups a second";
const COMMITS: &str = "two idle brokers and two idle engines, commits on PostgreSQL";
const COMMITS_MAX: &str = "2 commits a second";

pub(super) const BARS: [Bar; 2] =
    [Bar::at_most(WAKE_UPS, 1.0, WAKE_UPS_MAX), Bar::at_most(COMMITS, 1.0, COMMITS_MAX)];

/// Until a start is over, its checks in the background included.
const QUIET: Duration = Duration::from_secs(15);
/// For so long somebody looks.
const LOOKED: Duration = Duration::from_secs(60);
/// A database says what it has counted so late.
const COUNTED: Duration = Duration::from_secs(11);

/// Nothing else may run meanwhile, and the server has no other work.
pub(super) fn run(semel: &Path, home: &Path, folder: &Path, rounds: &mut Rounds) -> Result<()> {
    rounds.wanted(WAKE_UPS_MAX, 10.0);
    rounds.wanted(COMMITS_MAX, 2.0);
    let (quiet, looked) = if plan::get().quick { (COUNTED, COUNTED) } else { (QUIET, LOOKED) };
    let up = Running::up(semel, home)?;
    std::thread::sleep(quiet);
    let before = wake_ups(up.id())?;
    std::thread::sleep(looked);
    rounds.value(WAKE_UPS, Unit::PerSecond, rate(wake_ups(up.id())? - before, looked));
    drop(up);

    let server = std::env::var("SEMEL_TEST_POSTGRES")
        .context("SEMEL_TEST_POSTGRES is not set: run `cargo xtask bench`")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let store = runtime.block_on(fresh(&server))?;
    let mut running = Vec::new();
    for number in 0..2 {
        let mut broker = Command::new(semel);
        broker.args(["broker", "serve", "--json", "--listen", "127.0.0.1:0", "--store", &store]);
        running.push(Running::start_in(broker, folder)?);
        let mut engine = Command::new(semel);
        engine.args(["job", "serve", "--json", "--store", &store]);
        running.push(Running::start(engine, &folder.join(format!("engine-{number}")))?);
    }
    std::thread::sleep(quiet);
    let before = runtime.block_on(commits(&server, &store))?;
    std::thread::sleep(looked);
    let after = runtime.block_on(commits(&server, &store))?;
    rounds.value(COMMITS, Unit::PerSecond, rate(after - before, looked));
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a rate needs no 53 bits")]
fn rate(count: u64, during: Duration) -> f64 {
    count as f64 / during.as_secs_f64()
}

/// How often its threads were given a processor.
fn wake_ups(process: u32) -> Result<u64> {
    let mut all = 0;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let status = fs::read_to_string(thread?.path().join("status"))?;
        let counts = status.lines().filter(|line| line.contains("ctxt_switches"));
        all += counts.filter_map(|line| line.rsplit('\t').next()?.parse::<u64>().ok()).sum::<u64>();
    }
    Ok(all)
}

/// Asked of another database, so that the question does not count.
async fn commits(server: &str, store: &str) -> Result<u64> {
    let (client, connection) = tokio_postgres::connect(server, NoTls).await?;
    tokio::spawn(connection);
    let (_, name) = store.rsplit_once('/').context("an address names a database")?;
    let counted = "SELECT xact_commit FROM pg_stat_database WHERE datname = $1";
    let row = client.query_one(counted, &[&name]).await?;
    Ok(u64::try_from(row.try_get::<_, i64>(0)?)?)
}
