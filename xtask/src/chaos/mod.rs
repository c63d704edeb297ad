//! `cargo xtask chaos`: real brokers and daemons under load, while processes are killed and
//! stopped, connections cut and the store taken away; then a checker that proves what mesh.md §2
//! promises.
//!
//! The seed decides what goes wrong and in which order. When exactly it meets which send is the
//! machine's affair, so that a seed gives the same faults again, not the same run.

mod checker;
mod clocks;
mod disk;
mod faults;
mod jobs;
mod load;
mod outages;
mod plant;
mod process;
mod proxy;
mod storm;
mod tls;
mod witness;
mod world;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::random::Random;
use crate::repo;
use crate::servers::{self, Postgres, Redis, pause, wait_until};
use checker::{Arrived, Verdict};
use faults::Faults;
use jobs::{Deaf, Kinds, Load, Work};
pub(crate) use jobs::{Outside, Trouble};
use load::{Caller, Journal, Worker};
use plant::Found;
pub(crate) use plant::Plant;
pub(crate) use storm::Blow;
use storm::Storm;
use tls::Authority;
use world::World;

const CALLERS_PER_DAEMON: usize = 2;

/// Between two jobs of one caller, at the most: what they do is not to keep the machine from sends.
const JOB_PAUSE_MS_MAX: u64 = 800;

/// How long the last message may take once everything is back: a daemon that found its broker away
/// often waits for a minute before it tries again, and so does one whose connection is half dead.
const QUIET_LIMIT: Duration = Duration::from_secs(150);

/// So many times as long where more and more arrives: workers take what is left one by one.
const QUIET_LIMITS_MAX: usize = 6;

/// How long nothing more may come before the inboxes are read for good.
const SETTLES: Duration = Duration::from_secs(2);

const SECONDS_PER_MINUTE: u64 = 60;

/// A run goes on until it had so many kills and so many cuts: 500 of each in half an hour.
const FAULTS_PER_MINUTE: u64 = 17;

/// Shorter runs have nothing that takes longer than a lease: no steps, and no cuts.
const FULL: Duration = Duration::from_secs(45);

/// Shorter runs stop nothing for so long that everybody gives it up.
const LONG: Duration = Duration::from_secs(150);

/// How long it goes on: until all of these are reached.
struct Plan {
    program: PathBuf,
    seed: u64,
    length: Duration,
    kills_min: u64,
    cuts_min: u64,
    /// What is done to the sessions of the store all the time, besides everything else.
    storm: Option<Blow>,
    /// Whether a finding is a surprise, whose traces somebody will look at.
    keeps_traces: bool,
}

impl Plan {
    fn new(program: PathBuf, minutes: u64, seed: u64, storm: Option<Blow>) -> Self {
        eprintln!("xtask: seed {seed}, {minutes} minutes");
        let length = Duration::from_secs(minutes * SECONDS_PER_MINUTE);
        let (kills_min, cuts_min) = (minutes * FAULTS_PER_MINUTE, minutes * FAULTS_PER_MINUTE);
        Self { program, seed, length, kills_min, cuts_min, storm, keeps_traces: true }
    }
}

/// What a run came to.
struct Outcome {
    report: Value,
    is_clean: bool,
}

/// Builds the program, runs, and prints one line for people and one of JSON.
pub(crate) fn run(
    minutes: u64,
    seed: Option<u64>,
    plant: Option<Plant>,
    storm: Option<Blow>,
) -> Result<ExitCode> {
    let seed = seed.map_or_else(new_seed, Ok)?;
    if let Some(plant) = plant {
        return find(plant, minutes, seed, storm);
    }
    repo::succeed(&mut repo::cargo(&["build", "--package", "semel"]))?;
    let outcome = run_plan(&Plan::new(program()?, minutes, seed, storm))?;
    println!("{}", human(&outcome.report));
    println!("{}", outcome.report);
    Ok(success_if(outcome.is_clean))
}

