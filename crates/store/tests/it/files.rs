//! Opening files: whose they are, which version, how they were left; checks and copies.

use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use semel_store::limits;
use semel_store::migration::{Migration, MigrationSet};
use semel_store::sqlite::{LastStop, Purpose, Sqlite, SqliteOptions};
use semel_store::{OpenError, StoreError};

use crate::support::{get, keys, open, options, put};

#[tokio::test]
async fn writes_are_durable_by_setting() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let settings = store
        .write(|tx| {
            let pragma = |name| tx.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
            let mode: String = tx.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
            Ok((pragma("synchronous")?, pragma("foreign_keys")?, mode))
        })
        .await;
    assert_eq!(settings.unwrap(), (2, 1, "wal".to_owned()));
}

#[tokio::test]
async fn a_file_is_for_its_owner_alone_also_one_that_was_not() {
    let folder = tempfile::tempdir().unwrap();
    let (options, _) = options(folder.path());
    let path = folder.path().join("items.db");
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    for purpose in [Purpose::Visit, Purpose::Serve] {
        let store = Sqlite::open(&SqliteOptions { purpose, ..options.clone() }).unwrap();
        store.write(|tx| put(tx, "a", 1)).await.unwrap();
        assert_eq!(mode(&path), 0o600, "{purpose:?}");
        for entry in std::fs::read_dir(folder.path()).unwrap() {
            let path = entry.unwrap().path();
            assert_eq!(mode(&path) & 0o077, 0, "{path:?}");
        }
        drop(store);
        // As an earlier version has left it.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    }
}

/// Such as `/dev/null`, which everybody else needs as it is.
#[test]
fn what_is_no_file_is_no_database_and_keeps_its_mode() {
    let folder = tempfile::tempdir().unwrap();
    let (options, _) = options(folder.path());
    let path = folder.path().join("items.db");
    let _door = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    for purpose in [Purpose::Visit, Purpose::Serve] {
        assert!(Sqlite::open(&SqliteOptions { purpose, ..options.clone() }).is_err());
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o666, "{purpose:?}");
    }
}

#[tokio::test]
async fn a_statement_is_planned_once_whatever_is_bound() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let planned_again = store.write(|tx| {
        // A join by a bound value, and a bound limit: left alone, SQLite plans anew for each value.
        let sql = "SELECT b.value FROM item a JOIN item b ON b.key = a.key
                    WHERE a.key = ?1 AND b.value > ?2 LIMIT ?3";
        let mut statement = tx.prepare(sql)?;
        for n in 1..10 {
            statement.query((n.to_string(), n, n))?.next()?;
        }
        Ok(statement.get_status(rusqlite::StatementStatus::RePrepare))
    });
    assert_eq!(planned_again.await.unwrap(), 0);
}

#[tokio::test]
async fn a_newer_or_changed_schema_and_a_foreign_file_are_refused() {
    const OLD: MigrationSet = MigrationSet { component: "items", migrations: &[] };
    const CHANGED: MigrationSet = MigrationSet {
        component: "items",
        migrations: &[Migration { version: 1, name: "items", sql: "CREATE TABLE other (x)" }],
    };
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).close().await;
    let refusal = |set: MigrationSet, application_id: i32| {
        let (mut options, _) = options(folder.path());
        options.migrations = vec![set];
        options.application_id = application_id;
        Sqlite::open(&options).map(drop).expect_err("refused")
    };
    let ours = crate::support::APPLICATION_ID;
    assert!(matches!(refusal(OLD, ours), OpenError::Newer { found: 1, known: 0, .. }));
    assert!(matches!(refusal(CHANGED, ours), OpenError::MigrationChanged { version: 1, .. }));
    let foreign = refusal(crate::support::ITEMS, 5);
    assert!(matches!(foreign, OpenError::NotOurs { expected: 5, .. }), "{foreign}");
    assert_eq!(keys(&open(folder.path())).await, [] as [&str; 0], "refusing changed nothing");
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("items.db"), "this is not a database, at all").unwrap();
    let refused = Sqlite::open(&options(folder.path()).0).map(drop).expect_err("refused");
    assert!(matches!(refused, OpenError::Sqlite { .. }), "{refused}");
}

