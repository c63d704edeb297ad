//! The daemon's local API (daemon.md, "Local API"): HTTP on a Unix socket and on loopback TCP.
//!
//! Reading order: who may call (`access`), what a call is (`route`, `field`), the list of all of
//! them (`table`), and the handlers, one file per subject. Everything that holds for every call is
//! here: it is let in, counted, read, answered.

mod access;
mod body;
mod bucket;
mod door;
mod field;
mod json;
mod metrics;
mod openapi;
mod page;
mod problem;
mod route;
mod schema;
mod table;

mod about;
mod events;
mod inbox;
mod mesh;
mod outbox;
mod queue;
mod send;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::{Method, Request, Response, StatusCode};
use semel_core::clock::Clock;
use semel_core::code::Code;
use semel_core::refusal::Refusal;
use tokio::sync::{Semaphore, watch};

use self::access::{Door, Rules};
use self::body::Body;
use self::bucket::Buckets;
use self::field::{Given, unescape};
use self::metrics::Metrics;
use self::problem::Problem;
use self::route::{Call, Found, InFlight, Route, Verb, find};
use self::table::ROUTES;
use crate::engine::Engine;
use crate::limits::{
    API_BODY_BYTES_MAX, API_CALLS_BURST, API_CALLS_MAX, API_CALLS_PER_SECOND, API_CONNECTIONS_MAX,
    API_DRAIN_MAX, API_HEAD_TIMEOUT, API_RESPONSE_BYTES_MAX, API_STREAMS_MAX, API_WRITE_TIMEOUT,
    STREAM_KEEP_ALIVE,
};
use crate::link::{Fatal, LinkStatus};
use crate::remote::Remote;

pub use self::access::Tokens;
pub use self::door::{Listener, bind_socket, serve};

/// How the API is kept (daemon.md, "Limits" and "Configuration keys").
#[derive(Debug, Clone)]
pub struct ApiOptions {
    /// The mesh's name.
    pub mesh: String,
    /// This member's public key, in hex.
    pub pubkey: String,
    /// This program's version.
    pub version: String,
    /// `/v1/health` needs no token.
    pub public_health_check: bool,
    /// Origins whose pages may call.
    pub origin_allowlist: Vec<String>,
    /// Calls under way.
    pub max_inflight: usize,
    /// Event streams.
    pub max_streams: usize,
    /// Bytes of a request's body.
    pub body_bytes_max: usize,
    /// Bytes of an answer.
    pub response_bytes_max: usize,
    /// Calls that a TCP token may make at once.
    pub calls_burst: u32,
    /// Calls that it may make per second in the long run.
    pub calls_per_second: u32,
    /// Connections of one door.
    pub connections_max: usize,
    /// How long a request's head may take.
    pub head_timeout: Duration,
    /// How long a reader may stand still.
    pub write_timeout: Duration,
    /// How often a stream without news says so.
    pub keep_alive: Duration,
    /// How long a stop waits.
    pub drain_max: Duration,
}

impl ApiOptions {
    /// The usual limits, for a member of a mesh.
    pub fn new(
        mesh: impl Into<String>,
        pubkey: impl Into<String>,
        version: impl Into<String>,
    ) -> Self {
        Self {
            mesh: mesh.into(),
            pubkey: pubkey.into(),
            version: version.into(),
            public_health_check: false,
            origin_allowlist: Vec::new(),
            max_inflight: API_CALLS_MAX,
            max_streams: API_STREAMS_MAX,
            body_bytes_max: API_BODY_BYTES_MAX,
            response_bytes_max: API_RESPONSE_BYTES_MAX,
            calls_burst: API_CALLS_BURST,
            calls_per_second: API_CALLS_PER_SECOND,
            connections_max: API_CONNECTIONS_MAX,
            head_timeout: API_HEAD_TIMEOUT,
            write_timeout: API_WRITE_TIMEOUT,
            keep_alive: STREAM_KEEP_ALIVE,
            drain_max: API_DRAIN_MAX,
        }
    }
}

/// The API of a running daemon. Its doors share it.
pub struct Api {
    engine: Arc<Engine>,
    options: ApiOptions,
    tokens: Arc<dyn Tokens>,
    remote: Option<Arc<dyn Remote>>,
    clock: Arc<dyn Clock>,
    began: Duration,
    link: watch::Receiver<LinkStatus>,
    calls: AtomicUsize,
    streams: Arc<Semaphore>,
    buckets: Buckets,
    metrics: Metrics,
    token_rotations: AtomicU64,
    stopping: watch::Sender<bool>,
    /// Every call and every stream holds a receiver until its end.
    inside: watch::Sender<()>,
}

