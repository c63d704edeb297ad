//! Files that are not what was written to them: changed, cut, older or missing, beside a log and
//! without one. Each is refused and left as it is, or nothing is lost.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use semel_store::sqlite::{Sqlite, look};
use semel_store::{OpenError, StoreError};
use tempfile::TempDir;

use crate::support::{APPLICATION_ID, ITEMS, get, keys, open, options, put};

const FILES: [&str; 3] = ["items.db", "items.db-wal", "items.db.sums"];
const PAGE: usize = 4096;
const FRAME: usize = PAGE + 24;
const LOG_HEADER: usize = 32;

async fn fill(store: &Sqlite, numbers: std::ops::Range<i64>) {
    for number in numbers {
        // One page and more for each.
        store
            .write(move |tx| put(tx, &format!("{number:04}{}", "-".repeat(900)), number))
            .await
            .unwrap();
    }
}

/// What a process leaves that is killed now.
fn killed(from: &Path) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in FILES {
        if from.join(name).exists() {
            std::fs::copy(from.join(name), folder.path().join(name)).unwrap();
        }
    }
    folder
}

async fn closed(numbers: std::ops::Range<i64>) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    fill(&store, numbers).await;
    store.close().await;
    folder
}

fn files(folder: &Path) -> Vec<Option<Vec<u8>>> {
    FILES[..2].iter().map(|name| std::fs::read(folder.join(name)).ok()).collect()
}

/// By whoever opens it, and by whoever only looks; and nothing was changed.
fn is_refused(folder: &Path, about: &str) -> OpenError {
    let before = files(folder);
    let path = folder.join("items.db");
    let looked = look(&path, APPLICATION_ID, &[ITEMS]);
    assert!(matches!(looked, Err(OpenError::Damaged { .. })), "{about}: {looked:?}");
    let opened = Sqlite::open(&options(folder).0).map(drop);
    assert!(matches!(opened, Err(OpenError::Damaged { .. })), "{about}: {opened:?}");
    assert_eq!(files(folder), before, "{about}");
    opened.unwrap_err()
}

