//! `POST /v1/send` over the daemon's socket, beside what a socket and a group commit can do at all,
//! and the way of a message from one daemon's door to another's inbox.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use semel_api::access::Tokens;
use semel_api::door::{Listener, bind_socket, serve};
use semel_api::{Api, ApiOptions};
use semel_broker::connection::Broker;
use semel_broker::hub::Hub;
use semel_broker::life::StoreLife;
use semel_broker::limiter::Limiter;
use semel_broker::limits::Timings;
use semel_broker::pipeline::Pipeline;
use semel_broker::roster::Rosters;
use semel_broker::store::{NewMember, Role, SqliteStore, Store};
use semel_core::clock::{Clock, SystemClock};
use semel_core::id::{MeshId, UuidId};
use semel_core::mint::IdMint;
use semel_crypto::keys::KeyPair;
use semel_daemon::engine::{Engine, EngineOptions};
use semel_daemon::http::{Member, part};
use semel_daemon::link::{LinkOptions, LinkState};
use semel_daemon::store::inbox::Filter;
use semel_store::sqlite::{Sqlite, SqliteOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use uuid::Uuid;

use crate::facts;
use crate::report::{Bar, Measured, Rounds, publish};
use crate::store::{INSERT, ITEMS, row};

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(1500);
const LATENCIES: usize = 200;

const CEILING_1: &str = "socket + group commit, 1 connection";
const CEILING_64: &str = "socket + group commit, 64 connections";
const CEILING_256: &str = "socket + group commit, 256 connections";
const AWAY_1: &str = "POST /v1/send, broker away, 1 connection";
const AWAY_64: &str = "POST /v1/send, broker away, 64 connections";
const AWAY_256: &str = "POST /v1/send, broker away, 256 connections";
const THROUGH_1: &str = "to a second daemon's inbox, 1 connection";
const THROUGH_64: &str = "to a second daemon's inbox, 64 connections";
const IDLE: &str = "door to the other inbox, one at a time";
const SYNCS_6: &str = "6 syncs of the disk";

const ROWS: &[&str] = &[
    CEILING_1,
    CEILING_64,
    CEILING_256,
    AWAY_1,
    AWAY_64,
    AWAY_256,
    THROUGH_1,
    THROUGH_64,
    IDLE,
    SYNCS_6,
];

const BARS: &[Bar] = &[
    Bar { ours: AWAY_64, reference: CEILING_64, target: 0.6 },
    Bar { ours: AWAY_1, reference: CEILING_1, target: 0.8 },
    Bar { ours: THROUGH_64, reference: CEILING_64, target: 0.25 },
    Bar { ours: IDLE, reference: SYNCS_6, target: 1.0 },
];

/// Runs everything, interleaved.
pub(crate) fn run() -> Result<()> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join("target");
    let folder = tempfile::tempdir_in(target)?;
    let machine = facts::machine(folder.path())?;
    let sync_us = machine.get("fdatasync_us").and_then(serde_json::Value::as_f64);
    let sync_us = sync_us.context("the disk was measured")?;
    let mut rounds = Rounds::default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    for round in 0..ROUNDS {
        let path = |name: &str| -> Result<PathBuf> {
            let path = folder.path().join(format!("{name}-{round}"));
            std::fs::create_dir_all(&path)?;
            Ok(path)
        };
        for (name, callers) in [(CEILING_1, 1), (CEILING_64, 64), (CEILING_256, 256)] {
            let folder = path(&format!("ceiling-{callers}"))?;
            rounds.measured(name, runtime.block_on(ceiling(&folder, callers))?);
        }
        for (name, callers) in [(AWAY_1, 1), (AWAY_64, 64), (AWAY_256, 256)] {
            let folder = path(&format!("away-{callers}"))?;
            rounds.measured(name, runtime.block_on(away(&folder, callers))?);
        }
        for (name, callers) in [(THROUGH_1, 1), (THROUGH_64, 64)] {
            let folder = path(&format!("through-{callers}"))?;
            rounds.measured(name, runtime.block_on(through(&folder, callers))?);
        }
        rounds.measured(IDLE, runtime.block_on(idle(&path("idle")?))?);
        rounds.add(SYNCS_6, 1e6 / (6.0 * sync_us));
    }
    publish("daemon", &machine, ROWS, &rounds, BARS)
}

#[expect(clippy::panic, reason = "a benchmark on a disk that fails has no result")]
fn ended(error: &semel_store::StoreError) {
    panic!("{error}");
}

