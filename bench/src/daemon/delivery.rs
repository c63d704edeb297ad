//! What is accepted at one daemon's door, and its way to the commit of another's inbox.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use semel_daemon::engine::Engine;
use semel_daemon::store::inbox::Filter;
use tokio::net::UnixStream;

use super::host::{Host, host, pair, pubkey};
use super::load::{End, load, load_after, micros, post};
use crate::report::Measured;

/// Messages before those that are measured one at a time.
const BEFORE_IDLE: usize = 200;
/// Nobody listens there.
const NOWHERE: &str = "ws://127.0.0.1:9/v1/mesh";
/// Connections that share a load which is less than the most.
const PACED_CONNECTIONS: usize = 32;
const PAGE: i64 = 500;

/// What a load has shown, and how often the outbox was synced for each accept.
pub(crate) struct Accepted {
    pub(crate) measured: Measured,
    pub(crate) commits_per_accept: f64,
}

impl Accepted {
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no 53 bits")]
    fn of(measured: Measured, host: &Host, commits_before: u64) -> Self {
        let commits = host.engine.outbox.commits() - commits_before;
        let accepts = measured.latencies.len().max(1);
        Self { measured, commits_per_accept: commits as f64 / accepts as f64 }
    }
}

/// Only accepted, as the broker is away.
pub(crate) async fn away(folder: &Path, callers: usize) -> Result<Accepted> {
    let host = host(folder, 1, NOWHERE).await?;
    let before = host.engine.outbox.commits();
    let measured = load(&host.socket, callers, &pubkey(2)).await?;
    let accepted = Accepted::of(measured, &host, before);
    host.stop().await;
    Ok(accepted)
}

/// Accepts beside few rows that wait, and beside many.
pub(crate) async fn beside(folder: &Path, few: usize, many: usize) -> Result<(Measured, Measured)> {
    let host = host(folder, 1, NOWHERE).await?;
    let (mut kept, mut shown) = (0, Vec::new());
    for rows in [few, many] {
        let missing = End::Sends(rows.saturating_sub(kept));
        load_after(&host.socket, 256, &pubkey(2), kept, missing).await?;
        let kept_now = kept.max(rows);
        let measured = load_after(&host.socket, 64, &pubkey(2), kept_now, End::Round).await?;
        kept = kept_now + measured.latencies.len() + 64;
        shown.push(measured);
    }
    host.stop().await;
    let many = shown.pop().context("two loads")?;
    Ok((shown.pop().context("two loads")?, many))
}

/// Sends for a while, and the time until the last of them is in the other inbox.
pub(crate) async fn through(folder: &Path, callers: usize) -> Result<Accepted> {
    let (one, two, serving) = pair(folder).await?;
    let before = one.engine.outbox.commits();
    let start = Instant::now();
    let sent = load(&one.socket, callers, &pubkey(2)).await?;
    let mut changes = two.engine.inbox.changes();
    while count(&two.engine) < sent.latencies.len() as u64 {
        changes.changed().await?;
    }
    let accepted = Accepted::of(Measured::since(start, sent.latencies), &one, before);
    one.stop().await;
    two.stop().await;
    serving.abort();
    Ok(accepted)
}

/// Messages in the inbox, on disk.
fn count(engine: &Engine) -> u64 {
    engine.inbox.received().iter().map(|(_, received)| received).sum()
}

/// So many messages, each after the last one is in the other inbox, once both daemons and the
/// broker have been at work for a while.
pub(crate) async fn idle(folder: &Path, messages: usize) -> Result<Measured> {
    let (one, two, serving) = pair(folder).await?;
    let mut stream = UnixStream::connect(&one.socket).await?;
    let (mut answer, mut latencies) = (Vec::new(), Vec::new());
    let mut changes = two.engine.inbox.changes();
    let mut start = Instant::now();
    for number in 0..BEFORE_IDLE + messages {
        if number == BEFORE_IDLE {
            latencies.clear();
            start = Instant::now();
        }
        let sent_at = Instant::now();
        post(&mut stream, &format!("idle-{number}"), &pubkey(2), &mut answer).await?;
        while count(&two.engine) <= number as u64 {
            changes.changed().await?;
        }
        latencies.push(micros(sent_at));
    }
    let measured = Measured::since(start, latencies);
    let newest = two.engine.inbox.newest().await?;
    if usize::try_from(newest)? != BEFORE_IDLE + messages {
        bail!("{newest} messages arrived");
    }
    one.stop().await;
    two.stop().await;
    serving.abort();
    Ok(measured)
}

/// So many messages, one at each tick, whatever became of the earlier ones. Each is measured from
/// its tick, so that a stall counts for everything that it held up.
pub(crate) async fn paced(folder: &Path, tick: Duration, messages: usize) -> Result<Measured> {
    let (one, two, serving) = pair(folder).await?;
    let next = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let due = move |number: usize| start + tick * u32::try_from(number).unwrap_or(u32::MAX);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..PACED_CONNECTIONS.min(messages) {
        let (socket, next) = (one.socket.clone(), Arc::clone(&next));
        tasks.spawn(async move {
            let mut stream = UnixStream::connect(&socket).await?;
            let mut answer = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= messages {
                    return anyhow::Ok(());
                }
                tokio::time::sleep_until(due(number).into()).await;
                post(&mut stream, &format!("paced-{number}"), &pubkey(2), &mut answer).await?;
            }
        });
    }
    let latencies = arrivals(&two.engine, messages, due).await?;
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let measured = Measured::since(start, latencies);
    one.stop().await;
    two.stop().await;
    serving.abort();
    Ok(measured)
}

/// What each took from its tick until it could be read from the inbox.
async fn arrivals(
    engine: &Engine,
    messages: usize,
    due: impl Fn(usize) -> Instant,
) -> Result<Vec<u32>> {
    let mut changes = engine.inbox.changes();
    let (mut after, mut latencies) = (0, Vec::new());
    while latencies.len() < messages {
        let page = engine.inbox.list(Filter { after, ..Filter::default() }, PAGE).await?;
        if page.is_empty() {
            changes.changed().await?;
            continue;
        }
        for message in page {
            after = message.id;
            let id = message.arrived.client_message_id.to_string();
            let number = id.strip_prefix("paced-").context("one of ours")?.parse()?;
            latencies.push(micros(due(number)));
        }
    }
    Ok(latencies)
}
