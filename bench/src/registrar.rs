//! Registrations per second (the ledger's first line, both consumptions, the registration), on
//! SQLite and on PostgreSQL, beside single rows on the same disk and the same server, each
//! committed alone: on SQLite by one loop, as there is one writer, on PostgreSQL by as many
//! connections as there are registrations in flight.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use semel_core::clock::{Clock, SystemClock, UnixMs};
use semel_core::hex::Hex;
use semel_crypto::keys::KeyPair;
use semel_registrar::decide::{Gate, Outcome};
use semel_registrar::envelope::Envelope;
use semel_registrar::grant::{Grant, Nonce};
use semel_registrar::key::LogicalRequestKey;
use semel_registrar::registrar::{Asked, Registrar};
use semel_registrar::store::{PostgresStore, SqliteStore, Store, postgres, sqlite};
use semel_store::postgres::{Postgres, PostgresOptions};
use semel_store::sqlite::{Sqlite, SqliteOptions};
use tokio_postgres::NoTls;

use crate::report::{Bar, Rounds, publish};
use crate::{facts, plan};

/// Grants that are signed before a round begins: more than it can use.
const GRANTS: usize = 20_000;
pub(crate) const DOMAIN: &str = "bench";

/// The bar is measured against rows that are committed one by one, on both stores.
/// What one commit for many rows gives is shown beside it, without a target.
const BARE_SQLITE: [(&str, u64); 3] = [
    ("bare SQLite loop, 1 insert per commit", 1),
    ("bare SQLite loop, 64 inserts per commit", 64),
    ("bare SQLite loop, 256 inserts per commit", 256),
];
const BARE_POSTGRES: [(&str, usize); 2] = [
    ("bare PostgreSQL, 1 insert per commit, 1 at once", 1),
    ("bare PostgreSQL, 1 insert per commit, 64 at once", 64),
];
const SQLITE: [(&str, usize); 3] = [
    ("registrations on SQLite, 1 in flight", 1),
    ("registrations on SQLite, 64 in flight", 64),
    ("registrations on SQLite, 256 in flight", 256),
];
const POSTGRES: [(&str, usize); 3] = [
    ("registrations on PostgreSQL, 1 in flight", 1),
    ("registrations on PostgreSQL, 64 in flight", 64),
    ("registrations on PostgreSQL, 256 in flight", 256),
];

const BARS: &[Bar] = &[
    Bar::at_least(SQLITE[1].0, 0.5, BARE_SQLITE[0].0),
    Bar::at_least(POSTGRES[1].0, 0.5, BARE_POSTGRES[1].0),
];

/// Runs everything, interleaved.
pub(crate) fn run() -> Result<()> {
    let folder = tempfile::tempdir_in(plan::target())?;
    let server = std::env::var("SEMEL_TEST_POSTGRES")
        .context("SEMEL_TEST_POSTGRES is not set: run `cargo xtask bench`")?;
    let machine = facts::machine(folder.path())?;
    let mut rounds = Rounds::default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    for round in 0..plan::rounds() {
        let path = |name: &str| folder.path().join(format!("{name}-{round}.db"));
        for (name, inserts) in BARE_SQLITE {
            rounds.add(name, crate::store::bare(&path(&format!("bare-{inserts}")), inserts)?);
        }
        for (name, connections) in BARE_POSTGRES {
            rounds.add(name, runtime.block_on(bare_postgres(&server, connections))?);
        }
        for (name, callers) in SQLITE {
            let store = on_sqlite(&path(&format!("registrar-{callers}")))?;
            rounds.add(name, runtime.block_on(registrations(store, callers))?);
        }
        for (name, callers) in POSTGRES {
            let rate = async {
                let address = crate::broker::fresh(&server).await?;
                registrations(on_postgres(&address).await?, callers).await
            };
            rounds.add(name, runtime.block_on(rate)?);
        }
    }
    publish("registrar", &machine, &rounds, BARS)
}

pub(crate) fn on_sqlite(path: &Path) -> Result<Store> {
    let on_uncertain = Arc::new(|error: &semel_store::StoreError| ended(error));
    let options = SqliteOptions::new(path, 1, vec![sqlite::MIGRATIONS], 0, on_uncertain);
    Ok(Store::Sqlite(SqliteStore::new(Arc::new(Sqlite::open(&options)?))))
}

#[expect(clippy::panic, reason = "a benchmark on a disk that fails has no result")]
fn ended(error: &semel_store::StoreError) {
    panic!("{error}");
}