fn change(path: PathBuf, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(&path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn every_page_of_a_closed_file_is_compared() {
    let good = closed(0..40).await;
    assert!(!good.path().join("items.db-wal").exists(), "it was closed in order");
    let pages = std::fs::read(good.path().join("items.db")).unwrap().len() / PAGE;
    assert!(pages > 10);
    for page in 0..pages {
        for place in [0, 97, PAGE / 2, PAGE - 1] {
            // The first bytes say that it is a database at all.
            let damaged = killed(good.path());
            change(damaged.path().join("items.db"), |bytes| bytes[page * PAGE + place] ^= 1);
            let refused = is_refused(damaged.path(), &format!("byte {place} of page {page}"));
            let place = format!("items.db is damaged at page {}", page + 1);
            assert!(refused.to_string().contains(&place), "{refused}");
        }
    }
    assert_eq!(keys(&open(good.path())).await.len(), 40);
}

#[tokio::test]
async fn a_file_that_is_cut_empty_missing_or_older_is_refused() {
    let older = closed(0..20).await;
    let good = closed(0..40).await;
    let file = |folder: &TempDir| folder.path().join("items.db");
    let of = |damage: &dyn Fn(&TempDir)| {
        let damaged = killed(good.path());
        damage(&damaged);
        damaged
    };
    is_refused(of(&|it| change(file(it), |bytes| bytes.truncate(PAGE * 7))).path(), "cut");
    is_refused(of(&|it| change(file(it), |bytes| bytes[PAGE..2 * PAGE].fill(0))).path(), "zeros");
    let with_older = of(&|it| {
        std::fs::copy(file(&older), file(it)).unwrap();
    });
    is_refused(with_older.path(), "older");
    let opened = |it: TempDir| Sqlite::open(&options(it.path()).0).map(drop);
    for (name, damaged) in [
        ("empty", of(&|it| change(file(it), Vec::clear))),
        ("missing", of(&|it| std::fs::remove_file(file(it)).unwrap())),
    ] {
        let refused = opened(damaged);
        assert!(matches!(refused, Err(OpenError::Damaged { .. })), "{name}: {refused:?}");
    }
}

#[tokio::test]
async fn a_log_that_is_cut_empty_missing_older_or_anothers_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    fill(&store, 0..10).await;
    let older = std::fs::read(folder.path().join("items.db-wal")).unwrap();
    fill(&store, 10..20).await;
    let log = |it: &TempDir| it.path().join("items.db-wal");
    let length = std::fs::read(folder.path().join("items.db-wal")).unwrap().len();
    let frames = (length - LOG_HEADER) / FRAME;
    for frame in 0..frames {
        let cut = killed(folder.path());
        change(log(&cut), |bytes| bytes.truncate(LOG_HEADER + frame * FRAME));
        is_refused(cut.path(), &format!("cut behind frame {frame}"));
    }
    let empty = killed(folder.path());
    change(log(&empty), Vec::clear);
    is_refused(empty.path(), "empty");
    let missing = killed(folder.path());
    std::fs::remove_file(log(&missing)).unwrap();
    is_refused(missing.path(), "missing");
    let with_older = killed(folder.path());
    std::fs::write(log(&with_older), &older).unwrap();
    is_refused(with_older.path(), "older");
    // Also a byte of its last transaction.
    let changed = killed(folder.path());
    change(log(&changed), |bytes| bytes[length - 1] ^= 1);
    is_refused(changed.path(), "changed");
    // As it was left, it is good.
    assert_eq!(keys(&open(killed(folder.path()).path())).await.len(), 20);
    store.close().await;
    // A log that appears beside a file that was closed would be read into it.
    let beside = killed(folder.path());
    std::fs::write(log(&beside), &older).unwrap();
    is_refused(beside.path(), "of an earlier life");
    assert_eq!(keys(&open(folder.path())).await.len(), 20);
}

#[tokio::test]
async fn what_is_copied_from_the_log_is_compared_too_and_killed_at_any_time_it_is_good() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let mut copied = false;
    for round in 0..16 {
        fill(&store, round * 100..(round + 1) * 100).await;
        let left = killed(folder.path());
        let pages = std::fs::read(left.path().join("items.db")).unwrap().len() / PAGE;
        copied |= pages > 100;
        let found = open(left.path());
        let expected = usize::try_from((round + 1) * 100).unwrap();
        assert_eq!(keys(&found).await.len(), expected);
        found.close().await;
        assert_eq!(keys(&open(left.path())).await.len(), expected);
    }
    assert!(copied, "its log was long enough");
    // Some pages are in the log again, and most are not.
    let left = killed(folder.path());
    let pages = std::fs::read(left.path().join("items.db")).unwrap().len() / PAGE;
    let mut refused = 0;
    for page in (0..pages).step_by(7) {
        let damaged = killed(folder.path());
        change(damaged.path().join("items.db"), |bytes| bytes[page * PAGE + 200] ^= 1);
        match Sqlite::open(&options(damaged.path()).0) {
            Ok(found) => assert_eq!(keys(&found).await.len(), 1600, "page {page} is in the log"),
            Err(OpenError::Damaged { .. }) => refused += 1,
            Err(error) => panic!("page {page}: {error}"),
        }
    }
    assert!(refused > pages / 7 / 2, "{refused} of {pages} pages");
    store.close().await;
}

