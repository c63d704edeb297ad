//! One step, from its dispatch to its end: time limits, the stop, the look at what it gave.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use semel_core::hex::Hex;
use semel_core::id::JobId;
use serde_json::{Map, Value};
use tokio::sync::watch;

use super::Inner;
use super::artifacts;
use super::desk::StepDesk;
use crate::breaker::Run;
use crate::course::{self, ToRun};
use crate::dispatch::ExecutionStatus;
use crate::gear::room::Place;
use crate::gear::{self, Allowed, Call, Failure, FailureClass, Output, Resolution, Stop, beneath};
use crate::limits::{
    DOCUMENT_BYTES_MAX, DOCUMENT_BYTES_WARN, GRACE, RESULT_DEPTH_MAX, RESULTS_BYTES_MAX,
};
use crate::policy::Judged;
use crate::store::{Ended, Job, Kept};

/// A step that has ended.
pub(super) struct Landed {
    pub(super) to_run: ToRun,
    pub(super) ended: Ended,
    /// As its breaker sees it; nothing when we have stopped it ourselves and it was no probe.
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
    let place = placed(room(inner, kept, &to_run), Arc::clone(&desk));
    let (inner, kept_id, root) = (Arc::clone(inner), kept.job.id, kept.job.root_id);
    async move {
        let (own, stop) = Stop::channel();
        let place = tokio::select! {
            biased;
            place = place => Ok(place),
            () = tokio::time::sleep(left) => Err("there was no room for its process in time"),
            _ = all.wait_for(|stop| *stop) => Err("stopped before it was begun"),
        };
        let _place = match place {
            Ok(place) => place,
            Err(text) => {
                return grounded(to_run, &Failure::new(FailureClass::Transient, "stopped", text));
            }
        };
        let began = inner.parts.clock.monotonic();
        let execution_id = call.execution_id.clone();
        let workspace = call.workspace.clone();
        let prepared = Arc::clone(&to_run.prepared);
        if prepared.gear.begins_in_workspace()
            && let Err(error) = make(workspace).await
        {
            let message = format!("the job has no folder to work in: {error}");
            let failure = Failure::new(FailureClass::ResourceLimit, "no_workspace", message);
            return grounded(to_run, &failure);
        }
        let running = prepared.gear.run(call, Arc::<StepDesk>::clone(&desk), stop);
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
        let ended = match desk.judge(ended) {
            // Whatever a gear calls its end after it was stopped: the limit that fired is named.
            gear::Ended::Uncertain(_) if late => gear::Ended::Uncertain(stopped_failure(true)),
            ended @ (gear::Ended::Done(_) | gear::Ended::Failed(_) | gear::Ended::Uncertain(_)) => {
                ended
            }
        };
        let took = inner.parts.clock.monotonic().saturating_sub(began);
        inner.metrics.step(&to_run.action, took);
        let (ended, run) = land(&inner, &to_run, root, ended).await;
        tracing::debug!(job = %kept_id, execution_id, "a step has ended");
        // A probe that we have stopped says so, for another to take its place.
        let run = if stopped { to_run.probe.map(|_| Run::Refused) } else { Some(run) };
        Landed { to_run, ended, run }
    }
}

/// A step that was not begun.
fn grounded(to_run: ToRun, failure: &Failure) -> Landed {
    let ended = failed(&to_run, failure, true);
    let run = to_run.probe.map(|_| Run::Refused);
    Landed { to_run, ended, run }
}

/// Waits until a step may have a process, if it needs one.
fn room(inner: &Inner, kept: &Kept, to_run: &ToRun) -> impl Future<Output = Option<Place>> + use<> {
    let lane = to_run.prepared.gear.lane().cloned();
    let (room, depth) = (inner.room.clone(), kept.job.depth);
    async move {
        match lane {
            None => None,
            Some(lane) => Some(room.place(&lane, depth).await),
        }
    }
}

