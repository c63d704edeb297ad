//! A file is served by one process, whatever it is called and whatever was deleted beside it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;

use super::{DAEMON_UP, Up, json, semel};

fn broker(store: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    let store = format!("sqlite:{}", store.display());
    command.args(["broker", "serve", "--json", "--listen", "127.0.0.1:0", "--store", &store]);
    command
}

fn is_refused(what: &str, output: &Output) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{what}: {text}");
    assert!(text.contains("is served by another process already"), "{what}: {text}");
}

#[test]
fn a_second_broker_on_a_file_is_refused_under_every_name_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut first = broker(&at("broker.db"));
    let first = first.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut first = Up::ready(first.spawn().unwrap());
    std::fs::hard_link(at("broker.db"), at("link.db")).unwrap();
    std::os::unix::fs::symlink(at("broker.db"), at("symbolic.db")).unwrap();
    std::fs::create_dir(at("folder")).unwrap();
    for name in ["broker.db", "link.db", "symbolic.db", "folder/../broker.db"] {
        is_refused(name, &broker(&at(name)).output().unwrap());
    }
    // Who only looks is let in.
    let store = format!("sqlite:{}", at("broker.db").display());
    let mut list = Command::new(env!("CARGO_BIN_EXE_semel"));
    assert!(list.args(["broker", "mesh", "list", "--store", &store]).status().unwrap().success());
    first.stop(Signal::KILL);
    std::fs::remove_file(at("link.db")).unwrap();
    let mut second = broker(&at("symbolic.db"));
    let second = second.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut second = Up::ready(second.spawn().unwrap());
    assert_eq!(second.stop(Signal::TERM), Some(0));
}

#[test]
fn deleted_lock_files_let_nobody_in() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let mut up = Up::start(home);
    let locks = ["broker/broker.db.lock", "jobs/jobs.db.lock", "jobs/lock", "daemon/local/lock"];
    let beside = ["daemon/local/outbox.db.lock", "daemon/local/inbox.db.lock"];
    let delete = || {
        for lock in locks.iter().chain(&beside) {
            let _ = std::fs::remove_file(home.join(lock));
        }
    };
    let backup: PathBuf = home.join("backup.db");
    let name = backup.display().to_string();
    assert!(semel(home, &["job", "backup", "--out", &name]).status.success());
    let ports = ["up", "--broker-listen", "127.0.0.1:0", "--api-listen", "127.0.0.1:0"];
    for other in [&ports[..], &DAEMON_UP, &["job", "serve"]] {
        delete();
        is_refused(other[0], &semel(home, other));
    }
    delete();
    is_refused("broker", &broker(&home.join("broker/broker.db")).output().unwrap());
    delete();
    let restored = semel(home, &["job", "restore", "--in", &name, "--force"]);
    assert_eq!(restored.status.code(), Some(4), "{restored:?}");
    // Nothing has happened to the one that runs.
    let sent = json(home, &["send", "@me", "hello", "--wait"]);
    assert_eq!(sent["status"], "done");
    assert_eq!(up.stop(Signal::TERM), Some(0));
}
