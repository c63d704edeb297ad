//! The stores: whose they are and which version, found out by reading alone.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use semel_broker::limiter::{
    DecidedBy, Fallback, FallbackMode, LimitRequest, Limiter, LimiterAddressError,
};
use semel_broker::store as broker;
use semel_core::clock::{Clock, SystemClock};
use semel_core::shown::shown;
use semel_daemon::home::{Complete, Home, HomeFile, Presence};
use semel_daemon::recover::Database;
use semel_daemon::store as daemon;
use semel_jobs::store::sqlite as jobs;
use semel_registrar::store::sqlite as registrar;
use semel_store::OpenError;
use semel_store::migration::MigrationSet;
use semel_store::postgres::Postgres;
use semel_store::sqlite::{LastStop, TableRows, look, peek};

use super::Finding;
use super::folders::is_locked;
use crate::address::Address;
use crate::daemon::home::command;
use crate::exit::{Failure, chain};
use crate::stores::Kept;
use crate::system::{now, random};

/// A store, whose it must be, and who has it open.
pub(super) struct Expected {
    pub(super) kept: Kept,
    /// The same file in another list that a start asks, too.
    also: Option<Kept>,
    pub(super) application_id: i32,
    pub(super) migrations: Vec<MigrationSet>,
    /// Tables whose rows can be compared with what was written.
    pub(super) rows: Vec<&'static [TableRows]>,
    /// Who holds this lock has the file open.
    lock: PathBuf,
    pub(super) repair: String,
}

impl Expected {
    /// Whether it was made, and is not lost.
    pub(super) fn is_there(&self) -> bool {
        matches!(self.kept.look(), Ok(Presence::There))
    }
}

pub(super) fn files(expected: &[Expected]) -> Vec<Finding> {
    expected.iter().filter_map(file).collect()
}

pub(super) fn expected(root: &Path) -> Vec<Expected> {
    let (homes, _) = Home::list(root).unwrap_or((Vec::new(), Complete::Yes));
    let local = root.join("daemon/local").join(HomeFile::Lock.as_str());
    let (broker, engine) = (Kept::broker(root), Kept::jobs(root));
    let mut expected = vec![
        Expected {
            repair: broker.restore.clone(),
            also: Some(Kept::broker_file(&broker.path)),
            kept: broker,
            application_id: broker::SQLITE_APPLICATION_ID,
            migrations: vec![broker::SQLITE_MIGRATIONS, registrar::MIGRATIONS],
            rows: vec![broker::SQLITE_ROWS, registrar::ROWS],
            lock: local,
        },
        Expected {
            repair: engine.restore.clone(),
            kept: engine,
            also: None,
            application_id: jobs::APPLICATION_ID,
            migrations: vec![jobs::MIGRATIONS, registrar::MIGRATIONS],
            rows: vec![jobs::ROWS, registrar::ROWS],
            lock: root.join("jobs/lock"),
        },
    ];
    for home in homes {
        let repair = command("daemon recover", &home);
        for database in Database::ALL {
            let (application_id, migrations, rows) = match database {
                Database::Outbox => (
                    daemon::OUTBOX_APPLICATION_ID,
                    daemon::OUTBOX_MIGRATIONS,
                    daemon::rows::OUTBOX_ROWS,
                ),
                Database::Inbox => (
                    daemon::INBOX_APPLICATION_ID,
                    daemon::INBOX_MIGRATIONS,
                    daemon::rows::INBOX_ROWS,
                ),
            };
            expected.push(Expected {
                kept: Kept::daemon(&home, *database),
                also: None,
                application_id,
                migrations: vec![migrations],
                rows: vec![rows],
                lock: home.path(HomeFile::Lock),
                repair: repair.clone(),
            });
        }
    }
    expected
}

/// Nothing is said of what was never made.
fn file(expected: &Expected) -> Option<Finding> {
    let path = &expected.kept.path;
    let name = path.display();
    let mut presence = Presence::New;
    for kept in std::iter::once(&expected.kept).chain(&expected.also) {
        match kept.look() {
            Ok(Presence::There) => presence = Presence::There,
            Ok(Presence::New) => {}
            Ok(Presence::Lost) => {
                let (said, ways) = kept.lost();
                return Some(Finding::problem("store", said, ways.replace('\n', "; ")));
            }
            Err(error) => {
                let to_do = "see docs/operating.md, a store that is lost";
                return Some(Finding::problem("store", chain(&error), to_do));
            }
        }
    }
    if presence == Presence::New {
        return None;
    }
    let looked = look(path, expected.application_id, &expected.migrations);
    if let (Ok((_, lacking)), Some(unfit)) = (&looked, unfit(expected))
        && lacking.is_empty()
    {
        let detail = format!("{name}: {unfit}");
        return Some(Finding::problem("store", detail, expected.repair.clone()));
    }
    Some(match looked {
        Err(error) => Finding::problem("store", chain(&error), to_do(&error, expected)),
        Ok((_, lacking)) if !lacking.is_empty() => {
            let detail = format!("{name} is of an older version (lacks {})", lacking.join(", "));
            let to_do = "back it up; the next start migrates it";
            Finding::warning("store", detail, to_do)
        }
        Ok((LastStop::Unclean, _)) if !is_locked(&expected.lock) => Finding::sound(
            "store",
            format!("{name}: not closed regularly; the next start recovers it"),
        ),
        Ok(_) => Finding::sound("store", name.to_string()),
    })
}

