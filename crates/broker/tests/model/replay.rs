//! The model's traces, replayed against the real stores: each step has the result that the model
//! gives it, and the rows at the end are the model's.
//!
//! Only traces in which no two transactions are open at once: a whole accept is one call here,
//! made where the trace commits it, and one that the trace rolls back is not made. In every other
//! trace each accept shares its batch with a send that is always accepted, so that whatever
//! becomes of ours rides along in a commit. What only an operator or a sweeper does (removing
//! rows) is done with SQL.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and shows the trace"
)]

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::params_from_iter;
use semel_broker::accept::{AcceptBatch, AcceptItem, DedupeMode, Held, Session, Verdict};
use semel_broker::limits::DAY;
use semel_broker::store::{
    Greeted, NewMember, NewSession, PostgresStore, Pulse, Resolved, Role, SqliteStore, Store,
};
use semel_core::clock::{Reading, UnixMs};
use semel_core::code::Code;
use semel_core::envelope::{Destination, DestinationKind, Envelope};
use semel_core::fingerprint::Fingerprint;
use semel_core::hex::Hex;
use semel_core::id::{ClientMessageId, InstanceId, MemberId, MeshId, UuidId};
use semel_store::postgres::PostgresOptions;
use semel_testkit::servers;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::state::Dedupe;
use crate::trace::{Resolution, StoreStep, Trace, traces};
use crate::{KINDS, kind};

/// Traces to choose from.
const TRIED: usize = 1500;
/// Traces replayed on SQLite.
const SQLITE_TRACES: usize = 100;
/// Traces replayed on PostgreSQL.
const POSTGRES_TRACES: usize = 60;

const START: UnixMs = UnixMs(1_800_000_000_000);
const DAYS: u32 = 3;
const MODE: DedupeMode = DedupeMode::RetentionScoped { days: DAYS };
const TOPIC: &str = "builds";
/// Bodies that differ in length: SQL tells them apart in both dialects.
const OURS: &str = "ours";
const RIVALS: &str = "of the rival";
/// The other host of the member.
const RIVAL_INSTANCE: usize = 2;
/// Who shares our batches.
const NEIGHBOUR_INSTANCE: usize = 3;
const QUEUE: &str = "work";

// The tables of both stores have the same names; each mesh holds one trace.
const DEDUPE_SWEEP: &str =
    "DELETE FROM client_message_dedupe WHERE mesh_id = $1 AND client_message_id = 'the-id'";
const SESSION_DELETE: &str = "DELETE FROM session WHERE mesh_id = $1 AND instance_id = $2";
/// The model's instances come and go side by side; what a policy does to others has its own tests.
const CONCURRENT: &str =
    "UPDATE mesh SET clone_concurrency_policy = 'allow_concurrent' WHERE mesh_id = $1";
const UNSUBSCRIBE: &str = "DELETE FROM topic_subscription WHERE mesh_id = $1";
const DEDUPE_COUNT: &str = "
    SELECT count(*) FROM client_message_dedupe WHERE mesh_id = $1 AND client_message_id = 'the-id'";
const MESSAGE_COUNT: &str =
    "SELECT count(*) FROM topic_message WHERE mesh_id = $1 AND length(body) = 4";

/// The tables themselves, past the store.
enum Tables {
    Sqlite(rusqlite::Connection),
    Postgres(tokio_postgres::Client),
}

impl Tables {
    async fn execute(&self, sql: &str, by: &[Uuid]) -> u64 {
        match self {
            Self::Sqlite(connection) => {
                let by = params_from_iter(by.iter().map(|id| id.into_bytes()));
                connection.execute(sql, by).unwrap().try_into().unwrap()
            }
            Self::Postgres(client) => {
                let by: Vec<_> = by.iter().map(|id| id as &(dyn ToSql + Sync)).collect();
                client.execute(sql, &by).await.unwrap()
            }
        }
    }

    async fn count(&self, sql: &str, mesh: Uuid) -> i64 {
        match self {
            Self::Sqlite(connection) => {
                connection.query_row(sql, [mesh.into_bytes()], |row| row.get(0)).unwrap()
            }
            Self::Postgres(client) => client.query_one(sql, &[&mesh]).await.unwrap().get(0),
        }
    }
}

/// The accept that the trace has open.
#[derive(Default)]
struct Open {
    conn: usize,
    found: Option<Dedupe>,
    refused: bool,
}

/// One trace in a mesh of its own.
struct Replay<'a> {
    store: &'a Store,
    tables: &'a Tables,
    mesh_id: MeshId,
    member_id: MemberId,
    pubkey: String,
    now: UnixMs,
    sessions: HashMap<usize, Session>,
    epoch_max: i64,
    /// The epochs of those that speak for their instances.
    current: HashMap<InstanceId, i64>,
    neighbour: Option<Session>,
    minted: u128,
    open: Option<Open>,
}

