//! `semel doctor --deep`: what was changed where nothing but a fingerprint can tell.

use std::path::Path;

use rustix::process::Signal;
use semel_testkit::sqlite;
use serde_json::Value;

use super::{Up, json, semel};

fn doctor(home: &Path, more: &[&str]) -> (Option<i32>, Vec<Value>) {
    let output = semel(home, &[&["doctor", "--json"], more].concat());
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    (output.status.code(), found["items"].as_array().unwrap().clone())
}

/// What a deep look complains of.
fn complaints(home: &Path) -> Vec<String> {
    let (code, items) = doctor(home, &["--deep"]);
    let bad = items.iter().filter(|item| item["condition"] == "problem");
    let bad: Vec<String> = bad.map(|item| item["detail"].as_str().unwrap().to_owned()).collect();
    assert_eq!(code, Some(i32::from(!bad.is_empty())), "{items:?}");
    bad
}

/// As a program that is not ours changes it: SQLite itself finds nothing wrong.
fn change(path: &Path, sql: &str) {
    let file = sqlite::open(path).unwrap();
    file.pragma_update(None, "ignore_check_constraints", true).unwrap();
    assert_eq!(file.execute(sql, []).unwrap(), 1, "{sql}");
}

#[test]
fn everything_that_is_kept_is_read_and_compared() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let mut up = Up::start(home);
    json(home, &["send", "@me", "hello", "--key", "first", "--wait"]);
    json(home, &["send", "@me", "bye", "--key", "second", "--wait"]);
    let plan = home.join("plan.json");
    let steps = r#"{"steps": [
        {"id": "pause", "gear": "wait", "action": "sleep", "params": {"ms": 1}}]}"#;
    std::fs::write(&plan, steps).unwrap();
    let done = semel(home, &["job", "submit", "--plan", plan.to_str().unwrap(), "--wait"]);
    assert!(done.status.success(), "{done:?}");
    while json(home, &["inbox", "list"])["items"].as_array().unwrap().len() < 2 {
        std::thread::yield_now();
    }
    assert_eq!(complaints(home), [""; 0], "while it is used");
    assert_eq!(up.stop(Signal::TERM), Some(0));
    let gear = home.join("hello");
    for words in [
        &["gear", "new", gear.to_str().unwrap()][..],
        &["gear", "install", gear.to_str().unwrap(), "--accept-weaker-sandbox"],
    ] {
        let done = semel(home, words);
        assert!(done.status.success(), "{done:?}");
    }
    assert_eq!(complaints(home), [""; 0]);
    let (_, items) = doctor(home, &["--deep"]);
    let read = |item: &&Value| item["check"] == "contents";
    assert_eq!(items.iter().filter(read).count(), 4, "every database: {items:?}");

    change(
        &home.join("broker/broker.db"),
        "UPDATE message_queue SET body = CAST('hellx' AS BLOB) WHERE client_message_id = 'first'",
    );
    change(
        &home.join("daemon/local/outbox.db"),
        "UPDATE outbox SET payload = CAST('hellx' AS BLOB) WHERE client_message_id = 'first'",
    );
    change(
        &home.join("daemon/local/inbox.db"),
        "UPDATE inbox SET sender_name = 'somebody' WHERE client_message_id = 'first'",
    );
    change(&home.join("jobs/jobs.db"), "UPDATE job SET status = 'complete'");
    let package = std::fs::read_dir(home.join("jobs/gear/hello/package")).unwrap();
    let names = package.map(|entry| entry.unwrap().path());
    let name = names.into_iter().find(|name| name.extension().is_some_and(|end| end != "toml"));
    let name = name.unwrap();
    let writable = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&name, writable).unwrap();
    std::fs::write(&name, "something else").unwrap();

    let (code, items) = doctor(home, &[]);
    assert_eq!(code, Some(0), "nobody sees it by a short look: {items:?}");
    let found = complaints(home);
    for name in ["broker.db: ", "outbox.db: ", "inbox.db: ", "jobs.db: ", "hello"] {
        assert_eq!(found.iter().filter(|one| one.contains(name)).count(), 1, "{name}: {found:?}");
    }
    assert_eq!(found.len(), 5, "{found:?}");
}

/// Rows that are whole, each for itself, and do not belong together.
#[test]
fn what_belongs_together_is_compared() {
    let folder = tempfile::tempdir().unwrap();
    let home = &folder.path().join("home");
    let mut up = Up::start(home);
    json(home, &["send", "@me", "hello", "--key", "first", "--wait"]);
    let plan = folder.path().join("plan.json");
    let steps = r#"{"steps": [
        {"id": "pause", "gear": "wait", "action": "sleep", "params": {"ms": 1}}]}"#;
    std::fs::write(&plan, steps).unwrap();
    let done = semel(home, &["job", "submit", "--plan", plan.to_str().unwrap(), "--wait"]);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(up.stop(Signal::TERM), Some(0));
    assert_eq!(complaints(home), [""; 0]);
    let (broker, jobs) = ("broker/broker.db", "jobs/jobs.db");
    for (store, sql, words) in [
        (broker, "DELETE FROM message_history", "message_without_history 1"),
        (broker, "DELETE FROM message_queue", "history_without_message 1"),
        (broker, "DELETE FROM client_message_dedupe", "message_without_dedupe 1"),
        (broker, "UPDATE mesh SET next_seq = next_seq + 1", "history_gaps 1"),
        (
            jobs,
            "INSERT INTO execution_log
             SELECT root_id, 'invented', job_no, plan_no, gear, action, step_fingerprint, status,
                    attempts, certain, result, artifact_sha256, error, started_at, completed_at, via
               FROM execution_log",
            "\"invented\" is not in the plan",
        ),
        (jobs, "UPDATE execution_log SET action = 'until'", "does something else in the plan"),
        (
            jobs,
            "UPDATE execution_log SET step_fingerprint = zeroblob(32)",
            "has other parameters in the plan",
        ),
        (jobs, "UPDATE execution_log SET plan_no = 7", "a plan that there never was"),
        (jobs, "UPDATE execution_log SET job_no = 0", "a job that is not there"),
    ] {
        let (path, kept) = (home.join(store), folder.path().join("kept"));
        std::fs::copy(&path, &kept).unwrap();
        change(&path, sql);
        let found = complaints(home);
        assert!(found.len() == 1 && found[0].contains(words), "{sql}: {found:?}");
        sqlite::forget_sums(&path);
        std::fs::rename(&kept, &path).unwrap();
    }
    assert_eq!(complaints(home), [""; 0]);
}
