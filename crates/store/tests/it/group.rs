//! Group commit: who is undone with whom.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use semel_store::sqlite::Sqlite;
use semel_store::{Fate, StoreError};
use tokio::sync::oneshot;

use crate::support::{get, keys, open, options, put};

type Answers = Vec<Result<bool, StoreError>>;
type Write = Box<dyn FnMut(&semel_store::sqlite::Tx<'_>) -> Result<bool, StoreError> + Send>;

/// Runs these writes in one group.
async fn in_one_group(store: &Sqlite, writes: Vec<Write>) -> Answers {
    let count = writes.len();
    let writes = futures_util::future::join_all(writes.into_iter().map(|w| store.write(w)));
    let (held, others) = once_all_wait(store, count, writes).await;
    std::iter::once(held).chain(others).collect()
}

/// Holds the writer until so many wait, with a write of its own. They come once it holds: a writer
/// that wakes late would otherwise take them together with it, and nobody would be seen to wait.
async fn once_all_wait<T>(
    store: &Sqlite,
    count: usize,
    writes: impl Future<Output = T>,
) -> (Result<bool, StoreError>, T) {
    let (go, wait) = mpsc::channel::<()>();
    let (holds, held) = oneshot::channel();
    let mut holds = Some(holds);
    let hold = store.write(move |_| {
        if let Some(holds) = holds.take() {
            holds.send(()).unwrap();
            wait.recv().unwrap();
        }
        Ok(true)
    });
    let writes = async {
        held.await.unwrap();
        writes.await
    };
    let release = async {
        while store.queue_len() < count {
            tokio::task::yield_now().await;
        }
        go.send(()).unwrap();
    };
    let (held, others, ()) = tokio::join!(hold, writes, release);
    (held, others)
}

/// A store in which what rides along is never committed alone.
fn without_haste(folder: &Path) -> Sqlite {
    let (mut options, _) = options(folder);
    options.ride_wait = Duration::from_secs(3600);
    Sqlite::open(&options).unwrap()
}

fn good(key: &'static str) -> Write {
    Box::new(move |tx| put(tx, key, 1))
}

#[tokio::test]
async fn a_write_that_fails_or_panics_is_undone_alone() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let answers = in_one_group(
        &store,
        vec![
            good("a"),
            Box::new(|tx| {
                put(tx, "failed", 1)?;
                Err(StoreError::Busy)
            }),
            Box::new(|tx| {
                put(tx, "panicked", 1)?;
                panic!("on purpose");
            }),
            Box::new(|tx| Ok(tx.execute("INSERT INTO nowhere VALUES (1)", [])? == 1)),
            good("b"),
        ],
    )
    .await;
    assert!(answers[0].is_ok() && answers[1].is_ok() && answers[5].is_ok(), "{answers:?}");
    assert!(matches!(answers[2], Err(StoreError::Busy)));
    assert!(matches!(answers[3], Err(StoreError::Panicked)));
    assert!(matches!(answers[4], Err(StoreError::Sqlite(_))));
    assert_eq!(keys(&store).await, ["a", "b"]);
}

#[tokio::test]
async fn a_write_over_its_limits_is_undone_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (mut options, _) = options(folder.path());
    options.write_rows_max = 3;
    let store = Sqlite::open(&options).unwrap();
    let too_big = |tx: &semel_store::sqlite::Tx<'_>| {
        let sql = "INSERT INTO item (key, value) VALUES (CAST(zeroblob(?1) AS TEXT), 1)";
        Ok(tx.execute(sql, [i64::from(semel_store::limits::VALUE_BYTES_MAX) + 1])? == 1)
    };
    let answers = in_one_group(
        &store,
        vec![
            good("a"),
            Box::new(|tx| {
                for key in ["1", "2", "3", "4"] {
                    put(tx, key, 1)?;
                }
                Ok(true)
            }),
            Box::new(too_big),
            good("b"),
        ],
    )
    .await;
    assert!(matches!(answers[2], Err(StoreError::TooManyRows { rows: 4, max: 3 })), "{answers:?}");
    assert!(matches!(answers[3], Err(StoreError::Sqlite(_))), "{answers:?}");
    assert!(answers[1].is_ok() && answers[4].is_ok());
    assert_eq!(keys(&store).await, ["a", "b"]);
}

