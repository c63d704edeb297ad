//! The registrar over HTTP (`docs/registrar.md`): a router that whoever has a door mounts.
//!
//! Who may do what: grants, gates and verdicts are the operator's, who shows a token. Registering
//! needs no token: a grant that an authority of the domain has signed for this very request is the
//! permission, and a grant also opens the effect that it is bound to (`Semel-Grant`).
//!
//! What is asked for runs in a task of its own: a client that goes away, or an answer that takes
//! too long, cancels no transaction half-way.

mod answer;
mod effects;
mod gates;
mod grants;
mod query;

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::response::Response;
use axum::routing::any;
use futures_util::StreamExt;
use semel_core::code::Code;
use semel_core::hex::Hex;
use semel_wire::http::Problem;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::grant::Nonce;
use crate::key::LogicalRequestKey;
use crate::limits::{BODY_BYTES_MAX, BODY_TIMEOUT, REQUEST_TIMEOUT, REQUESTS_MAX};
use crate::registrar::Registrar;

use answer::Answer;

/// Whether a bearer token is the operator's.
pub type Operator = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// What all requests share.
#[derive(Clone)]
struct Api {
    registrar: Arc<Registrar>,
    operator: Option<Operator>,
    places: Arc<Semaphore>,
}

/// A request that has been read.
struct Call {
    registrar: Arc<Registrar>,
    operator: Option<Operator>,
    path: String,
    query: String,
    headers: HeaderMap,
    body: Bytes,
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    GrantIssue,
    GrantList,
    GrantRevoke(Nonce),
    Register,
    Resolve(LogicalRequestKey),
    Verify(LogicalRequestKey),
    Compensate(LogicalRequestKey),
    GateShow,
    GateSet,
}

/// The registrar's paths, and no other.
pub fn router(registrar: Arc<Registrar>, operator: Option<Operator>) -> Router {
    let api = Api { registrar, operator, places: Arc::new(Semaphore::new(REQUESTS_MAX)) };
    let paths = [
        "/v1/grants",
        "/v1/grants/{nonce}",
        "/v1/effects",
        "/v1/effects/{key}",
        "/v1/effects/{key}/verify",
        "/v1/effects/{key}/compensate",
        "/v1/registrar/gate",
    ];
    let mount = |router: Router<Api>, path| router.route(path, any(serve));
    paths.into_iter().fold(Router::new(), mount).with_state(api)
}

/// Finds what is asked for. A name in a path that cannot be one is not found.
fn find(method: &str, path: &str) -> Result<Route, Box<Response>> {
    let missing = || {
        let detail = "there is nothing under this path";
        Box::new(answer::problem(&Problem::new(Code::NotFound, detail)))
    };
    let other = |methods| Err(Box::new(answer::not_allowed(methods)));
    let mut parts = path.trim_start_matches('/').split('/').skip(1);
    let parts = (parts.next(), parts.next(), parts.next());
    let key = |text: &str| Hex::parse(text).map(LogicalRequestKey).map_err(|_| missing());
    match (method, parts) {
        ("POST", (Some("grants"), None, None)) => Ok(Route::GrantIssue),
        ("GET", (Some("grants"), None, None)) => Ok(Route::GrantList),
        (_, (Some("grants"), None, None)) => other("GET, POST"),
        ("DELETE", (Some("grants"), Some(nonce), None)) => {
            Hex::parse(nonce).map(|nonce| Route::GrantRevoke(Nonce(nonce))).map_err(|_| missing())
        }
        (_, (Some("grants"), Some(_), None)) => other("DELETE"),
        ("POST", (Some("effects"), None, None)) => Ok(Route::Register),
        (_, (Some("effects"), None, None)) => other("POST"),
        ("GET", (Some("effects"), Some(text), None)) => key(text).map(Route::Resolve),
        (_, (Some("effects"), Some(_), None)) => other("GET"),
        ("POST", (Some("effects"), Some(text), Some("verify"))) => key(text).map(Route::Verify),
        ("POST", (Some("effects"), Some(text), Some("compensate"))) => {
            key(text).map(Route::Compensate)
        }
        (_, (Some("effects"), Some(_), Some(_))) => other("POST"),
        ("GET", (Some("registrar"), Some("gate"), None)) => Ok(Route::GateShow),
        ("POST", (Some("registrar"), Some("gate"), None)) => Ok(Route::GateSet),
        (_, (Some("registrar"), Some("gate"), None)) => other("GET, POST"),
        (_, _) => Err(missing()),
    }
}

