//! SIGHUP: the certificate is read again, and nothing else is touched.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::process::Broker;
use crate::tls::Files;

async fn alive(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: broker\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nok\n") {
        answer.push(stream.read_u8().await.unwrap());
    }
}

fn said(log: &Path, text: &str) {
    while !std::fs::read_to_string(log).unwrap().contains(text) {
        std::thread::yield_now();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_certificate_is_shown_to_who_comes_next() {
    let (files, renewed) = (Files::new(), Files::new());
    let (cert, key, log) = (files.path("cert.pem"), files.path("key.pem"), files.path("log"));
    let flags = ["--tls-cert", &cert, "--tls-key", &key];
    let logging = Stdio::from(File::create(&log).unwrap());
    let mut broker = Broker::start_logging(logging, "127.0.0.1:0", &files.store(), &flags);
    let mut old = files.connect(&broker.url).await;
    alive(&mut old).await;
    std::fs::copy(renewed.path("cert.pem"), &cert).unwrap();
    std::fs::copy(renewed.path("key.pem"), &key).unwrap();
    broker.hang_up();
    said(Path::new(&log), "the certificate was reloaded");
    let mut new = renewed.connect(&broker.url).await;
    assert!(files.try_connect(&broker.url).await.is_err(), "the old one is not shown any more");
    alive(&mut new).await;
    alive(&mut old).await;
    // What cannot be used changes nothing.
    std::fs::write(&cert, "no certificate").unwrap();
    broker.hang_up();
    said(Path::new(&log), "the old certificate stays in use");
    alive(&mut renewed.connect(&broker.url).await).await;
    alive(&mut old).await;
    drop((old, new));
    assert_eq!(broker.stop(), Some(0));
}

#[test]
fn a_broker_without_a_certificate_outlives_it() {
    let files = Files::new();
    let log = files.path("log");
    let logging = Stdio::from(File::create(&log).unwrap());
    let mut broker = Broker::start_logging(logging, "127.0.0.1:0", &files.store(), &[]);
    broker.hang_up();
    said(Path::new(&log), "there is no certificate to reload");
    assert_eq!(broker.stop(), Some(0));
}
