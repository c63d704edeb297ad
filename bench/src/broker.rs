//! Accepts per second, and what each took: through the broker's pipeline (B0, limiter, five
//! effects, one commit), on SQLite and on PostgreSQL, beside bare loops on the same disk and the
//! same server.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use semel_broker::accept::{AcceptItem, Session, Verdict};
use semel_broker::hub::Hub;
use semel_broker::life::StoreLife;
use semel_broker::limiter::Limiter;
use semel_broker::pipeline::{Answer, Pipeline};
use semel_broker::store::{
    Greeted, Mesh, NewMember, NewSession, PostgresStore, Pulse, Role, SqliteStore, Store,
};
use semel_core::clock::{Clock, Reading, SystemClock, UnixMs};
use semel_core::envelope::{Destination, DestinationKind, Envelope};
use semel_core::fingerprint::Fingerprint;
use semel_core::hex::Hex;
use semel_core::id::{ClientMessageId, MemberId, UuidId};
use semel_core::mint::IdMint;
use semel_store::postgres::PostgresOptions;
use tokio_postgres::NoTls;
use uuid::Uuid;

use crate::report::{Bar, Measured, Rounds, publish};
use crate::{facts, plan};

const SUBSCRIBERS: usize = 100;

const BARE_SQLITE: &str = "bare SQLite loop, 64 inserts per commit";
const BARE_POSTGRES_1: &str = "bare PostgreSQL, one row per commit, 1 at once";
const BARE_POSTGRES_64: &str = "bare PostgreSQL, one row per commit, 64 at once";
const BARE_POSTGRES_256: &str = "bare PostgreSQL, one row per commit, 256 at once";
const FAN_OUT_POSTGRES: &str = "deliveries of a topic with 100 subscribers, PostgreSQL";
const BARE_POSTGRES: &str = "bare PostgreSQL, dedupe + message per commit, 64 at once";
const SQLITE_1: &str = "accepts on SQLite, 1 in flight";
const SQLITE_64: &str = "accepts on SQLite, 64 in flight";
const SQLITE_256: &str = "accepts on SQLite, 256 in flight";
const POSTGRES_1: &str = "accepts on PostgreSQL, 1 in flight";
const POSTGRES_64: &str = "accepts on PostgreSQL, 64 in flight";
const POSTGRES_256: &str = "accepts on PostgreSQL, 256 in flight";
const RETRIES: &str = "retries of a known id on SQLite, 64 in flight";
const FAN_OUT: &str = "deliveries of a topic with 100 subscribers, SQLite";
const WANTED_FAN_OUT: &str = "20,000 deliveries a second";

const BARS: &[Bar] = &[
    Bar::at_least(SQLITE_64, 0.3, BARE_SQLITE),
    Bar::at_least(POSTGRES_64, 2.0, BARE_POSTGRES),
    Bar::at_least(RETRIES, 3.0, SQLITE_64),
    Bar::at_least(FAN_OUT, 1.0, WANTED_FAN_OUT),
];

/// What a round sends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// New messages to one member.
    Direct,
    /// The same few messages again.
    Retries,
    /// New messages to a topic.
    Topic,
}

/// Runs everything, interleaved.
pub(crate) fn run() -> Result<()> {
    let folder = tempfile::tempdir_in(plan::target())?;
    let server = std::env::var("SEMEL_TEST_POSTGRES")
        .context("SEMEL_TEST_POSTGRES is not set: run `cargo xtask bench`")?;
    let machine = facts::machine(folder.path())?;
    let mut rounds = Rounds::default();
    rounds.wanted(WANTED_FAN_OUT, 20_000.0);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    for round in 0..plan::rounds() {
        let path = |name: &str| folder.path().join(format!("{name}-{round}.db"));
        let both = runtime.block_on(bare_postgres(&server, 64, Bare::DedupeAndMessage))?;
        rounds.measured(BARE_POSTGRES, both);
        for (name, callers) in
            [(BARE_POSTGRES_1, 1), (BARE_POSTGRES_64, 64), (BARE_POSTGRES_256, 256)]
        {
            let rate = runtime.block_on(bare_postgres(&server, callers, Bare::OneRow))?;
            rounds.measured(name, rate);
        }
        for (name, callers) in [(SQLITE_1, 1), (SQLITE_64, 64), (SQLITE_256, 256)] {
            if callers == 64 {
                // Right before what is compared with it.
                rounds.add(BARE_SQLITE, crate::store::bare(&path("bare"), 64)?);
            }
            let path = path(&format!("accepts-{callers}"));
            let rate = async { accepts(sqlite(&path).await?, callers, Load::Direct).await };
            rounds.measured(name, runtime.block_on(rate)?);
        }
        for (name, callers) in [(POSTGRES_1, 1), (POSTGRES_64, 64), (POSTGRES_256, 256)] {
            let rate = async { accepts(postgres(&server).await?, callers, Load::Direct).await };
            rounds.measured(name, runtime.block_on(rate)?);
        }
        let retries = async { accepts(sqlite(&path("retries")).await?, 64, Load::Retries).await };
        rounds.measured(RETRIES, runtime.block_on(retries)?);
        let topic = async { accepts(sqlite(&path("topic")).await?, 64, Load::Topic).await };
        rounds.measured(FAN_OUT, deliveries(runtime.block_on(topic)?));
        let topic = async { accepts(postgres(&server).await?, 64, Load::Topic).await };
        rounds.measured(FAN_OUT_POSTGRES, deliveries(runtime.block_on(topic)?));
    }
    publish("broker", &machine, &rounds, BARS)
}