impl Api {
    /// An API without doors yet.
    pub fn new(
        engine: Arc<Engine>,
        options: ApiOptions,
        tokens: Arc<dyn Tokens>,
        remote: Option<Arc<dyn Remote>>,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        Arc::new(Self {
            link: engine.link.watch(),
            engine,
            tokens,
            remote,
            began: clock.monotonic(),
            clock,
            calls: AtomicUsize::new(0),
            streams: Arc::new(Semaphore::new(options.max_streams)),
            buckets: Buckets::new(options.calls_burst, options.calls_per_second),
            metrics: Metrics::new(),
            token_rotations: AtomicU64::new(0),
            stopping: watch::channel(false).0,
            inside: watch::channel(()).0,
            options,
        })
    }

    /// Ends every stream. Doors that are asked to stop do this by themselves.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Comes back when no call and no stream is left.
    async fn drained(&self) {
        self.inside.closed().await;
    }

    /// The OpenAPI document.
    pub fn openapi() -> &'static str {
        openapi::document()
    }

    fn enter(self: &Arc<Self>) -> Option<InFlight> {
        // Counted before it is compared, so that two who come at once do not both get the last.
        let before = self.calls.fetch_add(1, Ordering::Relaxed);
        let place = InFlight { api: Arc::clone(self), _inside: self.inside.subscribe() };
        (before < self.options.max_inflight).then_some(place)
    }

    fn leave(&self) {
        self.calls.fetch_sub(1, Ordering::Relaxed);
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
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let began = api.clock.monotonic();
    let mut number = ROUTES.len();
    let answered = respond(&api, door, request, &mut number).await;
    let response = answered.unwrap_or_else(Problem::into_response);
    let took = api.clock.monotonic().saturating_sub(began);
    api.metrics.answered(number, door, response.status().as_u16(), took);
    Ok(response)
}

async fn respond(
    api: &Arc<Api>,
    door: Door,
    request: Request<Incoming>,
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
        api.buckets.take(token, api.clock.monotonic()).map_err(too_often)?;
    }
    let path = head.uri.path();
    let (found, id) = match find(ROUTES, verb(&head.method), path) {
        Found::Route(found, id) => (found, id),
        Found::OtherVerb(verb) => {
            let detail = format!("{path} has only {verb}");
            let mut problem = Problem::new(Code::MethodNotAllowed, detail);
            problem.allow = Some(verb.as_str());
            return Err(problem);
        }
        Found::Nothing => {
            return Err(Problem::new(Code::NotFound, "there is nothing under this path"));
        }
    };
    *number = found;
    let route = &ROUTES[found];
    if route.verb == Verb::Post && api.link.borrow().fatal == Some(Fatal::Revoked) {
        let detail = "this member was revoked and can do nothing any more";
        return Err(Problem::new(Code::MemberInactive, detail));
    }
    let Some(place) = api.enter() else {
        let problem = Problem::new(Code::DaemonBusy, "too many calls are under way");
        return Err(problem.retry_after(1));
    };
    let id = unescape(&id.replace('+', "%2B"));
    let id = id.ok_or_else(|| Problem::new(Code::InvalidField, "the path is not UTF-8"))?;
    let headers = read_headers(route, &head.headers)?;
    let query = Given::of_query(head.uri.query().unwrap_or_default(), route.query)?;
    let body = match route.verb {
        Verb::Get => Given::default(),
        Verb::Post => {
            let text = body::read(incoming, api.options.body_bytes_max).await?;
            Given::of_json(&text, route.body, api.options.body_bytes_max)?
        }
    };
    let call = Call { api: Arc::clone(api), door, id, headers, query, body, _place: place };
    let reply = match route.verb {
        Verb::Get => (route.handle)(call).await?,
        // In a task of its own: hyper drops us when the caller goes away, and what has begun to be
        // done is done to its end (traps.md 49).
        Verb::Post => match tokio::spawn((route.handle)(call)).await {
            Ok(reply) => reply?,
            Err(_) => return Err(Problem::new(Code::InternalError, "the call was cut short")),
        },
    };
    Ok(reply.into_response())
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
fn read_headers(route: &Route, headers: &HeaderMap) -> Result<Given, Refusal> {
    if route.headers.is_empty() {
        return Ok(Given::default());
    }
    let mut texts = Vec::new();
    for field in route.headers {
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
    Given::of_texts(texts.into_iter(), route.headers)
}

#[cfg(test)]
mod tests;