fn envelope(body: &str) -> Envelope {
    let to = Destination::new(DestinationKind::Topic, TOPIC).unwrap();
    Envelope::new(to, body.into()).unwrap()
}

fn id() -> ClientMessageId {
    ClientMessageId::parse("the-id").unwrap()
}

fn instance(number: usize) -> InstanceId {
    UuidId::new(Uuid::from_u128(100 + number as u128))
}

impl<'a> Replay<'a> {
    async fn start(store: &'a Store, tables: &'a Tables, number: usize) -> Self {
        let seed = (number as u128 + 1) << 64;
        let (mesh_id, member_id) = (UuidId::new(Uuid::from_u128(seed)), UuidId::new(Uuid::nil()));
        let pubkey = format!("{number:064x}");
        let owner = NewMember {
            member_id,
            name: "owner".to_owned(),
            role: Role::Owner,
            key_id: "key".to_owned(),
            pubkey: pubkey.clone(),
        };
        assert!(
            store.mesh_create(mesh_id, &format!("mesh-{number}"), &owner, START).await.unwrap()
        );
        assert_eq!(tables.execute(CONCURRENT, &[mesh_id.as_uuid()]).await, 1);
        store.topic_create(mesh_id, TOPIC, None, START).await.unwrap();
        assert!(store.topic_subscribe(mesh_id, TOPIC, member_id).await.unwrap());
        let queue_id = UuidId::new(Uuid::from_u128(1));
        store.queue_create(mesh_id, (QUEUE, queue_id), None, START).await.unwrap();
        let mut replay = Self {
            store,
            tables,
            mesh_id,
            member_id,
            pubkey,
            now: START,
            sessions: HashMap::new(),
            epoch_max: 0,
            current: HashMap::new(),
            neighbour: None,
            minted: seed,
            open: None,
        };
        if number % 2 == 1 {
            replay.neighbour = Some(replay.hello(NEIGHBOUR_INSTANCE).await);
        }
        replay
    }

    async fn step(&mut self, step: &StoreStep) {
        let mesh = self.mesh_id.as_uuid();
        match *step {
            StoreStep::Hello { conn, instance, epoch: _, retires_owner } => {
                let session = self.hello_retiring(usize::from(instance), retires_owner).await;
                self.sessions.insert(conn, session);
            }
            StoreStep::HelloRefused { conn: _, instance } => {
                let new = self.new_session(usize::from(instance)).await;
                assert_eq!(self.store.hello(&new).await.unwrap(), Greeted::Retired);
            }
            StoreStep::Lookup { conn: _, found } => assert_eq!(self.look_up().await, found),
            StoreStep::Begin { accept: _, conn, current: true } => {
                self.open = Some(Open { conn, ..Open::default() });
            }
            StoreStep::Begin { accept: _, conn, current: false } => {
                let verdict = self.accept(self.sessions[&conn], OURS).await;
                assert_eq!(verdict, Verdict::Stale);
            }
            StoreStep::Claim { accept: _, found } => {
                self.open.as_mut().unwrap().found = Some(found);
            }
            StoreStep::CheckPasses { accept: _ } => {}
            StoreStep::CheckRefuses { accept: _ } => self.open.as_mut().unwrap().refused = true,
            StoreStep::Commit { accept: _ } => self.commit().await,
            StoreStep::Rollback { accept: _ } => self.open = None,
            StoreStep::Resolve { conn, says } => self.resolve(self.sessions[&conn], says).await,
            // Past the horizon by a moment, then by a day more.
            StoreStep::TimePasses if self.now == START => {
                self.now = UnixMs(START.saturating_add(DAY * DAYS).0 + 1);
            }
            StoreStep::TimePasses => self.now = self.now.saturating_add(DAY),
            StoreStep::Sweep | StoreStep::RivalSwept => {
                assert_eq!(self.tables.execute(DEDUPE_SWEEP, &[mesh]).await, 1);
            }
            StoreStep::SessionDeleted { instance: number } => {
                let by = [mesh, instance(number).as_uuid()];
                assert_eq!(self.tables.execute(SESSION_DELETE, &by).await, 1);
                self.current.remove(&instance(number));
            }
            StoreStep::RivalCommits => {
                let session = self.hello(RIVAL_INSTANCE).await;
                let verdict = self.accept(session, RIVALS).await;
                assert!(matches!(verdict, Verdict::Accepted { .. }), "{verdict:?}");
            }
        }
    }

    async fn hello(&mut self, number: usize) -> Session {
        self.hello_retiring(number, false).await
    }

