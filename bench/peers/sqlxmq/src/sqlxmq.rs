//! sqlxmq on PostgreSQL: a job is a message whose end is a row deleted; what comes before the last
//! step is a checkpoint, as durable as the end.

use std::sync::Arc;

use anyhow::{Context, Result};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use sqlxmq::{Checkpoint, CurrentJob, JobBuilder, JobRunnerOptions};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::load::{Shown, closed};
use crate::task::Task;

/// Its own migrations.
const SCHEMA: &str = include_str!(concat!(env!("OUT_DIR"), "/schema.sql"));

/// What a server answers best with on few cores.
const CONNECTIONS: u32 = 32;

/// The payload: who waits for the end, and how many steps are done.
type Payload = (usize, usize);

async fn noop(mut job: CurrentJob, steps: usize, ends: &[UnboundedSender<()>]) -> Result<()> {
    let (caller, done): Payload = job.json()?.context("a payload")?;
    for step in done + 1..steps {
        let mut checkpoint = Checkpoint::new();
        checkpoint.set_json(&(caller, step))?;
        job.checkpoint(&checkpoint).await?;
    }
    job.complete().await?;
    if let Some(end) = ends.get(caller) {
        // A caller that has gone away needs no answer.
        let _ = end.send(());
    }
    Ok(())
}

async fn pool(address: &str) -> Result<PgPool> {
    let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(address).await?;
    sqlx::raw_sql(SCHEMA).execute(&pool).await?;
    Ok(pool)
}

pub(crate) async fn jobs(task: &Task) -> Result<Shown> {
    let pool = pool(task.server()?).await?;
    let (mut ends, mut ended) = (Vec::new(), Vec::new());
    for _ in 0..task.in_flight {
        let (end, heard) = unbounded_channel();
        ends.push(end);
        ended.push(tokio::sync::Mutex::new(heard));
    }
    let (ends, steps) = (Arc::new(ends), task.steps);
    let mut runner = JobRunnerOptions::new(&pool, move |job| {
        let ends = Arc::clone(&ends);
        tokio::spawn(async move {
            if let Err(error) = noop(job, steps, &ends).await {
                eprintln!("a job failed: {error:#}");
            }
        });
    });
    // All that callers can have under way, and half of it in one look.
    runner.set_concurrency(task.in_flight.div_ceil(2), task.in_flight);
    let _runner = runner.run().await?;
    let ended = Arc::new(ended);
    closed(task, move |caller| {
        let (pool, ended) = (pool.clone(), Arc::clone(&ended));
        async move {
            let payload: Payload = (caller, 0);
            JobBuilder::new("noop").set_json(&payload)?.spawn(&pool).await?;
            ended[caller].lock().await.recv().await.context("the worker is gone")
        }
    })
    .await
}
