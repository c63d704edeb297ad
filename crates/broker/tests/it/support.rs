//! A small mesh that these tests share, in either store.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use semel_broker::accept::{AcceptBatch, AcceptItem, DedupeMode, Held, Session, Verdict};
use semel_broker::limits::GHOST_AFTER;
use semel_broker::store::{
    Arrived, Asked, Audited, Greeted, Messages, NewMember, NewSession, PostgresStore, Pulse, Role,
    SqliteStore, Store,
};
use semel_core::clock::{Reading, UnixMs};
use semel_core::envelope::{Destination, DestinationKind, Envelope};
use semel_core::fingerprint::Fingerprint;
use semel_core::hex::Hex;
use semel_core::id::{ClientMessageId, MemberId, MeshId, UuidId};
use semel_core::mint::IdMint;
use semel_crypto::keys::KeyPair;
use semel_store::StoreError;
use semel_store::postgres::PostgresOptions;
use semel_testkit::clock::SimClock;
use semel_testkit::proxy::Proxy;
use semel_testkit::servers;
use uuid::Uuid;

pub(crate) const NOW: UnixMs = UnixMs(1_800_000_000_000);

/// A moment on clocks that have never stepped.
pub(crate) fn at(wall: UnixMs) -> Reading {
    let since = u64::try_from(wall.0 - NOW.0).unwrap_or(0);
    Reading { wall, monotonic: Duration::from_millis(since) }
}

pub(crate) fn pulse(wall: UnixMs) -> Pulse {
    Pulse { at: at(wall), ghost_after: GHOST_AFTER }
}

/// A store with a mesh: three members, a topic that the first two subscribe to, a queue.
pub(crate) struct Fixture {
    pub(crate) store: Store,
    pub(crate) mesh_id: MeshId,
    pub(crate) members: Vec<MemberId>,
    pub(crate) sessions: Vec<Session>,
    pub(crate) mint: Arc<IdMint>,
    pub(crate) address: Option<String>,
    folder: Option<tempfile::TempDir>,
    /// Seconds that have passed for what is leased.
    pub(crate) leased_at: AtomicU64,
}

/// The key pair of a member, by number.
pub(crate) fn keys(number: usize) -> KeyPair {
    KeyPair::from_secret(&[u8::try_from(number).unwrap(); 32])
}

/// The public key of a member, by number.
pub(crate) fn pubkey(number: usize) -> String {
    keys(number).public().to_hex().to_string()
}

/// Ids that count up from a number: the same in two stores.
pub(crate) fn mint(seed: u128) -> Arc<IdMint> {
    let mut next = seed << 64;
    let entropy = move || {
        next += 1;
        next
    };
    Arc::new(IdMint::new(Arc::new(SimClock::at_ms(NOW.0)), Box::new(entropy)))
}

pub(crate) async fn sqlite() -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let store = open_sqlite(folder.path()).await;
    fixture(store, Some(folder), None).await
}

/// In a folder that somebody else looks after.
pub(crate) async fn sqlite_in(folder: &std::path::Path) -> Fixture {
    fixture(open_sqlite(folder).await, None, None).await
}

pub(crate) async fn open_sqlite(folder: &std::path::Path) -> Store {
    let on_uncertain = Arc::new(|error: &StoreError| panic!("{error}"));
    let path = folder.join("broker.db");
    let store = SqliteStore::open(&path, "epoch-1".to_owned(), NOW, on_uncertain).await.unwrap();
    Store::Sqlite(Arc::new(store))
}

pub(crate) async fn postgres() -> Fixture {
    postgres_at(servers::fresh_postgres().await).await
}

/// In a database that is there already.
pub(crate) async fn postgres_at(address: String) -> Fixture {
    let store = open_postgres(&address).await;
    fixture(store, None, Some(address)).await
}

pub(crate) async fn open_postgres(address: &str) -> Store {
    let store = PostgresStore::open(PostgresOptions::new(address), "epoch-1", NOW).await;
    Store::Postgres(store.unwrap())
}

/// The fixture's store once more, through a proxy that can fail.
pub(crate) async fn through_a_proxy(fixture: &Fixture) -> (Proxy, Store) {
    let address = fixture.address.as_ref().unwrap();
    let config: tokio_postgres::Config = address.parse().unwrap();
    let server = format!("127.0.0.1:{}", config.get_ports()[0]);
    let proxy = Proxy::start(server.parse().unwrap()).await;
    let through = address.replace(&server, &proxy.address().to_string());
    (proxy, open_postgres(&through).await)
}

