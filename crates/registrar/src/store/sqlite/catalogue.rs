//! What SQLite says of the registrar's tables: pragmas, and the text of what made them.

use std::collections::BTreeSet;

use rusqlite::Connection;
use semel_store::{StoreError, statements};

use super::{MIGRATIONS, SqliteStore};
use crate::fitness::{APPEND_ONLY, Catalogue, Change, Nullable, TABLES, Unfit, prove};

/// What triggers refuse, and how their names end.
const REFUSALS: &[(Change, &str)] =
    &[(Change::Update, "update"), (Change::Delete, "delete"), (Change::Replace, "replace")];

statements! {
    COLUMNS = "
        SELECT name, \"notnull\", pk
          FROM pragma_table_info(:table)";

    UNIQUES = "
        SELECT name
          FROM pragma_index_list(:table)
         WHERE \"unique\" = 1
           AND partial = 0";

    KEY = "
        SELECT name
          FROM pragma_index_info(:index)";

    MADE_BY = "
        SELECT sql
          FROM sqlite_schema
         WHERE type = :type
           AND name = :name";
}

impl SqliteStore {
    pub(in crate::store) async fn catalogue(&self) -> Result<Catalogue, StoreError> {
        self.sqlite.read(catalogue_in_tx).await
    }
}

/// Why the registrar would not start with this file, for whoever looks at it without opening it.
pub fn unfit_in(connection: &Connection) -> Result<Option<Unfit>, StoreError> {
    Ok(prove(&catalogue_in_tx(connection)?).err())
}

/// Differs from postgres: what must be there is read from a new database with the same migrations.
fn catalogue_in_tx(tx: &Connection) -> Result<Catalogue, StoreError> {
    let model = Connection::open_in_memory()?;
    for migration in MIGRATIONS.migrations {
        model.execute_batch(migration.sql)?;
    }
    let mut catalogue = read(tx, &model)?;
    catalogue.needed = definitions(&model)?;
    Ok(catalogue)
}

