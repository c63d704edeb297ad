//! The daemon's local API from a program's side: over its Unix socket, or over loopback TCP with
//! its token. One request per connection; event streams resume where they were cut.
//!
//! ```no_run
//! # async fn example() -> Result<(), semel_client::ClientError> {
//! use semel_client::Client;
//! use serde_json::json;
//!
//! let client = Client::socket("daemon/ops/sock");
//! let send = json!({"to": "#builds", "message": "done"});
//! let answer = client.post("/v1/send", &send, Some("build-17")).await?;
//! assert!(answer.is_success());
//! # Ok(())
//! # }
//! ```

mod download;
mod events;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

pub use download::Download;
pub use events::{Event, Events};

/// How long connecting to the socket may take: a daemon that is there answers at once.
pub const CONNECT_TIMEOUT: Duration = Duration::from_millis(100);

/// How long an answer may take. The daemon itself gives up before.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes of an answer: the daemon's own limit, and some.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens there.
    #[error("no daemon answers at {place}")]
    NoDaemon {
        /// Where it was looked for.
        place: String,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// It took too long. A send may or may not have been accepted: the same key again is safe.
    #[error("the daemon did not answer in time")]
    TimedOut,
    /// The connection broke. A send may or may not have been accepted: the same key again is safe.
    #[error("the connection to the daemon broke: {0}")]
    Broken(String),
    /// The request cannot be said in HTTP.
    #[error("{0}")]
    Invalid(String),
    /// A stream was asked for, and the answer was another one.
    #[error("the daemon answered {}: {}", .0.status, .0.detail())]
    Refused(Answer),
}

/// A daemon's answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The document; null where there is none.
    pub body: Value,
}

impl Answer {
    /// `2xx`.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The same request will be refused again, whenever it is sent.
    pub fn is_final(&self) -> bool {
        (400..500).contains(&self.status) && ![408, 425, 429].contains(&self.status)
    }

    /// The stable code of a problem.
    pub fn code(&self) -> Option<&str> {
        self.body.get("code").and_then(Value::as_str)
    }

    /// What a problem says to a person.
    pub fn detail(&self) -> &str {
        self.body.get("detail").and_then(Value::as_str).unwrap_or_default()
    }
}

/// Where a daemon listens.
#[derive(Clone)]
enum Place {
    Socket(PathBuf),
    Tcp(SocketAddr, String),
}

/// A daemon, as its callers reach it.
#[derive(Clone)]
pub struct Client {
    place: Place,
}

impl Client {
    /// Over its socket, which needs no token.
    pub fn socket(path: impl AsRef<Path>) -> Self {
        Self { place: Place::Socket(path.as_ref().to_owned()) }
    }

    /// Over loopback TCP, with the token of `local_token`.
    pub fn tcp(address: SocketAddr, token: impl Into<String>) -> Self {
        Self { place: Place::Tcp(address, token.into()) }
    }

    /// Asks for something.
    pub async fn get(&self, path_and_query: &str) -> Result<Answer, ClientError> {
        self.call(Method::GET, path_and_query, None, None).await
    }

    /// Asks for something to happen; under a key it happens once.
    pub async fn post(
        &self,
        path: &str,
        body: &Value,
        idempotency_key: Option<&str>,
    ) -> Result<Answer, ClientError> {
        self.call(Method::POST, path, Some(body), idempotency_key).await
    }

    /// A stream of what happens after this event; from now on without one.
    pub async fn events(&self, after: Option<u64>, kinds: &[&str]) -> Result<Events, ClientError> {
        let mut query = Vec::new();
        query.extend(after.map(|id| format!("after={id}")));
        query.extend((!kinds.is_empty()).then(|| format!("kinds={}", kinds.join(","))));
        let path = match query.is_empty() {
            true => "/v1/events".to_owned(),
            false => format!("/v1/events?{}", query.join("&")),
        };
        self.stream(&path).await
    }

    /// A stream of events under any path.
    pub async fn stream(&self, path_and_query: &str) -> Result<Events, ClientError> {
        let request = self.request(Method::GET, path_and_query, None, None)?;
        let (response, driving) = self.send(request).await?;
        if response.status().is_success() {
            return Ok(Events::new(response.into_body(), driving));
        }
        let refused = tokio::time::timeout(ANSWER_TIMEOUT, answer(response, driving)).await;
        Err(ClientError::Refused(refused.map_err(|_| ClientError::TimedOut)??))
    }

