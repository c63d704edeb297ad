//! An engine put together: folder, configuration, store, gears, registrar. `semel up` runs one, and
//! so does `semel job serve`.

use std::fs::File;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use semel_client::Client;
use semel_core::clock::{Clock, SystemClock};
use semel_core::id::JobId;
use semel_core::mint::IdMint;
use semel_jobs::config::Config;
use semel_jobs::engine::{Engine, EngineOptions, Parts};
use semel_jobs::gear::load::Loader;
use semel_jobs::gear::registry::Registry;
use semel_jobs::limits;
use semel_jobs::store::postgres::{Signal, Signals};
use semel_jobs::store::{PostgresStore, SqliteStore, Store, postgres, sqlite};
use semel_registrar::registrar::Registrar;
use semel_registrar::registrar::sweeper::RetentionDays;
use semel_registrar::store as registrar;
use semel_store::postgres::{Postgres, PostgresOptions};
use semel_store::sqlite::{Sqlite, SqliteOptions};
use tokio::task::JoinSet;

use super::intake;
use crate::broker::token;
use crate::exit::{Exit, Failure, chain};
use crate::gear::ports::ports;
use crate::gear::shim;
use crate::system::{end, random};

/// What an engine is started with.
pub(crate) struct Start<'a> {
    /// The home.
    pub(crate) root: &'a Path,
    /// `postgres://…`; embedded SQLite without it.
    pub(crate) store: Option<&'a str>,
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
    loader: Arc<Loader>,
    /// What goes on beside the engine's own work.
    beside: JoinSet<()>,
    /// Nobody else works in this folder.
    _lock: File,
}

/// How often it is looked for gears that were installed or changed.
const REFRESH: Duration = Duration::from_secs(2);

fn refused(text: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Refused, format!("error: {text}"))
}

impl RunningJobs {
    /// Lock, read, open: in this order, so that nothing is touched twice.
    pub(crate) async fn open(start: Start<'_>) -> Result<Self, Failure> {
        let folder = start.root.join("jobs");
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        made.map_err(|error| refused(format_args!("{}: {error}", folder.display())))?;
        let lock = lock(&folder)?;
        let config = config(&folder)?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let (store, registrar_store) = match start.store {
            Some(address) => shared(address, &*clock).await?,
            None => embedded(&folder.join("jobs.db"), &*clock)?,
        };
        if let Store::Sqlite(store) = &store {
            // The lock says that nobody else works here, so that no lease has to be waited for.
            let until = clock.wall().saturating_add(limits::GEARS_OUTLIVE);
            store.end_claims(until).await.map_err(|error| refused(error.chain()))?;
        }
        let nonces = Arc::new(|| random().to_ne_bytes());
        let authority = Some(token::authority(&folder.join("authority"))?);
        let registrar =
            Registrar::start(registrar_store, Arc::clone(&clock), nonces, authority).await;
        let registrar = registrar.map_err(|error| refused(chain(&error)))?;
        let daemon = start.daemon.clone().map(Client::socket);
        let ports = ports(daemon, config.private_hosts.clone());
        let loader = Arc::new(Loader::new(start.root, shim()?, ports));
        let gears = Arc::new(Registry::default());
        loader.refresh(&gears).map_err(|error| refused(chain(&error)))?;
        let mint = Arc::new(IdMint::new(Arc::clone(&clock), Box::new(random)));
        let id: JobId = mint.uuid();
        let mut options = EngineOptions::new(format!("engine-{id}"), folder.join("work"));
        options.registrar_retention = start.retention;
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
        let (daemon, beside) = (start.daemon, JoinSet::new());
        Ok(Self { engine, config, daemon, loader, beside, _lock: lock })
    }

