//! A broker that speaks TLS, and what it says of certificates that are none.

use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use semel_wire::frame::{FromBroker, FromDaemon};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::daemon::{Daemon, dm, pubkey};
use crate::process::{Broker, semel, succeeds};

/// A folder with a private authority (`ca.pem`), a certificate that it has signed (`cert.pem`), the
/// key of that, and a store.
pub(crate) struct Files {
    folder: tempfile::TempDir,
    name: String,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

pub(crate) fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

impl Files {
    pub(crate) fn new() -> Self {
        Self::of("localhost")
    }

    /// The same for another name, or an address.
    pub(crate) fn of(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let files = Self { folder, name: name.to_owned(), issuer: authority() };
        std::fs::write(files.path("ca.pem"), files.issuer.pem()).unwrap();
        files.renew();
        files
    }

    /// A new certificate of the same authority, with a new key, in the place of the last.
    pub(crate) fn renew(&self) -> CertificateDer<'static> {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([self.name.clone()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(self.path("cert.pem"), certificate.pem()).unwrap();
        std::fs::write(self.path("key.pem"), key.serialize_pem()).unwrap();
        certificate.der().clone()
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    pub(crate) fn store(&self) -> String {
        format!("sqlite:{}", self.path("broker.db"))
    }

    /// A TLS connection to the broker's port by somebody who trusts its authority.
    pub(crate) async fn connect(&self, url: &str) -> TlsStream<TcpStream> {
        self.try_connect(url).await.unwrap()
    }

    /// The same, where it may show another one.
    pub(crate) async fn try_connect(&self, url: &str) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let client = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = TlsConnector::from(Arc::new(client));
        let stream = TcpStream::connect(("127.0.0.1", port(url))).await.unwrap();
        connector.connect(ServerName::try_from("localhost").unwrap(), stream).await
    }
}

