//! The jobs' tables in PostgreSQL: any number of engines share one database. The files are those of
//! `sqlite/`; what differs beyond the dialect is said where it does.
//!
//! Locks are always taken in this order, and within each kind in the order of their numbers, so
//! that no two transactions wait for each other: advisory locks ([`lock`]), rows of `job`, and then
//! what belongs to those rows. A claim waits for no lock at all.

mod advance;
mod breaker;
mod claim;
mod execution;
#[cfg(test)]
mod explain_tests;
mod family;
mod job;
mod ledger;
mod letter;
mod list;
mod lock;
mod person;
mod row;
mod settle;
mod signal;
mod submit;

use std::sync::Arc;
use std::time::Duration;

use semel_store::migration::{Migration, MigrationSet};
use semel_store::postgres::{Lane, Postgres};

use crate::limits::{ADVANCES_AT_ONCE, SETTLE_PATIENCE, SUBMITS_AT_ONCE};
use crate::store::{Advance, Advanced, NewJob, Submitted};
use signal::Bell;
pub use signal::{Signal, Signals};
use submit::{Began, Beginning};

/// The schema, to be migrated beside the registrar's.
pub const MIGRATIONS: MigrationSet = MigrationSet {
    component: "jobs",
    migrations: &[Migration {
        version: 1,
        name: "jobs",
        sql: include_str!("../../migrations/postgres/0001_jobs.sql"),
    }],
};

/// A database that has the jobs' tables and the registrar's.
#[derive(Clone)]
pub struct PostgresStore {
    shared: Arc<Shared>,
}

struct Shared {
    postgres: Postgres,
    submits: Lane<NewJob, Submitted>,
    begins: Lane<Arc<Beginning>, Began>,
    advances: Lane<Arc<Advance>, Advanced>,
    bell: Bell,
    /// How long it is asked what became of a write whose answer was lost.
    patience: Duration,
}

impl PostgresStore {
    /// Over a database that was opened with [`MIGRATIONS`] and the registrar's.
    pub fn new(postgres: Postgres) -> Self {
        Self::with_patience(postgres, SETTLE_PATIENCE)
    }

    /// The same, asking so long what became of a write whose answer was lost.
    pub fn with_patience(postgres: Postgres, patience: Duration) -> Self {
        let shared = Shared {
            postgres,
            submits: Lane::new(SUBMITS_AT_ONCE),
            begins: Lane::new(SUBMITS_AT_ONCE),
            advances: Lane::new(ADVANCES_AT_ONCE),
            bell: Bell::default(),
            patience,
        };
        Self { shared: Arc::new(shared) }
    }

    fn postgres(&self) -> &Postgres {
        &self.shared.postgres
    }
}

type Parameters<'p> = &'p [&'p (dyn tokio_postgres::types::ToSql + Sync)];
