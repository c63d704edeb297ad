//! SIGKILL at every statement of the writer: what was answered is there, and a group is there as
//! a whole or not at all.

use semel_store::StoreError;
use semel_store::sqlite::Sqlite;
use semel_testkit::crash;

use crate::support::{keys, open, options, put};

const ROUNDS: usize = 6;
const CALLERS: usize = 3;

#[test]
fn every_crash_point_leaves_what_was_acknowledged() {
    let mut seen_unacknowledged = false;
    let points = crash::every_point(
        "crash::every_crash_point_leaves_what_was_acknowledged",
        |child| {
            let (mut options, _) = options(&child.folder);
            options.instrument = Some(crash::instrument);
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build();
            runtime.unwrap().block_on(async {
                let store = Sqlite::open(&options).unwrap();
                for round in 0..ROUNDS {
                    let writes = (0..CALLERS).map(|caller| {
                        let store = &store;
                        async move {
                            let key = format!("{round}.{caller}");
                            let pair = (format!("{key}.one"), format!("{key}.two"));
                            // Two rows in one write: never one without the other.
                            let write = store.write(move |tx| {
                                put(tx, &pair.0, 1)?;
                                put(tx, &pair.1, 2)
                            });
                            assert!(write.await.unwrap());
                            child.acknowledge(&key);
                        }
                    });
                    // One that fails puts the rest of its group through savepoints.
                    let fails = store.write(|tx| {
                        put(tx, "never", 1)?;
                        Err::<(), _>(StoreError::Busy)
                    });
                    let (_, failed) =
                        futures_util::join!(futures_util::future::join_all(writes), fails);
                    assert!(failed.is_err());
                }
                store.close().await;
            });
        },
        |left| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let store = open(&left.folder);
                let found = keys(&store).await;
                let complete = |key: &str| {
                    let has = |part| found.iter().any(|row| *row == format!("{key}.{part}"));
                    assert_eq!(has("one"), has("two"), "{key} is half there at {:?}", left.point);
                    has("one")
                };
                for key in &left.acknowledged {
                    assert!(complete(key), "{key} was acknowledged, lost at {:?}", left.point);
                }
                assert!(!found.contains(&"never".to_owned()), "a failed write is there");
                let unacknowledged = found.len() / 2 - left.acknowledged.len();
                // Only the writes in flight may be there unasked: one per caller.
                assert!(unacknowledged <= CALLERS, "{found:?}");
                seen_unacknowledged |= unacknowledged > 0;
                assert_eq!(store.quick_check().await.unwrap(), [] as [&str; 0]);
                if left.point.is_none() {
                    assert_eq!(left.acknowledged.len(), ROUNDS * CALLERS);
                }
            });
        },
    );
    assert!(points > 100, "only {points} crash points");
    assert!(seen_unacknowledged, "no child died between commit and answer");
}

/// Only what is whole has the name of a backup, and the next one takes its place in any case.
#[test]
fn a_backup_that_is_killed_leaves_nothing_under_its_name() {
    let (mut whole, mut none) = (0, 0);
    crash::every_point(
        "crash::a_backup_that_is_killed_leaves_nothing_under_its_name",
        |child| {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build();
            runtime.unwrap().block_on(async {
                let store = open(&child.folder);
                for number in 0..20 {
                    let key = format!("{number:02}{}", "x".repeat(3000));
                    store.write(move |tx| put(tx, &key, 1)).await.unwrap();
                }
                store.close().await;
                let (mut options, _) = options(&child.folder);
                options.instrument = Some(crash::instrument);
                let store = Sqlite::open(&options).unwrap();
                child.acknowledge("opened");
                store.backup_into(&child.folder.join("backup.db")).await.unwrap();
                child.acknowledge("copied");
            });
        },
        |left| {
            let target = left.folder.join("backup.db");
            if target.exists() {
                let copied = rusqlite::Connection::open(&target).unwrap();
                let count = "SELECT count(*) FROM item";
                let rows: i64 = copied.query_row(count, [], |row| row.get(0)).unwrap();
                assert_eq!(rows, 20, "half of it at {:?}", left.point);
                whole += 1;
                return;
            }
            assert!(!left.acknowledged.contains(&"copied".to_owned()), "lost at {:?}", left.point);
            none += 1;
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let store = open(&left.folder);
                store.backup_into(&target).await.unwrap();
                store.close().await;
            });
            let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&target).unwrap());
            assert_eq!(mode & 0o777, 0o600, "its owner's alone");
            let names = std::fs::read_dir(&left.folder).unwrap();
            let mut names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            assert!(!names.any(|name| name.contains(".part")), "what was left is gone");
        },
    );
    assert!(whole > 0 && none > 10, "{whole} {none}");
}
