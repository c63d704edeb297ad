//! A broker on a port of its own, with a mesh of a thousand subscribers and two members more.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use semel_broker::connection::Broker;
use semel_broker::hints::Hints;
use semel_broker::hub::Hub;
use semel_broker::life::StoreLife;
use semel_broker::limiter::Limiter;
use semel_broker::limits::Timings;
use semel_broker::pipeline::Pipeline;
use semel_broker::roster::Rosters;
use semel_broker::server;
use semel_broker::store::{NewMember, Role, Store};
use semel_core::clock::{Clock, SystemClock};
use semel_core::id::UuidId;
use semel_core::mint::IdMint;
use semel_crypto::keys::KeyPair;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use uuid::Uuid;

pub(crate) const MESH: &str = "bench";
pub(super) const TOPIC: &str = "topic";

/// Members: the subscribers, then who sends to them, somebody else, and whom that one writes to.
pub(super) const SUBSCRIBERS: usize = 1000;
pub(super) const SENDER: usize = SUBSCRIBERS;
pub(super) const OTHER: usize = SUBSCRIBERS + 1;
pub(super) const RECIPIENT: usize = SUBSCRIBERS + 2;
const MEMBERS: usize = SUBSCRIBERS + 3;

/// A broker that serves until it is dropped.
pub(super) struct Served {
    pub(super) address: SocketAddr,
    pub(super) runtime: Runtime,
}

impl Served {
    pub(super) fn start(store: impl AsyncFnOnce() -> Result<Store>) -> Result<Self> {
        let runtime = Builder::new_multi_thread().thread_name("broker").enable_all().build()?;
        let address = runtime.block_on(async { serve(store().await?).await })?;
        Ok(Self { address, runtime })
    }
}

pub(crate) fn keys(number: usize) -> KeyPair {
    let mut secret = [7; 32];
    secret[..8].copy_from_slice(&number.to_le_bytes());
    KeyPair::from_secret(&secret)
}

async fn serve(store: Store) -> Result<SocketAddr> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let entropy = || Uuid::new_v4().as_u128();
    let mint = Arc::new(IdMint::new(Arc::clone(&clock), Box::new(entropy)));
    populate(&store, &mint, &clock).await?;
    let hub = Arc::new(Hub::default());
    let limiter = Limiter::memory(Arc::clone(&clock));
    let life = StoreLife::new(store.store_epoch().await?);
    let broker_id = UuidId::new(Uuid::new_v4());
    let mut hints = None;
    if let Some((hinter, service)) = Hints::over(&store, broker_id, Arc::clone(&hub))? {
        drop(tokio::spawn(service.run()));
        hints = Some(hinter);
    }
    let pipeline = Pipeline::with_hints(
        store.clone(),
        life.clone(),
        limiter,
        Arc::clone(&clock),
        Arc::clone(&hub),
        hints.clone(),
    );
    let broker = Broker {
        hints,
        rosters: Rosters::default(),
        life,
        timings: Timings::default(),
        broker_id,
        store,
        pipeline,
        hub,
        clock,
        mint,
        nonces: Arc::new(nonce),
        admin_token: None,
    };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let forever = std::future::pending();
    let options = server::Options::default();
    drop(tokio::spawn(server::serve_with(options, Arc::new(broker), listener, forever)));
    Ok(address)
}

fn nonce() -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(Uuid::new_v4().as_bytes());
    bytes
}

async fn populate(store: &Store, mint: &IdMint, clock: &Arc<dyn Clock>) -> Result<()> {
    let now = clock.wall();
    let member = |number: usize| NewMember {
        member_id: mint.uuid(),
        name: format!("member {number}"),
        role: Role::Member,
        key_id: format!("key-{number}"),
        pubkey: keys(number).public().to_hex().to_string(),
    };
    let mesh_id = mint.uuid();
    store.mesh_create(mesh_id, MESH, &member(MEMBERS), now).await?;
    store.topic_create(mesh_id, TOPIC, None, now).await?;
    for number in 0..MEMBERS {
        let member = member(number);
        store.member_add(mesh_id, &member, now).await?;
        if number <= SENDER {
            store.topic_subscribe(mesh_id, TOPIC, member.member_id).await?;
        }
    }
    store.mesh_find(MESH).await?.context("the mesh was made").map(drop)
}
