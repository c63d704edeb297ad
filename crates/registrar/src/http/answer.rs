//! How an answer leaves: JSON, or nothing, or a problem document that says the outcome.

use axum::http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use semel_core::code::Code;
use semel_wire::http::{Body, Problem};

use crate::calls::Answer;

/// What was answered.
pub(super) fn answered(answer: Answer) -> Response {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::BAD_REQUEST);
    let Some(body) = answer.body else { return status.into_response() };
    let kind = if answer.status < 400 { "application/json" } else { "application/problem+json" };
    let headers = [(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-store")];
    (status, headers, body).into_response()
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
    let detail = format!("this path accepts {methods}");
    let mut response = problem(&Problem::new(Code::MethodNotAllowed, detail));
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    response
}
