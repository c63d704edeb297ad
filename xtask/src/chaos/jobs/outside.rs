//! The world that jobs act on: an HTTP server that deduplicates nothing and remembers every
//! request, how long it took and whether whoever sent it was still there to hear the answer.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::super::now;
use super::load::REPEATABLE;
use crate::random::Random;

/// How long most requests take, and one in so many.
const TAKES_MS: (u64, u64) = (0, 60);
const SLOW: Duration = Duration::from_secs(4);
const SLOW_ONE_IN: usize = 20;
/// What may be repeated takes longer than a lease, one time in so many: whoever comes too early for
/// the second attempt meets the first.
const VERY_SLOW: Duration = Duration::from_secs(40);
const VERY_SLOW_ONE_IN: usize = 4;
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEAD_END: &[u8] = b"\r\n\r\n";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\
                        Connection: close\r\n\r\n{}";

/// A request.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// What the job is called, by its path.
    pub(crate) name: String,
    /// The execution's id.
    pub(crate) key: String,
    pub(crate) arrived: Instant,
    /// When whoever sent it was last seen to wait for its answer.
    pub(crate) waited_until: Instant,
}

/// A running server; it lives as long as the runtime.
pub(crate) struct Outside {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Outside {
    pub(crate) async fn start(random: Random) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no free port")?;
        let address = listener.local_addr()?;
        let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
        let (heard, random) = (Arc::clone(&requests), Arc::new(Mutex::new(random)));
        drop(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                drop(tokio::spawn(serve(stream, Arc::clone(&heard), Arc::clone(&random))));
            }
        }));
        Ok(Self { address, requests })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        lock(&self.requests).clone()
    }
}

async fn serve(
    mut stream: TcpStream,
    requests: Arc<Mutex<Vec<Request>>>,
    random: Arc<Mutex<Random>>,
) -> Option<()> {
    let (name, key) = head(&mut stream).await?;
    let (arrived, is_repeatable) = (now(), name.ends_with(REPEATABLE));
    let place = {
        let mut requests = lock(&requests);
        requests.push(Request { name, key, arrived, waited_until: arrived });
        requests.len() - 1
    };
    let takes = {
        let mut random = lock(&random);
        match (random.below(SLOW_ONE_IN), random.below(VERY_SLOW_ONE_IN)) {
            (_, 0) if is_repeatable => VERY_SLOW,
            (0, _) => SLOW,
            _ => random.millis(TAKES_MS.0, TAKES_MS.1),
        }
    };
    // Nothing more comes: the end of the reading is the end of the waiting.
    let mut rest = [0; 64];
    let gone = async { while let Ok(1..) = stream.read(&mut rest).await {} };
    let stays = tokio::time::timeout(takes, gone).await.is_err();
    lock(&requests).get_mut(place)?.waited_until = now();
    if stays {
        stream.write_all(ANSWER).await.ok()?;
    }
    Some(())
}

/// The name in the path and the key of a request; nothing if it is none.
async fn head(stream: &mut TcpStream) -> Option<(String, String)> {
    let mut bytes = Vec::new();
    while !bytes.windows(HEAD_END.len()).any(|window| window == HEAD_END) {
        let mut piece = [0; 4096];
        let count = stream.read(&mut piece).await.ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&piece[..count]);
        if bytes.len() > HEAD_BYTES_MAX {
            return None;
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    let name = text.split(' ').nth(1)?.trim_start_matches('/').to_owned();
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    let mut keys = fields.filter(|(field, _)| field.eq_ignore_ascii_case("idempotency-key"));
    let key = keys.next().map(|(_, key)| key.trim().to_owned()).unwrap_or_default();
    Some((name, key))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
