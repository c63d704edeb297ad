//! The program, run to its end or until it is ready.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Runs a command in this home.
pub(crate) fn semel(home: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(arguments).env("SEMEL_HOME", home).env_remove("NO_COLOR");
    command.stdin(Stdio::null()).output().unwrap()
}

/// What it has printed.
pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// What it has said besides.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A running `semel up`.
pub(crate) struct Up {
    child: Child,
    pub(crate) pubkey: String,
}

impl Up {
    /// Starts it on free ports and waits until it is ready.
    pub(crate) fn start(home: &Path) -> Self {
        let (child, line) = Self::spawn(home);
        let ready: Value =
            serde_json::from_str(&line).unwrap_or_else(|_| panic!("not ready: {line:?}"));
        let pubkey = ready["pubkey"].as_str().unwrap().to_owned();
        Self { child, pubkey }
    }

    /// The exit code of one that does not become ready; one that does is stopped.
    pub(crate) fn refused(home: &Path) -> Option<i32> {
        let (mut child, line) = Self::spawn(home);
        if !line.is_empty() {
            kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        }
        let code = child.wait().unwrap().code();
        code.filter(|_| line.is_empty())
    }

    /// With the first line that it prints.
    fn spawn(home: &Path) -> (Child, String) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_semel"))
            .args(["up", "--json", "--name", "me", "--broker-listen", "127.0.0.1:0"])
            .args(["--api-listen", "127.0.0.1:0"])
            .env("SEMEL_HOME", home)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (child, line)
    }

    /// Its exit code.
    pub(crate) fn stop(&mut self, signal: Signal) -> Option<i32> {
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

/// What could not be told was done all the same: it is not called failed, and is told elsewhere.
#[test]
fn an_answer_that_cannot_be_written_is_said_on_stderr() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    let output = command.args(["explain", "rate_limited"]).stdout(full).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(6), "{said}");
    assert!(said.contains("stdout: ") && said.contains("What happened"), "{said}");
}
