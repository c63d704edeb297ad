//! A registrar behind a socket, on either store.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::join_all;
use semel_core::clock::UnixMs;
use semel_core::rfc3339;
use semel_crypto::keys::KeyPair;
use semel_registrar::http;
use semel_registrar::registrar::{Registrar, StartError};
use semel_registrar::store::{PostgresStore, SqliteStore, Store, postgres, sqlite};
use semel_store::postgres::{Postgres, PostgresOptions};
use semel_store::sqlite::{Sqlite, SqliteOptions};
use semel_testkit::clock::SimClock;
use semel_testkit::servers;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub(crate) const NOW: UnixMs = UnixMs(1_800_000_000_000);
pub(crate) const TOKEN: &str = "a-token-of-the-operator-that-is-long-enough";
pub(crate) const MANY: usize = 32;

/// A registrar that is served.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) clock: SimClock,
    pub(crate) database: Database,
}

/// Where its tables are, for what a test does behind its back.
pub(crate) enum Database {
    Sqlite(tempfile::TempDir),
    Postgres(String),
}

impl Database {
    /// Runs SQL written for PostgreSQL's schema.
    pub(crate) async fn plant(&self, sql: &str) {
        match self {
            Self::Sqlite(folder) => {
                let file = semel_testkit::sqlite::open(folder.path().join("r.db")).unwrap();
                file.busy_timeout(std::time::Duration::from_secs(5)).unwrap();
                file.execute_batch(&sql.replace("registrar.", "")).unwrap();
            }
            Self::Postgres(address) => connect(address).await.batch_execute(sql).await.unwrap(),
        }
    }

    /// What the database says against this SQL.
    pub(crate) async fn refusal(&self, sql: &str) -> String {
        match self {
            Self::Sqlite(folder) => {
                let file = semel_testkit::sqlite::open(folder.path().join("r.db")).unwrap();
                file.busy_timeout(std::time::Duration::from_secs(5)).unwrap();
                file.execute_batch(&sql.replace("registrar.", "")).expect_err(sql).to_string()
            }
            Self::Postgres(address) => {
                let refused = connect(address).await.batch_execute(sql).await.expect_err(sql);
                let refused = refused.as_db_error().expect("an error of the server");
                format!("{refused} {}", refused.constraint().unwrap_or_default())
            }
        }
    }

    /// The only number that a query gives.
    pub(crate) async fn count(&self, sql: &str) -> i64 {
        match self {
            Self::Sqlite(folder) => {
                let file = semel_testkit::sqlite::open(folder.path().join("r.db")).unwrap();
                file.query_row(&sql.replace("registrar.", ""), [], |row| row.get(0)).unwrap()
            }
            Self::Postgres(address) => {
                connect(address).await.query_one(sql, &[]).await.unwrap().get(0)
            }
        }
    }
}

/// The server of an address.
pub(crate) async fn server_of(address: &str) -> SocketAddr {
    let (_, rest) = address.rsplit_once('@').expect("a user");
    let (host, _) = rest.split_once('/').expect("a database");
    tokio::net::lookup_host(host).await.unwrap().next().unwrap()
}

/// The same database through somebody in front of its server.
pub(crate) fn through(proxy: SocketAddr, address: &str) -> String {
    let (front, rest) = address.rsplit_once('@').expect("a user");
    let (_, database) = rest.split_once('/').expect("a database");
    // What stands between reads the protocol, and knows only that of PostgreSQL itself.
    format!("{front}@{proxy}/{database}?sslmode=disable")
}

/// Until nobody else is connected: then everything that was begun has ended.
pub(crate) async fn alone(address: &str) -> tokio_postgres::Client {
    let client = connect(address).await;
    let others = "SELECT count(*) FROM pg_stat_activity
                   WHERE datname = current_database() AND pid <> pg_backend_pid()
                     AND backend_type = 'client backend'";
    for _ in 0..100_000 {
        if client.query_one(others, &[]).await.unwrap().get::<_, i64>(0) == 0 {
            return client;
        }
    }
    panic!("somebody stays connected");
}

pub(crate) async fn connect(address: &str) -> tokio_postgres::Client {
    let connected = tokio_postgres::connect(address, tokio_postgres::NoTls).await;
    let (client, connection) = connected.unwrap();
    tokio::spawn(connection);
    client
}

pub(crate) fn sqlite_options(folder: &Path) -> SqliteOptions {
    let on_uncertain = Arc::new(|error: &semel_store::StoreError| panic!("{error}"));
    let migrations = vec![sqlite::MIGRATIONS];
    SqliteOptions::new(folder.join("r.db"), 7, migrations, NOW.0, on_uncertain)
}

pub(crate) fn sqlite_store(folder: &Path) -> Store {
    let sqlite = Sqlite::open(&sqlite_options(folder)).unwrap();
    Store::Sqlite(SqliteStore::new(Arc::new(sqlite)))
}

pub(crate) async fn postgres_store(address: &str) -> Store {
    let options = PostgresOptions::new(address);
    let postgres = Postgres::open(options, &[postgres::MIGRATIONS], NOW.0).await.unwrap();
    Store::Postgres(PostgresStore::new(postgres))
}

pub(crate) async fn on_sqlite() -> Served {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_store(folder.path());
    serve(store, Database::Sqlite(folder)).await
}

pub(crate) async fn on_postgres() -> Served {
    let address = servers::fresh_postgres().await;
    let store = postgres_store(&address).await;
    serve(store, Database::Postgres(address)).await
}