/// Builds the program with a bug in it. The bug must be found, and as what it is.
fn find(plant: Plant, minutes: u64, seed: u64, storm: Option<Blow>) -> Result<ExitCode> {
    let (report, finding) = match plant.found_by() {
        Found::Test(harness) => {
            let is_caught = plant.fails(harness)?;
            let verdict = if is_caught { "caught" } else { "MISSED" };
            println!("planted {}: {} fails: {verdict}", plant.name(), harness.name);
            return Ok(success_if(is_caught));
        }
        Found::Jobs { finding, jobs } => {
            eprintln!("xtask: seed {seed}, {jobs} jobs");
            (jobs::run(&plant.build()?, jobs, seed, Trouble::Sessions)?.0, finding)
        }
        Found::Run { finding } => {
            let plan = Plan::new(plant.build()?, minutes, seed, storm);
            (run_plan(&Plan { keeps_traces: false, ..plan })?.report, finding)
        }
    };
    println!("{report}");
    let found = match report.pointer(finding) {
        Some(Value::Array(found)) => found.len() as u64,
        Some(found) => found.as_u64().unwrap_or(0),
        None => 0,
    };
    let verdict = if found > 0 { "caught" } else { "MISSED" };
    println!("planted {}: {found} {finding}: {verdict}", plant.name());
    Ok(success_if(found > 0))
}

fn success_if(is_good: bool) -> ExitCode {
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Builds the program, lets engines do so many jobs in some trouble, and prints one line of JSON.
pub(crate) fn run_jobs(jobs: u64, seed: Option<u64>, trouble: Trouble) -> Result<ExitCode> {
    repo::succeed(&mut repo::cargo(&["build", "--package", "semel"]))?;
    let seed = seed.map_or_else(new_seed, Ok)?;
    eprintln!("xtask: seed {seed}, {jobs} jobs");
    let (report, is_clean) = jobs::run(&program()?, jobs, seed, trouble)?;
    println!("{report}");
    Ok(success_if(is_clean))
}

pub(crate) fn new_seed() -> Result<u64> {
    let text = servers::random_password()?;
    Ok(u64::from_str_radix(&text[..8], 16)?)
}

/// A private PostgreSQL that speaks TLS alone.
fn postgres(authority: &Authority, folder: &TempDir) -> Result<Postgres> {
    let files = authority.server("postgres")?;
    let files = files.each_ref().map(PathBuf::as_path);
    Postgres::start_with_tls(&servers::postgres_programs()?, folder.path(), files)
}

/// A private Redis that does.
fn redis(authority: &Authority, folder: &TempDir) -> Result<Redis> {
    let files = authority.server("redis")?;
    let files = files.each_ref().map(PathBuf::as_path);
    Redis::start_with_tls(&servers::redis_program()?, folder.path(), files)
}

/// Even seeds run two brokers on PostgreSQL, odd ones a broker on SQLite.
fn run_plan(plan: &Plan) -> Result<Outcome> {
    let mut random = Random::new(plan.seed);
    let folder = servers::folder()?;
    let authority = Authority::new(folder.path())?;
    let servers = match plan.seed.is_multiple_of(2) {
        true => (Some(postgres(&authority, &folder)?), Some(redis(&authority, &folder)?)),
        false => (None, None),
    };
    let store = if servers.0.is_some() { "postgres" } else { "sqlite" };
    let runtime = Runtime::new().context("no runtime")?;
    // Without it everything else is tested; the report says so.
    let faketime = servers::faketime().map_err(|error| eprintln!("xtask: {error:#}")).ok();
    let around = (authority, servers);
    let mut world =
        World::start(&plan.program, folder.path(), around, faketime, &runtime, &mut random)?;
    let ended = misfortune(plan, &mut world, &runtime, &mut random)
        .and_then(|suffered| Ok((quiet(&mut world, &suffered.0, &runtime)?, suffered)));
    let ((arrived, unfinished), (journal, work, faults)) = match ended {
        Ok(ended) => ended,
        Err(error) => {
            eprintln!("xtask: everything is left in {}", folder.keep().display());
            return Err(error);
        }
    };
    let cut_off = faults.outages.past.clone();
    let deaf = Deaf { stood_still: faults.stood_still.clone(), cut_off };
    let judged = work.judge(&runtime, &mut random, &deaf)?;
    // A row without its answer is a violation already, whatever else there is.
    let keys = world.keys()?;
    let delayed = runtime.block_on(world.delayed(&keys));
    let delayed = delayed.unwrap_or_default();
    let mut verdict = checker::check(&journal.accepted(), &journal.refused(), &arrived, &delayed);
    checker::check_queues(&mut verdict, &journal.accepted(), &journal.taken());
    let checked = world.operate(&["check"]);
    let broker_check = checked.as_ref().map_or_else(|error| format!("{error:#}"), String::clone);
    let consistent = checked.is_ok() && broker_check.ends_with("consistent");
    let never = never_happened(plan, &world, &faults);
    let is_clean = verdict.is_clean()
        && consistent
        && never.is_empty()
        && judged.is_clean()
        && unfinished == Some((0, 0))
        && journal.surprises().is_empty()
        && faults.counts.ended_by_themselves.is_empty();
    let mut report = json!({
        "seed": plan.seed, "store": store, "seconds": faults.seconds, "faults": faults.json(),
        "connections": world.proxy.made(), "sends": journal.accepted().len(),
        "refusals": journal.refused().len(), "deliveries": arrived.len(),
        "takes": journal.taken().len(), "work": journal.seen(),
        "small_disk": world.disk.is_some(), "own_clocks": world.steps_clocks(),
        "waiting_and_dead": unfinished, "surprises": *journal.surprises(),
        "broker_check": broker_check, "never_happened": never, "clean": is_clean,
    });
    let (answers, sends) = world.proxy.record().counts();
    report["answered_5xx"] = json!({"answers": answers, "sends": sends});
    report["answered_429"] = json!(world.proxy.record().told_to_wait());
    report["violations"] = violations(&verdict);
    report["jobs"] = judged.json();
    if !is_clean && plan.keeps_traces {
        if let Some(disk) = &world.disk {
            disk.keep()?;
        }
        // Logs and databases stay for whoever looks.
        eprintln!("xtask: everything is left in {}", folder.keep().display());
    }
    Ok(Outcome { report, is_clean })
}

/// Faults of a store that were spared: one that never happens finds nothing. In a short run
/// somebody is started again before a storm has hit anybody.
fn never_happened(plan: &Plan, world: &World, faults: &Faults) -> Vec<&'static str> {
    let is_due = world.postgres.is_some() && plan.length >= FULL;
    if is_due { faults.outages.never() } else { Vec::new() }
}

