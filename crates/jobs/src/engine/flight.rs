//! One step, from its dispatch to its end: time limits, the stop, the look at what it gave.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use semel_core::hex::Hex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::io::AsyncReadExt;
use tokio::sync::watch;

use super::Inner;
use super::desk::StepDesk;
use super::runner::failed;
use crate::breaker::Run;
use crate::course::ToRun;
use crate::dispatch::ExecutionStatus;
use crate::gear::{self, Call, Failure, FailureClass, Output, Resolution, Stop};
use crate::limits::{DOCUMENT_BYTES_MAX, DOCUMENT_BYTES_WARN, GRACE};
use crate::store::{Ended, Kept};

/// A step that has ended.
pub(super) struct Landed {
    pub(super) to_run: ToRun,
    pub(super) ended: Ended,
    /// As its breaker sees it; nothing when we have stopped it ourselves.
    pub(super) run: Option<Run>,
}

/// Runs a step. When its time is over, or everything is told to stop, its gear is, too; the gear
/// ends within the grace, and what it says until then counts.
pub(super) fn fly(
    inner: &Arc<Inner>,
    kept: &Kept,
    to_run: ToRun,
    left: Duration,
    stop: &watch::Sender<bool>,
    desk: Arc<StepDesk>,
) -> impl Future<Output = Landed> + use<> {
    let timeout = to_run.timeout.min(left);
    let call = call(inner, kept, &to_run, timeout);
    let mut all = stop.subscribe();
    let (inner, kept_id) = (Arc::clone(inner), kept.job.id);
    async move {
        let (own, stop) = Stop::channel();
        let began = inner.parts.clock.monotonic();
        let execution_id = call.execution_id.clone();
        let workspace = call.workspace.clone();
        let prepared = Arc::clone(&to_run.prepared);
        if prepared.gear.needs_workspace()
            && let Err(error) = tokio::fs::create_dir_all(&workspace).await
        {
            let message = format!("the job has no folder to work in: {error}");
            let failure = Failure::new(FailureClass::ResourceLimit, "no_workspace", message);
            let ended = failed(&to_run, &failure, true);
            return Landed { to_run, ended, run: None };
        }
        let running = prepared.gear.run(call, desk, stop);
        tokio::pin!(running);
        let (mut late, mut stopped) = (false, false);
        let ended = tokio::select! {
            biased;
            ended = &mut running => Some(ended),
            () = tokio::time::sleep(timeout) => {
                late = true;
                None
            }
            _ = all.wait_for(|stop| *stop) => {
                stopped = true;
                None
            }
        };
        let ended = match ended {
            Some(ended) => ended,
            None => {
                own.send_replace(true);
                // The gear kills its own within the grace; should it not, it is left behind.
                let patience = GRACE + Duration::from_secs(1);
                let ended = tokio::time::timeout(patience, &mut running).await;
                ended.unwrap_or_else(|_| gear::Ended::Uncertain(stopped_failure(late)))
            }
        };
        let ended = match ended {
            // Whatever a gear calls its end after it was stopped: the limit that fired is named.
            gear::Ended::Uncertain(_) if late => gear::Ended::Uncertain(stopped_failure(true)),
            ended @ (gear::Ended::Done(_) | gear::Ended::Failed(_) | gear::Ended::Uncertain(_)) => {
                ended
            }
        };
        let took = inner.parts.clock.monotonic().saturating_sub(began);
        inner.metrics.step(&to_run.action, took);
        let (ended, run) = land(&inner, &to_run, &workspace, ended).await;
        tracing::debug!(job = %kept_id, execution_id, "a step has ended");
        Landed { to_run, ended, run: (!stopped).then_some(run) }
    }
}

fn stopped_failure(late: bool) -> Failure {
    if late {
        let message = "the step's time was over; its gear was stopped";
        Failure::new(FailureClass::Transient, "step_timeout", message)
    } else {
        Failure::new(FailureClass::UserError, "stopped", "the step was stopped")
    }
}

fn call(inner: &Inner, kept: &Kept, to_run: &ToRun, timeout: Duration) -> Call {
    Call {
        execution_id: format!("{}:{}", kept.job.root_id, to_run.step_id),
        attempt: to_run.attempt,
        action: to_run.name.clone(),
        params: to_run.params.clone(),
        workspace: inner.options.workspaces.join(kept.job.root_id.to_string()),
        timeout,
    }
}

/// Asks a gear what became of an earlier attempt.
pub(super) async fn resolve(
    inner: &Inner,
    kept: &Kept,
    to_run: &ToRun,
    left: Duration,
) -> Resolution {
    let timeout = to_run.timeout.min(left);
    let call = call(inner, kept, to_run, timeout);
    let (stop, stopped) = Stop::channel();
    let resolving = to_run.prepared.gear.resolve(call, stopped);
    let answer = tokio::time::timeout(timeout, resolving).await;
    drop(stop);
    answer.unwrap_or(Resolution::Unknown)
}

