//! The messages of PostgreSQL's protocol (version 3) as far as a proxy must know them: where one
//! ends, which of them together are one request, and what such a request asks for.

use std::collections::HashMap;
use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// `Query`: a request by itself.
const QUERY: u8 = b'Q';
/// `Sync`: the end of a request in several messages.
const SYNC: u8 = b'S';
const PARSE: u8 = b'P';
const BIND: u8 = b'B';
/// `Terminate`: the client has had enough.
const TERMINATE: u8 = b'X';
/// Of the server: it waits for the next request.
pub(super) const READY: u8 = b'Z';

/// A message is shorter: what is longer is no PostgreSQL.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Characters of a statement that tell it from others.
const TEXT_CHARS_MAX: usize = 70;

/// One message; the first one of a client has no kind.
pub(super) struct Message {
    pub(super) kind: Option<u8>,
    pub(super) bytes: Vec<u8>,
}

impl Message {
    pub(super) async fn read(from: &mut (impl AsyncRead + Unpin), typed: bool) -> io::Result<Self> {
        let head = if typed { 5 } else { 4 };
        let mut bytes = vec![0; head];
        from.read_exact(&mut bytes).await?;
        let kind = typed.then_some(bytes[0]);
        let length = bytes.last_chunk().map_or(0, |length| u32::from_be_bytes(*length));
        let end = usize::try_from(length).unwrap_or(usize::MAX).saturating_add(head - 4);
        if end < head || end > MESSAGE_BYTES_MAX {
            return Err(io::Error::other("no message is that long"));
        }
        bytes.resize(end, 0);
        from.read_exact(&mut bytes[head..]).await?;
        Ok(Self { kind, bytes })
    }

    fn body(&self) -> &[u8] {
        self.bytes.get(5..).unwrap_or_default()
    }
}

/// What a client asks for before it waits for `ReadyForQuery`: one `Query`, or everything up to a
/// `Sync`. What needs no answer of that kind (a password, a farewell) is no request.
pub(super) struct Unit {
    pub(super) bytes: Vec<u8>,
    pub(super) is_request: bool,
    /// What it is about, in a few words.
    pub(super) about: String,
}

impl Unit {
    /// Whether it ends the transaction for good.
    pub(super) fn is_commit(&self) -> bool {
        self.about == "COMMIT"
    }
}

/// The requests of one client, which tell statements by names that it has given them.
#[derive(Default)]
pub(super) struct Requests {
    statements: HashMap<Vec<u8>, String>,
}

impl Requests {
    pub(super) async fn next(&mut self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<Unit> {
        let (mut bytes, mut about) = (Vec::new(), String::new());
        loop {
            let message = Message::read(from, true).await?;
            let word = match message.kind {
                Some(QUERY) => words(message.body()),
                Some(PARSE) => self.parsed(message.body()),
                Some(BIND) => self.bound(message.body()),
                _ => String::new(),
            };
            if about.is_empty() {
                about = word;
            }
            let ends = matches!(message.kind, Some(QUERY | SYNC));
            // A password is answered by the server in its own way, before any request.
            let alone = bytes.is_empty() && matches!(message.kind, Some(TERMINATE | b'p'));
            bytes.extend_from_slice(&message.bytes);
            if ends || alone {
                return Ok(Unit { bytes, is_request: ends, about });
            }
        }
    }

    fn parsed(&mut self, body: &[u8]) -> String {
        let (name, rest) = text(body);
        let asked = words(rest);
        self.statements.insert(name.to_vec(), asked.clone());
        format!("prepare: {asked}")
    }

    fn bound(&self, body: &[u8]) -> String {
        let (_portal, rest) = text(body);
        let known = self.statements.get(text(rest).0);
        known.cloned().unwrap_or_else(|| "a statement of which nothing is known".to_owned())
    }
}

/// A string that ends with a zero, and what follows it.
fn text(bytes: &[u8]) -> (&[u8], &[u8]) {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    (&bytes[..end], bytes.get(end + 1..).unwrap_or_default())
}

fn words(bytes: &[u8]) -> String {
    let whole = String::from_utf8_lossy(text(bytes).0).into_owned();
    let words = whole.split_whitespace().collect::<Vec<_>>().join(" ");
    words.chars().take(TEXT_CHARS_MAX).collect()
}

/// A `Query` message.
pub(super) fn query(sql: &str) -> Vec<u8> {
    let length = u32::try_from(sql.len() + 5).expect("a short statement");
    [&[QUERY], length.to_be_bytes().as_slice(), sql.as_bytes(), &[0]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap();
        [&[kind], length.to_be_bytes().as_slice(), body].concat()
    }

    #[tokio::test]
    async fn messages_are_put_together_to_requests() {
        let said = [
            message(b'p', b"secret\0"),
            query("BEGIN"),
            message(PARSE, b"s1\0INSERT  INTO\n t\0\0\0"),
            message(b'D', b"Ss1\0"),
            message(SYNC, b""),
            message(BIND, b"\0s1\0\0\0\0\0\0\0"),
            message(b'E', b"\0\0\0\0\0"),
            message(SYNC, b""),
            query("COMMIT"),
            message(TERMINATE, b""),
        ];
        let all = said.concat();
        let (mut from, mut requests) = (all.as_slice(), Requests::default());
        let mut seen = Vec::new();
        let mut read = Vec::new();
        while let Ok(unit) = requests.next(&mut from).await {
            seen.push((unit.about.clone(), unit.is_request, unit.is_commit()));
            read.extend(unit.bytes);
        }
        let request = |about: &str, commits| (about.to_owned(), true, commits);
        let told = [
            (String::new(), false, false),
            request("BEGIN", false),
            request("prepare: INSERT INTO t", false),
            request("INSERT INTO t", false),
            request("COMMIT", true),
            (String::new(), false, false),
        ];
        assert_eq!(seen, told);
        assert_eq!(read, all, "not a byte is lost");
    }
}