/// Each send is a delivery to every subscriber.
fn deliveries(sends: Measured) -> Measured {
    Measured { per_second: sends.per_second * 100.0, ..sends }
}

pub(crate) async fn sqlite(path: &Path) -> Result<Store> {
    let on_uncertain = Arc::new(|error: &semel_store::StoreError| ended(error));
    let store = SqliteStore::open(path, "bench".to_owned(), UnixMs(0), on_uncertain).await?;
    Ok(Store::Sqlite(Arc::new(store)))
}

#[expect(clippy::panic, reason = "a benchmark on a disk that fails has no result")]
fn ended(error: &semel_store::StoreError) {
    panic!("{error}");
}

/// A database of its own on the test server.
pub(crate) async fn fresh(server: &str) -> Result<String> {
    let (client, connection) = tokio_postgres::connect(server, NoTls).await?;
    tokio::spawn(connection);
    let name = format!("bench_{}", Uuid::new_v4().simple());
    client.batch_execute(&format!("CREATE DATABASE {name}")).await?;
    let (address, _) = server.rsplit_once('/').context("an address names a database")?;
    Ok(format!("{address}/{name}"))
}

async fn postgres(server: &str) -> Result<Store> {
    postgres_at(&fresh(server).await?).await
}

/// On a database that has nothing yet.
pub(crate) async fn postgres_at(address: &str) -> Result<Store> {
    let options = PostgresOptions::new(address.to_owned());
    Ok(Store::Postgres(PostgresStore::open(options, "bench", UnixMs(0)).await?))
}

/// What a caller of the pipeline needs.
pub(crate) struct Sender {
    pub(crate) store: Store,
    pipeline: Pipeline,
    pub(crate) mesh: Arc<Mesh>,
    /// Of what is sent to one member.
    pub(crate) recipient: MemberId,
    session: Session,
    to: Destination,
    pub(crate) mint: Arc<IdMint>,
    pub(crate) clock: Arc<dyn Clock>,
    next: AtomicU64,
    load: Load,
}

