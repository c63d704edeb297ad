//! Sends over a socket, and the least that can answer them: what a socket and a group commit can
//! do at all.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use semel_store::sqlite::{Sqlite, SqliteOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::host::ended;
use crate::plan;
use crate::report::Measured;
use crate::store::{INSERT, ITEMS, row};

/// The practical ceiling: a request over a socket, one insert, answered after the commit.
pub(crate) async fn ceiling(folder: &Path, callers: usize) -> Result<Measured> {
    let options = SqliteOptions::new(folder.join("bare.db"), 1, vec![ITEMS], 0, Arc::new(ended));
    let sqlite = Arc::new(Sqlite::open(&options)?);
    let socket = folder.join("sock");
    let listener = UnixListener::bind(&socket)?;
    let next = Arc::new(AtomicU64::new(0));
    let serving = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (sqlite, next) = (Arc::clone(&sqlite), Arc::clone(&next));
            let answer = move |request: Request<Incoming>| {
                let (sqlite, next) = (Arc::clone(&sqlite), Arc::clone(&next));
                async move {
                    let _ = request.into_body().collect().await;
                    let row = row(next.fetch_add(1, Ordering::Relaxed));
                    let write = sqlite.write(move |tx| {
                        let (id, client_id, print, payload, due_at) = &row;
                        let by = rusqlite::params![id, client_id, print, payload, due_at];
                        Ok(tx.prepare_cached(INSERT)?.execute(by)?)
                    });
                    let status = if write.await.is_ok() { 202 } else { 500 };
                    Response::builder().status(status).body(Full::new(Bytes::from_static(b"{}")))
                }
            };
            tokio::spawn(async move {
                let connection = hyper::server::conn::http1::Builder::new();
                drop(connection.serve_connection(TokioIo::new(stream), service_fn(answer)).await);
            });
        }
    });
    let measured = load(&socket, callers, &"0".repeat(64)).await;
    serving.abort();
    measured
}

/// When a load is over.
#[derive(Clone, Copy)]
pub(crate) enum End {
    /// After one round.
    Round,
    /// After so many sends.
    Sends(usize),
}

/// So many connections, one request at a time on each, for a while.
pub(crate) async fn load(socket: &Path, callers: usize, to: &str) -> Result<Measured> {
    load_after(socket, callers, to, 0, End::Round).await
}

/// The same, where so many were sent before.
pub(crate) async fn load_after(
    socket: &Path,
    callers: usize,
    to: &str,
    sent: usize,
    end: End,
) -> Result<Measured> {
    let start = Instant::now();
    // Ids rise, as those of the bare loop do.
    let next = Arc::new(AtomicUsize::new(sent));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..callers {
        let (socket, to, next) = (socket.to_owned(), to.to_owned(), Arc::clone(&next));
        tasks.spawn(async move {
            let mut stream = UnixStream::connect(&socket).await?;
            let mut latencies = Vec::new();
            let mut answer = Vec::with_capacity(1024);
            loop {
                let sent_at = Instant::now();
                let number = next.fetch_add(1, Ordering::Relaxed);
                let is_over = match end {
                    End::Round => start.elapsed() >= plan::round(),
                    End::Sends(count) => number >= sent + count,
                };
                if is_over {
                    return anyhow::Ok(latencies);
                }
                post(&mut stream, &format!("deploy-{number:019}"), &to, &mut answer).await?;
                latencies.push(micros(sent_at));
            }
        });
    }
    let mut latencies = Vec::new();
    while let Some(done) = tasks.join_next().await {
        latencies.extend(done??);
    }
    Ok(Measured::since(start, latencies))
}

/// One send over a connection that stays.
pub(crate) async fn post(
    stream: &mut UnixStream,
    key: &str,
    to: &str,
    answer: &mut Vec<u8>,
) -> Result<()> {
    let body = format!(r#"{{"to":"{to}","message":"{}"}}"#, "x".repeat(200));
    let request = format!(
        "POST /v1/send HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: {key}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    answer.clear();
    loop {
        if stream.read_buf(answer).await? == 0 {
            bail!("the connection was closed");
        }
        let text = String::from_utf8_lossy(answer);
        let Some((head, rest)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
        });
        let length: usize = length.context("a length")?;
        if rest.len() >= length {
            if !head.starts_with("HTTP/1.1 202") {
                bail!("{text}");
            }
            return Ok(());
        }
    }
}
pub(crate) fn micros(since: Instant) -> u32 {
    u32::try_from(since.elapsed().as_micros()).unwrap_or(u32::MAX)
}
