//! The private servers of a test run. `cargo xtask test` starts them and names them in the
//! environment; a test that needs one and has none fails and says so.

use tokio_postgres::NoTls;

/// Names the PostgreSQL server.
pub const POSTGRES_VARIABLE: &str = "SEMEL_TEST_POSTGRES";
/// Names the Redis server.
pub const REDIS_VARIABLE: &str = "SEMEL_TEST_REDIS";
/// Names the folder with what is needed to reach servers that speak TLS alone.
pub const TLS_VARIABLE: &str = "SEMEL_TEST_TLS";

fn address(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run the tests with `cargo xtask test`, which starts servers")
    })
}

/// The address of a new, empty database of its own for one test.
pub async fn fresh_postgres() -> String {
    fresh_in(&address(POSTGRES_VARIABLE)).await
}

/// The same in the server of this address.
async fn fresh_in(address: &str) -> String {
    let (client, connection) =
        tokio_postgres::connect(address, NoTls).await.expect("the test server answers");
    let connection = tokio::spawn(connection);
    let name = format!("semel_{:016x}", getrandom::u64().expect("the system has entropy"));
    // A database's name cannot be a parameter; this one is letters and digits of our own making.
    let made = client.batch_execute(&format!("CREATE DATABASE {name}")).await;
    made.expect("the test user may create databases");
    drop(client);
    let _ = connection.await;
    let (server, _) = address.rsplit_once('/').expect("an address names a database");
    format!("{server}/{name}")
}

/// A database that was made read-only, as an operator or a failover does it: it answers every read
/// and takes no commit.
pub struct ReadOnly {
    client: tokio_postgres::Client,
    name: String,
}

impl ReadOnly {
    /// From now on, and for those who are connected.
    pub async fn make(address: &str) -> Self {
        let (client, connection) =
            tokio_postgres::connect(address, NoTls).await.expect("the test server answers");
        tokio::spawn(connection);
        let (_, name) = address.rsplit_once('/').expect("an address names a database");
        let read_only = Self { client, name: name.to_owned() };
        read_only.set("on").await;
        read_only
    }

    /// It takes commits again.
    pub async fn undo(self) {
        self.set("off").await;
    }

    /// Sessions keep what they began with, so that all of them must begin anew.
    async fn set(&self, value: &str) {
        let name = &self.name;
        let alter = format!("ALTER DATABASE {name} SET default_transaction_read_only = {value}");
        let end = "
            SELECT pg_terminate_backend(pid)
              FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid()";
        // One after the other: what begins anew must find what was set.
        for sql in ["SET default_transaction_read_only = off", &alter, end] {
            self.client.batch_execute(sql).await.expect("its owner may do so");
        }
    }
}

/// A server that speaks TLS alone over TCP. Its certificate is for `localhost` and `db.example`.
pub struct Secure {
    /// Where it listens, on 127.0.0.1.
    pub port: u16,
    /// Of its user; PostgreSQL's is `semel`.
    pub password: String,
}

/// A new, empty database of its own in a PostgreSQL that speaks TLS alone over TCP.
pub struct SecureDatabase {
    /// The server.
    pub server: Secure,
    /// What the database is called.
    pub name: String,
    /// Its address over the server's Unix socket, where nothing is encrypted.
    pub socket: String,
}

/// A file beside the servers that speak TLS: `authority.pem` has signed their certificates and
/// `other.pem` nothing; PostgreSQL takes `client.pem` with `client-key.pem` for `semel_client`.
pub fn tls_file(name: &str) -> String {
    format!("{}/{name}", address(TLS_VARIABLE))
}

fn secure(name: &str) -> (Secure, Option<String>) {
    let text = std::fs::read_to_string(tls_file(name)).expect("a server is described");
    let mut lines = text.lines().map(str::to_owned);
    let port = lines.next().and_then(|port| port.parse().ok()).expect("a port");
    let password = lines.next().expect("a password");
    (Secure { port, password }, lines.next())
}

/// A new database in the PostgreSQL that speaks TLS.
pub async fn fresh_secure_postgres() -> SecureDatabase {
    let (server, socket) = secure("postgres");
    let socket = fresh_in(&socket.expect("a socket")).await;
    let (_, name) = socket.rsplit_once('/').expect("an address names a database");
    SecureDatabase { server, name: name.to_owned(), socket }
}

impl SecureDatabase {
    /// Its address under this name of the host, for the user with the password.
    pub fn at(&self, host: &str, query: &str) -> String {
        let Secure { port, password } = &self.server;
        format!("postgres://semel:{password}@{host}:{port}/{}?{query}", self.name)
    }

    /// The same without the password.
    pub fn without_password(&self, host: &str, query: &str) -> String {
        format!("postgres://semel@{host}:{}/{}?{query}", self.server.port, self.name)
    }
}

/// The Redis server that speaks TLS alone.
pub fn secure_redis() -> Secure {
    secure("redis").0
}

/// The address of the Redis server. It is shared: give every key a prefix of [`redis_prefix`].
pub fn redis() -> String {
    address(REDIS_VARIABLE)
}

/// A key prefix that no other test has.
pub fn redis_prefix() -> String {
    format!("test:{:016x}:", getrandom::u64().expect("the system has entropy"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_postgres_database_is_new_and_empty() {
        let (one, other) = (fresh_postgres().await, fresh_postgres().await);
        assert_ne!(one, other);
        let (client, connection) = tokio_postgres::connect(&one, NoTls).await.expect("connects");
        tokio::spawn(connection);
        let sql = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'";
        let count: i64 = client.query_one(sql, &[]).await.expect("counts").get(0);
        assert_eq!(count, 0);
        let version: i32 = client
            .query_one("SELECT current_setting('server_version_num')::int", &[])
            .await
            .expect("has a version")
            .get(0);
        assert!(version >= 150_000, "PostgreSQL {version} is older than 15");
    }

    #[tokio::test]
    async fn redis_answers_and_expires() {
        let client = redis::Client::open(redis()).expect("an address");
        let mut connection = client.get_multiplexed_async_connection().await.expect("connects");
        let key = format!("{}greeting", redis_prefix());
        let mut set = redis::cmd("SET");
        set.arg(&key).arg("hello").arg("PX").arg(60_000);
        let _: () = set.query_async(&mut connection).await.expect("sets");
        let mut ttl = redis::cmd("PTTL");
        let left: i64 = ttl.arg(&key).query_async(&mut connection).await.expect("has a life");
        assert!((1..=60_000).contains(&left), "{left}");
    }
}
