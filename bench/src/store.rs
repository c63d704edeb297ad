//! Durable single-row inserts: through the group-commit writer, and in bare loops on the same disk
//! with the same table, settings and row.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Result;
use rusqlite::Connection;
use semel_store::migration::{Migration, MigrationSet};
use semel_store::sqlite::{Sqlite, SqliteOptions};

use crate::report::{Bar, Rounds, publish};
use crate::{facts, plan};

/// A row as our queues have them: a key, an id that must be unique, a fingerprint, 200 bytes of
/// payload, and an index for what is due.
const SCHEMA: &str = "
    CREATE TABLE item (
        id          TEXT    NOT NULL PRIMARY KEY,
        client_id   TEXT    NOT NULL UNIQUE,
        fingerprint BLOB    NOT NULL,
        payload     BLOB    NOT NULL,
        status      TEXT    NOT NULL,
        due_at      INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX item_due ON item (status, due_at)";
pub(crate) const INSERT: &str = "
    INSERT INTO item (id, client_id, fingerprint, payload, status, due_at)
    VALUES (?1, ?2, ?3, ?4, 'pending', ?5)
    ON CONFLICT (client_id) DO NOTHING";

pub(crate) const ITEMS: MigrationSet = MigrationSet {
    component: "bench",
    migrations: &[Migration { version: 1, name: "items", sql: SCHEMA }],
};

const ROWS: &[&str] = &[
    "bare loop, 1 insert per commit",
    "bare loop, 64 inserts per commit",
    "bare loop, 256 inserts per commit",
    "writer, 1 caller",
    "writer, 64 callers",
    "writer, 256 callers",
];

const BARS: &[Bar] = &[Bar::at_least(ROWS[3], 0.9, ROWS[0]), Bar::at_least(ROWS[4], 0.8, ROWS[1])];

/// Runs everything, interleaved.
pub(crate) fn run() -> Result<()> {
    let folder = tempfile::tempdir_in(plan::target())?;
    let machine = facts::machine(folder.path())?;
    let mut rounds = Rounds::default();
    for round in 0..plan::rounds() {
        for (name, size) in [(ROWS[0], 1), (ROWS[1], 64), (ROWS[2], 256)] {
            let path = folder.path().join(format!("bare-{round}-{size}.db"));
            rounds.add(name, bare(&path, size)?);
        }
        for (name, callers) in [(ROWS[3], 1), (ROWS[4], 64), (ROWS[5], 256)] {
            let path = folder.path().join(format!("writer-{round}-{callers}.db"));
            rounds.add(name, writer(&path, callers)?);
        }
    }
    publish("store", &machine, &rounds, BARS)
}

pub(crate) type Row = (String, String, [u8; 32], Vec<u8>, i64);

/// Ids rise, as minted ones do.
pub(crate) fn row(n: u64) -> Row {
    (format!("01J{n:023}"), format!("deploy-{n:019}"), [0x5a; 32], vec![0x5a; 200], n.cast_signed())
}

fn params(row: &Row) -> (&str, &str, &[u8; 32], &[u8], i64) {
    (&row.0, &row.1, &row.2, &row.3, row.4)
}

/// What the disk and SQLite give when nobody has to be asked or answered.
pub(crate) fn bare(path: &Path, inserts_per_commit: u64) -> Result<f64> {
    let connection = Connection::open(path)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.execute_batch(SCHEMA)?;
    let mut begin = connection.prepare("BEGIN IMMEDIATE")?;
    let mut insert = connection.prepare(INSERT)?;
    let mut commit = connection.prepare("COMMIT")?;
    let (start, mut n) = (Instant::now(), 0);
    while start.elapsed() < plan::round() {
        begin.execute([])?;
        for _ in 0..inserts_per_commit {
            insert.execute(params(&row(n)))?;
            n += 1;
        }
        commit.execute([])?;
    }
    Ok(per_second(n, start))
}

/// The same inserts, each from a caller that waits for its own answer.
fn writer(path: &Path, callers: usize) -> Result<f64> {
    let on_uncertain = Arc::new(|error: &semel_store::StoreError| panic_with(error));
    let options = SqliteOptions::new(path, 1, vec![ITEMS], 0, on_uncertain);
    let store = Arc::new(Sqlite::open(&options)?);
    // The writer's thread gets a core of its own, as it should in a server.
    let workers = std::thread::available_parallelism()?.get().saturating_sub(1).max(1);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build()?;
    let next = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..callers {
            tasks.spawn(caller(Arc::clone(&store), Arc::clone(&next), start));
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        Ok::<(), anyhow::Error>(())
    })?;
    Ok(per_second(next.load(Ordering::Relaxed), start))
}

/// Sends one row after the other and waits for each.
async fn caller(store: Arc<Sqlite>, next: Arc<AtomicU64>, start: Instant) -> Result<()> {
    while start.elapsed() < plan::round() {
        let row = row(next.fetch_add(1, Ordering::Relaxed));
        store.write(move |tx| Ok(tx.prepare_cached(INSERT)?.execute(params(&row))?)).await?;
    }
    Ok(())
}

#[expect(clippy::panic, reason = "a benchmark on a disk that fails has no result")]
fn panic_with(error: &semel_store::StoreError) {
    panic!("{error}");
}

#[expect(clippy::cast_precision_loss, reason = "a rate needs no 53 bits")]
fn per_second(n: u64, start: Instant) -> f64 {
    n as f64 / start.elapsed().as_secs_f64()
}
