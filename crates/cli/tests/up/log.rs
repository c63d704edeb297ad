//! Whatever becomes of what it writes to stderr and to its log, the process works on.

use std::fs::File;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write, pipe};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use super::{DAEMON_UP, Up, command, json, semel};

/// Starts it with this as stderr, and waits until it is ready.
fn up(home: &Path, stderr: impl Into<Stdio>) -> Up {
    Up::ready(command(home, &["--json"]).stdout(Stdio::piped()).stderr(stderr).spawn().unwrap())
}

/// Everything in it still does its work: messages and jobs arrive, are done, and it stops in order.
fn works(home: &Path, mut up: Up) {
    for key in ["first", "second", "third"] {
        let sent = json(home, &["send", "@me", "hello", "--key", key, "--wait"]);
        assert_eq!(sent["status"], "done");
    }
    // Something to complain about: nobody answers there.
    let refused = semel(home, &["send", "@nobody", "hello"]);
    assert!(!refused.status.success());
    let plan = home.join("plan.json");
    let step = r#"{"id": "pause", "gear": "wait", "action": "sleep", "params": {"ms": 1}}"#;
    std::fs::write(&plan, format!("{{\"steps\": [{step}]}}")).unwrap();
    let plan = plan.display().to_string();
    let done = semel(home, &["job", "submit", "--plan", &plan, "--wait", "--json"]);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(up.stop(Signal::TERM), Some(0), "a stop in order is a success");
}

/// It is ready, and nobody says so: names can be sent to.
fn until_names_are_known(home: &Path) {
    let known = || {
        let output = semel(home, &["peers", "--json"]);
        let peers: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        peers["items"].as_array().is_some_and(|items| items.iter().any(|item| item["name"] == "me"))
    };
    while !known() {
        std::thread::yield_now();
    }
}

/// A pipe with no room for one more byte, whose reader reads nothing.
pub(super) fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = pipe().unwrap();
    let flags = rustix::fs::fcntl_getfl(&writer).unwrap();
    rustix::fs::fcntl_setfl(&writer, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    for size in [1 << 12, 1] {
        while writer.write(&vec![b'x'; size]).is_ok() {}
    }
    rustix::fs::fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

#[test]
fn a_reader_that_went_away_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    // `semel up 2>&1 | head -1`
    let (reader, writer) = pipe().unwrap();
    let mut command = command(home, &[]);
    command.stdout(writer.try_clone().unwrap()).stderr(writer);
    let child = command.spawn().unwrap();
    drop(command);
    BufReader::new(reader).read_line(&mut String::new()).unwrap();
    let up = Up { child, ready: Value::Null };
    until_names_are_known(home);
    works(home, up);
}

#[test]
fn a_stderr_that_is_closed_or_full_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    works(home, up(home, writer));
    works(home, up(home, File::create("/dev/full").unwrap()));
}

#[test]
fn a_reader_that_stands_still_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (_reader, writer) = full_pipe();
    works(folder.path(), up(folder.path(), writer));
}

#[test]
fn what_cannot_say_that_it_is_ready_is_ready_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let full = || File::create("/dev/full").unwrap();
    let child = command(home, &[]).stdout(full()).stderr(full()).spawn().unwrap();
    let up = Up { child, ready: Value::Null };
    until_names_are_known(home);
    works(home, up);
}

/// What it logs about a send that is repeated, with this much said.
fn logged(level: Option<&str>) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (home, log) = (folder.path(), folder.path().join("log"));
    let mut command = command(home, &["--json"]);
    command.env_remove("SEMEL_LOG").envs(level.map(|level| ("SEMEL_LOG", level)));
    command.stdout(Stdio::piped()).stderr(File::create(&log).unwrap());
    let mut up = Up::ready(command.spawn().unwrap());
    for _ in 0..2 {
        json(home, &["send", "@me", "hello", "--key", "first", "--wait"]);
    }
    assert_eq!(up.stop(Signal::TERM), Some(0));
    std::fs::read_to_string(log).unwrap()
}

#[test]
fn how_much_is_said_is_chosen_and_a_word_that_means_nothing_is_refused() {
    let (line, usual) = ("200 duplicate", "connected to the broker");
    for level in [None, Some(""), Some("info")] {
        let log = logged(level);
        assert!(log.contains(usual) && !log.contains(line), "{level:?}: {log}");
    }
    let log = logged(Some("debug"));
    assert!(log.contains(usual) && log.contains(line), "{log}");
    for level in ["warn", "error"] {
        let log = logged(Some(level));
        assert!(!log.contains(usual) && !log.contains(line), "{level}: {log}");
    }
    let folder = tempfile::tempdir().unwrap();
    for wrong in ["Debug", "trace", "1"] {
        let refused = command(folder.path(), &[]).env("SEMEL_LOG", wrong).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(78), "{wrong}: {said}");
        assert!(said.contains("error, warn, info or debug"), "{wrong}: {said}");
    }
}

#[test]
fn an_age_that_a_mesh_does_not_allow_is_said_once() {
    let folder = tempfile::tempdir().unwrap();
    let (home, log) = (folder.path(), folder.path().join("log"));
    assert_eq!(Up::start(home).stop(Signal::TERM), Some(0));
    let store = format!("sqlite:{}", home.join("broker/broker.db").display());
    let mut set = Command::new(env!("CARGO_BIN_EXE_semel"));
    set.args(["broker", "mesh", "set", "local", "dedupe_mode=permanent", "--store", &store]);
    assert!(set.output().unwrap().status.success());
    let config = home.join("daemon/local/config.toml");
    // Known from the broker, and at the second start from the file, too.
    for (hours, lines) in [(720, 0), (721, 1), (721, 1)] {
        std::fs::write(&config, format!("[outbox]\nmax_age_hours_override = {hours}\n")).unwrap();
        let mut up = up(home, File::create(&log).unwrap());
        json(home, &["send", "@me", "hello", "--wait"]);
        assert_eq!(up.stop(Signal::TERM), Some(0));
        let log = std::fs::read_to_string(&log).unwrap();
        let said = log.matches("outbox.max_age_hours_override is too large").count();
        assert_eq!(said, lines, "{hours}: {log}");
    }
}

#[test]
fn an_exit_code_is_the_same_when_nobody_can_be_told() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(["send", "@me", "hello", "--home"]).arg(folder.path()).env_remove("SEMEL_HOME");
    let said = command.stderr(Stdio::null()).status().unwrap();
    let unsaid = command.stderr(File::create("/dev/full").unwrap()).status().unwrap();
    assert_eq!(said.code(), unsaid.code());
}

#[test]
fn a_log_file_on_a_full_disk_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    assert_eq!(Up::start(home).stop(Signal::TERM), Some(0));
    let log = home.join("daemon/local/daemon.log");
    let _ = std::fs::remove_file(&log);
    std::os::unix::fs::symlink("/dev/full", &log).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(DAEMON_UP).args(["--log-file", "--json"]);
    command.arg("--home").arg(home).env_remove("SEMEL_HOME");
    let full = File::create("/dev/full").unwrap();
    let mut daemon = Up::ready(command.stdout(Stdio::piped()).stderr(full).spawn().unwrap());
    for key in ["first", "second"] {
        let sent = json(home, &["send", "@me", "hello", "--key", key]);
        assert_eq!(sent["status"], "queued", "its broker is away: {sent}");
    }
    assert_eq!(daemon.stop(Signal::TERM), Some(0));
}