/// Whoever comes behind much work is committed without waiting for all of it.
#[tokio::test]
async fn a_group_ends_when_it_has_changed_enough() {
    const WRITES: usize = 6;
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let much = |write: usize| -> Write {
        let rows = semel_store::limits::GROUP_ROWS / 2;
        Box::new(move |tx| {
            for row in 0..rows {
                put(tx, &format!("{write}-{row}"), 1)?;
            }
            Ok(true)
        })
    };
    let before = store.commits();
    let answers = in_one_group(&store, (0..WRITES).map(much).collect()).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(store.commits() - before, WRITES as u64 / 2);
    assert_eq!(keys(&store).await.len() as u64, 3 * semel_store::limits::GROUP_ROWS);
    store.write(good("the next one")).await.unwrap();
    store.close().await;
}

/// Who asks for it is committed without waiting for those behind it, and with those before it.
#[tokio::test]
async fn a_group_ends_when_a_write_asks_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let before = store.commits();
    let ahead: Write = Box::new(|tx| {
        tx.commit_next();
        put(tx, "ahead", 1)
    });
    let writes = vec![good("before"), ahead, good("behind"), good("last")];
    let answers = in_one_group(&store, writes).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(store.commits() - before, 2);
    assert_eq!(keys(&store).await.len(), 4);
    store.close().await;
}

#[tokio::test]
async fn when_the_transaction_ends_by_itself_the_whole_group_is_undone() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let answers = in_one_group(
        &store,
        vec![
            good("before"),
            Box::new(|tx| {
                // What SQLite does by itself on a full disk or an I/O error.
                tx.execute_batch("ROLLBACK")?;
                Err(StoreError::Busy)
            }),
            good("after"),
        ],
    )
    .await;
    for (number, answer) in answers.iter().enumerate() {
        let error = answer.as_ref().expect_err("nobody may hear success");
        assert_eq!(error.fate(), Fate::Undone, "write {number}");
    }
    // Without the autocommit guard "after" would have committed alone.
    assert_eq!(keys(&store).await, [] as [&str; 0]);
    assert!(store.write(|tx| put(tx, "next", 1)).await.unwrap(), "the writer goes on");
}

#[tokio::test]
async fn behind_a_write_that_was_not_kept_none_of_its_sequence_is() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let (sequence, other) = (Arc::default(), Arc::default());
    let failing: Write = Box::new(|_| Err(StoreError::Busy));
    let writes = async {
        tokio::join!(
            store.write_behind(&sequence, 1, good("before")),
            store.write_behind(&sequence, 1, failing),
            store.write_behind(&sequence, 1, good("behind")),
            store.write_behind(&other, 1, good("elsewhere")),
        )
    };
    let (_, (before, failed, behind, elsewhere)) = once_all_wait(&store, 4, writes).await;
    assert!(before.is_ok() && elsewhere.is_ok(), "{before:?} {elsewhere:?}");
    assert!(matches!(failed, Err(StoreError::Busy)), "{failed:?}");
    assert!(matches!(behind, Err(StoreError::Behind)), "{behind:?}");
    let late = store.write_behind(&sequence, 1, good("late")).await;
    assert!(matches!(late, Err(StoreError::Behind)), "{late:?}");
    assert_eq!(keys(&store).await, ["before", "elsewhere"]);
}

#[tokio::test]
async fn behind_a_group_that_was_lost_none_of_its_sequences_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let sequence = Arc::default();
    let ending: Write = Box::new(|tx| {
        tx.execute_batch("ROLLBACK")?;
        Ok(true)
    });
    let writes =
        async { tokio::join!(store.write_behind(&sequence, 1, good("lost")), store.write(ending)) };
    let (_, (lost, _)) = once_all_wait(&store, 2, writes).await;
    assert!(matches!(lost, Err(StoreError::RolledBack { .. })), "{lost:?}");
    let behind = store.write_behind(&sequence, 1, good("behind")).await;
    assert!(matches!(behind, Err(StoreError::Behind)), "{behind:?}");
    assert!(store.write_behind(&Arc::default(), 1, good("next")).await.unwrap());
    assert_eq!(keys(&store).await, ["next"]);
}

