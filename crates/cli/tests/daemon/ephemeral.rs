//! Members that end with their daemon: keys in memory, a time to live, and the default in CI.

use std::net::TcpListener;
use std::path::Path;

use semel_core::hex::Hex;
use semel_crypto::keys::KeyPair;
use serde_json::{Value, json};

use crate::process::{Host, MESH, Mesh, Process, arrived, fails, fails_in, succeeds_in};

/// How the mesh sees the member with this key.
fn status(mesh: &Mesh, pubkey: &str) -> String {
    let listed = mesh.broker(&["member", "list", MESH, "--json"]);
    let members = listed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let found = members.into_iter().find(|member| member["pubkey"] == pubkey);
    found.map_or("unknown".to_owned(), |member| member["status"].as_str().unwrap().to_owned())
}

fn pubkey(daemon: &Process) -> String {
    daemon.ready["pubkey"].as_str().unwrap().to_owned()
}

fn start(mesh: &Mesh, host: &Host, extra: &[&str]) -> Process {
    start_by(&mesh.invite("member"), host, extra)
}

fn start_by(invite: &str, host: &Host, extra: &[&str]) -> Process {
    let home = host.home();
    let up = ["daemon", "up", "--json", "--no-tcp", "--ephemeral", "--invite", invite];
    Process::start(&[&up, &["--home", &home][..], extra].concat())
}

/// Everything below a folder, with what is in it.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push((name, std::fs::read(&path).unwrap_or_default())),
        }
    }
    found.sort();
    found
}

/// Whether 32 bytes in hexadecimal in this file are the secret of that key.
fn has_secret_of(pubkey: &str, bytes: &[u8]) -> bool {
    bytes.windows(64).any(|window| {
        let text = std::str::from_utf8(window).ok();
        let secret = text.and_then(|text| Hex::<32>::parse(text).ok());
        secret.is_some_and(|secret| {
            KeyPair::from_secret(&secret.0).public().to_hex().to_string() == pubkey
        })
    })
}