async fn fixture(
    store: Store,
    folder: Option<tempfile::TempDir>,
    address: Option<String>,
) -> Fixture {
    filled(store, folder, address, "test", mint(1)).await
}

async fn filled(
    store: Store,
    folder: Option<tempfile::TempDir>,
    address: Option<String>,
    slug: &str,
    mint: Arc<IdMint>,
) -> Fixture {
    let mesh_id: MeshId = mint.uuid();
    let mut members = Vec::new();
    for number in 0..3 {
        let member = NewMember {
            member_id: mint.uuid(),
            name: format!("member {number} o'brien'); --"),
            role: if number == 0 { Role::Owner } else { Role::Member },
            key_id: format!("key-{number}"),
            pubkey: pubkey(number),
        };
        members.push(member.member_id);
        if number == 0 {
            assert!(store.mesh_create(mesh_id, slug, &member, NOW).await.unwrap());
        } else {
            store.member_add(mesh_id, &member, NOW).await.unwrap();
        }
    }
    store.topic_create(mesh_id, "builds", None, NOW).await.unwrap();
    for member in &members[..2] {
        assert!(store.topic_subscribe(mesh_id, "builds", *member).await.unwrap());
    }
    store.queue_create(mesh_id, ("work", mint.uuid()), None, NOW).await.unwrap();
    let (sessions, leased_at) = (Vec::new(), AtomicU64::new(0));
    let mut fixture =
        Fixture { store, mesh_id, members, sessions, mint, address, folder, leased_at };
    for number in 0..3 {
        let session = fixture.hello(number).await;
        fixture.sessions.push(session);
    }
    fixture
}

impl Fixture {
    /// Where the SQLite file is.
    pub(crate) fn folder(&self) -> &std::path::Path {
        self.folder.as_ref().unwrap().path()
    }

    /// The same mesh over another pool, as another broker has it.
    pub(crate) async fn elsewhere(&self) -> Self {
        Self {
            store: open_postgres(self.address.as_ref().unwrap()).await,
            mesh_id: self.mesh_id,
            members: self.members.clone(),
            sessions: self.sessions.clone(),
            mint: Arc::clone(&self.mint),
            address: self.address.clone(),
            folder: None,
            leased_at: AtomicU64::new(0),
        }
    }

    /// The same mesh in a copy of its database, over a store of its own.
    pub(crate) fn copied(&self, store: Store, address: &str) -> Self {
        Self {
            store,
            mesh_id: self.mesh_id,
            members: self.members.clone(),
            sessions: self.sessions.clone(),
            mint: Arc::clone(&self.mint),
            address: Some(address.to_owned()),
            folder: None,
            leased_at: AtomicU64::new(0),
        }
    }

    /// Another mesh in the same store, with the same members.
    pub(crate) async fn another_mesh(&self, slug: &str) -> Self {
        filled(self.store.clone(), None, self.address.clone(), slug, mint(2)).await
    }

