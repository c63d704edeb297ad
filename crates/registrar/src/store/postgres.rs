//! The registrar's tables in PostgreSQL: any number of registrars share one database. The files are
//! those of `sqlite/`; what differs beyond the dialect is said where it does.

mod attempt;
mod catalogue;
mod effect;
#[cfg(test)]
mod explain_tests;
mod gate;
mod grant;
mod register;
mod restore;
mod sweep;
mod verification;

use std::sync::Arc;

use semel_store::StoreError;
use semel_store::migration::{Migration, MigrationSet};
use semel_store::postgres::{Lane, Postgres};

use crate::limits::{
    CONSUMES_AT_ONCE, ENDS_AT_ONCE, LOOKS_AT_ONCE, REGISTERS_AT_ONCE, STARTS_AT_ONCE,
};
use crate::store::{Done, Entry, Tried};
use attempt::{Ending, Starting};
use effect::{Consuming, Looking};
use register::Registering;

pub use effect::consume_in_tx;

/// The schema, to be migrated beside the user's own.
pub const MIGRATIONS: MigrationSet = MigrationSet {
    component: "registrar",
    migrations: &[Migration {
        version: 1,
        name: "registrar",
        sql: include_str!("../../migrations/postgres/0001_registrar.sql"),
    }],
};

/// A database that has the registrar's tables.
#[derive(Clone)]
pub struct PostgresStore {
    postgres: Postgres,
    lanes: Arc<Lanes>,
}

/// An attempt, or the steps of one that somebody was in the way of; what is in the same step goes
/// together.
struct Lanes {
    registers: Lane<Registering, Tried>,
    looks: Lane<Looking, Done>,
    starts: Lane<Starting, Entry>,
    consumes: Lane<Consuming, Done>,
    ends: Lane<Ending, ()>,
}

impl PostgresStore {
    /// Over a database that was opened with [`MIGRATIONS`].
    pub fn new(postgres: Postgres) -> Self {
        let lanes = Lanes {
            registers: Lane::new(REGISTERS_AT_ONCE),
            looks: Lane::new(LOOKS_AT_ONCE),
            starts: Lane::new(STARTS_AT_ONCE),
            consumes: Lane::new(CONSUMES_AT_ONCE),
            ends: Lane::new(ENDS_AT_ONCE),
        };
        Self { postgres, lanes: Arc::new(lanes) }
    }
}

/// What is said of the items of a batch, in their order.
type Said<Answer> = Vec<Result<Answer, StoreError>>;

/// What many can do in one transaction.
trait Together: Sized + Sync {
    type Answer: Send;

    /// All of these, or none.
    fn at_once(
        store: &PostgresStore,
        batch: &[Self],
    ) -> impl Future<Output = Result<Said<Self::Answer>, StoreError>> + Send;
}

/// All of them in one transaction. When that was undone, each in its own: what one is refused for
/// is no fault of the others.
async fn together<Item: Together>(store: &PostgresStore, batch: &[Item]) -> Said<Item::Answer> {
    if batch.is_empty() {
        return Vec::new();
    }
    match Item::at_once(store, batch).await {
        Ok(said) => said,
        Err(StoreError::Uncertain { cause }) => {
            let unknown = || StoreError::Uncertain { cause: cause.clone() };
            batch.iter().map(|_| Err(unknown())).collect()
        }
        Err(refused) if batch.len() == 1 => vec![Err(refused)],
        Err(_) => {
            let mut said = Vec::with_capacity(batch.len());
            for item in batch {
                let alone = Item::at_once(store, std::slice::from_ref(item)).await;
                let none = || StoreError::Uncertain { cause: "nothing was said of it".into() };
                said.push(alone.and_then(|mut said| said.pop().unwrap_or_else(|| Err(none()))));
            }
            said
        }
    }
}

type Parameters<'p> = &'p [&'p (dyn tokio_postgres::types::ToSql + Sync)];