    /// A file under some path, or why it is not given.
    pub async fn download(
        &self,
        path_and_query: &str,
    ) -> Result<Result<Download, Answer>, ClientError> {
        let request = self.request(Method::GET, path_and_query, None, None)?;
        let asked = async {
            let (response, driving) = self.send(request).await?;
            if response.status().is_success() {
                return Ok(Ok(Download::new(response.into_body(), driving)));
            }
            answer(response, driving).await.map(Err)
        };
        tokio::time::timeout(ANSWER_TIMEOUT, asked).await.map_err(|_| ClientError::TimedOut)?
    }

    async fn call(
        &self,
        method: Method,
        path_and_query: &str,
        body: Option<&Value>,
        idempotency_key: Option<&str>,
    ) -> Result<Answer, ClientError> {
        let request = self.request(method, path_and_query, body, idempotency_key)?;
        let called = async {
            let (response, driving) = self.send(request).await?;
            answer(response, driving).await
        };
        tokio::time::timeout(ANSWER_TIMEOUT, called).await.map_err(|_| ClientError::TimedOut)?
    }

    fn request(
        &self,
        method: Method,
        path_and_query: &str,
        body: Option<&Value>,
        idempotency_key: Option<&str>,
    ) -> Result<Request<Full<Bytes>>, ClientError> {
        let invalid = |error: &dyn std::fmt::Display| ClientError::Invalid(error.to_string());
        let mut request = Request::builder()
            .method(method)
            .uri(path_and_query)
            .header(HOST, "localhost")
            .header(CONTENT_TYPE, "application/json");
        if let Some(key) = idempotency_key {
            let key = HeaderValue::from_str(key).map_err(|error| invalid(&error))?;
            request = request.header("idempotency-key", key);
        }
        if let Place::Tcp(_, token) = &self.place {
            let bearer = HeaderValue::from_str(&format!("Bearer {token}"));
            let mut bearer = bearer.map_err(|error| invalid(&error))?;
            bearer.set_sensitive(true);
            request = request.header(AUTHORIZATION, bearer);
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        request.body(Full::new(Bytes::from(body))).map_err(|error| invalid(&error))
    }

    async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<(Response<Incoming>, tokio::task::JoinHandle<()>), ClientError> {
        match &self.place {
            Place::Socket(path) => {
                let stream = tokio::time::timeout(CONNECT_TIMEOUT, UnixStream::connect(path)).await;
                exchange(reached(stream, &path.display())?, request).await
            }
            Place::Tcp(address, _) => {
                let stream = TcpStream::connect(address);
                let stream = tokio::time::timeout(10 * CONNECT_TIMEOUT, stream).await;
                exchange(reached(stream, address)?, request).await
            }
        }
    }
}

/// Reads an answer to its end.
async fn answer(
    response: Response<Incoming>,
    driving: tokio::task::JoinHandle<()>,
) -> Result<Answer, ClientError> {
    let status = response.status().as_u16();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    driving.abort();
    let body = body.map_err(|error| ClientError::Broken(error.to_string()))?.to_bytes();
    let body = match body.is_empty() {
        true => Value::Null,
        // Metrics are text.
        false => serde_json::from_slice(&body)
            .unwrap_or_else(|_| String::from_utf8_lossy(&body).into_owned().into()),
    };
    Ok(Answer { status, body })
}

fn reached<S>(
    stream: Result<std::io::Result<S>, tokio::time::error::Elapsed>,
    place: &dyn std::fmt::Display,
) -> Result<S, ClientError> {
    let stream = stream.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
    stream.map_err(|source| ClientError::NoDaemon { place: place.to_string(), source })
}

async fn exchange<S>(
    stream: S,
    request: Request<Full<Bytes>>,
) -> Result<(Response<Incoming>, tokio::task::JoinHandle<()>), ClientError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let broken = |error: hyper::Error| ClientError::Broken(error.to_string());
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let driving = tokio::spawn(async move { drop(connection.await) });
    let response = sender.send_request(request).await.map_err(broken)?;
    Ok((response, driving))
}
