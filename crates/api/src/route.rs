//! A call of the local API as data: where it is found, what it takes, what it answers. The door
//! finds handlers in it, requests are read by it, and the OpenAPI document is written from it; so
//! none of them can say something else than the others.

use std::pin::Pin;
use std::sync::Arc;

use hyper::Response;
use hyper::body::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use semel_core::code::Code;
use semel_core::status;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::access::Door;
use crate::body::Body;
use crate::field::{Field, Given};
use crate::file::Content;
use crate::problem::{self, Problem};
use crate::{Api, InFlight};

status! {
    /// What may be done under a path.
    pub enum Verb {
        /// Look.
        Get = "GET",
        /// Do.
        Post = "POST",
        /// Take away.
        Delete = "DELETE",
    }
}

impl Verb {
    /// Only what may have a body is asked for one.
    pub(crate) const fn has_body(self) -> bool {
        matches!(self, Self::Post)
    }
}

/// Does what a call asks for.
pub type Handler<S> = fn(Call<S>) -> Answering;

/// One call.
pub struct Route<S: 'static> {
    /// How.
    pub verb: Verb,
    /// Where; one part may be `{id}`.
    pub path: &'static str,
    /// What it does, for a person.
    pub about: &'static str,
    /// What generated clients call it, noun first; its request has the same name. Without one it is
    /// called after its verb and its path.
    pub name: &'static str,
    /// What it reads of the head.
    pub headers: &'static [Field],
    /// What it reads of the query.
    pub query: &'static [Field],
    /// What it reads of the body.
    pub body: &'static [Field],
    /// Bytes of its body, where they are not those of every other call.
    pub body_bytes_max: Option<usize>,
    /// How it answers when all is well.
    pub answers: &'static [Answer],
    /// How it refuses, besides what every call may be refused for.
    pub problems: &'static [Code],
    /// Does it.
    pub handle: Handler<S>,
}

impl<S: 'static> Route<S> {
    /// A call that reads nothing but its path, to begin with.
    pub const fn new(
        verb: Verb,
        path: &'static str,
        about: &'static str,
        handle: Handler<S>,
    ) -> Self {
        let none = &[];
        Self {
            verb,
            path,
            about,
            name: "",
            headers: none,
            query: none,
            body: none,
            body_bytes_max: None,
            answers: &[],
            problems: &[],
            handle,
        }
    }

    /// Looks.
    pub const fn get(path: &'static str, about: &'static str, handle: Handler<S>) -> Self {
        Self::new(Verb::Get, path, about, handle)
    }

    /// Does.
    pub const fn post(path: &'static str, about: &'static str, handle: Handler<S>) -> Self {
        Self::new(Verb::Post, path, about, handle)
    }

    /// Takes away.
    pub const fn delete(path: &'static str, about: &'static str, handle: Handler<S>) -> Self {
        Self::new(Verb::Delete, path, about, handle)
    }

    pub(crate) fn facts(&self) -> Facts {
        Facts {
            verb: self.verb,
            path: self.path,
            about: self.about,
            name: self.name,
            headers: self.headers,
            query: self.query,
            body: self.body,
            body_bytes_max: self.body_bytes_max,
            answers: self.answers,
            problems: self.problems,
        }
    }
}

/// A call without the one who serves it.
#[derive(Clone, Copy)]
pub(crate) struct Facts {
    pub(crate) verb: Verb,
    pub(crate) path: &'static str,
    pub(crate) about: &'static str,
    pub(crate) name: &'static str,
    pub(crate) headers: &'static [Field],
    pub(crate) query: &'static [Field],
    pub(crate) body: &'static [Field],
    pub(crate) body_bytes_max: Option<usize>,
    pub(crate) answers: &'static [Answer],
    pub(crate) problems: &'static [Code],
}

/// An answer that a call may give.
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The type of its body; empty for an answer without one.
    pub content: &'static str,
    /// What it means.
    pub about: &'static str,
    /// What is in it.
    pub schema: fn() -> Value,
}

