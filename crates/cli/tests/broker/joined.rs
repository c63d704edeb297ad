//! A host that joins over TLS goes on over TLS: by the invite, at every start, as an ephemeral
//! member, and when it invites others. No secret is said before the handshake.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};
use semel_daemon::environment::VARIABLES;
use semel_wire::link::JoinLink;
use serde_json::Value;

use crate::daemon::pubkey;
use crate::process::{Broker, succeeds};
use crate::tls::{Files, port};

/// The binary on a machine of its own, with no tuning from where these tests run.
pub(crate) fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    for name in ["SEMEL_HOME", "SEMEL_INVITE"].iter().chain(VARIABLES) {
        command.env_remove(name);
    }
    command.args(arguments);
    command
}

pub(crate) fn run(arguments: &[&str]) -> Output {
    program(arguments).output().unwrap()
}

pub(crate) fn json(arguments: &[&str]) -> Value {
    let output = run(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A daemon in the foreground.
pub(crate) struct Serving {
    child: Child,
    pub(crate) ready: Value,
}

impl Serving {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::of(program(arguments))
    }

    /// The same of a command that is more than the binary.
    pub(crate) fn of(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready = serde_json::from_str(&line).unwrap_or_else(|_| panic!("not ready: {line:?}"));
        Self { child, ready }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn stop(&mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        self.stop_code()
    }

    /// The exit code of a process that was asked to end.
    pub(crate) fn stop_code(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn connected(home: &str) {
    while json(&["daemon", "status", "--json", "--home", home])["connected"] != true {
        std::thread::yield_now();
    }
}

/// A broker that speaks TLS with a certificate of its own, and a mesh in it.
pub(crate) struct Mesh {
    pub(crate) files: Files,
    pub(crate) url: String,
    pub(crate) broker: Broker,
}

impl Mesh {
    pub(crate) fn at(listen: &str, files: Files, host: &str) -> Self {
        let (store, cert, key) = (files.store(), files.path("cert.pem"), files.path("key.pem"));
        let flags = ["--tls-cert", &cert, "--tls-key", &key];
        let broker = Broker::start_at(listen, &store, &flags);
        let owner = pubkey(1);
        let create = ["broker", "mesh", "create", "test", "--owner", "ada", "--owner-key", &owner];
        succeeds(&[&create[..], &["--store", &store]].concat());
        let url = format!("https://{host}:{}", port(&broker.url));
        Self { files, url, broker }
    }

    /// The broker again, at the same address, with the files as they are.
    pub(crate) fn restart(&mut self) {
        assert_eq!(self.broker.stop(), Some(0));
        let (store, cert, key) =
            (self.files.store(), self.files.path("cert.pem"), self.files.path("key.pem"));
        let listen = self.broker.url.trim_start_matches("wss://").trim_end_matches("/v1/mesh");
        let flags = ["--tls-cert", &cert, "--tls-key", &key];
        self.broker = Broker::start_at(listen, &store, &flags);
    }

    pub(crate) fn invite(&self, url: &str) -> String {
        let invite = ["broker", "invite", "test", "--broker-url", url, "--role", "owner"];
        succeeds(&[&invite[..], &["--store", &self.files.store()]].concat())
    }
}

fn join_starts_and_invites(mesh: &Mesh) {
    let (home, ca) = (mesh.files.path("home"), mesh.files.path("authority.pem"));
    std::fs::copy(mesh.files.path("ca.pem"), &ca).unwrap();
    let invite = mesh.invite(&mesh.url);
    let join = ["mesh", "join", &invite, "--name", "bob", "--home", &home, "--json"];
    let unknown = run(&join);
    assert_eq!(unknown.status.code(), Some(5), "nobody trusted vouches for it: {unknown:?}");
    let joined = json(&[&join[..], &["--broker-ca", &ca]].concat());
    let websocket = format!("{}/v1/mesh", mesh.url.replace("https", "wss"));
    assert_eq!(joined["broker"], websocket);
    let kept = PathBuf::from(&home).join("daemon/test/broker_ca.pem");
    assert_eq!(std::fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
    // From here on the home alone says whom to trust.
    std::fs::remove_file(&ca).unwrap();
    let up = ["daemon", "up", "--persistent", "--no-tcp", "--json", "--home", &home];
    let mut daemon = Serving::start(&up);
    connected(&home);
    let reloaded = json(&["daemon", "reload", "--json", "--home", &home]);
    assert_eq!(reloaded["needs_restart"], serde_json::json!([]));
    connected(&home);
    assert_eq!(daemon.stop(), Some(0));
    let detached = run(&[&up[..], &["--detach"]].concat());
    assert!(detached.status.success(), "{detached:?}");
    connected(&home);
    let restarted = run(&["daemon", "restart", "--home", &home]);
    assert!(restarted.status.success(), "{restarted:?}");
    connected(&home);
    let sent = json(&["send", "@bob", "hello", "--wait", "--json", "--home", &home]);
    assert_eq!(sent["status"], "done");

    let invite = json(&["mesh", "invite", "--json", "--home", &home])["invite"].clone();
    let invite = invite.as_str().unwrap();
    assert_eq!(JoinLink::parse(invite).unwrap().broker_url, mesh.url);
    let (other, ca) = (mesh.files.path("other"), mesh.files.path("ca.pem"));
    let up = ["daemon", "up", "--ephemeral", "--invite", invite, "--name", "eve", "--json"];
    let mut eve =
        Serving::start(&[&up[..], &["--no-tcp", "--home", &other, "--broker-ca", &ca]].concat());
    assert_eq!(eve.ready["identity"], "ephemeral");
    connected(&other);
    assert_eq!(eve.stop(), Some(0), "it leaves over TLS, too");
    let down = run(&["daemon", "down", "--home", &home]);
    assert!(down.status.success(), "{down:?}");
}

#[test]
fn who_joins_over_tls_goes_on_over_tls() {
    join_starts_and_invites(&Mesh::at("127.0.0.1:0", Files::new(), "localhost"));
}

#[test]
fn an_ipv6_address_is_a_name_of_a_certificate() {
    join_starts_and_invites(&Mesh::at("[::1]:0", Files::of("::1"), "[::1]"));
}

/// Hears what a client says first, and passes it on where there is somebody.
fn recorder(to: Option<u16>) -> (u16, JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let hearing = std::thread::spawn(move || {
        let (mut client, mut heard) = (listener.accept().unwrap().0, Vec::new());
        let Some(to) = to else {
            let mut first = [0; 4096];
            let length = client.read(&mut first).unwrap();
            return first[..length].to_vec();
        };
        let mut broker = TcpStream::connect(("127.0.0.1", to)).unwrap();
        let (mut from, mut back) = (broker.try_clone().unwrap(), client.try_clone().unwrap());
        let answering = std::thread::spawn(move || std::io::copy(&mut from, &mut back));
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = client.read(&mut bytes) {
            heard.extend_from_slice(&bytes[..length]);
            broker.write_all(&bytes[..length]).unwrap();
        }
        // The broker closes what its client has closed.
        let _ = broker.shutdown(std::net::Shutdown::Both);
        let _ = answering.join();
        heard
    });
    (port, hearing)
}

#[test]
fn not_a_byte_of_a_token_before_the_handshake() {
    let (mesh, others) = (Mesh::at("127.0.0.1:0", Files::new(), "localhost"), Files::new());
    for (to, ca, ephemeral) in [
        (None, mesh.files.path("ca.pem"), false),
        (None, mesh.files.path("ca.pem"), true),
        (Some(mesh.url.rsplit_once(':').unwrap().1.parse().unwrap()), others.path("ca.pem"), false),
    ] {
        let (port, heard) = recorder(to);
        let invite = mesh.invite(&format!("https://localhost:{port}"));
        let token = JoinLink::parse(&invite).unwrap().token;
        let home = mesh.files.path(&format!("home-{port}"));
        let join: &[&str] = match ephemeral {
            true => &["daemon", "up", "--ephemeral", "--no-tcp", "--invite", &invite],
            false => &["mesh", "join", &invite],
        };
        let output = run(&[join, &["--home", &home, "--broker-ca", &ca]].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(5), "{errors}");
        let heard = heard.join().unwrap();
        assert_eq!(heard.first(), Some(&22), "the first byte of a handshake");
        let heard = String::from_utf8_lossy(&heard);
        assert!(!heard.contains(&token) && !heard.contains("POST"), "{heard:?}");
    }
}
