//! `semel job backup | restore | start-fresh | check`: the engine's file in a home. PostgreSQL has
//! tools of its own, and `semel job restored` for what follows them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use semel_jobs::restore::{self, Restored};
use semel_store::sqlite::{Existing, Sqlite, refuse_changed};
use serde_json::json;

use super::engine::lock;
use crate::broker::backup::not_restored;
use crate::broker::target::failed;
use crate::daemon::home::{HomeArgument, home_words};
use crate::exit::{Exit, Failure, Form, chain};
use crate::stores::{self, Kept};
use crate::system::{end, now};
use crate::{print, progress};

/// Copy the engine's database file, also while it is in use
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  semel job backup --out jobs-monday.db")]
pub(super) struct BackupArguments {
    /// File for the copy; it must not exist yet
    #[arg(long)]
    out: PathBuf,
    #[command(flatten)]
    home: HomeArgument,
}

/// Replace the engine's database file by a backup
///
/// A backup does not know what happened after it: jobs that it shows as waiting or running may have
/// run since. Each of them is cancelled, and approvals are held until a person has looked.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  semel job restore --in jobs-monday.db --force")]
pub(super) struct RestoreArguments {
    /// File that `semel job backup` wrote
    #[arg(long = "in")]
    from: PathBuf,
    /// Replace an existing file; it is kept as `.replaced`, or `.replaced-2` and so on
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    home: HomeArgument,
}

/// Begin anew after the engine's database file was lost; existing files are left alone
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  semel job start-fresh --confirm")]
pub(super) struct FreshArguments {
    /// Confirm it; without this option nothing is done
    #[arg(long)]
    confirm: bool,
    #[command(flatten)]
    home: HomeArgument,
}

/// Check the engine's database file, also while it is in use
#[derive(Debug, clap::Args)]
pub(super) struct CheckArguments {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    home: HomeArgument,
}

/// The file of a home; a failure when there is none.
fn file(root: &Path) -> Result<PathBuf, Failure> {
    let path = root.join("jobs/jobs.db");
    if std::fs::metadata(&path).is_ok_and(|file| file.len() > 0) {
        return Ok(path);
    }
    Err(Failure::new(Exit::NotFound, format!("error: there is no {}", path.display())))
}

pub(super) fn unfit(error: &semel_store::OpenError, root: &Path) -> Failure {
    if !error.is_damage() {
        return Failure::new(Exit::of_open(error), format!("error: {}", chain(error)));
    }
    let at = home_words(root);
    let text = format!(
        "error: {}\nto restore a good copy: semel job restore --in BACKUP --force{at}",
        chain(error)
    );
    Failure::new(Exit::Refused, text)
}

pub(super) async fn backup(arguments: &BackupArguments) -> Result<(), Failure> {
    let root = arguments.home.find()?;
    let path = file(&root)?;
    if arguments.out.exists() {
        let text = format!("error: {} exists already", arguments.out.display());
        return Err(Failure::new(Exit::Conflict, text));
    }
    // A copy of a page that has changed under its engine would look sound.
    refuse_changed(&path).map_err(|error| unfit(&error, &root))?;
    let options = restore::options(&path, now(), Arc::new(end));
    let store = Sqlite::open(&options).map_err(|error| unfit(&error, &root))?;
    let _shown = progress::show("copying");
    let done = store.backup_into(&arguments.out).await.map_err(|error| failed(&error));
    store.close().await;
    done
}

pub(super) async fn restore(arguments: &RestoreArguments) -> Result<(), Failure> {
    let root = arguments.home.find()?;
    let existing = if arguments.force { Existing::Replace } else { Existing::Keep };
    let to = root.join("jobs/jobs.db");
    let shown = progress::show("copying");
    let done = restore::restore(&arguments.from, &to, existing, now(), Arc::new(end)).await;
    drop(shown);
    let done = done.map_err(|error| not_restored(&error, "the job engine"))?;
    say_restored("restored; ", done, &root)
}

pub(super) fn start_fresh(arguments: &FreshArguments) -> Result<(), Failure> {
    let root = arguments.home.find()?;
    let folder = root.join("jobs");
    let _alone = folder.is_dir().then(|| lock(&folder)).transpose()?;
    let loses = "jobs, their results and approvals are lost, so a job that is submitted again runs \
                 again";
    stores::start_fresh(&[Kept::jobs(&root)], arguments.confirm, loses)?;
    print("the next start makes a new file\n")
}

/// What became of a store that was restored, and what to do now.
pub(super) fn say_restored(how: &str, done: Restored, root: &Path) -> Result<(), Failure> {
    let (Restored { cancelled, held }, at) = (done, home_words(root));
    print(&format!("{how}{cancelled} unfinished jobs are cancelled\n"))?;
    if cancelled > 0 {
        print(&format!("to look at them: semel job list --status cancelled{at}\n"))?;
    }
    if held > 0 {
        print(&format!(
            "registrations are held in {held} domains\n\
             to approve jobs again: semel registrar gate open jobs{at}\n"
        ))?;
    }
    Ok(())
}

/// What SQLite finds wrong in the whole file.
async fn complaints(path: &Path, root: &Path) -> Result<Vec<String>, Failure> {
    let options = restore::options(path, now(), Arc::new(end));
    let store = Sqlite::open_to_read(&options).map_err(|error| unfit(&error, root))?;
    let _shown = progress::show("checking");
    let found = store.integrity_check().await.unwrap_or_else(|error| vec![error.chain()]);
    store.close().await;
    Ok(found)
}

pub(super) async fn check(arguments: &CheckArguments) -> Result<(), Failure> {
    let root = arguments.home.find()?;
    let path = file(&root)?;
    let found = match refuse_changed(&path) {
        // What is before the fault may not even have its tables.
        Err(error) => vec![chain(&error)],
        Ok(()) => complaints(&path, &root).await?,
    };
    let name = path.display().to_string();
    match Form::of_flag(arguments.json) {
        Form::Json => {
            let document = json!({"file": name, "sound": found.is_empty(), "findings": found});
            print(&format!("{document}\n"))?;
        }
        Form::Text if found.is_empty() => print(&format!("{name} is sound\n"))?,
        Form::Text => print(&format!("{}\n", found.join("\n")))?,
    }
    if found.is_empty() {
        return Ok(());
    }
    let text = format!(
        "error: {name} is damaged\nto restore a good copy: semel job restore --in BACKUP --force{}",
        home_words(&root)
    );
    Err(Failure::new(Exit::Failed, text))
}