#[test]
fn an_ephemeral_daemon_ends_at_its_time_and_has_left_the_mesh() {
    let mesh = Mesh::new();
    let host = mesh.host("runner");
    let mut daemon = start(&mesh, &host, &["--ttl", "1s"]);
    assert_eq!(daemon.ready["identity"], "ephemeral");
    assert_eq!(daemon.ends(), Some(0));
    assert_eq!(status(&mesh, &pubkey(&daemon)), "left");
    // The lock, and the token of the local API: nothing of the member.
    let left: Vec<String> = files(&host.folder()).into_iter().map(|(name, _)| name).collect();
    assert_eq!(left, ["local_token", "lock"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_keys_are_never_on_disk_and_what_was_accepted_is_sent_before_the_end() {
    let mesh = Mesh::new();
    let bob = mesh.join("bob", "owner");
    let kept = bob.up();
    let host = mesh.host("runner");
    let mut daemon = start(&mesh, &host, &["--name", "runner-7"]);
    let key = pubkey(&daemon);
    assert_eq!(status(&mesh, &key), "active");
    host.run(&["send", &pubkey(&kept), "green", "--wait"]);
    let on_disk = files(&host.folder());
    let names: Vec<&str> = on_disk.iter().map(|(name, _)| name.as_str()).collect();
    for kept in ["keypair.json", "instance_id", "fingerprint_secret", "mesh.json"] {
        assert!(!names.contains(&kept), "{names:?}");
    }
    assert!(names.contains(&"outbox.db"), "{names:?}");
    for (name, bytes) in &on_disk {
        assert!(!has_secret_of(&key, bytes), "the secret is in {name}");
    }
    // The same look finds the keys of a member that is kept.
    let of_bob = files(&bob.folder());
    assert!(of_bob.iter().any(|(_, bytes)| has_secret_of(&pubkey(&kept), bytes)));
    let (code, text) = fails(&["daemon", "restart", "--home", &host.home()]);
    assert!(code == 4 && text.contains("ephemeral"), "{code}: {text}");
    // More than goes out at a time waits for a broker that is slow.
    mesh.broker.as_ref().unwrap().signal("-STOP");
    for number in 0..600 {
        let message = json!({"to": pubkey(&kept), "message": format!("last words {number}")});
        let sent = host.client().post("/v1/send", &message, None).await.unwrap();
        assert_eq!(sent.status, 202, "{:?}", sent.body);
    }
    daemon.signal("-TERM");
    mesh.broker.as_ref().unwrap().signal("-CONT");
    assert_eq!(daemon.ends(), Some(0));
    assert_eq!(arrived(&bob, 601).await[0]["sender_name"], "runner-7");
    assert_eq!(status(&mesh, &key), "left");
    assert!(!host.folder().join("ephemeral").exists());
}

#[test]
fn one_in_the_background_is_stopped_like_any_other() {
    let mesh = Mesh::new();
    let (host, invite) = (mesh.host("runner"), mesh.invite("member"));
    let home = host.home();
    let up = ["daemon", "up", "--detach", "--ephemeral", "--no-tcp", "--home", &home];
    let said = succeeds_in(&[("SEMEL_INVITE", &invite)], &[&up[..], &["--name", "ada"]].concat());
    assert!(said.contains("\"ada\", until it ends"), "{said}");
    let key = host.run_json(&["daemon", "status"])["member_pubkey"].as_str().unwrap().to_owned();
    assert_eq!(status(&mesh, &key), "active");
    assert_eq!(host.run(&["daemon", "down"]), "the daemon has stopped");
    assert_eq!(status(&mesh, &key), "left");
    assert!(host.run(&["doctor"]).contains("this home has no member"));
    let (code, text) = fails(&["daemon", "up", "--home", &home]);
    assert!(code == 3 && text.contains("has not joined"), "{code}: {text}");
}

#[test]
fn one_that_is_killed_leaves_nothing_to_the_next() {
    let mesh = Mesh::new();
    let host = mesh.host("runner");
    let mut first = start(&mesh, &host, &[]);
    mesh.broker.as_ref().unwrap().signal("-STOP");
    host.run(&["send", &pubkey(&first), "never sent"]);
    first.kill();
    mesh.broker.as_ref().unwrap().signal("-CONT");
    let mut second = start(&mesh, &host, &[]);
    assert_ne!(pubkey(&first), pubkey(&second));
    assert_eq!(host.run_json(&["outbox", "list"])["items"].as_array().unwrap().len(), 0);
    second.terminate();
    // Nobody could leave in its place: an owner ends such a membership.
    assert_eq!(status(&mesh, &pubkey(&first)), "active");
    assert_eq!(status(&mesh, &pubkey(&second)), "left");
}

#[test]
fn one_that_cannot_leave_says_so_and_ends_all_the_same() {
    let mut mesh = Mesh::new();
    let host = mesh.host("runner");
    let mut daemon = start(&mesh, &host, &["--ttl", "1s"]);
    mesh.broker.take().unwrap().kill();
    assert_eq!(daemon.ends(), Some(5));
    assert!(!host.folder().join("ephemeral").exists());
}

#[test]
fn one_that_cannot_start_is_no_member() {
    let mesh = Mesh::new();
    let (home, invite) = (mesh.host("runner").home(), mesh.invite("member"));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    let up = ["daemon", "up", "--ephemeral", "--invite", &invite, "--home", &home];
    let (code, text) = fails(&[&up[..], &["--name", "late", "--api-listen", &listen]].concat());
    assert!(code == 5 && text.contains(&listen), "{code}: {text}");
    let listed = mesh.broker(&["member", "list", MESH, "--json"]);
    let late = listed.lines().find(|line| line.contains("\"late\"")).unwrap();
    assert!(late.contains("\"left\""), "{late}");
}

#[test]
fn in_ci_a_daemon_is_ephemeral_unless_it_is_told_otherwise() {
    let mesh = Mesh::new();
    let names = [
        ("CI", "true"),
        ("GITHUB_ACTIONS", "true"),
        ("GITLAB_CI", "true"),
        ("BUILDKITE", "true"),
        ("CIRCLECI", "true"),
        ("JENKINS_URL", "https://ci.example"),
    ];
    for ci in names {
        let (host, invite) = (mesh.host(ci.0), mesh.invite("member"));
        let up = ["daemon", "up", "--json", "--home", &host.home()];
        let mut daemon = Process::start_in(&[ci, ("SEMEL_INVITE", &invite)], &up);
        let (identity, api) = (&daemon.ready["identity"], &daemon.ready["api"]);
        assert_eq!((identity, api), (&"ephemeral".into(), &Value::Null), "{ci:?}");
        assert!(!host.folder().join("keypair.json").exists(), "{ci:?}");
        daemon.terminate();
        assert_eq!(status(&mesh, &pubkey(&daemon)), "left", "{ci:?}");
    }
    let ci = ("CI", "true");
    let alice = mesh.join("alice", "member");
    let up = ["daemon", "up", "--json", "--home", &alice.home()];
    for variables in [vec![ci], vec![ci, ("SEMEL_INVITE", &mesh.invite("member"))]] {
        let (code, text) = fails_in(&variables, &up);
        assert!(code == 4 && text.contains("\"code\":\"already_joined\""), "{code}: {text}");
        assert!(text.contains("--persistent"), "{text}");
    }
    let mut kept = Process::start_in(&[ci], &[&up[..], &["--persistent"]].concat());
    assert_eq!(kept.ready["identity"], "persistent");
    kept.terminate();
    assert_eq!(status(&mesh, &pubkey(&kept)), "active");
    // A variable that says nothing is no CI.
    let mut kept = Process::start_in(&[("CI", "false"), ("BUILDKITE", "")], &up);
    assert_eq!(kept.ready["identity"], "persistent");
    kept.terminate();
}

#[test]
fn what_makes_no_sense_is_refused_and_nothing_is_started() {
    let mesh = Mesh::new();
    let (alice, runner) = (mesh.join("alice", "member"), mesh.host("runner"));
    let (invite, homes) = (mesh.invite("member"), [alice.home(), runner.home()]);
    let [joined, empty] = [homes[0].as_str(), homes[1].as_str()];
    let cases: [(&str, &[&str], i32, &str); 9] = [
        (joined, &["--ttl", "2h"], 2, "not_ephemeral"),
        (joined, &["--name", "x"], 2, "not_ephemeral"),
        (joined, &["--persistent", "--invite", &invite], 2, "not_ephemeral"),
        (joined, &["--ephemeral", "--invite", &invite], 4, "already_joined"),
        (empty, &["--ephemeral"], 2, "invite_needed"),
        (empty, &["--ephemeral", "--invite", &invite, "--ttl", "999ms"], 2, "invalid_field"),
        (empty, &["--ephemeral", "--invite", &invite, "--ttl", "31d"], 2, "invalid_field"),
        (empty, &["--ephemeral", "--invite", &invite, "--mesh", "other"], 2, "invalid_field"),
        (empty, &["--ephemeral", "--invite", "semel://join/x"], 2, "invalid_field"),
    ];
    for (home, extra, exit, wanted) in cases {
        let (code, text) = fails(&[&["daemon", "up", "--home", home], extra].concat());
        assert_eq!(code, exit, "{extra:?}: {text}");
        assert!(text.contains(wanted), "{extra:?}: {text}");
        let (_, text) = fails(&[&["daemon", "up", "--json", "--home", home], extra].concat());
        let problem: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(problem["code"], wanted, "{extra:?}");
    }
    for extra in [&["--ephemeral", "--persistent"][..], &["--ephemeral", "--ttl", "soon"]] {
        assert_eq!(fails(&[&["daemon", "up", "--home", empty], extra].concat()).0, 2, "{extra:?}");
    }
    assert!(!Path::new(empty).exists(), "nothing was made");
    // An invite that was used by somebody else lets nobody in.
    let mut first = start_by(&invite, &runner, &[]);
    first.terminate();
    let up = ["daemon", "up", "--ephemeral", "--invite", &invite, "--home", empty];
    let (code, text) = fails(&up);
    assert!(code == 1 && text.contains("invite_invalid"), "{code}: {text}");
}
