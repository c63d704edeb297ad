//! `cargo xtask chaos --jobs N`: engines alone, with one kind of trouble, until all jobs have ended
//! or somebody is asked about them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::runtime::{Handle, Runtime};

use super::super::clocks::ProcessClock;
use super::super::faults::ENGINE_STEPS;
use super::super::storm::{Blow, Storm};
use super::super::tls::Authority;
use super::super::{now, postgres};
use super::{Deaf, Engines, Kinds, Load, Place, SETTLES, Work};
use crate::random::Random;
use crate::servers::{self, Postgres, pause};

/// How long a clock is wrong, and then right.
const WRONG_MS: (u64, u64) = (200, 3000);
/// Between two jobs of one caller while clocks step, so that they step often enough.
const PAUSE_MS_MAX: u64 = 100;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Two engines share a PostgreSQL; their sessions are ended every 30 ms.
    Sessions,
    /// The same, and each has gears and secrets that the other has not; one of them is killed in
    /// the middle and never comes back.
    Homes,
    /// Clocks of engines step, and nothing else happens: nobody is to be asked anything. Even seeds
    /// have two engines on a PostgreSQL, odd ones a lone one with a file.
    Clocks,
}

impl Trouble {
    fn load(self, jobs: u64) -> Load {
        let (kinds, pause_ms_max) = match self {
            Self::Sessions => (Kinds::Once, 0),
            Self::Homes => (Kinds::OfHomes, 0),
            Self::Clocks => (Kinds::AlsoRepeatable, PAUSE_MS_MAX),
        };
        Load { jobs, pause_ms_max, kinds }
    }
}

/// What came of it, and whether all is well.
pub(crate) fn run(program: &Path, jobs: u64, seed: u64, trouble: Trouble) -> Result<(Value, bool)> {
    let mut random = Random::new(seed);
    let folder = servers::folder()?;
    let shares = trouble != Trouble::Clocks || seed.is_multiple_of(2);
    let authority = Authority::new(folder.path())?;
    let postgres = shares.then(|| postgres(&authority, &folder)).transpose()?;
    let runtime = Runtime::new().context("no runtime")?;
    let faketime = (trouble == Trouble::Clocks).then(servers::faketime).transpose()?;
    let place = Place {
        program,
        folder: folder.path(),
        store: postgres.as_ref().map(Postgres::url),
        faketime: faketime.as_deref(),
        differ: trouble == Trouble::Homes,
    };
    let began = now();
    let mut engines = Engines::start(&place, &runtime, &mut random)?;
    let mut work = Work::start(&engines, trouble.load(jobs), &runtime, &mut random)?;
    let steps = (trouble == Trouble::Clocks)
        .then(|| Steps::start(runtime.handle(), engines.clocks(), random.fork()));
    let storm = match (&steps, &postgres) {
        (None, Some(postgres)) => {
            Some(Storm::start(runtime.handle(), &postgres.socket_url(), Blow::Terminate))
        }
        _ => None,
    };
    if trouble == Trouble::Homes {
        ensure!(work.until_left(jobs / 2)?, "the engines take no jobs in");
        work.journal.lose_second();
        engines.processes.pop().context("a second engine")?.kill()?;
    }
    work.submitted(&runtime)?;
    // Also what has begun by then has to live through it.
    pause(SETTLES);
    let (terminated, stepped) = (storm.as_ref().map(Storm::hit), steps.as_ref().map(Steps::made));
    drop((storm, steps));
    let judged = work.judge(&runtime, &mut random, &Deaf::default())?;
    let mut ended = Vec::new();
    for process in &mut engines.processes {
        ended.extend(process.ended()?.map(|status| format!("{}: {status}", process.name)));
    }
    let asked_in_vain = trouble == Trouble::Clocks && judged.somebody_was_asked();
    let is_clean = judged.is_clean() && ended.is_empty() && !asked_in_vain;
    let mut report = judged.json();
    report["seed"] = json!(seed);
    report["terminated"] = json!(terminated);
    report["clock_steps"] = json!(stepped);
    report["seconds"] = json!(began.elapsed().as_secs());
    report["ended_by_themselves"] = json!(ended);
    report["clean"] = json!(is_clean);
    drop(engines);
    if !is_clean {
        // Logs and the database stay for whoever looks.
        eprintln!("xtask: everything is left in {}", folder.keep().display());
    }
    Ok((report, is_clean))
}

/// Clocks that step until this is dropped, one at a time.
struct Steps {
    stop: Arc<AtomicBool>,
    made: Arc<AtomicU64>,
}

impl Steps {
    fn start(runtime: &Handle, clocks: Vec<ProcessClock>, mut random: Random) -> Self {
        let (stop, made): (Arc<AtomicBool>, Arc<AtomicU64>) = Default::default();
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&made));
        drop(runtime.spawn(async move {
            while !stopped.load(Ordering::SeqCst) {
                let clock = random.pick(&clocks).clone();
                for off_by_seconds in [*random.pick(&ENGINE_STEPS), 0] {
                    // A disk without room for a number: the clock stays as it is.
                    let set = clock.set(off_by_seconds).is_ok();
                    counted.fetch_add(u64::from(set), Ordering::SeqCst);
                    let wrong: Duration = random.millis(WRONG_MS.0, WRONG_MS.1);
                    tokio::time::sleep(wrong).await;
                }
            }
        }));
        Self { stop, made }
    }

    fn made(&self) -> u64 {
        self.made.load(Ordering::SeqCst)
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}