fn read(tx: &Connection, model: &Connection) -> Result<Catalogue, StoreError> {
    let mut catalogue = Catalogue { definitions: definitions(tx)?, ..Catalogue::default() };
    for table in TABLES {
        let mut uniques = BTreeSet::new();
        let columns = catalogue.columns.entry((*table).to_owned()).or_default();
        let mut statement = tx.prepare(COLUMNS)?;
        let mut rows = statement.query([table])?;
        let mut key: Vec<String> = Vec::new();
        while let Some(row) = rows.next()? {
            let (name, not_null, pk): (String, bool, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            columns.insert(name.clone(), if not_null { Nullable::No } else { Nullable::Yes });
            if pk > 0 {
                key.push(name);
            }
        }
        // A primary key of one integer has no index of its own: the table is ordered by it.
        if !key.is_empty() {
            uniques.insert(key.into_iter().collect());
        }
        for index in texts(tx, UNIQUES, table)? {
            uniques.insert(texts(tx, KEY, &index)?.into_iter().collect());
        }
        catalogue.uniques.insert((*table).to_owned(), uniques);
    }
    for table in APPEND_ONLY {
        for (change, word) in REFUSALS {
            let name = format!("{table}_no_{word}");
            let found = made_by(tx, "trigger", &name)?;
            if found.is_some() && found == made_by(model, "trigger", &name)? {
                catalogue.refusals.insert(((*table).to_owned(), *change));
            }
        }
    }
    Ok(catalogue)
}

fn definitions(tx: &Connection) -> Result<BTreeSet<(String, String)>, StoreError> {
    let mut definitions = BTreeSet::new();
    for table in TABLES {
        if let Some(sql) = made_by(tx, "table", table)? {
            definitions.insert(((*table).to_owned(), sql));
        }
    }
    Ok(definitions)
}

fn made_by(tx: &Connection, kind: &str, name: &str) -> Result<Option<String>, StoreError> {
    let mut statement = tx.prepare(MADE_BY)?;
    let mut rows = statement.query([kind, name])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let sql: String = row.get(0)?;
    Ok(Some(sql.split_whitespace().collect::<Vec<_>>().join(" ")))
}

fn texts(tx: &Connection, sql: &str, by: &str) -> Result<Vec<String>, StoreError> {
    let mut statement = tx.prepare(sql)?;
    let rows = statement.query_map([by], |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use semel_core::code::Code;

    const SQL: &str = MIGRATIONS.migrations[0].sql;

    fn proved(sql: &str) -> Result<(), Unfit> {
        let connection = Connection::open_in_memory().expect("a database");
        connection.execute_batch(sql).unwrap_or_else(|error| panic!("{error}: {sql}"));
        prove(&catalogue_in_tx(&connection).expect("a catalogue"))
    }

    /// The schema without what each of these lines says, one at a time.
    fn without(needle: &str) -> Vec<String> {
        let places = SQL.match_indices(needle).map(|(place, _)| place);
        places.map(|at| [&SQL[..at], &SQL[at + needle.len()..]].concat()).collect()
    }

    #[test]
    fn the_schema_is_fit() {
        assert_eq!(proved(SQL), Ok(()));
    }

    #[test]
    fn a_schema_without_one_of_its_constraints_is_not() {
        let mut refused = 0;
        for sql in without(" UNIQUE") {
            assert_eq!(proved(&sql).expect_err(&sql).code, Code::ReplaySurfaceNotFit);
            refused += 1;
        }
        // A table without a primary key needs its row numbers.
        for (key, kept) in [
            (" PRIMARY KEY CHECK", " CHECK"),
            (" PRIMARY KEY,", ","),
            (" PRIMARY KEY AUTOINCREMENT,", ","),
        ] {
            for (at, _) in SQL.match_indices(key) {
                let sql = [&SQL[..at], kept, &SQL[at + key.len()..]].concat();
                let sql = sql.replace(", WITHOUT ROWID", "");
                assert_eq!(proved(&sql).expect_err(&sql).code, Code::ReplaySurfaceNotFit);
                refused += 1;
            }
        }
        let sql =
            SQL.replace(",\n    PRIMARY KEY (domain, pubkey)\n) STRICT, WITHOUT ROWID", ") STRICT");
        assert_eq!(proved(&sql).expect_err(&sql).code, Code::ReplaySurfaceNotFit);
        assert_eq!(refused + 1, 14, "every unique key");
        for sql in without(" NOT NULL").iter().filter(|sql| !sql.contains("IS)")) {
            assert_eq!(proved(sql).expect_err(sql).code, Code::ReplayDomainFailClosed);
            refused += 1;
        }
        let checks = SQL.match_indices("CHECK (").map(|(at, _)| at);
        for at in checks {
            let sql = format!("{}CHECK (1 = 1 OR {}", &SQL[..at], &SQL[at + 7..]);
            assert_eq!(proved(&sql).expect_err(&sql).code, Code::ReplayDomainFailClosed);
            refused += 1;
        }
        assert!(refused > 60, "{refused}");
    }

    #[test]
    fn a_schema_without_one_of_its_triggers_is_not() {
        let mut dropped = 0;
        for table in APPEND_ONLY {
            for (_, word) in REFUSALS {
                let drop = format!("{SQL}; DROP TRIGGER {table}_no_{word};");
                let unfit = proved(&drop).expect_err(&drop);
                assert_eq!(unfit.code, Code::ReplayDomainFailClosed);
                assert!(unfit.what.contains(table), "{unfit}");
                let hollow = format!(
                    "{drop} CREATE TRIGGER {table}_no_{word} BEFORE {} ON {table}
                      BEGIN SELECT 1; END;",
                    word.replace("replace", "insert"),
                );
                assert!(proved(&hollow).is_err());
                dropped += 1;
            }
        }
        assert_eq!(dropped, 33);
    }

    /// One row in each table.
    const ROWS: &str = "
        INSERT INTO effect_key VALUES (zeroblob(32), zeroblob(32), 1, 'd', 'compensate', 't',
                                       zeroblob(32), 'w', 'r', zeroblob(16), 1, 't');
        INSERT INTO authority VALUES ('d', zeroblob(32), 1);
        INSERT INTO nonce_use VALUES (zeroblob(16), zeroblob(32), zeroblob(32), 1);
        INSERT INTO registration VALUES (zeroblob(32), 'a', x'01', 1);
        INSERT INTO grant_issued VALUES (zeroblob(16), 'd', zeroblob(32), 1, 2, zeroblob(32), 1);
        INSERT INTO grant_revoked VALUES (zeroblob(16), 1);
        INSERT INTO gate (domain, action, at) VALUES ('d', 'hold', 1);
        INSERT INTO attempt (event, logical_request_key, attempt_id, closes, outcome, at)
             VALUES ('closed', zeroblob(32), 'a', 7, 'REGISTERED', 1);
        INSERT INTO failure_audit (domain, logical_request_key, authorization_nonce, attempt_id,
                                   outcome, at)
             VALUES ('d', zeroblob(32), zeroblob(16), 'a', 'UNDONE', 1);
        INSERT INTO verification VALUES (zeroblob(32), 'failed', '', 1);
        INSERT INTO sweep (before, at) VALUES (0, 86400000)";

    #[test]
    fn no_row_is_replaced() {
        let connection = Connection::open_in_memory().expect("a database");
        connection.execute_batch(SQL).expect("the schema");
        connection.execute_batch(ROWS).expect("rows");
        let refused = |sql: &str| {
            let error = connection.execute_batch(sql).expect_err(sql).to_string();
            assert!(error.contains("never changed"), "{sql}: {error}");
        };
        for table in APPEND_ONLY {
            refused(&format!("REPLACE INTO {table} SELECT * FROM {table}"));
            refused(&format!("INSERT OR REPLACE INTO {table} SELECT * FROM {table}"));
        }
        // By the other keys of those that have several.
        refused(
            "REPLACE INTO effect_key VALUES (randomblob(32), zeroblob(32), 1, 'd', 'o', 't',
                                             zeroblob(32), 'w', 'r', zeroblob(16), 1, NULL)",
        );
        refused(
            "REPLACE INTO effect_key VALUES (randomblob(32), randomblob(32), 1, 'd', 'compensate',
                                             't', zeroblob(32), 'w', 'r', zeroblob(16), 1, 't')",
        );
        refused(
            "REPLACE INTO attempt (event, logical_request_key, attempt_id, closes, outcome, at)
                  VALUES ('closed', zeroblob(32), 'a', 7, 'UNDONE', 1)",
        );
        for table in APPEND_ONLY {
            let count = format!("SELECT count(*) FROM {table}");
            let rows: i64 = connection.query_row(&count, [], |row| row.get(0)).expect("a count");
            assert_eq!(rows, 1, "{table}");
        }
    }

    #[test]
    fn a_sweep_that_may_forget_more_is_refused() {
        let mut weakened = 0;
        for (word, weaker) in [
            ("WHEN ", "WHEN 1 = 0 AND "),
            ("LIMIT 1), OLD.at)", "LIMIT 1), OLD.at + 1)"),
            ("ORDER BY sweep.entry DESC", "ORDER BY sweep.entry"),
            ("OR (OLD.event = 'started'", "OR (OLD.event = 'begun'"),
            ("OR (OLD.event = 'closed'", "OR (OLD.event = 'ended'"),
            ("max(OLD.issued_at", "min(OLD.issued_at"),
        ] {
            for (at, _) in SQL.match_indices(word) {
                let sql = [&SQL[..at], weaker, &SQL[at + word.len()..]].concat();
                assert_eq!(proved(&sql).expect_err(&sql).code, Code::ReplayDomainFailClosed);
                weakened += 1;
            }
        }
        assert_eq!(weakened, 3 + 11 + 2 + 3 + 1 + 1 + 1);
    }

    #[test]
    fn a_retry_ledger_is_no_store_for_effects() {
        let ledger = "CREATE TABLE effect_key (
            id INTEGER PRIMARY KEY, idempotency_key TEXT NOT NULL, attempt_no INTEGER NOT NULL,
            UNIQUE (idempotency_key, attempt_no)) STRICT;";
        let unfit = proved(ledger).expect_err("a ledger");
        assert_eq!(unfit.code, Code::ReplaySurfaceNotFit);
        assert!(unfit.what.contains("attempt_no"), "{unfit}");
        let beside = format!("{SQL} CREATE UNIQUE INDEX more ON effect_key (run_id, replay_key);");
        assert_eq!(proved(&beside), Ok(()), "more uniqueness harms nobody");
        let keyed = format!("{SQL} CREATE UNIQUE INDEX more ON registration (attempt_id);");
        assert_eq!(proved(&keyed).expect_err("keyed").code, Code::ReplaySurfaceNotFit);
    }
}
