//! An engine put together: folder, configuration, store, gears, registrar. `semel up` runs one, and
//! so does `semel job serve`.

use std::fs::File;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use semel_client::Client;
use semel_core::clock::{Clock, SystemClock};
use semel_core::id::JobId;
use semel_core::mint::IdMint;
use semel_jobs::config::Config;
use semel_jobs::engine::{Engine, EngineOptions, Parts};
use semel_jobs::gear::builtin::mesh::MeshPort;
use semel_jobs::gear::groups::Groups;
use semel_jobs::gear::leftovers;
use semel_jobs::gear::load::Loader;
use semel_jobs::gear::registry::Registry;
use semel_jobs::limits;
use semel_jobs::restore;
use semel_jobs::store::postgres::Signals;
use semel_jobs::store::{PostgresStore, SqliteStore, Store, postgres};
use semel_registrar::registrar::Registrar;
use semel_registrar::registrar::sweeper::RetentionDays;
use semel_registrar::store as registrar;
use semel_store::OpenError;
use semel_store::postgres::Postgres;
use semel_store::sqlite::Sqlite;
use semel_vital::Vital;
use tokio::task::JoinSet;

use super::backup::unfit;
use super::intake;
use crate::address::Address;
use crate::checks::{self, NOFOLLOW};
use crate::exit::{self, Exit, Failure, chain};
use crate::gear::ports::ports;
use crate::gear::shim;
use crate::stores::Kept;
use crate::system::{close, end, now, random};

/// What an engine is started with.
pub(crate) struct Start<'a> {
    /// The home.
    pub(crate) root: &'a Path,
    /// A PostgreSQL; embedded SQLite without it.
    pub(crate) store: Option<&'a Address>,
    /// The daemon of the mesh that its jobs speak to.
    pub(crate) daemon: Option<PathBuf>,
    /// How long its registrar keeps what is over.
    pub(crate) retention: RetentionDays,
}

/// An engine that is ready to work.
pub(crate) struct RunningJobs {
    pub(crate) engine: Arc<Engine>,
    config: Config,
    daemon: Option<PathBuf>,
    root: PathBuf,
    loader: Arc<Loader>,
    mesh: Option<Arc<dyn MeshPort>>,
    /// What goes on beside the engine's own work.
    beside: JoinSet<()>,
    vital: Vital,
    /// Nobody else works in this folder.
    _lock: File,
}

/// How often it is looked for what killed programs have left.
const PURGE: Duration = Duration::from_secs(10 * 60);

/// How often it is looked for gears that were installed or changed.
const REFRESH: Duration = Duration::from_secs(2);

pub(super) fn refused(text: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Refused, format!("error: {text}"))
}

/// A database that was not opened.
pub(super) fn unopened(error: &OpenError) -> Failure {
    Failure::new(Exit::of_open(error), format!("error: {}", exit::unopened(error)))
}