#[tokio::test]
async fn without_its_sums_a_file_is_good_and_gets_new_ones() {
    let folder = closed(0..40).await;
    let sums = |it: &TempDir| it.path().join("items.db.sums");
    let bytes = std::fs::read(sums(&folder)).unwrap();
    for number in 0..6 {
        let without = killed(folder.path());
        change(sums(&without), |bytes| match number {
            0 => bytes.clear(),
            1 => bytes.truncate(100),
            2 => bytes.truncate(5000),
            3 => bytes[3] ^= 1,
            4 => bytes[520] ^= 1,
            _ => bytes[4200] ^= 1,
        });
        let store = open(without.path());
        assert_eq!(keys(&store).await.len(), 40, "{number}");
        fill(&store, 40..50).await;
        store.close().await;
        assert_eq!(std::fs::read(sums(&without)).unwrap().len(), bytes.len(), "{number}");
        change(without.path().join("items.db"), |bytes| bytes[5 * PAGE + 200] ^= 1);
        is_refused(without.path(), &format!("{number}: they are compared again"));
    }
    let without = killed(folder.path());
    std::fs::remove_file(sums(&without)).unwrap();
    assert_eq!(keys(&open(without.path())).await.len(), 40);
}

#[tokio::test]
async fn the_last_of_several_removes_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (open(folder.path()), open(folder.path()));
    fill(&one, 0..5).await;
    fill(&other, 5..10).await;
    one.close().await;
    assert!(folder.path().join("items.db-wal").exists());
    fill(&other, 10..15).await;
    other.close().await;
    assert!(!folder.path().join("items.db-wal").exists());
    assert_eq!(keys(&open(folder.path())).await.len(), 15);
}

/// Killed after its first commit, before that is noted: what whoever closed it last had noted must
/// not count any more.
#[tokio::test]
async fn a_file_that_is_opened_while_it_is_closed_is_noted_as_open() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..50 {
        // The one before may still be closing.
        let store = open(folder.path());
        let left = killed(folder.path());
        fill(&store, number..number + 1).await;
        for name in &FILES[..2] {
            std::fs::copy(folder.path().join(name), left.path().join(name)).unwrap();
        }
        assert!(keys(&open(left.path())).await.len() > usize::try_from(number).unwrap());
    }
}

/// Killed when the log was removed and that was not noted yet; and once more after the first commit
/// of the next one, before that is noted.
#[tokio::test]
async fn a_log_that_begins_after_one_that_was_removed_is_no_older_one() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    fill(&store, 0..1).await;
    let left = killed(folder.path());
    // It copies the log that was left, and notes that.
    let _copying = open(left.path());
    for log in ["removed", "emptied"] {
        let without = killed(left.path());
        let path = without.path().join(FILES[1]);
        match log {
            "removed" => std::fs::remove_file(path).unwrap(),
            _ => std::fs::write(path, "").unwrap(),
        }
        let store = open(without.path());
        let again = killed(without.path());
        fill(&store, 1..2).await;
        for name in &FILES[..2] {
            std::fs::copy(without.path().join(name), again.path().join(name)).unwrap();
        }
        assert_eq!(keys(&open(again.path())).await.len(), 2, "{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_file_is_compared_while_it_is_used() {
    let folder = closed(0..100).await;
    change(folder.path().join("items.db"), |bytes| bytes[50 * PAGE + 200] ^= 1);
    let (options, _) = options(folder.path());
    let mut options = options.to_serve();
    options.compared_at_once = 0;
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    options.on_uncertain = Arc::new(move |error: &StoreError| drop(tell.send(error.to_string())));
    let store = Sqlite::open(&options).unwrap();
    let said = told.recv().await.unwrap();
    assert!(said.contains("items.db is damaged: at page 51"), "{said}");
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn comparing_while_it_is_written_finds_no_fault_where_there_is_none() {
    let folder = closed(0..1000).await;
    let (options, told) = options(folder.path());
    let mut options = options.to_serve();
    options.compared_at_once = 0;
    for round in 1..6 {
        let store = Sqlite::open(&options).unwrap();
        fill(&store, round * 1000..round * 1000 + 300).await;
        // Behind the comparison, on the same thread.
        assert_eq!(store.quick_check().await.unwrap(), [] as [&str; 0]);
        assert_eq!(
            get(&store, &format!("{:04}{}", round * 1000, "-".repeat(900))).await,
            Some(round * 1000)
        );
        store.close().await;
    }
    assert_eq!(*told.lock().unwrap(), [] as [&str; 0]);
}
