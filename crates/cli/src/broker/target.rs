//! Which store a command means, and opening it.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;

use semel_broker::store::{
    Mesh, PostgresStore, SQLITE_APPLICATION_ID, SQLITE_MIGRATIONS, SqliteStore, Store,
};
use semel_core::clock::{Clock, SystemClock};
use semel_registrar::store as registrar;
use semel_store::sqlite::{Purpose, SqliteOptions};
use semel_store::{Fate, OpenError, StoreError};

use crate::address::{Address, StoreFile};
use crate::exit::{Exit, Failure, unopened};
use crate::progress;
use crate::stores::Kept;
use crate::system::close;
pub(super) use crate::system::{end, mint, now, random_bytes};

#[derive(Debug, clap::Args)]
pub(crate) struct Target {
    /// `sqlite:PATH` or `postgres://…`
    #[arg(long)]
    store: Option<String>,
    #[command(flatten)]
    file: StoreFile,
}

/// The same of a verb that knows SQLite files alone.
#[derive(Debug, clap::Args)]
pub(crate) struct FileTarget {
    /// `sqlite:PATH`; for PostgreSQL use its own tools
    #[arg(long)]
    store: Option<String>,
    #[command(flatten)]
    file: StoreFile,
}

/// Where a store is, once everybody was asked who may say it.
pub(crate) struct Place(Address);

impl FileTarget {
    pub(super) fn place(&self) -> Result<Place, Failure> {
        self.file.address(self.store.as_ref())?.map(Place).ok_or_else(nowhere)
    }
}

impl Target {
    pub(crate) fn place(&self) -> Result<Place, Failure> {
        self.file.address(self.store.as_ref())?.map(Place).ok_or_else(nowhere)
    }

    /// Opens a store that a broker has used before; makes none.
    pub(super) async fn open_used(&self) -> Result<Opened, Failure> {
        self.place()?.open_used().await
    }

    /// Opens the store, and migrates it.
    pub(crate) async fn open(&self) -> Result<Opened, Failure> {
        self.place()?.open().await
    }

    /// The same for whoever serves it.
    pub(crate) async fn open_to_serve(&self) -> Result<Opened, Failure> {
        self.place()?.open_to_serve().await
    }
}

fn nowhere() -> Failure {
    let text = "error: name the store: --store sqlite:PATH or postgres://…, --store-file FILE, or \
                SEMEL_STORE in the environment\n\
                for example: --store sqlite:broker.db";
    Failure::new(Exit::Usage, text)
}

/// A store that is open for as long as a command needs it, and closed in order after that.
pub(crate) struct Opened(Store);

impl Deref for Opened {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.0
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        close(self.0.close());
    }
}

impl Place {
    /// What another command says.
    pub(crate) const fn at(address: Address) -> Self {
        Self(address)
    }

    /// The file, when it is SQLite.
    pub(super) fn sqlite_path(&self) -> Option<PathBuf> {
        let path = self.0.text.strip_prefix("sqlite:").filter(|path| !path.is_empty());
        path.map(PathBuf::from)
    }

    /// Opens a store that a broker has used before; makes none.
    pub(super) async fn open_used(&self) -> Result<Opened, Failure> {
        if let Some(path) = self.sqlite_path() {
            Kept::broker_file(&path).refuse_lost()?;
        }
        let missing = match self.sqlite_path() {
            Some(path) if !path.exists() => Some(format!("there is no store {}", path.display())),
            Some(_) => None,
            None if self.0.text.contains("://") => {
                let found = PostgresStore::is_in(self.0.postgres()?).await;
                let none = "this database has no tables of a broker";
                (!found.map_err(refused)?).then(|| none.to_owned())
            }
            None => None,
        };
        match missing {
            Some(text) => Err(Failure::new(Exit::NotFound, format!("error: {text}"))),
            None => self.open().await,
        }
    }

    /// Opens the store, and migrates it.
    pub(super) async fn open(&self) -> Result<Opened, Failure> {
        self.open_for(Purpose::Visit).await
    }

    /// The same for whoever serves it.
    pub(crate) async fn open_to_serve(&self) -> Result<Opened, Failure> {
        self.0.warn_if_seen("--store");
        self.open_for(Purpose::Serve).await
    }

    /// Why it cannot be used, and what to do about it.
    pub(super) fn unfit(&self, error: OpenError) -> Failure {
        let is_damaged = error.is_damage();
        let mut failure = refused(error);
        if is_damaged {
            let store = &self.0.text;
            failure.text.push_str(&format!(
                "\n\
                 nothing was changed\n\
                 to restore a good copy: semel broker restore --in BACKUP --force --store {store}"
            ));
        }
        failure
    }

    /// One that is made is noted before anything is in it.
    async fn open_for(&self, purpose: Purpose) -> Result<Opened, Failure> {
        let kept = self.sqlite_path().map(|path| Kept::broker_file(&path));
        if let Some(kept) = &kept {
            kept.refuse_lost()?;
        }
        let store = self.open_or_make(purpose).await?;
        if let Some(kept) = &kept {
            kept.note()?;
        }
        Ok(store)
    }

    async fn open_or_make(&self, purpose: Purpose) -> Result<Opened, Failure> {
        let _shown = progress::show("opening the store");
        let now = SystemClock::new().wall();
        // A store that is new gets a name of its own; one that is not keeps the one it has.
        let store_epoch = mint().client_message_id().to_string();
        let address = &self.0.text;
        let opened = match (address.strip_prefix("sqlite:"), address.split_once("://")) {
            (Some(path), _) if !path.is_empty() => {
                let migrations = vec![SQLITE_MIGRATIONS, registrar::sqlite::MIGRATIONS];
                let id = SQLITE_APPLICATION_ID;
                let options = SqliteOptions::new(path, id, migrations, now.0, Arc::new(end));
                let options = SqliteOptions { purpose, ..options };
                let opened = SqliteStore::open_with(&options, store_epoch).await;
                opened.map(|store| Store::Sqlite(Arc::new(store)))
            }
            (None, Some(("postgres" | "postgresql", _))) => {
                let options = self.0.postgres()?;
                let beside = [registrar::postgres::MIGRATIONS];
                let opened = PostgresStore::open_beside(options, &store_epoch, now, &beside).await;
                opened.map(Store::Postgres)
            }
            _ => {
                let text = "error: a store must be sqlite:PATH or postgres://…\n\
                            for example: --store sqlite:broker.db";
                return Err(Failure::new(Exit::Usage, text));
            }
        };
        opened.map(Opened).map_err(|error| self.unfit(error))
    }
}

/// A store that cannot be used, with everything that is known about why.
pub(super) fn refused(error: OpenError) -> Failure {
    let text = format!("error: the store cannot be used: {}", unopened(&error));
    Failure::new(Exit::of_open(&error), text)
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

/// The store did not do it, or nobody can tell whether it did.
pub(crate) fn failed(error: &StoreError) -> Failure {
    let why = error.chain();
    match error.fate() {
        Fate::Undone => Failure::new(Exit::Failed, format!("error: {why}")),
        Fate::Uncertain => {
            let text = format!(
                "error: {why}\nit is unknown whether it was done: check before you repeat it"
            );
            Failure::new(Exit::Unknown, text)
        }
    }
}
