//! `shell.run {command}`: off unless the operator enables it, a person is asked every time, and the
//! command runs in the sandbox: the workspace, the system's programs, no network.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::sleep;

use super::super::groups::{Controller, Groups};
use super::super::installed::clean_environment;
use super::super::manifest::{Manifest, Recovery, Risk};
use super::super::process::{Running, Start};
use super::super::quota;
use super::super::reach::Home;
use super::super::room::Lane;
use super::super::sandbox::Limits;
use super::super::sandbox::count::Host;
use super::super::{
    Call, Desk, Ended, Failure, FailureClass, Gear, Later, Report, Resolution, Stop,
};
use crate::limits::{LAST_WORDS_CHARS_MAX, SHELL_OUTPUT_BYTES_MAX, STOP_GRACE, STOP_MESSAGE_GRACE};

/// The gear.
pub struct Shell {
    manifest: Manifest,
    shim: PathBuf,
    lane: Arc<Lane>,
    groups: Option<Arc<Groups>>,
    /// What its commands may not open: the home of the engine, and what is above it.
    home: PathBuf,
    counts: Counts,
}

/// Whether there is a bound on how many processes a command starts. A gear is not installed on a
/// host without one unless its owner accepts that; this one is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counts {
    Bounded,
    Unbounded,
}

impl Counts {
    fn of(host: &Host, groups: Option<&Groups>) -> Self {
        match host.counts() || groups.is_some_and(|groups| groups.bounds(Controller::Pids)) {
            true => Self::Bounded,
            false => Self::Unbounded,
        }
    }
}

impl Shell {
    /// The gear of the home `home`; `shim` is this program's own file.
    pub fn new(home: &Path, shim: PathBuf, groups: Option<Arc<Groups>>) -> Self {
        let command = json!({"command": {"type": "string", "minLength": 1, "maxLength": 65536}});
        let about = "Run a command of the shell in the workspace";
        let mut run = super::action(about, command, &["command"]);
        (run.risk, run.recovery, run.always_asks) = (Risk::Critical, Recovery::Ask, true);
        let manifest = super::manifest("shell", [("run", run)]);
        let counts = Counts::of(&Host::here(), groups.as_deref());
        Self { manifest, shim, lane: Arc::default(), groups, home: home.to_owned(), counts }
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
            // The workspace lies in the home, and is all of it that it may open.
            kept_from: Home::of(&self.home)?.numbers,
            waived: Vec::new(),
            lives: self.lane.lives(),
            groups: self.groups.clone(),
        })
    }

    async fn execute(&self, call: &Call, desk: &dyn Desk, mut stop: Stop) -> Ended {
        if call.action != "run" {
            return super::no_such_action(&call.action);
        }
        if stop.is_stopped() {
            return super::stopped();
        }
        if self.counts == Counts::Unbounded {
            let message = "this host does not limit the number of the command's processes";
            desk.report(Report::Log { message: message.to_owned(), side_effect: false });
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

    fn run<'a>(&'a self, call: Call, desk: Arc<dyn Desk>, stop: Stop) -> Later<'a, Ended> {
        Box::pin(async move { self.execute(&call, &*desk, stop).await })
    }

    fn resolve<'a>(&'a self, _call: Call, _stop: Stop) -> Later<'a, Resolution> {
        Box::pin(async { Resolution::Unknown })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::super::super::{Allowed, SubJob, SubJobEnded};
    use super::*;

    #[derive(Default)]
    struct Heard(Mutex<Vec<Report>>);

    impl Desk for Heard {
        fn report(&self, report: Report) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(report);
        }

        fn sub_job(&self, _asked: SubJob) -> Later<'_, SubJobEnded> {
            Box::pin(async { SubJobEnded::Completed(Value::Null) })
        }
    }

    #[tokio::test]
    async fn a_host_that_does_not_count_processes_is_told_of_in_the_log() {
        let place = tempfile::tempdir().expect("a folder");
        let host = |is_root| Host { is_root, release: "5.15.0".to_owned(), is_writable: true };
        for (is_root, told) in [(true, 1), (false, 0)] {
            let mut shell = Shell::new(place.path(), place.path().join("no-program"), None);
            shell.counts = Counts::of(&host(is_root), None);
            let call = Call {
                execution_id: "job:step".to_owned(),
                attempt: 1,
                action: "run".to_owned(),
                params: json!({"command": "true"}),
                workspace: place.path().to_owned(),
                timeout: STOP_GRACE,
                via: None,
                allowed: Allowed::all(),
            };
            let (desk, (_switch, stop)) = (Arc::new(Heard::default()), Stop::channel());
            shell.run(call, Arc::<Heard>::clone(&desk), stop).await;
            let heard = desk.0.lock().unwrap_or_else(PoisonError::into_inner);
            assert_eq!(heard.len(), told, "{heard:?}");
        }
    }
}
