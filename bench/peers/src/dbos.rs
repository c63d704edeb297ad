//! DBOS for Rust on PostgreSQL: a workflow whose steps are each kept when they end.

use std::sync::Arc;

use anyhow::Result;
use dbos::{Config, DBOS, Error, step};

use crate::load::{Shown, closed};
use crate::task::Task;

const NAMES: [&str; 3] = ["s0", "s1", "s2"];

pub(crate) async fn jobs(task: &Task) -> Result<Shown> {
    let config =
        Config { app_version: Some("bench".to_owned()), ..Config::new("bench", task.server()?) };
    let dbos = DBOS::new(config);
    let steps = task.steps.min(NAMES.len());
    let workflow = dbos.register_workflow("noop", move |_: u32| async move {
        for name in &NAMES[..steps] {
            step(name, || async { Ok::<_, Error>(()) }).await?;
        }
        Ok::<_, Error>(0_u32)
    })?;
    dbos.launch().await?;
    let workflow = Arc::new(workflow);
    closed(task, move |_| {
        let workflow = Arc::clone(&workflow);
        async move {
            workflow.run(0).await?;
            Ok(())
        }
    })
    .await
}
