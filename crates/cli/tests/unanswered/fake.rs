//! A server that answers what a test wants, or not at all.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

/// What is answered; nothing closes the connection.
pub(crate) type Reply = Box<dyn Fn(&Asked) -> Option<String> + Send>;

/// A request that came.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) path: String,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let found = self.headers.iter().find(|(of, _)| of.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.clone())
    }
}

/// It lives as long as the test's process.
pub(crate) struct Fake {
    address: Option<SocketAddr>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Fake {
    pub(crate) fn at_socket(
        path: &Path,
        reply: impl Fn(&Asked) -> Option<String> + Send + 'static,
    ) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                serve(stream, &reply, &seen);
            }
        });
        Self { address: None, asked }
    }

    pub(crate) fn at_port(reply: Reply) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Some(listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                serve(stream, &reply, &seen);
            }
        });
        Self { address, asked }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address.unwrap())
    }

    /// What came last.
    pub(crate) fn last(&self) -> Asked {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.last().unwrap().clone()
    }
}

/// A whole answer.
pub(crate) fn answer(status: u16, body: &Value) -> String {
    let body = body.to_string();
    let length = body.len();
    format!("HTTP/1.1 {status} So\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
}

fn serve(
    stream: impl Read + Write,
    reply: &impl Fn(&Asked) -> Option<String>,
    seen: &Mutex<Vec<Asked>>,
) {
    let mut stream = BufReader::new(stream);
    let Some(asked) = read(&mut stream) else { return };
    seen.lock().unwrap_or_else(PoisonError::into_inner).push(asked.clone());
    if let Some(answer) = reply(&asked) {
        // Whoever has asked may be gone.
        let _ = stream.get_mut().write_all(answer.as_bytes());
    }
}

fn read(stream: &mut impl BufRead) -> Option<Asked> {
    let mut line = String::new();
    stream.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.push((name.to_owned(), value.trim().to_owned()));
    }
    let mut asked = Asked { path, headers, body: String::new() };
    let length = asked.header("content-length").and_then(|length| length.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).ok()?;
    asked.body = String::from_utf8(body).ok()?;
    Some(asked)
}
