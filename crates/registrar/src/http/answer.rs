//! How an answer leaves: JSON, or nothing, or a problem document that says the outcome.

use axum::http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use semel_core::code::Code;
use semel_store::{Fate, StoreError};
use semel_wire::http::{Body, Problem};
use serde_json::{Value, json};

use crate::decide::Outcome;
use crate::registrar;

/// What a request that was served is answered with.
pub(super) struct Answer {
    status: u16,
    body: Option<String>,
}

impl Answer {
    pub(super) fn ok(body: &Value) -> Self {
        Self { status: 200, body: Some(body.to_string()) }
    }

    pub(super) fn created(body: &Value) -> Self {
        Self { status: 201, body: Some(body.to_string()) }
    }

    /// It is done, and there is nothing to say.
    pub(super) fn done() -> Self {
        Self { status: 204, body: None }
    }

    /// What became of an attempt.
    pub(super) fn of(answer: &registrar::Answer) -> Self {
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

    pub(super) fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::BAD_REQUEST);
        let Some(body) = self.body else { return status.into_response() };
        let kind = if self.status < 400 { "application/json" } else { "application/problem+json" };
        let headers = [(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-store")];
        (status, headers, body).into_response()
    }
}

/// The document with the stored result, whose bytes are not touched.
pub(super) fn with_result(document: &Value, result: Option<&[u8]>) -> String {
    let mut text = document.to_string();
    let result = result.and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or("null");
    text.truncate(text.len() - 1);
    text.push_str(",\"result\":");
    text.push_str(result);
    text.push('}');
    text
}

/// An answer whose text is ready.
pub(super) fn text(body: String) -> Answer {
    Answer { status: 200, body: Some(body) }
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

/// A refusal.
pub(super) fn problem(problem: &Problem) -> Response {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::BAD_REQUEST);
    let headers = [(CONTENT_TYPE, "application/problem+json"), (CACHE_CONTROL, "no-store")];
    let mut response = (status, headers, problem.encode()).into_response();
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// A path that has other methods than this one.
pub(super) fn not_allowed(methods: &'static str) -> Response {
    let detail = format!("this path has {methods}");
    let mut response = problem(&Problem::new(Code::MethodNotAllowed, detail));
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    response
}

/// The store could not do it, or nobody knows whether it did. The reason is for the log alone.
pub(super) fn failed(error: StoreError) -> Problem {
    tracing::warn!(error = error.chain(), "a request could not be served");
    match error.fate() {
        Fate::Undone => {
            Problem::new(Code::StoreUnavailable, "the store could not do it; try again")
        }
        Fate::Uncertain => {
            Problem::new(Code::OutcomeUnknown, "nobody can tell whether the store did it")
        }
    }
}
