//! The engines of a run: two that share a PostgreSQL, each with a way of its own to it, or one with
//! a file of its own.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use semel_client::Client;
use tokio::runtime::Runtime;

use super::super::clocks::ProcessClock;
use super::super::process::Process;
use super::super::proxy::Proxy;
use super::homes;
use crate::random::Random;

/// The server outside is on this host.
/// A question may be answered for as long as clocks are ever wrong. A lease is shorter than the
/// longest time for which an engine is cut off from its store.
const CONFIG: &str = "private_hosts = [\"127.0.0.1\"]\napproval_hours = 8760\n";
pub(super) const LEASE_MS: u64 = 15_000;
const SHARING: usize = 2;

/// What engines are started with.
pub(crate) struct Place<'a> {
    pub(crate) program: &'a Path,
    pub(crate) folder: &'a Path,
    /// A PostgreSQL that they share.
    pub(crate) store: Option<&'a str>,
    /// Steps their clocks.
    pub(crate) faketime: Option<&'a Path>,
    /// Whether each has gears and secrets of its own.
    pub(crate) differ: bool,
}

/// Engines, which are killed when this is dropped.
pub(crate) struct Engines {
    pub(crate) processes: Vec<Process>,
    /// Between each of them and the server; none where there is no server.
    pub(crate) ways: Vec<Proxy>,
    homes: Vec<PathBuf>,
}

impl Engines {
    /// All of them are ready when this returns.
    pub(crate) fn start(place: &Place<'_>, runtime: &Runtime, random: &mut Random) -> Result<Self> {
        let mut engines = Self { processes: Vec::new(), ways: Vec::new(), homes: Vec::new() };
        let count = if place.store.is_some() { SHARING } else { 1 };
        for number in 0..count {
            let name = format!("engine-{number}");
            let home = place.folder.join(&name);
            fs::create_dir_all(home.join("jobs"))?;
            fs::write(
                home.join("jobs").join("config.toml"),
                format!("{CONFIG}lease_ms = {LEASE_MS}\n"),
            )?;
            if place.differ {
                homes::furnish(place.program, place.folder, &home, number)?;
            }
            let home_text = home.display().to_string();
            let mut words = vec!["job", "serve", "--json", "--home", &home_text];
            let way = place.store.map(|store| Proxy::to_store(store, random.fork()));
            let way = way.map(|way| runtime.block_on(way)).transpose()?;
            if let Some((_, through)) = &way {
                words.extend(["--store", through]);
            }
            let library = place.faketime;
            let clock = library.map(|library| ProcessClock::new(library, place.folder, &name));
            let clock = clock.transpose()?;
            let process = Process::start(&name, place.program, &words, place.folder, clock)?;
            engines.ways.extend(way.map(|(way, _)| way));
            engines.processes.push(process);
            engines.homes.push(home);
        }
        Ok(engines)
    }

    /// Those that can be stepped.
    pub(crate) fn clocks(&self) -> Vec<ProcessClock> {
        self.processes.iter().filter_map(|process| process.clock.clone()).collect()
    }

    pub(crate) fn clients(&self) -> Vec<Client> {
        self.homes.iter().map(|home| Client::socket(home.join("jobs").join("sock"))).collect()
    }
}
