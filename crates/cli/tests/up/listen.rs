//! Where `semel up` can be reached by other hosts: over TLS, or in plain text when somebody says
//! so. Its own daemon stays on this machine.

use std::process::{Command, Stdio};

use rcgen::CertifiedKey;
use rustix::process::{Pid, Signal, kill_process};

use super::{Up, json, semel};

fn up(home: &std::path::Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(["up", "--json", "--name", "me", "--no-jobs", "--api-listen", "127.0.0.1:0"]);
    command.arg("--home").arg(home).args(more).env_remove("SEMEL_HOME").stderr(Stdio::null());
    command
}

fn started(home: &std::path::Path, more: &[&str]) -> Up {
    Up::ready(up(home, more).stdout(Stdio::piped()).spawn().unwrap())
}

#[test]
fn plain_text_for_other_machines_is_refused_and_nothing_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let output =
            up(&home, &["--broker-listen", listen]).stderr(Stdio::piped()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{listen}: {text}");
        assert!(text.contains("--insecure-allow-plain") && text.contains("--tls-cert"), "{text}");
        assert!(!home.exists(), "{listen}");
    }
}

#[test]
fn where_it_is_allowed_its_own_daemon_stays_on_this_machine() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let open = ["--broker-listen", "0.0.0.0:0", "--insecure-allow-plain"];
    let mut up = started(home, &open);
    let told = up.ready["broker"].as_str().unwrap().to_owned();
    assert!(told.starts_with("ws://0.0.0.0:"), "{told}");
    let sent = json(home, &["send", "@me", "hello", "--key", "one", "--wait"]);
    assert_eq!(sent["status"], "done");
    let listed = json(home, &["mesh", "list"]);
    let dialled = listed["meshes"][0]["broker"].as_str().unwrap().to_owned();
    assert!(dialled.starts_with("ws://127.0.0.1:"), "{dialled}");
    assert_eq!(up.stop(Signal::TERM), Some(0));
}

#[test]
fn other_hosts_join_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (certificate, key) = (path("cert.pem"), path("key.pem"));
    // A new one in its place, and a copy for whoever is to believe it.
    let renew = |copy: &str| {
        let CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(&certificate, cert.pem()).unwrap();
        std::fs::write(&key, signing_key.serialize_pem()).unwrap();
        std::fs::write(path(copy), cert.pem()).unwrap();
    };
    renew("first.pem");
    let (home, other) = (folder.path().join("home"), folder.path().join("other"));
    let tls = ["--broker-listen", "127.0.0.1:0", "--tls-cert", &certificate, "--tls-key", &key];
    let mut up = started(&home, &tls);
    let told = up.ready["broker"].as_str().unwrap().to_owned();
    assert!(told.starts_with("wss://127.0.0.1:"), "{told}");
    let port = told.trim_end_matches("/v1/mesh").rsplit_once(':').unwrap().1;
    let plain = ["mesh", "invite", "--broker-url", "http://broker.example"];
    assert_eq!(semel(&home, &plain).status.code(), Some(78));
    let url = format!("https://localhost:{port}");
    let invite = json(&home, &["mesh", "invite", "--broker-url", &url]);
    let invite = invite["invite"].as_str().unwrap();
    let joined =
        json(&other, &["mesh", "join", invite, "--name", "bob", "--broker-ca", &certificate]);
    assert_eq!(joined["broker"], format!("wss://localhost:{port}/v1/mesh"));
    // Renewed: by the call, and by the signal. Who comes next sees the new one alone.
    let joins = |name: &str, believed: &str| {
        let invite = json(&home, &["mesh", "invite", "--broker-url", &url]);
        let invite = invite["invite"].as_str().unwrap().to_owned();
        let words = ["mesh", "join", &invite, "--name", name, "--broker-ca", &path(believed)];
        semel(&folder.path().join(name), &words).status.success()
    };
    renew("second.pem");
    assert!(!joins("early", "second.pem"), "nobody has asked for it yet");
    json(&home, &["daemon", "reload"]);
    assert!(joins("second", "second.pem"));
    assert!(!joins("late", "first.pem"), "the old one is not shown any more");
    std::fs::write(&certificate, "no certificate").unwrap();
    assert_eq!(semel(&home, &["daemon", "reload"]).status.code(), Some(78));
    assert!(joins("third", "second.pem"), "what cannot be used changes nothing");
    renew("third.pem");
    kill_process(Pid::from_child(&up.child), Signal::HUP).unwrap();
    while !joins("fourth", "third.pem") {
        std::thread::yield_now();
    }
    assert_eq!(up.stop(Signal::TERM), Some(0));
}
