//! A broker gets another certificate while daemons are connected, of the same authority and of
//! another one: who is cut off then comes back, as soon as it trusts what it is shown.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use rustls::pki_types::CertificateDer;

use crate::joined::{Mesh, Serving, connected, json, run};
use crate::tls::{Files, port};

/// Stands before a broker, and can cut every connection to it.
struct Relay {
    port: u16,
    carried: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    /// It lives as long as the test's process.
    fn to(broker: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let carried = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&carried);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(broker) = TcpStream::connect(("127.0.0.1", broker)) else { continue };
                kept.lock().unwrap().push(client.try_clone().unwrap());
                carry(client.try_clone().unwrap(), broker.try_clone().unwrap());
                carry(broker, client);
            }
        });
        Self { port, carried }
    }

    fn count(&self) -> usize {
        self.carried.lock().unwrap().len()
    }

    fn cut(&self) {
        for stream in self.carried.lock().unwrap().iter() {
            // It may have ended already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Until one side ends; then the other one does, too.
fn carry(mut from: TcpStream, mut to: TcpStream) {
    std::thread::spawn(move || {
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    });
}

/// What the broker shows to somebody who trusts this authority; nothing to somebody who does not.
async fn shown(files: &Files, url: &str) -> Option<CertificateDer<'static>> {
    let stream = files.try_connect(url).await.ok()?;
    stream.get_ref().1.peer_certificates()?.first().cloned().map(CertificateDer::into_owned)
}

/// A mesh, a host in it behind a relay, and its daemon.
struct Joined {
    mesh: Mesh,
    relay: Relay,
    home: String,
}

impl Joined {
    fn new() -> Self {
        let mesh = Mesh::at("127.0.0.1:0", Files::new(), "localhost");
        let relay = Relay::to(port(&mesh.url));
        let invite = mesh.invite(&format!("https://localhost:{}", relay.port));
        let (home, ca) = (mesh.files.path("home"), mesh.files.path("ca.pem"));
        let join = ["mesh", "join", &invite, "--name", "bob", "--home", &home, "--json"];
        json(&[&join[..], &["--broker-ca", &ca]].concat());
        Self { mesh, relay, home }
    }

    fn up(&self, more: &[&str]) -> Serving {
        let up = ["daemon", "up", "--persistent", "--no-tcp", "--json", "--home", &self.home];
        let daemon = Serving::start(&[&up[..], more].concat());
        connected(&self.home);
        daemon
    }

    fn sends(&self, key: &str) {
        let send = ["send", "@bob", "hello", "--key", key, "--wait", "--json"];
        assert_eq!(json(&[&send[..], &["--home", &self.home]].concat())["status"], "done");
    }

    /// Waits until the daemon, cut off, has tried again.
    fn cut(&self) {
        let before = self.relay.count();
        self.relay.cut();
        while self.relay.count() == before {
            std::thread::yield_now();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connected_daemon_outlives_a_renewal() {
    let joined = Joined::new();
    let mut daemon = joined.up(&[]);
    joined.sends("before");
    let (files, url) = (&joined.mesh.files, &joined.mesh.broker.url);
    for key in ["first", "second"] {
        let renewed = files.renew();
        joined.mesh.broker.hang_up();
        while shown(files, url).await.as_ref() != Some(&renewed) {
            tokio::task::yield_now().await;
        }
        // Who is connected stays so, and who comes back is shown the new one.
        joined.sends(&format!("{key}-on-the-old-connection"));
        joined.cut();
        joined.sends(&format!("{key}-on-a-new-connection"));
    }
    assert_eq!(daemon.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_is_told_of_another_authority_trusts_it_and_no_longer_the_old_one() {
    let mut joined = Joined::new();
    let named = joined.mesh.files.path("named.pem");
    std::fs::copy(joined.mesh.files.path("ca.pem"), &named).unwrap();
    let kept = format!("{}/daemon/test/broker_ca.pem", joined.home);
    let mut now: Option<Files> = None;
    for (number, (flags, authorities)) in
        [(&[][..], &kept), (&["--broker-ca", &named][..], &named)].into_iter().enumerate()
    {
        let now_files = now.as_ref().unwrap_or(&joined.mesh.files);
        std::fs::copy(now_files.path("ca.pem"), authorities).unwrap();
        let mut daemon = joined.up(flags);
        joined.sends(&format!("before-{number}"));
        let other = Files::new();
        for name in ["cert.pem", "key.pem"] {
            std::fs::copy(other.path(name), joined.mesh.files.path(name)).unwrap();
        }
        // A new process: it knows no session that could be resumed without a look at it.
        joined.mesh.restart();
        let shows = shown(&other, &joined.mesh.broker.url).await;
        assert!(shows.is_some(), "the other authority vouches for it");
        let status = ["daemon", "status", "--json", "--home", &joined.home];
        let refuses = || {
            let status = json(&status);
            let why = status["last_error"].as_str().unwrap_or_default();
            status["connected"] == false && why.contains("certificate")
        };
        while !refuses() {
            std::thread::yield_now();
        }
        // What holds no authority changes nothing: nobody is trusted instead.
        std::fs::write(authorities, "no authority").unwrap();
        let reload = ["daemon", "reload", "--home", &joined.home];
        let refused = run(&reload);
        let text = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(78), "{text}");
        assert!(
            text.contains("config_refused") && text.contains("no certificate authority"),
            "{text}"
        );
        assert!(refuses());
        std::fs::copy(other.path("ca.pem"), authorities).unwrap();
        let reloaded = run(&reload);
        assert!(reloaded.status.success(), "{reloaded:?}");
        connected(&joined.home);
        joined.sends(&format!("after-{number}"));
        assert_eq!(daemon.stop(), Some(0));
        now = Some(other);
    }
}