    /// Begins, once everything that gears call is ready.
    pub(crate) fn work(&mut self) -> Result<(), Failure> {
        if let Store::Postgres(store) = self.engine.store() {
            let signals = store.listen().map_err(|error| refused(chain(&error)))?;
            self.beside.spawn(listen(Arc::clone(&self.engine), signals));
        }
        self.engine.work();
        self.beside.spawn(refresh(Arc::clone(&self.engine), Arc::clone(&self.loader)));
        if let Some(socket) = &self.daemon {
            for place in &self.config.from {
                let engine = Arc::clone(&self.engine);
                self.beside.spawn(intake::run(engine, Client::socket(socket), place.clone()));
            }
        }
        Ok(())
    }

    /// Stops in order.
    pub(crate) async fn stop(mut self) {
        self.beside.shutdown().await;
        self.engine.stop().await;
    }
}

fn half(bits: u128) -> [u8; 8] {
    let mut half = [0; 8];
    half.copy_from_slice(&bits.to_ne_bytes()[..8]);
    half
}

fn lock(folder: &Path) -> Result<File, Failure> {
    let path = folder.join("lock");
    let failed =
        |error: &dyn std::fmt::Display| refused(format_args!("{}: {error}", path.display()));
    let file = File::options().create(true).append(true).open(&path).map_err(|e| failed(&e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {
            Err(refused(format_args!("an engine runs in {} already", folder.display())))
        }
        Err(std::fs::TryLockError::Error(error)) => Err(failed(&error)),
    }
}

fn config(folder: &Path) -> Result<Config, Failure> {
    let path = folder.join("config.toml");
    let failed =
        |error: &dyn std::fmt::Display| refused(format_args!("{}: {error}", path.display()));
    match std::fs::read_to_string(&path) {
        Ok(text) => Config::parse(&text).map_err(|error| failed(&error)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Config::default()),
        Err(error) => Err(failed(&error)),
    }
}

/// The engine's tables and the registrar's in one database, which other engines may share.
async fn shared(address: &str, clock: &dyn Clock) -> Result<(Store, registrar::Store), Failure> {
    let migrations = [postgres::MIGRATIONS, registrar::postgres::MIGRATIONS];
    let options = PostgresOptions::new(address);
    let opened = Postgres::open(options, &migrations, clock.wall().0).await;
    let database = opened.map_err(|error| refused(chain(&error)))?;
    let registrar = registrar::Store::Postgres(registrar::PostgresStore::new(database.clone()));
    Ok((Store::Postgres(PostgresStore::new(database)), registrar))
}

/// Hears what other engines of the same database say, until this one stops.
async fn listen(engine: Arc<Engine>, mut signals: Signals) {
    while let Ok(signal) = signals.next().await {
        match signal {
            Signal::Wake => engine.wake(),
            Signal::Stop(id) => engine.stop_job(id),
        }
    }
}

/// Gears are installed, enabled and disabled while the engine runs.
async fn refresh(engine: Arc<Engine>, loader: Arc<Loader>) {
    loop {
        tokio::time::sleep(REFRESH).await;
        let (engine, loader) = (Arc::clone(&engine), Arc::clone(&loader));
        let refreshed = tokio::task::spawn_blocking(move || loader.refresh(engine.gears())).await;
        if let Ok(Err(error)) = refreshed {
            tracing::warn!(error = chain(&error), "the gears could not be read");
        }
    }
}

fn embedded(path: &Path, clock: &dyn Clock) -> Result<(Store, registrar::Store), Failure> {
    let migrations = vec![sqlite::MIGRATIONS, registrar::sqlite::MIGRATIONS];
    let now_ms = clock.wall().0;
    let options =
        SqliteOptions::new(path, sqlite::APPLICATION_ID, migrations, now_ms, Arc::new(end));
    let file = Sqlite::open(&options).map_err(|error| refused(chain(&error)))?;
    let file = Arc::new(file);
    let registrar = registrar::Store::Sqlite(registrar::SqliteStore::new(Arc::clone(&file)));
    Ok((Store::Sqlite(SqliteStore::new(file)), registrar))
}
