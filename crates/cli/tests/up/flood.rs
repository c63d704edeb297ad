//! Strangers, as many as there may be open files, that say nothing, begin a handshake, or send half
//! a body: the owner is answered, somebody else joins, and the process stays small.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rcgen::CertifiedKey;
use serde_json::Value;

use super::weight::{has_room, is_small, limited, owner_is_answered, raise_own_limit};
use super::{DAEMON_UP, Up, command, json, semel};

/// Connections to each door.
const STRANGERS: usize = 1100;

/// Bodies of which half has come, at each door.
const SLOW_BODIES: usize = 300;

/// What the owner of a daemon asks for.
const OF_DAEMON: &[&str] = &["/v1/health", "/v1/send"];

/// The beginning of a TLS handshake.
const HALF_A_HANDSHAKE: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";

fn host(url: &str) -> SocketAddr {
    url.split("://").nth(1).unwrap().split('/').next().unwrap().parse().unwrap()
}

fn door(up: &Up, name: &str) -> SocketAddr {
    host(up.ready[name].as_str().unwrap())
}

fn socket(up: &Up) -> PathBuf {
    PathBuf::from(up.ready["socket"].as_str().unwrap())
}

/// So many connections, each with these first bytes.
fn comes(up: &Up, count: usize, address: SocketAddr, says: &[u8], all: &mut Vec<TcpStream>) {
    let wait = Duration::from_millis(200);
    for _ in 0..count {
        // What is over the backlog may wait; nobody waits for that here.
        let Ok(mut stream) = TcpStream::connect_timeout(&address, wait) else { continue };
        // It may have been closed already to make room.
        let _ = stream.write_all(says);
        all.push(stream);
        has_room(up);
    }
}

/// The same while the owner asks all the time, and once more when all have come.
fn flooded(
    up: &Up,
    doors: &[(SocketAddr, &[u8])],
    asks: &[&str],
    what: &str,
) -> (Vec<TcpStream>, Duration) {
    raise_own_limit();
    let (mut all, mut worst, socket) = (Vec::new(), Duration::ZERO, socket(up));
    for (address, says) in doors {
        std::thread::scope(|scope| {
            let coming = scope.spawn(|| comes(up, STRANGERS, *address, says, &mut all));
            while !coming.is_finished() {
                worst = worst.max(owner_is_answered(up, &socket, asks, what));
            }
        });
    }
    worst = worst.max(owner_is_answered(up, &socket, asks, what));
    (all, worst)
}

/// A new connection to a flooded door is served, too.
fn is_served(address: SocketAddr) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1", "{address}");
}

/// Waits until a daemon has asked the broker who is in the mesh.
fn knows(home: &Path, name: &str) {
    let has =
        |peers: Value| peers["items"].as_array().unwrap().iter().any(|peer| peer["name"] == name);
    while !has(json(home, &["peers"])) {
        std::thread::yield_now();
    }
}

/// Somebody else joins through the flooded door, and sends.
fn somebody_joins(home: &Path, other: &Path, broker: Option<&str>, ca: &[&str]) {
    let at: &[&str] = match broker {
        Some(url) => &["--broker-url", url],
        None => &[],
    };
    let invite = json(home, &[&["mesh", "invite"], at].concat())["invite"].clone();
    // Another name in each home: one that is taken is refused.
    let name = other.file_name().unwrap().to_str().unwrap();
    let join = ["mesh", "join", invite.as_str().unwrap(), "--name", name];
    json(other, &[&join[..], ca].concat());
    let detached = semel(other, &[&DAEMON_UP[..], &["--detach"]].concat());
    assert!(detached.status.success(), "{detached:?}");
    knows(other, "me");
    let sent = json(other, &["send", "@me", "hello", "--wait"]);
    assert_eq!(sent["status"], "done");
    assert!(semel(other, &["daemon", "down"]).status.success());
}

#[test]
fn silent_connections_keep_out_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let (home, other) = (folder.path().join("home"), folder.path().join("other"));
    let up = limited(&command(&home, &["--json"]));
    let doors = [(door(&up, "broker"), &b""[..]), (door(&up, "api"), b"")];
    let (silent, worst) = flooded(&up, &doors, OF_DAEMON, "silent");
    for number in 0..5 {
        let sent = json(&home, &["send", "@me", &format!("hello {number}"), "--wait"]);
        assert_eq!(sent["status"], "done");
    }
    for (address, _) in doors {
        is_served(address);
    }
    somebody_joins(&home, &other, None, &[]);
    is_small(&up, "silent", worst);
    drop(silent);
}

