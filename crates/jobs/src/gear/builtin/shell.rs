//! `shell.run {command}`: off unless the operator enables it, a person is asked every time, and the
//! command runs in the sandbox: the workspace, the system's programs, no network.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::sleep;

use super::super::groups::Groups;
use super::super::installed::clean_environment;
use super::super::manifest::{Manifest, Recovery, Risk};
use super::super::process::{Running, Start};
use super::super::quota;
use super::super::room::Lane;
use super::super::sandbox::Limits;
use super::super::{Call, Desk, Ended, Failure, FailureClass, Gear, Later, Resolution, Stop};
use crate::limits::{LAST_WORDS_CHARS_MAX, SHELL_OUTPUT_BYTES_MAX, STOP_GRACE, STOP_MESSAGE_GRACE};

/// The gear.
pub struct Shell {
    manifest: Manifest,
    shim: PathBuf,
    lane: Arc<Lane>,
    groups: Option<Arc<Groups>>,
}

impl Shell {
    /// The gear; `shim` is this program's own file.
    pub fn new(shim: PathBuf, groups: Option<Arc<Groups>>) -> Self {
        let command = json!({"command": {"type": "string", "minLength": 1, "maxLength": 65536}});
        let about = "Run a command of the shell in the workspace";
        let mut run = super::action(about, command, &["command"]);
        (run.risk, run.recovery, run.always_asks) = (Risk::Critical, Recovery::Ask, true);
        let manifest = super::manifest("shell", [("run", run)]);
        Self { manifest, shim, lane: Arc::default(), groups }
    }

    fn start(&self, call: &Call) -> std::io::Result<Running> {
        let command = super::text(&call.params, "command").unwrap_or_default();
        let folder = std::fs::canonicalize(&call.workspace)?;
        Running::start(Start {
            shim: &self.shim,
            key: None,
            secrets: Default::default(),
            program: PathBuf::from("/bin/sh"),
            arguments: vec!["-c".to_owned(), command.to_owned()],
            folder: folder.clone(),
            environment: clean_environment(&folder.display().to_string()),
            read: Vec::new(),
            write: vec![folder],
            limits: Limits::default(),
            proxy: None,
            // It has declared nothing but the workspace, which is of the engine's making.
            kept_from: Vec::new(),
            waived: Vec::new(),
            lives: self.lane.lives(),
            groups: self.groups.clone(),
        })
    }

    async fn execute(&self, call: &Call, mut stop: Stop) -> Ended {
        if call.action != "run" {
            return super::no_such_action(&call.action);
        }
        if stop.is_stopped() {
            return super::stopped();
        }
        let mut running = match self.start(call) {
            Ok(running) => running,
            Err(error) => {
                let class = FailureClass::ResourceLimit;
                return Ended::Failed(Failure::new(class, "not_started", error.to_string()));
            }
        };
        running.close_input();
        let disk = quota::Watch::over(quota::Place {
            folder: call.workspace.clone(),
            bytes_max: Limits::default().disk_bytes,
            process: running.id(),
        });
        let mut over = None;
        let ended = tokio::select! {
            ended = finish(&mut running) => ended,
            () = stop.stopped() => None,
            failure = disk.until_over() => {
                over = Some(failure);
                None
            }
        };
        if ended.is_none() {
            running.terminate();
            // What it still says is of no more use.
            tokio::select! {
                _ = finish(&mut running) => {}
                () = sleep(STOP_GRACE.saturating_sub(STOP_MESSAGE_GRACE)) => {}
            }
        }
        let words = running.last_words();
        running.kill().await;
        match ended {
            Some((code, output)) => judged(code, &output, &words),
            None => Ended::Uncertain(over.unwrap_or_else(|| {
                let class = FailureClass::Transient;
                Failure::new(class, "stopped", "the command was stopped while it ran")
            })),
        }
    }
}

/// What a command wrote, up to a bound, and the code that it ended with, if it did.
async fn finish(running: &mut Running) -> Option<(Option<i32>, Vec<u8>)> {
    let mut output = Vec::new();
    loop {
        let piece = running.bytes().await;
        if piece.is_empty() {
            break;
        }
        // The rest is read all the same, so that the command does not wait for us.
        let room = SHELL_OUTPUT_BYTES_MAX.saturating_sub(output.len()).min(piece.len());
        output.extend_from_slice(piece.get(..room).unwrap_or_default());
    }
    Some((running.ended().await, output))
}

/// A command that says that it failed is not run again by itself: only its author knows what it
/// did before. One that was ended by a signal has said nothing.
fn judged(code: Option<i32>, output: &[u8], words: &str) -> Ended {
    let output = String::from_utf8_lossy(output);
    let said = || {
        let said = format!("{output}{words}");
        let skipped = said.chars().count().saturating_sub(LAST_WORDS_CHARS_MAX);
        said.chars().skip(skipped).collect::<String>()
    };
    match code {
        Some(0) => super::done(json!({"exit_code": 0, "stdout": output, "stderr": words})),
        Some(code @ ..=128) => super::user_error(&format!("exit_{code}"), said()),
        Some(129..) | None => {
            let (class, code) = (FailureClass::UserError, "command_killed");
            Ended::Uncertain(Failure::new(class, code, said()))
        }
    }
}

impl Gear for Shell {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn lane(&self) -> Option<&Arc<Lane>> {
        Some(&self.lane)
    }

    fn recovery(&self, _action: &str, _params: &Value) -> Recovery {
        Recovery::Ask
    }

    fn run<'a>(&'a self, call: Call, _desk: Arc<dyn Desk>, stop: Stop) -> Later<'a, Ended> {
        Box::pin(async move { self.execute(&call, stop).await })
    }

    fn resolve<'a>(&'a self, _call: Call, _stop: Stop) -> Later<'a, Resolution> {
        Box::pin(async { Resolution::Unknown })
    }
}
