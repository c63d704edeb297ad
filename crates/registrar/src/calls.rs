//! What is asked of a registrar, whoever asks and by which door: the broker's ([`crate::http`]) or
//! the local API ([`crate::local`]). Who may ask is decided there; what was asked is read strictly
//! and answered here.

pub(crate) mod audits;
pub(crate) mod effects;
pub(crate) mod gates;
pub(crate) mod grants;
pub(crate) mod sweeps;

use semel_core::code::Code;
use semel_core::hex::Hex;
use semel_store::{Fate, StoreError};
use semel_wire::http::Problem;
use serde_json::{Value, json};

use crate::decide::Outcome;
use crate::grant::Nonce;
use crate::key::LogicalRequestKey;
use crate::registrar;

/// Where grants are.
pub(crate) const GRANTS: &str = "/v1/grants";

/// Where the ledgers are.
pub(crate) const AUDIT: &str = "/v1/registrar/audit";

/// The key in a path. A name that cannot be one is not found.
pub(crate) fn key(text: &str) -> Result<LogicalRequestKey, Problem> {
    Hex::parse(text).map(LogicalRequestKey).map_err(|_| missing())
}

/// The nonce in a path.
pub(crate) fn nonce(text: &str) -> Result<Nonce, Problem> {
    Hex::parse(text).map(Nonce).map_err(|_| missing())
}

/// Nothing is there.
pub(crate) fn missing() -> Problem {
    Problem::new(Code::NotFound, "there is nothing under this path")
}

/// What a request that was served is answered with.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Option<String>,
}

impl Answer {
    pub(crate) fn ok(body: &Value) -> Self {
        Self { status: 200, body: Some(body.to_string()) }
    }

    pub(crate) fn created(body: &Value) -> Self {
        Self { status: 201, body: Some(body.to_string()) }
    }

    /// An answer whose text is ready.
    pub(crate) fn text(body: String) -> Self {
        Self { status: 200, body: Some(body) }
    }

    /// It is done, and there is nothing to say.
    pub(crate) fn done() -> Self {
        Self { status: 204, body: None }
    }

    /// What became of an attempt.
    pub(crate) fn of(answer: &registrar::Answer) -> Self {
        let key = answer.logical_request_key.to_string();
        let outcome = answer.outcome;
        let (status, mut document) = match outcome.code() {
            None => {
                let replayed = outcome == Outcome::Replayed;
                (if replayed { 200 } else { 201 }, json!({"replayed": replayed}))
            }
            Some(code) => (code.http(), refusal(code)),
        };
        document["outcome"] = outcome.word().into();
        document["logical_request_key"] = key.into();
        Self { status, body: Some(with_result(&document, answer.result.as_deref())) }
    }
}

/// The document with the stored result, whose bytes are not touched.
pub(crate) fn with_result(document: &Value, result: Option<&[u8]>) -> String {
    let mut text = document.to_string();
    let result = result.and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or("null");
    text.truncate(text.len() - 1);
    text.push_str(",\"result\":");
    text.push_str(result);
    text.push('}');
    text
}

fn refusal(code: Code) -> Value {
    let mut document = json!({
        "type": format!("urn:semel:error:{code}"),
        "title": code.as_str().replace('_', " "),
        "status": code.http(),
        "code": code.as_str(),
        "detail": format!("semel explain {code} says more"),
    });
    if code == Code::RegistrationHold {
        document["can_proceed"] = "NO".into();
    }
    document
}

/// The store could not do it, or nobody knows whether it did. The reason is for the log alone.
pub(crate) fn failed(error: StoreError) -> Problem {
    tracing::warn!(error = error.chain(), "a request could not be served");
    match error.fate() {
        Fate::Undone => {
            Problem::new(Code::StoreUnavailable, "the store could not carry it out; try again")
        }
        Fate::Uncertain => {
            Problem::new(Code::OutcomeUnknown, "it is unknown whether the store carried it out")
        }
    }
}