/// It has not happened: it may be tried again, as often as any other.
pub(super) fn not_done(to_run: &ToRun) -> Ended {
    let message = "the gear says that it has not happened";
    let failure = Failure::new(FailureClass::Transient, "not_done", message);
    failed(to_run, &failure, true)
}

/// Looks at what a gear gave.
pub(super) async fn done(
    inner: &Inner,
    kept: &Kept,
    to_run: &ToRun,
    output: Output,
) -> (Ended, Run) {
    let workspace = inner.options.workspaces.join(kept.job.root_id.to_string());
    land(inner, to_run, &workspace, gear::Ended::Done(output)).await
}

async fn land(inner: &Inner, to_run: &ToRun, workspace: &Path, ended: gear::Ended) -> (Ended, Run) {
    let output = match ended {
        gear::Ended::Done(output) => output,
        gear::Ended::Failed(failure) => {
            return (failed(to_run, &failure, true), Run::of(Some(failure.class)));
        }
        gear::Ended::Uncertain(failure) => {
            return (failed(to_run, &failure, false), Run::of(Some(failure.class)));
        }
    };
    let (value, artifact) = match output {
        Output::Value(value) => (value, None),
        Output::Artifact(path) => match keep(inner, workspace, &path).await {
            Ok((value, hash)) => (value, Some(hash)),
            // The effect has happened; only its result cannot be kept.
            Err(failure) => return (failed(to_run, &failure, false), Run::Succeeded),
        },
    };
    let text = value.to_string();
    let wrong = if text.len() > DOCUMENT_BYTES_MAX {
        let message =
            format!("the result has {} bytes, {DOCUMENT_BYTES_MAX} are allowed", text.len());
        Some(Failure::new(FailureClass::ResourceLimit, "result_too_large", message))
    } else {
        let checked = to_run.prepared.check_result(&value).err();
        checked.map(|detail| Failure::new(FailureClass::GearBug, "invalid_result", detail))
    };
    if let Some(failure) = wrong {
        return (failed(to_run, &failure, false), Run::Succeeded);
    }
    if text.len() > DOCUMENT_BYTES_WARN {
        tracing::warn!(action = to_run.action, bytes = text.len(), "a large result");
    }
    let ended = Ended {
        step_id: to_run.step_id.clone(),
        status: ExecutionStatus::Completed,
        certain: true,
        result: Some(text),
        artifact,
        error: None,
        attempts_forgiven: false,
    };
    (ended, Run::Succeeded)
}

/// Keeps a file that a gear has left in its workspace: beside the workspaces, under its hash.
async fn keep(inner: &Inner, workspace: &Path, path: &Path) -> Result<(Value, Hex<32>), Failure> {
    let bug = |message: String| Failure::new(FailureClass::GearBug, "invalid_artifact", message);
    let (root, path): (PathBuf, PathBuf) = (workspace.to_owned(), workspace.join(path));
    let real = tokio::fs::canonicalize(&path).await.map_err(|error| bug(error.to_string()))?;
    let root = tokio::fs::canonicalize(&root).await.map_err(|error| bug(error.to_string()))?;
    if !real.starts_with(&root) {
        return Err(bug("the file is not in the workspace".to_owned()));
    }
    let full = |error: std::io::Error| {
        Failure::new(FailureClass::ResourceLimit, "artifact_not_kept", error.to_string())
    };
    let folder = inner.options.workspaces.join("artifacts");
    tokio::fs::create_dir_all(&folder).await.map_err(full)?;
    let mut source = tokio::fs::File::open(&real).await.map_err(|error| bug(error.to_string()))?;
    let mut hash = Sha256::new();
    let (mut bytes, mut part) = (0_u64, vec![0; 64 * 1024]);
    loop {
        let read = source.read(&mut part).await.map_err(full)?;
        if read == 0 {
            break;
        }
        hash.update(&part[..read]);
        bytes += u64::try_from(read).unwrap_or(0);
    }
    let hash = Hex(hash.finalize().into());
    let kept = folder.join(hash.to_string());
    tokio::fs::copy(&real, &kept).await.map_err(full)?;
    let file = tokio::fs::File::open(&kept).await.map_err(full)?;
    file.sync_all().await.map_err(full)?;
    let name = real.strip_prefix(&root).unwrap_or(&real).to_string_lossy().into_owned();
    Ok((json!({"artifact": name, "sha256": hash.to_string(), "bytes": bytes}), hash))
}
