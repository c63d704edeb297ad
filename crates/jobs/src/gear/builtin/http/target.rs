//! A request as the parameters give it, and where it goes.

use hyper::body::Bytes;
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST,
    HeaderMap, HeaderName, HeaderValue, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
    USER_AGENT,
};
use hyper::{Method, Uri};
use semel_api::field::unescape;
use serde_json::Value;

use super::super::super::net::{Hosts, canonical};

/// Headers that are ours to say.
const OURS: [HeaderName; 7] =
    [HOST, CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION, UPGRADE, TE, PROXY_AUTHORIZATION];

/// What a server may know for which the request was not written. Every other header may hold what
/// is meant for the first one alone.
const HARMLESS: [HeaderName; 5] =
    [ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, CONTENT_TYPE, USER_AGENT];

/// Ours, and nobody's secret: it tells a host that does the request again that it does.
const KEY: &str = "idempotency-key";

/// A request.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) method: Method,
    pub(super) target: Target,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) secure: bool,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) path_and_query: String,
}

impl Target {
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        // A fragment stays with whoever asks.
        let url = url.split_once('#').map_or(url, |(url, _)| url);
        let uri: Uri = url.parse().map_err(|error| format!("the address is wrong: {error}"))?;
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            Some(_) | None => return Err("only http:// and https:// are possible".to_owned()),
        };
        let authority = uri.authority().ok_or("the address has no host")?;
        if authority.as_str().contains('@') {
            return Err("a name and password do not belong in an address".to_owned());
        }
        let path_and_query = uri.path_and_query().map_or("/", |path| path.as_str());
        Ok(Self {
            secure,
            host: bracketed(canonical(authority.host())),
            port: authority.port_u16().unwrap_or(if secure { 443 } else { 80 }),
            path_and_query: path_and_query.to_owned(),
        })
    }

    pub(super) fn authority(&self) -> String {
        match (self.secure, self.port) {
            (true, 443) | (false, 80) => self.host.clone(),
            (_, port) => format!("{}:{port}", self.host),
        }
    }

    /// The whole address.
    pub(super) fn url(&self) -> String {
        let scheme = if self.secure { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority(), self.path_and_query)
    }

    /// Where a `Location` of this target leads.
    pub(super) fn join(&self, location: &str) -> Result<Self, String> {
        let scheme = if self.secure { "https" } else { "http" };
        if location.contains("://") {
            return Self::parse(location);
        }
        if let Some(rest) = location.strip_prefix("//") {
            return Self::parse(&format!("{scheme}://{rest}"));
        }
        let base = format!("{scheme}://{}", self.authority());
        if location.starts_with('/') {
            return Self::parse(&format!("{base}{location}"));
        }
        let path = self.path_and_query.split('?').next().unwrap_or("/");
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        match location.starts_with('?') {
            true => Self::parse(&format!("{base}{path}{location}")),
            false => Self::parse(&format!("{base}{folder}/{location}")),
        }
    }

    /// Whether something is known of its host.
    pub(super) fn is_among(&self, hosts: &Hosts) -> bool {
        hosts.has(&self.host, self.port)
    }

    fn is_same_origin(&self, other: &Self) -> bool {
        (self.secure, &self.host, self.port) == (other.secure, &other.host, other.port)
    }
}

/// The host of an address, in one spelling; nothing when no request could be sent there.
pub(crate) fn host_of(url: &str) -> Option<String> {
    Target::parse(url).ok().map(|target| canonical(&target.host))
}

/// The path of an address, without what is escaped in it; nothing where nobody can tell.
pub(crate) fn path_of(url: &str) -> Option<String> {
    let target = Target::parse(url).ok()?;
    let path = target.path_and_query.split('?').next()?;
    // A plus sign is one in a path, and a space in a query.
    unescape(&path.replace('+', "%2B"))
}

/// As it stands in an address.
fn bracketed(host: String) -> String {
    if host.contains(':') { format!("[{host}]") } else { host }
}

impl Request {
    pub(super) fn read(params: &Value, execution_id: &str) -> Result<Self, String> {
        let method = params.get("method").and_then(Value::as_str).unwrap_or("GET");
        let method = Method::from_bytes(method.as_bytes()).map_err(|error| error.to_string())?;
        let url = params.get("url").and_then(Value::as_str).ok_or("say a url")?;
        let target = Target::parse(url)?;
        let mut headers = HeaderMap::new();
        headers.insert(USER_AGENT, HeaderValue::from_static("semel"));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let body = match params.get("body") {
            None | Some(Value::Null) => Bytes::new(),
            Some(Value::String(text)) => Bytes::from(text.clone()),
            Some(document) => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                Bytes::from(document.to_string())
            }
        };
        for (name, value) in params.get("headers").and_then(Value::as_object).into_iter().flatten()
        {
            let header = HeaderName::from_bytes(name.as_bytes());
            let header = header.map_err(|_| format!("{name:?} is not a header"))?;
            if OURS.contains(&header) || header == KEY {
                return Err(format!("the header {header} must not be set"));
            }
            let value = value.as_str().unwrap_or_default();
            let value = HeaderValue::from_str(value);
            headers.insert(&header, value.map_err(|_| format!("{header} has a wrong value"))?);
        }
        let key = HeaderValue::from_str(execution_id).map_err(|error| error.to_string())?;
        headers.insert(KEY, key);
        Ok(Self { method, target, headers, body })
    }

    /// The request that a redirect asks for; `None` when the answer is to be taken as it is.
    pub(super) fn redirected(
        &self,
        status: u16,
        location: Option<&str>,
    ) -> Option<Result<Self, String>> {
        let location = location.filter(|_| matches!(status, 301 | 302 | 303 | 307 | 308))?;
        let target = match self.target.join(location) {
            Ok(target) => target,
            Err(text) => return Some(Err(text)),
        };
        if self.target.secure && !target.secure {
            return Some(Err("a redirect leads from https to http".to_owned()));
        }
        let mut next = self.clone();
        if !next.target.is_same_origin(&target) {
            let headers = next.headers.into_iter().filter_map(|(name, value)| {
                let name = name.filter(|name| HARMLESS.contains(name) || name == KEY)?;
                Some((name, value))
            });
            next.headers = headers.collect();
        }
        next.target = target;
        let keeps =
            matches!(status, 307 | 308) || [Method::GET, Method::HEAD].contains(&self.method);
        if !keeps {
            next.method = Method::GET;
            next.body = Bytes::new();
            next.headers.remove(CONTENT_TYPE);
        }
        Some(Ok(next))
    }
}
