//! Gates: shown and set by the operator.

use semel_core::refusal::Refusal;
use semel_wire::http::Problem;
use serde_json::{Value, json};

use super::answer::{Answer, failed};
use super::query::Query;
use super::{Call, operator};
use crate::decide::Gate;
use crate::document::Fields;
use crate::limits::DOMAIN_BYTES_MAX;

pub(super) async fn show(call: &Call) -> Result<Answer, Problem> {
    operator(call)?;
    let mut query = Query::of(&call.query)?;
    let domain = query.domain()?;
    query.finish()?;
    let gate = call.registrar.gate(&domain).await.map_err(failed)?;
    Ok(Answer::ok(&shown(&domain, gate)))
}

pub(super) async fn set(call: &Call) -> Result<Answer, Problem> {
    operator(call)?;
    let (domain, gate) = read(&call.body).map_err(Problem::of)?;
    call.registrar.gate_set(&domain, gate).await.map_err(failed)?;
    Ok(Answer::ok(&shown(&domain, gate)))
}

fn read(body: &[u8]) -> Result<(String, Gate), Refusal> {
    let mut fields = Fields::parse(body)?;
    let domain = fields.name("domain", DOMAIN_BYTES_MAX)?;
    let gate = fields.word("action", Gate::parse, "open, hold")?;
    fields.finish().map(|()| (domain, gate))
}

fn shown(domain: &str, gate: Gate) -> Value {
    let can_proceed = match gate {
        Gate::Open => "YES",
        Gate::Held => "NO",
    };
    json!({"domain": domain, "gate": gate.as_str(), "can_proceed": can_proceed})
}
