//! effectum on SQLite, as it comes: it asks for a write-ahead log by a name that SQLite ignores, so
//! it has a rollback journal with `synchronous=NORMAL`, which is synced for every commit. A job is
//! one step; more would be checkpoints, which keep no results.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use effectum::{Job, JobRunner, Queue, RunningJob, Worker};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::load::{Shown, closed};
use crate::task::Task;

/// Who is told of the end, by the number of the caller.
type Ends = Arc<Vec<UnboundedSender<()>>>;

async fn noop(job: RunningJob, ends: Ends) -> Result<(), effectum::Error> {
    let caller: usize = job.json_payload()?;
    job.complete(()).await?;
    if let Some(end) = ends.get(caller) {
        // A caller that has gone away needs no answer.
        let _ = end.send(());
    }
    Ok(())
}

pub(crate) async fn jobs(task: &Task) -> Result<Shown> {
    ensure!(task.steps == 1, "a job of effectum is one step");
    let queue = Arc::new(Queue::new(&task.folder.join("effectum.db")).await?);
    let (mut ends, mut ended) = (Vec::new(), Vec::new());
    for _ in 0..task.in_flight {
        let (end, heard) = unbounded_channel();
        ends.push(end);
        ended.push(tokio::sync::Mutex::new(heard));
    }
    let most = u16::try_from(task.in_flight)?;
    let runner = JobRunner::builder("noop", noop).build();
    let worker = Worker::builder(&queue, Arc::new(ends)).max_concurrency(most).jobs([runner]);
    let _worker = worker.build().await?;
    let ended = Arc::new(ended);
    closed(task, move |caller| {
        let (queue, ended) = (Arc::clone(&queue), Arc::clone(&ended));
        async move {
            Job::builder("noop").json_payload(&caller)?.add_to(&queue).await?;
            ended[caller].lock().await.recv().await.context("the worker is gone")
        }
    })
    .await
}