/// Why the registrar in this file would refuse to start.
fn unfit(expected: &Expected) -> Option<String> {
    let of_registrar = |set: &MigrationSet| set.component == registrar::MIGRATIONS.component;
    if !expected.migrations.iter().any(of_registrar) {
        return None;
    }
    match peek(&expected.kept.path, registrar::unfit_in) {
        Ok(unfit) => unfit.map(|unfit| unfit.to_string()),
        Err(error) => Some(error.chain()),
    }
}

/// What helps against an error of opening it.
pub(super) fn to_do(error: &OpenError, expected: &Expected) -> String {
    match error {
        OpenError::Newer { .. } => "run the newer semel that made it".to_owned(),
        OpenError::NotOurs { .. } => {
            format!("move {} away; it is another program's", expected.kept.path.display())
        }
        OpenError::MigrationChanged { .. } => {
            "run the semel that made it, or restore a good copy".to_owned()
        }
        // What is there may be whole, and newer than any copy.
        OpenError::Sqlite { .. } | OpenError::Io { .. } if !error.is_damage() => {
            let name = expected.kept.path.display();
            format!("give {name} to the user that runs semel; there is no sign of damage")
        }
        OpenError::Sqlite { .. }
        | OpenError::Io { .. }
        | OpenError::Damaged { .. }
        | OpenError::Served { .. }
        | OpenError::Replacing { .. }
        | OpenError::Unfit { .. }
        | OpenError::Migration { .. }
        | OpenError::Address(_)
        | OpenError::PlainText { .. }
        | OpenError::Tls(_)
        | OpenError::Untrusted(_)
        | OpenError::Postgres(_)
        | OpenError::Unreachable(_) => expected.repair.clone(),
    }
}

/// Connects and asks whether the server keeps what it acknowledges; nothing is made there.
pub(super) async fn postgres(address: &Address) -> Result<Finding, Failure> {
    let check = "PostgreSQL";
    Ok(match Postgres::open(address.postgres()?, &[], now().0).await {
        Ok(database) => {
            database.close();
            Finding::sound(check, "it answers, and keeps what it acknowledges")
        }
        Err(error @ OpenError::Unfit { .. }) => {
            let to_do = "set it to on in postgresql.conf: without it acknowledged work is lost";
            Finding::problem(check, chain(&error), to_do)
        }
        Err(error) => {
            let to_do = "check that the server runs, and check the address, user and password";
            Finding::problem(check, chain(&error), to_do)
        }
    })
}

/// Counts one send of nobody, and looks who has counted it.
pub(super) async fn redis(address: &str) -> Finding {
    let check = "Redis";
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let fallback = Fallback { mode: FallbackMode::Local, brokers: NonZeroU32::MIN };
    let limiter = match Limiter::redis(address, clock, fallback) {
        Ok(limiter) => limiter,
        Err(error @ LimiterAddressError::PlainText { .. }) => {
            let to_do = "use rediss://, or read semel explain plain_text_refused";
            return Finding::problem(check, chain(&error), to_do);
        }
        Err(error) => {
            let to_do = "the address is redis://host:port, or rediss://host:port with TLS";
            return Finding::problem(check, chain(&error), to_do);
        }
    };
    let id = format!("{:032x}", random());
    let window = Duration::from_secs(1);
    let request = LimitRequest {
        mesh: "semel-doctor",
        sender: "nobody",
        client_message_id: &id,
        limit: 1_000,
        window,
    };
    match limiter.take(&request).await.by {
        DecidedBy::Limiter => Finding::sound(check, "it answers, and runs our script"),
        DecidedBy::Fallback => {
            let why = limiter.why_away().await.unwrap_or_else(|| "it does not answer".to_owned());
            let detail = format!("{}; brokers limit by themselves meanwhile", shown(&why));
            let to_do = "check that the server runs, and its address, user and password";
            Finding::problem(check, detail, to_do)
        }
    }
}
