//! A clean stop leaves whole databases: no log beside them, so that the `.db` files alone are all
//! there is.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use semel_client::Client;
use serde_json::{Value, json};

use super::{DAEMON_UP, Up, command, json as asked, semel};

const SENDS: usize = 12;

/// One step that does nothing but wait.
const STEPS: &str = r#"{"steps": [
    {"id": "pause", "gear": "wait", "action": "sleep", "params": {"ms": 1}}]}"#;

/// What SQLite has left beside databases, wherever in this folder.
fn logs(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else if name.ends_with("-wal") || name.ends_with("-shm") {
                found.push(entry.path());
            }
        }
    }
    found
}

/// A copy of a home with nothing beside its databases.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (kind, name) = (entry.file_type().unwrap(), entry.file_name().into_string().unwrap());
        let is_beside =
            [".db-wal", ".db-shm", ".db.lock", ".db.sums"].iter().any(|end| name.ends_with(end));
        if kind.is_dir() {
            copy(&entry.path(), &to.join(name));
        } else if kind.is_file() && !is_beside {
            std::fs::copy(entry.path(), to.join(name)).unwrap();
        }
    }
    let mode = std::fs::metadata(from).unwrap().permissions();
    std::fs::set_permissions(to, mode).unwrap();
}

fn started(mut command: Command) -> Up {
    Up::ready(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
}

fn binary(arguments: &[&str], home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(arguments).args(["--json", "--home"]).arg(home).env_remove("SEMEL_HOME");
    command
}

fn broker(store: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(["broker", "serve", "--json", "--listen", "127.0.0.1:0", "--store", store]);
    command
}

fn send(home: &Path) {
    for number in 0..SENDS {
        let (key, body) = (format!("key-{number}"), format!("body {number}"));
        let sent = asked(home, &["send", "@me", &body, "--key", &key, "--wait"]);
        assert_eq!(sent["status"], "done");
    }
    while inbox(home) < SENDS {
        std::thread::yield_now();
    }
}

/// What the SQLite of another program says of a database: it may be an older one.
fn checked_by_python(database: &Path) -> String {
    let check = "import sqlite3, sys\n\
                 for row in sqlite3.connect(sys.argv[1]).execute('PRAGMA integrity_check'):\n \
                 print(row[0])";
    let output = Command::new("python3").args(["-c", check]).arg(database).output().unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

fn inbox(home: &Path) -> usize {
    asked(home, &["inbox", "list"])["items"].as_array().unwrap().len()
}

fn plan(folder: &Path) -> String {
    let plan = folder.join("plan.json");
    std::fs::write(&plan, STEPS).unwrap();
    plan.display().to_string()
}

fn submit(home: &Path, plan: &str) {
    let done = semel(home, &["job", "submit", "--plan", plan, "--key", "once", "--wait", "--json"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn a_home_that_was_stopped_is_its_databases_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (home, other) = (folder.path().join("one"), folder.path().join("two"));
    let mut up = Up::start(&home);
    send(&home);
    submit(&home, &plan(folder.path()));
    // Somebody listens while it stops.
    let mut listening = binary(&["events"], &home);
    let mut listening = listening.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let jobs = asked(&home, &["job", "list"]);
    assert_eq!(up.stop(Signal::TERM), Some(0));
    assert_eq!(logs(&home), [] as [PathBuf; 0]);
    listening.kill().unwrap();
    listening.wait().unwrap();
    copy(&home, &other);
    let databases =
        ["broker/broker.db", "daemon/local/outbox.db", "daemon/local/inbox.db", "jobs/jobs.db"];
    for database in databases {
        let mode = std::fs::metadata(home.join(database)).unwrap().permissions();
        let mode = std::os::unix::fs::PermissionsExt::mode(&mode);
        assert_eq!(mode & 0o777, 0o600, "{database} is its owner's alone");
        assert_eq!(checked_by_python(&other.join(database)), "ok\n", "{database}");
    }
    let mut up = Up::start(&other);
    assert_eq!(inbox(&other), SENDS);
    assert_eq!(asked(&other, &["job", "list"]), jobs);
    let again = asked(&other, &["send", "@me", "body 0", "--key", "key-0", "--wait"]);
    assert_eq!(again["status"], "done");
    assert_eq!(inbox(&other), SENDS, "the broker's ids are there, too");
    let meshes = format!("sqlite:{}", other.join("broker/broker.db").display());
    let meshes = Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(["broker", "mesh", "list", "--json", "--store", &meshes])
        .output()
        .unwrap();
    let mesh: Value = serde_json::from_slice(&meshes.stdout).unwrap();
    assert_eq!(mesh["slug"], "local");
    assert_eq!(up.stop(Signal::TERM), Some(0));
    assert_eq!(logs(&other), [] as [PathBuf; 0]);
}

#[test]
fn each_process_that_serves_closes_what_it_has_opened() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    let mut up = Up::start(&home);
    send(&home);
    assert_eq!(up.stop(Signal::TERM), Some(0));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let file = folder.path().join("broker.db");
    let store = format!("sqlite:{}", file.display());
    let owner = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
    let made = ["broker", "mesh", "create", "ops", "--owner", "a", "--owner-key", owner];
    let operator = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        let command = command.args(arguments).args(["--store", &store]).stdout(Stdio::null());
        assert!(command.status().unwrap().success(), "{arguments:?}");
    };
    operator(&made);
    assert_eq!(logs(folder.path()), [] as [PathBuf; 0], "a command closes it, too");
    for (name, command) in [
        ("broker", broker(&store)),
        ("daemon", binary(&DAEMON_UP, &home)),
        ("job", binary(&["job", "serve"], &home)),
        ("up", command(&home, &["--json"])),
    ] {
        let mut process = started(command);
        match name {
            "broker" => operator(&["broker", "mesh", "set", "ops", "rate_limit=7"]),
            "job" => {
                let client = Client::socket(home.join("jobs/sock"));
                let job = json!({"plan": serde_json::from_str::<Value>(STEPS).unwrap()});
                let submitted = runtime.block_on(client.post("/v1/jobs", &job, None)).unwrap();
                assert_eq!(submitted.status, 201, "{submitted:?}");
            }
            _ => drop(asked(&home, &["send", "@me", name, "--key", name])),
        }
        assert_eq!(process.stop(Signal::TERM), Some(0), "{name}");
        assert_eq!(logs(folder.path()), [] as [PathBuf; 0], "{name}");
    }
}

#[test]
fn who_reads_a_database_meanwhile_does_not_turn_a_clean_stop_into_another() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let mut up = Up::start(home);
    send(home);
    let files = ["broker/broker.db", "daemon/local/outbox.db", "daemon/local/inbox.db"];
    let readers = files.map(|file| {
        let reader = semel_testkit::sqlite::open(home.join(file)).unwrap();
        reader.execute_batch("BEGIN").unwrap();
        let count = "SELECT count(*) FROM sqlite_schema";
        reader.query_row(count, [], |row| row.get::<_, i64>(0)).unwrap();
        reader
    });
    for number in 0..3 {
        asked(home, &["send", "@me", "meanwhile", "--key", &format!("m-{number}"), "--wait"]);
    }
    assert_eq!(up.stop(Signal::TERM), Some(0));
    // Whoever closes it last takes the log along.
    for reader in readers {
        reader.execute_batch("ROLLBACK").unwrap();
        reader.close().unwrap();
    }
    assert_eq!(logs(home), [] as [PathBuf; 0]);
    let mut up = Up::start(home);
    while inbox(home) < SENDS + 3 {
        std::thread::yield_now();
    }
    assert_eq!(up.stop(Signal::TERM), Some(0));
}
