//! In the background: started, restarted as it was, looked at, stopped.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use super::{json as said, semel};

/// Stops what is left when a test fails.
struct Background<'a>(&'a Path);

impl Drop for Background<'_> {
    fn drop(&mut self) {
        semel(self.0, &["down"]);
    }
}

fn works(home: &Path, key: &str) {
    let sent = said(home, &["send", "@me", "hello", "--key", key, "--wait"]);
    assert_eq!(sent["status"], "done");
}

#[test]
fn a_restart_starts_what_was_started() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let _background = Background(home);
    let ports = ["--broker-listen", "127.0.0.1:0", "--api-listen", "127.0.0.1:0"];
    let up = [&["up", "--detach", "--name", "me", "--no-jobs"], &ports[..]].concat();
    let started = semel(home, &up);
    assert!(started.status.success(), "{started:?}");
    assert_eq!(said(home, &["status"])["mesh"], "local");
    works(home, "one");
    let pid = || std::fs::read_to_string(home.join("daemon/local/pid")).unwrap();
    let before = pid();
    let restarted = semel(home, &["daemon", "restart", "--mesh", "local"]);
    assert!(restarted.status.success(), "{restarted:?}");
    assert_ne!(pid(), before);
    // The broker was started with it, or nothing would be delivered.
    works(home, "two");
    let kept = std::fs::read(home.join("daemon/local/started.json")).unwrap();
    let kept: serde_json::Value = serde_json::from_slice(&kept).unwrap();
    assert_eq!(kept["kind"], "up");
    assert_eq!(kept["options"][0], json!(["--broker-listen", "127.0.0.1:0"]));
    assert!(kept["options"].as_array().unwrap().contains(&json!(["--no-jobs"])), "{kept}");
    let before = pid();
    let mut nonsense = Command::new(env!("CARGO_BIN_EXE_semel"));
    nonsense.args(["daemon", "restart", "--home"]).arg(home).args(["--", "--nonsense"]);
    let nonsense = nonsense.env_remove("SEMEL_HOME").output().unwrap();
    assert_eq!(nonsense.status.code(), Some(2));
    assert_eq!(pid(), before, "nothing was stopped");
    let down = semel(home, &["down"]);
    assert_eq!(String::from_utf8_lossy(&down.stdout), "semel has stopped\n", "{down:?}");
    let down = semel(home, &["down"]);
    assert_eq!(String::from_utf8_lossy(&down.stdout), "nothing runs in this home\n", "{down:?}");
    assert_eq!(semel(home, &["status"]).status.code(), Some(5));
}

#[test]
fn a_password_is_kept_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let _background = Background(home);
    let ports = ["--broker-listen", "127.0.0.1:0", "--api-listen", "127.0.0.1:0"];
    // Its server need not be there.
    let limiter = ["--limiter", "redis://:secret@127.0.0.1:1"];
    let up = [&["up", "--detach", "--name", "me", "--no-jobs"], &ports[..], &limiter].concat();
    let started = semel(home, &up);
    assert!(started.status.success(), "{started:?}");
    let restart = ["daemon", "restart", "--mesh", "local"];
    let refused = semel(home, &restart);
    let text = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(4), "{text}");
    assert!(text.contains("--limiter") && !text.contains("secret"), "{text}");
    assert_eq!(said(home, &["status"])["mesh"], "local", "it runs on");
    let grep = Command::new("grep").args(["-rl", "secret@"]).arg(home).output().unwrap();
    assert!(grep.stdout.is_empty(), "{grep:?}");
    let mut again = Command::new(env!("CARGO_BIN_EXE_semel"));
    again.args(restart).arg("--home").arg(home).args(["--", "--limiter", "memory"]);
    let again = again.env_remove("SEMEL_HOME").output().unwrap();
    assert!(again.status.success(), "{again:?}");
    works(home, "one");
}
