//! The world that steps act on: a small HTTP server that remembers every request and answers as the
//! test says.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{oneshot, watch};

use crate::process::PATIENCE;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) key: Option<String>,
}

/// What is answered.
pub(crate) enum Reply {
    /// This status.
    Status(u16),
    /// 200 with this body.
    Body(Vec<u8>),
    /// What comes by this way, when it comes; nothing when it never does.
    Later(oneshot::Receiver<u16>),
}

#[derive(Default)]
struct State {
    seen: Vec<Seen>,
    answered: Vec<String>,
    left: Vec<String>,
    replies: HashMap<String, VecDeque<Reply>>,
}

struct Shared {
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

/// The server.
pub(crate) struct World {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

impl World {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared { state: Mutex::default(), changed: watch::channel(()).0 });
        let serving = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&serving)));
            }
        });
        Self { address, shared }
    }

    /// A step that asks it for something.
    pub(crate) fn step(&self, id: &str, method: &str) -> Value {
        let url = format!("http://{}/{id}", self.address);
        json!({
            "id": id, "gear": "http", "action": "request",
            "params": {"method": method, "url": url},
        })
    }

    /// How the next request there is answered; as usual without it.
    pub(crate) fn will(&self, step: &str, reply: Reply) {
        let path = format!("/{step}");
        self.shared.lock().replies.entry(path).or_default().push_back(reply);
    }

    /// The next request there is answered with a status when the test says so.
    pub(crate) fn hold(&self, step: &str) -> oneshot::Sender<u16> {
        let (release, released) = oneshot::channel();
        self.will(step, Reply::Later(released));
        release
    }

    /// Requests of this step, by their keys.
    pub(crate) fn keys(&self, step: &str) -> Vec<Option<String>> {
        let path = format!("/{step}");
        let state = self.shared.lock();
        state.seen.iter().filter(|seen| seen.path == path).map(|seen| seen.key.clone()).collect()
    }

    pub(crate) fn count(&self, step: &str) -> usize {
        self.keys(step).len()
    }

    /// All requests, by their paths.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.shared.lock().seen.iter().map(|seen| seen.path.clone()).collect()
    }

    /// Waits until so many requests of this step have come.
    pub(crate) async fn arrived(&self, step: &str, count: usize) {
        self.until(&format!("{count} requests of {step}"), || self.count(step) >= count).await;
    }

    /// Waits until so many requests of this step were answered.
    pub(crate) async fn answered(&self, step: &str, count: usize) {
        let path = format!("/{step}");
        let of_step = || self.shared.lock().answered.iter().filter(|of| **of == path).count();
        self.until(&format!("{count} answers to {step}"), || of_step() >= count).await;
    }

    /// Waits until whoever asked for this step has hung up without an answer, and not for long:
    /// before anybody would have lost patience with a gear that does not stop.
    pub(crate) async fn left(&self, step: &str) {
        let path = format!("/{step}");
        let is = || self.shared.lock().left.contains(&path);
        let what = format!("the end of {step}");
        let leaving = self.until(&what, is);
        let left = tokio::time::timeout(Duration::from_secs(8), leaving).await;
        assert!(left.is_ok(), "{step} goes on");
    }

    async fn until(&self, what: &str, is: impl Fn() -> bool) {
        let mut changes = self.shared.changed.subscribe();
        let waiting = changes.wait_for(|()| is());
        let waited = tokio::time::timeout(PATIENCE, waiting).await;
        assert!(waited.is_ok(), "{what} never came, but {:?}", self.paths());
    }

    /// Lets this much time pass: for what has no event.
    pub(crate) async fn pass(&self, time: Duration) {
        let mut changes = self.shared.changed.subscribe();
        let _ = tokio::time::timeout(time, changes.wait_for(|()| false)).await;
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One that was held back by somebody who has gone before any request came is not held back.
fn next_reply(replies: &mut VecDeque<Reply>) -> Option<Reply> {
    loop {
        let mut released = match replies.pop_front()? {
            Reply::Later(released) => released,
            reply @ (Reply::Status(_) | Reply::Body(_)) => return Some(reply),
        };
        match released.try_recv() {
            Ok(status) => return Some(Reply::Status(status)),
            Err(TryRecvError::Empty) => return Some(Reply::Later(released)),
            Err(TryRecvError::Closed) => {}
        }
    }
}

async fn serve(mut stream: TcpStream, shared: Arc<Shared>) -> Option<()> {
    let mut text = Vec::new();
    let end = loop {
        if let Some(end) = text.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(&mut text).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&text[..end]).into_owned();
    let field = |name: &str| {
        let fields = head.lines().filter_map(|line| line.split_once(':'));
        let mut of_name = fields.filter(|(field, _)| field.eq_ignore_ascii_case(name));
        of_name.next().map(|(_, value)| value.trim().to_owned())
    };
    let path = head.split(' ').nth(1)?.to_owned();
    let reply = {
        let mut state = shared.lock();
        state.seen.push(Seen { path: path.clone(), key: field("idempotency-key") });
        state.replies.get_mut(&path).and_then(next_reply)
    };
    shared.changed.send_replace(());
    let mut body = json!({"did": path}).to_string().into_bytes();
    let status = match reply {
        None => 200,
        Some(Reply::Body(whole)) => {
            body = whole;
            200
        }
        Some(Reply::Status(status)) => status,
        Some(Reply::Later(released)) => {
            let mut more = [0; 16];
            tokio::select! {
                status = released => status.ok()?,
                0 = hung_up(&mut stream, &mut more) => {
                    shared.lock().left.push(path);
                    shared.changed.send_replace(());
                    return None;
                }
            }
        }
    };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status} so\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.ok()?;
    stream.write_all(&body).await.ok()?;
    shared.lock().answered.push(path);
    shared.changed.send_replace(());
    stream.shutdown().await.ok()
}

/// 0 when the other side is gone; a body that follows its head is not looked at.
async fn hung_up(stream: &mut TcpStream, more: &mut [u8]) -> usize {
    while stream.read(more).await.is_ok_and(|read| read > 0) {}
    0
}
