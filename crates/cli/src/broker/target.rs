//! Which store a command means, and opening it.

use std::path::PathBuf;
use std::sync::Arc;

use semel_broker::store::{Mesh, PostgresStore, SqliteStore, Store};
use semel_core::clock::{Clock, SystemClock, UnixMs};
use semel_core::mint::IdMint;
use semel_store::postgres::PostgresOptions;
use semel_store::{OpenError, StoreError};

use crate::exit::{Exit, Failure};

#[derive(Debug, clap::Args)]
pub(crate) struct Target {
    /// `sqlite:PATH` or `postgres://…`
    #[arg(long)]
    store: String,
}

impl Target {
    /// The file, when it is SQLite.
    pub(super) fn sqlite_path(&self) -> Option<PathBuf> {
        let path = self.store.strip_prefix("sqlite:").filter(|path| !path.is_empty());
        path.map(PathBuf::from)
    }

    /// Opens the store, and migrates it.
    pub(super) async fn open(&self) -> Result<Store, Failure> {
        let now = SystemClock::new().wall();
        // A store that is new gets a name of its own; one that is not keeps the one it has.
        let store_epoch = mint().client_message_id().to_string();
        let opened = match (self.store.strip_prefix("sqlite:"), self.store.split_once("://")) {
            (Some(path), _) if !path.is_empty() => {
                let path = PathBuf::from(path);
                let opened = SqliteStore::open(&path, store_epoch, now, Arc::new(end)).await;
                opened.map(|store| Store::Sqlite(Arc::new(store)))
            }
            (None, Some(("postgres" | "postgresql", _))) => {
                let options = PostgresOptions::new(&self.store);
                PostgresStore::open(options, &store_epoch, now).await.map(Store::Postgres)
            }
            _ => {
                let text = "error: --store is sqlite:PATH or postgres://…";
                return Err(Failure::new(Exit::Usage, text));
            }
        };
        opened.map_err(refused)
    }
}

/// A store that cannot be used, with everything that is known about why.
pub(super) fn refused(error: OpenError) -> Failure {
    let mut text = format!("error: the store cannot be used: {error}");
    let mut source = std::error::Error::source(&error);
    while let Some(error) = source {
        text.push_str(&format!(": {error}"));
        source = error.source();
    }
    Failure::new(Exit::Refused, text)
}

/// Nobody can know what is on disk: end, before anybody is told anything, and let recovery by key
/// decide after the restart.
pub(super) fn end(error: &StoreError) {
    tracing::error!(error = error.chain(), "the process ends: a commit's outcome is unknown");
    exit();
}

#[expect(clippy::exit, reason = "only the command line ends the process, and here it must")]
fn exit() -> ! {
    std::process::exit(Exit::Unavailable.code());
}

/// New ids from the machine's clock and randomness.
pub(super) fn mint() -> Arc<IdMint> {
    Arc::new(IdMint::new(Arc::new(SystemClock::new()), Box::new(random)))
}

/// Bits that nobody can guess. Without a source of them nothing here is safe to do.
pub(super) fn random() -> u128 {
    let mut bytes = [0; 16];
    if getrandom::fill(&mut bytes).is_err() {
        tracing::error!("the system has no source of randomness");
        exit();
    }
    u128::from_ne_bytes(bytes)
}

/// 32 of them: a token, a challenge.
pub(super) fn random_bytes() -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&random().to_ne_bytes());
    bytes[16..].copy_from_slice(&random().to_ne_bytes());
    bytes
}

pub(super) fn now() -> UnixMs {
    SystemClock::new().wall()
}

/// The mesh of that name.
pub(super) async fn mesh(store: &Store, slug: &str) -> Result<Mesh, Failure> {
    let found = store.mesh_find(slug).await.map_err(|error| failed(&error))?;
    found.ok_or_else(|| {
        let text = format!(
            "error: there is no mesh {slug:?}\nto make it: semel broker mesh create {slug}"
        );
        Failure::new(Exit::NotFound, text)
    })
}

pub(super) fn failed(error: &StoreError) -> Failure {
    Failure::new(Exit::Failed, format!("error: {}", error.chain()))
}