    /// From now on no message of this mesh can be deleted.
    pub(crate) async fn forbid_retention(&self) {
        let mesh = self.mesh_id.as_uuid();
        if self.address.is_none() {
            let trigger = format!(
                "CREATE TRIGGER held BEFORE DELETE ON message_history
                    WHEN OLD.mesh_id = x'{}' BEGIN SELECT RAISE(ABORT, 'planted'); END",
                mesh.simple()
            );
            self.plant(&trigger).await;
            return;
        }
        let held = "CREATE TABLE mesh.held (
                        mesh_id UUID, seq BIGINT,
                        FOREIGN KEY (mesh_id, seq) REFERENCES mesh.message_history (mesh_id, seq))";
        self.plant(held).await;
        let insert = "INSERT INTO mesh.held SELECT mesh_id, seq FROM mesh.message_history";
        assert!(self.plant(&format!("{insert} WHERE mesh_id = '{mesh}'")).await > 0);
    }

    /// A new connection of the member's daemon.
    pub(crate) async fn hello(&self, number: usize) -> Session {
        match self.store.hello(&self.new_session(number, number)).await.unwrap() {
            Greeted::Welcome { session, .. } => session,
            other => panic!("{other:?}"),
        }
    }

    /// A hello of one of the member's daemons.
    pub(crate) fn new_session(&self, number: usize, instance: usize) -> NewSession {
        NewSession {
            mesh_id: self.mesh_id,
            pubkey: pubkey(number),
            key_id: format!("key-{number}"),
            instance_id: UuidId::new(Uuid::from_u128(100 + instance as u128)),
            broker_id: UuidId::new(Uuid::from_u128(7)),
            hello_nonce: Hex([u8::try_from(instance).unwrap(); 16]),
            host_fingerprint: None,
            retire: Vec::new(),
            store_epoch: "epoch-1".to_owned(),
            now: NOW,
            pulse: pulse(NOW),
            event_ids: [(); 3].map(|()| self.mint.uuid()),
        }
    }

    /// The key and time of something that will be in the audit trail.
    pub(crate) fn audited(&self) -> Audited {
        Audited { id: self.mint.uuid(), at: NOW }
    }

    /// Runs SQL behind the store's back, written for PostgreSQL's schema.
    pub(crate) async fn plant(&self, sql: &str) -> u64 {
        let Some(address) = &self.address else {
            let file = semel_testkit::sqlite::open(self.folder().join("broker.db")).unwrap();
            file.busy_timeout(Duration::from_secs(5)).unwrap();
            return file.execute(&sql.replace("mesh.", ""), []).unwrap() as u64;
        };
        let connected = tokio_postgres::connect(address, tokio_postgres::NoTls).await;
        let (client, connection) = connected.unwrap();
        tokio::spawn(connection);
        client.execute(sql, &[]).await.unwrap()
    }

    /// A send of the member with this number, over its current session.
    pub(crate) fn item(&self, sender: usize, id: &str, to: (&str, &str), body: &str) -> AcceptItem {
        let kind = DestinationKind::parse(to.0).unwrap();
        let envelope = Envelope::new(Destination::new(kind, to.1).unwrap(), body.into()).unwrap();
        AcceptItem {
            session: self.sessions[sender],
            client_message_id: ClientMessageId::parse(id).unwrap(),
            fingerprint: Fingerprint::of(&envelope),
            envelope,
            body_commitment: None,
            mentions: Vec::new(),
            broker_message_id: self.mint.uuid(),
        }
    }

    pub(crate) fn batch(&self, items: Vec<AcceptItem>) -> Arc<AcceptBatch> {
        let expires_at = DedupeMode::RetentionScoped { days: 3 }.expires_at(NOW);
        Arc::new(AcceptBatch { mesh_id: self.mesh_id, now: NOW, expires_at, items })
    }

    pub(crate) async fn accept(&self, items: Vec<AcceptItem>) -> Vec<Verdict> {
        self.store.accept(&self.batch(items)).await.unwrap().verdicts
    }

    pub(crate) async fn accept_one(&self, item: AcceptItem) -> Verdict {
        self.accept(vec![item]).await.remove(0)
    }

    /// What holds these ids of a member.
    pub(crate) async fn look_up(&self, member: usize, ids: &[&str]) -> Vec<Option<Held>> {
        let key = |id: &&str| (self.members[member], ClientMessageId::parse(id).unwrap());
        let keys: Vec<_> = ids.iter().map(key).collect();
        self.store.dedupe_look_up(self.mesh_id, &keys).await.unwrap().held
    }

    /// The history numbers that wait for a member.
    pub(crate) async fn waiting(&self, member: usize) -> Vec<i64> {
        let recipient = self.members[member].as_uuid();
        let found = deliveries(&self.store, self.mesh_id, recipient, (0, 10_000)).await.unwrap();
        found.whole.iter().map(|delivery| delivery.seq).collect()
    }

    /// A recipient has everything up to `seq`; how many deliveries that ended.
    pub(crate) async fn done(&self, recipient: Uuid, seq: i64) -> u64 {
        let arrived = [Arrived { recipient, after: 0, seq }];
        self.store.deliveries_done_along(self.mesh_id, &arrived).await.unwrap()
    }
}

/// What waits for one recipient, so many at the most.
pub(crate) async fn deliveries(
    store: &Store,
    mesh_id: MeshId,
    recipient: Uuid,
    (after_seq, limit): (i64, i64),
) -> Result<Messages, StoreError> {
    let asked = [Asked { recipient, after_seq, limit }];
    Ok(store.deliveries_of(mesh_id, &asked).await?.messages)
}
