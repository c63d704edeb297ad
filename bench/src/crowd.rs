//! A broker's process with three thousand connected daemons, and with half a million messages for
//! one that was away: how long it takes to come in, what each takes of memory, and whether the last
//! of what waits comes as fast as the first.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, stream};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use semel_broker::store::{NewMember, Role, Store};
use semel_core::clock::{Clock, SystemClock};
use semel_core::mint::IdMint;
use semel_wire::frame::{Ack, FromDaemon};
use tokio::task::JoinSet;
use tokio_postgres::NoTls;
use uuid::Uuid;

use crate::program::{self, Running, SETTLED};
use crate::report::{Bar, Measured, Rounds, Unit, publish};
use crate::topic::{Daemon, MESH, keys, message, to_member};
use crate::{broker, facts, plan};

const DAEMONS: usize = 3000;
/// So many come in at a time.
const AT_ONCE: usize = 64;
const WAITING: usize = 500_000;
/// Sends that are under way.
const WINDOW: usize = 256;
const PARTS: usize = 10;
const SENDER: usize = DAEMONS;
const RECIPIENT: usize = DAEMONS + 1;
const MEMBERS: usize = DAEMONS + 2;

/// What is measured on one store, by the names of its rows.
struct Names {
    all: &'static str,
    hello: &'static str,
    memory: &'static str,
    first: &'static str,
    last: &'static str,
}

const SQLITE: Names = Names {
    all: "3,000 daemons have connected, SQLite",
    hello: "a daemon's connection (p99), SQLite",
    memory: "memory for each, SQLite",
    first: "first tenth of 500,000 for one, SQLite",
    last: "last tenth of 500,000 for one, SQLite",
};
const POSTGRES: Names = Names {
    all: "3,000 daemons have connected, PostgreSQL",
    hello: "a daemon's connection (p99), PostgreSQL",
    memory: "memory for each, PostgreSQL",
    first: "first tenth of 500,000 for one, PostgreSQL",
    last: "last tenth of 500,000 for one, PostgreSQL",
};
const SECONDS_10: &str = "10 s";
const SECOND: &str = "1 s";
const KB_200: &str = "200 kB";

const BARS: &[Bar] = &[
    Bar::at_most(SQLITE.all, 1.0, SECONDS_10),
    Bar::at_most(POSTGRES.all, 1.0, SECONDS_10),
    Bar::at_most(SQLITE.hello, 1.0, SECOND),
    Bar::at_most(POSTGRES.hello, 1.0, SECOND),
    Bar::at_most(SQLITE.memory, 1.0, KB_200),
    Bar::at_most(POSTGRES.memory, 1.0, KB_200),
    Bar::at_least(SQLITE.last, 0.77, SQLITE.first),
    Bar::at_least(POSTGRES.last, 0.77, POSTGRES.first),
];

/// Not interleaved: nothing here is measured against another program.
pub(crate) fn run() -> Result<()> {
    let folder = tempfile::tempdir_in(plan::target())?;
    let server = std::env::var("SEMEL_TEST_POSTGRES")
        .context("SEMEL_TEST_POSTGRES is not set: run `cargo xtask bench`")?;
    let machine = facts::machine(folder.path())?;
    let mut rounds = Rounds::default();
    for (name, value) in [(SECONDS_10, 10_000.0), (SECOND, 1000.0), (KB_200, 200_000.0)] {
        rounds.wanted(name, value);
    }
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most })?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let path = folder.path().join("crowd.db");
    let on_sqlite = runtime.block_on(of_file(&path))?;
    measure(&runtime, folder.path(), &on_sqlite, &SQLITE, &mut rounds)?;
    let on_postgres = runtime.block_on(of_server(&server))?;
    measure(&runtime, folder.path(), &on_postgres, &POSTGRES, &mut rounds)?;
    publish("crowd", &machine, &rounds, BARS)
}

/// A file with the mesh, closed again; how it is named on a command line.
async fn of_file(path: &Path) -> Result<String> {
    let store = broker::sqlite(path).await?;
    populate(&store).await?;
    if let Store::Sqlite(store) = &store {
        store.sqlite().close().await;
    }
    drop(store);
    program::unlimited_at(path)?;
    Ok(format!("sqlite:{}", path.display()))
}

async fn of_server(server: &str) -> Result<String> {
    let address = broker::fresh(server).await?;
    populate(&broker::postgres_at(&address).await?).await?;
    let (client, connection) = tokio_postgres::connect(&address, NoTls).await?;
    tokio::spawn(connection);
    let unlimited = "UPDATE mesh.mesh SET rate_limit = 1000000000, rate_window_ms = 1000";
    client.batch_execute(unlimited).await?;
    Ok(address)
}