pub(crate) async fn start(store: Store, clock: &SimClock) -> Result<Registrar, StartError> {
    static NONCES: AtomicU64 = AtomicU64::new(1);
    let nonces = Arc::new(|| u128::from(NONCES.fetch_add(1, Ordering::SeqCst)).to_be_bytes());
    let authority = Some(KeyPair::from_secret(&[9; 32]));
    Registrar::start(store, Arc::new(clock.clone()), nonces, authority).await
}

pub(crate) async fn serve(store: Store, database: Database) -> Served {
    let clock = SimClock::at_ms(NOW.0);
    let registrar = start(store, &clock).await.unwrap();
    let router = http::router(Arc::new(registrar), Some(Arc::new(|text| text == TOKEN)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let served = Served { address, clock, database };
    assert_eq!(served.gate("deploys", "open").await.status, 200);
    served
}

/// What came back.
#[derive(Debug, Clone)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) text: String,
    pub(crate) body: Value,
}

impl Response {
    /// Status, code and outcome in one.
    pub(crate) fn said(&self) -> (u16, &str, &str) {
        let word = |name: &str| self.body[name].as_str().unwrap_or_default();
        (self.status, word("code"), word("outcome"))
    }

    /// The bytes of the stored result.
    pub(crate) fn result(&self) -> &str {
        let (_, result) = self.text.split_once(",\"result\":").expect("a result");
        result.strip_suffix('}').unwrap()
    }
}

/// An envelope for this target.
pub(crate) fn envelope(target: &str) -> Value {
    json!({
        "protocol_version": 1, "domain": "deploys", "operation": "deploy",
        "canonical_target": target, "artifact_hash": "ab".repeat(32),
        "owner_binding": "team-web", "run_id": "r1", "issued_at": rfc3339::format(NOW),
        "ttl_s": 3600,
    })
}

/// The same with one field changed.
pub(crate) fn with(envelope: &Value, field: &str, value: impl Into<Value>) -> Value {
    let mut changed = envelope.clone();
    changed[field] = value.into();
    changed
}

/// The body of an attempt.
pub(crate) fn attempt(envelope: &Value, grant: &Value, number: usize) -> Value {
    json!({"envelope": envelope, "grant": grant, "attempt_id": format!("attempt-{number}")})
}

impl Served {
    pub(crate) async fn ask(
        &self,
        method: &str,
        target: &str,
        headers: &str,
        body: &str,
    ) -> Response {
        let mut socket = TcpStream::connect(self.address).await.unwrap();
        let length = body.len();
        let text = format!(
            "{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\
             Content-Length: {length}\r\n\r\n{body}"
        );
        // The registrar may answer and close before it has read everything.
        let _ = socket.write_all(text.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        let (head, text) = answer.split_once("\r\n\r\n").expect("an answer");
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = serde_json::from_str(text).unwrap_or(Value::Null);
        Response { status, text: text.to_owned(), body }
    }

    pub(crate) async fn operate(&self, method: &str, target: &str, body: &Value) -> Response {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.ask(method, target, &format!("Authorization: Bearer {TOKEN}\r\n"), &body).await
    }

    pub(crate) async fn gate(&self, domain: &str, action: &str) -> Response {
        let body = json!({"domain": domain, "action": action});
        self.operate("POST", "/v1/registrar/gate", &body).await
    }

    pub(crate) async fn grant(&self, envelope: &Value) -> Value {
        let body = json!({"envelope": envelope});
        let issued = self.operate("POST", "/v1/grants", &body).await;
        assert_eq!(issued.status, 201, "{issued:?}");
        issued.body["grant"].clone()
    }

    pub(crate) async fn register(
        &self,
        envelope: &Value,
        grant: &Value,
        number: usize,
    ) -> Response {
        let body = attempt(envelope, grant, number).to_string();
        self.ask("POST", "/v1/effects", "", &body).await
    }

    /// All of these at once.
    pub(crate) async fn all(&self, bodies: Vec<Value>) -> Vec<Response> {
        let bodies: Vec<String> = bodies.iter().map(Value::to_string).collect();
        join_all(bodies.iter().map(|body| self.ask("POST", "/v1/effects", "", body))).await
    }

    /// The same attempt `count` times at once, each under a name of its own.
    pub(crate) async fn race(
        &self,
        envelope: &Value,
        grant: &Value,
        count: usize,
    ) -> Vec<Response> {
        self.all((0..count).map(|number| attempt(envelope, grant, number)).collect()).await
    }

    pub(crate) async fn resolve(&self, key: &str) -> Response {
        self.operate("GET", &format!("/v1/effects/{key}"), &Value::Null).await
    }

    /// What became of a grant.
    pub(crate) async fn grant_state(&self, grant: &Value) -> String {
        let list = self.operate("GET", "/v1/grants?domain=deploys&limit=500", &Value::Null).await;
        let items = list.body["items"].as_array().expect("a list");
        let found = items.iter().find(|item| item["nonce"] == grant["nonce"]);
        found.expect("the grant is listed")["state"].as_str().unwrap().to_owned()
    }
}

/// The one that was registered, and the others.
pub(crate) fn one_winner(responses: Vec<Response>) -> (Response, Vec<Response>) {
    let (won, lost): (Vec<_>, Vec<_>) = responses.into_iter().partition(|r| r.status == 201);
    assert_eq!(won.len(), 1, "{won:?} {lost:?}");
    assert_eq!(won[0].body["replayed"], false);
    (won[0].clone(), lost)
}

/// All of them say this.
pub(crate) fn all_say(responses: &[Response], said: (u16, &str, &str)) {
    for response in responses {
        assert_eq!(response.said(), said, "{response:?}");
    }
}