async fn accepts(store: Store, callers: usize, load: Load) -> Result<Measured> {
    let bench = Arc::new(prepare(store, load).await?);
    if load == Load::Retries {
        for n in 0..64 {
            bench.send(n).await?;
        }
    }
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..callers {
        let bench = Arc::clone(&bench);
        tasks.spawn(async move {
            let mut latencies = Vec::new();
            while start.elapsed() < plan::round() {
                let sent_at = Instant::now();
                bench.send(bench.next.fetch_add(1, Ordering::Relaxed)).await?;
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

pub(crate) async fn prepare(store: Store, load: Load) -> Result<Sender> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let entropy = || Uuid::new_v4().as_u128();
    let mint = Arc::new(IdMint::new(Arc::clone(&clock), Box::new(entropy)));
    let now = clock.wall();
    let member = |n: usize| NewMember {
        member_id: mint.uuid(),
        name: format!("member {n}"),
        role: Role::Member,
        key_id: format!("key {n}"),
        pubkey: format!("{n:064x}"),
    };
    let mesh_id = mint.uuid();
    let sender = member(0);
    store.mesh_create(mesh_id, "bench", &sender, now).await?;
    store.topic_create(mesh_id, "topic", None, now).await?;
    store.topic_subscribe(mesh_id, "topic", sender.member_id).await?;
    let mut recipient = sender.member_id;
    for n in 1..SUBSCRIBERS {
        let member = member(n);
        recipient = if n == 1 { member.member_id } else { recipient };
        store.member_add(mesh_id, &member, now).await?;
        store.topic_subscribe(mesh_id, "topic", member.member_id).await?;
    }
    let mut mesh = store.mesh_find("bench").await?.context("the mesh was made")?;
    // The limiter takes part and never says no.
    mesh.rate_limit = u32::MAX;
    mesh.rate_window_ms = 1000;
    let greeted = store
        .hello(&NewSession {
            mesh_id,
            pubkey: sender.pubkey.clone(),
            key_id: sender.key_id.clone(),
            instance_id: UuidId::new(Uuid::from_u128(1)),
            broker_id: UuidId::new(Uuid::from_u128(2)),
            hello_nonce: Hex([0; 16]),
            host_fingerprint: None,
            retire: Vec::new(),
            store_epoch: store.store_epoch().await?,
            now,
            pulse: Pulse {
                at: Reading { wall: now, monotonic: Duration::ZERO },
                ghost_after: Duration::ZERO,
            },
            event_ids: [(); 3].map(|()| mint.uuid()),
        })
        .await?;
    let Greeted::Welcome { session, .. } = greeted else { bail!("the sender is a member") };
    let to = match load {
        Load::Topic => Destination::new(DestinationKind::Topic, "topic"),
        Load::Direct | Load::Retries => {
            Destination::new(DestinationKind::Dm, format!("{:064x}", 1))
        }
    }?;
    let limiter = Limiter::memory(Arc::clone(&clock));
    let life = StoreLife::new(store.store_epoch().await?);
    let hub = Arc::new(Hub::default());
    let pipeline = Pipeline::new(store.clone(), life, limiter, Arc::clone(&clock), hub);
    let (mesh, next) = (Arc::new(mesh), AtomicU64::new(0));
    Ok(Sender { store, pipeline, mesh, recipient, session, to, mint, clock, next, load })
}

impl Sender {
    pub(crate) async fn send(&self, n: u64) -> Result<()> {
        let n = if self.load == Load::Retries { n % 64 } else { n };
        self.send_to(&self.to, &format!("deploy-{n:019}")).await
    }

    pub(crate) async fn send_to(&self, to: &Destination, id: &str) -> Result<()> {
        let envelope = Envelope::new(to.clone(), vec![0x5a; 256])?;
        let item = AcceptItem {
            session: self.session,
            client_message_id: ClientMessageId::parse(id)?,
            fingerprint: Fingerprint::of(&envelope),
            envelope,
            body_commitment: None,
            mentions: Vec::new(),
            broker_message_id: self.mint.uuid(),
        };
        let answer = self.pipeline.submit(&self.mesh, item, self.clock.wall()).await;
        let answer = answer.await?;
        let sent =
            matches!(answer, Answer::Decided(Verdict::Accepted { .. } | Verdict::Duplicate(_)));
        if sent { Ok(()) } else { bail!("{answer:?}") }
    }
}

/// What a service writes that does it by hand.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bare {
    /// An id and a message, each send in a transaction of its own.
    DedupeAndMessage,
    /// Only a message, committed by its statement.
    OneRow,
}

/// So many connections at once.
async fn bare_postgres(server: &str, connections: usize, bare: Bare) -> Result<Measured> {
    let address = fresh(server).await?;
    let (client, connection) = tokio_postgres::connect(&address, NoTls).await?;
    tokio::spawn(connection);
    let schema = "CREATE TABLE dedupe (id TEXT PRIMARY KEY, fingerprint BYTEA NOT NULL);
                  CREATE TABLE message (id UUID PRIMARY KEY, body BYTEA NOT NULL)";
    client.batch_execute(schema).await?;
    let mut clients = Vec::new();
    for _ in 0..connections {
        let (client, connection) = tokio_postgres::connect(&address, NoTls).await?;
        tokio::spawn(connection);
        clients.push(client);
    }
    let next = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for client in clients {
        let next = Arc::clone(&next);
        tasks.spawn(async move { bare_connection(&client, &next, start, bare).await });
    }
    let mut latencies = Vec::new();
    while let Some(done) = tasks.join_next().await {
        latencies.extend(done??);
    }
    Ok(Measured::since(start, latencies))
}

async fn bare_connection(
    client: &tokio_postgres::Client,
    next: &AtomicU64,
    start: Instant,
    bare: Bare,
) -> Result<Vec<u32>> {
    let claim = "INSERT INTO dedupe (id, fingerprint) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    let claim = client.prepare(claim).await?;
    let message = client.prepare("INSERT INTO message (id, body) VALUES ($1, $2)").await?;
    let (print, body, mut latencies) = ([0x5a_u8; 32], vec![0x5a_u8; 256], Vec::new());
    while start.elapsed() < plan::round() {
        let n = next.fetch_add(1, Ordering::Relaxed);
        let (id, name) = (Uuid::now_v7(), format!("deploy-{n:019}"));
        let sent_at = Instant::now();
        if bare == Bare::OneRow {
            client.execute(&message, &[&id, &body]).await?;
        } else {
            client.batch_execute("BEGIN").await?;
            client.execute(&claim, &[&name, &print.as_slice()]).await?;
            client.execute(&message, &[&id, &body]).await?;
            client.batch_execute("COMMIT").await?;
        }
        latencies.push(micros(sent_at));
    }
    Ok(latencies)
}

fn micros(since: Instant) -> u32 {
    u32::try_from(since.elapsed().as_micros()).unwrap_or(u32::MAX)
}