impl RunningJobs {
    /// Look, lock, read, open: in this order, so that nothing is touched twice, and nothing at all
    /// in a home of somebody else.
    pub(crate) async fn open(start: Start<'_>) -> Result<Self, Failure> {
        checks::refuse(checks::jobs(start.root))?;
        let folder = start.root.join("jobs");
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        made.map_err(|error| refused(format_args!("{}: {error}", folder.display())))?;
        let lock = lock(&folder)?;
        let config = config(&folder)?;
        refuse_deaf(&folder, &config, start.daemon.as_deref())?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let (store, registrar_store) = match start.store {
            Some(address) => shared(address, &*clock).await?,
            None => embedded(start.root, &*clock)?,
        };
        if let Store::Sqlite(store) = &store {
            // The lock says that nobody else works here, so that no lease has to be waited for.
            let (now, uptime) = (clock.wall(), clock.uptime());
            let until = now.saturating_add(limits::GEARS_OUTLIVE);
            store.begin_life(now, uptime, until).await.map_err(|error| refused(error.chain()))?;
        }
        let nonces = Arc::new(|| random().to_ne_bytes());
        let authority = Kept::jobs_key(start.root).authority()?;
        // Every home has a key of its own, and so a name that no other has.
        let home_name = authority.public().to_hex().to_string();
        let authority = Some(authority);
        let registrar =
            Registrar::start(registrar_store, Arc::clone(&clock), nonces, authority).await;
        let kept_in = match start.store {
            Some(_) => "the database".to_owned(),
            None => Kept::jobs(start.root).path.display().to_string(),
        };
        let registrar =
            registrar.map_err(|error| refused(format!("{kept_in}: {}", chain(&error))))?;
        let daemon = start.daemon.clone().map(Client::socket);
        let mut ports = ports(daemon, &config);
        ports.groups = groups();
        let mesh = ports.mesh.clone();
        let loader = Arc::new(Loader::new(start.root, shim()?, ports));
        let gears = Arc::new(Registry::default());
        // Schemas of strangers are read, and private copies compared.
        let (loading, into) = (Arc::clone(&loader), Arc::clone(&gears));
        let loaded = tokio::task::spawn_blocking(move || loading.refresh(&into)).await;
        let loaded = loaded.map_err(|error| refused(chain(&error)))?;
        loaded.map_err(|error| refused(chain(&error)))?;
        let mint = Arc::new(IdMint::new(Arc::clone(&clock), Box::new(random)));
        let id: JobId = mint.uuid();
        let mut options = EngineOptions::new(format!("engine-{id}"), folder.join("work"));
        options.registrar_retention = start.retention;
        options.home = start.store.map(|_| home_name.clone());
        config.tune(&mut options).map_err(|error| refused(chain(&error)))?;
        let parts = Parts {
            store,
            gears,
            registrar: Arc::new(registrar),
            planner: None,
            validator: None,
            clock,
            mint,
            random: Arc::new(|| u64::from_ne_bytes(half(random()))),
        };
        let engine = Engine::open(parts, options).await;
        let engine = Arc::new(engine.map_err(|error| refused(error.chain()))?);
        let (daemon, beside, vital) = (start.daemon, JoinSet::new(), Vital::default());
        let root = start.root.to_owned();
        Ok(Self { engine, config, daemon, root, loader, mesh, beside, vital, _lock: lock })
    }

    /// Begins, once everything that gears call is ready.
    pub(crate) fn work(&mut self) -> Result<(), Failure> {
        if let Store::Postgres(store) = self.engine.store() {
            let signals = store.listen().map_err(|error| unopened(&error))?;
            let listening = listen(Arc::clone(&self.engine), signals);
            self.beside.spawn(self.vital.keep("signals", listening));
        }
        if let Some(mesh) = self.mesh.clone() {
            // So that the first message knows as whom it leaves.
            self.beside.spawn(async move { drop(mesh.learn_sender().await) });
        }
        self.engine.work();
        let refreshing = refresh(Arc::clone(&self.engine), Arc::clone(&self.loader));
        self.beside.spawn(self.vital.keep("gears", refreshing));
        self.beside.spawn(self.vital.keep("leftovers", purge(self.root.clone())));
        if let Some(socket) = &self.daemon {
            for place in &self.config.from {
                let engine = Arc::clone(&self.engine);
                let taking = intake::run(engine, Client::socket(socket), place.clone());
                self.beside.spawn(self.vital.keep("intake", taking));
            }
        }
        Ok(())
    }

    /// Why the engine must end, once it must.
    pub(crate) async fn ended(&self) -> Failure {
        tokio::select! {
            ended = self.vital.ended() => ended.into(),
            ended = self.engine.ended() => ended.into(),
        }
    }

    /// Where its gears come from.
    pub(crate) fn loader(&self) -> Arc<Loader> {
        Arc::clone(&self.loader)
    }

    /// Stops in order. Questions are answered until it is dropped, which closes its file.
    pub(crate) async fn stop(&mut self) {
        self.vital.stop();
        self.beside.shutdown().await;
        self.engine.stop().await;
    }
}

impl Drop for RunningJobs {
    fn drop(&mut self) {
        close(self.engine.store().close());
    }
}

/// The control groups of this process, if it may have some.
fn groups() -> Option<Arc<Groups>> {
    match Groups::take() {
        Ok(groups) => Some(Arc::new(groups)),
        Err(why) => {
            tracing::info!(%why, "limits of gears apply to each process, not to all");
            None
        }
    }
}

fn half(bits: u128) -> [u8; 8] {
    let mut half = [0; 8];
    half.copy_from_slice(&bits.to_ne_bytes()[..8]);
    half
}

