//! Callers that each have one job under way.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;

use crate::task::Task;

/// How many, and what each took in microseconds.
pub(crate) struct Shown {
    pub(crate) per_second: f64,
    pub(crate) latencies_us: Vec<u32>,
}

/// `job` hands in a job and comes back when its end is kept.
pub(crate) async fn closed<J, F>(task: &Task, job: J) -> Result<Shown>
where
    J: Fn(usize) -> F + Send + Sync + 'static,
    F: Future<Output = Result<()>> + Send,
{
    let (job, round, start) = (Arc::new(job), task.round, Instant::now());
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..task.in_flight {
        let job = Arc::clone(&job);
        callers.spawn(async move {
            let mut latencies = Vec::new();
            while start.elapsed() < round {
                let began = Instant::now();
                job(caller).await?;
                latencies.push(u32::try_from(began.elapsed().as_micros())?);
            }
            anyhow::Ok(latencies)
        });
    }
    let mut latencies_us = Vec::new();
    while let Some(done) = callers.join_next().await {
        latencies_us.extend(done??);
    }
    let per_second = latencies_us.len() as f64 / start.elapsed().as_secs_f64();
    Ok(Shown { per_second, latencies_us })
}
