//! Sub-jobs: a gear wants a job done, and waits for it. An attempt that is run again finds the job
//! that it made, or the newest that repeats it.

use std::sync::Arc;
use std::time::Duration;

use semel_core::backoff::backoff_delay;
use semel_core::code::Code;
use semel_core::id::JobId;
use semel_core::refusal::Refusal;
use semel_store::StoreError;
use serde_json::Value;

use super::door::{Asked, Refused, Taken, take};
use super::{Engine, Inner};
use crate::gear::grants::Grants;
use crate::life::JobStatus;
use crate::limits::{SETTLE_ROUNDS_MAX, SWEEP_MAX};
use crate::store::{Priority, Source};

/// Whose gear asks.
pub(super) struct Parent {
    pub(super) id: JobId,
    pub(super) gear: String,
    /// What that one declares.
    pub(super) grants: Grants,
    pub(super) depth: u32,
    /// What is left of its time: what it asks for does not outlive it.
    pub(super) left: Duration,
}

impl Parent {
    pub(super) fn left_ms(&self) -> i64 {
        i64::try_from(self.left.as_millis()).unwrap_or(i64::MAX)
    }
}

/// Makes the job, or finds it. Only a refusal is an answer: while the store is away, or nobody can
/// tell what it did, the same key is tried again for as long as the step's time lasts.
pub(super) async fn take_child(
    inner: &Arc<Inner>,
    parent: &Parent,
    key: &str,
    asked: &Value,
) -> Result<JobId, Refusal> {
    let mut failures = 0_u32;
    loop {
        let error = match take_once(inner, parent, key, asked).await {
            Ok(id) => return Ok(id),
            Err(Refused::Refusal(refusal)) => return Err(refusal),
            Err(Refused::Store(error) | Refused::Unknown(_, error)) => error,
        };
        failures = failures.saturating_add(1);
        tracing::warn!(key, error = error.chain(), failures, "a sub-job could not be made yet");
        tokio::time::sleep(backoff_delay(failures, (inner.parts.random)())).await;
    }
}

async fn take_once(
    inner: &Arc<Inner>,
    parent: &Parent,
    key: &str,
    asked: &Value,
) -> Result<JobId, Refused> {
    refuse_unread(asked)?;
    let request = asked.get("request").and_then(Value::as_str).map(str::to_owned);
    let asked = Asked {
        request,
        plan: asked.get("plan").cloned(),
        key: Some(key.to_owned()),
        source: Some(Source::SubJob),
        // A process waits for it: what has begun goes before what has not.
        priority: Some(Priority::Critical),
        ..Asked::default()
    };
    let taken = take(inner, asked, Some(parent)).await?;
    if taken.deduplicated && taken.status == JobStatus::Failed {
        return repeated(inner, parent, taken).await;
    }
    Ok(taken.id)
}

/// What nobody would read is refused, as it is in a job that a caller of the API asks for.
fn refuse_unread(asked: &Value) -> Result<(), Refusal> {
    let Some(fields) = asked.as_object() else {
        return Err(Refusal::new(Code::InvalidField, "a sub-job is an object"));
    };
    for (name, value) in fields {
        if !["request", "plan"].contains(&name.as_str()) {
            let shown = &name[..name.floor_char_boundary(64)];
            let detail = format!("a sub-job has no field {shown:?}: it has a request or a plan");
            return Err(Refusal::new(Code::UnknownField, detail));
        }
        if name == "request" && !value.is_string() && !value.is_null() {
            return Err(Refusal::at(Code::InvalidField, "/request", "must be a text"));
        }
    }
    Ok(())
}

/// One that failed in an earlier attempt. Somebody may have repeated it since; otherwise this
/// attempt does: what it has done is not done again.
async fn repeated(inner: &Arc<Inner>, parent: &Parent, taken: Taken) -> Result<JobId, Refused> {
    let mut refused = None;
    for _ in 0..SETTLE_ROUNDS_MAX {
        let newest = inner.parts.store.newest_repeat(taken.id).await?;
        let (id, status) = newest.unwrap_or((taken.id, taken.status));
        if status != JobStatus::Failed {
            return Ok(id);
        }
        match Engine::repeat(inner, id, Some(parent)).await {
            // Somebody was faster: theirs is the newest now.
            Err(Refused::Refusal(refusal)) if is_outrun(&refusal) => refused = Some(refusal),
            repeated => return repeated.map(|taken| taken.id),
        }
    }
    let moving = || Refusal::new(Code::JobRepeating, "the job is repeated again and again");
    Err(refused.unwrap_or_else(moving).into())
}

/// Whether a repetition was refused because there is one.
fn is_outrun(refusal: &Refusal) -> bool {
    matches!(refusal.code, Code::JobRepeating | Code::JobNotFailed)
}

/// Cancels what gears of cancelled jobs have asked for, and what these have asked for, and so on.
pub(super) async fn cancel_orphans(inner: &Arc<Inner>) -> Result<(), StoreError> {
    loop {
        let orphans = inner.parts.store.orphans(SWEEP_MAX).await?;
        if orphans.is_empty() {
            return Ok(());
        }
        for id in orphans {
            Engine::cancel_orphan(inner, id).await?;
        }
    }
}
