//! The registrar over HTTP (`docs/registrar.md`): a router that whoever has a door mounts.
//!
//! Who may do what: grants, gates and verdicts are the operator's, who shows a token. Registering
//! needs no token: a grant that an authority of the domain has signed for this very request is the
//! permission, and a grant also opens the effect that it is bound to (`Semel-Grant`).
//!
//! What is asked for runs in a task of its own: a client that goes away, or an answer that takes
//! too long, cancels no transaction half-way.

mod answer;
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
use semel_wire::http::Problem;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::calls::{self, AUDIT, Answer, GRANTS, audits, effects, gates, grants, sweeps};
use crate::document::Fields;
use crate::grant::{Grant, Nonce};
use crate::key::LogicalRequestKey;
use crate::limits::{BODY_BYTES_MAX, BODY_TIMEOUT, REQUEST_TIMEOUT, REQUESTS_MAX};
use crate::registrar::Registrar;
use crate::store::Audit;

use query::Query;

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
    Audit,
    Sweep,
}

/// The registrar's paths, and no other.
pub fn router(registrar: Arc<Registrar>, operator: Option<Operator>) -> Router {
    let api = Api { registrar, operator, places: Arc::new(Semaphore::new(REQUESTS_MAX)) };
    let paths = [
        GRANTS,
        "/v1/grants/{nonce}",
        "/v1/effects",
        "/v1/effects/{key}",
        "/v1/effects/{key}/verify",
        "/v1/effects/{key}/compensate",
        "/v1/registrar/gate",
        AUDIT,
        "/v1/registrar/sweep",
    ];
    let mount = |router: Router<Api>, path| router.route(path, any(serve));
    paths.into_iter().fold(Router::new(), mount).with_state(api)
}

/// Finds what is asked for. A name in a path that cannot be one is not found.
fn find(method: &str, path: &str) -> Result<Route, Box<Response>> {
    let refused = |problem: Problem| Box::new(answer::problem(&problem));
    let other = |methods| Err(Box::new(answer::not_allowed(methods)));
    let mut parts = path.trim_start_matches('/').split('/').skip(1);
    let parts = (parts.next(), parts.next(), parts.next());
    let key = |text: &str| calls::key(text).map_err(refused);
    match (method, parts) {
        ("POST", (Some("grants"), None, None)) => Ok(Route::GrantIssue),
        ("GET", (Some("grants"), None, None)) => Ok(Route::GrantList),
        (_, (Some("grants"), None, None)) => other("GET, POST"),
        ("DELETE", (Some("grants"), Some(nonce), None)) => {
            calls::nonce(nonce).map(Route::GrantRevoke).map_err(refused)
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
        ("GET", (Some("registrar"), Some("audit"), None)) => Ok(Route::Audit),
        (_, (Some("registrar"), Some("audit"), None)) => other("GET"),
        ("POST", (Some("registrar"), Some("sweep"), None)) => Ok(Route::Sweep),
        (_, (Some("registrar"), Some("sweep"), None)) => other("POST"),
        (_, _) => Err(refused(calls::missing())),
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
        Ok(Ok(Ok(answer))) => answer::answered(answer),
        Ok(Ok(Err(problem))) => answer::problem(&problem),
        Ok(Err(_)) | Err(_) => {
            let detail = "the answer did not come in time";
            answer::problem(&Problem::new(Code::OutcomeUnknown, detail))
        }
    }
}

async fn run(route: Route, call: &Call) -> Result<Answer, Problem> {
    match route {
        // The grant in the request is the permission.
        Route::Register | Route::Compensate(_) => {}
        Route::Resolve(key) => operator_or_grant(call, key).await?,
        Route::GrantIssue
        | Route::GrantList
        | Route::GrantRevoke(_)
        | Route::Verify(_)
        | Route::GateShow
        | Route::GateSet
        | Route::Audit
        | Route::Sweep => operator(call)?,
    }
    let registrar = &*call.registrar;
    let fields = || Fields::parse(&call.body).map_err(Problem::of);
    let query = || Query::of(&call.query);
    match route {
        Route::GrantIssue => grants::issue(registrar, fields()?).await,
        Route::GrantList => {
            let mut query = query()?;
            let (domain, limit) = (query.domain()?, query.limit()?);
            let after = query.take("after");
            query.finish()?;
            grants::list(registrar, &domain, after, limit).await
        }
        Route::GrantRevoke(nonce) => grants::revoke(registrar, nonce).await,
        Route::Register => effects::register(registrar, fields()?, None).await,
        Route::Resolve(key) => {
            let mut query = query()?;
            let mode = query.take("mode");
            query.finish()?;
            effects::resolve(registrar, key, mode.as_deref()).await
        }
        Route::Verify(key) => effects::verify(registrar, key, fields()?).await,
        Route::Compensate(key) => effects::register(registrar, fields()?, Some(key)).await,
        Route::GateShow => {
            let mut query = query()?;
            let domain = query.domain()?;
            query.finish()?;
            gates::show(registrar, &domain).await
        }
        Route::GateSet => gates::set(registrar, fields()?).await,
        Route::Audit => {
            let mut query = query()?;
            let ledger = query.word("ledger", Audit::parse)?;
            let (domain, before) = (query.take("domain"), query.entry("before")?);
            let limit = query.limit()?;
            query.finish()?;
            audits::list(registrar, (ledger, domain.as_deref()), before, limit).await
        }
        Route::Sweep => sweeps::sweep(registrar, fields()?).await,
    }
}

/// The whole body, within the limit.
async fn read(body: Body) -> Result<Bytes, Problem> {
    let mut stream = body.into_data_stream();
    let mut whole = Vec::new();
    while let Some(part) = stream.next().await {
        let part = part.map_err(|_| Problem::new(Code::InvalidJson, "the body ended too early"))?;
        if whole.len() + part.len() > BODY_BYTES_MAX {
            let detail = format!("a body has at most {BODY_BYTES_MAX} bytes");
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

/// The operator, or who holds a grant for this effect.
async fn operator_or_grant(call: &Call, key: LogicalRequestKey) -> Result<(), Problem> {
    let Some(grant) = header(call, "semel-grant") else { return operator(call) };
    let grant = Grant::parse(grant.as_bytes()).map_err(|_| unauthorised())?;
    let opens = call.registrar.opens(&grant, key).await.map_err(calls::failed)?;
    if opens { Ok(()) } else { Err(unauthorised()) }
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
