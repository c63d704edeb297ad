//! The burst, and who watches it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use futures_util::StreamExt;
use futures_util::stream;
use semel_wire::frame::{Ack, FromDaemon};
use tokio::task::JoinSet;

use super::daemon::{Daemon, message, to_member, to_topic};
use super::served::{OTHER, RECIPIENT, SENDER, SUBSCRIBERS, Served, TOPIC};
use crate::plan;
use crate::report::Measured;

const SENDS: usize = 1000;
/// What is not there by then does not come.
const PATIENCE: Duration = Duration::from_secs(240);
/// Between two sends of the member who measures.
const PAUSE: Duration = Duration::from_millis(2);
const CLIENT: &str = "client";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Crowd {
    /// Nobody is connected.
    Away,
    /// All subscribers are.
    Online,
}

pub(super) struct Shown {
    pub(super) others_ms: f64,
    /// For each delivery.
    pub(super) cpu_us: f64,
    pub(super) per_second: f64,
}

/// What all subscribers have got.
#[derive(Default)]
struct Got {
    deliveries: AtomicU64,
    frames: AtomicU64,
}

#[expect(clippy::cast_precision_loss, reason = "a cost needs no 53 bits")]
pub(super) fn run(served: Served, crowd: Crowd) -> Result<Shown> {
    let builder = &mut tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.thread_name(CLIENT).enable_all().build()?;
    let (shown, clients) = (runtime.block_on(watched(served.address, crowd)), runtime);
    clients.shutdown_timeout(Duration::from_secs(5));
    served.runtime.shutdown_timeout(Duration::from_secs(5));
    let (others, cpu_us, took, got) = shown?;
    let deliveries = got.deliveries.load(Ordering::Relaxed);
    println!(
        "{deliveries} deliveries in {} frames, {:.1} s, {:.1} s of the broker's CPU; others: \
         {} sends, p50 {:.1} ms, p99 {:.1} ms",
        got.frames.load(Ordering::Relaxed),
        took.as_secs_f64(),
        cpu_us as f64 / 1e6,
        others.latencies.len(),
        others.percentile_ms(50),
        others.percentile_ms(99),
    );
    Ok(Shown {
        others_ms: others.percentile_ms(99),
        cpu_us: cpu_us as f64 / deliveries.max(1) as f64,
        per_second: deliveries as f64 / took.as_secs_f64(),
    })
}

async fn watched(address: SocketAddr, crowd: Crowd) -> Result<(Measured, u64, Duration, Arc<Got>)> {
    let sends = plan::amount(SENDS).max(SENDS / 10);
    let (got, is_over) = (Arc::new(Got::default()), Arc::new(AtomicBool::new(false)));
    let mut subscribers = JoinSet::new();
    if crowd == Crowd::Online {
        let connecting = (0..SUBSCRIBERS).map(|number| Daemon::connect(address, number));
        let mut connected = stream::iter(connecting).buffer_unordered(16);
        while let Some(daemon) = connected.next().await {
            subscribers.spawn(subscribe(daemon?, sends, Arc::clone(&got)));
        }
        // Until everybody has been told who is there.
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    let sender = Daemon::connect(address, SENDER).await?;
    let other = Daemon::connect(address, OTHER).await?;
    let (start, before) = (Instant::now(), broker_cpu_us()?);
    let measuring = tokio::spawn(measure(other, Arc::clone(&is_over)));
    burst(sender, sends).await?;
    is_over.store(true, Ordering::Relaxed);
    let others = measuring.await??;
    let all = async {
        while let Some(done) = subscribers.join_next().await {
            done??;
        }
        anyhow::Ok(())
    };
    let came = tokio::time::timeout(PATIENCE, all).await;
    if let Err(why) = came.unwrap_or_else(|_| Err(anyhow!("they did not end in {PATIENCE:?}"))) {
        println!("not all deliveries came: {why:#}");
    }
    Ok((others, broker_cpu_us()? - before, start.elapsed(), got))
}

/// Sends all, reads the answers beside. Nobody may be told to come again.
async fn burst(mut sender: Daemon, sends: usize) -> Result<()> {
    for number in 0..sends {
        let frame = message(format!("burst-{number:019}"), to_topic(TOPIC)?)?;
        sender.say(FromDaemon::Send(frame).encode()).await?;
    }
    for _ in 0..sends {
        let status = sender.answer().await?;
        ensure!(status == 201, "a send of the burst was answered {status}");
    }
    Ok(())
}

/// Another member sends, one at a time, until the burst is over.
async fn measure(mut other: Daemon, is_over: Arc<AtomicBool>) -> Result<Measured> {
    let (start, mut latencies) = (Instant::now(), Vec::new());
    while !is_over.load(Ordering::Relaxed) {
        let frame = message(format!("note-{:019}", latencies.len()), to_member(RECIPIENT)?)?;
        let sent_at = Instant::now();
        let status = other.send(frame).await?;
        ensure!(status == 201, "another's send was answered {status}");
        latencies.push(u32::try_from(sent_at.elapsed().as_micros())?);
        tokio::time::sleep(PAUSE).await;
    }
    Ok(Measured::since(start, latencies))
}

/// Takes what comes, each once and in order, and acknowledges every frame.
async fn subscribe(mut daemon: Daemon, sends: usize, got: Arc<Got>) -> Result<()> {
    let (mut count, mut last) = (0, 0);
    while count < sends {
        let text = daemon.heard().await?;
        if !text.starts_with("{\"type\":\"push\"") {
            continue;
        }
        let before = count;
        for (at, prefix) in text.match_indices("{\"seq\":") {
            let rest = &text[at + prefix.len()..];
            let end = rest.find(',').context("a delivery has more fields")?;
            let seq: i64 = rest[..end].parse()?;
            if seq <= last {
                bail!("{seq} came after {last}");
            }
            (count, last) = (count + 1, seq);
        }
        got.deliveries.fetch_add((count - before) as u64, Ordering::Relaxed);
        got.frames.fetch_add(1, Ordering::Relaxed);
        daemon.say(FromDaemon::Ack(Ack { seq: last }).encode()).await?;
    }
    // Its last acknowledgement is read, too.
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(())
}

/// Of this process without the threads of the subscribers.
fn broker_cpu_us() -> Result<u64> {
    let mut all = 0;
    for task in std::fs::read_dir("/proc/self/task")? {
        let folder = task?.path();
        // It may have ended meanwhile.
        let Ok(name) = std::fs::read_to_string(folder.join("comm")) else { continue };
        let Ok(used) = std::fs::read_to_string(folder.join("schedstat")) else { continue };
        if name.trim_end() != CLIENT {
            let ns: u64 = used.split(' ').next().context("what it has used")?.parse()?;
            all += ns / 1000;
        }
    }
    Ok(all)
}
