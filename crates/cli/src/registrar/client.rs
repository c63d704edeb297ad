//! One question over HTTP, one answer. Every wait and every size has a limit.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use semel_core::code::{Code, Retry};
use semel_wire::place::{BrokerPlace, Plain, in_plain_text, may_be_plain};
use serde_json::Value;

use crate::daemon::tls::{self, Trust};
use crate::exit::{Exit, Failure, Form};
use crate::progress;

/// Bytes of an answer that are read.
const ANSWER_BYTES_MAX: u64 = 4 << 20;
/// How long a connection may take, and each part of an answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Addresses of one host that are tried.
const ADDRESSES_MAX: usize = 8;

/// Where to ask.
pub(super) struct Server {
    place: Place,
    headers: Vec<(&'static str, String)>,
}

enum Place {
    Broker(Broker),
    /// The socket of the daemon on this machine.
    Socket(PathBuf),
}

/// A broker, and how to speak with it.
struct Broker {
    place: BrokerPlace,
    /// `None` is plain text, which only this machine may hear.
    tls: Option<Arc<ClientConfig>>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broker(broker) => broker.place.fmt(f),
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
    /// A broker, which shows a certificate of somebody who is trusted, or is on this machine.
    pub(super) fn new(url: &str, trust: &Trust, token: Option<String>) -> Result<Self, Failure> {
        let broker = Broker::parse(url, trust)?;
        let mut server = Self { place: Place::Broker(broker), headers: Vec::new() };
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
        let shown = progress::show(format!("waiting for {}", self.place));
        let answer = self.exchange(method, path, body)?;
        drop(shown);
        match (answer.status, &self.place) {
            (..400, _) => Ok(answer),
            // Only `semel up` has a registrar; the daemon of a mesh elsewhere does not.
            (404, Place::Socket(_)) if super::text(&answer.body, "code") == "not_found" => {
                let text = "error: not found: there is no such key or grant, or this daemon has no \
                            registrar\n\
                            to call a broker's registrar: --broker https://HOST:PORT";
                Err(Failure::new(Exit::NotFound, text))
            }
            (_, _) => Err(refused(method, &answer)),
        }
    }

    fn exchange(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Answer, Failure> {
        let unavailable = |what: String| {
            Failure::new(Exit::Unavailable, format!("error: {}: {what}", self.place))
        };
        let io = |error: std::io::Error| unavailable(error.to_string());
        // From the moment at which it is said.
        let unanswered = |what: String| match method {
            "GET" => unavailable(what),
            _ => {
                let text = format!(
                    "error: {}: {what}\nit is unknown whether it was done: check, or repeat it",
                    self.place
                );
                Failure::new(Exit::Unknown, text)
            }
        };
        let body = body.map(Value::to_string).unwrap_or_default();
        let host = match &self.place {
            Place::Broker(broker) => broker.place.authority(),
            Place::Socket(_) => "localhost".to_owned(),
        };
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n");
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        let length = body.len();
        text.push_str(&format!("Connection: close\r\nContent-Length: {length}\r\n\r\n{body}"));
        let answer = match &self.place {
            Place::Broker(broker) => broker.reach()?.say(&text),
            Place::Socket(path) => {
                let stream = UnixStream::connect(path).map_err(|error| no_daemon(path, &error))?;
                stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(io)?;
                stream.set_write_timeout(Some(ANSWER_TIMEOUT)).map_err(io)?;
                say(stream, &text)
            }
        };
        let answer = answer.map_err(|error| unanswered(error.to_string()))?;
        let broken = || unanswered("the answer is not HTTP".to_owned());
        let (head, text) = answer.split_once("\r\n\r\n").ok_or_else(broken)?;
        if length_of(head).is_some_and(|length| length != text.len()) {
            return Err(unanswered("the answer ended too early".to_owned()));
        }
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let body = serde_json::from_str(text).unwrap_or_default();
        Ok(Answer { status: status.ok_or_else(broken)?, text: text.to_owned(), body })
    }
}

/// A connection to a broker that is who it should be.
enum Reached {
    Plain(TcpStream),
    Secure(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Reached {
    fn say(self, text: &str) -> std::io::Result<String> {
        match self {
            Self::Plain(stream) => say(stream, text),
            Self::Secure(stream) => say(*stream, text),
        }
    }
}

impl Broker {
    fn parse(url: &str, trust: &Trust) -> Result<Self, Failure> {
        let place = BrokerPlace::parse_http(url).map_err(|_| {
            let text = "error: --broker must be https://HOST:PORT, or http://HOST:PORT on this \
                        machine";
            Failure::new(Exit::Usage, text)
        })?;
        let tls = trust.open(&place, None)?;
        Ok(Self { place, tls })
    }

    /// A connection for one exchange, on which nothing has been said.
    fn reach(&self) -> Result<Reached, Failure> {
        let away = |error: std::io::Error| self.unavailable(&error.to_string());
        let mut stream = self.connect()?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(away)?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT)).map_err(away)?;
        let Some(config) = &self.tls else { return Ok(Reached::Plain(stream)) };
        let name = ServerName::try_from(self.place.host().to_owned())
            .map_err(|error| self.unavailable(&error.to_string()))?;
        let mut connection = ClientConnection::new(Arc::clone(config), name)
            .map_err(|error| self.unavailable(&error.to_string()))?;
        while connection.is_handshaking() {
            connection.complete_io(&mut stream).map_err(away)?;
        }
        Ok(Reached::Secure(Box::new(StreamOwned::new(connection, stream))))
    }