/// The practical ceiling: a request over a socket, one insert, answered after the commit.
async fn ceiling(folder: &Path, callers: usize) -> Result<Measured> {
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

/// So many connections, one request at a time on each, for a while.
async fn load(socket: &Path, callers: usize, to: &str) -> Result<Measured> {
    let start = Instant::now();
    // Ids rise, as those of the bare loop do.
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..callers {
        let (socket, to, next) = (socket.to_owned(), to.to_owned(), Arc::clone(&next));
        tasks.spawn(async move {
            let mut stream = UnixStream::connect(&socket).await?;
            let mut latencies = Vec::new();
            let mut answer = Vec::with_capacity(1024);
            while start.elapsed() < ROUND {
                let sent_at = Instant::now();
                let key = format!("deploy-{:019}", next.fetch_add(1, Ordering::Relaxed));
                post(&mut stream, &key, &to, &mut answer).await?;
                latencies.push(micros(sent_at));
            }
            Ok::<_, anyhow::Error>(latencies)
        });
    }
    let mut latencies = Vec::new();
    while let Some(done) = tasks.join_next().await {
        latencies.extend(done??);
    }
    Ok(Measured::since(start, latencies))
}

/// One send over a connection that stays.
async fn post(stream: &mut UnixStream, key: &str, to: &str, answer: &mut Vec<u8>) -> Result<()> {
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

fn random() -> u128 {
    Uuid::new_v4().as_u128()
}

fn keys(number: u8) -> KeyPair {
    KeyPair::from_secret(&[number; 32])
}

fn pubkey(number: u8) -> String {
    keys(number).public().to_hex().to_string()
}

/// A daemon with its socket.
struct Host {
    engine: Arc<Engine>,
    socket: PathBuf,
    stop: tokio::sync::oneshot::Sender<()>,
    serving: tokio::task::JoinHandle<std::io::Result<()>>,
}

async fn host(folder: &Path, number: u8, url: &str) -> Result<Host> {
    let folder = folder.join(format!("host-{number}"));
    std::fs::create_dir_all(&folder)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let mint = Arc::new(IdMint::new(Arc::clone(&clock), Box::new(random)));
    let link = LinkOptions {
        url: url.to_owned(),
        mesh: "bench".to_owned(),
        key_id: format!("key-{number}"),
        keys: Arc::new(keys(number)),
        instance_id: UuidId::new(Uuid::from_u128(u128::from(number))),
        version: "bench".to_owned(),
        tls: None,
        require: Vec::new(),
        window: LinkOptions::WINDOW,
        max_age_hours_override: None,
        answer_timeout: LinkOptions::ANSWER_TIMEOUT,
        expire_interval: LinkOptions::EXPIRE_INTERVAL,
        random: Arc::new(random),
    };
    let day = Duration::from_secs(24 * 60 * 60);
    let options = EngineOptions { outbox_bytes_max: 5 << 30, reserved_bytes: 0, inbox_kept: day };
    let engine =
        Engine::start(&folder, options, link, mint, Arc::clone(&clock), Arc::new(ended)).await?;
    let engine = Arc::new(engine);
    let (mesh, version) = ("bench".to_owned(), "bench".to_owned());
    let member = Member { mesh, pubkey: pubkey(number), version };
    let part = part(Arc::clone(&engine), member, None, Arc::clone(&clock));
    let api = Api::new(ApiOptions::default(), Arc::new(NoToken), clock, vec![part]);
    let socket = folder.join("sock");
    let listener = Listener::Socket(bind_socket(&socket)?);
    let (stop, stopping) = tokio::sync::oneshot::channel();
    let shutdown = async move { drop(stopping.await) };
    let serving = tokio::spawn(serve(api, listener, shutdown));
    Ok(Host { engine, socket, stop, serving })
}

impl Host {
    async fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.serving.await;
        self.engine.halt().await;
    }
}

/// The socket needs none.
struct NoToken;

impl Tokens for NoToken {
    fn number_of(&self, _presented: &str) -> Option<u64> {
        None
    }
}

async fn away(folder: &Path, callers: usize) -> Result<Measured> {
    // A port on which nobody listens.
    let host = host(folder, 1, "ws://127.0.0.1:9/v1/mesh").await?;
    let measured = load(&host.socket, callers, &pubkey(2)).await;
    host.stop().await;
    measured
}

/// A broker in this process, with a mesh of two.
async fn broker(folder: &Path) -> Result<(String, tokio::task::JoinHandle<std::io::Result<()>>)> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let mint = Arc::new(IdMint::new(Arc::clone(&clock), Box::new(random)));
    let path = folder.join("broker.db");
    let (epoch, now) = ("bench".to_owned(), clock.wall());
    let store = SqliteStore::open(&path, epoch, now, Arc::new(ended)).await?;
    let store = Store::Sqlite(Arc::new(store));
    let mesh_id: MeshId = mint.uuid();
    let member = |number: u8| NewMember {
        member_id: mint.uuid(),
        name: format!("member {number}"),
        role: Role::Owner,
        key_id: format!("key-{number}"),
        pubkey: pubkey(number),
    };
    store.mesh_create(mesh_id, "bench", &member(1), now).await?;
    store.member_add(mesh_id, &member(2), now).await?;
    // The limiter takes part and never says no.
    let file = rusqlite::Connection::open(&path)?;
    file.busy_timeout(Duration::from_secs(5))?;
    file.execute("UPDATE mesh SET rate_limit = 1000000000, rate_window_ms = 1000", [])?;
    drop(file);
    let hub = Arc::new(Hub::default());
    let life = StoreLife::new(store.store_epoch().await?);
    let limiter = Limiter::memory(Arc::clone(&clock));
    let (time, to) = (Arc::clone(&clock), Arc::clone(&hub));
    let pipeline = Pipeline::new(store.clone(), life.clone(), limiter, time, to);
    let nonce = || {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&random().to_ne_bytes());
        bytes
    };
    let broker = Broker {
        broker_id: mint.uuid(),
        store,
        pipeline,
        hub,
        clock,
        mint: Arc::clone(&mint),
        nonces: Arc::new(nonce),
        hints: None,
        rosters: Rosters::default(),
        life,
        timings: Timings::default(),
        admin_token: None,
    };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("ws://{}/v1/mesh", listener.local_addr()?);
    let serving = semel_broker::server::serve(Arc::new(broker), listener, std::future::pending());
    Ok((url, tokio::spawn(serving)))
}

