//! The jobs' tables in SQLite: one writer, every method one closure.

mod advance;
mod breaker;
mod claim;
mod clock;
pub use clock::Calendar;
pub use rows::ROWS;
mod execution;
mod family;
mod job;
mod ledger;
mod letter;
mod list;
mod person;
mod row;
mod rows;
mod submit;

use std::sync::Arc;

use semel_store::migration::{Migration, MigrationSet};
use semel_store::sqlite::Sqlite;

/// The schema, to be migrated beside the registrar's.
pub const MIGRATIONS: MigrationSet = MigrationSet {
    component: "jobs",
    migrations: &[Migration {
        version: 1,
        name: "jobs",
        sql: include_str!("../../migrations/sqlite/0001_jobs.sql"),
    }],
};

/// Says that a file is a job engine's: "Sjob".
pub const APPLICATION_ID: i32 = 0x536A_6F62;

/// A file that has the jobs' tables and the registrar's.
#[derive(Clone)]
pub struct SqliteStore {
    sqlite: Arc<Sqlite>,
}

impl SqliteStore {
    /// Over a file that was opened with [`MIGRATIONS`] and the registrar's.
    pub fn new(sqlite: Arc<Sqlite>) -> Self {
        Self { sqlite }
    }

    pub(super) async fn close(&self) {
        self.sqlite.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use semel_testkit::sql;

    #[test]
    fn every_statement_prepares_and_none_scans_a_table() {
        let connection = sql::migrated(MIGRATIONS.migrations);
        // They walk a whole table.
        sql::prepares(&connection, rows::ALL);
        let files = [
            advance::ALL,
            breaker::ALL,
            claim::ALL,
            clock::ALL,
            execution::ALL,
            family::ALL,
            job::ALL,
            ledger::ALL,
            letter::ALL,
            list::ALL,
            submit::ALL,
        ];
        for statements in files {
            sql::prepares(&connection, statements);
            // From the oldest row to the first young one, and by a reader.
            let looked_at = statements.iter().filter(|(name, _)| *name != "YOUNG");
            let plans = sql::plans(&connection, &looked_at.copied().collect::<Vec<_>>());
            for line in plans.lines().filter(|line| line.contains("SCAN ")) {
                // An index that holds only what is asked for is read from its end, within a limit.
                assert!(line.contains("USING INDEX") || line.contains("USING COVERING"), "{plans}");
            }
        }
    }

    #[test]
    fn claims_are_read_from_their_indexes_however_many_wait() {
        let connection = sql::migrated(MIGRATIONS.migrations);
        for (conversation, ready) in [("NULL", "n > 0"), ("'one'", "FALSE")] {
            let rows = format!(
                "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 50000)
                 INSERT INTO job (id, root_id, depth, source, priority, conversation, carries_plan,
                                  fingerprint, created_at, status, ready, budget_ms, entries)
                 SELECT randomblob(16), randomblob(16), 0, 'api', 2, {conversation}, 0,
                        zeroblob(32), 1, 'pending', {ready}, 1, 0
                   FROM n"
            );
            connection.execute_batch(&rows).expect("rows");
            connection.execute_batch("ANALYZE").expect("statistics");
            for (file, name, index) in [
                (claim::ALL, "DUE", "job_due"),
                (claim::ALL, "READY", "job_ready"),
                (advance::ALL, "HEAD", "job_conversation"),
                (submit::ALL, "ANY_BEFORE", "job_conversation"),
                (submit::ALL, "BY_HASH", "job_dedup"),
            ] {
                let found: Vec<_> = file.iter().copied().filter(|(own, _)| *own == name).collect();
                let plan = sql::plans(&connection, &found);
                assert!(plan.contains(index), "{conversation}: {plan}");
                let sorted = plan.contains("TEMP B-TREE");
                assert!(!sorted || name == "BY_HASH", "{conversation}: {plan}");
            }
        }
    }
}
