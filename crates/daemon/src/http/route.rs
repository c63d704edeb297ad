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
use tokio::sync::{mpsc, watch};

use super::Api;
use super::access::Door;
use super::body::Body;
use super::field::{Field, Given};
use super::problem::Problem;

status! {
    /// What may be done under a path.
    pub enum Verb {
        /// Look.
        Get = "GET",
        /// Do.
        Post = "POST",
    }
}

/// One call.
pub(super) struct Route {
    /// How.
    pub(super) verb: Verb,
    /// Where; one part may be `{id}`.
    pub(super) path: &'static str,
    /// What it does, for a person.
    pub(super) about: &'static str,
    /// What it reads of the head.
    pub(super) headers: &'static [Field],
    /// What it reads of the query.
    pub(super) query: &'static [Field],
    /// What it reads of the body.
    pub(super) body: &'static [Field],
    /// How it answers when all is well.
    pub(super) answers: &'static [Answer],
    /// How it refuses, besides what every call may be refused for.
    pub(super) problems: &'static [Code],
    /// Does it.
    pub(super) handle: fn(Call) -> Answering,
}

/// An answer that a call may give.
pub(super) struct Answer {
    /// The status.
    pub(super) status: u16,
    /// The type of its body.
    pub(super) content: &'static str,
    /// What it means.
    pub(super) about: &'static str,
    /// What is in it.
    pub(super) schema: fn() -> Value,
}

/// An answer under way.
pub(super) type Answering = Pin<Box<dyn Future<Output = Result<Reply, Problem>> + Send>>;

/// A call that was let in and read.
pub(super) struct Call {
    /// What it is about.
    pub(super) api: Arc<Api>,
    /// How it came in.
    pub(super) door: Door,
    /// The part of the path that is not fixed.
    pub(super) id: String,
    /// What was given in the head.
    pub(super) headers: Given,
    /// In the query.
    pub(super) query: Given,
    /// In the body.
    pub(super) body: Given,
    /// One of the calls under way, until this is dropped.
    pub(super) _place: InFlight,
}

/// A place among the calls under way. It goes last of all that a call holds, so that who waits
/// for it knows that nothing of the call is left.
pub(super) struct InFlight {
    pub(super) api: Arc<Api>,
    pub(super) _inside: watch::Receiver<()>,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.api.leave();
    }
}

/// What a call is answered when all is well.
pub(super) struct Reply {
    status: u16,
    content: HeaderValue,
    body: Body,
}

/// Most answers.
pub(super) const JSON: &str = "application/json";
/// Events.
pub(super) const EVENTS: &str = "text/event-stream";

impl Reply {
    /// A JSON document.
    pub(super) fn json(status: u16, document: impl Into<Bytes>) -> Self {
        Self { status, content: HeaderValue::from_static(JSON), body: Body::whole(document) }
    }

    /// A small JSON document.
    pub(super) fn value(document: &Value) -> Self {
        Self::json(200, document.to_string())
    }

    /// A text of some type.
    pub(super) fn text(content: &'static str, text: String) -> Self {
        Self { status: 200, content: HeaderValue::from_static(content), body: Body::whole(text) }
    }

    /// Events as they come.
    pub(super) fn stream(pieces: mpsc::Receiver<Bytes>) -> Self {
        let content = HeaderValue::from_static(EVENTS);
        Self { status: 200, content, body: Body::Stream(pieces) }
    }

    /// The answer itself.
    pub(super) fn into_response(self) -> Response<Body> {
        let streams = matches!(self.body, Body::Stream(_));
        let mut response = Response::new(self.body);
        *response.status_mut() = super::status(self.status);
        response.headers_mut().insert(CONTENT_TYPE, self.content);
        if streams {
            response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        }
        response
    }
}

/// What a path leads to.
pub(super) enum Found {
    /// A call, its number in the table, and the part of the path that is not fixed.
    Route(usize, String),
    /// The path is there, under this other verb.
    OtherVerb(Verb),
    /// Nothing.
    Nothing,
}

/// Looks a path up. What is spelt out goes before `{id}`.
pub(super) fn find(routes: &[Route], verb: Option<Verb>, path: &str) -> Found {
    let mut other = None;
    for (number, route) in routes.iter().enumerate().filter(|(_, route)| route.path == path) {
        if Some(route.verb) == verb {
            return Found::Route(number, String::new());
        }
        other = Some(route.verb);
    }
    for (number, route) in routes.iter().enumerate() {
        let Some((before, after)) = route.path.split_once("{id}") else { continue };
        let part = path.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
        let part = part.filter(|part| !part.is_empty() && !part.contains('/'));
        if let Some(part) = part {
            if Some(route.verb) == verb {
                return Found::Route(number, part.to_owned());
            }
            other = other.or(Some(route.verb));
        }
    }
    other.map_or(Found::Nothing, Found::OtherVerb)
}
