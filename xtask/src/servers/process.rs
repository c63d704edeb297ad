//! One child that serves: started on a free port, watched until it answers, stopped when dropped.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::find;
use super::wait::wait_until;
use crate::repo;

const START_LIMIT: Duration = Duration::from_secs(30);
const STOP_LIMIT: Duration = Duration::from_secs(10);
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// A port is free when we choose it, not necessarily when the server binds it.
const PORT_ATTEMPTS: u32 = 5;
const PORT_TAKEN: &str = "Address already in use";

const LOG_TAIL_LINES: usize = 30;

/// How a server is started and how it shows that it is ready.
pub(crate) struct Recipe<'a> {
    pub(crate) name: &'static str,
    pub(crate) log: PathBuf,
    /// The signal that ends it in order.
    pub(crate) stop: Signal,
    pub(crate) command: &'a dyn Fn(u16) -> Result<Command>,
    /// Must be sure that it is *our* server which answers on the port.
    pub(crate) ready: &'a dyn Fn(u16) -> bool,
}

pub(crate) struct Server {
    name: &'static str,
    child: Child,
    stop: Signal,
}

impl Recipe<'_> {
    /// The running server and its port.
    pub(crate) fn start(&self) -> Result<(Server, u16)> {
        for attempt in 1..=PORT_ATTEMPTS {
            let port = free_port()?;
            match self.start_on(port) {
                Ok(server) => return Ok((server, port)),
                Err(_) if attempt < PORT_ATTEMPTS && self.log_text().contains(PORT_TAKEN) => {}
                Err(error) => {
                    eprintln!("{} log:\n{}", self.name, tail(&self.log_text()));
                    return Err(error);
                }
            }
        }
        bail!("{}: no free port in {PORT_ATTEMPTS} attempts", self.name)
    }

    /// The running server on a port that is known to be free.
    pub(crate) fn start_on(&self, port: u16) -> Result<Server> {
        let log = File::create(&self.log)?;
        let mut command = (self.command)(port)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child =
            command.spawn().with_context(|| format!("cannot run {}", repo::line(&command)))?;
        let mut server = Server { name: self.name, child, stop: self.stop };
        let ready = wait_until(START_LIMIT, || match server.exited()? {
            Some(status) => bail!("{} ended with {status}", self.name),
            None => Ok((self.ready)(port)),
        })?;
        if !ready {
            bail!("{} did not answer in {} s", self.name, START_LIMIT.as_secs());
        }
        Ok(server)
    }

    fn log_text(&self) -> String {
        read_log(&self.log)
    }
}

impl Server {
    fn exited(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    fn end(&mut self) -> Result<()> {
        self.end_by(self.stop)
    }

    /// The pid is ours until we have waited for the child, so the signal cannot hit a stranger.
    pub(crate) fn end_by(&mut self, signal: Signal) -> Result<()> {
        if self.exited()?.is_some() {
            return Ok(());
        }
        kill_process(Pid::from_child(&self.child), signal)?;
        if !wait_until(STOP_LIMIT, || Ok(self.exited()?.is_some()))? {
            eprintln!("xtask: {} did not stop in {} s", self.name, STOP_LIMIT.as_secs());
            self.child.kill()?;
            self.child.wait()?;
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("xtask: cannot stop {}: {error:#}", self.name);
        }
    }
}

/// A command whose process gets `signal` when we die without running `drop` (SIGKILL, Ctrl-C),
/// where the system has the tool for it.
pub(crate) fn tied_to_us(program: &Path, signal: &str) -> Command {
    let Some(setpriv) = find::program("setpriv") else {
        return Command::new(program);
    };
    let mut probe = Command::new(&setpriv);
    probe.args(["--pdeathsig", signal, "true"]).stdout(Stdio::null()).stderr(Stdio::null());
    if !probe.status().is_ok_and(|status| status.success()) {
        return Command::new(program);
    }
    let mut command = Command::new(setpriv);
    command.args(["--pdeathsig", signal]).arg(program);
    command
}

/// A connection that cannot hang its user.
pub(crate) fn connect(port: u16) -> std::io::Result<TcpStream> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let stream = TcpStream::connect_timeout(&address, CONNECT_LIMIT)?;
    stream.set_read_timeout(Some(CONNECT_LIMIT))?;
    stream.set_write_timeout(Some(CONNECT_LIMIT))?;
    Ok(stream)
}

pub(crate) fn read_log(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
    Ok(listener.local_addr()?.port())
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe<'a>(
        folder: &Path,
        command: &'a dyn Fn(u16) -> Result<Command>,
        ready: &'a dyn Fn(u16) -> bool,
    ) -> Recipe<'a> {
        Recipe { name: "toy", log: folder.join("log"), stop: Signal::TERM, command, ready }
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_started_server_ends_when_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let command = |_| Ok(shell("exec tail -f /dev/null"));
        let (server, _) = recipe(folder.path(), &command, &|_| true).start().unwrap();
        let pid = Pid::from_child(&server.child);
        drop(server);
        assert!(rustix::process::test_kill_process(pid).is_err());
    }

    #[test]
    fn a_server_that_ends_early_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = recipe(folder.path(), &|_| Ok(shell("exit 3")), &|_| false).start();
        assert!(error.err().unwrap().to_string().contains("toy ended with"));
    }

    #[test]
    fn a_taken_port_is_tried_again_with_another() {
        let folder = tempfile::tempdir().unwrap();
        let attempts = std::cell::Cell::new(0);
        let command = |_| {
            attempts.set(attempts.get() + 1);
            Ok(shell(&format!("echo {PORT_TAKEN}; exit 1")))
        };
        assert!(recipe(folder.path(), &command, &|_| false).start().is_err());
        assert_eq!(attempts.get(), PORT_ATTEMPTS);
    }

    #[test]
    fn the_tail_is_the_end_of_the_log() {
        let log: String = (0..100).map(|n| format!("{n}\n")).collect();
        assert_eq!(tail(&log).lines().count(), LOG_TAIL_LINES);
        assert!(tail(&log).ends_with("99"));
        assert_eq!(tail("one"), "one");
    }
}
