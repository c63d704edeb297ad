//! The end of a database thread: whoever waits for it hears what is known, and the process is told.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use semel_store::sqlite::Sqlite;
use semel_store::{Fate, StoreError};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::support::{get, keys, options, put};

/// Marks what these tests plant, so that a log of theirs breaks for nobody else.
const PLANTED: &str = "planted";

/// A log that cannot be written, in the worst way.
struct BrokenLog;

impl Subscriber for BrokenLog {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        struct Find(bool);
        impl Visit for Find {
            fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
                self.0 |= format!("{value:?}").contains(PLANTED);
            }
        }
        let mut find = Find(false);
        event.record(&mut find);
        assert!(!find.0, "nothing can be logged");
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn broken_disk() -> StoreError {
    let error = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR);
    StoreError::Sqlite(rusqlite::Error::SqliteFailure(error, Some(PLANTED.to_owned())))
}

/// Nothing that is asked later waits for a thread that is gone.
async fn refuses_at_once(store: &Sqlite) {
    let later = store.write(|tx| put(tx, "later", 1));
    assert!(matches!(later.await, Err(StoreError::Stopped)));
    assert!(matches!(store.ride(|_| Ok(())), Err(StoreError::Stopped)));
}

#[tokio::test]
async fn an_unknown_outcome_is_told_although_it_cannot_be_logged() {
    // Another test of the same process may have set it before.
    let _ = tracing::subscriber::set_global_default(BrokenLog);
    let folder = tempfile::tempdir().unwrap();
    let (options, told) = options(folder.path());
    let store = Sqlite::open(&options).unwrap();
    let answer = store.write(|tx| put(tx, "a", 1).and(Err::<(), _>(broken_disk()))).await;
    assert_eq!(answer.unwrap_err().fate(), Fate::Uncertain);
    assert_eq!(told.lock().unwrap().len(), 1, "the process is told, once");
    refuses_at_once(&store).await;
    store.close().await;
}

#[tokio::test]
async fn what_is_on_disk_is_answered_so_although_somebody_who_is_told_of_it_panics() {
    let folder = tempfile::tempdir().unwrap();
    let (mut options, told) = options(folder.path());
    options.ride_wait = Duration::from_secs(3600);
    let store = Arc::new(Sqlite::open(&options).unwrap());
    // All in one group: it is committed when the last of them comes.
    let riders = ["a", "b"].map(|key| store.write_along(move |tx| put(tx, key, 1)));
    let telling = store.write_then(|tx| put(tx, "c", 1), |_| panic!("{PLANTED}"));
    let (riders, telling) = tokio::join!(join_all(riders), telling);
    assert!(telling.unwrap(), "it is on disk");
    for rider in riders {
        assert!(rider.unwrap());
    }
    assert_eq!(keys(&store).await, ["a", "b", "c"]);
    // What should have been told is lost, and nobody knows what follows from that.
    refuses_at_once(&store).await;
    assert_eq!(told.lock().unwrap().len(), 1);
    Arc::into_inner(store).unwrap().close().await;
}

#[tokio::test]
async fn a_writer_that_dies_says_that_nobody_knows_and_lets_nobody_wait() {
    let folder = tempfile::tempdir().unwrap();
    let (options, told) = options(folder.path());
    let store = Sqlite::open(&options).unwrap();
    // The caller has gone, and what it would have been given cannot even be thrown away.
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let (begins, begun) = tokio::sync::oneshot::channel::<()>();
    let mut begins = Some(begins);
    let mut leaving = Box::pin(store.write(move |tx| {
        drop(begins.take());
        wait.recv().unwrap();
        put(tx, "left", 1).map(|_| Explosive)
    }));
    assert!(futures_util::poll!(&mut leaving).is_pending());
    // Who comes from now on is not in the writer's hands yet.
    assert!(begun.await.is_err(), "it has begun");
    let staying = store.write(|tx| put(tx, "stayed", 1));
    let release = async {
        while store.queue_len() < 1 {
            tokio::task::yield_now().await;
        }
        drop(leaving);
        go.send(()).unwrap();
    };
    let (stayed, ()) = tokio::join!(staying, release);
    match stayed {
        Ok(new) => assert!(new),
        Err(error) => assert_eq!(error.fate(), Fate::Uncertain, "{error}"),
    }
    assert_eq!(get(&store, "stayed").await, Some(1), "it was committed");
    refuses_at_once(&store).await;
    assert_eq!(told.lock().unwrap().len(), 1);
    store.close().await;
}

struct Explosive;

impl Drop for Explosive {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "{PLANTED}");
    }
}

#[tokio::test]
async fn a_reader_that_panics_reads_on() {
    let folder = tempfile::tempdir().unwrap();
    let (options, told) = options(folder.path());
    let store = Sqlite::open(&options).unwrap();
    store.write(|tx| put(tx, "a", 1)).await.unwrap();
    for _ in 0..2 * options.readers {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let mut leaving = Box::pin(store.read(move |connection| {
            // Whoever leaves a transaction open leaves it to nobody else.
            connection.execute_batch("COMMIT; BEGIN; SELECT * FROM item")?;
            wait.recv().unwrap();
            connection.execute_batch("COMMIT; BEGIN")?;
            Ok(Explosive)
        }));
        assert!(futures_util::poll!(&mut leaving).is_pending());
        drop(leaving);
        go.send(()).unwrap();
    }
    for _ in 0..2 * options.readers {
        assert_eq!(get(&store, "a").await, Some(1));
    }
    assert!(told.lock().unwrap().is_empty(), "nothing was written");
    store.close().await;
}
