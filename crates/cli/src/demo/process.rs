//! The processes of the tour, and how they are spoken to.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use semel_client::{Answer, Client};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::address::{LIMITER, STORE};

/// Long enough for a loaded machine; only a failure waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often it is looked whether something has happened.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// A process that has said that it is ready.
pub(super) struct Running {
    child: Child,
    pub(super) client: Client,
    pub(super) pubkey: String,
    broker: String,
}

/// Everything that the tour has started.
pub(super) struct World {
    folder: PathBuf,
    program: PathBuf,
    /// The address of the broker, the same after each start: members remember it.
    broker: Option<String>,
    pub(super) up: Option<Running>,
    pub(super) friend: Option<Running>,
}

impl World {
    pub(super) fn new(folder: &Path) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let folder = folder.to_owned();
        Ok(Self { folder, program, broker: None, up: None, friend: None })
    }

    pub(super) fn home(&self) -> PathBuf {
        self.folder.join("me")
    }

    pub(super) fn friends_home(&self) -> PathBuf {
        self.folder.join("friend")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// `semel up`, on free ports at first and on the same ones after that.
    pub(super) async fn start(&mut self) -> Result<(), String> {
        let broker = self.broker.clone().unwrap_or_else(|| "127.0.0.1:0".to_owned());
        let mut command = self.command(&self.home());
        command.args(["up", "--json", "--name", "me", "--api-listen", "127.0.0.1:0"]);
        command.args(["--broker-listen", &broker]);
        let running = ready(command).await?;
        let address = running.broker.trim_start_matches("ws://").split('/').next();
        self.broker = address.map(str::to_owned);
        self.up = Some(running);
        Ok(())
    }

    /// The daemon of somebody who has joined.
    pub(super) async fn start_friend(&mut self) -> Result<(), String> {
        let mut command = self.command(&self.friends_home());
        command.args(["daemon", "up", "--persistent", "--json", "--no-tcp"]);
        self.friend = Some(ready(command).await?);
        Ok(())
    }

    /// Runs a command of ours to its end; its document.
    pub(super) async fn run(&self, home: &Path, arguments: &[&str]) -> Result<Value, String> {
        let output = self.command(home).args(arguments).arg("--json").output().await;
        let output = output.map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
    }

    fn command(&self, home: &Path) -> Command {
        let mut command = Command::new(&self.program);
        let log = File::options().create(true).append(true).mode(0o600).open(self.log());
        // The tour keeps what it makes in its own folder.
        command.env_remove(STORE).env_remove(LIMITER);
        command.env("SEMEL_HOME", home).stdin(Stdio::null()).kill_on_drop(true);
        command.stderr(log.map_or_else(|_| Stdio::null(), Stdio::from));
        command
    }

    pub(super) fn me(&self) -> Result<&Running, String> {
        self.up.as_ref().ok_or_else(|| "nothing runs".to_owned())
    }

    /// SIGKILL for everything that still runs.
    pub(super) async fn kill(&mut self) {
        for running in [self.up.take(), self.friend.take()].into_iter().flatten() {
            running.kill().await;
        }
    }
}

/// Starts a process and waits for its ready line.
async fn ready(mut command: Command) -> Result<Running, String> {
    let started = command.stdout(Stdio::piped()).spawn();
    let mut child = started.map_err(|error| error.to_string())?;
    let stdout = child.stdout.take().ok_or("it has no output")?;
    let mut lines = BufReader::new(stdout).lines();
    let line = tokio::time::timeout(PATIENCE, lines.next_line()).await;
    let line = line.map_err(|_| "it is not ready in time")?.map_err(|error| error.to_string())?;
    let line = line.ok_or("it has ended before it was ready")?;
    let ready: Value = serde_json::from_str(&line).map_err(|error| error.to_string())?;
    let text = |name: &str| ready.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let client = Client::socket(text("socket"));
    Ok(Running { child, client, pubkey: text("pubkey"), broker: text("broker") })
}

impl Running {
    pub(super) async fn kill(mut self) {
        // It may have ended by itself.
        let _ = self.child.kill().await;
    }

    /// SIGTERM, and its exit code.
    pub(super) async fn stop(mut self) -> Result<Option<i32>, String> {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.and_then(rustix::process::Pid::from_raw).ok_or("it has ended already")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .map_err(|error| error.to_string())?;
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        let ended = ended.map_err(|_| "it has not stopped in time")?;
        Ok(ended.map_err(|error| error.to_string())?.code())
    }

    pub(super) async fn get(&self, path: &str) -> Result<Value, String> {
        let answer = self.client.get(path).await.map_err(|error| error.to_string())?;
        if !answer.is_success() {
            return Err(format!("{path} answers {}: {}", answer.status, answer.detail()));
        }
        Ok(answer.body)
    }

    pub(super) async fn send(&self, to: &str, text: &str, key: &str) -> Result<Answer, String> {
        let body = json!({"to": to, "message": text});
        self.client.post("/v1/send", &body, Some(key)).await.map_err(|error| error.to_string())
    }

    /// The bodies of everything in the inbox.
    pub(super) async fn bodies(&self) -> Result<Vec<String>, String> {
        let inbox = self.get("/v1/inbox?limit=500").await?;
        let items = inbox.get("items").and_then(Value::as_array).into_iter().flatten();
        Ok(items.filter_map(|item| Some(item.get("body")?.as_str()?.to_owned())).collect())
    }
}

/// Looks again and again until there is something to see.
pub(super) async fn until<T>(
    what: &str,
    look: impl AsyncFn() -> Result<Option<T>, String>,
) -> Result<T, String> {
    let looking = async {
        loop {
            if let Some(seen) = look().await? {
                return Ok(seen);
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    };
    let seen = tokio::time::timeout(PATIENCE, looking).await;
    seen.unwrap_or_else(|_| Err(format!("{what}: not in time")))
}
