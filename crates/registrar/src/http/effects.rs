//! Effects: registered once, resolved, verified, compensated.

use semel_core::code::Code;
use semel_core::refusal::Refusal;
use semel_wire::http::Problem;
use serde_json::{Value, json};

use super::answer::{Answer, failed, text, with_result};
use super::query::Query;
use super::{Call, header, operator, unauthorised};
use crate::document::Fields;
use crate::envelope::{COMPENSATE, Envelope};
use crate::grant::Grant;
use crate::key::LogicalRequestKey;
use crate::limits::{NAME_BYTES_MAX, NOTE_BYTES_MAX};
use crate::registrar::Asked;
use crate::store::{Effect, Verdict, Verifying};

/// Registers, or compensates the effect that the path names.
pub(super) async fn register(
    call: &Call,
    compensates: Option<LogicalRequestKey>,
) -> Result<Answer, Problem> {
    let asked = asked(&call.body).map_err(Problem::of)?;
    if let Some(key) = compensates
        && (asked.envelope.operation != COMPENSATE
            || asked.envelope.canonical_target != key.to_string())
    {
        let detail = "the operation must be compensate, and the target the key in the path";
        return Err(Problem::of(Refusal::at(Code::InvalidField, "/envelope/operation", detail)));
    }
    match call.registrar.register(asked).await.map_err(failed)? {
        Ok(answer) => Ok(Answer::of(&answer)),
        Err(refusal) => Err(Problem::of(refusal)),
    }
}

fn asked(body: &[u8]) -> Result<Asked, Refusal> {
    let mut fields = Fields::parse(body)?;
    let asked = Asked {
        envelope: Envelope::take(&mut fields)?,
        grant: Grant::take(&mut fields)?,
        attempt_id: fields.name("attempt_id", NAME_BYTES_MAX)?,
    };
    fields.finish().map(|()| asked)
}

/// What happened to a request. With `mode=show` nothing is waited for and nothing closed.
pub(super) async fn resolve(call: &Call, key: LogicalRequestKey) -> Result<Answer, Problem> {
    operator_or_grant(call, key).await?;
    let mut query = Query::of(&call.query)?;
    let mode = query.take("mode");
    query.finish()?;
    match mode.as_deref() {
        None | Some("resolve") => {
            let resolved = call.registrar.resolve(key).await.map_err(failed)?;
            Ok(shown(key, resolved.effect.as_ref(), Some(resolved.closed)))
        }
        Some("show") => match call.registrar.show(key).await.map_err(failed)? {
            Some(effect) => Ok(shown(key, Some(&effect), None)),
            None => Err(none()),
        },
        Some(_) => Err(Problem::new(Code::InvalidField, "mode is resolve or show")),
    }
}

fn shown(key: LogicalRequestKey, effect: Option<&Effect>, closed: Option<u64>) -> Answer {
    let verdict = effect.and_then(|effect| effect.verdict.as_ref());
    let state = match (effect, verdict) {
        (None, _) => "absent",
        (Some(_), Some((Verdict::Failed, _))) => "failed",
        (Some(_), Some((Verdict::Passed, _)) | None) => "committed",
    };
    let verification = verdict
        .map_or(Value::Null, |(verdict, note)| json!({"verdict": verdict.as_str(), "note": note}));
    let mut document = json!({
        "logical_request_key": key.to_string(),
        "state": state,
        "verification": verification,
    });
    if let Some(closed) = closed {
        document["closed_attempts"] = closed.into();
    }
    text(with_result(&document, effect.map(|effect| effect.result.as_slice())))
}

/// A verdict, by the operator.
pub(super) async fn verify(call: &Call, key: LogicalRequestKey) -> Result<Answer, Problem> {
    operator(call)?;
    let (verdict, note) = verdict(&call.body).map_err(Problem::of)?;
    let note = note.unwrap_or_default();
    match call.registrar.verify(key, verdict, &note).await.map_err(failed)? {
        Verifying::Written => Ok(Answer::ok(&json!({
            "logical_request_key": key.to_string(), "verdict": verdict.as_str(),
        }))),
        Verifying::Other => Err(Problem::new(Code::VerdictExists, "there is another verdict")),
        Verifying::NoEffect => Err(none()),
    }
}

fn verdict(body: &[u8]) -> Result<(Verdict, Option<String>), Refusal> {
    let mut fields = Fields::parse(body)?;
    let verdict = fields.word("verdict", Verdict::parse, "passed, failed")?;
    let note = fields.optional_name("note", NOTE_BYTES_MAX)?;
    fields.finish().map(|()| (verdict, note))
}

/// The operator, or who holds a grant for this effect.
async fn operator_or_grant(call: &Call, key: LogicalRequestKey) -> Result<(), Problem> {
    let Some(grant) = header(call, "semel-grant") else { return operator(call) };
    let grant = Grant::parse(grant.as_bytes()).map_err(|_| unauthorised())?;
    let opens = call.registrar.opens(&grant, key).await.map_err(failed)?;
    if opens { Ok(()) } else { Err(unauthorised()) }
}

fn none() -> Problem {
    Problem::new(Code::EffectNotFound, "nothing is registered under this key")
}