    async fn new_session(&self, number: usize) -> NewSession {
        let since = u64::try_from(self.now.0 - START.0).unwrap();
        let at = Reading { wall: self.now, monotonic: Duration::from_millis(since) };
        NewSession {
            mesh_id: self.mesh_id,
            pubkey: self.pubkey.clone(),
            key_id: "key".to_owned(),
            instance_id: instance(number),
            broker_id: UuidId::new(Uuid::nil()),
            hello_nonce: Hex([0; 16]),
            host_fingerprint: None,
            retire: Vec::new(),
            store_epoch: self.store.store_epoch().await.unwrap(),
            now: self.now,
            pulse: Pulse { at, ghost_after: Duration::ZERO },
            event_ids: [(); 3].map(|()| UuidId::new(Uuid::new_v4())),
        }
    }

    /// Epochs only grow, also behind deleted rows.
    async fn hello_retiring(&mut self, number: usize, retires_owner: bool) -> Session {
        let mut new = self.new_session(number).await;
        if retires_owner {
            new.retire.push(instance(0));
        }
        let session = match self.store.hello(&new).await.unwrap() {
            Greeted::Welcome { session, .. } => session,
            refused @ (Greeted::Unknown
            | Greeted::Inactive
            | Greeted::Retired
            | Greeted::TooManyRetired
            | Greeted::AlreadyConnected
            | Greeted::Restored) => panic!("{refused:?}"),
        };
        assert!(session.epoch > self.epoch_max, "{session:?}");
        self.epoch_max = session.epoch;
        if retires_owner {
            self.current.remove(&instance(0));
        }
        self.current.insert(session.instance_id, session.epoch);
        session
    }

    async fn look_up(&self) -> Dedupe {
        let keys = [(self.member_id, id())];
        let mut found = self.store.dedupe_look_up(self.mesh_id, &keys).await.unwrap();
        self.found(found.held.remove(0))
    }

    fn found(&self, held: Option<Held>) -> Dedupe {
        match held.map(|held| held.fingerprint) {
            None => Dedupe::Absent,
            Some(found) if found == Fingerprint::of(&envelope(OURS)) => Dedupe::Ours,
            Some(found) => {
                assert_eq!(found, Fingerprint::of(&envelope(RIVALS)));
                Dedupe::Rival
            }
        }
    }

    /// As a connection answers it. One that was replaced is closed, where the model answers what
    /// nobody listens to.
    async fn resolve(&self, session: Session, says: Resolution) {
        match self.store.resolve(self.mesh_id, &session, &[id()]).await.unwrap() {
            Resolved::Stale => {
                assert_ne!(self.current.get(&session.instance_id), Some(&session.epoch));
            }
            Resolved::Current(mut found) => {
                let found = self.found(found.held.remove(0));
                let resolved = match (found, MODE.too_old(START, self.now)) {
                    (Dedupe::Ours, _) => Resolution::Committed,
                    (Dedupe::Absent | Dedupe::Rival, true) => Resolution::TooOld,
                    (Dedupe::Absent | Dedupe::Rival, false) => Resolution::Absent,
                };
                assert_eq!(resolved, says);
            }
        }
    }

    fn item(&mut self, session: Session, id: ClientMessageId, envelope: Envelope) -> AcceptItem {
        self.minted += 1;
        AcceptItem {
            session,
            client_message_id: id,
            fingerprint: Fingerprint::of(&envelope),
            envelope,
            body_commitment: None,
            mentions: Vec::new(),
            broker_message_id: UuidId::new(Uuid::from_u128(self.minted)),
        }
    }

    async fn accept(&mut self, session: Session, body: &str) -> Verdict {
        let mut items = vec![self.item(session, id(), envelope(body))];
        if let Some(neighbour) = self.neighbour {
            let id = ClientMessageId::parse(&format!("neighbour-{}", self.minted)).unwrap();
            let to = Destination::new(DestinationKind::Queue, QUEUE).unwrap();
            let envelope = Envelope::new(to, "hi".into()).unwrap();
            items.push(self.item(neighbour, id, envelope));
        }
        let (mesh_id, now) = (self.mesh_id, self.now);
        let batch = AcceptBatch { mesh_id, now, expires_at: MODE.expires_at(now), items };
        let mut verdicts = self.store.accept(&Arc::new(batch)).await.unwrap().verdicts;
        let rode_along = |verdict: &Verdict| matches!(verdict, Verdict::Accepted { .. });
        assert!(verdicts[1..].iter().all(rode_along), "{verdicts:?}");
        verdicts.remove(0)
    }

