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
use crate::servers::{pause, tied_to_us};

const READY_LIMIT: Duration = Duration::from_secs(60);
/// For half a minute: a server that crashed recovers first.
const STARTS_MAX: u32 = 60;
const START_PAUSE: Duration = Duration::from_millis(500);

/// Where a process says what it has to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stderr {
    /// A file.
    Log,
    /// A pipe whose reader is gone.
    Closed,
    /// A disk that is full.
    Full,
}

/// How a process is started, as often as it is killed.
pub(crate) struct Process {
    pub(crate) name: String,
    program: PathBuf,
    arguments: Vec<String>,
    log: PathBuf,
    /// From the next start on.
    pub(crate) stderr: Stderr,
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
        let stderr = Stderr::Log;
        let (child, ready) = spawn(program, &arguments, (stderr, &log), clock.as_ref())?;
        let (name, program) = (name.to_owned(), program.to_owned());
        Ok(Self { name, program, arguments, log, stderr, clock, child, ready })
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

    /// Its store may be away, or end its sessions: then it does not start, and is started again.
    /// One that starts only with a log that can be written ends by itself without: that is said.
    pub(crate) fn start_again(&mut self) -> Result<Option<String>> {
        let Err(error) = self.try_starts() else { return Ok(None) };
        if self.stderr == Stderr::Log {
            return Err(error);
        }
        self.stderr = Stderr::Log;
        self.try_starts()?;
        Ok(Some(format!("{}: it starts only where its log can be written", self.name)))
    }

    fn try_starts(&mut self) -> Result<()> {
        for _ in 1..STARTS_MAX {
            if self.start_once().is_ok() {
                return Ok(());
            }
            pause(START_PAUSE);
        }
        self.start_once()
    }

    fn start_once(&mut self) -> Result<()> {
        let stderr = (self.stderr, self.log.as_path());
        (self.child, self.ready) =
            spawn(&self.program, &self.arguments, stderr, self.clock.as_ref())
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

    /// It reads again what can be read again, unless it has ended.
    pub(crate) fn hang_up(&self) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), Signal::HUP)?)
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
    (stderr, log): (Stderr, &Path),
    clock: Option<&ProcessClock>,
) -> Result<(Child, Value)> {
    let stderr = match stderr {
        Stderr::Log => Stdio::from(OpenOptions::new().create(true).append(true).open(log)?),
        Stderr::Closed => Stdio::piped(),
        Stderr::Full => Stdio::from(OpenOptions::new().write(true).open("/dev/full")?),
    };
    let mut command = clean(tied_to_us(program, "KILL"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
    if let Some(clock) = clock {
        clock.give_to(&mut command);
    }
    let mut child =
        command.spawn().with_context(|| format!("cannot run {}", repo::line(&command)))?;
    let stdout = child.stdout.take().context("its output is ours")?;
    // Nobody reads it, and whoever writes to it hears so.
    drop(child.stderr.take());
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
