//! The processes of a run: brokers on one store, daemons that reach them through the proxy.

use std::collections::HashSet;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use semel_client::Client;
use serde_json::Value;
use tokio::runtime::{Handle, Runtime};

use super::checker::{Arrived, SendId};
use super::clocks::ProcessClock;
use super::disk::SmallDisk;
use super::jobs::{Engines, Place};
use super::load::{QUEUE, TOPIC};
use super::process::{Process, output};
use super::proxy::{Fault, Proxy};
use super::tls::Authority;
use crate::random::Random;
use crate::servers::{Postgres, Redis, wait_until};

const MESH: &str = "ops";
/// Clocks step by a year, and what is kept for less than that may rightly be gone (mesh.md §6).
const KEPT_DAYS: u32 = 3650;
/// Messages per second and member: about what a daemon is given to send, so that it is told to wait
/// whenever it has something to make up for.
const RATE_LIMIT: u32 = 50;
/// More than anybody sends.
const RATE_LIMIT_MAX: u32 = 1_000_000;
const BROKERS: usize = 2;
const DAEMONS: usize = 3;
/// The daemon whose disk can be full.
const ON_SMALL_DISK: usize = 2;
const PORTS: Range<u16> = 20_000..32_000;
const PORT_TRIES_MAX: u32 = 100;
/// How long the mesh may take until its topic and its queue are there.
const SETUP_LIMIT: Duration = Duration::from_secs(30);
/// Nobody has the owner's key: the mesh is run from its store.
const OWNER_KEY: &str = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";

/// A row that the broker could not take more often waits on its own (`ATTEMPTS_TOGETHER` of the
/// daemon); up to there rows wait together and in order.
const ATTEMPTS_TOGETHER: u64 = 5;

/// Fields are dropped in order: daemons, brokers, engines, the store, its folder.
pub(crate) struct World {
    pub(crate) daemons: Vec<Process>,
    pub(crate) brokers: Vec<Process>,
    pub(crate) engines: Engines,
    /// Between each broker and the store; none where that is a file.
    pub(crate) ways: Vec<Proxy>,
    pub(crate) postgres: Option<Postgres>,
    /// The limiter of brokers that share a store.
    pub(crate) redis: Option<Redis>,
    /// Of one daemon; nothing where we may not mount.
    pub(crate) disk: Option<SmallDisk>,
    pub(crate) proxy: Proxy,
    authority: Authority,
    /// Steps the clocks of all processes; nothing where it cannot be had.
    faketime: Option<PathBuf>,
    /// What goes on beside the run.
    runtime: Handle,
    store: String,
    program: PathBuf,
    folder: PathBuf,
}

impl World {
    /// Everything runs and every daemon has joined when this returns.
    pub(crate) fn start(
        program: &Path,
        folder: &Path,
        (authority, (postgres, redis)): (Authority, (Option<Postgres>, Option<Redis>)),
        faketime: Option<PathBuf>,
        runtime: &Runtime,
        random: &mut Random,
    ) -> Result<Self> {
        let (store, brokers) = match &postgres {
            Some(postgres) => (postgres.url().to_owned(), BROKERS),
            // An SQLite store has one broker.
            None => (format!("sqlite:{}", folder.join("broker.db").display()), 1),
        };
        let addresses = (0..brokers).map(|_| free_address(random)).collect::<Result<Vec<_>>>()?;
        let (brokers_at, ends) = (addresses.clone(), Some(authority.ends()?));
        let proxy = runtime.block_on(Proxy::start(brokers_at, ends, random.fork()))?;
        let (program, folder) = (program.to_owned(), folder.to_owned());
        let (daemons, brokers) = (Vec::new(), Vec::new());
        let disk = SmallDisk::mount(&folder.join(format!("daemon-{ON_SMALL_DISK}")))?;
        let url = postgres.as_ref().map(Postgres::url);
        let (home, library) = (folder.as_path(), faketime.as_deref());
        let place =
            Place { program: &program, folder: home, store: url, faketime: library, differ: false };
        let engines = Engines::start(&place, runtime, random)?;
        let mut world = Self {
            daemons,
            brokers,
            engines,
            ways: Vec::new(),
            postgres,
            redis,
            disk,
            proxy,
            authority,
            faketime,
            runtime: runtime.handle().clone(),
            store,
            program,
            folder,
        };
        world.operate(&["mesh", "create", MESH, "--owner", "nobody", "--owner-key", OWNER_KEY])?;
        let kept = ["dedupe", "message"].map(|what| format!("{what}_retention_days={KEPT_DAYS}"));
        world.operate(&["mesh", "set", MESH, &kept[0], &kept[1]])?;
        world.limit(RATE_LIMIT)?;
        for (number, address) in addresses.iter().enumerate() {
            let broker = world.broker(number, address, runtime, random)?;
            world.brokers.push(broker);
        }
        for number in 0..DAEMONS {
            let daemon = world.join(&format!("daemon-{number}"))?;
            world.daemons.push(daemon);
        }
        world.settle()?;
        Ok(world)
    }

