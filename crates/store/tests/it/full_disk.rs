//! A real full disk and a real I/O error. Both need a process with limits of its own, so each test
//! runs itself again under them.

use semel_store::sqlite::Sqlite;
use semel_store::{Fate, StoreError};
use semel_testkit::disk;

use crate::support::{keys, open, options, put};

/// Writes rows until one fails.
async fn fill(store: &Sqlite, wide: usize) -> (Vec<String>, StoreError) {
    let mut acknowledged = Vec::new();
    for n in 0..10_000 {
        let key = format!("{n:05}{}", "x".repeat(wide));
        let own = key.clone();
        match store.write(move |tx| put(tx, &own, 1)).await {
            Ok(_) => acknowledged.push(key),
            Err(error) => return (acknowledged, error),
        }
    }
    panic!("nothing ever failed");
}

#[tokio::test]
async fn a_full_disk_refuses_and_goes_on_once_there_is_room() {
    let test = "full_disk::a_full_disk_refuses_and_goes_on_once_there_is_room";
    let Some(folder) = disk::with_a_small_disk(test, 600 << 10) else { return };
    let (options, told) = options(&folder);
    let ballast = folder.join("ballast");
    std::fs::write(&ballast, vec![1; 100 << 10]).unwrap();
    let store = Sqlite::open(&options).unwrap();
    let (acknowledged, error) = fill(&store, 3000).await;
    assert!(matches!(error, StoreError::Full), "{error:?}");
    assert_eq!(keys(&store).await, acknowledged, "the refused row is not there");
    let again = store.write(|tx| put(tx, &"y".repeat(3000), 1)).await;
    assert!(matches!(again, Err(StoreError::Full)), "{again:?}");
    std::fs::remove_file(&ballast).unwrap();
    assert!(store.write(|tx| put(tx, "there is room", 1)).await.unwrap());
    assert!(told.lock().unwrap().is_empty(), "a full disk is a definite answer");
    store.close().await;
    assert_eq!(keys(&open(&folder)).await.len(), acknowledged.len() + 1);
}

#[tokio::test]
async fn an_io_error_in_commit_is_uncertain_and_stops_the_writer() {
    // Writes past this file size fail with EFBIG, which SQLite reports as an I/O error.
    let shell = r#"trap "" XFSZ; ulimit -f 300; exec "$@""#;
    let test = "full_disk::an_io_error_in_commit_is_uncertain_and_stops_the_writer";
    let Some(folder) = disk::under(test, shell) else { return };
    let (options, told) = options(&folder);
    let store = Sqlite::open(&options).unwrap();
    let (acknowledged, error) = fill(&store, 3000).await;
    assert_eq!(error.fate(), Fate::Uncertain, "{error:?}");
    assert_eq!(told.lock().unwrap().len(), 1, "the process was told, once");
    let after = store.write(|tx| put(tx, "after", 1)).await;
    assert!(matches!(after, Err(StoreError::Stopped)), "{after:?}");
    let found = keys(&store).await;
    assert_eq!(found[..acknowledged.len()], acknowledged, "what was answered is there");
    assert!(!found.contains(&"after".to_owned()));
}
