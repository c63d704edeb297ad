//! `http.request {method, url, headers, body}`.
//!
//! The execution's id is the `Idempotency-Key`. What cannot be told after something was sent is
//! uncertain; whether it is then sent again depends on the method ([`Gear::recovery`]): GET, HEAD,
//! OPTIONS, PUT and DELETE may be repeated by the standard, a POST or PATCH asks a person.

mod exchange;
mod target;

use std::sync::Arc;
use std::time::Duration;

use hyper::header::{DATE, HeaderMap, RETRY_AFTER};
use rustls::ClientConfig;
use serde_json::{Map, Value, json};

use super::super::manifest::{Manifest, Recovery, Risk};
use super::super::net::PrivateHosts;
use super::super::{Call, Desk, Ended, Failure, FailureClass, Gear, Later, Resolution, Stop};
use crate::limits::INLINE_BYTES_MAX;
use exchange::{Answer, Sent};
use target::Request;

const METHODS: [&str; 7] = ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "POST", "PATCH"];

/// How requests leave this host.
#[derive(Clone, Default)]
pub struct HttpSettings {
    /// What to speak TLS with; without it only plain requests are possible.
    pub tls: Option<Arc<ClientConfig>>,
    /// Hosts that may be reached although their addresses are not public.
    pub private_hosts: PrivateHosts,
}

/// The gear.
pub struct Http {
    manifest: Manifest,
    settings: HttpSettings,
}

impl Http {
    /// The gear.
    pub fn new(settings: HttpSettings) -> Self {
        let properties = json!({
            "method": {"enum": METHODS},
            "url": {"type": "string", "minLength": 1, "maxLength": 8192},
            "headers": {"type": "object", "maxProperties": 100,
                "additionalProperties": {"type": "string", "maxLength": 8192}},
            "body": {},
        });
        let about = "Send an HTTP request; an object as body is sent as JSON";
        let mut request = super::action(about, properties, &["url"]);
        request.risk = Risk::Medium;
        request.recovery = Recovery::Ask;
        Self { manifest: super::manifest("http", [("request", request)]), settings }
    }

    async fn request(&self, call: &Call) -> Ended {
        if call.action != "request" {
            return super::no_such_action(&call.action);
        }
        let request = match Request::read(&call.params, &call.execution_id) {
            Ok(request) => request,
            Err(text) => return super::user_error("invalid_request", text),
        };
        let repeatable = is_repeatable(&request.method);
        match exchange::follow(request, &self.settings).await {
            Err((Sent::No, failure)) => Ended::Failed(failure),
            Err((Sent::Perhaps, failure)) => Ended::Uncertain(failure),
            Ok(answer) => judged(answer, repeatable, call).await,
        }
    }
}

/// Whether a method may be repeated (RFC 9110, 9.2.2).
fn is_repeatable(method: &hyper::Method) -> bool {
    method.is_idempotent() && METHODS.contains(&method.as_str())
}

impl Gear for Http {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn needs_workspace(&self) -> bool {
        false
    }

    fn recovery(&self, _action: &str, params: &Value) -> Recovery {
        let method = super::text(params, "method").unwrap_or("GET");
        let method = hyper::Method::from_bytes(method.as_bytes());
        match method.is_ok_and(|method| is_repeatable(&method)) {
            true => Recovery::Idempotent,
            false => Recovery::Ask,
        }
    }

    fn run<'a>(&'a self, call: Call, _desk: Arc<dyn Desk>, mut stop: Stop) -> Later<'a, Ended> {
        Box::pin(async move {
            if stop.is_stopped() {
                return super::stopped();
            }
            let class = FailureClass::Transient;
            tokio::select! {
                ended = self.request(&call) => ended,
                () = stop.stopped() => {
                    Ended::Uncertain(Failure::new(class, "stopped", "stopped while under way"))
                }
            }
        })
    }

    fn resolve<'a>(&'a self, _call: Call, _stop: Stop) -> Later<'a, Resolution> {
        Box::pin(async { Resolution::Unknown })
    }
}

/// What an answer means. A server's refusal is definite; a gateway that lost its server has not
/// seen whether something happened.
async fn judged(answer: Answer, repeatable: bool, call: &Call) -> Ended {
    let status = answer.status.as_u16();
    if status < 400 {
        return given(answer, call).await;
    }
    let class = match status {
        408 | 425 | 429 | 500.. => FailureClass::Transient,
        _ => FailureClass::UserError,
    };
    let text = format!("{} answered {}", answer.host, answer.status);
    let mut failure = Failure::new(class, &format!("http_{status}"), text);
    failure.retry_after = retry_after(&answer.headers);
    match status {
        502 | 504 if !repeatable => Ended::Uncertain(failure),
        _ => Ended::Failed(failure),
    }
}

/// Seconds, or a date. A date is compared with the server's own, so that nobody's clock has to be
/// right; without one the engine's own wait applies.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let then = httpdate::parse_http_date(text).ok()?;
    let now = httpdate::parse_http_date(headers.get(DATE)?.to_str().ok()?.trim()).ok()?;
    // What is over by then needs no wait.
    Some(then.duration_since(now).unwrap_or_default())
}

async fn given(answer: Answer, call: &Call) -> Ended {
    let mut headers = Map::new();
    for (name, value) in &answer.headers {
        let value = String::from_utf8_lossy(value.as_bytes());
        let entry = headers.entry(name.as_str()).or_insert_with(|| json!(""));
        *entry = match entry.as_str() {
            Some("") | None => value.into(),
            Some(before) => format!("{before}, {value}").into(),
        };
    }
    let mut result = json!({"status": answer.status.as_u16(), "headers": headers});
    let length = answer.body.len();
    if length > INLINE_BYTES_MAX {
        let name = "http-response.body";
        let path = call.workspace.join(name);
        if let Err(error) = tokio::fs::write(&path, &answer.body).await {
            let class = FailureClass::ResourceLimit;
            let text = format!("the body cannot be kept: {error}");
            return Ended::Uncertain(Failure::new(class, "body_not_kept", text));
        }
        result["body_file"] = name.into();
        return super::done(result);
    }
    match super::text_or_base64(answer.body) {
        Ok(text) => result["body"] = text.into(),
        Err(encoded) => result["body_base64"] = encoded.into(),
    }
    super::done(result)
}

#[cfg(test)]
mod tests;