async fn populate(store: &Store) -> Result<()> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let mint = IdMint::new(Arc::clone(&clock), Box::new(|| Uuid::new_v4().as_u128()));
    let (now, mesh_id) = (clock.wall(), mint.uuid());
    let member = |number: usize| NewMember {
        member_id: mint.uuid(),
        name: format!("member {number}"),
        role: Role::Member,
        key_id: format!("key-{number}"),
        pubkey: keys(number).public().to_hex().to_string(),
    };
    store.mesh_create(mesh_id, MESH, &member(MEMBERS), now).await?;
    for number in 0..MEMBERS {
        store.member_add(mesh_id, &member(number), now).await?;
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a figure needs no 53 bits")]
fn measure(
    runtime: &tokio::runtime::Runtime,
    folder: &Path,
    store: &str,
    names: &Names,
    rounds: &mut Rounds,
) -> Result<()> {
    let mut command = Command::new(program::semel()?);
    command.args(["broker", "serve", "--json", "--listen", "127.0.0.1:0", "--store", store]);
    let served = Running::start_in(command, folder)?;
    let url = served.said("broker")?;
    let host = url.split("//").last().and_then(|rest| rest.split('/').next());
    let address: SocketAddr = host.context("an address")?.parse()?;
    std::thread::sleep(SETTLED);
    let before = served.mb("VmRSS:")?;
    let (count, start) = (plan::amount(DAEMONS), Instant::now());
    let (connected, latencies) = runtime.block_on(connect(address, count))?;
    let all = Measured::since(start, latencies);
    rounds.value(names.all, Unit::Ms, start.elapsed().as_secs_f64() * 1000.0);
    rounds.value(names.hello, Unit::Ms, all.percentile_ms(99));
    std::thread::sleep(SETTLED);
    let each = (served.mb("VmRSS:")? - before) * 1e6 / count as f64;
    rounds.value(names.memory, Unit::Bytes, each);
    drop(connected);
    let (first, last) = runtime.block_on(async {
        let waiting = plan::amount(WAITING);
        fill(address, waiting).await?;
        drain(address, waiting).await
    })?;
    rounds.add(names.first, first);
    rounds.add(names.last, last);
    Ok(())
}

/// Daemons that hear what they are told for as long as the set lives.
async fn connect(address: SocketAddr, count: usize) -> Result<(JoinSet<()>, Vec<u32>)> {
    let one = |number| async move {
        let start = Instant::now();
        let daemon = Daemon::connect(address, number).await?;
        anyhow::Ok((daemon, u32::try_from(start.elapsed().as_micros())?))
    };
    let mut coming = stream::iter((0..count).map(one)).buffer_unordered(AT_ONCE);
    let (mut hearing, mut latencies) = (JoinSet::new(), Vec::new());
    while let Some(came) = coming.next().await {
        let (mut daemon, latency) = came?;
        latencies.push(latency);
        hearing.spawn(async move { while daemon.heard().await.is_ok() {} });
    }
    Ok((hearing, latencies))
}

/// Sends to one that is away.
async fn fill(address: SocketAddr, count: usize) -> Result<()> {
    let mut sender = Daemon::connect(address, SENDER).await?;
    for number in 0..count + WINDOW {
        if number < count {
            let frame = message(format!("wait-{number:019}"), to_member(RECIPIENT)?)?;
            sender.say(FromDaemon::Send(frame).encode()).await?;
        }
        if number >= WINDOW.min(count) && number - WINDOW.min(count) < count {
            let status = sender.answer().await?;
            ensure!(status == 201, "a send was answered {status}");
        }
    }
    Ok(())
}

/// How many a second come of the first and of the last tenth.
#[expect(clippy::cast_precision_loss, reason = "a rate needs no 53 bits")]
async fn drain(address: SocketAddr, count: usize) -> Result<(f64, f64)> {
    let mut recipient = Daemon::connect(address, RECIPIENT).await?;
    let (mut got, mut ends, part) = (0, Vec::new(), (count / PARTS).max(1));
    let mut since = Instant::now();
    while got < count {
        let text = recipient.heard().await?;
        if !text.starts_with("{\"type\":\"push\"") {
            continue;
        }
        let numbers = text.match_indices("{\"seq\":");
        let last = numbers.clone().last().context("a push has deliveries")?;
        let rest = &text[last.0 + last.1.len()..];
        let seq = rest.split(',').next().context("a delivery has more fields")?.parse()?;
        let before = got;
        got += numbers.count();
        recipient.say(FromDaemon::Ack(Ack { seq }).encode()).await?;
        if before / part != got / part {
            ends.push(since.elapsed());
            since = Instant::now();
        }
    }
    println!("each tenth of {count}: {ends:.2?}");
    let rate = |took: Option<&Duration>| -> Result<f64> {
        Ok(part as f64 / took.context("it has parts")?.as_secs_f64())
    };
    Ok((rate(ends.first())?, rate(ends.get(PARTS - 1).or(ends.last()))?))
}