/// The same, for a step whose job gives its slot to others meanwhile.
async fn placed(room: impl Future<Output = Option<Place>>, desk: Arc<StepDesk>) -> Option<Place> {
    tokio::pin!(room);
    if let Some(place) = (&mut room).now_or_never() {
        return place;
    }
    let waiting = desk.waits();
    let place = room.await;
    waiting.over().await;
    place
}

async fn make(workspace: PathBuf) -> io::Result<()> {
    let made = tokio::task::spawn_blocking(move || beneath::make_private(&workspace)).await;
    made.map_err(io::Error::other)?
}

fn stopped_failure(late: bool) -> Failure {
    if late {
        let message = "the step's time ended; its gear was stopped";
        Failure::new(FailureClass::Transient, "step_timeout", message)
    } else {
        Failure::new(FailureClass::UserError, "stopped", "the step was stopped")
    }
}

fn call(inner: &Arc<Inner>, kept: &Kept, to_run: &ToRun, timeout: Duration) -> Call {
    Call {
        execution_id: format!("{}:{}", kept.job.root_id, to_run.step_id),
        attempt: to_run.attempt,
        action: to_run.name.clone(),
        params: to_run.params.clone(),
        workspace: inner.options.workspaces.join(kept.job.root_id.to_string()),
        timeout,
        via: kept
            .executions
            .iter()
            .find(|line| line.step_id == to_run.step_id)
            .and_then(|line| line.via.clone()),
        allowed: allowed(inner, &kept.job, to_run),
    }
}

/// A request may be sent on to wherever the policy says nothing stricter than of the request
/// itself, which a person has seen if the policy asks for that.
fn allowed(inner: &Arc<Inner>, job: &Job, to_run: &ToRun) -> Allowed {
    if !to_run.prepared.gear.is_sent_on() {
        return Allowed::all();
    }
    let (inner, job, to_run) = (Arc::clone(inner), job.clone(), to_run.clone());
    Allowed::by(move |method, url| {
        let mut params = to_run.params.clone();
        params["method"] = method.into();
        params["url"] = url.into();
        let judged = Judged {
            gear: &to_run.prepared.gear.manifest().id,
            name: &to_run.name,
            params: &params,
            risk: to_run.risk,
            action: &to_run.prepared.action,
            asker: job.asked_by(),
        };
        inner.options.policy.judge(&judged) <= to_run.verdict
    })
}

/// Asks a gear what became of an earlier attempt; nothing when nobody can tell.
pub(super) async fn resolve(
    inner: &Arc<Inner>,
    kept: &Kept,
    to_run: &ToRun,
    left: Duration,
    stop: Stop,
) -> Option<Ended> {
    let timeout = to_run.timeout.min(left);
    let call = call(inner, kept, to_run, timeout);
    let resolving = async {
        let _place = room(inner, kept, to_run).await;
        to_run.prepared.gear.resolve(call, stop).await
    };
    let answer = tokio::time::timeout(timeout, resolving).await;
    match answer.unwrap_or(Resolution::Unknown) {
        Resolution::Done(output) => {
            let done = gear::Ended::Done(output);
            let (ended, _) = land(inner, to_run, kept.job.root_id, done).await;
            let ended = beside(kept, to_run, ended);
            if ended.status == ExecutionStatus::Completed {
                return Some(ended);
            }
            // It happened, and nobody knows what came of it. Asked again it would say the same.
            let (job, error) = (kept.job.id, ended.error.unwrap_or_default());
            tracing::warn!(%job, step = to_run.step_id, error, "a gear has no valid result");
            None
        }
        // It may be tried again, as often as any other.
        Resolution::NotDone => {
            let message = "the gear says that it has not happened";
            let failure = Failure::new(FailureClass::Transient, "not_done", message);
            Some(failed(to_run, &failure, true))
        }
        Resolution::Unknown => None,
    }
}