impl Answer {
    /// A JSON document.
    pub const fn json(status: u16, about: &'static str, schema: fn() -> Value) -> Self {
        Self { status, content: JSON, about, schema }
    }

    /// Nothing but the status.
    pub const fn empty(status: u16, about: &'static str) -> Self {
        Self { status, content: "", about, schema: || Value::Null }
    }

    /// Events as they come.
    pub const fn events(about: &'static str) -> Self {
        Self { status: 200, content: EVENTS, about, schema: crate::schema::text }
    }

    /// A file as it is.
    pub const fn file(about: &'static str) -> Self {
        Self { status: 200, content: BYTES, about, schema: crate::schema::bytes }
    }
}

/// An answer under way.
pub type Answering = Pin<Box<dyn Future<Output = Result<Reply, Problem>> + Send>>;

/// What was read of a request.
pub(crate) struct Request {
    pub(crate) door: Door,
    pub(crate) id: String,
    pub(crate) headers: Given,
    pub(crate) query: Given,
    pub(crate) body: Given,
}

/// A call that was let in and read.
pub struct Call<S: 'static> {
    /// What it is about.
    pub state: Arc<S>,
    /// How it came in.
    pub door: Door,
    /// The part of the path that is not fixed.
    pub id: String,
    /// What was given in the head.
    pub headers: Given,
    /// In the query.
    pub query: Given,
    /// In the body.
    pub body: Given,
    /// One of the calls under way, until this is dropped: the last to go, so that who waits for it
    /// knows that nothing of the call is left.
    place: InFlight,
}

impl<S: 'static> Call<S> {
    pub(crate) fn new(state: Arc<S>, request: Request, place: InFlight) -> Self {
        let Request { door, id, headers, query, body } = request;
        Self { state, door, id, headers, query, body, place }
    }

    /// The API that it came in by.
    pub fn api(&self) -> &Arc<Api> {
        &self.place.api
    }
}

/// What a call is answered when all is well.
pub struct Reply {
    status: u16,
    content: Option<HeaderValue>,
    body: Body,
}

/// Most answers.
pub const JSON: &str = "application/json";
/// Events.
pub const EVENTS: &str = "text/event-stream";
/// Files.
pub const BYTES: &str = "application/octet-stream";

impl Reply {
    /// A JSON document.
    pub fn json(status: u16, document: impl Into<Bytes>) -> Self {
        Self::of(status, HeaderValue::from_static(JSON), document)
    }

    /// A problem document that is written already: its bytes are part of an answer.
    pub fn problem(status: u16, document: impl Into<Bytes>) -> Self {
        Self::of(status, problem::CONTENT, document)
    }

    /// A small JSON document.
    pub fn value(document: &Value) -> Self {
        Self::json(200, document.to_string())
    }

    /// A text of some type.
    pub fn text(content: &'static str, text: String) -> Self {
        Self::of(200, HeaderValue::from_static(content), text)
    }

    /// Nothing but the status.
    pub fn empty(status: u16) -> Self {
        Self { status, content: None, body: Body::Whole(None) }
    }

    /// Events as they come.
    pub(crate) fn stream(pieces: mpsc::Receiver<Bytes>) -> Self {
        let content = HeaderValue::from_static(EVENTS);
        Self { status: 200, content: Some(content), body: Body::Stream(pieces) }
    }

    /// A file as it is.
    pub(crate) fn file(file: Content) -> Self {
        let content = HeaderValue::from_static(BYTES);
        Self { status: 200, content: Some(content), body: Body::File(file) }
    }

    fn of(status: u16, content: HeaderValue, body: impl Into<Bytes>) -> Self {
        Self { status, content: Some(content), body: Body::whole(body) }
    }

    /// The answer itself.
    pub(crate) fn into_response(self) -> Response<Body> {
        let streams = matches!(self.body, Body::Stream(_) | Body::File(_));
        let mut response = Response::new(self.body);
        *response.status_mut() = crate::status(self.status);
        if let Some(content) = self.content {
            response.headers_mut().insert(CONTENT_TYPE, content);
        }
        if streams {
            response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        }
        response
    }
}
