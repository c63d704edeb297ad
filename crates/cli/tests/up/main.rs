//! `semel up` as a process: everything in one, killed and started again, and its words.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::panic,
    reason = "a test fails by panicking, and says what it has measured"
)]

mod closed;
mod copies;
mod damaged;
mod deep;
mod ends;
mod flood;
mod host;
mod keys;
mod listen;
mod log;
mod prepared;
mod registrar;
mod reload;
mod restart;
mod served;
mod stores;
mod terminal;
mod weight;
mod whole;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The daemon of `semel up` alone, and kept wherever these tests run.
const DAEMON_UP: [&str; 6] = ["daemon", "up", "--persistent", "--mesh", "local", "--no-tcp"];

struct Up {
    child: Child,
    ready: Value,
}

impl Up {
    /// Starts it on free ports and waits until it is ready.
    fn start(home: &Path) -> Self {
        Self::ready(spawn(home, &["--json"]))
    }

    /// Waits until it says so.
    fn ready(mut child: Child) -> Self {
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready = serde_json::from_str(&line).unwrap_or_else(|_| panic!("not ready: {line:?}"));
        Self { child, ready }
    }

    fn stop(&mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(home: &Path, more: &[&str]) -> Child {
    command(home, more).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

fn command(home: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command
        .args(["up", "--name", "me", "--broker-listen", "127.0.0.1:0"])
        .args(["--api-listen", "127.0.0.1:0", "--home"])
        .arg(home)
        .args(more)
        .env_remove("SEMEL_HOME");
    command
}

fn semel(home: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(arguments).arg("--home").arg(home).env_remove("SEMEL_HOME");
    command.output().unwrap()
}

fn json(home: &Path, arguments: &[&str]) -> Value {
    let output = semel(home, &[arguments, &["--json"]].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn everything_in_one_process_survives_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let mut up = Up::start(home);
    for field in ["home", "broker", "mesh", "socket", "api", "token_file", "member_id", "pubkey"] {
        assert!(up.ready[field].is_string(), "{field}: {}", up.ready);
    }
    let pubkey = up.ready["pubkey"].as_str().unwrap().to_owned();
    let first = json(home, &["send", &pubkey, "hello", "--key", "first", "--wait"]);
    assert_eq!(first["status"], "done");
    let second = semel(home, &["up", "--broker-listen", "127.0.0.1:0"]);
    assert_eq!(second.status.code(), Some(78), "one at a time");
    // Killed without a chance to clean up, with a send that was just accepted.
    json(home, &["send", &pubkey, "before the end", "--key", "second"]);
    up.stop(Signal::KILL);
    let refused = semel(home, &["send", &pubkey, "nobody is there"]);
    assert_eq!(refused.status.code(), Some(5));
    let mut up = Up::start(home);
    assert_eq!(up.ready["pubkey"], pubkey, "the same member as before");
    let again = json(home, &["send", &pubkey, "before the end", "--key", "second", "--wait"]);
    assert_eq!(again["client_message_id"], "second");
    let bodies = || -> Vec<Value> {
        let inbox = json(home, &["inbox", "list"]);
        inbox["items"].as_array().unwrap().iter().map(|item| item["body"].clone()).collect()
    };
    while bodies().len() < 2 {
        std::thread::yield_now();
    }
    assert_eq!(bodies(), ["hello", "before the end"], "each once");
    assert_eq!(up.stop(Signal::TERM), Some(0), "a stop in order is a success");
}

#[test]
fn what_it_says_to_try_can_be_copied() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = spawn(&folder.path().join("a home"), &[]);
    let words = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let _up = Up { child, ready: Value::Null };
    let mut commands = words.skip_while(|line| !line.starts_with("try, in another shell")).skip(1);
    let program = Path::new(env!("CARGO_BIN_EXE_semel")).parent().unwrap().display();
    let path = format!("{program}:{}", std::env::var("PATH").unwrap());
    for _ in 0..2 {
        let command = commands.next().unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", &command]).env("PATH", &path).env_remove("SEMEL_HOME");
        let output = shell.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {errors}");
    }
}

#[test]
fn who_joins_its_mesh_is_told_to_start_a_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let (home, other) = (folder.path().join("one"), folder.path().join("two"));
    let _up = Up::start(&home);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let invite = text(semel(&home, &["mesh", "invite"]).stdout);
    let start = format!("semel daemon up --mesh local --home {}\n", other.display());
    let joined = text(semel(&other, &["mesh", "join", invite.trim(), "--name", "bob"]).stdout);
    assert!(joined.ends_with(&start), "{joined}");
    let refused = semel(&other, &["send", "@me", "hello"]);
    assert_eq!(refused.status.code(), Some(5));
    let said = text(refused.stderr);
    assert!(said.ends_with(&start), "{said}");
}

#[test]
fn a_first_run_that_was_cut_off_is_the_same_member_and_a_strangers_mesh_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (home, other) = (folder.path().join("one"), folder.path().join("two"));
    let mut up = Up::start(&home);
    let member_id = up.ready["member_id"].clone();
    assert_eq!(up.stop(Signal::TERM), Some(0));
    // As if it had been killed after the mesh was made and before that was noted.
    std::fs::remove_file(home.join("daemon/local/mesh.json")).unwrap();
    let mut up = Up::start(&home);
    assert_eq!(up.ready["member_id"], member_id);
    assert_eq!(up.stop(Signal::TERM), Some(0));
    let store = format!("sqlite:{}", home.join("broker/broker.db").display());
    let ports = ["--broker-listen", "127.0.0.1:0", "--api-listen", "127.0.0.1:0"];
    let stranger = semel(&other, &[&["up", "--store", &store], &ports[..]].concat());
    assert_eq!(stranger.status.code(), Some(78));
    let text = String::from_utf8_lossy(&stranger.stderr);
    assert!(text.contains("semel mesh join"), "{text}");
}
