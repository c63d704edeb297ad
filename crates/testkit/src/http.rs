//! A client that speaks plain HTTP, and so can also speak it wrongly.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// How long an answer may take: more than it ever should.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A request as bytes; the connection ends after it.
pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut out = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        out.push_str("Host: localhost\r\n");
    }
    for (name, value) in headers {
        out.push_str(&format!("{name}: {value}\r\n"));
    }
    if method == "POST" || !body.is_empty() {
        out.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    let mut out = format!("{out}\r\n").into_bytes();
    out.extend_from_slice(body);
    out
}

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    /// Its status.
    pub status: u16,
    /// Its headers but the date, in lower case.
    pub headers: Vec<(String, String)>,
    /// What it says.
    pub body: Vec<u8>,
}

impl Said {
    /// Its document.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// The first header of that name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(given, _)| given == name);
        found.next().map(|(_, value)| value.as_str())
    }

    /// Its status and code, for refusals.
    #[track_caller]
    pub fn problem(&self) -> (u16, String) {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let document = self.json();
        assert_eq!(document["status"], self.status);
        let code = document["code"].as_str().expect("HTTP").to_owned();
        assert_eq!(document["type"], format!("urn:semel:error:{code}"));
        assert!(!document["title"].as_str().expect("HTTP").is_empty());
        (self.status, code)
    }
}

/// Says something and reads the whole answer, up to the end of the connection.
pub async fn say<S>(mut stream: S, request: &[u8]) -> Said
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // It may be answered before everything is written.
    let _ = stream.write_all(request).await;
    let mut answer = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("it is answered");
    assert!(read.is_ok() || !answer.is_empty(), "{read:?}");
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no head: {}", String::from_utf8_lossy(&answer)));
    let (status, headers) = head(&String::from_utf8_lossy(&answer[..end]));
    Said { status, headers, body: answer[end + 4..].to_vec() }
}

fn head(text: &str) -> (u16, Vec<(String, String)>) {
    let mut lines = text.split("\r\n");
    let status =
        lines.next().expect("HTTP").split(' ').nth(1).expect("HTTP").parse().expect("HTTP");
    let header = |line: &str| {
        let (name, value) = line.split_once(':').expect("HTTP");
        (name.to_lowercase(), value.trim().to_owned())
    };
    // Two answers are equal whenever they came.
    (status, lines.map(header).filter(|(name, _)| name != "date").collect())
}