/// Load and faults together until the plan is fulfilled; what is running then is whole again.
fn misfortune(
    plan: &Plan,
    world: &mut World,
    runtime: &Runtime,
    random: &mut Random,
) -> Result<(Arc<Journal>, Work, Faults)> {
    let journal = Arc::new(Journal::default());
    let keys = world.keys()?;
    let mut callers = Vec::new();
    for (daemon, sender) in keys.iter().enumerate() {
        for number in 0..CALLERS_PER_DAEMON {
            let caller = Caller {
                name: format!("{daemon}-{number}"),
                client: world.client(daemon),
                sender: sender.clone(),
                everybody: keys.clone(),
                journal: Arc::clone(&journal),
                random: random.fork(),
            };
            callers.push(runtime.spawn(caller.run()));
        }
        let (client, journal) = (world.client(daemon), Arc::clone(&journal));
        drop(runtime.spawn(Worker { client, journal, random: random.fork() }.run()));
    }
    let repeats = plan.length >= FULL;
    let kinds = if repeats { Kinds::AlsoRepeatable } else { Kinds::Once };
    let load = Load { jobs: jobs::ENDLESS, pause_ms_max: JOB_PAUSE_MS_MAX, kinds };
    let mut work = Work::start(&world.engines, load, runtime, random)?;
    // Beside all others, and all the time.
    let storm = match (plan.storm, &world.postgres) {
        (Some(blow), Some(postgres)) => {
            Some(Storm::start(runtime.handle(), &postgres.socket_url(), blow))
        }
        _ => None,
    };
    let mut faults = Faults::new(random.fork(), plan.length >= LONG, repeats);
    let began = now();
    while began.elapsed() < plan.length
        || faults.counts.kills() < plan.kills_min
        || faults.counts.cuts() < plan.cuts_min
    {
        faults.next(world)?;
    }
    faults.seconds = began.elapsed().as_secs();
    journal.stop();
    faults.thaw(world)?;
    faults.set_right(world)?;
    faults.outages.end(world);
    if let (Some(blow), Some(storm)) = (plan.storm, storm) {
        faults.outages.add(blow, &storm);
    }
    // Callers wait for whoever is away.
    faults.revive(world)?;
    work.stop(runtime)?;
    for caller in callers {
        runtime.block_on(caller).context("a caller failed")?;
    }
    faults.revive(world)?;
    world.lift_limit()?;
    Ok((journal, work, faults))
}

