//! Effects: registered once, resolved, verified, compensated.

use semel_core::code::Code;
use semel_core::refusal::Refusal;
use semel_wire::http::Problem;
use serde_json::{Value, json};

use super::{Answer, failed, with_result};
use crate::document::Fields;
use crate::envelope::{COMPENSATE, Envelope};
use crate::grant::Grant;
use crate::key::LogicalRequestKey;
use crate::limits::{NAME_BYTES_MAX, NOTE_BYTES_MAX};
use crate::registrar::{Asked, Registrar};
use crate::store::{Effect, Verdict, Verifying};

/// Registers, or compensates the effect that the path names.
pub(crate) async fn register(
    registrar: &Registrar,
    fields: Fields,
    compensates: Option<LogicalRequestKey>,
) -> Result<Answer, Problem> {
    let asked = asked(fields).map_err(Problem::of)?;
    if let Some(key) = compensates
        && (asked.envelope.operation != COMPENSATE
            || asked.envelope.canonical_target != key.to_string())
    {
        let detail = "the operation must be compensate, and the target the key in the path";
        return Err(Problem::of(Refusal::at(Code::InvalidField, "/envelope/operation", detail)));
    }
    let registrar = registrar.over(&asked.envelope.domain);
    match registrar.register(asked).await.map_err(failed)? {
        Ok(answer) => Ok(Answer::of(&answer)),
        Err(refusal) => Err(Problem::of(refusal)),
    }
}

fn asked(mut fields: Fields) -> Result<Asked, Refusal> {
    let asked = Asked {
        envelope: Envelope::take(&mut fields)?,
        grant: Grant::take(&mut fields)?,
        attempt_id: fields.name("attempt_id", NAME_BYTES_MAX)?,
    };
    fields.finish().map(|()| asked)
}

/// What happened to a request. With the mode `show` nothing is waited for and nothing closed.
pub(crate) async fn resolve(
    registrar: &Registrar,
    key: LogicalRequestKey,
    mode: Option<&str>,
) -> Result<Answer, Problem> {
    match mode {
        None | Some("resolve") => {
            let (mut effect, mut closed) = (None, 0);
            for registrar in registrar.all() {
                let resolved = registrar.resolve(key).await.map_err(failed)?;
                effect = effect.or(resolved.effect);
                closed += resolved.closed;
            }
            Ok(shown(key, effect.as_ref(), Some(closed)))
        }
        Some("show") => {
            for registrar in registrar.all() {
                if let Some(effect) = registrar.show(key).await.map_err(failed)? {
                    return Ok(shown(key, Some(&effect), None));
                }
            }
            Err(none())
        }
        Some(_) => Err(Problem::new(Code::InvalidField, "mode must be resolve or show")),
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
    Answer::text(with_result(&document, effect.map(|effect| effect.result.as_slice())))
}

/// A verdict.
pub(crate) async fn verify(
    registrar: &Registrar,
    key: LogicalRequestKey,
    fields: Fields,
) -> Result<Answer, Problem> {
    let (verdict, note) = verdict(fields).map_err(Problem::of)?;
    let note = note.unwrap_or_default();
    for registrar in registrar.all() {
        match registrar.verify(key, verdict, &note).await.map_err(failed)? {
            Verifying::Written => {
                return Ok(Answer::ok(&json!({
                    "logical_request_key": key.to_string(), "verdict": verdict.as_str(),
                })));
            }
            Verifying::Other => {
                return Err(Problem::new(Code::VerdictExists, "there is another verdict"));
            }
            Verifying::NoEffect => {}
        }
    }
    Err(none())
}

fn verdict(mut fields: Fields) -> Result<(Verdict, Option<String>), Refusal> {
    let verdict = fields.word("verdict", Verdict::parse, "passed, failed")?;
    let note = fields.optional_name("note", NOTE_BYTES_MAX)?;
    fields.finish().map(|()| (verdict, note))
}

fn none() -> Problem {
    Problem::new(Code::EffectNotFound, "nothing is registered under this key")
}
