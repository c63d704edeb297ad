//! Looking after a daemon that runs. It is found by its socket, and stopped by the process that the
//! kernel says is behind it: never by a number in a file.

#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
use std::time::Duration;

#[cfg(target_os = "linux")]
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use semel_core::shown::shown;
use semel_daemon::home::{Home, HomeFile};
use semel_daemon::identity::Membership;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::net::UnixStream;

use super::home::command;
use crate::exit::{Exit, Failure, Form, chain};
use crate::local::{Joined, Local};
use crate::started::{Kind, Started};
use crate::{print, progress, up};

/// How long a daemon may take to stop: its calls end first.
const STOP_TIMEOUT: Duration = Duration::from_secs(40);

/// How often it is looked at whether it has stopped, or whether there is more log.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Bytes of log that are shown without `--follow`.
const LOG_TAIL_BYTES: u64 = 64 << 10;

#[derive(Debug, clap::Args)]
pub(super) struct Simple {
    #[command(flatten)]
    local: Local,
}

#[derive(Debug, clap::Args)]
pub(super) struct Down {
    #[command(flatten)]
    local: Local,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  semel daemon restart --mesh ops
  semel daemon restart --mesh ops -- --no-tcp")]
pub(super) struct Restart {
    #[command(flatten)]
    local: Local,
    /// Options of `semel daemon up` or `semel up`, added to those of the last start
    #[arg(last = true, value_name = "OPTIONS")]
    options: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Logs {
    /// Continue to print new lines
    #[arg(long, short)]
    follow: bool,
    #[command(flatten)]
    joined: Joined,
}

pub(super) async fn status(arguments: &Simple) -> Result<(), Failure> {
    show_status(&arguments.local).await
}

pub(crate) async fn show_status(local: &Local) -> Result<(), Failure> {
    let daemon = local.daemon().await?;
    let health = daemon.get("/v1/health").await?;
    daemon.show(&health, |health| {
        let text = |name: &str| match health.get(name) {
            // A broker has a part in what went wrong.
            Some(Value::String(text)) => shown(text).into_owned(),
            Some(Value::Null) | None => "–".to_owned(),
            Some(other) => other.to_string(),
        };
        let mut lines = format!(
            "mesh       {}\nbroker     {} since {}\nlast error {}\nwaiting    {}\non the wire {}\n\
             given up   {}\noutbox     {}\nup         {} s\n",
            text("mesh"),
            text("state"),
            text("since"),
            text("last_error"),
            text("queue_depth"),
            text("inflight"),
            text("dead"),
            text("outbox_pressure"),
            text("uptime_s"),
        );
        if health.get("inbox_full") == Some(&Value::Bool(true)) {
            lines.push_str("inbox      full of unread messages; more wait at the broker\n");
        }
        if health.get("set_aside").is_some_and(|count| count != 0) {
            lines.push_str(&format!("set aside  {}\n", text("set_aside")));
        }
        let jobs = &health["parts"]["jobs"];
        if let Some(why) = jobs["detail"].as_str() {
            lines.push_str(&format!("jobs       failing: {}\n", shown(why)));
        }
        lines
    })
}

pub(super) async fn rotate_token(arguments: &Simple) -> Result<(), Failure> {
    let daemon = arguments.local.daemon().await?;
    let rotated = daemon.post("/v1/token/rotate", &json!({})).await?;
    let path = arguments.local.home()?.path(HomeFile::LocalToken);
    daemon.show(&rotated, |rotated| {
        let grace = &rotated["grace_s"];
        format!("a new token is in {}; the old token is valid for {grace} s\n", path.display())
    })
}

pub(super) async fn down(arguments: &Down) -> Result<(), Failure> {
    let home = arguments.local.home()?;
    let (was_running, mesh) = (stop(&home).await?, home.mesh().as_str());
    print(&match (arguments.local.form(), was_running) {
        (Form::Json, _) => format!("{}\n", json!({"mesh": mesh, "stopped": was_running})),
        (Form::Text, true) => "the daemon has stopped\n".to_owned(),
        (Form::Text, false) => format!("no daemon runs for the mesh {mesh}\n"),
    })
}

pub(super) async fn restart(arguments: &Restart) -> Result<(), Failure> {
    let home = arguments.local.home()?;
    if process(&home).await?.is_some() && matches!(Membership::read(&home), Ok(None)) {
        let text = "error: an ephemeral member ends with its daemon: nothing was done\n\
                    to end it: semel daemon down; to start another: semel daemon up --ephemeral";
        return Err(Failure::new(Exit::Conflict, text));
    }
    let started = Started::read(&home)?.unwrap_or_else(|| Started::new(usual(&home)));
    let mut options = arguments.options.clone();
    let is_json = options.iter().any(|word| word == "--json");
    // What it says when it is ready is what this command says.
    options.extend((arguments.local.form() == Form::Json && !is_json).then(|| "--json".to_owned()));
    let words = started.again(&home, &options)?;
    // What makes no sense is told before anything stops.
    crate::check(&words)?;
    stop(&home).await?;
    let failed = |text: String| Failure::new(Exit::Failed, format!("error: {text}"));
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let status = tokio::process::Command::new(program).args(words).status().await;
    let status = status.map_err(|error| failed(error.to_string()))?;
    match status.code() {
        Some(0) => Ok(()),
        code => Err(Failure::new(
            Exit::of_code(code.unwrap_or(1)),
            "error: it did not start\nto find out why: semel daemon logs, semel doctor",
        )),
    }
}

/// What was started in a home of before starts were kept.
fn usual(home: &Home) -> Kind {
    let has_broker = up::broker_folder(home.root()).is_dir();
    if has_broker && home.mesh().as_str() == up::MESH { Kind::Up } else { Kind::Daemon }
}

/// The daemon itself says what came of it.
pub(super) async fn reload(arguments: &Simple) -> Result<(), Failure> {
    let home = arguments.local.home()?;
    let daemon = arguments.local.daemon().await?;
    let reloaded = daemon.post("/v1/reload", &json!({})).await?;
    daemon.show(&reloaded, |reloaded| {
        let waiting = reloaded["needs_restart"].as_array().into_iter().flatten();
        let waiting: Vec<&str> = waiting.filter_map(Value::as_str).collect();
        match waiting.is_empty() {
            true => "the configuration was reloaded\n".to_owned(),
            false => format!(
                "the configuration was reloaded\n\
                 these change at the next start: {}\n\
                 to restart it: {}\n",
                waiting.join(", "),
                command("daemon restart", &home)
            ),
        }
    })
}

/// Asks it to end and waits until it has; `false` when there was none.
pub(crate) async fn stop(home: &Home) -> Result<bool, Failure> {
    let Some(pid) = process(home).await? else { return Ok(false) };
    let _shown = progress::show("waiting for the daemon to stop");
    let watched = Watched::of(pid);
    signal(pid, Signal::TERM)?;
    let gone = async {
        // Its folder is free: its socket closes before its files do.
        while home.clone().lock().is_err() {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        // Others in the same process close theirs after it.
        watched.ended().await;
    };
    let text = "error: the daemon has not stopped yet\nto find out why: semel daemon logs";
    let late = |_| Failure::new(Exit::Unavailable, text);
    tokio::time::timeout(STOP_TIMEOUT, gone).await.map_err(late)?;
    Ok(true)
}

/// A process that is waited for although it is nobody's child here.
struct Watched(#[cfg(target_os = "linux")] Option<OwnedFd>);

#[cfg(target_os = "linux")]
impl Watched {
    fn of(pid: Pid) -> Self {
        Self(rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok())
    }

    async fn ended(&self) {
        let Some(opened) = &self.0 else { return };
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // It can be read from once the process has ended.
        while let Ok(0) = poll(&mut [PollFd::new(opened, PollFlags::IN)], Some(&at_once)) {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }
}

/// Elsewhere its folder has to be enough.
#[cfg(not(target_os = "linux"))]
impl Watched {
    fn of(_: Pid) -> Self {
        Self()
    }

    #[expect(clippy::unused_async, reason = "as on Linux")]
    async fn ended(&self) {}
}

/// The process behind the socket, as the kernel knows it.
async fn process(home: &Home) -> Result<Option<Pid>, Failure> {
    let path = home.socket_path().map_err(|error| Failure::new(Exit::Usage, chain(&error)))?;
    let Ok(stream) = UnixStream::connect(&path).await else { return Ok(None) };
    let peer = stream.peer_cred().ok().and_then(|peer| peer.pid());
    Ok(peer.and_then(Pid::from_raw))
}

fn signal(pid: Pid, signal: Signal) -> Result<(), Failure> {
    kill_process(pid, signal)
        .map_err(|error| Failure::new(Exit::Failed, format!("error: the daemon: {error}")))
}

pub(super) async fn logs(arguments: &Logs) -> Result<(), Failure> {
    let home = arguments.joined.home()?;
    let path = home.path(HomeFile::Log);
    let unreadable = |error: std::io::Error| {
        let text = format!(
            "error: {}: {error}\na daemon in the foreground logs to stderr",
            path.display()
        );
        Failure::new(Exit::NotFound, text)
    };
    let mut file = tokio::fs::File::open(&path).await.map_err(unreadable)?;
    let length = file.metadata().await.map_err(unreadable)?.len();
    let from = length.saturating_sub(LOG_TAIL_BYTES);
    file.seek(std::io::SeekFrom::Start(from)).await.map_err(unreadable)?;
    let mut cut = from > 0;
    loop {
        let mut text = String::new();
        file.read_to_string(&mut text).await.map_err(unreadable)?;
        // The first line may be half of one.
        let whole = if cut { text.split_once('\n').map_or("", |(_, rest)| rest) } else { &text };
        print(whole)?;
        cut = false;
        if !arguments.follow {
            return Ok(());
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}
