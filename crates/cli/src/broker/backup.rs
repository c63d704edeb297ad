//! `semel broker backup | restore | start-fresh | new-epoch`.

use std::path::PathBuf;
use std::sync::Arc;

use semel_broker::store::{SqliteStore, Store};
use semel_store::sqlite::{Alone, Existing, RestoreError, refuse_changed};

use super::registrar;
use super::target::{self, end, failed, mint, now};
use crate::exit::{Exit, Failure, chain};
use crate::{print, progress, stores};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  semel broker backup --out broker-monday.db --store sqlite:broker.db"
)]
pub(crate) struct BackupArguments {
    /// File for the copy; it must not exist yet
    #[arg(long)]
    out: PathBuf,
    #[command(flatten)]
    file: target::FileTarget,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  semel broker restore --in broker-monday.db --force --store sqlite:broker.db

Messages that were accepted after the backup are not in it. The restored store therefore gets a new
epoch, and daemons send their recently accepted messages again.")]
pub(crate) struct RestoreArguments {
    /// File that `semel broker backup` wrote
    #[arg(long = "in")]
    from: PathBuf,
    /// Replace an existing store; it is kept as `.replaced`, or `.replaced-2` and so on
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    file: target::FileTarget,
}

pub(super) async fn backup(arguments: &BackupArguments) -> Result<(), Failure> {
    let target = arguments.file.place()?;
    let Some(path) = target.sqlite_path() else {
        let text = "error: a PostgreSQL database is backed up with its own tools: pg_dump, or \
                    pg_basebackup with its log";
        return Err(Failure::new(Exit::Usage, text));
    };
    // Opening what is not there would make it.
    if !path.exists() {
        let text = format!("error: there is no store {}", path.display());
        return Err(Failure::new(Exit::NotFound, text));
    }
    if arguments.out.exists() {
        let text = format!("error: {} exists already", arguments.out.display());
        return Err(Failure::new(Exit::Conflict, text));
    }
    // A copy of a page that has changed under its broker would look sound.
    refuse_changed(&path).map_err(|error| target.unfit(error))?;
    let opened = target.open_used().await?;
    match &*opened {
        Store::Sqlite(store) => {
            let _shown = progress::show("copying");
            let done = store.backup_into(&arguments.out).await;
            done.map_err(|error| failed(&error))
        }
        Store::Postgres(_) => Ok(()),
    }
}

pub(super) async fn restore(arguments: &RestoreArguments) -> Result<(), Failure> {
    let target = arguments.file.place()?;
    let Some(to) = target.sqlite_path() else {
        let text = "error: a PostgreSQL database is restored with its own tools; before a broker \
                    serves it, run: semel broker new-epoch";
        return Err(Failure::new(Exit::Usage, text));
    };
    let existing = if arguments.force { Existing::Replace } else { Existing::Keep };
    let epoch = mint().client_message_id().to_string();
    let shown = progress::show("copying");
    let done = SqliteStore::restore(&arguments.from, &to, existing, &epoch, now(), Arc::new(end));
    done.await.map_err(|error| not_restored(&error, "the broker"))?;
    drop(shown);
    let store = target.open().await?;
    registrar::hold_all(&store).await?;
    print(&format!("restored as epoch {epoch}\n"))
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  semel broker start-fresh --confirm --store sqlite:broker.db")]
pub(crate) struct FreshArguments {
    /// Confirm it; without this option nothing is done
    #[arg(long)]
    confirm: bool,
    #[command(flatten)]
    file: target::FileTarget,
}

pub(super) fn start_fresh(arguments: &FreshArguments) -> Result<(), Failure> {
    let target = arguments.file.place()?;
    let Some(path) = target.sqlite_path() else {
        let text = "error: --store must be sqlite:PATH: a PostgreSQL database is never begun anew";
        return Err(Failure::new(Exit::Usage, text));
    };
    let alone = Alone::with(&path).map_err(target::refused)?;
    if alone.is_none() {
        return Err(not_restored(&RestoreError::InUse(path), "the broker"));
    }
    let loses = "meshes, members, waiting messages and used ids are lost: hosts send their earlier \
                 messages again, and these arrive again";
    stores::start_fresh(&stores::of_broker(&path), arguments.confirm, loses)?;
    print("the next start makes a new store\n")
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  semel broker new-epoch --confirm --store postgres://db.example/semel"
)]
pub(crate) struct EpochArguments {
    /// Confirm it: brokers that serve this store end, and the registrar holds every domain
    #[arg(long)]
    confirm: bool,
    #[command(flatten)]
    target: target::Target,
}

pub(super) async fn new_epoch(arguments: &EpochArguments) -> Result<(), Failure> {
    let target = arguments.target.place()?;
    let is_alone = match target.sqlite_path().filter(|path| path.exists()) {
        Some(path) => Alone::with(&path).map_err(|error| target.unfit(error))?.is_some(),
        None => true,
    };
    let store = target.open_used().await?;
    if !arguments.confirm {
        let live = match &*store {
            Store::Sqlite(_) => u64::from(!is_alone),
            Store::Postgres(store) => store.brokers_live().await.map_err(|error| failed(&error))?,
        };
        let live = match live {
            0 => "no broker has daemons here now".to_owned(),
            1 => "1 broker serves this store now and would end".to_owned(),
            live => format!("{live} brokers serve this store now and would end"),
        };
        let text = format!(
            "error: daemons would send their recent messages again, and every domain of the \
             registrar would be held; {live}\n\
             to do it: --confirm"
        );
        return Err(Failure::new(Exit::Conflict, text));
    }
    let epoch = mint().client_message_id().to_string();
    store.store_renew(&epoch).await.map_err(|error| failed(&error))?;
    registrar::hold_all(&store).await?;
    print(&format!("the store's epoch is {epoch}\n"))
}

/// Why nothing was restored, and what to do with whom.
pub(crate) fn not_restored(error: &RestoreError, who: &str) -> Failure {
    let (exit, advice) = match error {
        RestoreError::Exists(_) => (Exit::Conflict, "\nto replace it: --force".to_owned()),
        RestoreError::InUse(_) => (Exit::Conflict, format!("\nstop {who} first")),
        RestoreError::NotABackup { .. } | RestoreError::Damaged { .. } => {
            (Exit::Refused, String::new())
        }
        RestoreError::Open(_) | RestoreError::Store(_) | RestoreError::Io { .. } => {
            (Exit::Failed, String::new())
        }
    };
    Failure::new(exit, format!("error: {}{advice}", chain(error)))
}
