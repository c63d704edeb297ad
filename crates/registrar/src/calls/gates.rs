//! Gates: shown and set.

use semel_core::code::Code;
use semel_core::refusal::Refusal;
use semel_wire::http::Problem;
use serde_json::{Value, json};

use super::{Answer, failed};
use crate::decide::Gate;
use crate::document::Fields;
use crate::limits::DOMAIN_BYTES_MAX;
use crate::registrar::Registrar;

/// Which it is.
pub(crate) async fn show(registrar: &Registrar, domain: &str) -> Result<Answer, Problem> {
    decides(registrar, domain).map_err(Problem::of)?;
    let gate = registrar.over(domain).gate(domain).await.map_err(failed)?;
    Ok(Answer::ok(&shown(domain, gate)))
}

/// Opens or holds.
pub(crate) async fn set(registrar: &Registrar, fields: Fields) -> Result<Answer, Problem> {
    let (domain, gate) = read(fields).map_err(Problem::of)?;
    decides(registrar, &domain).map_err(Problem::of)?;
    registrar.over(&domain).gate_set(&domain, gate).await.map_err(failed)?;
    Ok(Answer::ok(&shown(&domain, gate)))
}

/// A gate of somebody else is neither shown nor set: it would hold nothing.
fn decides(registrar: &Registrar, domain: &str) -> Result<(), Refusal> {
    if !registrar.is_disowned(domain) {
        return Ok(());
    }
    let detail = format!(
        "this registrar does not decide about {domain}: another program keeps that domain in a \
         file of its own; call it on its own socket"
    );
    Err(Refusal::at(Code::InvalidField, "/domain", detail))
}

fn read(mut fields: Fields) -> Result<(String, Gate), Refusal> {
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
