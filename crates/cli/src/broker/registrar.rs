//! The registrar beside a broker: in its database, behind its door.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use semel_broker::http::AdminToken;
use semel_broker::store::Store;
use semel_core::clock::Clock;
use semel_registrar::http::{self, Operator};
use semel_registrar::limits::{RETENTION_DAYS_MAX, RETENTION_DAYS_MIN};
use semel_registrar::registrar::sweeper::{RetentionDays, nightly};
use semel_registrar::registrar::{Registrar, StartError};
use semel_registrar::store::{self, JOBS_DOMAIN};
use semel_vital::Vital;

use super::serve::Arguments;
use super::target::{failed, now};
use crate::exit::{Exit, Failure};
use crate::print;
use crate::stores::Kept;
use crate::system::random;

/// Proves the store fit and gives the paths to mount; refuses to start when it is not.
pub(super) async fn routes(
    arguments: &Arguments,
    vital: &Vital,
    broker_store: &Store,
    clock: &Arc<dyn Clock>,
    admin_token: Option<AdminToken>,
) -> Result<Router, Failure> {
    let beside = arguments.admin_token_file.as_ref().map(|path| {
        let mut path = path.clone().into_os_string();
        path.push(".authority");
        PathBuf::from(path)
    });
    let authority = arguments.authority_file.clone().or(beside);
    let authority = authority.map(|path| Kept::key_file(&path));
    let retention = retention(arguments.registrar_retention_days)?;
    let registrar = start(authority, broker_store, clock).await?;
    // Approvals are kept beside the jobs that they let go on, in the engine's own file.
    registrar.disown(JOBS_DOMAIN);
    sweep_nightly(vital, &registrar, retention);
    Ok(router(registrar, admin_token))
}

/// What `--registrar-retention-days` says, within its limits.
pub(crate) fn retention(days: u32) -> Result<RetentionDays, Failure> {
    RetentionDays::new(days).ok_or_else(|| {
        let text = format!(
            "error: --registrar-retention-days must be {RETENTION_DAYS_MIN} to {RETENTION_DAYS_MAX}"
        );
        Failure::new(Exit::Usage, text)
    })
}

/// Old lines of its ledgers are forgotten at night, until the process ends.
pub(crate) fn sweep_nightly(vital: &Vital, registrar: &Arc<Registrar>, retention: RetentionDays) {
    drop(vital.spawn("registrar", nightly(Arc::clone(registrar), retention)));
}

/// The registrar's paths for the broker's door.
pub(crate) fn router(registrar: Arc<Registrar>, admin_token: Option<AdminToken>) -> Router {
    let operator = admin_token.map(|token| -> Operator { Arc::new(move |text| token.is(text)) });
    http::router(registrar, operator)
}

/// A registrar in the broker's database, with the authority's key in this file; refuses to start
/// when the store cannot be proved fit.
pub(crate) async fn start(
    authority: Option<Kept>,
    broker_store: &Store,
    clock: &Arc<dyn Clock>,
) -> Result<Arc<Registrar>, Failure> {
    let store = store_of(broker_store);
    let authority = authority.as_ref().map(Kept::authority).transpose()?;
    let nonces = Arc::new(|| random().to_ne_bytes());
    let registrar = Registrar::start(store, Arc::clone(clock), nonces, authority).await;
    registrar.map(Arc::new).map_err(|error| match error {
        StartError::Store(error) => failed(&error),
        StartError::Unfit(unfit) => {
            let code = unfit.code;
            let text = format!("error: {unfit}\nto learn more: semel explain {code}");
            Failure::new(Exit::Refused, text)
        }
    })
}

/// The registrar's tables beside the broker's.
fn store_of(broker_store: &Store) -> store::Store {
    match broker_store {
        Store::Sqlite(store) => store::Store::Sqlite(store::SqliteStore::new(store.sqlite())),
        Store::Postgres(store) => {
            store::Store::Postgres(store::PostgresStore::new(store.postgres()))
        }
    }
}

/// A restored store has forgotten what was used since its backup: nothing is registered in it until
/// an operator has looked and opens the domains again.
pub(super) async fn hold_all(broker_store: &Store) -> Result<(), Failure> {
    let held = store_of(broker_store).gate_hold_all(now()).await;
    match held.map_err(|error| failed(&error))? {
        0 => Ok(()),
        domains => print(&format!(
            "registrations are held in {domains} domains\n\
             to allow them again: semel registrar gate open DOMAIN\n"
        )),
    }
}
