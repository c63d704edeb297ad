//! A home, the hostile gear, and the binary.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use semel_core::clock::{Clock, SystemClock};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Long enough for a loaded machine; only a failure waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// From being told to stop until nothing is left: the grace, and one second.
pub(crate) const STOPPED_IN: Duration = Duration::from_secs(6);

const KIT: &str = include_str!("../../../../sdk/gear-python/semel_gear.py");
const MAIN: &str = include_str!("hostile/main.py");
const MANIFEST: &str = include_str!("hostile/gear.toml");

pub(crate) struct World {
    folder: TempDir,
}

impl World {
    /// With the hostile gear, not installed.
    pub(crate) fn new() -> Self {
        Self::with(|manifest| manifest)
    }

    /// With a manifest that is somewhat different.
    pub(crate) fn with(change: impl FnOnce(String) -> String) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let gear = folder.path().join("hostile");
        fs::create_dir(&gear).unwrap();
        fs::write(gear.join("gear.toml"), change(MANIFEST.to_owned())).unwrap();
        fs::write(gear.join("main.py"), MAIN).unwrap();
        fs::write(gear.join("semel_gear.py"), KIT).unwrap();
        Self { folder }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    /// Folders of gears that run. A trial in a home that was not there takes with it what it made.
    pub(crate) fn runs(&self) -> usize {
        fs::read_dir(self.home().join("jobs/run")).map_or(0, Iterator::count)
    }

    pub(crate) fn gear(&self) -> PathBuf {
        self.folder.path().join("hostile")
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command
            .args(arguments)
            .env("SEMEL_HOME", self.home())
            .env("ENGINE_SECRET", "of-the-engine")
            .current_dir(self.folder.path());
        command
    }

    pub(crate) fn semel(&self, arguments: &[&str], stdin: &str) -> Output {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    /// What a command prints when it succeeds.
    pub(crate) fn succeeds(&self, arguments: &[&str], stdin: &str) -> String {
        let output = self.semel(arguments, stdin);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn arguments(action: &str, params: &Value, timeout: &str) -> Vec<String> {
        let params = params.to_string();
        [
            "gear",
            "test",
            "hostile",
            "--json",
            "--action",
            action,
            "--params",
            &params,
            "--timeout",
            timeout,
            "--with-secrets",
            "token",
        ]
        .map(str::to_owned)
        .to_vec()
    }

    /// How an action of the hostile gear ended.
    pub(crate) fn ended(&self, action: &str, params: &Value, timeout: &str) -> Value {
        let arguments = Self::arguments(action, params, timeout);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = self.semel(&arguments, "");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{action}: {text:?} {errors}"))
    }

    /// What an action gave.
    pub(crate) fn result(&self, action: &str, params: &Value) -> Value {
        let ended = self.ended(action, params, "30s");
        assert_eq!(ended["ended"], "done", "{action}: {ended}");
        ended["result"].clone()
    }

    /// An action that has said that it is ready.
    pub(crate) fn begun(&self, action: &str, params: &Value, timeout: &str) -> Child {
        let arguments = Self::arguments(action, params, timeout);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut command = self.command(&arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        // The rest fits into the pipe.
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        errors.read_line(&mut line).unwrap();
        assert!(line.contains("ready"), "{line}");
        child.stderr = Some(errors.into_inner());
        child
    }
}

/// `semel up` in a world's home; killed when it is dropped.
pub(crate) struct Up<'a> {
    world: &'a World,
    child: Child,
}

impl<'a> Up<'a> {
    pub(crate) fn start(world: &'a World) -> Self {
        let words = ["up", "--json", "--name", "me", "--broker-listen", "127.0.0.1:0"];
        let mut command = world.command(&[&words[..], &["--api-listen", "127.0.0.1:0"]].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("\"ready\""), "{line}");
        Self { world, child }
    }

    pub(crate) fn asked(&self, words: &[&str]) -> Value {
        let text = self.world.succeeds(&[words, &["--json"]].concat(), "");
        serde_json::from_str(&text).unwrap()
    }

    /// Hands a job of these steps in; gives its id.
    pub(crate) fn submit(&self, steps: &Value) -> String {
        let plan = json!({"steps": steps}).to_string();
        let made = self.world.succeeds(&["job", "submit", "--plan", "-", "--json"], &plan);
        let made: Value = serde_json::from_str(&made).unwrap();
        made["id"].as_str().unwrap().to_owned()
    }

    /// The job once it is over, or waits for a person.
    pub(crate) fn ended(&self, id: &str) -> Value {
        let over = ["completed", "failed", "cancelled", "awaiting_approval"];
        let mut job = Value::Null;
        eventually(PATIENCE * 2, "the end of a job", || {
            job = self.asked(&["job", "show", id]);
            over.contains(&job["status"].as_str().unwrap())
        });
        job
    }
}

impl Drop for Up<'_> {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Programs whose command begins with the marker; what has ended and was not taken note of counts.
pub(crate) fn alive(marker: &str) -> Vec<String> {
    processes(marker).into_iter().map(|(_, command)| command).collect()
}

/// The same with their folders in `/proc`.
pub(crate) fn processes(marker: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        if let Ok(command) = fs::read(entry.path().join("cmdline")) {
            let command = String::from_utf8_lossy(&command).into_owned();
            if command.contains(marker) && !command.contains("gear\0test") {
                found.push((entry.path(), command.replace('\0', " ")));
            }
        }
    }
    found
}

/// Looks again and again until it is so, or patience is at its end.
pub(crate) fn eventually(within: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let clock = SystemClock::new();
    while !is_so() {
        assert!(clock.monotonic() < within, "not in time: {what}");
        std::thread::yield_now();
    }
}

/// A name that nothing else on this host has.
pub(crate) fn marker(world: &World) -> String {
    let name = world.path().file_name().unwrap().to_str().unwrap();
    format!("marker{}", name.trim_start_matches('.'))
}

pub(crate) fn stay(world: &World, more: &str) -> Value {
    let mut params = json!({"marker": marker(world)});
    if !more.is_empty() {
        params[more] = json!(true);
    }
    params
}