#[tokio::test]
async fn no_room_in_the_file_is_a_definite_answer_and_the_writer_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (mut options, told) = options(folder.path());
    options.instrument = Some(|connection| connection.pragma_update(None, "max_page_count", 40));
    let store = Sqlite::open(&options).unwrap();
    let mut full = None;
    for n in 0..100 {
        let wide = format!("{n:04}{}", "x".repeat(2000));
        match store.write(move |tx| put(tx, &wide, 1)).await {
            Ok(_) => {}
            Err(error) => {
                full = Some((n, error));
                break;
            }
        }
    }
    let (stored, error) = full.expect("forty pages do not hold 100 wide rows");
    assert!(matches!(error, StoreError::Full), "{error:?}");
    assert_eq!(keys(&store).await.len(), stored);
    let freed = store.write(|tx| Ok(tx.execute("DELETE FROM item", [])?)).await;
    assert_eq!(freed.unwrap(), stored);
    assert!(store.write(|tx| put(tx, "small", 1)).await.unwrap());
    assert!(told.lock().unwrap().is_empty(), "nothing uncertain happened");
}

#[tokio::test]
async fn a_rider_goes_with_the_next_commit_or_alone_after_a_while() {
    let folder = tempfile::tempdir().unwrap();
    let store = without_haste(folder.path());
    store.ride(|tx| put(tx, "rider", 7).map(drop)).unwrap();
    assert_eq!(get(&store, "rider").await, None, "it has no commit of its own");
    store.write(|tx| put(tx, "driver", 1)).await.unwrap();
    assert_eq!(get(&store, "rider").await, Some(7));
    store.close().await;

    let (mut options, _) = options(folder.path());
    options.ride_wait = Duration::from_millis(1);
    let store = Sqlite::open(&options).unwrap();
    let (ran, mut done) = tokio::sync::mpsc::unbounded_channel();
    store
        .ride(move |tx| {
            put(tx, "alone", 8)?;
            ran.send(()).unwrap();
            Ok(())
        })
        .unwrap();
    done.recv().await.unwrap();
    // The next commit comes after the rider's, so its rows show whether the rider was kept.
    store.write(|_| Ok(())).await.unwrap();
    assert_eq!(get(&store, "alone").await, Some(8));
}

#[tokio::test]
async fn a_write_without_haste_is_answered_with_the_next_commit() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(without_haste(folder.path()));
    let (along, mut answered) = oneshot::channel();
    let patient = Arc::clone(&store);
    tokio::spawn(async move {
        let _ = along.send(patient.write_along(|tx| put(tx, "patient", 7)).await);
    });
    for _ in 0..100_000 {
        if store.queue_len() > 0 {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(get(&store, "patient").await, None, "it has no commit of its own");
    assert!(answered.try_recv().is_err(), "it is answered after a commit");
    store.write(|tx| put(tx, "driver", 1)).await.unwrap();
    assert!(answered.await.unwrap().unwrap());
    assert_eq!(get(&store, "patient").await, Some(7));
    assert_eq!(store.commits(), 1, "both are one");
}

#[tokio::test]
async fn what_rides_along_keeps_no_other_process_from_writing() {
    let folder = tempfile::tempdir().unwrap();
    let store = without_haste(folder.path());
    store.ride(|tx| put(tx, "rider", 7).map(drop)).unwrap();
    assert!(store.write_much_along(|tx| put(tx, "much", 1)).await.unwrap());
    store.ride(|tx| put(tx, "late", 8).map(drop)).unwrap();
    let other = rusqlite::Connection::open(options(folder.path()).0.path).unwrap();
    other.busy_timeout(Duration::from_secs(10)).unwrap();
    other.execute("DELETE FROM item WHERE key = 'much'", []).unwrap();
    store.close().await;
}

#[tokio::test]
async fn much_that_nobody_waits_for_is_committed_after_a_moment() {
    let folder = tempfile::tempdir().unwrap();
    let store = without_haste(folder.path());
    store.ride(|tx| put(tx, "rider", 7).map(drop)).unwrap();
    assert!(store.write_much_along(|tx| put(tx, "much", 1)).await.unwrap());
    assert_eq!(get(&store, "rider").await, Some(7), "whatever rides goes with it");
}

#[tokio::test]
async fn a_rider_that_fails_harms_nobody_and_closing_commits_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let store = without_haste(folder.path());
    store.ride(|_| Err(StoreError::Busy)).unwrap();
    store.write(|tx| put(tx, "a", 1)).await.unwrap();
    store.ride(|tx| put(tx, "last", 1).map(drop)).unwrap();
    store.close().await;
    let store = open(folder.path());
    assert_eq!(keys(&store).await, ["a", "last"]);
}