pub(super) fn lock(folder: &Path) -> Result<File, Failure> {
    let path = folder.join("lock");
    let failed =
        |error: &dyn std::fmt::Display| refused(format_args!("{}: {error}", path.display()));
    let mut options = File::options();
    let file = options.create(true).append(true).mode(0o600).custom_flags(NOFOLLOW).open(&path);
    let file = file.map_err(|error| failed(&error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {
            Err(refused(format_args!("an engine already runs in {}", folder.display())))
        }
        Err(std::fs::TryLockError::Error(error)) => Err(failed(&error)),
    }
}

/// The engine's configuration; the usual one where there is none.
pub(crate) fn config(folder: &Path) -> Result<Config, Failure> {
    let path = folder.join("config.toml");
    let failed =
        |error: &dyn std::fmt::Display| refused(format_args!("{}: {error}", path.display()));
    match std::fs::read_to_string(&path) {
        Ok(text) => Config::parse(&text).map_err(|error| failed(&error)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Config::default()),
        Err(error) => Err(failed(&error)),
    }
}

/// Messages come from a daemon alone: without one, none of them would ever be a job.
fn refuse_deaf(folder: &Path, config: &Config, daemon: Option<&Path>) -> Result<(), Failure> {
    if config.from.is_empty() || daemon.is_some() {
        return Ok(());
    }
    let path = folder.join("config.toml");
    Err(refused(format_args!(
        "{}: `from` takes jobs from messages, and this engine has no daemon that receives them\n\
         to name one: semel job serve --daemon SOCKET; without messages: delete the line",
        path.display()
    )))
}

/// The engine's tables and the registrar's in one database, which other engines may share.
pub(super) async fn shared(
    address: &Address,
    clock: &dyn Clock,
) -> Result<(Store, registrar::Store), Failure> {
    let migrations = [postgres::MIGRATIONS, registrar::postgres::MIGRATIONS];
    let options = address.postgres()?;
    let opened = Postgres::open(options, &migrations, clock.wall().0).await;
    let database = opened.map_err(|error| unopened(&error))?;
    let registrar = registrar::Store::Postgres(registrar::PostgresStore::new(database.clone()));
    Ok((Store::Postgres(PostgresStore::new(database)), registrar))
}

/// Hears what other engines of the same database say, until this one stops.
async fn listen(engine: Arc<Engine>, mut signals: Signals) {
    while let Ok(signal) = signals.next().await {
        engine.hear(signal);
    }
}

/// What killed programs have left is removed while the engine runs.
async fn purge(root: PathBuf) {
    let mut looks = tokio::time::interval(PURGE);
    loop {
        looks.tick().await;
        let root = root.clone();
        let purged = tokio::task::spawn_blocking(move || leftovers::purge(&root, now())).await;
        if purged.is_err() {
            // What panicked is tried again; the hook has said where.
            tracing::error!("files that killed programs left behind could not be removed");
        }
    }
}

/// Gears are installed, enabled and disabled while the engine runs.
async fn refresh(engine: Arc<Engine>, loader: Arc<Loader>) {
    loop {
        tokio::time::sleep(REFRESH).await;
        let (engine, loader) = (Arc::clone(&engine), Arc::clone(&loader));
        let refreshed = tokio::task::spawn_blocking(move || loader.refresh(engine.gears())).await;
        match refreshed {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(error = chain(&error), "the gears could not be read"),
            // What panicked is tried again; the hook has said where.
            Err(_) => tracing::error!("the gears could not be read"),
        }
    }
}

/// The home's own file, which is noted as made before anything is in it.
fn embedded(root: &Path, clock: &dyn Clock) -> Result<(Store, registrar::Store), Failure> {
    let kept = Kept::jobs(root);
    kept.refuse_lost()?;
    let options = restore::options(&kept.path, clock.wall(), Arc::new(end)).to_serve();
    let file = Sqlite::open(&options).map_err(|error| unfit(&error, root))?;
    kept.note()?;
    let file = Arc::new(file);
    let registrar = registrar::Store::Sqlite(registrar::SqliteStore::new(Arc::clone(&file)));
    Ok((Store::Sqlite(SqliteStore::new(file)), registrar))
}
