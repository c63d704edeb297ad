//! What a call is answered when it is refused or fails: RFC 9457 problem documents.

use hyper::Response;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use semel_core::code::Code;
use semel_core::refusal::Refusal;
use semel_store::StoreError;
use serde_json::{Map, Value};

use crate::body::Body;

/// The type of a problem document.
pub(crate) const CONTENT: HeaderValue = HeaderValue::from_static("application/problem+json");

/// Why a call was not answered as its caller hoped.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// Decides the status.
    pub code: Code,
    /// For a person.
    pub detail: String,
    /// Which field, as a JSON pointer; or empty.
    pub pointer: String,
    /// What else the document says.
    pub more: Vec<(&'static str, Value)>,
    /// Seconds after which it may be tried again.
    pub retry_after_s: Option<u64>,
    /// The methods that the path has.
    pub(crate) allow: Option<String>,
}

impl Problem {
    /// A problem of the call as a whole.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Refusal::new(code, detail).into()
    }

    /// The same, saying this besides.
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.more.push((name, value.into()));
        self
    }

    /// The same, to be tried again after so many seconds.
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// The document.
    pub fn document(&self) -> Value {
        let code = self.code.as_str();
        let mut document = Map::new();
        let mut put = |name: &str, value: Value| drop(document.insert(name.to_owned(), value));
        put("type", format!("urn:semel:error:{code}").into());
        put("title", title(self.code).into());
        put("status", self.code.http().into());
        put("code", code.into());
        put("detail", self.detail.as_str().into());
        if !self.pointer.is_empty() {
            put("pointer", self.pointer.as_str().into());
        }
        for (name, value) in &self.more {
            put(name, value.clone());
        }
        Value::Object(document)
    }

    /// The answer.
    pub(crate) fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::whole(self.document().to_string()));
        *response.status_mut() = crate::status(self.code.http());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, CONTENT);
        if self.code == Code::Unauthorised {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        let allow = self.allow.and_then(|allow| HeaderValue::from_str(&allow).ok());
        if let Some(allow) = allow {
            headers.insert(ALLOW, allow);
        }
        if let Some(seconds) = self.retry_after_s {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        response
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let Refusal { code, pointer, detail } = refusal;
        Self { code, detail, pointer, more: Vec::new(), retry_after_s: None, allow: None }
    }
}

/// What was refused in the words of the broker's HTTP API.
impl From<semel_wire::http::Problem> for Problem {
    fn from(problem: semel_wire::http::Problem) -> Self {
        let semel_wire::http::Problem { code, detail, pointer, .. } = problem;
        let pointer = pointer.unwrap_or_default();
        Self { code, detail, pointer, more: Vec::new(), retry_after_s: None, allow: None }
    }
}

/// What a failed read or write means for a caller. What only an operator can mend is logged here.
impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Full => {
                Self::new(Code::InsufficientStorage, "the disk of the database is full")
            }
            StoreError::Busy => {
                Self::new(Code::DaemonBusy, "too many writes are waiting").retry_after(1)
            }
            StoreError::Uncertain { .. } => {
                tracing::error!(error = error.chain(), "the outcome of a call is unknown");
                Self::new(Code::OutcomeUnknown, "it is unknown whether it was done")
            }
            passing if passing.passes() => {
                tracing::error!(error = passing.chain(), "a call could not be answered");
                Self::new(Code::StoreUnavailable, "the database refuses writes for now")
            }
            StoreError::Stopped
            | StoreError::Unavailable { .. }
            | StoreError::Contended { .. }
            | StoreError::Copy { .. }
            | StoreError::RolledBack { .. }
            | StoreError::Behind => {
                tracing::error!(error = error.chain(), "a call could not be answered");
                Self::new(Code::StoreUnavailable, "the database does not answer now")
            }
            StoreError::Sqlite(_)
            | StoreError::Postgres(_)
            | StoreError::Panicked
            | StoreError::TooManyRows { .. }
            | StoreError::Damaged { .. }
            | StoreError::Corrupt { .. } => {
                tracing::error!(error = error.chain(), "a call met an impossible state");
                Self::new(Code::InternalError, "the daemon's log says what went wrong")
            }
        }
    }
}

/// The first sentence of the code's page.
fn title(code: Code) -> String {
    let page = code.page();
    let happened = page.split_once("## What happened\n").map_or(page, |(_, rest)| rest).trim();
    let paragraph = happened.split_once("\n\n").map_or(happened, |(first, _)| first);
    let sentence = paragraph.split_once(". ").map_or(paragraph, |(first, _)| first);
    sentence.split_once(".\n").map_or(sentence, |(first, _)| first).replace('\n', " ")
}