async fn serve(State(api): State<Api>, request: Request) -> Response {
    let route = match find(request.method().as_str(), request.uri().path()) {
        Ok(route) => route,
        Err(refused) => return *refused,
    };
    let (parts, body) = request.into_parts();
    let body = match timeout(BODY_TIMEOUT, read(body)).await {
        Ok(Ok(body)) => body,
        Ok(Err(problem)) => return answer::problem(&problem),
        Err(_) => {
            let detail = "the body did not arrive in time";
            return answer::problem(&Problem::new(Code::RequestTimeout, detail));
        }
    };
    // After the body, so that who sends one slowly takes nobody's place.
    let Ok(place) = Arc::clone(&api.places).try_acquire_owned() else {
        let detail = "too many requests are under way";
        return answer::problem(&Problem::new(Code::Overloaded, detail));
    };
    let call = Call {
        registrar: api.registrar,
        operator: api.operator,
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        headers: parts.headers,
        body,
    };
    let running = tokio::spawn(async move {
        let answer = run(route, &call).await;
        drop(place);
        answer
    });
    match timeout(REQUEST_TIMEOUT, running).await {
        Ok(Ok(Ok(answer))) => answer.into_response(),
        Ok(Ok(Err(problem))) => answer::problem(&problem),
        Ok(Err(_)) | Err(_) => {
            let detail = "the answer did not come in time";
            answer::problem(&Problem::new(Code::OutcomeUnknown, detail))
        }
    }
}

async fn run(route: Route, call: &Call) -> Result<Answer, Problem> {
    match route {
        Route::GrantIssue => grants::issue(call).await,
        Route::GrantList => grants::list(call).await,
        Route::GrantRevoke(nonce) => grants::revoke(call, nonce).await,
        Route::Register => effects::register(call, None).await,
        Route::Resolve(key) => effects::resolve(call, key).await,
        Route::Verify(key) => effects::verify(call, key).await,
        Route::Compensate(key) => effects::register(call, Some(key)).await,
        Route::GateShow => gates::show(call).await,
        Route::GateSet => gates::set(call).await,
    }
}

/// The whole body, within the limit.
async fn read(body: Body) -> Result<Bytes, Problem> {
    let mut stream = body.into_data_stream();
    let mut whole = Vec::new();
    while let Some(part) = stream.next().await {
        let part = part.map_err(|_| Problem::new(Code::InvalidJson, "the body broke off"))?;
        if whole.len() + part.len() > BODY_BYTES_MAX {
            let detail = format!("a body has {BODY_BYTES_MAX} bytes at the most");
            return Err(Problem::new(Code::PayloadTooLarge, detail));
        }
        whole.extend_from_slice(&part);
    }
    Ok(whole.into())
}

/// The operator, by the admin token.
fn operator(call: &Call) -> Result<(), Problem> {
    let Some(is_operator) = &call.operator else {
        let detail = "this registrar was started without an admin token";
        return Err(Problem::new(Code::AdminDisabled, detail));
    };
    let given = header(call, AUTHORIZATION.as_str()).and_then(|text| text.strip_prefix("Bearer "));
    if given.is_some_and(|given| is_operator(given)) { Ok(()) } else { Err(unauthorised()) }
}

/// A header that is there once.
fn header<'call>(call: &'call Call, name: &str) -> Option<&'call str> {
    let mut values = call.headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().ok(),
        (Some(_) | None, _) => None,
    }
}

/// Who is refused learns no more than that.
fn unauthorised() -> Problem {
    Problem::new(Code::Unauthorised, "the credentials are missing or wrong")
}