    /// A broker with a way of its own to the store.
    fn broker(
        &mut self,
        number: usize,
        address: &SocketAddr,
        runtime: &Runtime,
        random: &mut Random,
    ) -> Result<Process> {
        let (name, address) = (format!("broker-{number}"), address.to_string());
        let mut store = self.store.clone();
        if self.postgres.is_some() {
            let (way, through) = runtime.block_on(Proxy::to_store(&store, random.fork()))?;
            self.ways.push(way);
            store = through;
        }
        let [cert, key] = self.authority.broker().map(|file| file.display().to_string());
        let mut serve = vec!["broker", "serve", "--json", "--listen", &address, "--store", &store];
        serve.extend(["--tls-cert", &cert, "--tls-key", &key]);
        if let Some(redis) = &self.redis {
            serve.extend(["--limiter", redis.url(), "--brokers", "2"]);
        }
        self.process(&name, &serve)
    }

    /// Daemons that connect from now on may send so much in a second.
    fn limit(&self, messages: u32) -> Result<String> {
        let limit = format!("rate_limit={messages}");
        self.operate(&["mesh", "set", MESH, &limit, "rate_window_ms=1000"])
    }

    /// For brokers that start or read it again from now on.
    pub(crate) fn renew_certificate(&self) -> Result<()> {
        self.authority.renew()
    }

    /// What waits is nobody's rate any more, but only late: every daemon connects again and sends
    /// as much as it can.
    pub(crate) fn lift_limit(&self) -> Result<()> {
        self.limit(RATE_LIMIT_MAX)?;
        self.proxy.fail_all(Fault::Cut);
        Ok(())
    }

    /// A topic that everybody subscribes to, and a queue.
    fn settle(&self) -> Result<()> {
        let mut verbs = vec![(0, ["queue", "create", QUEUE]), (0, ["topic", "create", TOPIC])];
        verbs.extend((1..DAEMONS).map(|daemon| (daemon, ["topic", "subscribe", TOPIC])));
        for (daemon, verb) in verbs {
            let home = self.folder.join(&self.daemons[daemon].name).display().to_string();
            let command = [&verb[..], &["--home", &home]].concat();
            // A daemon is ready before it has found its broker.
            let done = wait_until(SETUP_LIMIT, || Ok(output(&self.program, &command).is_ok()))?;
            anyhow::ensure!(done, "semel {} does not succeed", command.join(" "));
        }
        Ok(())
    }

    fn join(&self, name: &str) -> Result<Process> {
        let url = format!("https://{}", self.proxy.address());
        let ca = self.authority.certificate().display().to_string();
        let invite = self.operate(&["invite", MESH, "--broker-url", &url, "--role", "member"])?;
        let home = self.folder.join(name).display().to_string();
        let join = ["mesh", "join", &invite, "--name", name, "--home", &home, "--broker-ca", &ca];
        output(&self.program, &join)?;
        let config = format!("[inbox]\nretention_days = {KEPT_DAYS}\n");
        fs::write(Path::new(&home).join("daemon").join(MESH).join("config.toml"), config)?;
        let up = ["daemon", "up", "--persistent", "--json", "--no-tcp", "--home", &home];
        self.process(name, &up)
    }

