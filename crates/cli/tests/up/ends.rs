//! A process that serves lives with all of its parts or not at all: the end of one is said, and has
//! an exit code of its own.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::Value;

use super::log::full_pipe;
use super::{DAEMON_UP, Up, command, json, semel};

/// An end that does not come would be waited for without an end.
const END_MAX: Duration = Duration::from_secs(60);

/// What it says on stderr until it ends, and with which code it does.
fn ends(mut child: Child) -> (String, Option<i32>) {
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (said, child.wait().unwrap().code())
}

/// Starts a process in which `owner` has a part that panics when it is asked to, and asks.
fn panicked(owner: &str, mut command: Command) -> (String, Option<i32>) {
    command.env("SEMEL_TEST_PANIC", owner).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(ready["event"], "ready");
    kill_process(Pid::from_child(&child), Signal::USR2).unwrap();
    ends(child)
}

fn binary(arguments: &[&str], home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(arguments).args(["--json", "--home"]).arg(home).env_remove("SEMEL_HOME");
    command
}

#[test]
fn a_part_that_panics_ends_the_process_with_a_message_and_a_code() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let store = format!("sqlite:{}", home.join("broker.db").display());
    let mut broker = Command::new(env!("CARGO_BIN_EXE_semel"));
    broker.args(["broker", "serve", "--json", "--listen", "127.0.0.1:0", "--store", &store]);
    let cases = [
        ("up", command(home, &["--json"])),
        // The daemon in `semel up`, and the same one alone.
        ("daemon", command(home, &["--json"])),
        ("daemon", binary(&DAEMON_UP, home)),
        ("job", binary(&["job", "serve"], home)),
        ("broker", broker),
    ];
    for (owner, command) in cases {
        let (said, code) = panicked(owner, command);
        assert_eq!(code, Some(70), "{owner}: {said}");
        let last = said.lines().rev().nth(1).unwrap();
        assert!(last.starts_with("error: the part \"planted\" has panicked"), "{owner}: {said}");
        let panic = said.lines().find(|line| line.contains("a test has asked for it"));
        let panic: Value = serde_json::from_str(panic.unwrap()).unwrap();
        assert!(panic["fields"]["place"].as_str().unwrap().contains("system.rs"), "{panic}");
    }
}

#[test]
fn the_code_is_the_same_when_nobody_can_be_told() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = command(folder.path(), &["--json"]);
    command.env("SEMEL_TEST_PANIC", "up").stdout(Stdio::piped());
    let full = std::fs::File::create("/dev/full").unwrap();
    let mut up = Up::ready(command.stderr(full).spawn().unwrap());
    assert_eq!(up.stop(Signal::USR2), Some(70));
    // What was acknowledged is there, and it can be started again.
    let mut up = Up::start(folder.path());
    assert_eq!(json(folder.path(), &["send", "@me", "hello", "--wait"])["status"], "done");
    assert_eq!(up.stop(Signal::TERM), Some(0));
}

/// The code with which it ends by itself.
fn ends_by_itself(up: &mut Up) -> Option<i32> {
    let (ended, hears) = mpsc::channel();
    let pid = Pid::from_child(&up.child);
    std::thread::scope(|threads| {
        let child = &mut up.child;
        threads.spawn(move || ended.send(child.wait().unwrap().code()).unwrap());
        hears.recv_timeout(END_MAX).unwrap_or_else(|_| {
            kill_process(pid, Signal::KILL).unwrap();
            panic!("it did not end");
        })
    })
}

#[test]
fn a_reader_that_stands_still_does_not_keep_what_lost_a_part() {
    let folder = tempfile::tempdir().unwrap();
    let (_reader, writer) = full_pipe();
    let mut command = command(folder.path(), &["--json"]);
    command.env("SEMEL_TEST_PANIC", "up").stdout(Stdio::piped());
    let mut up = Up::ready(command.stderr(writer).spawn().unwrap());
    kill_process(Pid::from_child(&up.child), Signal::USR2).unwrap();
    assert_eq!(ends_by_itself(&mut up), Some(70));
}

#[test]
fn a_reader_that_stands_still_does_not_keep_what_cannot_know_what_is_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let (_reader, writer) = full_pipe();
    let mut command = command(home, &["--json"]);
    let mut up = Up::ready(command.stdout(Stdio::piped()).stderr(writer).spawn().unwrap());
    // The signal of a file that has become too large does not end it before it could say why.
    let nothing = Rlimit { current: Some(0), maximum: Some(0) };
    prlimit(Some(Pid::from_child(&up.child)), Resource::Fsize, nothing).unwrap();
    let sent = semel(home, &["send", "@me", "hello"]);
    assert!(!sent.status.success(), "{sent:?}");
    assert_eq!(ends_by_itself(&mut up), Some(5));
}

#[test]
fn everything_ends_with_its_broker() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let mut command = command(home, &["--json"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut up = Up::ready(child);
    // As if the store had been restored under the broker, which ends by itself then.
    let store = semel_testkit::sqlite::open(home.join("broker/broker.db")).unwrap();
    store.execute("UPDATE store SET store_epoch = 'another'", []).unwrap();
    drop(store);
    let mut said = String::new();
    up.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(up.child.wait().unwrap().code(), Some(5), "{said}");
    assert!(
        said.contains("error: the broker: the store was restored while this broker ran"),
        "{said}"
    );
    let refused = semel(home, &["send", "@me", "nobody is there"]);
    assert_eq!(refused.status.code(), Some(5));
}
