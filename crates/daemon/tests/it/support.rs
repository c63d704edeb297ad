//! A broker on a real port with a mesh of members, and daemons in folders of their own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use semel_broker::connection::Broker;
use semel_broker::hub::Hub;
use semel_broker::life::StoreLife;
use semel_broker::limiter::Limiter;
use semel_broker::limits::Timings;
use semel_broker::pipeline::Pipeline;
use semel_broker::roster::Rosters;
use semel_broker::server;
use semel_broker::store::{NewMember, Role, SqliteStore, Store};
use semel_core::clock::{Clock, SystemClock, UnixMs};
use semel_core::envelope::{Destination, DestinationKind, Envelope};
use semel_core::id::{BrokerId, ClientMessageId, InstanceId, MemberId, MeshId, UuidId};
use semel_core::mint::IdMint;
use semel_core::plausible::SweepClock;
use semel_crypto::keys::KeyPair;
use semel_daemon::dial::Dialler;
use semel_daemon::engine::{Engine, EngineOptions};
use semel_daemon::link::{LinkOptions, LinkState};
use semel_daemon::outbox::{NewSend, SendAnswer};
use semel_daemon::store::inbox::{Filter, Message};
use semel_daemon::store::outbox::Draft;
use semel_daemon::store::upkeep::OutboxRow;
use semel_store::OpenError;
use semel_wire::place::{BrokerPlace, Plain};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use uuid::Uuid;

/// Long enough for a loaded machine; only a failure waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const MESH: &str = "test";

/// The key pair of a member, by number.
pub(crate) fn keys(number: usize) -> KeyPair {
    KeyPair::from_secret(&[u8::try_from(number + 1).unwrap(); 32])
}

pub(crate) fn pubkey(number: usize) -> String {
    keys(number).public().to_hex().to_string()
}

fn random() -> u128 {
    Uuid::new_v4().as_u128()
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::new())
}

fn mint(clock: &Arc<dyn Clock>) -> Arc<IdMint> {
    Arc::new(IdMint::new(Arc::clone(clock), Box::new(random)))
}

/// A broker's folder and address; it can be stopped and started again at the same place.
pub(crate) struct Mesh {
    folder: tempfile::TempDir,
    pub(crate) address: SocketAddr,
    pub(crate) members: Vec<MemberId>,
    pub(crate) mesh_id: MeshId,
    running: Option<Running>,
}

