//! The HTTP API through a real socket, as one suite on both stores.

mod asked;
mod deletion;
mod hostile;
mod joining;
mod policies;

use semel_broker::store::Store;
use semel_core::clock::UnixMs;
use semel_core::hex::Hex;
use semel_crypto::keys::KeyPair;
use semel_crypto::request::{RequestClaim, sign};
use semel_testkit::conformance::{Case, conforms};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{ADMIN_TOKEN, Served, serve};
use crate::support::{self, NOW, keys};

#[rustfmt::skip]
const CASES: &[Case<Served>] = &[
    Case { name: "an operator makes a mesh", run: |s| Box::pin(asked::meshes(s)) },
    Case { name: "members see and change what is theirs", run: |s| Box::pin(asked::members(s)) },
    Case { name: "who ends is closed at once", run: |s| Box::pin(asked::ended(s)) },
    Case { name: "the last owner stays", run: |s| Box::pin(asked::last_owner(s)) },
    Case { name: "topics and queues have any name", run: |s| Box::pin(asked::names(s)) },
    Case { name: "lists go on where they ended", run: |s| Box::pin(asked::paging(s)) },
    Case { name: "history shows what the member may see", run: |s| Box::pin(asked::history(s)) },
    Case { name: "an invite lets in, once per use", run: |s| Box::pin(joining::invites(s)) },
    Case { name: "an invite ends", run: |s| Box::pin(joining::ended(s)) },
    Case { name: "a key joins once", run: |s| Box::pin(joining::keys_once(s)) },
    Case { name: "a name is one active member's", run: |s| Box::pin(joining::names_once(s)) },
    Case { name: "who made it may delete it", run: |s| Box::pin(deletion::whose(s)) },
    Case { name: "what was sent outlives its topic", run: |s| Box::pin(deletion::topics(s)) },
    Case { name: "work is not lost with its queue", run: |s| Box::pin(deletion::queues(s)) },
    Case { name: "a member makes so many", run: |s| Box::pin(deletion::so_many(s)) },
    Case { name: "two racers, one use", run: |s| Box::pin(joining::racers(s)) },
    Case { name: "what is signed is what is served", run: |s| Box::pin(hostile::signatures(s)) },
    Case { name: "a nonce counts once", run: |s| Box::pin(hostile::nonces(s)) },
    Case { name: "wrong paths, methods and sizes", run: |s| Box::pin(hostile::shapes(s)) },
    Case { name: "slow bodies take nobody's place", run: |s| Box::pin(hostile::slow_bodies(s)) },
    Case { name: "nothing makes it fail", run: |s| Box::pin(hostile::malformed(s)) },
    Case { name: "a longer retention keeps what it finds", run: |s| Box::pin(policies::raise(s)) },
    Case { name: "a shorter one breaks no promise", run: |s| Box::pin(policies::lower(s)) },
    Case { name: "a connection keeps its rules", run: |s| Box::pin(policies::connections(s)) },
    Case { name: "a renewed store is another one", run: |s| Box::pin(policies::renewed(s)) },
];

#[tokio::test(flavor = "multi_thread")]
async fn http_on_sqlite() {
    let open = || async { serve(support::sqlite().await).await };
    assert_eq!(conforms(CASES, open).await, CASES.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn http_on_postgres() {
    let open = || async { serve(support::postgres().await).await };
    assert_eq!(conforms(CASES, open).await, CASES.len());
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Value,
}

impl Response {
    pub(crate) fn code(&self) -> (u16, &str) {
        (self.status, self.body["code"].as_str().unwrap_or_default())
    }

    fn items(&self) -> &[Value] {
        assert_eq!(self.status, 200, "{self:?}");
        self.body["items"].as_array().unwrap()
    }
}

/// A request before it is sent, so that a test can spoil it.
#[derive(Clone)]
pub(crate) struct Asking {
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Asking {
    pub(crate) fn new(method: &str, target: &str, body: &str) -> Self {
        let (method, target) = (method.to_owned(), target.to_owned());
        Self { method, target, headers: Vec::new(), body: body.as_bytes().to_vec() }
    }

    fn header(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    fn admin(self) -> Self {
        self.header("Authorization", format!("Bearer {ADMIN_TOKEN}"))
    }

    pub(crate) fn signed(self, pair: &KeyPair) -> Self {
        self.signed_as(pair, "test", NOW, Hex(*uuid::Uuid::new_v4().as_bytes()))
    }

    fn signed_as(self, pair: &KeyPair, mesh: &str, time: UnixMs, nonce: Hex<16>) -> Self {
        let claim = RequestClaim {
            method: &self.method,
            path_and_query: &self.target,
            body: &self.body,
            time,
            nonce,
            mesh,
        };
        let signature = sign(pair, &claim);
        self.header("Semel-Key", pair.public())
            .header("Semel-Time", time.0)
            .header("Semel-Nonce", nonce)
            .header("Semel-Signature", signature)
    }

    pub(crate) async fn send(&self, served: &Served) -> Response {
        let Self { method, target, headers, body } = self;
        let mut text = format!("{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
        exchange(served, &[text.as_bytes(), body].concat()).await
    }
}

/// Sends bytes as they are and reads to the end.
async fn exchange(served: &Served, bytes: &[u8]) -> Response {
    let mut socket = TcpStream::connect(served.address).await.unwrap();
    // The broker may answer and close before it has read everything.
    let _ = socket.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let body = serde_json::from_str(body).unwrap_or(Value::Null);
    Response { status, head: head.to_ascii_lowercase(), body }
}

/// A member of the fixture asks, by number.
pub(crate) async fn ask(
    served: &Served,
    member: usize,
    method: &str,
    target: &str,
    body: &str,
) -> Response {
    Asking::new(method, target, body).signed(&keys(member)).send(served).await
}

fn store(served: &Served) -> &Store {
    &served.fixture.store
}
