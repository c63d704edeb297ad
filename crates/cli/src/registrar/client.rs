//! One question over HTTP, one answer. Every wait and every size has a limit.

use std::fmt;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use semel_core::code::{Code, Retry};
use serde_json::Value;

use crate::exit::{Exit, Failure};

/// Bytes of an answer that are read.
const ANSWER_BYTES_MAX: u64 = 4 << 20;
/// How long a connection may take, and each part of an answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Where to ask.
pub(super) struct Server {
    place: Place,
    headers: Vec<(&'static str, String)>,
}

enum Place {
    /// `HOST:PORT` of a broker.
    Broker(String),
    /// The socket of the daemon on this machine.
    Socket(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broker(host) => f.write_str(host),
            Self::Socket(path) => path.display().fmt(f),
        }
    }
}

/// What came back.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) text: String,
    pub(super) body: Value,
}

impl Server {
    pub(super) fn new(url: &str, token: Option<String>) -> Result<Self, Failure> {
        let host = url.strip_prefix("http://").map(|host| host.trim_end_matches('/'));
        let plain = host.filter(|host| !host.is_empty() && !host.contains(['/', '\r', '\n']));
        let host = plain.ok_or_else(|| {
            Failure::new(Exit::Usage, "error: --broker is http://HOST:PORT, without TLS")
        })?;
        let mut server = Self { place: Place::Broker(host.to_owned()), headers: Vec::new() };
        if let Some(token) = token {
            server.header("Authorization", format!("Bearer {token}"))?;
        }
        Ok(server)
    }

    /// The daemon on this machine.
    pub(super) fn socket(path: PathBuf) -> Self {
        Self { place: Place::Socket(path), headers: Vec::new() }
    }

    /// Adds a header to every question.
    pub(super) fn header(&mut self, name: &'static str, value: String) -> Result<(), Failure> {
        if value.chars().any(char::is_control) {
            let text = format!("error: {name} cannot contain control characters");
            return Err(Failure::new(Exit::Usage, text));
        }
        self.headers.push((name, value));
        Ok(())
    }

    /// Asks. A refusal is a failure with the exit code that its error code has.
    pub(super) fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer, Failure> {
        let answer = self.exchange(method, path, body)?;
        match (answer.status, &self.place) {
            (..400, _) => Ok(answer),
            // Only `semel up` has a registrar; the daemon of a mesh elsewhere does not.
            (404, Place::Socket(_)) if super::text(&answer.body, "code") == "not_found" => {
                let text = "error: nothing is there: no such key or grant, or this daemon has no \
                            registrar\nto ask a broker's: --broker http://HOST:PORT";
                Err(Failure::new(Exit::NotFound, text))
            }
            (_, _) => Err(refused(&answer)),
        }
    }

    fn exchange(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Answer, Failure> {
        let unavailable = |what: String| {
            Failure::new(Exit::Unavailable, format!("error: {}: {what}", self.place))
        };
        let io = |error: std::io::Error| unavailable(error.to_string());
        let body = body.map(Value::to_string).unwrap_or_default();
        let host = match &self.place {
            Place::Broker(host) => host,
            Place::Socket(_) => "localhost",
        };
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n");
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        let length = body.len();
        text.push_str(&format!("Connection: close\r\nContent-Length: {length}\r\n\r\n{body}"));
        let answer = match &self.place {
            Place::Broker(host) => {
                let mut addresses = host.to_socket_addrs().map_err(io)?;
                let none = || unavailable("no such host".to_owned());
                let address = addresses.next().ok_or_else(none)?;
                let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).map_err(io)?;
                stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(io)?;
                stream.set_write_timeout(Some(ANSWER_TIMEOUT)).map_err(io)?;
                say(stream, &text)
            }
            Place::Socket(path) => {
                let stream = UnixStream::connect(path).map_err(|error| no_daemon(path, &error))?;
                stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(io)?;
                stream.set_write_timeout(Some(ANSWER_TIMEOUT)).map_err(io)?;
                say(stream, &text)
            }
        };
        let answer = answer.map_err(io)?;
        let broken = || unavailable("the answer is not one of HTTP".to_owned());
        let (head, text) = answer.split_once("\r\n\r\n").ok_or_else(broken)?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let body = serde_json::from_str(text).unwrap_or_default();
        Ok(Answer { status: status.ok_or_else(broken)?, text: text.to_owned(), body })
    }
}

/// Writes, and reads up to the end.
fn say(mut stream: impl Read + Write, text: &str) -> std::io::Result<String> {
    stream.write_all(text.as_bytes())?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    Ok(answer)
}

fn no_daemon(socket: &Path, error: &std::io::Error) -> Failure {
    let text = format!(
        "error: no daemon answers at {}: {error}\nnothing was done; to start one: semel up; to ask \
         a broker: --broker http://HOST:PORT",
        socket.display()
    );
    Failure::new(Exit::Unavailable, text)
}

/// What a refusal means for a script.
fn refused(answer: &Answer) -> Failure {
    let code = super::text(&answer.body, "code");
    let exit = match (answer.status, Code::parse(code).map(Code::retry)) {
        (404, _) => Exit::NotFound,
        (_, Some(Retry::SameId)) => Exit::Unavailable,
        (409, _) => Exit::Conflict,
        (400 | 413, _) => Exit::Usage,
        (_, _) => Exit::Failed,
    };
    let detail = super::text(&answer.body, "detail");
    let text = format!("error: {code}: {detail}\nto learn more: semel explain {code}");
    Failure::new(exit, text)
}
