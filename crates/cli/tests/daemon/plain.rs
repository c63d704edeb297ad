//! Plain text to another machine is refused before anything is sent. These tests run where nothing
//! can be sent: in a network of their own that has no interface, in which an attempt would end with
//! another error.

use std::process::{Command, Output};

use semel_daemon::environment::VARIABLES;
use semel_wire::link::{JoinLink, token};

use crate::process::Mesh;

/// An address that is nobody's (RFC 5737).
const ELSEWHERE: &str = "http://192.0.2.1:7117";

fn alone(arguments: &[&str]) -> Output {
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--net", env!("CARGO_BIN_EXE_semel")]).args(arguments);
    for name in ["SEMEL_HOME", "SEMEL_INVITE"].iter().chain(VARIABLES) {
        command.env_remove(name);
    }
    command.output().unwrap()
}

fn link(broker_url: &str) -> String {
    let token = token(&[7; 32]);
    JoinLink { broker_url: broker_url.to_owned(), mesh: "ops".to_owned(), token }.encode()
}

#[test]
fn an_invite_in_plain_text_to_another_machine_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home").display().to_string();
    for url in [ELSEWHERE, "http://[2001:db8::1]:7117", "http://[::ffff:192.0.2.1]:7117"] {
        let invite = link(url);
        let join = ["mesh", "join", &invite, "--home", &home];
        let ephemeral = ["daemon", "up", "--ephemeral", "--invite", &invite, "--home", &home];
        for words in [&join[..], &ephemeral] {
            let refused = alone(words);
            let text = String::from_utf8_lossy(&refused.stderr);
            assert_eq!(refused.status.code(), Some(78), "{words:?}: {text}");
            assert!(text.contains("plain_text_refused"), "{words:?}: {text}");
            assert!(text.contains("nothing was sent"), "{words:?}: {text}");
            assert!(!text.contains(&token(&[7; 32])), "{text}");
        }
        assert!(!folder.path().join("home").exists(), "nothing was made");
        // Whoever says so may try.
        let allowed = alone(&[&join[..], &["--insecure-allow-plain"]].concat());
        let text = String::from_utf8_lossy(&allowed.stderr);
        assert_eq!(allowed.status.code(), Some(5), "{text}");
        assert!(text.contains("os error"), "the kernel was asked: {text}");
        std::fs::remove_dir_all(&home).unwrap();
    }
}

#[test]
fn a_daemon_refuses_it_until_it_is_allowed_once() {
    let mesh = Mesh::new();
    let alice = mesh.join("alice", "member");
    let (home, file) = (alice.home(), alice.folder().join("mesh.json"));
    let text = std::fs::read_to_string(&file).unwrap();
    let mut document: serde_json::Value = serde_json::from_str(&text).unwrap();
    document["broker"] = "ws://192.0.2.1:7117/v1/mesh".into();
    document.as_object_mut().unwrap().remove("sha256");
    std::fs::write(&file, document.to_string()).unwrap();
    let up = ["daemon", "up", "--persistent", "--no-tcp", "--home", &home];
    let refused = alone(&up);
    let text = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(78), "{text}");
    assert!(text.contains("plain_text_refused"), "{text}");
    let doctor = alone(&["doctor", "--home", &home]);
    let text = String::from_utf8_lossy(&doctor.stdout);
    assert!(text.contains("plain_text_refused"), "{text}");
    // The home remembers what was said once; the broker that cannot be reached is no fault.
    let line = "\"$@\" --insecure-allow-plain --detach && semel=$1 && home=$7 && \
                $semel daemon down --home $home && \"$@\" --detach && \
                $semel daemon status --home $home --json; $semel daemon down --home $home";
    let mut shell = Command::new("unshare");
    shell.args(["--map-root-user", "--net", "sh", "-c", line, "sh"]);
    shell.arg(env!("CARGO_BIN_EXE_semel")).args(up);
    for name in ["SEMEL_HOME", "SEMEL_INVITE"].iter().chain(VARIABLES) {
        shell.env_remove(name);
    }
    let done = shell.output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(
        text.contains("\"connected\": false") || text.contains("\"connected\":false"),
        "{done:?}"
    );
    let kept = std::fs::read_to_string(&file).unwrap();
    assert!(kept.contains("\"insecure_allow_plain\": true"), "{kept}");
}
