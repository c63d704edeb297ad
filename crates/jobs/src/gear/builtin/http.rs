//! `http.request {method, url, headers, body}`.
//!
//! The execution's id is the `Idempotency-Key`. What cannot be told after something was sent is
//! uncertain: an answer that was cut off, and an error of the server, which may have come after the
//! effect. Whether it is then sent again depends on the method ([`Gear::recovery`]): GET, HEAD,
//! OPTIONS, PUT and DELETE may be repeated by the standard; a POST or PATCH asks a person, unless
//! the operator has said that the host keeps the key.

mod body;
mod exchange;
mod target;

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use hyper::header::{DATE, HeaderMap, RETRY_AFTER};
use rustls::ClientConfig;
use serde_json::{Map, Value, json};

use super::super::manifest::{Manifest, Recovery, Risk};
use super::super::net::Hosts;
use super::super::{
    Call, Desk, Ended, Failure, FailureClass, Gear, Later, Output, Resolution, Stop,
};
use body::{Body, Place};
use exchange::{Answer, Sent};
use target::{Request, Target};
pub(crate) use target::{host_of, path_of};

const METHODS: [&str; 7] = ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "POST", "PATCH"];

/// How requests leave this host.
#[derive(Clone, Default)]
pub struct HttpSettings {
    /// What to speak TLS with; without it only plain requests are possible.
    pub tls: Option<Arc<ClientConfig>>,
    /// Hosts that may be reached although their addresses are not public.
    pub private_hosts: Hosts,
    /// Hosts that do a request once, however often it is sent with the same `Idempotency-Key`.
    pub keyed_hosts: Hosts,
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
        match exchange::follow(request, &self.settings, &call.allowed, &Place::of(call)).await {
            Err((Sent::No, failure)) => Ended::Failed(failure),
            Err((Sent::Perhaps, failure)) => Ended::Uncertain(failure),
            Ok(answer) => judged(answer),
        }
    }
}

/// Whether a method may be repeated (RFC 9110, 9.2.2).
fn is_repeatable(method: &Method) -> bool {
    method.is_idempotent() && METHODS.contains(&method.as_str())
}

impl Gear for Http {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn needs_workspace(&self) -> bool {
        false
    }

    fn is_sent_on(&self) -> bool {
        true
    }

    fn recovery(&self, _action: &str, params: &Value) -> Recovery {
        let method = super::text(params, "method").unwrap_or("GET");
        let method = Method::from_bytes(method.as_bytes());
        let target = || Target::parse(super::text(params, "url").unwrap_or_default());
        let repeatable = method.is_ok_and(|method| is_repeatable(&method))
            || target().is_ok_and(|target| target.is_among(&self.settings.keyed_hosts));
        if repeatable { Recovery::Idempotent } else { Recovery::Ask }
    }

    fn place(&self, _action: &str, params: &Value) -> Option<String> {
        let target = Target::parse(super::text(params, "url")?).ok()?;
        Some(target.authority())
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

/// What an answer means. A refusal is definite, if nothing was done on the way to it; an error of
/// the server, or of one between, may have come after the effect (trap 34).
fn judged(answer: Answer) -> Ended {
    let status = answer.status.as_u16();
    if status < 400 {
        return given(answer);
    }
    let class = match status {
        408 | 425 | 429 | 500.. => FailureClass::Transient,
        _ => FailureClass::UserError,
    };
    let text = format!("{} answered {}", answer.host, answer.status);
    let mut failure = Failure::new(class, &format!("http_{status}"), text);
    failure.retry_after = retry_after(&answer.headers);
    let refused = !matches!(status, 408 | 500..);
    let nothing_done = answer.before == Sent::No && (refused || answer.method.is_safe());
    if nothing_done { Ended::Failed(failure) } else { Ended::Uncertain(failure) }
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

fn given(answer: Answer) -> Ended {
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
    let body = match answer.body {
        Body::Here(body) => body,
        Body::File(file) => return Ended::Done(Output::With { value: result, file: file.into() }),
    };
    match super::text_or_base64(body) {
        Ok(text) => result["body"] = text.into(),
        Err(encoded) => result["body_base64"] = encoded.into(),
    }
    super::done(result)
}

#[cfg(test)]
mod tests;
