//! Running the binary.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

pub(crate) fn semel(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_semel")).args(arguments).output().unwrap()
}

/// What a command prints when it succeeds.
pub(crate) fn succeeds(arguments: &[&str]) -> String {
    let output = semel(arguments);
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    text.trim().to_owned()
}

/// A broker process; killed when it is dropped.
pub(crate) struct Broker {
    child: Child,
    pub(crate) url: String,
}

impl Broker {
    /// Starts one on a free port and waits until it says that it is ready.
    pub(crate) fn start(store: &str, extra: &[&str]) -> Self {
        Self::start_at("127.0.0.1:0", store, extra)
    }

    /// The same on an address of one's own choice.
    pub(crate) fn start_at(listen: &str, store: &str, extra: &[&str]) -> Self {
        Self::start_logging(Stdio::null(), listen, store, extra)
    }

    /// The same with a log.
    pub(crate) fn start_logging(log: Stdio, listen: &str, store: &str, extra: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_semel"))
            .args(["broker", "serve", "--json", "--listen", listen, "--store", store])
            .args(extra)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: serde_json::Value = serde_json::from_str(&line).expect("a ready line");
        assert_eq!(ready["event"], "ready");
        Self { child, url: ready["broker"].as_str().unwrap().to_owned() }
    }

    /// SIGKILL, and wait until it is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM; gives the exit code.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        self.terminate();
        self.stop_code()
    }

    /// The exit code of a process that was asked to end.
    pub(crate) fn stop_code(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    /// SIGHUP.
    pub(crate) fn hang_up(&self) {
        kill_process(Pid::from_child(&self.child), Signal::HUP).unwrap();
    }

    /// SIGTERM, without a wait.
    pub(crate) fn terminate(&self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
