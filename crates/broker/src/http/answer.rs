//! How an answer leaves: JSON, or nothing, or a problem document.

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use semel_core::code::Code;
use semel_store::{Fate, StoreError};
use semel_wire::http::{Body, Problem};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::ANSWER_BYTES_SMALL;

/// What a request that was served is answered with.
pub(super) struct Answer {
    status: StatusCode,
    body: Option<String>,
}

impl Answer {
    pub(super) fn ok(body: &impl Body) -> Self {
        Self { status: StatusCode::OK, body: Some(body.encode()) }
    }

    pub(super) fn created(body: &impl Body) -> Self {
        Self { status: StatusCode::CREATED, body: Some(body.encode()) }
    }

    /// It is done, and there is nothing to say.
    pub(super) fn done() -> Self {
        Self { status: StatusCode::NO_CONTENT, body: None }
    }

    /// A large one has a place among the bytes that wait to be written until they are.
    pub(super) fn into_response(self, unwritten: &Arc<Semaphore>) -> Response {
        let Some(text) = self.body else { return self.status.into_response() };
        let mut room = None;
        if text.len() > ANSWER_BYTES_SMALL {
            let bytes = u32::try_from(text.len()).unwrap_or(u32::MAX);
            let Ok(held) = Arc::clone(unwritten).try_acquire_many_owned(bytes) else {
                let detail = "too many answers wait for callers that do not read";
                return problem(&Problem::new(Code::Overloaded, detail));
            };
            room = Some(held);
        }
        let body = Bytes::from_owner(Held { text, _room: room });
        // Answers hold what only who asked may see, an invite's token among it.
        let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")];
        (self.status, headers, body).into_response()
    }
}

struct Held {
    text: String,
    _room: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

/// A refusal.
pub(super) fn problem(problem: &Problem) -> Response {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::BAD_REQUEST);
    let headers = [(CONTENT_TYPE, "application/problem+json"), (CACHE_CONTROL, "no-store")];
    let mut response = (status, headers, problem.encode()).into_response();
    if status == StatusCode::UNAUTHORIZED {
        let how = HeaderValue::from_static("Semel-Signature");
        response.headers_mut().insert(WWW_AUTHENTICATE, how);
    }
    if let Some(ms) = problem.retry_after_ms {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000)));
    }
    response
}

/// A path that has other methods than this one.
pub(super) fn not_allowed(methods: &str) -> Response {
    let detail = format!("this path accepts {methods}");
    let mut response = problem(&Problem::new(Code::MethodNotAllowed, detail));
    if let Ok(methods) = HeaderValue::from_str(methods) {
        response.headers_mut().insert(ALLOW, methods);
    }
    response
}

/// The store could not do it, or nobody knows whether it did. The reason is for the log alone.
pub(super) fn failed(error: StoreError) -> Problem {
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
