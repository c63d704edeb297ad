//! The limiter's server over TLS: who is believed, and what anybody else hears.

use std::sync::Arc;
use std::time::Duration;

use semel_broker::limiter::{DecidedBy, Limiter, LimiterAddressError};
use semel_testkit::clock::SimClock;
use semel_testkit::servers::{self, tls_file};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use super::{closed, request};

fn limiter(address: &str) -> Result<Limiter, LimiterAddressError> {
    Limiter::redis(address, Arc::new(SimClock::at_ms(0)), closed())
}

async fn decider(address: &str) -> DecidedBy {
    let limiter = limiter(address).unwrap();
    limiter.take(&request(&servers::redis_prefix(), "a", "1", 4)).await.by
}

#[tokio::test]
async fn a_server_that_proves_its_name_is_believed() {
    let server = servers::secure_redis();
    let at = |host: &str, authority: &str| {
        let (port, password) = (server.port, &server.password);
        format!("rediss://:{password}@{host}:{port}/?sslrootcert={}", tls_file(authority))
    };
    assert_eq!(decider(&at("localhost", "authority.pem")).await, DecidedBy::Limiter);
    for address in [
        at("127.0.0.1", "authority.pem"),
        at("localhost", "other.pem"),
        format!("rediss://:{}@localhost:{}/", server.password, server.port),
        format!("redis://:{}@localhost:{}/", server.password, server.port),
    ] {
        assert_eq!(decider(&address).await, DecidedBy::Fallback, "{address}");
    }
}

#[tokio::test]
async fn a_server_without_tls_hears_no_password() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut heard = vec![0; 5];
        stream.read_exact(&mut heard).await.unwrap();
        // What is no TLS ends the handshake.
        let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, b"-NOAUTH\r\n").await;
        let _ = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut heard)).await;
        heard
    });
    let authority = tls_file("authority.pem");
    let address = format!("rediss://:hunter2@localhost:{port}/?sslrootcert={authority}");
    assert_eq!(decider(&address).await, DecidedBy::Fallback);
    let heard = heard.await.unwrap();
    // A handshake of TLS.
    assert_eq!(heard[..2], [22, 3]);
    let text = String::from_utf8_lossy(&heard);
    assert!(!text.contains("hunter2") && !text.contains("AUTH"), "{text}");
}

#[test]
fn plain_text_stays_on_this_machine() {
    for address in ["redis://cache.example", "redis://192.0.2.1:6379", "redis://[2001:db8::1]"] {
        let refused = limiter(address).map(drop);
        assert!(matches!(refused, Err(LimiterAddressError::PlainText { .. })), "{address}");
        assert!(limiter(&format!("{address}?insecure_allow_plain=true")).is_ok(), "{address}");
    }
    for address in ["redis://localhost", "redis://127.9.9.9", "redis://[::1]", "unix:///run/redis"]
    {
        assert!(limiter(address).is_ok(), "{address}");
    }
}