    /// The first of the host's addresses that answers. Nothing is said to one that others could
    /// listen to in plain text.
    fn connect(&self) -> Result<TcpStream, Failure> {
        let addresses = (self.place.host(), self.place.port()).to_socket_addrs();
        let addresses = addresses.map_err(|error| self.unavailable(&error.to_string()))?;
        let mut last = self.unavailable("no such host");
        for address in addresses.take(ADDRESSES_MAX) {
            if self.tls.is_none() && !may_be_plain(address.ip(), Plain::LoopbackOnly) {
                return Err(tls::in_plain_text(&in_plain_text(address), Form::Text));
            }
            match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = self.unavailable(&error.to_string()),
            }
        }
        Err(last)
    }

    fn unavailable(&self, what: &str) -> Failure {
        Failure::new(Exit::Unavailable, format!("error: {}: {what}", self.place))
    }
}

/// Writes, and reads up to the end. A server may close without the last words of TLS: whether the
/// answer is whole is told by its length.
fn say(mut stream: impl Read + Write, text: &str) -> std::io::Result<String> {
    stream.write_all(text.as_bytes())?;
    stream.flush()?;
    let mut answer = Vec::new();
    match stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer) {
        Err(error) if error.kind() != ErrorKind::UnexpectedEof => return Err(error),
        Ok(_) | Err(_) => {}
    }
    String::from_utf8(answer).map_err(|error| std::io::Error::new(ErrorKind::InvalidData, error))
}

/// How long a body says that it is.
fn length_of(head: &str) -> Option<usize> {
    head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    })
}

fn no_daemon(socket: &Path, error: &std::io::Error) -> Failure {
    let text = format!(
        "error: no daemon answers at {}: {error}\n\
         nothing was done; to start one: semel up; to call a broker: --broker https://HOST:PORT",
        socket.display()
    );
    Failure::new(Exit::Unavailable, text)
}

/// What a refusal means for a script.
fn refused(method: &str, answer: &Answer) -> Failure {
    let code = super::text(&answer.body, "code");
    let exit = match (answer.status, Code::parse(code)) {
        (_, Some(Code::OutcomeUnknown | Code::UncertainCommit)) => Exit::Unknown,
        // Of somebody between, who may have passed it on.
        (500.., None) if method != "GET" => Exit::Unknown,
        (404, _) => Exit::NotFound,
        (_, Some(code)) if code.retry() == Retry::SameId => Exit::Unavailable,
        (409, _) => Exit::Conflict,
        (400 | 413, _) => Exit::Usage,
        (_, _) => Exit::Failed,
    };
    let detail = super::text(&answer.body, "detail");
    let text = format!("error: {code}: {detail}\nto learn more: semel explain {code}");
    Failure::new(exit, text)
}