    /// With a clock of its own.
    fn process(&self, name: &str, arguments: &[&str]) -> Result<Process> {
        let library = self.faketime.as_deref();
        let clock = library.map(|library| ProcessClock::new(library, &self.folder, name));
        Process::start(name, &self.program, arguments, &self.folder, clock.transpose()?)
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub(crate) fn steps_clocks(&self) -> bool {
        self.faketime.is_some()
    }

    /// An operator's verb.
    pub(crate) fn operate(&self, verb: &[&str]) -> Result<String> {
        output(&self.program, &[&["broker"], verb, &["--store", &self.store]].concat())
    }

    pub(crate) fn client(&self, daemon: usize) -> Client {
        let home = self.folder.join(&self.daemons[daemon].name);
        Client::socket(home.join("daemon").join(MESH).join("sock"))
    }

    /// The public keys of the daemons' members.
    pub(crate) fn keys(&self) -> Result<Vec<String>> {
        let key = |daemon: &Process| Some(daemon.ready["pubkey"].as_str()?.to_owned());
        self.daemons.iter().map(key).collect::<Option<_>>().context("a daemon says who it is")
    }

    /// Everything in every inbox, each in the order of arrival; `None` while one does not answer.
    pub(crate) async fn inboxes(&self, keys: &[String]) -> Option<Vec<Arrived>> {
        let mut arrived = Vec::new();
        for (daemon, at) in keys.iter().enumerate() {
            for item in pages(&self.client(daemon), "/v1/inbox?limit=500").await? {
                let text = |field: &str| Some(item[field].as_str()?.to_owned());
                arrived.push(Arrived {
                    at: at.clone(),
                    sender: text("sender_pubkey")?,
                    priority: text("priority")?,
                    key: text("client_message_id")?,
                    body: text("body")?,
                });
            }
        }
        Some(arrived)
    }

    /// Sends that may be overtaken (mesh.md §2): a broker was heard to answer `5xx` to them, and
    /// they were tried so often that they wait on their own. `None` while an outbox is silent.
    pub(crate) async fn delayed(&self, keys: &[String]) -> Option<HashSet<SendId>> {
        let mut delayed = HashSet::new();
        for (daemon, sender) in keys.iter().enumerate() {
            for row in pages(&self.client(daemon), "/v1/outbox?limit=500").await? {
                let key = row["client_message_id"].as_str()?;
                let alone = row["attempts"].as_u64()? > ATTEMPTS_TOGETHER;
                if alone && self.proxy.record().undone(key) > 0 {
                    delayed.insert((sender.clone(), key.to_owned()));
                }
            }
        }
        Some(delayed)
    }

    /// Sends that wait or were given up, in all outboxes; `None` while one does not answer.
    pub(crate) async fn unfinished(&self) -> Option<(u64, u64)> {
        let (mut waiting, mut dead) = (0, 0);
        for daemon in 0..self.daemons.len() {
            let health = self.client(daemon).get("/v1/health").await.ok()?.body;
            waiting += health["queue_depth"].as_u64()?;
            dead += health["dead"].as_u64()?;
        }
        Some((waiting, dead))
    }
}

async fn pages(client: &Client, first: &str) -> Option<Vec<Value>> {
    let (mut items, mut next) = (Vec::new(), Some(first.to_owned()));
    while let Some(path) = next {
        let page = client.get(&path).await.ok()?.body;
        items.extend(page["items"].as_array()?.iter().cloned());
        next = page["next"].as_str().map(str::to_owned);
    }
    Some(items)
}

/// Free now, and below the ports that the system gives to connections: a broker that is away for a
/// moment must find its own free when it comes back.
fn free_address(random: &mut Random) -> Result<SocketAddr> {
    for _ in 0..PORT_TRIES_MAX {
        let port = PORTS.start + u16::try_from(random.below(PORTS.len()))?;
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            return Ok(listener.local_addr()?);
        }
    }
    anyhow::bail!("no free port")
}
