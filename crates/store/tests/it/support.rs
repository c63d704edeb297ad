//! A small schema that these tests share.

use std::path::Path;
use std::sync::{Arc, Mutex};

use rusqlite::OptionalExtension;
use semel_store::migration::{Migration, MigrationSet};
use semel_store::sqlite::{Sqlite, SqliteOptions, Tx};
use semel_store::{Fate, StoreError};

pub(crate) const APPLICATION_ID: i32 = 0x7e57;

pub(crate) const ITEMS: MigrationSet = MigrationSet {
    component: "items",
    migrations: &[Migration {
        version: 1,
        name: "items",
        sql: "CREATE TABLE item (key TEXT PRIMARY KEY, value BIGINT NOT NULL)",
    }],
};

/// Options that remember an uncertain commit instead of ending the process.
pub(crate) fn options(folder: &Path) -> (SqliteOptions, Arc<Mutex<Vec<String>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let on_uncertain = {
        let told = Arc::clone(&told);
        Arc::new(move |error: &StoreError| {
            assert_eq!(error.fate(), Fate::Uncertain);
            told.lock().unwrap().push(error.to_string());
        })
    };
    let path = folder.join("items.db");
    (SqliteOptions::new(path, APPLICATION_ID, vec![ITEMS], 0, on_uncertain), told)
}

pub(crate) fn open(folder: &Path) -> Sqlite {
    Sqlite::open(&options(folder).0).unwrap()
}

/// Inserts, unless the key is there.
pub(crate) fn put(tx: &Tx<'_>, key: &str, value: i64) -> Result<bool, StoreError> {
    let sql = "INSERT INTO item (key, value) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
    Ok(tx.prepare_cached(sql)?.execute((key, value))? == 1)
}

pub(crate) async fn get(store: &Sqlite, key: &str) -> Option<i64> {
    let key = key.to_owned();
    let read = store.read(move |connection| {
        let sql = "SELECT value FROM item WHERE key = ?1";
        Ok(connection.query_row(sql, [key], |row| row.get(0)).optional()?)
    });
    read.await.unwrap()
}

pub(crate) async fn keys(store: &Sqlite) -> Vec<String> {
    let read = store.read(|connection| {
        let mut statement = connection.prepare("SELECT key FROM item ORDER BY key")?;
        let rows = statement.query_map([], |row| row.get(0))?;
        Ok(rows.collect::<Result<_, _>>()?)
    });
    read.await.unwrap()
}