/// Looks at what a gear gave.
async fn land(inner: &Inner, to_run: &ToRun, root: JobId, ended: gear::Ended) -> (Ended, Run) {
    let output = match ended {
        gear::Ended::Done(output) => output,
        gear::Ended::Failed(failure) => {
            return (failed(to_run, &failure, true), Run::of(Some(failure.class)));
        }
        gear::Ended::Uncertain(failure) => {
            return (failed(to_run, &failure, false), Run::of(Some(failure.class)));
        }
    };
    let (value, artifact) = match taken(inner, root, output).await {
        Ok(taken) => taken,
        // The effect has happened; only its result cannot be kept.
        Err(failure) => {
            return (failed(to_run, &failure, false), Run::of(Some(failure.class)));
        }
    };
    let text = value.to_string();
    let wrong = if text.len() > DOCUMENT_BYTES_MAX {
        let message =
            format!("the result has {} bytes, {DOCUMENT_BYTES_MAX} are allowed", text.len());
        Some(Failure::new(FailureClass::ResourceLimit, "result_too_large", message))
    } else if is_deeper(&value, RESULT_DEPTH_MAX) {
        let message = format!(
            "the result has more than {RESULT_DEPTH_MAX} lists and objects inside each other"
        );
        Some(Failure::new(FailureClass::ResourceLimit, "result_too_deep", message))
    } else {
        let checked = to_run.prepared.check_result(&value).err();
        checked.map(|detail| Failure::new(FailureClass::GearBug, "invalid_result", detail))
    };
    if let Some(failure) = wrong {
        return (failed(to_run, &failure, false), Run::of(Some(failure.class)));
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

/// Whether it has more containers inside each other. A stranger has made it: nothing recurses.
fn is_deeper(value: &Value, depth_max: usize) -> bool {
    let mut left = vec![(value, 0)];
    while let Some((value, outside)) = left.pop() {
        let depth = outside + usize::from(value.is_array() || value.is_object());
        if depth > depth_max {
            return true;
        }
        match value {
            Value::Array(items) => left.extend(items.iter().map(|item| (item, depth))),
            Value::Object(fields) => left.extend(fields.values().map(|item| (item, depth))),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    false
}

/// The end of a step beside what others of its job have given. Each result is small enough, and all
/// of them are held for as long as the job is under way.
pub(super) fn beside(kept: &Kept, to_run: &ToRun, ended: Ended) -> Ended {
    let others = kept.executions.iter().filter(|line| line.step_id != ended.step_id);
    let others: usize = others.filter_map(|line| line.result.as_ref()).map(String::len).sum();
    let bytes = others + ended.result.as_ref().map_or(0, String::len);
    if ended.result.is_none() || bytes <= RESULTS_BYTES_MAX {
        return ended;
    }
    let message = format!(
        "with it the results of the job have {bytes} bytes, {RESULTS_BYTES_MAX} are allowed; a \
         large one can be given as a file"
    );
    let failure = Failure::new(FailureClass::ResourceLimit, "result_too_large", message);
    // The effect has happened; only its result cannot be kept.
    failed(to_run, &failure, false)
}

/// What a gear gave, as a document; a file that goes with it is kept.
async fn taken(
    inner: &Inner,
    root: JobId,
    output: Output,
) -> Result<(Value, Option<Hex<32>>), Failure> {
    let (value, file) = match output {
        Output::Value(value) => return Ok((value, None)),
        Output::Artifact(file) => (Map::new(), file),
        Output::With { value: Value::Object(value), file } => (value, file),
        Output::With { .. } => {
            let text = "a value beside a file must be an object";
            return Err(Failure::new(FailureClass::GearBug, "invalid_artifact", text));
        }
    };
    let kept = artifacts::keep(&inner.options.workspaces, root, file).await?;
    Ok((kept.told(value), Some(kept.hash)))
}

/// What a failure is for the store.
fn failed(to_run: &ToRun, failure: &Failure, certain: bool) -> Ended {
    Ended {
        step_id: to_run.step_id.clone(),
        status: ExecutionStatus::Failed,
        certain,
        result: None,
        artifact: None,
        error: Some(course::error_of(failure).to_string()),
        attempts_forgiven: false,
    }
}
