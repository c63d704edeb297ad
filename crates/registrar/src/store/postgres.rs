//! The registrar's tables in PostgreSQL: any number of registrars share one database. The files are
//! those of `sqlite/`; what differs beyond the dialect is said where it does.

mod attempt;
mod catalogue;
mod effect;
mod gate;
mod grant;
mod restore;
mod verification;

use semel_store::migration::{Migration, MigrationSet};
use semel_store::postgres::Postgres;

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
}

impl PostgresStore {
    /// Over a database that was opened with [`MIGRATIONS`].
    pub fn new(postgres: Postgres) -> Self {
        Self { postgres }
    }
}

type Parameters<'p> = &'p [&'p (dyn tokio_postgres::types::ToSql + Sync)];