#[tokio::test]
async fn a_failed_migration_leaves_the_old_schema() {
    const BROKEN: MigrationSet = MigrationSet {
        component: "more",
        migrations: &[
            Migration { version: 1, name: "fine", sql: "CREATE TABLE fine (x)" },
            Migration { version: 2, name: "broken", sql: "CREATE TABLE half (x); CREATE GARBAGE" },
        ],
    };
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).close().await;
    let (mut broken, _) = options(folder.path());
    broken.migrations.push(BROKEN);
    let failed = Sqlite::open(&broken).map(drop).expect_err("fails");
    assert!(matches!(failed, OpenError::Migration { component: "more", version: 2, .. }));
    let store = open(folder.path());
    let tables = store
        .read(|connection| {
            let sql = "SELECT count(*) FROM sqlite_schema WHERE name IN ('fine', 'half')";
            Ok(connection.query_row(sql, [], |row| row.get::<_, i64>(0))?)
        })
        .await;
    assert_eq!(tables.unwrap(), 0);
}

#[tokio::test]
async fn an_unclean_stop_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    assert_eq!(store.last_stop(), LastStop::Clean);
    store.write(|tx| put(tx, "a", 1)).await.unwrap();
    assert!(store.wal_bytes() > 0);
    // What a killed process leaves: the files as they are now.
    let crashed = tempfile::tempdir().unwrap();
    for name in ["items.db", "items.db-wal"] {
        std::fs::copy(folder.path().join(name), crashed.path().join(name)).unwrap();
    }
    store.close().await;
    assert_eq!(open(folder.path()).last_stop(), LastStop::Clean);
    let after_crash = open(crashed.path());
    assert_eq!(after_crash.last_stop(), LastStop::Unclean);
    assert_eq!(get(&after_crash, "a").await, Some(1));
    // What is behind the end of the log that was left is not of the round that begins.
    let salts = || std::fs::read(crashed.path().join("items.db-wal")).unwrap()[16..24].to_vec();
    let before = salts();
    after_crash.write(|tx| put(tx, "b", 1)).await.unwrap();
    assert_ne!(salts(), before);
}

/// What a killed process leaves, with one byte of the log changed.
fn killed_and_damaged(from: &std::path::Path, place: usize) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(from.join("items.db"), folder.path().join("items.db")).unwrap();
    let mut log = std::fs::read(from.join("items.db-wal")).unwrap();
    log[place] ^= 0x10;
    std::fs::write(folder.path().join("items.db-wal"), log).unwrap();
    folder
}

#[tokio::test]
async fn a_damaged_log_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for number in 0..20 {
        store.write(move |tx| put(tx, &format!("{number:02}"), number)).await.unwrap();
    }
    let bytes = usize::try_from(store.wal_bytes()).unwrap();
    for place in [0, 20, 1000, bytes / 2] {
        let damaged = killed_and_damaged(folder.path(), place);
        let path = damaged.path().join("items.db");
        let files = || ["items.db", "items.db-wal"].map(|name| damaged.path().join(name));
        let before = files().map(|file| std::fs::read(file).unwrap());
        let refused = Sqlite::open(&options(damaged.path()).0).map(drop).expect_err("refused");
        assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
        assert!(refused.to_string().contains("items.db-wal is damaged at "), "{refused}");
        let ours = crate::support::APPLICATION_ID;
        let looked = semel_store::sqlite::look(&path, ours, &[crate::support::ITEMS]);
        assert!(matches!(looked, Err(OpenError::Damaged { .. })));
        assert_eq!(files().map(|file| std::fs::read(file).unwrap()), before, "byte {place}");
    }
    // Of the last transaction nobody can tell whether the power was cut before its commit.
    let torn = killed_and_damaged(folder.path(), bytes - 1);
    assert_eq!(keys(&open(torn.path())).await.len(), 19);
    store.close().await;
}