#[test]
fn handshakes_that_never_end_keep_out_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (path("cert.pem"), path("key.pem"));
    std::fs::write(&certificate, cert.pem()).unwrap();
    std::fs::write(&key, signing_key.serialize_pem()).unwrap();
    let home = folder.path().join("home");
    let tls = ["--json", "--tls-cert", &certificate, "--tls-key", &key];
    let up = limited(&command(&home, &tls));
    let address = door(&up, "broker");
    for (says, what) in [(&b""[..], "no handshake"), (HALF_A_HANDSHAKE, "half a handshake")] {
        let (begun, worst) = flooded(&up, &[(address, says)], OF_DAEMON, what);
        let url = format!("https://localhost:{}", address.port());
        let other = folder.path().join(what.replace(' ', "-"));
        somebody_joins(&home, &other, Some(&url), &["--broker-ca", &certificate]);
        is_small(&up, what, worst);
        drop(begun);
    }
}

#[test]
fn slow_bodies_keep_out_nobody() {
    raise_own_limit();
    let folder = tempfile::tempdir().unwrap();
    let (home, other) = (folder.path().join("home"), folder.path().join("other"));
    let up = limited(&command(&home, &["--json"]));
    let token = std::fs::read_to_string(up.ready["token_file"].as_str().unwrap()).unwrap();
    let half = |path: &str, more: &str| {
        let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{more}");
        format!("{head}Content-Length: 60000\r\n\r\n{{{}", " ".repeat(30_000)).into_bytes()
    };
    let known = format!("Authorization: Bearer {}\r\n", token.trim());
    let (broker, api) = (door(&up, "broker"), door(&up, "api"));
    let (mut halves, mut worst) = (Vec::new(), Duration::ZERO);
    for (address, says) in [
        (broker, half("/v1/meshes/local/topics", "")),
        (broker, half("/v1/meshes/local/join", "")),
        (api, half("/v1/send", "")),
        (api, half("/v1/send", &known)),
    ] {
        comes(&up, SLOW_BODIES, address, &says, &mut halves);
        let asked = owner_is_answered(&up, &socket(&up), OF_DAEMON, "slow bodies");
        worst = worst.max(asked);
    }
    somebody_joins(&home, &other, None, &[]);
    is_small(&up, "slow bodies", worst);
    drop(halves);
}

#[test]
fn strangers_at_the_door_of_an_engine_alone_keep_out_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let mut engine = Command::new(env!("CARGO_BIN_EXE_semel"));
    engine.args(["job", "serve", "--json", "--home"]).arg(home);
    let engine = limited(&engine);
    let address = door(&engine, "api");
    let asks = ["/v1/jobs", "/v1/version"];
    let (silent, worst) = flooded(&engine, &[(address, b"")], &asks, "at an engine");
    is_served(address);
    let plan = home.join("plan.json");
    let steps =
        r#"{"steps": [{"id": "a", "gear": "wait", "action": "sleep", "params": {"ms": 1}}]}"#;
    std::fs::write(&plan, steps).unwrap();
    let done = semel(home, &["job", "submit", "--wait", "--plan", plan.to_str().unwrap()]);
    assert!(done.status.success(), "{done:?}");
    is_small(&engine, "at an engine", worst);
    drop(silent);
}

/// A broker alone has no socket of an owner: somebody who joins is the one who must be served.
#[test]
fn strangers_at_a_broker_alone_keep_out_nobody() {
    raise_own_limit();
    let folder = tempfile::tempdir().unwrap();
    let (store, other) =
        (format!("sqlite:{}", folder.path().join("broker.db").display()), folder.path().join("o"));
    let mut broker = Command::new(env!("CARGO_BIN_EXE_semel"));
    broker.args(["broker", "serve", "--json", "--listen", "127.0.0.1:0", "--store", &store]);
    let broker = limited(&broker);
    let address = door(&broker, "broker");
    let url = format!("http://{address}");
    let mut found = Command::new(env!("CARGO_BIN_EXE_semel"));
    found.args(["broker", "mesh", "create", "local", "--broker-url", &url, "--store", &store]);
    let found = found.stderr(Stdio::inherit()).output().unwrap();
    let invite = String::from_utf8(found.stdout).unwrap();
    let mut silent = Vec::new();
    comes(&broker, STRANGERS, address, b"", &mut silent);
    is_served(address);
    json(&other, &["mesh", "join", invite.trim(), "--name", "bob"]);
    let detached = semel(&other, &[&DAEMON_UP[..], &["--detach"]].concat());
    assert!(detached.status.success(), "{detached:?}");
    knows(&other, "bob");
    let sent = json(&other, &["send", "@bob", "hello", "--wait"]);
    assert_eq!(sent["status"], "done");
    assert!(semel(&other, &["daemon", "down"]).status.success());
    is_small(&broker, "at a broker", Duration::ZERO);
    drop(silent);
}
