//! The door itself: who is slow, silent, one too many, or speaks another language.

use std::sync::Arc;
use std::time::Duration;

use rcgen::CertifiedKey;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use semel_broker::server::Options;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::client::{Daemon, PATIENCE, Served, get, get_over, serve_behind};
use crate::support;

/// Shorter than the limits that are not set here, so that those cannot pass for the one that is.
const SOON: Duration = Duration::from_secs(8);
const SHORT: Duration = Duration::from_millis(100);

#[tokio::test(flavor = "multi_thread")]
async fn half_a_request_is_not_waited_for() {
    let mut options = Options::default();
    options.connections.head_timeout = SHORT;
    let served = serve_behind(support::sqlite().await, options).await;
    for half in ["", "GET /healthz HT", "GET /healthz HTTP/1.1\r\nHost: broker\r\n"] {
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        stream.write_all(half.as_bytes()).await.unwrap();
        let said = ends(&mut stream).await;
        assert!(!said.starts_with(b"HTTP/1.1 200"), "{half:?}");
    }
    // A WebSocket is no request any more: the limit is not for it.
    let mut daemon = Daemon::welcomed(served.address, 0).await;
    assert!(timeout(SHORT * 3, daemon.next()).await.is_err(), "it was closed");
    assert_eq!(get(served.address, "/healthz").await, (200, "ok\n".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_has_a_size() {
    let served = serve_behind(support::sqlite().await, Options::default()).await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    let head =
        format!("GET /healthz HTTP/1.1\r\nHost: broker\r\nX: {}\r\n\r\n", "x".repeat(80_000));
    // It may be closed before everything is written.
    let _ = stream.write_all(head.as_bytes()).await;
    let said = ends(&mut stream).await;
    assert!(!said.starts_with(b"HTTP/1.1 200"));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_daemon_too_many_waits_until_one_leaves() {
    let mut options = Options::default();
    options.connections.connections_max = 2;
    let served = serve_behind(support::sqlite().await, options).await;
    let first = Daemon::welcomed(served.address, 0).await;
    let mut second = Daemon::welcomed(served.address, 1).await;
    let address = served.address;
    let mut third = tokio::spawn(async move { Daemon::welcomed(address, 2).await });
    assert!(timeout(SHORT, &mut third).await.is_err(), "there is no room");
    // Strangers have places of their own.
    assert_eq!(get(address, "/healthz").await.0, 200);
    drop(first);
    drop(timeout(PATIENCE, third).await.unwrap().unwrap());
    // Who was inside has noticed nothing.
    let sent = second.send(crate::client::send_frame("one", ("topic", "builds"), "hi")).await;
    assert_eq!(sent.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_stranger_makes_room_for_the_next() {
    let mut options = Options::default();
    options.connections.strangers.strangers_max = 4;
    let served = serve_behind(support::sqlite().await, options).await;
    let mut inside = Daemon::welcomed(served.address, 0).await;
    let mut silent = Vec::new();
    for _ in 0..16 {
        silent.push(TcpStream::connect(served.address).await.unwrap());
    }
    // Long before any of their time limits.
    let _late = timeout(SOON, Daemon::welcomed(served.address, 1)).await.expect("there is room");
    ends(&mut silent[0]).await;
    let sent = inside.send(crate::client::send_frame("one", ("topic", "builds"), "hi")).await;
    assert_eq!(sent.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_stays_for_so_long_whatever_it_does() {
    let mut options = Options::default();
    options.connections.strangers.life = SHORT * 3;
    let served = serve_behind(support::sqlite().await, options).await;
    // Asks for something all the time.
    let mut busy = TcpStream::connect(served.address).await.unwrap();
    let request = b"GET /healthz HTTP/1.1\r\nHost: broker\r\n\r\n";
    let mut answer = [0; 1024];
    let closed = async {
        while busy.write_all(request).await.is_ok()
            && matches!(busy.read(&mut answer).await, Ok(1..))
        {}
    };
    timeout(SOON, closed).await.expect("it is closed");
    // Asks and does not read.
    let mut deaf = TcpStream::connect(served.address).await.unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nHost: broker\r\n\r\n";
    let closed = async { while deaf.write_all(request).await.is_ok() {} };
    timeout(SOON, closed).await.expect("it is closed");
    // Says nothing once it is a WebSocket.
    let mut mute = Daemon::connect(served.address).await;
    timeout(SOON, mute.closed()).await.expect("it is closed");
    // And who is known stays.
    let mut daemon = Daemon::welcomed(served.address, 0).await;
    assert!(timeout(SHORT * 6, daemon.next()).await.is_err(), "it was closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_says_much_before_its_hello() {
    let served = serve_behind(support::sqlite().await, Options::default()).await;
    let mut loud = Daemon::connect(served.address).await;
    let hello = loud.hello(0);
    loud.say_text(&"x".repeat(15 << 20)).await;
    loud.say(&semel_wire::frame::FromDaemon::Hello(hello)).await;
    timeout(SOON, loud.closed()).await.expect("it is closed before the limit of its hello");
    // What is a little too much is told so.
    let mut wordy = Daemon::connect(served.address).await;
    wordy.say_text(&"x".repeat(16_500)).await;
    assert_eq!(timeout(SOON, wordy.closed()).await.unwrap().code, 4008);
    // Who was let in may say more.
    let mut daemon = Daemon::welcomed(served.address, 0).await;
    let large = "x".repeat(50_000);
    let sent = daemon.send(crate::client::send_frame("one", ("topic", "builds"), &large)).await;
    assert_eq!(sent.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_waits_for_those_inside_and_for_nobody_else() {
    let (mut served, _) = serve_tls(Options::default()).await;
    // Silent in its TLS handshake, and so not worth waiting for.
    let mut silent = TcpStream::connect(served.address).await.unwrap();
    served.stop.take().unwrap().send(()).unwrap();
    timeout(SOON, served.stopped).await.expect("it ends at once").unwrap().unwrap();
    ends(&mut silent).await;
    assert!(TcpStream::connect(served.address).await.is_err(), "nobody is let in any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_greets_while_the_broker_stops_is_sent_away() {
    let mut served = serve_behind(support::sqlite().await, Options::default()).await;
    let mut late = Daemon::connect(served.address).await;
    served.stop.take().unwrap().send(()).unwrap();
    let closing = async { while TcpStream::connect(served.address).await.is_ok() {} };
    timeout(SOON, closing).await.expect("nobody is let in any more");
    assert!(!served.stopped.is_finished(), "somebody is inside");
    let hello = late.hello(0);
    late.say(&semel_wire::frame::FromDaemon::Hello(hello)).await;
    assert_eq!(timeout(SOON, late.closed()).await.unwrap().code, 4013);
    drop(late);
    timeout(SOON, served.stopped).await.expect("it ends then").unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_handshakes_stop_nobody() {
    let (served, connector) = serve_tls(Options::default()).await;
    let mut silent = Vec::new();
    for _ in 0..16 {
        silent.push(TcpStream::connect(served.address).await.unwrap());
    }
    // One of them has begun to say something.
    silent[0].write_all(&[22, 3, 1]).await.unwrap();
    let answered = timeout(SOON, get_tls(&served, &connector, "/healthz")).await;
    assert_eq!(answered.expect("nobody waits for them"), (200, "ok\n".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_has_a_time_limit() {
    let options = Options { tls_handshake_timeout: SHORT, ..Options::default() };
    let (served, connector) = serve_tls(options).await;
    let mut silent = TcpStream::connect(served.address).await.unwrap();
    assert!(ends(&mut silent).await.is_empty());
    assert_eq!(get_tls(&served, &connector, "/readyz").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_text_gets_nothing_from_a_tls_door() {
    let (served, connector) = serve_tls(Options::default()).await;
    for _ in 0..3 {
        let mut plain = TcpStream::connect(served.address).await.unwrap();
        let request = b"GET /healthz HTTP/1.1\r\nHost: broker\r\nConnection: close\r\n\r\n";
        plain.write_all(request).await.unwrap();
        let said = ends(&mut plain).await;
        assert!(!said.starts_with(b"HTTP"), "{said:?}");
    }
    let stream = TcpStream::connect(served.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = connector.connect(name, stream).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    assert_eq!(get_over(stream, "/healthz").await.0, 200);
}

/// What is said up to the end of the connection.
async fn ends(stream: &mut TcpStream) -> Vec<u8> {
    let mut said = Vec::new();
    // A reset is an end too.
    let _ = timeout(SOON, stream.read_to_end(&mut said)).await.expect("it ends");
    said
}

async fn get_tls(served: &Served, connector: &TlsConnector, path: &str) -> (u16, String) {
    let stream = TcpStream::connect(served.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    get_over(connector.connect(name, stream).await.unwrap(), path).await
}

/// A broker that speaks TLS, and who trusts it.
async fn serve_tls(mut options: Options) -> (Served, TlsConnector) {
    let CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let provider: Arc<CryptoProvider> = Arc::new(aws_lc_rs::default_provider());
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    server.alpn_protocols = vec![b"http/1.1".to_vec()];
    options.tls = Some(Arc::new(server));
    let mut roots = RootCertStore::empty();
    roots.add(cert.der().clone()).unwrap();
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.alpn_protocols = vec![b"http/1.1".to_vec()];
    let served = serve_behind(support::sqlite().await, options).await;
    (served, TlsConnector::from(Arc::new(client)))
}
