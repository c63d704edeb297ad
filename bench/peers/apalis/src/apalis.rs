//! apalis on SQLite, with a write-ahead log that is synced for every commit; its own `setup` would
//! turn that off. A job is one step.
//!
//! It keeps the end of a job some time after the job was run and tells nobody, so a watcher looks
//! for it. Looking does not disturb writers of such a log.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use apalis::prelude::{BackendExt, Data, TaskId, TaskSink, WaitForCompletion, WorkerBuilder};
use apalis_sqlite::{Config, SqliteStorage};
use futures::Stream;
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::load::{Shown, closed};
use crate::task::Task;

/// How long the watcher waits between two looks.
const LOOK: Duration = Duration::from_micros(200);
/// Of jobs that are fetched at once; its own default.
const BATCH_MIN: usize = 10;

/// Who waits, and for what.
type Ran = (usize, TaskId);
/// Who is told of the end, by the number of the caller.
type Ends = Vec<UnboundedSender<()>>;

async fn noop(caller: usize, id: TaskId, ran: Data<UnboundedSender<Ran>>) {
    // A watcher that has gone away has said why.
    let _ = ran.send((caller, id));
}

async fn pool(file: &Path) -> Result<SqlitePool> {
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full);
    // More would wait for each other in SQLite: with four it is half as fast.
    Ok(SqlitePoolOptions::new().max_connections(1).connect_with(options).await?)
}

/// Tells each caller of the end that is kept.
async fn watch(pool: SqlitePool, mut ran: UnboundedReceiver<Ran>, ends: Ends) -> Result<()> {
    let mut storage = SqliteStorage::<usize>::new(&pool);
    let mut waiting = HashMap::new();
    loop {
        if waiting.is_empty() {
            let (caller, id) = ran.recv().await.context("the worker is gone")?;
            waiting.insert(id.to_string(), (caller, id));
        }
        while let Ok((caller, id)) = ran.try_recv() {
            waiting.insert(id.to_string(), (caller, id));
        }
        let ids: Vec<_> = waiting.values().map(|(_, id)| id.clone()).collect();
        let ended = WaitForCompletion::<()>::check_status(&mut storage, ids).await?;
        for kept in &ended {
            let known = waiting.remove(&kept.task_id.to_string());
            if let Some(end) = known.and_then(|(caller, _)| ends.get(caller)) {
                // A caller that has gone away needs no answer.
                let _ = end.send(());
            }
        }
        if ended.is_empty() {
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Wakes the worker for what was pushed, so that it need not poll.
fn wakes(mut pushed: UnboundedReceiver<()>) -> impl Stream<Item = ()> + Unpin + Send + 'static {
    futures::stream::poll_fn(move |cx| {
        let mut is_any = false;
        while let Poll::Ready(Some(())) = pushed.poll_recv(cx) {
            is_any = true;
        }
        if is_any {
            // What it finds this time may have been fetched before the push; it looks once more.
            cx.waker().wake_by_ref();
            return Poll::Ready(Some(()));
        }
        Poll::Pending
    })
}

pub(crate) async fn jobs(task: &Task) -> Result<Shown> {
    ensure!(task.steps == 1, "a job of apalis is one step");
    let file = task.folder.join("apalis.db");
    let pool = pool(&file).await?;
    SqliteStorage::migrations().run(&pool).await?;
    let (mut ends, mut ended) = (Vec::new(), Vec::new());
    for _ in 0..task.in_flight {
        let (end, heard) = unbounded_channel();
        ends.push(end);
        ended.push(tokio::sync::Mutex::new(heard));
    }
    let (ran, heard) = unbounded_channel::<Ran>();
    let readers = self::pool(&file).await?;
    tokio::spawn(async move {
        if let Err(error) = watch(readers, heard, ends).await {
            eprintln!("the watcher failed: {error:#}");
        }
    });
    let (news, pushed) = unbounded_channel();
    let config = Config::default().queue("noop").batch_size(task.in_flight.max(BATCH_MIN));
    let storage = SqliteStorage::<usize>::new(&pool).with_config(config);
    let backend = storage.clone().poll_with_stream(wakes(pushed));
    let worker = WorkerBuilder::new("bench").backend(backend).data(ran).build(noop);
    tokio::spawn(async move {
        if let Err(error) = worker.run().await {
            eprintln!("the worker failed: {error:#}");
        }
    });
    let ended = Arc::new(ended);
    closed(task, move |caller| {
        let (mut storage, ended, news) = (storage.clone(), Arc::clone(&ended), news.clone());
        async move {
            storage.push(caller).await?;
            news.send(())?;
            ended[caller].lock().await.recv().await.context("the worker is gone")
        }
    })
    .await
}
