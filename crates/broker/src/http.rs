//! The HTTP API of members and operators (`docs/http.md`): signed requests in, JSON out, every
//! refusal a problem document.
//!
//! A request is read whole before anything is decided about it, because the signature covers its
//! body. What it asks for then runs in a task of its own: a client that goes away, or an answer
//! that takes too long, cancels no transaction half-way.

mod answer;
mod auth;
mod history;
mod invites;
mod members;
mod meshes;
mod names;
mod query;
mod routes;

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::response::Response;
use futures_util::StreamExt;
use semel_core::code::Code;
use semel_serve::Guest;
use semel_wire::http::Problem;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::connection::Broker;
use crate::limits::{REQUEST_BODY_BYTES_MAX, REQUEST_BODY_TIMEOUT, REQUEST_TIMEOUT, REQUESTS_MAX};

use answer::Answer;
pub use auth::AdminToken;
pub use invites::token_hash;
use routes::Route;

/// What all requests share.
#[derive(Clone)]
struct Api {
    broker: Arc<Broker>,
    places: Arc<Semaphore>,
}

/// A request that has been read.
struct Call {
    broker: Arc<Broker>,
    method: String,
    /// Path and query, as they were on the request line.
    target: String,
    query: String,
    headers: HeaderMap,
    body: Bytes,
    /// What stands for the names in the route's pattern, decoded.
    names: Vec<String>,
    /// Whose connection it came by.
    guest: Option<Guest>,
}

/// Everything that no other route takes.
pub fn router(broker: Arc<Broker>) -> Router {
    let api = Api { broker, places: Arc::new(Semaphore::new(REQUESTS_MAX)) };
    Router::new().fallback(serve).with_state(api)
}

async fn serve(State(api): State<Api>, request: Request) -> Response {
    let method = request.method().as_str().to_owned();
    let found = match routes::find(&method, request.uri().path()) {
        Ok(found) => found,
        Err(missing) => return missing.into_response(),
    };
    let (parts, body) = request.into_parts();
    let target = parts.uri.path_and_query().map_or("", |target| target.as_str()).to_owned();
    let query = parts.uri.query().unwrap_or_default().to_owned();
    let body = match timeout(REQUEST_BODY_TIMEOUT, read(body)).await {
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
    let (broker, headers, names) = (api.broker, parts.headers, found.names);
    let guest = parts.extensions.get().cloned();
    let unwritten = Arc::clone(&broker.hub.unwritten);
    let call = Call { broker, method, target, query, headers, body, names, guest };
    let running = tokio::spawn(async move {
        let answer = run(found.route, &call).await;
        drop(place);
        answer
    });
    match timeout(REQUEST_TIMEOUT, running).await {
        Ok(Ok(Ok(answer))) => answer.into_response(&unwritten),
        Ok(Ok(Err(problem))) => answer::problem(&problem),
        Ok(Err(_)) | Err(_) => {
            let detail = "the answer did not come in time";
            answer::problem(&Problem::new(Code::OutcomeUnknown, detail))
        }
    }
}

impl Call {
    /// Its caller has shown who it is: where there is room, its connection may stay.
    fn is_known(&self) {
        if let Some(guest) = &self.guest {
            guest.try_known();
        }
    }
}

async fn run(route: Route, call: &Call) -> Result<Answer, Problem> {
    match route {
        Route::MeshCreate => meshes::create(call).await,
        Route::MeshShow => meshes::show(call).await,
        Route::InviteCreate => invites::create(call).await,
        Route::Join => invites::join(call).await,
        Route::Members => members::list(call).await,
        Route::MemberRevoke => members::revoke(call).await,
        Route::Leave => members::leave(call).await,
        Route::Profile => members::profile(call).await,
        Route::Topics => names::topics(call).await,
        Route::TopicCreate => names::topic_create(call).await,
        Route::TopicSubscribe => names::subscribe(call).await,
        Route::TopicUnsubscribe => names::unsubscribe(call).await,
        Route::TopicDelete => names::topic_delete(call).await,
        Route::Queues => names::queues(call).await,
        Route::QueueCreate => names::queue_create(call).await,
        Route::QueueDelete => names::queue_delete(call).await,
        Route::History => history::list(call).await,
    }
}

/// The whole body, within the limit.
async fn read(body: Body) -> Result<Bytes, Problem> {
    let mut stream = body.into_data_stream();
    let mut whole = Vec::new();
    while let Some(part) = stream.next().await {
        let part = part.map_err(|_| Problem::new(Code::InvalidJson, "the body ended too early"))?;
        if whole.len() + part.len() > REQUEST_BODY_BYTES_MAX {
            let detail = format!("a body has at most {REQUEST_BODY_BYTES_MAX} bytes");
            return Err(Problem::new(Code::PayloadTooLarge, detail));
        }
        whole.extend_from_slice(&part);
    }
    Ok(whole.into())
}
