//! PostgreSQL over TLS: who is believed, that every connection is encrypted, and that nothing is
//! said to anybody else.

use std::net::SocketAddr;
use std::time::Duration;

use semel_store::OpenError;
use semel_store::postgres::{Heard, Passwords, Postgres, PostgresOptions};
use semel_testkit::servers::{self, SecureDatabase, tls_file};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::ITEMS;

async fn open(address: &str) -> Result<Postgres, OpenError> {
    Postgres::open(PostgresOptions::new(address), &[ITEMS], 0).await
}

fn trusting(mode: &str, authority: &str) -> String {
    format!("sslmode={mode}&sslrootcert={}", tls_file(authority))
}

/// Connections of ours to this database, and those of them that are encrypted.
async fn connections(postgres: &Postgres) -> (i64, i64) {
    let sql = "SELECT count(*), count(*) FILTER (WHERE ssl)
                 FROM pg_stat_activity JOIN pg_stat_ssl USING (pid)
                WHERE datname = current_database() AND application_name LIKE 'semel%'";
    let rows = postgres.read(sql, &[]).await.unwrap();
    (rows[0].get(0), rows[0].get(1))
}

#[tokio::test]
async fn everything_is_said_inside_tls() {
    let database = servers::fresh_secure_postgres().await;
    let full = trusting("verify-full", "authority.pem");
    let postgres = open(&database.at("localhost", &full)).await.unwrap();
    let (notifier, mut listener) = postgres.listen("hints").unwrap();
    assert_eq!(listener.next().await.unwrap(), Heard::Connected);
    notifier.notify("one").await.unwrap();
    assert_eq!(listener.next().await.unwrap(), Heard::Notified("one".to_owned()));
    let (all, encrypted) = connections(&postgres).await;
    assert!(all >= 2 && all == encrypted, "{all} {encrypted}");
}

#[tokio::test]
async fn modes_believe_whom_libpq_believes() {
    let database = servers::fresh_secure_postgres().await;
    let at = |host: &str, query: &str| database.at(host, query);
    let by_name = format!("hostaddr=127.0.0.1&{}", trusting("verify-full", "authority.pem"));
    for address in [
        at("db.example", &by_name),
        at("127.0.0.1", &trusting("verify-ca", "authority.pem")),
        at("127.0.0.1", &trusting("require", "authority.pem")),
        at("127.0.0.1", "sslmode=require"),
        // The server takes nobody over TCP without it.
        at("127.0.0.1", "sslmode=prefer"),
        at("127.0.0.1", ""),
        at("127.0.0.1", "channel_binding=require&sslmode=require"),
        database.socket.clone(),
    ] {
        let postgres = open(&address).await;
        let postgres = postgres.unwrap_or_else(|error| panic!("{address}: {error:?}"));
        let (all, encrypted) = connections(&postgres).await;
        assert!(all >= 1);
        assert_eq!(all == encrypted, address != database.socket, "{address}");
    }
    for (address, why) in [
        (at("127.0.0.1", &trusting("verify-full", "authority.pem")), "NotValidForName"),
        (at("localhost", &trusting("verify-full", "other.pem")), "UnknownIssuer"),
        (at("localhost", &trusting("verify-ca", "other.pem")), "UnknownIssuer"),
        (at("localhost", &trusting("require", "other.pem")), "UnknownIssuer"),
        // Whom a file names is who it must be.
        (at("127.0.0.1", &format!("sslrootcert={}", tls_file("authority.pem"))), "NotValidForName"),
        (at("localhost", "sslmode=verify-full"), "UnknownIssuer"),
        (at("localhost", "sslmode=verify-ca&sslrootcert=system"), "UnknownIssuer"),
    ] {
        match open(&address).await.map(drop) {
            Err(OpenError::Untrusted(said)) => {
                assert!(format!("{said:?}").contains(why) || why == "NotValidForName", "{said}");
            }
            other => panic!("{address}: {other:?}"),
        }
    }
    match open(&at("localhost", "sslmode=disable")).await.map(drop) {
        Err(OpenError::Postgres(said)) => assert!(said.contains("no encryption"), "{said}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_certificate_takes_the_place_of_a_password() {
    let SecureDatabase { server, name, socket } = servers::fresh_secure_postgres().await;
    let postgres = open(&socket).await.unwrap();
    let role = "DO $$ BEGIN CREATE ROLE semel_client LOGIN SUPERUSER;
                EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$";
    postgres.write(role, &[]).await.unwrap();
    let front = format!("postgres://semel_client@localhost:{}/{name}", server.port);
    let full = trusting("verify-full", "authority.pem");
    let (certificate, key) = (tls_file("client.pem"), tls_file("client-key.pem"));
    let shown = format!("{front}?{full}&sslcert={certificate}&sslkey={key}");
    open(&shown).await.unwrap();
    let refused = open(&format!("{front}?{full}")).await.map(drop);
    assert!(matches!(refused, Err(OpenError::Postgres(_))), "{refused:?}");
    let alone = open(&format!("{front}?{full}&sslcert={certificate}")).await.map(drop);
    assert!(matches!(alone, Err(OpenError::Tls(_))), "{alone:?}");
    // A key that others can read is used no more.
    let folder = tempfile::tempdir().unwrap();
    let open_key = folder.path().join("key.pem");
    std::fs::copy(&key, &open_key).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&open_key, mode).unwrap();
    let shown = format!("{front}?{full}&sslcert={certificate}&sslkey={}", open_key.display());
    match open(&shown).await.map(drop) {
        Err(error @ OpenError::Tls(_)) => assert!(format!("{error:?}").contains("chmod 600")),
        other => panic!("{other:?}"),
    }
}

/// Answers every request for TLS with this byte, and keeps what it hears after that.
async fn recorder(answer: &'static [u8]) -> (SocketAddr, tokio::task::JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let heard = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut heard = vec![0; 8];
        stream.read_exact(&mut heard).await.unwrap();
        stream.write_all(answer).await.unwrap();
        let _ = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut heard)).await;
        heard
    });
    (address, heard)
}

#[tokio::test]
async fn a_server_without_tls_hears_nothing() {
    const ASKED: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
    for query in [
        "sslmode=require".to_owned(),
        "sslmode=verify-full".to_owned(),
        trusting("verify-ca", "authority.pem"),
        format!("sslrootcert={}", tls_file("authority.pem")),
    ] {
        let (address, heard) = recorder(b"N").await;
        let mut options = PostgresOptions::new(format!("postgres://semel@{address}/d?{query}"));
        let word = Some("a password".to_owned());
        options.passwords = Passwords { word, lines: None };
        let refused = Postgres::open(options, &[], 0).await.map(drop);
        assert!(matches!(refused, Err(OpenError::Postgres(_))), "{query}: {refused:?}");
        assert_eq!(heard.await.unwrap(), ASKED, "{query}");
    }
}
