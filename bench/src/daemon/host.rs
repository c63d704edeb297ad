//! Daemons in this process, each with its socket, and the broker between them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
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
use semel_core::plausible::SweepClock;
use semel_crypto::keys::KeyPair;
use semel_daemon::dial::Dialler;
use semel_daemon::engine::{Engine, EngineOptions};
use semel_daemon::http::{Member, part};
use semel_daemon::link::{LinkOptions, LinkState};
use semel_wire::place::{BrokerPlace, Plain};
use tokio::net::TcpListener;
use uuid::Uuid;

#[expect(clippy::panic, reason = "a benchmark on a disk that fails has no result")]
pub(crate) fn ended(error: &semel_store::StoreError) {
    panic!("{error}");
}
fn random() -> u128 {
    Uuid::new_v4().as_u128()
}

fn keys(number: u8) -> KeyPair {
    KeyPair::from_secret(&[number; 32])
}

pub(crate) fn pubkey(number: u8) -> String {
    keys(number).public().to_hex().to_string()
}

/// A daemon with its socket.
pub(crate) struct Host {
    pub(crate) engine: Arc<Engine>,
    pub(crate) socket: PathBuf,
    stop: tokio::sync::oneshot::Sender<()>,
    serving: tokio::task::JoinHandle<std::io::Result<()>>,
}

pub(crate) async fn host(folder: &Path, number: u8, url: &str) -> Result<Host> {
    let folder = folder.join(format!("host-{number}"));
    std::fs::create_dir_all(&folder)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let mint = Arc::new(IdMint::new(Arc::clone(&clock), Box::new(random)));
    let place = BrokerPlace::parse(url).map_err(anyhow::Error::from)?;
    let broker = Dialler::new(place, Plain::LoopbackOnly, None);
    let link = LinkOptions {
        broker,
        mesh: "bench".to_owned(),
        key_id: format!("key-{number}"),
        keys: Arc::new(keys(number)),
        instance_id: UuidId::new(Uuid::from_u128(u128::from(number))),
        version: "bench".to_owned(),
        require: Vec::new(),
        optional: semel_daemon::config::Features::default().optional,
        window: LinkOptions::WINDOW,
        max_age_hours_override: None,
        answer_timeout: LinkOptions::ANSWER_TIMEOUT,
        expire_interval: LinkOptions::EXPIRE_INTERVAL,
        steady_after: LinkOptions::STEADY_AFTER,
        sweep_clock: SweepClock::new(),
        random: Arc::new(random),
    };
    let day = Duration::from_secs(24 * 60 * 60);
    let options = EngineOptions {
        outbox_bytes_max: 1 << 40,
        reserved_bytes: 0,
        inbox_kept: day,
        inbox_bytes_max: 1 << 40,
    };
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
    pub(crate) async fn stop(self) {
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
pub(crate) async fn pair(
    folder: &Path,
) -> Result<(Host, Host, tokio::task::JoinHandle<std::io::Result<()>>)> {
    let (url, serving) = broker(folder).await?;
    let (one, two) = (host(folder, 1, &url).await?, host(folder, 2, &url).await?);
    for host in [&one, &two] {
        let mut status = host.engine.link.watch();
        status.wait_for(|status| status.state == LinkState::Connected).await?;
    }
    Ok((one, two, serving))
}
