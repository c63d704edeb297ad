//! A home that was used for a while, as a folder to copy: once stopped in order, once killed, and
//! as it was before the last part of its work.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use semel_client::Client;
use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::view::View;
use crate::chaos::Outside;
use crate::servers::{pause, tied_to_us, wait_until};

const READY_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(60);
const FILL_LIMIT: Duration = Duration::from_secs(120);

/// Of each part of the work.
const SENDS: usize = 16;
const JOBS: usize = 6;
/// The longest body; several fill a page of a database.
const BODY_BYTES_MAX: usize = 3000;

/// The world outside is on this machine.
const CONFIG: &str = "private_hosts = [\"127.0.0.1\"]\n";

/// A program that runs on a home.
pub(crate) struct Running {
    child: Child,
    home: PathBuf,
    log: PathBuf,
}

/// What came of starting one.
pub(crate) enum Start {
    Ready(Running),
    /// It ended instead, and this is what it said.
    Ended(ExitStatus, String),
    /// It neither ended nor was it ready.
    Hung,
}

impl Running {
    /// What it logs goes to a file beside the home.
    pub(crate) fn start(program: &Path, home: &Path) -> Result<Start> {
        let log = home.with_extension("log");
        let home_text = home.display().to_string();
        let mut command = tied_to_us(program, "KILL");
        command.args(["up", "--json", "--name", "me", "--home", &home_text]);
        command.args(["--broker-listen", "127.0.0.1:0", "--api-listen", "127.0.0.1:0"]);
        command.env_remove("SEMEL_HOME").env_remove("CI").stdin(Stdio::null());
        let file = OpenOptions::new().create(true).append(true).open(&log)?;
        let mut child = command.stdout(Stdio::piped()).stderr(file).spawn()?;
        let stdout = child.stdout.take().context("its output is ours")?;
        let (said, first_line) = mpsc::channel();
        drop(thread::spawn(move || {
            let mut lines = BufReader::new(stdout).lines();
            // Nobody waits any more when it came too late.
            let _ = said.send(lines.next().and_then(Result::ok));
            lines.for_each(drop);
        }));
        let first_line = first_line.recv_timeout(READY_LIMIT);
        let mut running = Self { child, home: home.to_owned(), log };
        match first_line {
            Ok(Some(_)) => Ok(Start::Ready(running)),
            Ok(None) => match running.end_within(STOP_LIMIT)? {
                Some(status) => Ok(Start::Ended(status, running.said())),
                None => Ok(Start::Hung),
            },
            Err(_) => Ok(Start::Hung),
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::socket(self.home.join("daemon").join("local").join("sock"))
    }

    /// Everything it has logged.
    pub(crate) fn said(&self) -> String {
        fs::read(&self.log)
            .map(|log| String::from_utf8_lossy(&log).into_owned())
            .unwrap_or_default()
    }

    /// How it ended when it was told to; nothing when it did not.
    pub(crate) fn stop(&mut self) -> Result<Option<ExitStatus>> {
        // It may have ended by itself, which its status tells.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        self.end_within(STOP_LIMIT)
    }

    fn end_within(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        let mut status = None;
        wait_until(limit, || {
            status = self.child.try_wait()?;
            Ok(status.is_some())
        })?;
        Ok(status)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A home that was used, and what it showed in the end.
pub(crate) struct Template {
    pub(crate) name: &'static str,
    pub(crate) folder: PathBuf,
    pub(crate) truth: View,
}

/// Uses a home in `folder` in three parts, and keeps it after each: older, stopped, killed.
pub(crate) fn make(
    program: &Path,
    folder: &Path,
    outside: &Outside,
    runtime: &Handle,
) -> Result<(PathBuf, [Template; 2])> {
    let home = folder.join("home");
    let kept = |name: &str| folder.join(name);
    fs::create_dir_all(home.join("jobs"))?;
    fs::write(home.join("jobs").join("config.toml"), CONFIG)?;
    let mut truths = Vec::new();
    for (part, name) in ["older", "stopped", "killed"].into_iter().enumerate() {
        let mut running = match Running::start(program, &home)? {
            Start::Ready(running) => running,
            Start::Ended(status, said) => bail!("{name}: {status}: {said}"),
            Start::Hung => bail!("{name}: it is not ready"),
        };
        truths.push(runtime.block_on(fill(&running.client(), part, outside))?);
        if name == "killed" {
            drop(running);
        } else {
            let status = running.stop()?;
            ensure!(status.is_some_and(|status| status.success()), "{name}: {status:?}");
        }
        copy(&home, &kept(name))?;
    }
    let [_, stopped, killed]: [View; 3] =
        truths.try_into().ok().context("three parts have three views")?;
    let template = |name, truth| Template { name, folder: kept(name), truth };
    Ok((kept("older"), [template("stopped", stopped), template("killed", killed)]))
}

/// One part of the work, and what is seen when all of it has come to its end.
async fn fill(client: &Client, part: usize, outside: &Outside) -> Result<View> {
    for (path, what) in [
        ("/v1/topic/create", json!({"topic": "news"})),
        ("/v1/queue/create", json!({"queue": "work"})),
    ] {
        until_taken(client, path, &what, None).await?;
    }
    for number in 0..SENDS {
        let (key, send) = send(part, number);
        until_taken(client, "/v1/send", &send, Some(&key)).await?;
    }
    for number in 0..JOBS {
        let (key, job) = job(part, number, outside);
        until_taken(client, "/v1/jobs", &job, Some(&key)).await?;
    }
    let (mut view, mut seen) = (View::default(), String::new());
    for _ in 0..FILL_LIMIT.as_millis() / PAUSE.as_millis() {
        match View::of(client).await {
            Ok(now) if is_whole(&now, part + 1) => {
                view = now;
                break;
            }
            Ok(now) => seen = format!("{:?}", now.things),
            Err(error) => seen = error,
        }
        tokio::time::sleep(PAUSE).await;
    }
    ensure!(!view.things.is_empty(), "part {part} does not come to its end: {seen}");
    Ok(view)
}

const PAUSE: Duration = Duration::from_millis(100);

/// The daemon is ready before it has found its broker.
async fn until_taken(client: &Client, path: &str, what: &Value, key: Option<&str>) -> Result<()> {
    let mut said = String::new();
    for _ in 0..FILL_LIMIT.as_millis() / PAUSE.as_millis() {
        match client.post(path, what, key).await {
            Ok(answer) if answer.is_success() => return Ok(()),
            Ok(answer) => said = format!("{} {}", answer.status, answer.body),
            Err(error) => said = error.to_string(),
        }
        tokio::time::sleep(PAUSE).await;
    }
    bail!("{path}: {said}")
}

/// To this host itself, to a topic that it hears, or to a queue.
pub(crate) fn send(part: usize, number: usize) -> (String, Value) {
    let key = format!("send-{part}-{number}");
    let to = match number % 8 {
        0 => "#news",
        1 => "queue:work",
        _ => "@me",
    };
    let body = format!("{key} {}", "x".repeat(number * 977 % BODY_BYTES_MAX));
    (key, json!({"to": to, "message": body, "meta": {"part": part.to_string()}}))
}

/// A step that must not happen twice.
pub(crate) fn job(part: usize, number: usize, outside: &Outside) -> (String, Value) {
    let key = format!("job-{part}-{number}");
    let url = format!("http://{}/{key}", outside.address());
    let params = json!({"method": "POST", "url": url, "body": "once"});
    let step = json!({"id": "pay", "gear": "http", "action": "request", "params": params});
    (key, json!({"plan": {"steps": [step]}}))
}

/// Whether everything of so many parts is there and has ended.
fn is_whole(view: &View, parts: usize) -> bool {
    let of = |kind: &'static str| {
        view.things.iter().filter(move |(name, _)| name.starts_with(kind)).map(|(_, thing)| thing)
    };
    let queued = (0..SENDS).filter(|number| number % 8 == 1).count();
    view.connected
        && of("message ").count() == parts * (SENDS - queued)
        && of("send ").filter(|send| send["status"] == "done").count() == parts * SENDS
        && of("job ").filter(|job| job["status"] == "completed").count() == parts * JOBS
}

/// A folder and everything in it, as it is.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    for entry in fs::read_dir(from)? {
        let (path, kind, name) = { entry.map(|e| (e.path(), e.file_type(), e.file_name()))? };
        let (kind, target) = (kind?, to.join(name));
        if kind.is_dir() {
            copy(&path, &target)?;
        } else if kind.is_file() {
            fs::copy(&path, &target).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

/// Nothing for a moment.
pub(crate) fn breathe() {
    pause(PAUSE);
}
