//! One `semel` process: started until it says that it is ready, killed, stopped, let go on.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::clocks::ProcessClock;
use crate::repo;
use crate::servers::tied_to_us;

const READY_LIMIT: Duration = Duration::from_secs(60);

/// How a process is started, as often as it is killed.
pub(crate) struct Process {
    pub(crate) name: String,
    program: PathBuf,
    arguments: Vec<String>,
    log: PathBuf,
    /// Nothing where clocks cannot be stepped.
    pub(crate) clock: Option<ProcessClock>,
    child: Child,
    pub(crate) ready: Value,
}

impl Process {
    pub(crate) fn start(
        name: &str,
        program: &Path,
        args: &[&str],
        folder: &Path,
        clock: Option<ProcessClock>,
    ) -> Result<Self> {
        let arguments: Vec<String> = args.iter().map(|word| (*word).to_owned()).collect();
        let log = folder.join(format!("{name}.log"));
        let (child, ready) = spawn(program, &arguments, &log, clock.as_ref())?;
        let (name, program) = (name.to_owned(), program.to_owned());
        Ok(Self { name, program, arguments, log, clock, child, ready })
    }

    /// SIGKILL, and wait until it is gone.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        if let Some(clock) = &self.clock {
            clock.clean_after(self.child.id());
        }
        Ok(())
    }

    pub(crate) fn start_again(&mut self) -> Result<()> {
        (self.child, self.ready) =
            spawn(&self.program, &self.arguments, &self.log, self.clock.as_ref())
                .with_context(|| format!("{} does not start again", self.name))?;
        Ok(())
    }

    /// It does nothing until it is resumed.
    pub(crate) fn pause(&self) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), Signal::STOP)?)
    }

    pub(crate) fn resume(&self) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), Signal::CONT)?)
    }

    /// How it ended, if it did without being told.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.kill();
    }
}

fn spawn(
    program: &Path,
    arguments: &[String],
    log: &Path,
    clock: Option<&ProcessClock>,
) -> Result<(Child, Value)> {
    let log = OpenOptions::new().create(true).append(true).open(log)?;
    let mut command = clean(tied_to_us(program, "KILL"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    if let Some(clock) = clock {
        clock.give_to(&mut command);
    }
    let mut child =
        command.spawn().with_context(|| format!("cannot run {}", repo::line(&command)))?;
    let stdout = child.stdout.take().context("its output is ours")?;
    let (said, first_line) = mpsc::channel();
    drop(thread::spawn(move || {
        let mut lines = BufReader::new(stdout).lines();
        // Nobody waits any more when it came too late.
        let _ = said.send(lines.next());
        lines.for_each(drop);
    }));
    let line = match first_line.recv_timeout(READY_LIMIT) {
        Ok(Some(Ok(line))) => line,
        Ok(_) | Err(_) => {
            child.kill()?;
            let status = child.wait()?;
            bail!("{} was not ready ({status})", repo::line(&command));
        }
    };
    let ready: Value = serde_json::from_str(&line).with_context(|| line.clone())?;
    ensure!(ready["event"] == "ready", "{} is not ready: {line}", repo::line(&command));
    Ok((child, ready))
}

/// What a command prints when it succeeds.
pub(crate) fn output(program: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = clean(Command::new(program));
    command.args(arguments);
    let output = command.output().with_context(|| format!("cannot run {}", program.display()))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "semel {}: {errors}", arguments.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn clean(mut command: Command) -> Command {
    command.env_remove("SEMEL_HOME").env_remove("CI");
    command
}
