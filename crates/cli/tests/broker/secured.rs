//! Stores behind TLS and passwords outside of the arguments: the binary against a PostgreSQL and a
//! Redis that take nothing in plain text, and against impostors.

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use semel_testkit::servers::{self, SecureDatabase, tls_file};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::process::Broker;
use crate::tls::authority;

/// A folder that is the home of whoever runs the commands.
struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// A file with this in it, and this mode.
    fn file(&self, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    fn command(&self, words: &[&str], environment: &[(&str, &str)]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        for name in ["SEMEL_STORE", "SEMEL_LIMITER", "PGPASSWORD", "PGPASSFILE"] {
            command.env_remove(name);
        }
        command.env("HOME", self.0.path()).envs(environment.iter().copied()).args(words);
        command
    }

    async fn run(&self, words: &[&str], environment: &[(&str, &str)]) -> Output {
        let mut command = self.command(words, environment);
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }

    /// What a command says that ends with this code, and that it says no password.
    async fn ends(
        &self,
        code: i32,
        words: &[&str],
        environment: &[(&str, &str)],
        password: &str,
    ) -> String {
        let output = self.run(words, environment).await;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8(said).unwrap();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
        assert!(!said.contains(password), "{said}");
        said
    }
}

fn full() -> String {
    format!("sslmode=verify-full&sslrootcert={}", tls_file("authority.pem"))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_need_not_stand_in_the_arguments() {
    let database = servers::fresh_secure_postgres().await;
    let (desk, password) = (Desk::new(), database.server.password.as_str());
    let (whole, bare) =
        (database.at("localhost", &full()), database.without_password("localhost", &full()));
    let SecureDatabase { server, name, .. } = &database;
    let line = format!("localhost:{}:{name}:semel:{password}\n", server.port);
    let migrate = ["broker", "migrate"];
    let with_bare = ["broker", "migrate", "--store", &bare];

    desk.ends(0, &migrate, &[("SEMEL_STORE", &whole)], password).await;
    desk.ends(0, &migrate, &[("SEMEL_STORE", &bare), ("PGPASSWORD", password)], password).await;
    desk.ends(0, &with_bare, &[("PGPASSWORD", password)], password).await;
    desk.ends(0, &["broker", "migrate", "--store", &whole], &[], password).await;
    let kept = desk.file("store", &format!("{whole}\n"), 0o600);
    let in_file = ["broker", "migrate", "--store-file", text(&kept)];
    desk.ends(0, &in_file, &[("SEMEL_STORE", "sqlite:/nowhere/at/all")], password).await;
    let lines = desk.file("lines", &line, 0o600);
    desk.ends(0, &with_bare, &[("PGPASSFILE", text(&lines))], password).await;

    // Without any of it the server takes nobody.
    let said = desk.ends(78, &with_bare, &[], password).await;
    assert!(said.contains("password missing"), "{said}");
    let said = desk.ends(78, &with_bare, &[("PGPASSWORD", "wrong")], password).await;
    assert!(said.contains("password authentication failed"), "{said}");
    let said = desk.ends(2, &migrate, &[], password).await;
    assert!(said.contains("--store-file FILE, or SEMEL_STORE"), "{said}");

    // What others can read is no secret.
    fs::set_permissions(&kept, Permissions::from_mode(0o640)).unwrap();
    let said = desk.ends(78, &in_file, &[], password).await;
    assert!(said.contains("chmod 600"), "{said}");
    fs::set_permissions(&lines, Permissions::from_mode(0o644)).unwrap();
    let said = desk.ends(78, &with_bare, &[("PGPASSFILE", text(&lines))], password).await;
    assert!(said.contains("chmod 600"), "{said}");
    // A pipe without a writer is not waited for, and nobody is told to change a device's mode.
    let pipe = desk.file("pipe", "", 0o600);
    fs::remove_file(&pipe).unwrap();
    let made = rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    );
    made.unwrap();
    for place in [text(&pipe), "/dev/null"] {
        let said =
            desk.ends(78, &["broker", "migrate", "--store-file", place], &[], password).await;
        assert!(said.contains("it is not a file") && !said.contains("chmod"), "{said}");
    }
    let nowhere = [("PGPASSFILE", "/nowhere/pgpass")];
    desk.ends(78, &with_bare, &nowhere, password).await;
    let two = desk.file("two", &format!("{whole}\n{whole}\n"), 0o600);
    desk.ends(78, &["broker", "migrate", "--store-file", text(&two)], &[], password).await;

    // The usual file is found where it always is.
    desk.file(".pgpass", &format!("# ours\nelsewhere:*:*:*:wrong\n{line}"), 0o600);
    desk.ends(0, &with_bare, &[], password).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_reaches_its_store_over_tls() {
    let database = servers::fresh_secure_postgres().await;
    let (desk, password) = (Desk::new(), database.server.password.as_str());
    let store = desk.file("store", &database.at("localhost", &full()), 0o600);
    let store = text(&store);
    let restored = ["job", "restored", "--store-file", store];
    desk.ends(3, &restored, &[], password).await;
    let redis = servers::secure_redis();
    let authority = tls_file("authority.pem");
    let (port, secret) = (redis.port, &redis.password);
    let limiter = format!("rediss://:{secret}@localhost:{port}/?sslrootcert={authority}");
    let limiter = desk.file("limiter", &limiter, 0o600);
    let limiter = text(&limiter);
    let look = ["doctor", "--store-file", store, "--limiter-file", limiter];
    let output = desk.run(&look, &[]).await;
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("ok       PostgreSQL: it answers"), "{said}");
    assert!(said.contains("ok       Redis: it answers"), "{said}");
    assert!(!said.contains(password) && !said.contains(secret.as_str()), "{said}");

    let home = desk.0.path().join("engine");
    let words = ["job", "serve", "--json", "--store-file", store, "--home", text(&home)];
    let mut engine = desk.command(&words, &[]);
    engine.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut engine = engine.spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(engine.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    assert!(ready.contains("\"ready\""), "{ready}");
    assert_eq!(encrypted(&database).await, (true, true));
    engine.kill().unwrap();
    engine.wait().unwrap();
    desk.ends(0, &["broker", "migrate", "--store-file", store], &[], password).await;
    desk.ends(0, &["broker", "check", "--store-file", store], &[], password).await;
}

/// Whether anybody of ours is connected, and whether everybody of ours over TCP is encrypted.
async fn encrypted(database: &SecureDatabase) -> (bool, bool) {
    let connected = tokio_postgres::connect(&database.socket, tokio_postgres::NoTls).await;
    let (client, connection) = connected.unwrap();
    tokio::spawn(connection);
    let sql = "SELECT count(*) > 0, bool_and(ssl)
                 FROM pg_stat_activity JOIN pg_stat_ssl USING (pid)
                WHERE datname = current_database() AND application_name LIKE 'semel%'";
    let row = client.query_one(sql, &[]).await.unwrap();
    (row.get(0), row.get(1))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_in_the_arguments_is_told_and_never_repeated() {
    let database = servers::fresh_secure_postgres().await;
    let (desk, password) = (Desk::new(), database.server.password.as_str());
    let redis = servers::secure_redis();
    let (port, secret) = (redis.port, redis.password.as_str());
    let authority = tls_file("authority.pem");
    let limiter = format!("rediss://:{secret}@localhost:{port}/?sslrootcert={authority}");
    let log = desk.0.path().join("log");
    let stderr = || File::options().create(true).append(true).open(&log).unwrap().into();
    let store = database.at("localhost", &full());
    let mut broker =
        Broker::start_logging(stderr(), "127.0.0.1:0", &store, &["--limiter", &limiter]);
    assert_eq!(encrypted(&database).await, (true, true));
    assert_eq!(broker.stop(), Some(0));
    let said = fs::read_to_string(&log).unwrap();
    let told = said.lines().filter(|line| line.contains("every user of this machine")).count();
    assert_eq!(told, 2, "{said}");
    assert!(!said.contains(password) && !said.contains(secret), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_not_the_server_is_told_nothing() {
    let database = servers::fresh_secure_postgres().await;
    let (desk, password) = (Desk::new(), database.server.password.as_str());
    let other = format!("sslmode=verify-full&sslrootcert={}", tls_file("other.pem"));
    for (address, why) in [
        (database.at("localhost", &other), "UnknownIssuer"),
        (database.at("127.0.0.1", &full()), "not valid for name"),
        (database.at("localhost", "sslmode=verify-full"), "UnknownIssuer"),
        (database.at("localhost", "sslmode=disable"), "no encryption"),
        // Neither of these is asked.
        (format!("postgres://me:{password}@192.0.2.1/d?sslmode=disable"), "would be plain text"),
        (format!("postgres://me:{password}@db.example/d?sslmode=disable"), "would be plain text"),
        (database.at("localhost", "sslmode=any"), "has an sslmode that is none of"),
        (database.at("localhost", "sslrootcert=/nowhere/ca.pem"), "/nowhere/ca.pem cannot be used"),
    ] {
        let said = desk.ends(78, &["broker", "migrate", "--store", &address], &[], password).await;
        assert!(said.contains(why), "{said}");
        let home = desk.0.path().join("engine");
        let serve = ["job", "serve", "--store", &address, "--home", text(&home)];
        let said = desk.ends(78, &serve, &[], password).await;
        assert!(said.contains(why), "{said}");
    }
    let words = ["broker", "serve", "--listen", "127.0.0.1:0", "--store", "sqlite:/nowhere/b.db"];
    let limiter = [&words[..], &["--limiter", "redis://:secret@192.0.2.1"]].concat();
    let said = desk.ends(78, &limiter, &[], "secret").await;
    assert!(said.contains("would be plain text"), "{said}");

    let address = impostor(&desk).await;
    for mode in ["verify-full", "verify-ca"] {
        let authority = desk.0.path().join("ca.pem");
        let query = format!("sslmode={mode}&sslrootcert={}", text(&authority));
        let store = format!("postgres://me:{password}@{address}/d?{query}");
        let said = desk.ends(78, &["broker", "migrate", "--store", &store], &[], password).await;
        assert!(said.contains("expired") || said.contains("Expired"), "{said}");
    }
}

/// A server with a certificate that was good once. It panics if anybody goes on after the
/// handshake.
async fn impostor(desk: &Desk) -> String {
    let issuer = authority();
    fs::write(desk.0.path().join("ca.pem"), issuer.pem()).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.not_after = date_time_ymd(2020, 1, 1);
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let secret = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], secret)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.read_exact(&mut [0; 8]).await.unwrap();
            stream.write_all(b"S").await.unwrap();
            if acceptor.accept(stream).await.is_ok() {
                std::process::abort();
            }
        }
    });
    format!("localhost:{port}")
}
