//! The local API of a real daemon: what only a process, a broker or another user can show.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use serde_json::{Value, json};

use crate::process::{MESH, Mesh, PATIENCE, until};

#[tokio::test(flavor = "multi_thread")]
async fn what_the_broker_would_not_take_is_refused_here() {
    let mesh = Mesh::new();
    let alice = mesh.join("alice", "member");
    let daemon = alice.up();
    let (client, to) = (alice.client(), daemon.ready["pubkey"].clone());
    until(&client, "/v1/health", |health| health["connected"] == true).await;
    let version = client.get("/v1/version").await.unwrap().body;
    let max = version["broker_features_negotiated"]["max_payload"]["inline_bytes"].as_u64();
    let max = usize::try_from(max.unwrap()).unwrap();
    let send = async |bytes: usize| {
        let body = json!({"to": to, "message": "x".repeat(bytes)});
        client.post("/v1/send", &body, None).await.unwrap()
    };
    assert_eq!(send(max).await.status, 202);
    let refused = send(max + 1).await;
    assert_eq!((refused.status, refused.code()), (413, Some("payload_too_large")));
    assert!(refused.detail().contains(&max.to_string()), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_in_an_address_is_logged_without_it() {
    let mesh = Mesh::new();
    let alice = mesh.join("alice", "member");
    let _daemon = alice.up_with(&["--log-file"]);
    let token = std::fs::read_to_string(alice.folder().join("local_token")).unwrap();
    let path = format!("/v1/health?x={}", token.trim());
    let refused = alice.client().get(&path).await.unwrap();
    assert_eq!((refused.status, refused.code()), (400, Some("token_in_query")));
    let log = std::fs::read_to_string(alice.folder().join("daemon.log")).unwrap();
    let line = log.lines().find(|line| line.contains("a token came in an address")).unwrap();
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!(line["fields"]["security"], true, "{line}");
    assert!(!log.contains(token.trim()), "the log has the token");
}

/// Needs root, as the tests of the whole repository have it in their container; what is decided of
/// the two numbers has a test of its own beside it.
#[test]
fn another_user_is_not_answered_even_with_an_open_socket() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mesh = Mesh::new();
    let alice = mesh.join("alice", "member");
    let _daemon = alice.up();
    let open = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let socket = alice.folder().join("sock");
    open(&socket, 0o666);
    for folder in socket.ancestors().skip(1).take_while(|at| at.parent().is_some()).take(4) {
        open(folder, 0o755);
    }
    let program = tempfile::tempdir().unwrap();
    open(program.path(), 0o755);
    let semel = program.path().join("semel");
    std::fs::copy(env!("CARGO_BIN_EXE_semel"), &semel).unwrap();
    let ask = |user: &str| {
        Command::new("setpriv")
            .args(["--reuid", user, "--regid", user, "--clear-groups"])
            .arg(&semel)
            .args(["daemon", "status", "--mesh", MESH, "--home", &alice.home()])
            .output()
            .expect("util-linux's setpriv starts")
    };
    let said = ask("65534");
    let text = String::from_utf8_lossy(&said.stderr);
    assert_eq!(said.status.code(), Some(5), "{text}");
    assert!(text.contains("the connection to the daemon broke"), "it could connect: {text}");
    assert!(ask("0").status.success(), "its own user is answered");
}

/// Ended with the test, also when that fails: it would follow for ever.
struct Following(Child);

impl Drop for Following {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_goes_on_over_restarts_of_the_daemon_without_gaps_and_repetitions() {
    let mesh = Mesh::new();
    let (alice, bob) = (mesh.join("alice", "member"), mesh.join("bob", "member"));
    let (_one, mut two) = (alice.up(), bob.up());
    let to = two.ready["pubkey"].as_str().unwrap().to_owned();
    let home = bob.home();
    let mut following = Following(
        Command::new(env!("CARGO_BIN_EXE_semel"))
            .args(["events", "--json", "--after", "0", "--kinds", "message", "--home", &home])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let lines = BufReader::new(following.0.stdout.take().unwrap()).lines();
    let (heard, hearing) = mpsc::channel();
    let reading = std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let event: Value = serde_json::from_str(&line).unwrap();
            if heard.send(event).is_err() {
                return;
            }
        }
    });
    let (mut last, mut sent) = (0, 0);
    let mut hear = |expected: usize| {
        let event = hearing.recv_timeout(PATIENCE).expect("an event in time");
        assert_eq!(event["data"]["body"], expected.to_string(), "{event}");
        let id = event["id"].as_u64().unwrap();
        assert!(id > last, "{event}");
        last = id;
    };
    for round in 0..4 {
        for _ in 0..5 {
            alice.run(&["send", &to, &sent.to_string()]);
            sent += 1;
        }
        hear(sent - 5);
        // The rest may come before, while and after it is away.
        if round % 2 == 0 {
            two.terminate();
        } else {
            two.kill();
        }
        alice.run(&["send", &to, &sent.to_string()]);
        sent += 1;
        two = bob.up();
        for expected in sent - 5..sent {
            hear(expected);
        }
    }
    drop(following);
    reading.join().unwrap();
    assert!(hearing.try_recv().is_err(), "nothing came twice");
}
