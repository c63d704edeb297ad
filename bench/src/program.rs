//! The program as people run it: how big it is, how soon it is ready, how much memory it takes, and
//! what it does when there is nothing to do.

mod idle;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::daemon::load::{End, load_after};
use crate::report::{Bar, Rounds, Unit, publish};
use crate::{facts, plan};

const SENDS: usize = 1_000_000;
const CONNECTIONS: usize = 64;
/// Until a process that has just started is quiet.
pub(crate) const SETTLED: Duration = Duration::from_secs(2);

const SIZE: &str = "the binary, stripped";
const READY: &str = "`semel up` ready, on a home that exists";
const RESIDENT_IDLE: &str = "daemon resident, idle";
const RESIDENT_AFTER: &str = "daemon resident, after 1 million sends";
const RESIDENT_MOST: &str = "daemon resident, the most during them";
const SENDING: &str = "1 million sends to the daemon's process, broker connected";
const MB_40: &str = "40 MB";
const MB_30: &str = "30 MB";
const MB_80: &str = "80 MB";
const SECOND: &str = "1 s";

const BARS: [Bar; 4] = [
    Bar::at_most(SIZE, 1.0, MB_40),
    Bar::at_most(READY, 1.0, SECOND),
    Bar::at_most(RESIDENT_IDLE, 1.0, MB_30),
    Bar::at_most(RESIDENT_AFTER, 1.0, MB_80),
];

/// Not interleaved: nothing here is measured against another program.
pub(crate) fn run() -> Result<()> {
    let folder = tempfile::tempdir_in(plan::target())?;
    let semel = semel()?;
    let machine = facts::machine(folder.path())?;
    let mut rounds = Rounds::default();
    for (name, value) in [(MB_40, 40.0), (MB_30, 30.0), (MB_80, 80.0), (SECOND, 1000.0)] {
        rounds.wanted(name, value);
    }
    rounds.value(SIZE, Unit::Mb, stripped_mb(&semel, folder.path())?);
    let home = folder.path().join("up");
    drop(Running::up(&semel, &home)?);
    unlimited(&home)?;
    for _ in 0..plan::rounds() {
        let start = Instant::now();
        let up = Running::up(&semel, &home)?;
        rounds.value(READY, Unit::Ms, start.elapsed().as_secs_f64() * 1000.0);
        drop(up);
    }
    idle::run(&semel, &home, folder.path(), &mut rounds)?;
    memory(&semel, folder.path(), &mut rounds)?;
    publish("program", &machine, &rounds, &[&BARS[..], &idle::BARS].concat())
}

/// The product, built beside us.
pub(crate) fn semel() -> Result<PathBuf> {
    let here = std::env::current_exe()?;
    let semel = here.with_file_name("semel");
    ensure!(semel.is_file(), "{} is not there: run `cargo xtask bench`", semel.display());
    Ok(semel)
}

/// A copy without what debuggers need.
pub(crate) fn stripped(program: &Path, to: &Path) -> Result<()> {
    let done = Command::new("strip").arg("-o").arg(to).arg(program).status();
    ensure!(done.context("cannot run strip")?.success(), "strip has failed");
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a size in MB needs no 53 bits")]
fn stripped_mb(semel: &Path, folder: &Path) -> Result<f64> {
    let to = folder.join("stripped");
    stripped(semel, &to)?;
    Ok(std::fs::metadata(to)?.len() as f64 / 1e6)
}

/// A process that has said that it is ready.
pub(crate) struct Running {
    child: Child,
    ready: Value,
}

impl Running {
    pub(crate) fn up(semel: &Path, home: &Path) -> Result<Self> {
        let mut command = Command::new(semel);
        command.args(["up", "--json", "--name", "me", "--broker-listen", "127.0.0.1:0"]);
        command.args(["--api-listen", "127.0.0.1:0"]);
        Self::start(command, home)
    }

    fn start(mut command: Command, home: &Path) -> Result<Self> {
        command.arg("--home").arg(home);
        Self::start_in(command, home)
    }

    /// One that has no home.
    pub(crate) fn start_in(mut command: Command, folder: &Path) -> Result<Self> {
        command.env_remove("SEMEL_HOME").env("HOME", folder);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().context("semel does not start")?;
        let out = child.stdout.take().context("its output")?;
        // Killed from here on, whatever it says.
        let mut running = Self { child, ready: Value::Null };
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        let ready = serde_json::from_str(&line);
        running.ready = ready.with_context(|| format!("it is not ready: {line:?}"))?;
        Ok(running)
    }

    pub(crate) fn said(&self, field: &str) -> Result<&str> {
        self.ready.get(field).and_then(Value::as_str).with_context(|| format!("no {field}"))
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// What the kernel says of its memory.
    pub(crate) fn mb(&self, line: &str) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let found = status.lines().find_map(|text| text.strip_prefix(line));
        let kb = found.and_then(|text| text.split_whitespace().next());
        Ok(kb.context("the kernel does not say")?.parse::<f64>()? * 1024.0 / 1e6)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // In order, so that the next start finds what people find; it may have ended already.
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

/// The limiter takes part and never says no.
pub(crate) fn unlimited(home: &Path) -> Result<()> {
    unlimited_at(&home.join("broker").join("broker.db"))
}

/// The same for a broker's file.
pub(crate) fn unlimited_at(path: &Path) -> Result<()> {
    // Another program changes the file: that is no damage.
    std::fs::remove_file(semel_store::sqlite::sums_path(path))?;
    let file = rusqlite::Connection::open(path)?;
    file.execute("UPDATE mesh SET rate_limit = 1000000000, rate_window_ms = 1000", [])?;
    Ok(())
}

/// One command that ends; what it prints.
pub(crate) fn said(semel: &Path, home: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(semel);
    command.args(arguments).arg("--home").arg(home).env_remove("SEMEL_HOME");
    let output = command.output()?;
    if !output.status.success() {
        bail!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// A daemon of its own beside `semel up`, which has the broker and the member that is written to.
fn memory(semel: &Path, folder: &Path, rounds: &mut Rounds) -> Result<()> {
    let (home, other) = (folder.join("up"), folder.join("bob"));
    let up = Running::up(semel, &home)?;
    let invite = said(semel, &home, &["mesh", "invite", "--mesh", "local"])?;
    said(semel, &other, &["mesh", "join", &invite, "--name", "bob"])?;
    let mut command = Command::new(semel);
    command.args(["daemon", "up", "--persistent", "--no-tcp", "--json"]);
    let daemon = Running::start(command, &other)?;
    std::thread::sleep(SETTLED);
    rounds.value(RESIDENT_IDLE, Unit::Mb, daemon.mb("VmRSS:")?);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let socket = PathBuf::from(daemon.said("socket")?);
    let (to, sends) = (up.said("pubkey")?, End::Sends(plan::amount(SENDS)));
    let sent = runtime.block_on(load_after(&socket, CONNECTIONS, to, 0, sends))?;
    rounds.measured(SENDING, sent);
    rounds.value(RESIDENT_AFTER, Unit::Mb, daemon.mb("VmRSS:")?);
    rounds.value(RESIDENT_MOST, Unit::Mb, daemon.mb("VmHWM:")?);
    Ok(())
}