/// On a database that has nothing yet.
pub(crate) async fn on_postgres(address: &str) -> Result<Store> {
    let options = PostgresOptions::new(address.to_owned());
    let postgres = Postgres::open(options, &[postgres::MIGRATIONS], 0).await?;
    Ok(Store::Postgres(PostgresStore::new(postgres)))
}

/// A request that nobody has made before, and its grant.
pub(crate) fn asked(number: usize, authority: &KeyPair, now: UnixMs) -> Asked {
    let envelope = Envelope {
        protocol_version: 1,
        domain: DOMAIN.to_owned(),
        operation: "deploy".to_owned(),
        canonical_target: format!("prod/web/{number:019}"),
        artifact_hash: Hex([0x5a; 32]),
        owner_binding: "team".to_owned(),
        run_id: "r1".to_owned(),
        issued_at: now,
        ttl_s: 3600,
    };
    let nonce = Nonce(Hex((number as u128 + 1).to_le_bytes()));
    let key = LogicalRequestKey::of(&envelope);
    let grant = Grant::issue(authority, DOMAIN, nonce, key, (UnixMs(0), UnixMs(i64::MAX)));
    Asked { envelope, grant, attempt_id: "a".to_owned() }
}

async fn registrations(store: Store, callers: usize) -> Result<f64> {
    let clock = Arc::new(SystemClock::new());
    let now = clock.wall();
    let nonces = Arc::new(|| [0xff; 16]);
    let authority = Some(KeyPair::from_secret(&[1; 32]));
    let registrar = Arc::new(Registrar::start(store, clock, nonces, authority).await?);
    registrar.gate_set(DOMAIN, Gate::Open).await?;
    let signer = KeyPair::from_secret(&[1; 32]);
    // The domain trusts the authority once it has issued something.
    registrar.grant_issue(&asked(GRANTS, &signer, now).envelope, (None, None)).await?;
    let asked: Arc<Vec<Asked>> = Arc::new((0..GRANTS).map(|n| asked(n, &signer, now)).collect());
    let next = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..callers {
        let (registrar, asked, next) =
            (Arc::clone(&registrar), Arc::clone(&asked), Arc::clone(&next));
        tasks.spawn(async move { caller(&registrar, &asked, &next, start).await });
    }
    let mut done = 0;
    while let Some(count) = tasks.join_next().await {
        done += count??;
    }
    Ok(per_second(done, start))
}

async fn caller(
    registrar: &Registrar,
    asked: &[Asked],
    next: &AtomicUsize,
    start: Instant,
) -> Result<u64> {
    let mut done = 0;
    while start.elapsed() < plan::round() {
        let Some(asked) = asked.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
        let answer = registrar.register(asked.clone()).await??;
        if answer.outcome != Outcome::Registered {
            bail!("{answer:?}");
        }
        done += 1;
    }
    Ok(done)
}

/// One row of the size of ours, each committed alone, so many connections at once.
async fn bare_postgres(server: &str, connections: usize) -> Result<f64> {
    let address = crate::broker::fresh(server).await?;
    let (client, connection) = tokio_postgres::connect(&address, NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute("CREATE TABLE item (id BYTEA PRIMARY KEY, body BYTEA NOT NULL)").await?;
    let next = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..connections {
        let (address, next) = (address.clone(), Arc::clone(&next));
        tasks.spawn(async move {
            let (client, connection) = tokio_postgres::connect(&address, NoTls).await?;
            tokio::spawn(connection);
            let insert = client.prepare("INSERT INTO item (id, body) VALUES ($1, $2)").await?;
            let (body, mut done) = (vec![0x5a_u8; 400], 0);
            while start.elapsed() < plan::round() {
                let mut id = [0x5a; 32];
                id[..8].copy_from_slice(&next.fetch_add(1, Ordering::Relaxed).to_be_bytes());
                client.execute(&insert, &[&id.as_slice(), &body]).await?;
                done += 1;
            }
            Ok::<u64, anyhow::Error>(done)
        });
    }
    let mut done = 0;
    while let Some(count) = tasks.join_next().await {
        done += count??;
    }
    Ok(per_second(done, start))
}

#[expect(clippy::cast_precision_loss, reason = "a rate needs no 53 bits")]
fn per_second(n: u64, start: Instant) -> f64 {
    n as f64 / start.elapsed().as_secs_f64()
}
