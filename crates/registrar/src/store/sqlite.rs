//! The registrar's tables in SQLite, in the file of whoever uses it: one writer, every method one
//! closure.

mod attempt;
mod catalogue;
mod effect;
mod gate;
mod grant;
mod register;
mod restore;
mod rows;
mod sweep;
mod verification;

use std::sync::Arc;

use semel_store::migration::{Migration, MigrationSet};
use semel_store::sqlite::Sqlite;

pub use catalogue::unfit_in;
pub use effect::consume_in_tx;
pub use rows::ROWS;

/// The schema, to be migrated beside the user's own.
pub const MIGRATIONS: MigrationSet = MigrationSet {
    component: "registrar",
    migrations: &[Migration {
        version: 1,
        name: "registrar",
        sql: include_str!("../../migrations/sqlite/0001_registrar.sql"),
    }],
};

/// A file that has the registrar's tables.
#[derive(Clone)]
pub struct SqliteStore {
    sqlite: Arc<Sqlite>,
}

impl SqliteStore {
    /// Over a file that was opened with [`MIGRATIONS`].
    pub fn new(sqlite: Arc<Sqlite>) -> Self {
        Self { sqlite }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use semel_testkit::sql;

    #[test]
    fn every_statement_prepares_and_none_scans_a_table() {
        let connection = sql::migrated(MIGRATIONS.migrations);
        sql::prepares(&connection, catalogue::ALL);
        sql::prepares(&connection, restore::ALL);
        sql::prepares(&connection, rows::ALL);
        let files =
            [attempt::ALL, effect::ALL, gate::ALL, grant::ALL, sweep::ALL, verification::ALL];
        for statements in files {
            sql::prepares(&connection, statements);
            let plans = sql::plans(&connection, statements);
            assert!(!plans.replace("SCAN CONSTANT ROW", "").contains("SCAN "), "{plans}");
        }
    }
}
