//! `POST /v1/send` over the daemon's socket, beside what a socket and a group commit can do at all
//! and beside peers, and the way of a message from one daemon's door to another's inbox.

mod delivery;
mod host;
pub(crate) mod load;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::runtime::Runtime;

use self::delivery::{away, beside, idle, paced, through};
use self::load::ceiling;
use crate::peers::nats::Nats;
use crate::peers::rabbit::Rabbit;
use crate::peers::redis::Redis;
use crate::report::{Bar, Rounds, Unit, publish};
use crate::{facts, peers, plan};

/// Messages of one round, each after the last.
const IDLE_MESSAGES: usize = 1000;
/// Messages of one round, one a second.
const SLOW_MESSAGES: usize = 15;
const FEW_ROWS: usize = 10_000;
const MANY_ROWS: usize = 10_000_000;

const CEILING: [(&str, usize); 3] = [
    ("socket + group commit, 1 connection", 1),
    ("socket + group commit, 64 connections", 64),
    ("socket + group commit, 256 connections", 256),
];
const NATS: [(&str, usize); 3] = [
    ("NATS JetStream, sync always, 1 in flight", 1),
    ("NATS JetStream, sync always, 64 in flight", 64),
    ("NATS JetStream, sync always, 256 in flight", 256),
];
const REDIS: [(&str, usize); 3] = [
    ("Redis, AOF always, dedupe script, 1 connection", 1),
    ("Redis, AOF always, dedupe script, 64 connections", 64),
    ("Redis, AOF always, dedupe script, 256 connections", 256),
];
const RABBIT: [(&str, usize); 3] = [
    ("RabbitMQ, quorum queue, confirms, 1 in flight", 1),
    ("RabbitMQ, quorum queue, confirms, 64 in flight", 64),
    ("RabbitMQ, quorum queue, confirms, 256 in flight", 256),
];
/// Row, syncs, connections.
const AWAY: [(&str, &str, usize); 3] = [
    ("POST /v1/send, broker away, 1 connection", "syncs, broker away, 1 connection", 1),
    ("POST /v1/send, broker away, 64 connections", "syncs, broker away, 64 connections", 64),
    ("POST /v1/send, broker away, 256 connections", "syncs, broker away, 256 connections", 256),
];
const THROUGH: [(&str, &str, usize); 3] = [
    ("to a second daemon's inbox, 1 connection", "syncs, broker connected, 1 connection", 1),
    ("to a second daemon's inbox, 64 connections", "syncs, broker connected, 64 connections", 64),
    (
        "to a second daemon's inbox, 256 connections",
        "syncs, broker connected, 256 connections",
        256,
    ),
];
const IDLE: &str = "door to the other inbox, one at a time";
const IDLE_P50: &str = "door to the other inbox, one at a time: p50";
const IDLE_P99: &str = "door to the other inbox, one at a time: p99";
const SYNC: &str = "one sync of the disk";
const SLOW: &str = "door to the other inbox, 1 a second";
const HALF: &str = "door to the other inbox, half of the most";
const FEW: &str = "POST /v1/send beside 10 thousand rows, 64 connections";
const MANY: &str = "POST /v1/send beside 10 million rows, 64 connections";

const BARS: &[Bar] = &[
    Bar::at_least(AWAY[1].0, 0.6, CEILING[1].0),
    Bar::at_least(AWAY[0].0, 0.8, CEILING[0].0),
    Bar::at_least(AWAY[1].0, 5.0, NATS[1].0),
    Bar::at_least(AWAY[1].0, 1.0, REDIS[1].0),
    Bar::at_least(AWAY[1].0, 1.0, RABBIT[1].0),
    Bar::at_least(THROUGH[1].0, 0.25, CEILING[1].0),
    Bar::at_most(IDLE_P50, 6.0, SYNC),
    Bar::at_most(IDLE_P99, 20.0, SYNC),
];
const BARS_LONG: &[Bar] = &[Bar::at_most(FEW, 1.5, MANY)];

/// Runs everything, interleaved.
pub(crate) fn run() -> Result<()> {
    let folder = tempfile::tempdir_in(plan::target())?;
    let machine = facts::machine(folder.path())?;
    let mut rounds = Rounds::default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    for round in 0..plan::rounds() {
        let folder = folder.path().join(round.to_string());
        accepts(&runtime, &folder, &mut rounds)?;
        deliveries(&runtime, &folder, &mut rounds)?;
        // Some of it is large.
        std::fs::remove_dir_all(&folder)?;
    }
    publish("daemon", &machine, &rounds, BARS)?;
    if plan::get().long { long(&runtime, folder.path()) } else { Ok(()) }
}

