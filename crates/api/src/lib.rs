//! The local API (daemon.md, "Local API"): HTTP on a Unix socket and on loopback TCP, put together
//! from parts. Who may call, how often and with how much is the same for all of them, and so is the
//! document that names every call.
//!
//! Reading order: who may call ([`access`]), what a call is ([`route`], [`field`]), who serves it
//! ([`part`]), how it is found (`find`) and how answers are written ([`json`], [`page`],
//! [`events`], [`file`], [`problem`]). Everything that holds for every call is here: it is let in,
//! counted, read, answered.

pub mod access;
mod body;
mod bucket;
pub mod door;
pub mod events;
pub mod field;
pub mod file;
mod find;
pub mod json;
mod metrics;
pub mod openapi;
pub mod page;
pub mod part;
pub mod problem;
mod readers;
pub mod route;
pub mod schema;
mod to_its_end;

pub mod limits;

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hyper::body::{Bytes, Incoming};
use hyper::header::HeaderMap;
use hyper::{Method, Response, StatusCode};
use prometheus_client::registry::Registry;
use semel_core::clock::Clock;
use semel_core::code::Code;
use semel_core::refusal::Refusal;
use semel_serve::Guest;
use serde_json::{Map, Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

use self::access::{Door, Rules, Tokens};
use self::body::Body;
use self::bucket::Buckets;
use self::field::{Field, Given, unescape};
use self::find::{Calls, Leads};
use self::limits::{
    BODY_BYTES_MAX, CALLS_BURST, CALLS_MAX, CALLS_PER_SECOND, CONNECTIONS_MAX, DRAIN_MAX,
    HEAD_TIMEOUT, PART_HEALTH_MAX, RESPONSE_BYTES_MAX, STREAM_KEEP_ALIVE, STREAMS_MAX,
    TCP_CONNECTIONS_MAX, WRITE_TIMEOUT,
};
use self::metrics::Metrics;
use self::part::Part;
use self::problem::Problem;
use self::readers::Readers;
use self::route::{Request, Verb};
use self::to_its_end::ToItsEnd;

/// How the API is kept (daemon.md, "Limits" and "Configuration keys").
#[derive(Debug, Clone)]
pub struct ApiOptions {
    /// `/v1/health` needs no token.
    pub public_health_check: bool,
    /// Origins whose pages may call.
    pub origin_allowlist: Vec<String>,
    /// Calls under way.
    pub max_inflight: usize,
    /// Streams, of events and of files.
    pub max_streams: usize,
    /// Bytes of a request's body.
    pub body_bytes_max: usize,
    /// Bytes of an answer.
    pub response_bytes_max: usize,
    /// Calls that a TCP token may make at once.
    pub calls_burst: u32,
    /// Calls that it may make per second in the long run.
    pub calls_per_second: u32,
    /// Connections of the socket.
    pub connections_max: usize,
    /// Connections over TCP, with a token or without.
    pub tcp_connections_max: usize,
    /// How long a request's head may take.
    pub head_timeout: Duration,
    /// How long a reader may stand still.
    pub write_timeout: Duration,
    /// How often a stream without news says so.
    pub keep_alive: Duration,
    /// How long a stop waits.
    pub drain_max: Duration,
}

impl Default for ApiOptions {
    fn default() -> Self {
        Self {
            public_health_check: false,
            origin_allowlist: Vec::new(),
            max_inflight: CALLS_MAX,
            max_streams: STREAMS_MAX,
            body_bytes_max: BODY_BYTES_MAX,
            response_bytes_max: RESPONSE_BYTES_MAX,
            calls_burst: CALLS_BURST,
            calls_per_second: CALLS_PER_SECOND,
            connections_max: CONNECTIONS_MAX,
            tcp_connections_max: TCP_CONNECTIONS_MAX,
            head_timeout: HEAD_TIMEOUT,
            write_timeout: WRITE_TIMEOUT,
            keep_alive: STREAM_KEEP_ALIVE,
            drain_max: DRAIN_MAX,
        }
    }
}

/// The API of a running program. Its doors share it.
pub struct Api {
    options: ApiOptions,
    tokens: Arc<dyn Tokens>,
    clock: Arc<dyn Clock>,
    parts: Vec<Part>,
    calls: Calls,
    under_way: AtomicUsize,
    streams: Arc<Semaphore>,
    /// Of each door, in the order of [`Door::ALL`].
    readers: [Readers; 2],
    buckets: Buckets,
    metrics: Metrics,
    document: OnceLock<String>,
    stopping: watch::Sender<bool>,
    /// Every call and every stream holds a receiver until its end.
    inside: watch::Sender<()>,
}

impl Api {
    /// An API without doors yet. Two parts must not have the same call.
    pub fn new(
        options: ApiOptions,
        tokens: Arc<dyn Tokens>,
        clock: Arc<dyn Clock>,
        parts: Vec<Part>,
    ) -> Arc<Self> {
        let calls = Calls::new(&parts);
        Arc::new(Self {
            tokens,
            clock,
            under_way: AtomicUsize::new(0),
            streams: Arc::new(Semaphore::new(options.max_streams)),
            readers: [Readers::new(), Readers::new()],
            buckets: Buckets::new(options.calls_burst, options.calls_per_second),
            metrics: Metrics::new(calls.facts().map(|facts| facts.path)),
            document: OnceLock::new(),
            stopping: watch::channel(false).0,
            inside: watch::channel(()).0,
            parts,
            calls,
            options,
        })
    }

    /// Ends every stream. Doors that are asked to stop do this by themselves.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Bytes that an answer may have.
    pub fn response_bytes_max(&self) -> usize {
        self.options.response_bytes_max
    }

    /// The tokens that are valid over TCP.
    pub fn tokens(&self) -> &Arc<dyn Tokens> {
        &self.tokens
    }

    /// The OpenAPI document of all parts.
    pub fn openapi(&self) -> &str {
        self.document.get_or_init(|| openapi::document(&self.parts))
    }

    /// Counts of calls, for whoever answers a scraper.
    pub fn register_metrics(&self, registry: &mut Registry) {
        self.metrics.register(registry);
    }

    /// What the parts count beside their calls, under names of their own.
    pub fn parts_metrics(&self) -> String {
        let mut registry = Registry::default();
        for part in &self.parts {
            part.metrics(&mut registry);
        }
        let mut text = String::new();
        // Writing to memory does not fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
        text
    }

    /// How the parts are, by their names: `ok` or `failing`, and what they say besides. Who does
    /// not say it in time is not well.
    pub async fn parts_health(&self) -> Map<String, Value> {
        let mut all = Map::new();
        for (name, looking) in self.parts.iter().filter_map(Part::health) {
            let found = match timeout(PART_HEALTH_MAX, looking).await {
                Ok(Ok(found)) => json!({"status": "ok", "found": found}),
                Ok(Err(problem)) => json!({"status": "failing", "detail": problem.detail}),
                Err(_) => json!({"status": "failing", "detail": "it does not answer in time"}),
            };
            all.insert(name.to_owned(), found);
        }
        all
    }

    /// Comes back when no call and no stream is left.
    async fn drained(&self) {
        self.inside.closed().await;
    }

    fn enter(self: &Arc<Self>) -> Option<InFlight> {
        // Counted before it is compared, so that two who come at once do not both get the last.
        let before = self.under_way.fetch_add(1, Ordering::Relaxed);
        let place = InFlight { api: Arc::clone(self), _inside: self.inside.subscribe() };
        (before < self.options.max_inflight).then_some(place)
    }

    /// A place among the streams.
    fn stream_place(&self) -> Result<OwnedSemaphorePermit, Problem> {
        Arc::clone(&self.streams).try_acquire_owned().map_err(|_| {
            Problem::new(Code::TooManyStreams, "too many streams are open").retry_after(1)
        })
    }
}

/// A place among the calls under way.
struct InFlight {
    api: Arc<Api>,
    _inside: watch::Receiver<()>,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.api.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The status of that number.
fn status(number: u16) -> StatusCode {
    StatusCode::from_u16(number).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Answers a request.
async fn answer(
    api: Arc<Api>,
    door: Door,
    request: hyper::Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let began = api.clock.monotonic();
    let mut number = api.calls.len();
    let answered = respond(&api, door, request, &mut number).await;
    let response = answered.unwrap_or_else(Problem::into_response);
    let took = api.clock.monotonic().saturating_sub(began);
    api.metrics.answered(number, door, response.status().as_u16(), took);
    Ok(response)
}

async fn respond(
    api: &Arc<Api>,
    door: Door,
    request: hyper::Request<Incoming>,
    number: &mut usize,
) -> Result<Response<Body>, Problem> {
    let (head, incoming) = request.into_parts();
    let rules = Rules {
        origins: &api.options.origin_allowlist,
        public_health_check: api.options.public_health_check,
        tokens: &*api.tokens,
    };
    let token = access::judge(door, &head.method, &head.uri, &head.headers, &rules)?;
    if let Some(token) = token {
        if let Some(guest) = head.extensions.get::<Guest>() {
            guest.try_known();
        }
        api.buckets.take(token, api.clock.monotonic()).map_err(too_often)?;
    }
    let (found, id) = find(api, &head.method, head.uri.path())?;
    *number = found;
    let call = api.calls.get(found);
    let (facts, part) = (&call.facts, &api.parts[call.part]);
    if let Some(problem) = part.gate(facts.verb) {
        return Err(problem);
    }
    let id = unescape(&id.replace('+', "%2B"));
    let id = id.ok_or_else(|| Problem::new(Code::InvalidField, "the path is not UTF-8"))?;
    let headers = read_headers(facts.headers, &head.headers)?;
    let query = Given::of_query(head.uri.query().unwrap_or_default(), facts.query)?;
    let body = if facts.verb.has_body() {
        let bytes_max = facts.body_bytes_max.unwrap_or(api.options.body_bytes_max);
        let text = read(api, door, incoming, bytes_max).await?;
        Given::of_json(&text, facts.body, bytes_max)?
    } else {
        Given::default()
    };
    // After the body, so that who sends one slowly takes nobody's place.
    let place = api.enter().ok_or_else(|| busy("too many calls are under way"))?;
    // Its texts are where it was read, and hyper needs that place for what comes next.
    drop(head);
    let answering = part.handle(call.number, Request { door, id, headers, query, body }, place);
    let reply = match facts.verb {
        Verb::Get => answering.await?,
        Verb::Post | Verb::Delete => ToItsEnd::new(answering).await?,
    };
    Ok(reply.into_response())
}

/// A request's body. Nothing was decided before it is there, so that a stop does not wait for it.
async fn read(
    api: &Api,
    door: Door,
    incoming: Incoming,
    bytes_max: usize,
) -> Result<Bytes, Problem> {
    let reading = api.readers[door as usize].begin();
    let reading = reading.ok_or_else(|| busy("too many bodies are being read"))?;
    let mut stopping = api.stopping.subscribe();
    tokio::select! {
        read = body::read(incoming, bytes_max, reading) => read,
        _ = stopping.wait_for(|stopping| *stopping) => Err(busy("the program is stopping")),
    }
}

fn busy(detail: &str) -> Problem {
    Problem::new(Code::DaemonBusy, detail).retry_after(1)
}

/// The number of a call, and the part of the path that is not fixed.
fn find<'a>(api: &Api, method: &Method, path: &'a str) -> Result<(usize, &'a str), Problem> {
    match api.calls.find(verb(method), path) {
        Leads::To(number, id) => Ok((number, id)),
        Leads::OtherVerbs(verbs) => {
            let verbs: Vec<&str> = verbs.into_iter().map(Verb::as_str).collect();
            let verbs = verbs.join(", ");
            let problem = Problem::new(Code::MethodNotAllowed, format!("{path} has only {verbs}"));
            Err(Problem { allow: Some(verbs), ..problem })
        }
        Leads::Nowhere => Err(Problem::new(Code::NotFound, "there is nothing under this path")),
    }
}

fn verb(method: &Method) -> Option<Verb> {
    Verb::ALL.iter().copied().find(|verb| method.as_str() == verb.as_str())
}

fn too_often(wait: Duration) -> Problem {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    let problem = Problem::new(Code::RateLimited, "this token calls too often");
    problem.retry_after(seconds.max(1))
}

/// What a call wants to know of the head. A header that is there twice is nobody's.
fn read_headers(fields: &[Field], headers: &HeaderMap) -> Result<Given, Refusal> {
    if fields.is_empty() {
        return Ok(Given::default());
    }
    let mut texts = Vec::new();
    for field in fields {
        let mut values = headers.get_all(field.name).iter();
        let refuse = |detail: &str| {
            Refusal::new(Code::InvalidField, format!("the header {} {detail}", field.name))
        };
        match (values.next(), values.next()) {
            (None, _) => {}
            (Some(value), None) => {
                let text = value.to_str().map_err(|_| refuse("is not printable ASCII"))?;
                texts.push((field, text.to_owned()));
            }
            (Some(_), Some(_)) => return Err(refuse("was given twice")),
        }
    }
    Given::of_texts(texts.into_iter(), fields)
}

#[cfg(test)]
mod tests;
