//! One request and its answer over a connection of its own, and the redirects after it. Where the
//! first byte may have left is told apart from where none has.

use std::error::Error;
use std::sync::Arc;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{HOST, HeaderMap, HeaderValue, LOCATION};
use hyper::{Method, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::super::super::net::{Unreachable, dial};
use super::super::super::{Allowed, Failure, FailureClass};
use super::HttpSettings;
use super::body::{self, Body, Place};
use super::target::{Request, Target};
use crate::limits::{CONNECT_TIMEOUT, HTTP_HEAD_BYTES_MAX, HTTP_REDIRECTS_MAX};

/// Whether the effect may have happened when there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    No,
    Perhaps,
}

pub(super) struct Answer {
    /// What was answered; not what was asked for, after a redirect.
    pub(super) method: Method,
    /// Whether something may have been done before that, by those who redirected it.
    pub(super) before: Sent,
    pub(super) host: String,
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Body,
}

type Failed = (Sent, Failure);

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Sends a request to where its redirects lead, if the policy lets it.
pub(super) async fn follow(
    mut request: Request,
    settings: &HttpSettings,
    allowed: &Allowed,
    place: &Place,
) -> Result<Answer, Failed> {
    let keyed = request.target.is_among(&settings.keyed_hosts);
    let mut sent = Sent::No;
    for _ in 0..=HTTP_REDIRECTS_MAX {
        let answer = exchange(&request, settings, place).await;
        let answer = answer.map_err(|(now, failure)| (sent.or(now), failure))?;
        let location = answer.headers.get(LOCATION).and_then(|value| value.to_str().ok());
        let status = answer.status.as_u16();
        let next = match request.redirected(status, location) {
            None => return Ok(Answer { before: sent, ..answer }),
            Some(next) => next
                .and_then(|next| next.keeps_its_word(keyed, settings))
                .and_then(|next| next.if_allowed(allowed)),
        };
        // Who sends it on as it is has not done it; who answers with a place to look may have.
        if !request.method.is_safe() && !matches!(status, 307 | 308) {
            sent = Sent::Perhaps;
        }
        request = next
            .map_err(|text| (sent, Failure::new(FailureClass::UserError, "bad_redirect", text)))?;
    }
    let text = format!("more than {HTTP_REDIRECTS_MAX} redirects");
    Err((sent, Failure::new(FailureClass::UserError, "too_many_redirects", text)))
}

impl Request {
    /// A rule on where requests go holds for where they are sent on to (trap 63).
    fn if_allowed(self, allowed: &Allowed) -> Result<Self, String> {
        match allowed.has(self.method.as_str(), &self.target.url()) {
            true => Ok(self),
            false => Err(format!("the policy allows no {} to {}", self.method, self.target.host)),
        }
    }

    /// A request that may be repeated because its host keeps the key does not go to one of which
    /// nobody knows that.
    fn keeps_its_word(self, keyed: bool, settings: &HttpSettings) -> Result<Self, String> {
        let repeatable = self.method.is_idempotent() || self.target.is_among(&settings.keyed_hosts);
        match repeatable || !keyed {
            true => Ok(self),
            false => Err(format!("{} is not one of the keyed_hosts", self.target.host)),
        }
    }
}

impl Sent {
    fn or(self, other: Self) -> Self {
        if self == Self::Perhaps { self } else { other }
    }
}

async fn exchange(
    request: &Request,
    settings: &HttpSettings,
    place: &Place,
) -> Result<Answer, Failed> {
    let target = &request.target;
    let stream = connect(target, settings).await.map_err(|failure| (Sent::No, failure))?;
    let transient = |code: &str, error: &dyn Error| {
        let text = format!("{}: {error}", target.host);
        Failure::new(FailureClass::Transient, code, text)
    };
    let mut builder = hyper::client::conn::http1::Builder::new();
    builder.max_buf_size(HTTP_HEAD_BYTES_MAX);
    let shaken = builder.handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) =
        shaken.map_err(|error| (Sent::No, transient("connection_failed", &error)))?;
    let message = message(request).map_err(|failure| (Sent::No, failure))?;
    let talking = async {
        let response = sender.send_request(message).await;
        let cut = |error: &dyn Error| (Sent::Perhaps, transient("connection_cut", error));
        let (head, body) = response.map_err(|error| cut(&error))?.into_parts();
        let status = head.status.as_u16();
        let location = head.headers.get(LOCATION).and_then(|value| value.to_str().ok());
        // Nobody is given the body of a refusal, or of a redirect.
        let is_given = status < 400 && request.redirected(status, location).is_none();
        let body = match request.method {
            Method::HEAD => Body::Here(Vec::new()),
            _ => match body::read(body, is_given.then_some(place)).await {
                Ok(body) => body,
                Err(body::Failed::Cut(error)) => return Err(cut(&*error)),
                Err(body::Failed::Failure(failure)) => return Err((Sent::Perhaps, failure)),
            },
        };
        let host = target.host.clone();
        let (method, before) = (request.method.clone(), Sent::No);
        Ok(Answer { method, before, host, status: head.status, headers: head.headers, body })
    };
    // The connection is driven here and ends with the exchange: nothing is left behind.
    tokio::pin!(talking);
    tokio::select! {
        biased;
        answer = &mut talking => answer,
        _ = connection => talking.await,
    }
}

fn message(request: &Request) -> Result<hyper::Request<Full<Bytes>>, Failure> {
    let invalid = |error: &dyn Error| {
        Failure::new(FailureClass::UserError, "invalid_request", error.to_string())
    };
    let mut message = hyper::Request::builder()
        .method(&request.method)
        .uri(&request.target.path_and_query)
        .body(Full::new(request.body.clone()))
        .map_err(|error| invalid(&error))?;
    *message.headers_mut() = request.headers.clone();
    let host = HeaderValue::from_str(&request.target.authority());
    message.headers_mut().insert(HOST, host.map_err(|error| invalid(&error))?);
    Ok(message)
}

async fn connect(target: &Target, settings: &HttpSettings) -> Result<Box<dyn Stream>, Failure> {
    let stream = dial(&target.host, target.port, &settings.private_hosts).await;
    let stream = stream.map_err(|error| {
        let (class, code) = match &error {
            Unreachable::Refused(_) => (FailureClass::UserError, "address_refused"),
            Unreachable::Unknown(_) => (FailureClass::Transient, "unknown_host"),
            Unreachable::Io { .. } => (FailureClass::Transient, "unreachable"),
        };
        Failure::new(class, code, error.to_string())
    })?;
    if !target.secure {
        return Ok(Box::new(stream));
    }
    let failed = |text: String| Failure::new(FailureClass::Transient, "tls_failed", text);
    let tls = settings.tls.as_ref();
    let tls = tls.ok_or_else(|| failed("this engine knows no authorities for TLS".to_owned()))?;
    let name = target.host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(name).map_err(|error| failed(error.to_string()))?;
    let connector = tokio_rustls::TlsConnector::from(Arc::clone(tls));
    let shaken = timeout(CONNECT_TIMEOUT, connector.connect(name, stream)).await;
    let shaken = shaken.map_err(|_| failed("the handshake took too long".to_owned()))?;
    Ok(Box::new(shaken.map_err(|error| failed(error.to_string()))?))
}