/// Two daemons and their broker, connected.
async fn pair(folder: &Path) -> Result<(Host, Host, tokio::task::JoinHandle<std::io::Result<()>>)> {
    let (url, serving) = broker(folder).await?;
    let (one, two) = (host(folder, 1, &url).await?, host(folder, 2, &url).await?);
    for host in [&one, &two] {
        let mut status = host.engine.link.watch();
        status.wait_for(|status| status.state == LinkState::Connected).await?;
    }
    Ok((one, two, serving))
}

/// Sends for a while, and the time until the last of them is in the other inbox.
async fn through(folder: &Path, callers: usize) -> Result<Measured> {
    let (one, two, serving) = pair(folder).await?;
    let start = Instant::now();
    let sent = load(&one.socket, callers, &pubkey(2)).await?;
    let mut changes = two.engine.inbox.changes();
    while count(&two.engine).await? < sent.latencies.len() {
        changes.changed().await?;
    }
    let measured = Measured::since(start, sent.latencies);
    one.stop().await;
    two.stop().await;
    serving.abort();
    Ok(measured)
}

async fn count(engine: &Engine) -> Result<usize> {
    // Numbers are given without gaps.
    let newest = engine.inbox.newest().await?;
    Ok(usize::try_from(newest)?)
}

/// One message at a time, from the door to the commit of the other inbox.
async fn idle(folder: &Path) -> Result<Measured> {
    let (one, two, serving) = pair(folder).await?;
    let mut stream = UnixStream::connect(&one.socket).await?;
    let (mut answer, mut latencies) = (Vec::new(), Vec::new());
    let mut changes = two.engine.inbox.changes();
    let start = Instant::now();
    for number in 0..LATENCIES {
        let sent_at = Instant::now();
        post(&mut stream, &format!("idle-{number}"), &pubkey(2), &mut answer).await?;
        while count(&two.engine).await? <= number {
            changes.changed().await?;
        }
        latencies.push(micros(sent_at));
    }
    let measured = Measured::since(start, latencies);
    let all = two.engine.inbox.list(Filter::default(), 500).await?;
    if all.len() != LATENCIES {
        bail!("{} messages arrived", all.len());
    }
    one.stop().await;
    two.stop().await;
    serving.abort();
    Ok(measured)
}

fn micros(since: Instant) -> u32 {
    u32::try_from(since.elapsed().as_micros()).unwrap_or(u32::MAX)
}
