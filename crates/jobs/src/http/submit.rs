//! Taking jobs in.

use semel_api::problem::Problem;
use semel_api::route::{Call, Reply};
use serde_json::{Value, json};

use super::{Jobs, problem};
use crate::engine::{Asked, Taken};
use crate::store::Priority;

/// `POST /v1/jobs`.
pub(super) async fn submit(mut call: Call<Jobs>) -> Result<Reply, Problem> {
    let asked = Asked {
        request: call.body.text("request"),
        plan: call.body.value("plan").filter(|plan| !plan.is_null()),
        conversation: call.body.text("conversation_id"),
        priority: call.body.text("priority").as_deref().and_then(Priority::parse),
        timeout_ms: call.body.number("timeout_ms").map(i64::cast_unsigned),
        key: call.headers.text("idempotency-key"),
        ..Asked::default()
    };
    let taken = call.state.engine.submit(asked).await.map_err(problem)?;
    Ok(reply(&taken))
}

pub(super) fn reply(taken: &Taken) -> Reply {
    let status = if taken.deduplicated { 200 } else { 201 };
    Reply::json(status, document(taken).to_string())
}

pub(super) fn document(taken: &Taken) -> Value {
    json!({
        "id": taken.id.to_string(), "status": taken.status.as_str(),
        "deduplicated": taken.deduplicated,
    })
}
