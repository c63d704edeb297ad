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
use crate::limits::PAGE_MAX;

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
    let answer = match call.body.text("answer").as_deref() {
        Some("happened") => Answer::Happened(result.unwrap_or(Value::Null)),
        Some("run") => Answer::Run,
        Some(_) | None => Answer::Approve,
    };
    let status = call.state.engine.approve(id, hash, answer, LOCAL).await.map_err(problem)?;
    Ok(moved(&call.id, status))
}

/// `POST /v1/jobs/{id}/reject`.
pub(super) async fn reject(mut call: Call<Jobs>) -> Result<Reply, Problem> {
    let (id, reason) = (id_of(&call.id)?, call.body.text("reason").unwrap_or_default());
    let status = call.state.engine.reject(id, &reason).await.map_err(problem)?;
    Ok(moved(&call.id, status))
}

/// `POST /v1/jobs/{id}/cancel`.
pub(super) async fn cancel(mut call: Call<Jobs>) -> Result<Reply, Problem> {
    let (id, reason) = (id_of(&call.id)?, call.body.text("reason").unwrap_or_default());
    let status = call.state.engine.cancel(id, &reason).await.map_err(problem)?;
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
    let mut jobs = Vec::new();
    for (_, id) in engine.store().failed(class, 0, PAGE_MAX).await? {
        match engine.retry(id).await {
            Ok(taken) => jobs.push(document(&taken)),
            // It is being repeated, or was: that is what was asked for.
            Err(Refused::Refusal(_)) => {}
            Err(Refused::Store(error)) => return Err(error.into()),
        }
    }
    Ok(Reply::value(&json!({"jobs": jobs})))
}

/// `POST /v1/breakers/close`.
pub(super) async fn breaker_close(mut call: Call<Jobs>) -> Result<Reply, Problem> {
    let action = call.body.text("action").unwrap_or_default();
    if call.state.engine.breaker_close(&action).await? {
        return Ok(Reply::value(&json!({"action": action, "state": "closed"})));
    }
    Err(Problem::new(Code::BreakerNotFound, format!("there is no breaker {action:?}")))
}

fn moved(id: &str, status: JobStatus) -> Reply {
    Reply::value(&json!({"id": id, "status": status.as_str()}))
}