/// Waits until everything that was accepted has arrived, or nothing more does, and reads it.
#[expect(clippy::type_complexity, reason = "what waits and what was given up, if they are known")]
fn quiet(
    world: &mut World,
    journal: &Journal,
    runtime: &Runtime,
) -> Result<(Vec<Arrived>, Option<(u64, u64)>)> {
    let (keys, (expected, work)) = (world.keys()?, journal.expected());
    let (mut unfinished, mut before) = (None, None);
    for _ in 0..QUIET_LIMITS_MAX {
        let (mut done, mut arrived) = (false, None);
        wait_until(QUIET_LIMIT, || {
            unfinished = runtime.block_on(world.unfinished());
            if unfinished.is_none_or(|(waiting, _)| waiting > 0) {
                return Ok(false);
            }
            arrived = runtime.block_on(world.inboxes(&keys)).map(|arrived| arrived.len());
            done = arrived.is_some_and(|arrived| arrived >= expected) && journal.seen() >= work;
            Ok(done)
        })?;
        let now = Some((unfinished, arrived, journal.seen()));
        if done || now == before {
            break;
        }
        before = now;
    }
    // What comes once too often comes last.
    pause(SETTLES);
    journal.stop_work();
    let mut arrived = None;
    // One page of very many may take longer than a client waits, on a busy machine.
    wait_until(QUIET_LIMIT, || {
        arrived = runtime.block_on(world.inboxes(&keys));
        Ok(arrived.is_some())
    })?;
    Ok((arrived.context("an inbox cannot be read")?, unfinished))
}

fn violations(verdict: &Verdict) -> Value {
    json!({
        "lost": verdict.lost, "duplicated": verdict.duplicated,
        "out_of_order": verdict.out_of_order, "refused_delivered": verdict.refused_delivered,
        "altered": verdict.altered, "overtaken_after_5xx": verdict.overtaken_when_delayed,
        "examples": verdict.examples,
    })
}

fn human(report: &Value) -> String {
    let (faults, wrong, jobs) = (&report["faults"], &report["violations"], &report["jobs"]);
    format!(
        "seed {} on {}: {} kills, {} cuts, {} stops in {} s; {} sends, {} deliveries: {} lost, {} \
         duplicated, {} out of order, {} refused but delivered, {} altered; {} jobs: {} twice, {} \
         lost, {} asked about: {}",
        report["seed"],
        report["store"].as_str().unwrap_or_default(),
        faults["kills"],
        faults["cuts"],
        faults["stops"],
        report["seconds"],
        report["sends"],
        report["deliveries"],
        wrong["lost"],
        wrong["duplicated"],
        wrong["out_of_order"],
        wrong["refused_delivered"],
        wrong["altered"],
        jobs["jobs"],
        jobs["twice"],
        jobs["lost"],
        jobs["asked"],
        if report["clean"] == true { "all as promised" } else { "NOT as promised" },
    )
}

/// `semel`, which cargo puts beside us; a test is one folder further down.
pub(crate) fn program() -> Result<PathBuf> {
    let us = std::env::current_exe().context("this program has no file")?;
    let beside = us.ancestors().skip(1).take(2).map(|folder: &Path| folder.join("semel"));
    let found = beside.into_iter().find(|program| program.is_file());
    found.context("there is no semel beside this program: cargo build --package semel")
}

#[expect(clippy::disallowed_methods, reason = "how long a run takes is what it was asked for")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Short, but with every kind of fault.
    fn short(seed: u64) {
        let (program, length) = (program().unwrap(), Duration::from_secs(15));
        let (kills_min, cuts_min, storm, keeps_traces) = (20, 20, None, true);
        let plan = Plan { program, seed, length, kills_min, cuts_min, storm, keeps_traces };
        let outcome = run_plan(&plan).unwrap();
        println!("{}", human(&outcome.report));
        assert!(outcome.is_clean, "{:#}", outcome.report);
        assert_ne!(outcome.report["sends"], 0);
        assert_ne!(outcome.report["jobs"]["completed"], 0);
        assert_ne!(outcome.report["answered_429"], 0);
        if outcome.report["own_clocks"] == true {
            assert_ne!(outcome.report["faults"]["clock_steps"], 0);
        }
    }

    #[test]
    fn brokers_on_postgres_and_daemons_keep_their_promises_whatever_fails() {
        short(2);
    }

    #[test]
    fn a_broker_on_sqlite_and_daemons_keep_their_promises_whatever_fails() {
        short(1);
    }
}