    /// The whole accept. B2 refuses who does not subscribe.
    async fn commit(&mut self) {
        let open = self.open.take().unwrap();
        if open.refused {
            let mesh = self.mesh_id.as_uuid();
            assert_eq!(self.tables.execute(UNSUBSCRIBE, &[mesh]).await, 1);
        }
        let verdict = self.accept(self.sessions[&open.conn], OURS).await;
        let as_expected = match (open.found.unwrap(), &verdict) {
            (Dedupe::Absent, Verdict::Accepted { .. }) => !open.refused,
            (Dedupe::Absent, Verdict::Refused(code)) => {
                open.refused && *code == Code::NotSubscribed
            }
            (Dedupe::Ours, Verdict::Duplicate(_)) | (Dedupe::Rival, Verdict::Reused(_)) => true,
            (
                Dedupe::Absent | Dedupe::Ours | Dedupe::Rival,
                Verdict::Accepted { .. }
                | Verdict::Duplicate(_)
                | Verdict::Reused(_)
                | Verdict::Refused(_)
                | Verdict::RateLimited { .. }
                | Verdict::Stale,
            ) => false,
        };
        assert!(as_expected, "{verdict:?}, though the claim finds {:?}", open.found);
        if open.refused {
            let again = self.store.topic_subscribe(self.mesh_id, TOPIC, self.member_id);
            assert!(again.await.unwrap());
        }
    }

    async fn assert_end(&self, trace: &Trace) {
        let mesh = self.mesh_id.as_uuid();
        assert_eq!(self.look_up().await, trace.dedupe);
        let held = i64::from(trace.dedupe != Dedupe::Absent);
        assert_eq!(self.tables.count(DEDUPE_COUNT, mesh).await, held);
        let messages = self.tables.count(MESSAGE_COUNT, mesh).await;
        assert_eq!(messages, i64::from(trace.messages));
    }
}

/// Whether the stores' operations can say it.
fn is_replayable(trace: &Trace) -> bool {
    trace.is_serial()
}

/// Steps whose result is not that of an empty store.
fn telling(trace: &Trace) -> usize {
    let known = |step: &&StoreStep| {
        matches!(
            step,
            StoreStep::Lookup { found: Dedupe::Ours | Dedupe::Rival, .. }
                | StoreStep::Claim { found: Dedupe::Ours | Dedupe::Rival, .. }
                | StoreStep::Resolve { says: Resolution::Committed | Resolution::TooOld, .. }
                | StoreStep::Begin { current: false, .. }
        )
    };
    trace.steps.iter().filter(known).count()
}

/// Those in which the most is known or stale, then those with the most kinds of steps, so that few
/// show much; together they show every kind.
fn chosen(count: usize) -> Vec<Trace> {
    let mut chosen: Vec<Trace> = traces(TRIED).into_iter().filter(is_replayable).collect();
    let kinds = |trace: &Trace| trace.steps.iter().map(kind).collect::<HashSet<_>>();
    chosen.sort_by_cached_key(|trace| Reverse((telling(trace), kinds(trace).len())));
    // Those that show a kind for the first time come first: none is cut off.
    let mut seen = HashSet::new();
    chosen.sort_by_cached_key(|trace| {
        let before = seen.len();
        seen.extend(kinds(trace));
        seen.len() == before
    });
    chosen.truncate(count);
    assert_eq!(chosen.len(), count, "enough traces");
    assert_eq!(seen.len(), KINDS, "every kind of step: {seen:?}");
    chosen
}

async fn replay(store: &Store, tables: &Tables, count: usize) {
    let chosen = chosen(count);
    for (number, trace) in chosen.iter().enumerate() {
        let mut replay = Replay::start(store, tables, number).await;
        // Shown only when the test fails.
        println!("trace {number}, {:?} and {} at the end", trace.dedupe, trace.messages);
        for step in &trace.steps {
            println!("  {step:?}");
            replay.step(step).await;
        }
        replay.assert_end(trace).await;
    }
}

#[tokio::test]
async fn sqlite_does_what_the_model_does() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broker.db");
    let on_uncertain = Arc::new(|error: &semel_store::StoreError| panic!("{error}"));
    let store = SqliteStore::open(&path, "epoch-1".to_owned(), START, on_uncertain).await.unwrap();
    let tables = Tables::Sqlite(semel_testkit::sqlite::open(&path).unwrap());
    replay(&Store::Sqlite(Arc::new(store)), &tables, SQLITE_TRACES).await;
}

#[tokio::test]
async fn postgres_does_what_the_model_does() {
    let address = servers::fresh_postgres().await;
    let store = PostgresStore::open(PostgresOptions::new(&address), "epoch-1", START).await;
    let (client, connection) =
        tokio_postgres::connect(&address, tokio_postgres::NoTls).await.unwrap();
    drop(tokio::spawn(connection));
    client.batch_execute("SET search_path TO mesh").await.unwrap();
    let tables = Tables::Postgres(client);
    replay(&Store::Postgres(store.unwrap()), &tables, POSTGRES_TRACES).await;
}
