//! One bad byte in a log (`-wal`) of a home that was killed: whoever has acknowledged what is
//! behind it refuses to start, and every tool says so.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::process::Signal;
use serde_json::Value;

use super::{Up, json, semel};

/// Changes one byte in the middle of what is in a log.
fn damage(log: &Path) {
    let mut bytes = std::fs::read(log).unwrap();
    // A log that is in use is longer than what is in it.
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[end / 2] ^= 0x04;
    std::fs::write(log, bytes).unwrap();
}

/// A copy of a home, with everything that a kill has left.
fn copied(from: &Path, to: &Path) -> PathBuf {
    let copied = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(copied.success());
    to.to_owned()
}

fn said(home: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = semel(home, arguments);
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn a_bad_byte_in_a_log_is_told_and_nothing_is_lost_silently() {
    let folder = tempfile::tempdir().unwrap();
    let killed = folder.path().join("killed");
    let home = killed.as_path();
    let mut up = Up::start(home);
    for number in 0..8 {
        let key = format!("key-{number}");
        let sent = json(home, &["send", "@me", "hello", "--key", &key, "--wait"]);
        assert_eq!(sent["status"], "done");
    }
    let plan = home.join("plan.json");
    let steps = r#"{"steps": [
        {"id": "pause", "gear": "wait", "action": "sleep", "params": {"ms": 1}}]}"#;
    std::fs::write(&plan, steps).unwrap();
    for _ in 0..3 {
        let plan = plan.display().to_string();
        let done = semel(home, &["job", "submit", "--plan", &plan, "--wait"]);
        assert!(done.status.success(), "{done:?}");
    }
    up.stop(Signal::KILL);
    let ports = ["up", "--broker-listen", "127.0.0.1:0", "--api-listen", "127.0.0.1:0"];
    for (file, way_out) in [
        ("broker/broker.db", "semel broker restore --in BACKUP"),
        ("daemon/local/outbox.db", "semel daemon recover"),
        ("jobs/jobs.db", "semel job restore --in BACKUP"),
    ] {
        // A start that is refused has closed what it had opened before.
        let home = &copied(&killed, &folder.path().join(file.replace('/', "-")));
        let log = home.join(format!("{file}-wal"));
        damage(&log);
        let name = format!("{file}-wal is damaged at ");
        let (code, text) = said(home, &ports);
        assert_eq!(code, Some(78), "{text}");
        assert!(text.contains(&name) && text.contains(way_out), "{text}");
        let (code, text) = said(home, &["doctor"]);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains(&name), "{text}");
        let tool: &[&str] = match file {
            "jobs/jobs.db" => &["job", "check"],
            "daemon/local/outbox.db" => &["daemon", "recover"],
            _ => &[],
        };
        if !tool.is_empty() {
            let (code, text) = said(home, tool);
            assert_eq!(code, Some(1), "{text}");
            assert!(text.contains(&name), "{text}");
        }
    }
    // An inbox is had again from the broker.
    damage(&home.join("daemon/local/inbox.db-wal"));
    let mut up = Up::start(home);
    let items =
        || -> Vec<Value> { json(home, &["inbox", "list"])["items"].as_array().unwrap().clone() };
    while items().len() < 8 {
        std::thread::yield_now();
    }
    assert_eq!(up.stop(Signal::TERM), Some(0));
}

/// A page that SQLite reads without a complaint.
#[test]
fn a_changed_page_is_told_by_the_check_of_jobs_too() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let mut up = Up::start(home);
    assert_eq!(up.stop(Signal::TERM), Some(0));
    let database = home.join("jobs/jobs.db");
    assert_eq!(said(home, &["job", "check"]).0, Some(0));
    let mut bytes = std::fs::read(&database).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 0x04;
    std::fs::write(&database, bytes).unwrap();
    let (code, text) = said(home, &["job", "check"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("jobs.db is damaged at page"), "{text}");
}

/// Changes a byte of what is written in a file, where these words are.
fn change_words(file: &Path, words: &[u8]) {
    let mut bytes = std::fs::read(file).unwrap();
    let at = bytes.windows(words.len()).position(|found| found == words).unwrap();
    bytes[at] ^= 0x04;
    let opened = std::fs::File::options().write(true).open(file).unwrap();
    opened.write_all_at(&bytes[at..=at], at as u64).unwrap();
}

#[test]
fn what_changed_under_a_process_is_not_copied_to_a_backup() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let mut up = Up::start(home);
    json(home, &["send", "@me", "words of a message", "--key", "first", "--wait"]);
    let plan = home.join("plan.json");
    let steps = r#"{"steps": [
        {"id": "words-of-a-plan", "gear": "wait", "action": "sleep", "params": {"ms": 1}}]}"#;
    std::fs::write(&plan, steps).unwrap();
    let done = semel(home, &["job", "submit", "--plan", plan.to_str().unwrap(), "--wait"]);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(up.stop(Signal::TERM), Some(0));
    let _up = Up::start(home);
    let (broker, copy) = (home.join("broker/broker.db"), home.join("copy.db"));
    let (store, out) = (format!("sqlite:{}", broker.display()), copy.display().to_string());
    let of_broker = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command.args(["broker", "backup", "--store", &store, "--out", &out]).output().unwrap()
    };
    let of_jobs = || semel(home, &["job", "backup", "--out", &out]);
    let jobs = home.join("jobs/jobs.db");
    for (backup, file, words) in [
        (&of_broker as &dyn Fn() -> Output, &broker, &b"words of a message"[..]),
        (&of_jobs, &jobs, b"words-of-a-plan"),
    ] {
        let done = backup();
        assert!(done.status.success(), "{done:?}");
        std::fs::remove_file(&copy).unwrap();
        change_words(file, words);
        let done = backup();
        let text = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(78), "{text}");
        assert!(text.contains(&format!("{} is damaged at page", file.display())), "{text}");
        assert!(!copy.exists(), "{text}");
    }
}

#[test]
fn a_file_that_cannot_be_opened_is_not_said_to_need_a_backup() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    std::fs::create_dir_all(home.join("jobs/jobs.db")).unwrap();
    let (code, text) = said(home, &["job", "backup", "--out", "copy.db"]);
    assert_eq!(code, Some(78), "{text}");
    assert!(text.contains("jobs.db") && !text.contains("restore"), "{text}");
}