/// The end of one table's root page is overwritten: it can be opened, and nobody uses that table.
fn damage(file: &std::path::Path) {
    use std::os::unix::fs::FileExt;
    let connection = semel_testkit::sqlite::open(file).unwrap();
    let sql = "SELECT rootpage FROM sqlite_schema WHERE name = 'unused'";
    let page: u32 = connection.query_row(sql, [], |row| row.get(0)).unwrap();
    let bytes: u32 = connection.query_row("PRAGMA page_size", [], |row| row.get(0)).unwrap();
    drop(connection);
    let file = std::fs::File::options().write(true).open(file).unwrap();
    file.write_all_at(&[0x55; 8], u64::from(page - 1) * u64::from(bytes)).unwrap();
}

#[tokio::test]
async fn after_an_unclean_stop_and_only_then_the_file_is_checked_in_the_background() {
    const UNUSED: MigrationSet = MigrationSet {
        component: "unused",
        migrations: &[Migration { version: 1, name: "unused", sql: "CREATE TABLE unused (x)" }],
    };
    let folder = tempfile::tempdir().unwrap();
    let (mut options, told) = options(folder.path());
    options.migrations.push(UNUSED);
    let on_uncertain = {
        let told = Arc::clone(&told);
        Arc::new(move |error: &StoreError| told.lock().unwrap().push(error.to_string()))
    };
    options.on_uncertain = on_uncertain;
    // One thread does such work, so that what was handed in before this is over.
    let checked = async |store: &Sqlite| {
        store.maintain(|_| Ok(())).await.unwrap();
        std::mem::take(&mut *told.lock().unwrap())
    };
    Sqlite::open(&options).unwrap().close().await;
    damage(&options.path);
    let store = Sqlite::open(&options).unwrap();
    assert_eq!(checked(&store).await, [] as [&str; 0], "it was closed in order");
    store.write(|tx| put(tx, "a", 1)).await.unwrap();
    // Somebody else opens it meanwhile, as commands do: its log is no trace of a stop.
    let second = Sqlite::open(&options).unwrap();
    assert_eq!(checked(&second).await, [] as [&str; 0]);
    second.close().await;
    // What a killed process leaves.
    let crashed = tempfile::tempdir().unwrap();
    for name in ["items.db", "items.db-wal"] {
        std::fs::copy(folder.path().join(name), crashed.path().join(name)).unwrap();
    }
    store.close().await;
    options.path = crashed.path().join("items.db");
    let store = Sqlite::open(&options).unwrap();
    let wrong = checked(&store).await;
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    assert!(wrong[0].starts_with(&format!("{} is damaged: ", options.path.display())), "{wrong:?}");
}

/// Of a file that is in use: its log has its full length, is written over, and is as good as any
/// other after a crash.
#[tokio::test]
async fn a_log_in_use_is_long_and_stays_so_long() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let long = u64::from(limits::LOG_PAGES) * 4096;
    let write = |number: u64| store.write(move |tx| put(tx, &format!("{number:05}"), 1));
    for number in 0..limits::LOG_LENGTHENED_AFTER {
        write(number).await.unwrap();
    }
    // The log is lengthened behind the answer, and before the next one.
    write(limits::LOG_LENGTHENED_AFTER).await.unwrap();
    let bytes = store.wal_bytes();
    assert!(bytes >= long, "{bytes}");
    let crashed = tempfile::tempdir().unwrap();
    for name in ["items.db", "items.db-wal"] {
        std::fs::copy(folder.path().join(name), crashed.path().join(name)).unwrap();
    }
    let after_crash = open(crashed.path());
    assert_eq!(keys(&after_crash).await.len() as u64, limits::LOG_LENGTHENED_AFTER + 1);
    // Each of these fills pages of its own.
    for number in 0..40 {
        let value = "x".repeat(4096 * 1000 / 4);
        store.write(move |tx| put(tx, &format!("{number}{value}"), 1)).await.unwrap();
    }
    // And what the last of them added before the log was copied.
    let most = u64::from(limits::LOG_PAGES_MAX + limits::LOG_PAGES) * (4096 + 24);
    assert!(store.wal_bytes() <= most, "{}", store.wal_bytes());
    store.close().await;
    assert!(!folder.path().join("items.db-wal").exists());
}