pub(crate) fn port(url: &str) -> u16 {
    let (_, rest) = url.rsplit_once(':').unwrap();
    rest.trim_end_matches("/v1/mesh").parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_travels_over_tls() {
    let files = Files::new();
    let (store, cert, key) = (files.store(), files.path("cert.pem"), files.path("key.pem"));
    // With TLS, an address that others can reach needs no further word.
    let flags = ["--tls-cert", &cert, "--tls-key", &key];
    let mut broker = Broker::start_at("0.0.0.0:0", &store, &flags);
    assert!(broker.url.starts_with("wss://"), "{}", broker.url);
    let owner = pubkey(1);
    let create = ["broker", "mesh", "create", "test", "--owner", "ada", "--owner-key", &owner];
    succeeds(&[&create[..], &["--store", &store]].concat());

    let stream = files.connect(&broker.url).await;
    let url = "wss://localhost/v1/mesh";
    let (socket, _) = tokio_tungstenite::client_async(url, stream).await.unwrap();
    let mut ada = Daemon::greet(socket, 1).await.expect("the owner is let in");
    ada.say(&FromDaemon::Send(dm("one", &owner, "hello"))).await.unwrap();
    let (mut accepted, mut pushed) = (None, None);
    while accepted.is_none() || pushed.is_none() {
        match ada.next().await {
            Some(FromBroker::SendResult(result)) => accepted = Some(result.status),
            Some(FromBroker::Push(push)) => pushed = Some(push.deliveries[0].body.clone()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((accepted, pushed.as_deref()), (Some(201), Some(&b"hello"[..])));

    let mut scrape = files.connect(&broker.url).await;
    let request = b"GET /metrics HTTP/1.1\r\nHost: broker\r\nConnection: close\r\n\r\n";
    scrape.write_all(request).await.unwrap();
    let mut text = String::new();
    let _ = scrape.read_to_string(&mut text).await;
    assert!(text.contains("content-type: application/openmetrics-text"), "{text}");
    assert!(text.contains("\nsemel_broker_connections 1\n"), "{text}");
    assert!(
        text.contains(r#"semel_broker_accepts_total{mesh="test",result="accepted"} 1"#),
        "{text}"
    );

    // The end of the process waits until everybody is told.
    assert_eq!(broker.stop(), Some(0));
    match ada.next().await {
        Some(FromBroker::CloseReason(reason)) => assert_eq!(reason.kind.code().as_u16(), 4013),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_cannot_be_used_for_tls_is_refused_by_name() {
    let (files, others) = (Files::new(), Files::new());
    let (cert, key, other_key) =
        (files.path("cert.pem"), files.path("key.pem"), others.path("key.pem"));
    let (missing, empty, damaged) =
        (files.path("missing"), files.path("empty"), files.path("damaged"));
    std::fs::write(&empty, "").unwrap();
    std::fs::write(&damaged, "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n")
        .unwrap();
    let cases: [(&str, &str, &str); 7] = [
        (&missing, &key, "missing cannot be used for TLS"),
        (&cert, &missing, "missing cannot be used for TLS"),
        (&empty, &key, "it has no certificate"),
        (&damaged, &key, "damaged cannot be used for TLS"),
        (&cert, &cert, "it has no readable private key"),
        (&key, &key, "it has no certificate"),
        (&cert, &other_key, "cert.pem cannot be used for TLS: with the key"),
    ];
    let store = files.store();
    for (cert, key, text) in cases {
        let output =
            semel(&["broker", "serve", "--store", &store, "--tls-cert", cert, "--tls-key", key]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{cert} {key}: {errors}");
        assert!(errors.contains(text), "{cert} {key}: {errors}");
        assert!(!errors.contains("BEGIN"), "{errors}");
    }
    for half in ["--tls-cert", "--tls-key"] {
        let output = semel(&["broker", "serve", "--store", &store, half, &cert]);
        assert_eq!(output.status.code(), Some(2), "{half} alone");
    }
    assert!(!Path::new(&files.path("broker.db")).exists(), "no store was touched");
}

/// The registrar's verbs show a token and a grant: over TLS to whom is trusted, and in plain text
/// to nobody else than this machine.
#[test]
fn the_registrars_verbs_speak_tls() {
    let (files, others) = (Files::new(), Files::new());
    let (store, cert, key) = (files.store(), files.path("cert.pem"), files.path("key.pem"));
    let (token, ca, other_ca) = (files.path("token"), files.path("ca.pem"), others.path("ca.pem"));
    let flags = ["--tls-cert", &cert, "--tls-key", &key, "--admin-token-file", &token];
    let broker = Broker::start(&store, &flags);
    let url = format!("https://localhost:{}/", port(&broker.url));
    let verb = ["registrar", "gate", "open", "deploys", "--admin-token-file", &token];
    let asked = |broker: &str, ca: &[&str]| semel(&[&verb[..], &["--broker", broker], ca].concat());

    let opened = asked(&url, &["--broker-ca", &ca]);
    assert_eq!(opened.status.code(), Some(0), "{}", String::from_utf8_lossy(&opened.stderr));
    let said = String::from_utf8_lossy(&opened.stdout);
    assert_eq!(said.trim(), "deploys: open, CAN_PROCEED = YES");

    // An authority that vouches for somebody else, the system's, and a name that is not in it.
    let by_number = format!("https://127.0.0.1:{}", port(&broker.url));
    let cases: [(&str, &[&str], i32, &str); 6] = [
        (&url, &["--broker-ca", &other_ca], 5, "certificate"),
        (&by_number, &["--broker-ca", &ca], 5, "certificate"),
        ("http://192.0.2.1:7117", &[], 78, "plain_text_refused"),
        ("http://[2001:db8::1]", &[], 78, "plain_text_refused"),
        ("ftp://localhost", &[], 2, "--broker must be https://"),
        (&url, &["--broker-ca", &token], 78, "it has no certificate authority"),
    ];
    for (broker, ca, exit, text) in cases {
        let output = asked(broker, ca);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(exit), "{broker} {ca:?}: {errors}");
        assert!(errors.contains(text), "{broker} {ca:?}: {errors}");
    }
    // Plain text at a door that speaks TLS is no answer, and no panic.
    let plain = asked(&url.replace("https", "http"), &[]);
    assert_eq!(plain.status.code(), Some(6), "{}", String::from_utf8_lossy(&plain.stderr));
}