struct Running {
    store: Store,
    stop: oneshot::Sender<()>,
    stopped: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Mesh {
    /// A mesh of so many members, all subscribed to `builds`, with a broker that serves it.
    pub(crate) async fn of(count: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let clock = clock();
        let mint = mint(&clock);
        let mut mesh =
            Self { folder, address, members: Vec::new(), mesh_id: mint.uuid(), running: None };
        let store = mesh.open().await;
        for number in 0..count {
            let member = NewMember {
                member_id: mint.uuid(),
                name: format!("member-{number}"),
                role: if number == 0 { Role::Owner } else { Role::Member },
                key_id: format!("key-{number}"),
                pubkey: pubkey(number),
            };
            mesh.members.push(member.member_id);
            if number == 0 {
                assert!(
                    store.mesh_create(mesh.mesh_id, MESH, &member, clock.wall()).await.unwrap()
                );
                store.topic_create(mesh.mesh_id, "builds", None, clock.wall()).await.unwrap();
            } else {
                store.member_add(mesh.mesh_id, &member, clock.wall()).await.unwrap();
            }
            store.topic_subscribe(mesh.mesh_id, "builds", member.member_id).await.unwrap();
        }
        mesh.serve(store, listener).await;
        mesh
    }

    async fn open(&self) -> Store {
        let on_uncertain = Arc::new(|error: &semel_store::StoreError| panic!("{error}"));
        let path = self.folder.path().join("broker.db");
        let epoch = "epoch-1".to_owned();
        let store = SqliteStore::open(&path, epoch, clock().wall(), on_uncertain).await.unwrap();
        Store::Sqlite(Arc::new(store))
    }

    async fn serve(&mut self, store: Store, listener: TcpListener) {
        let (clock, hub) = (clock(), Arc::new(Hub::default()));
        let limiter = Limiter::memory(Arc::clone(&clock));
        let life = StoreLife::new(store.store_epoch().await.unwrap());
        let (time, to) = (Arc::clone(&clock), Arc::clone(&hub));
        let pipeline = Pipeline::new(store.clone(), life.clone(), limiter, time, to);
        let nonce = || {
            let mut bytes = [0; 32];
            bytes[..16].copy_from_slice(&random().to_ne_bytes());
            bytes[16..].copy_from_slice(&random().to_ne_bytes());
            bytes
        };
        let broker_id: BrokerId = UuidId::new(Uuid::new_v4());
        let broker = Arc::new(Broker {
            broker_id,
            store: store.clone(),
            pipeline,
            hub,
            mint: mint(&clock),
            clock,
            nonces: Arc::new(nonce),
            hints: None,
            rosters: Rosters::default(),
            life,
            timings: Timings::default(),
            admin_token: None,
        });
        let (stop, stopping) = oneshot::channel();
        let shutdown = async move { drop(stopping.await) };
        let stopped = tokio::spawn(server::serve(broker, listener, shutdown));
        self.running = Some(Running { store, stop, stopped });
    }

    /// The broker goes away in order.
    pub(crate) async fn stop(&mut self) {
        let running = self.running.take().unwrap();
        running.stop.send(()).unwrap();
        running.stopped.await.unwrap().unwrap();
    }

    /// The broker comes back at the same address.
    pub(crate) async fn start(&mut self) {
        let store = self.open().await;
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.serve(store, listener).await;
    }

    pub(crate) fn store(&self) -> &Store {
        &self.running.as_ref().unwrap().store
    }

    /// Changes something in the broker's file while the broker is away.
    pub(crate) fn plant(&self, sql: &str) -> usize {
        assert!(self.running.is_none());
        let file = semel_testkit::sqlite::open(self.folder.path().join("broker.db")).unwrap();
        file.execute(sql, []).unwrap()
    }

    /// A copy of the broker's store as it is now.
    pub(crate) fn backup(&self) -> tempfile::TempDir {
        let copy = tempfile::tempdir().unwrap();
        let file = semel_testkit::sqlite::open(self.folder.path().join("broker.db")).unwrap();
        let target = copy.path().join("broker.db");
        file.execute("VACUUM INTO ?1", [target.to_str().unwrap()]).unwrap();
        copy
    }

    /// Puts a copy in the place of the broker's store, in another life, while the broker is away.
    pub(crate) fn restore(&self, copy: &tempfile::TempDir) {
        assert!(self.running.is_none());
        for suffix in ["", "-wal", "-shm", ".sums"] {
            let _ = std::fs::remove_file(self.folder.path().join(format!("broker.db{suffix}")));
        }
        let path = self.folder.path().join("broker.db");
        std::fs::copy(copy.path().join("broker.db"), path).unwrap();
        self.plant("DELETE FROM session");
        self.plant("DELETE FROM presence");
        let sql = "UPDATE store SET store_epoch = 'epoch-2', next_session_epoch = 1000000";
        assert_eq!(self.plant(sql), 1);
    }

    pub(crate) fn url(&self) -> String {
        format!("ws://{}/v1/mesh", self.address)
    }
}

/// A daemon in a folder of its own.
pub(crate) struct Host {
    folder: tempfile::TempDir,
    number: usize,
    url: String,
    pub(crate) clock: Shifted,
}

/// The system's clock, with a wall that can be set, and time that passes at once.
#[derive(Clone)]
pub(crate) struct Shifted {
    real: Arc<SystemClock>,
    ms: Arc<AtomicI64>,
    passed_ms: Arc<AtomicU64>,
    looks: Arc<AtomicU64>,
}

impl Shifted {
    pub(crate) fn shift(&self, by: Duration) {
        self.ms.fetch_add(i64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }

    pub(crate) fn set_back(&self, by: Duration) {
        self.ms.fetch_sub(i64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }

    /// Lets time pass, on both clocks.
    pub(crate) fn pass(&self, by: Duration) {
        self.shift(by);
        self.passed_ms.fetch_add(u64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }

    /// How often somebody has asked how much time has passed.
    pub(crate) fn looks(&self) -> u64 {
        self.looks.load(Ordering::SeqCst)
    }
}

impl Clock for Shifted {
    fn wall(&self) -> UnixMs {
        UnixMs(self.real.wall().0 + self.ms.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Duration {
        self.looks.fetch_add(1, Ordering::SeqCst);
        self.real.monotonic() + Duration::from_millis(self.passed_ms.load(Ordering::SeqCst))
    }
}

impl Host {
    pub(crate) fn new(number: usize, url: String) -> Self {
        let clock = Shifted {
            real: Arc::new(SystemClock::new()),
            ms: Arc::default(),
            passed_ms: Arc::default(),
            looks: Arc::default(),
        };
        Self { folder: tempfile::tempdir().unwrap(), number, url, clock }
    }

    /// Opens one of the databases beside the daemon, to plant something.
    pub(crate) fn plant(&self, file: &str, sql: &str) -> usize {
        let connection = semel_testkit::sqlite::open(self.file(file)).unwrap();
        connection.execute(sql, []).unwrap()
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) async fn start(&self) -> Engine {
        self.start_as(self.number as u128 + 1, |_| {}).await
    }

    /// Starts as another instance, or with other options.
    pub(crate) async fn start_as(
        &self,
        instance: u128,
        change: impl FnOnce(&mut LinkOptions),
    ) -> Engine {
        self.try_start(instance, change).await.unwrap()
    }

    /// Starts with an outbox that may have so many bytes.
    pub(crate) async fn start_small(&self, outbox_bytes_max: u64) -> Engine {
        let room = |options: &mut EngineOptions| options.outbox_bytes_max = outbox_bytes_max;
        self.start_with(self.number as u128 + 1, |_| {}, room).await.unwrap()
    }

    /// Starts with an inbox that may have so many bytes.
    pub(crate) async fn start_with_inbox(&self, inbox_bytes_max: u64) -> Engine {
        let room = |options: &mut EngineOptions| options.inbox_bytes_max = inbox_bytes_max;
        self.start_with(self.number as u128 + 1, |_| {}, room).await.unwrap()
    }

    pub(crate) async fn try_start(
        &self,
        instance: u128,
        change: impl FnOnce(&mut LinkOptions),
    ) -> Result<Engine, OpenError> {
        self.start_with(instance, change, |_| {}).await
    }

    async fn start_with(
        &self,
        instance: u128,
        change: impl FnOnce(&mut LinkOptions),
        room: impl FnOnce(&mut EngineOptions),
    ) -> Result<Engine, OpenError> {
        let clock: Arc<dyn Clock> = Arc::new(self.clock.clone());
        let instance_id: InstanceId = UuidId::new(Uuid::from_u128(instance));
        let place = BrokerPlace::parse(&self.url).unwrap();
        let mut link = LinkOptions {
            broker: Dialler::new(place, Plain::LoopbackOnly, None),
            mesh: MESH.to_owned(),
            key_id: format!("key-{}", self.number),
            keys: Arc::new(keys(self.number)),
            instance_id,
            version: "test".to_owned(),
            require: Vec::new(),
            optional: semel_daemon::config::Features::default().optional,
            window: LinkOptions::WINDOW,
            max_age_hours_override: None,
            answer_timeout: LinkOptions::ANSWER_TIMEOUT,
            expire_interval: LinkOptions::EXPIRE_INTERVAL,
            // Tests end connections at once.
            steady_after: Duration::ZERO,
            sweep_clock: SweepClock::settling(Duration::ZERO, Duration::ZERO),
            random: Arc::new(random),
        };
        change(&mut link);
        let mut options = EngineOptions {
            outbox_bytes_max: 5 << 30,
            reserved_bytes: 0,
            inbox_kept: Duration::from_secs(30 * 24 * 60 * 60),
            inbox_bytes_max: u64::MAX,
        };
        room(&mut options);
        let on_uncertain = Arc::new(|error: &semel_store::StoreError| panic!("{error}"));
        let mint = mint(&clock);
        Engine::start(self.path(), options, link, mint, clock, on_uncertain).await
    }
}

/// A send to a topic.
pub(crate) fn post(id: &str, text: &str) -> NewSend {
    let topic = Destination::new(DestinationKind::Topic, "builds").unwrap();
    new_send(id, "#builds", topic, text)
}

/// A send to a member.
pub(crate) fn dm(id: &str, to: usize, text: &str) -> NewSend {
    let member = Destination::new(DestinationKind::Dm, pubkey(to)).unwrap();
    new_send(id, &pubkey(to), member, text)
}

fn new_send(id: &str, to: &str, destination: Destination, text: &str) -> NewSend {
    let envelope = Envelope::new(destination.clone(), text.as_bytes().to_vec()).unwrap();
    NewSend {
        client_message_id: Some(ClientMessageId::parse(id).unwrap()),
        to_given: to.to_owned(),
        resolved: Ok(destination),
        draft: Draft::of(&envelope),
    }
}

pub(crate) async fn send(engine: &Engine, send: NewSend) -> SendAnswer {
    engine.outbox.send(send).await.unwrap()
}

/// Waits until so many messages are in the inbox, and gives them.
pub(crate) async fn arrived(engine: &Engine, count: usize) -> Vec<Message> {
    let mut changes = engine.inbox.changes();
    let waiting = async {
        loop {
            changes.borrow_and_update();
            let messages = engine.inbox.list(Filter::default(), 100_000).await.unwrap();
            if messages.len() >= count {
                return messages;
            }
            changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("messages arrive")
}

/// Waits until the link is in this state.
pub(crate) async fn state(engine: &Engine, state: LinkState) {
    let mut status = engine.link.watch();
    let waiting = status.wait_for(|status| status.state == state);
    tokio::time::timeout(PATIENCE, waiting).await.expect("it comes to be so").unwrap();
}

/// Waits until a row is as it should be.
pub(crate) async fn row(engine: &Engine, id: &str, is: impl Fn(&OutboxRow) -> bool) -> OutboxRow {
    let waiting = async {
        loop {
            let row = engine.outbox.find(id).await.unwrap().expect("the row is there");
            if is(&row) {
                return row;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("the row comes to be so")
}

/// The bodies of messages.
pub(crate) fn texts(messages: &[Message]) -> Vec<String> {
    let text = |message: &Message| String::from_utf8(message.arrived.body.clone()).unwrap();
    messages.iter().map(text).collect()
}