#[tokio::test]
async fn the_queue_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let (mut options, _) = options(folder.path());
    options.queue_max = 3;
    let store = Sqlite::open(&options).unwrap();
    let (go, wait) = mpsc::channel::<()>();
    let (began, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let held = store.write(move |_| {
        began.send(()).unwrap();
        Ok(wait.recv().is_ok())
    });
    let rest = async {
        begun.recv().await.unwrap();
        for _ in 0..3 {
            store.ride(|_| Ok(())).unwrap();
        }
        let refused = store.ride(|_| Ok(()));
        assert!(matches!(refused, Err(StoreError::Busy)), "{refused:?}");
        let waits = store.write(|tx| put(tx, "waited", 1));
        let (answer, ()) = tokio::join!(waits, async { go.send(()).unwrap() });
        assert!(answer.unwrap(), "a write waits for a place instead of being refused");
    };
    let (held, ()) = tokio::join!(held, rest);
    assert!(held.unwrap());
}

#[tokio::test]
async fn a_write_runs_also_when_its_caller_goes_away() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let (go, wait) = mpsc::channel::<()>();
    let mut leaving = Box::pin(store.write(move |tx| {
        wait.recv().unwrap();
        put(tx, "orphan", 1)
    }));
    assert!(futures_util::poll!(&mut leaving).is_pending());
    drop(leaving);
    go.send(()).unwrap();
    store.write(|_| Ok(())).await.unwrap();
    assert_eq!(get(&store, "orphan").await, Some(1));
}

#[tokio::test]
async fn what_follows_a_commit_is_told_also_when_its_caller_goes_away() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let (tell, told) = mpsc::channel();
    let tell_too = tell.clone();
    let mut leaving = Box::pin(
        store.write_then(|tx| put(tx, "kept", 1), move |new| tell.send(("kept", *new)).unwrap()),
    );
    assert!(futures_util::poll!(&mut leaving).is_pending());
    drop(leaving);
    let undone = store.write_then(
        |tx| put(tx, "undone", 1).and(Err::<(), _>(StoreError::Busy)),
        move |()| tell_too.send(("undone", true)).unwrap(),
    );
    assert!(undone.await.is_err());
    assert_eq!(told.iter().collect::<Vec<_>>(), [("kept", true)]);
}

#[tokio::test]
async fn readers_see_one_moment_and_cannot_write() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.write(|tx| put(tx, "a", 1)).await.unwrap();
    let (first_read, reached) = oneshot::channel();
    let (go, wait) = mpsc::channel::<()>();
    let counts = store.read(move |connection| {
        let count =
            || connection.query_row("SELECT count(*) FROM item", [], |r| r.get::<_, i64>(0));
        let before = count()?;
        let _ = first_read.send(());
        wait.recv().unwrap();
        Ok((before, count()?))
    });
    let write_between = async {
        reached.await.unwrap();
        store.write(|tx| put(tx, "b", 1)).await.unwrap();
        go.send(()).unwrap();
    };
    let (counts, ()) = tokio::join!(counts, write_between);
    assert_eq!(counts.unwrap(), (1, 1));
    let refused = store.read(|c| Ok(c.execute("DELETE FROM item", [])?)).await;
    assert!(matches!(refused, Err(StoreError::Sqlite(_))), "{refused:?}");
    let panicked = store.read(|_| -> Result<(), StoreError> { panic!("on purpose") }).await;
    assert!(matches!(panicked, Err(StoreError::Panicked)));
    assert_eq!(keys(&store).await, ["a", "b"], "a reader survives a panic");
}