fn made(folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    std::fs::create_dir_all(&path)?;
    Ok(path)
}

fn accepts(runtime: &Runtime, folder: &Path, rounds: &mut Rounds) -> Result<()> {
    // What is compared runs one right after the other: the machine's mood changes within seconds.
    for (number, (bare, callers)) in CEILING.into_iter().enumerate() {
        let made = |name: &str| made(folder, &format!("{name}-{callers}"));
        rounds.measured(bare, runtime.block_on(ceiling(&made("ceiling")?, callers))?);
        let accepted = [
            (AWAY[number], runtime.block_on(away(&made("away")?, callers))?),
            (THROUGH[number], runtime.block_on(through(&made("through")?, callers))?),
        ];
        for ((name, syncs, _), accepted) in accepted {
            rounds.measured(name, accepted.measured);
            rounds.value(syncs, Unit::PerAccept, accepted.commits_per_accept);
        }
    }
    for (name, callers) in REDIS {
        let folder = folder.join(format!("redis-{callers}"));
        let shown = runtime.block_on(async {
            let server = Redis::start(&peers::program("Redis")?, &folder).await?;
            server.sends(callers, plan::round()).await
        });
        rounds.peer("Redis", name, shown);
    }
    queues(folder, rounds);
    Ok(())
}

/// Servers that keep messages; one that is not there stops nobody.
fn queues(folder: &Path, rounds: &mut Rounds) {
    for (name, callers) in NATS {
        let folder = folder.join(format!("nats-{callers}"));
        let shown = peers::program("NATS")
            .and_then(|program| Nats::start(&program, &folder))
            .and_then(|server| server.publishes(callers, plan::round()));
        rounds.peer("NATS", name, shown);
    }
    let node = peers::program("RabbitMQ")
        .and_then(|program| Rabbit::start(&program, &folder.join("rabbit")));
    match node {
        // Its start takes seconds, so that one node serves all three.
        Ok(node) => {
            for (name, callers) in RABBIT {
                rounds.peer("RabbitMQ", name, node.publishes(callers, plan::round()));
            }
        }
        Err(error) => rounds.missing("RabbitMQ", &format!("{error:#}")),
    }
}

fn deliveries(runtime: &Runtime, folder: &Path, rounds: &mut Rounds) -> Result<()> {
    let sync_ms = facts::fdatasync_us(folder)? / 1000.0;
    let shown = runtime.block_on(idle(&made(folder, "idle")?, IDLE_MESSAGES))?;
    rounds.value(IDLE_P50, Unit::Ms, shown.percentile_ms(50));
    rounds.value(IDLE_P99, Unit::Ms, shown.percentile_ms(99));
    rounds.value(SYNC, Unit::Ms, sync_ms);
    rounds.measured(IDLE, shown);
    let messages = if plan::get().quick { 2 } else { SLOW_MESSAGES };
    let (slow, second) = (made(folder, "slow")?, Duration::from_secs(1));
    rounds.measured(SLOW, runtime.block_on(paced(&slow, second, messages))?);
    let half = rounds.last(THROUGH[1].0).context("the most was measured")? / 2.0;
    let (tick, messages) = pace(half);
    rounds.measured(HALF, runtime.block_on(paced(&made(folder, "half")?, tick, messages))?);
    Ok(())
}

/// How often, and how many in one round.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a positive rate that fits in far less"
)]
fn pace(per_second: f64) -> (Duration, usize) {
    let tick = Duration::from_secs_f64(1.0 / per_second.max(1.0));
    (tick, (plan::round().as_secs_f64() / tick.as_secs_f64()).max(1.0) as usize)
}

/// Accepts beside as many rows as a daemon has that was cut off for months.
fn long(runtime: &Runtime, folder: &Path) -> Result<()> {
    let machine = facts::machine(folder)?;
    let mut rounds = Rounds::default();
    let many = plan::amount(MANY_ROWS);
    let shown = runtime.block_on(beside(&made(folder, "beside")?, FEW_ROWS, many))?;
    rounds.measured(FEW, shown.0);
    rounds.measured(MANY, shown.1);
    publish("long", &machine, &rounds, BARS_LONG)
}
