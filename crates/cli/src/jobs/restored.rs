//! `semel job restored`: a database was put back by PostgreSQL's own tools.

use semel_core::clock::SystemClock;
use semel_jobs::restore::{self, RestoredError};
use semel_jobs::store::postgres;
use semel_store::postgres::Postgres;

use super::backup::say_restored;
use super::engine::{shared, unopened};
use crate::address::{Address, StoreFile};
use crate::broker::target::failed;
use crate::daemon::home::HomeArgument;
use crate::exit::{Exit, Failure, chain};
use crate::progress;
use crate::system::{now, random};

/// Cancel the unfinished jobs of a database that was restored by its own tools
///
/// A backup does not know what happened after it: jobs that it shows as waiting or running may have
/// run since. Each of them is cancelled, and approvals are held until a person has looked. Run the
/// command before any engine uses the database; it may be repeated.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  semel job restored --store postgres://db.internal/semel")]
pub(super) struct Arguments {
    /// `postgres://…`
    #[arg(long)]
    store: Option<String>,
    #[command(flatten)]
    store_file: StoreFile,
    #[command(flatten)]
    home: HomeArgument,
}

pub(super) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let address = arguments.store_file.address(arguments.store.as_ref())?;
    let is_postgres = |address: &Address| {
        let scheme = address.text.split_once("://").map(|(scheme, _)| scheme);
        matches!(scheme, Some("postgres" | "postgresql"))
    };
    let Some(address) = address.filter(is_postgres) else {
        let text = "error: name the database: --store postgres://…, --store-file FILE, or \
                    SEMEL_STORE in the environment\n\
                    to restore a file: semel job restore --in FILE --force";
        return Err(Failure::new(Exit::Usage, text));
    };
    let root = arguments.home.find()?;
    let found = Postgres::has(address.postgres()?, &postgres::MIGRATIONS).await;
    if !found.map_err(|error| unopened(&error))? {
        let text = "error: this database has no tables of jobs";
        return Err(Failure::new(Exit::NotFound, text));
    }
    let (jobs, grants) = shared(&address, &SystemClock::new()).await?;
    let shown = progress::show("cancelling");
    let draw = || i64::try_from(random() >> 65).unwrap_or(i64::MAX).max(1);
    let done = restore::restored(&jobs, &grants, now(), draw).await;
    drop(shown);
    say_restored("", done.map_err(|error| not_told(&error))?, &root)
}

fn not_told(error: &RestoredError) -> Failure {
    let text = format!("error: {}", chain(error));
    match error {
        RestoredError::Lives { wait, .. } => {
            let seconds = wait.as_millis().div_ceil(1000);
            let advice = format!("stop every engine of this database, and wait {seconds} s");
            Failure::new(Exit::Conflict, format!("{text}\n{advice}"))
        }
        RestoredError::Began => {
            let advice = "its jobs may run twice: stop it, and run this command again";
            Failure::new(Exit::Conflict, format!("{text}\n{advice}"))
        }
        RestoredError::Store(error) => failed(error),
    }
}
