//! What people say of jobs.

use semel_api::problem::Problem;
use semel_api::route::{Call, Reply};
use semel_core::code::Code;
use semel_core::hex::Hex;
use semel_core::refusal::Refusal;
use serde_json::{Value, json};

use super::submit::{document, reply};
use super::{Jobs, id_of, problem};
use crate::engine::{Answer, Refused};
use crate::gear::FailureClass;
use crate::life::JobStatus;
use crate::limits::{PAGE_MAX, RETRIES_MAX, RETRYING_MAX};

/// Who is at the local API.
const LOCAL: &str = "local";

/// `POST /v1/jobs/{id}/approve`.
pub(super) async fn approve(mut call: Call<Jobs>) -> Result<Reply, Problem> {
    let id = id_of(&call.id)?;
    let hash = call.body.text("plan_hash").unwrap_or_default();
    let hash = Hex::parse(&hash).map_err(|refusal| {
        Problem::from(Refusal::at(Code::InvalidField, "/plan_hash", refusal.detail))
    })?;
    let result = call.body.value("result");
    let question = call.body.number("question").ok_or_else(|| {
        let detail = "name the question that this answers: the job shows its number";
        Problem::from(Refusal::at(Code::InvalidField, "/question", detail))
    });
    let answer = match call.body.text("answer").as_deref() {
        Some("happened") => Answer::Happened(question?, result.unwrap_or(Value::Null)),
        Some("run") => Answer::Run(question?),
        Some(_) | None => Answer::Approve,
    };
    let status = call.state.engine.approve(id, hash, answer, LOCAL).await;
    let status = status.map_err(|refused| problem_of(&call.id, refused))?;
    Ok(moved(&call.id, status))
}

/// `POST /v1/jobs/{id}/reject`.
pub(super) async fn reject(mut call: Call<Jobs>) -> Result<Reply, Problem> {
    let (id, reason) = (id_of(&call.id)?, call.body.text("reason").unwrap_or_default());
    let status = call.state.engine.reject(id, &reason).await;
    let status = status.map_err(|refused| problem_of(&call.id, refused))?;
    Ok(moved(&call.id, status))
}

/// `POST /v1/jobs/{id}/cancel`.
pub(super) async fn cancel(mut call: Call<Jobs>) -> Result<Reply, Problem> {
    let (id, reason) = (id_of(&call.id)?, call.body.text("reason").unwrap_or_default());
    let status = call.state.engine.cancel(id, &reason).await;
    let status = status.map_err(|refused| problem_of(&call.id, refused))?;
    Ok(moved(&call.id, status))
}

/// `POST /v1/jobs/{id}/retry`.
pub(super) async fn retry(call: Call<Jobs>) -> Result<Reply, Problem> {
    let taken = call.state.engine.retry(id_of(&call.id)?).await.map_err(problem)?;
    Ok(reply(&taken))
}

/// `POST /v1/jobs/retry`.
pub(super) async fn retry_class(mut call: Call<Jobs>) -> Result<Reply, Problem> {
    let class = call.body.text("class").as_deref().and_then(FailureClass::parse);
    let class = class.ok_or_else(|| Problem::new(Code::InvalidField, "no such class"))?;
    let engine = &call.state.engine;
    // All that have failed by now, before any is repeated: one that fails again is not.
    let mut failed = Vec::new();
    let mut more = true;
    while more && failed.len() < RETRIES_MAX {
        let after = failed.last().map_or(0, |(no, _)| *no);
        let page = engine.store().failed(class, after, PAGE_MAX).await?;
        more = page.len() >= usize::try_from(PAGE_MAX).unwrap_or(usize::MAX);
        failed.extend(page);
    }
    let mut jobs = Vec::new();
    let mut stopped = Value::Null;
    let began = engine.monotonic();
    for (_, id) in failed {
        if engine.monotonic().saturating_sub(began) > RETRYING_MAX {
            more = true;
            break;
        }
        match engine.retry(id).await {
            Ok(taken) => jobs.push(document(&taken)),
            // It is being repeated, or was: that is what was asked for.
            Err(Refused::Refusal(_)) => {}
            // What is repeated by now is repeated: only the rest is not.
            Err(Refused::Store(error)) if !jobs.is_empty() => {
                (more, stopped) = (true, Problem::from(error).code.as_str().into());
                break;
            }
            Err(refused @ Refused::Store(_)) => return Err(problem(refused)),
            Err(refused @ Refused::Unknown(..)) => {
                return Err(problem(refused).with("jobs", jobs));
            }
        }
    }
    Ok(Reply::value(&json!({"jobs": jobs, "more": more, "stopped_by": stopped})))
}

/// `POST /v1/breakers/close`.
pub(super) async fn breaker_close(mut call: Call<Jobs>) -> Result<Reply, Problem> {
    let action = call.body.text("action").unwrap_or_default();
    if call.state.engine.breaker_close(&action).await? {
        return Ok(Reply::value(&json!({"action": action, "state": "closed"})));
    }
    Err(Problem::new(Code::BreakerNotFound, format!("there is no breaker {action:?}")))
}

/// The same of what was said of a job: where nobody can tell, which one to look at.
fn problem_of(id: &str, refused: Refused) -> Problem {
    let problem = problem(refused);
    if problem.code == Code::OutcomeUnknown { problem.with("job_id", id) } else { problem }
}

fn moved(id: &str, status: JobStatus) -> Reply {
    Reply::value(&json!({"id": id, "status": status.as_str()}))
}