#[tokio::test]
async fn a_backup_under_load_is_a_database_of_one_moment() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let target = folder.path().join("copy").join("items.db");
    std::fs::create_dir(target.parent().unwrap()).unwrap();
    let writes = async {
        for n in 0..200 {
            store.write(move |tx| put(tx, &format!("{n:03}"), n)).await.unwrap();
        }
    };
    let (backup, ()) = tokio::join!(store.backup_into(&target), writes);
    backup.unwrap();
    let copied = keys(&open(target.parent().unwrap())).await;
    let all = keys(&store).await;
    assert_eq!(copied, all[..copied.len()], "a prefix of what was written");
    let again = store.backup_into(&target).await;
    let is_refused = matches!(again, Err(StoreError::Copy { .. }));
    assert!(is_refused, "it overwrites nothing: {again:?}");
}

#[tokio::test]
async fn damage_is_found_by_the_checks() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for n in 0..300 {
        let key = format!("{n:03}{}", "x".repeat(200));
        store.write(move |tx| put(tx, &key, n)).await.unwrap();
    }
    assert_eq!(store.integrity_check().await.unwrap(), [] as [&str; 0]);
    store.close().await;
    // Nobody can compare it any more.
    semel_testkit::sqlite::forget_sums(&folder.path().join("items.db"));
    let mut file = std::fs::OpenOptions::new().write(true).open(folder.path().join("items.db"));
    let file = file.as_mut().unwrap();
    file.seek(SeekFrom::Start(4096 * 6)).unwrap();
    file.write_all(&[0xa5; 4096]).unwrap();
    let store = open(folder.path());
    // A page that cannot be read at all ends the check with an error: that is a finding too.
    let found =
        |result: Result<Vec<String>, StoreError>| !matches!(result, Ok(list) if list.is_empty());
    assert!(found(store.quick_check().await));
    assert!(found(store.integrity_check().await));
}

/// Others may write to the folder that a backup goes to: in `/tmp`, say.
#[tokio::test]
async fn a_backup_follows_no_link_and_writes_to_no_file_that_was_planted() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.write(|tx| put(tx, "a", 1)).await.unwrap();
    let target = folder.path().join("backup.db");
    let victim = folder.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    let digits = "0123456789abcdef";
    for planted in [".part".to_owned(), format!(".part-{digits}")] {
        let planted = folder.path().join(format!("backup.db{planted}"));
        std::os::unix::fs::symlink(&victim, &planted).unwrap();
        store.backup_into(&target).await.unwrap();
        assert!(std::fs::read(&victim).unwrap() == b"precious", "it was written to");
        assert!(std::fs::symlink_metadata(&target).unwrap().is_file());
        assert!(std::fs::symlink_metadata(&planted).unwrap().is_symlink(), "it is not ours");
        std::fs::remove_file(&target).unwrap();
        std::fs::remove_file(&planted).unwrap();
    }
    // A file that others can read, of the name that used to be written to.
    let planted = folder.path().join("backup.db.part");
    std::fs::write(&planted, "").unwrap();
    std::fs::set_permissions(&planted, std::fs::Permissions::from_mode(0o666)).unwrap();
    store.backup_into(&target).await.unwrap();
    let found = std::fs::metadata(&target).unwrap();
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    std::fs::remove_file(&target).unwrap();
    // A link in the place of the backup itself, also one that leads nowhere.
    std::os::unix::fs::symlink(folder.path().join("nowhere"), &target).unwrap();
    let refused = store.backup_into(&target).await.unwrap_err();
    assert!(format!("{refused:?}").contains("exists already"), "{refused:?}");
    assert!(!folder.path().join("nowhere").exists());
    std::fs::remove_file(&target).unwrap();
    // What a killed backup has left goes; what one holds that is being written stays.
    let left = folder.path().join(format!("backup.db.part-{digits}"));
    std::fs::write(&left, "half").unwrap();
    let held = std::fs::File::open(&left).unwrap();
    held.try_lock().unwrap();
    let refused = store.backup_into(&target).await.unwrap_err();
    assert!(format!("{refused:?}").contains("another backup"), "{refused:?}");
    drop(held);
    store.backup_into(&target).await.unwrap();
    assert!(!left.exists());
    store.close().await;
}
