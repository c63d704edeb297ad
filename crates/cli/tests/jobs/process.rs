//! Running engines, and talking to them.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use semel_client::{Answer, Client, Event};
use serde_json::{Value, json};

/// Long enough for a loaded machine; only a failure waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How long the claims of these engines last: what a test waits for after a kill.
pub(crate) const LEASE: Duration = Duration::from_secs(3);

/// A folder for an engine, and how it is started.
pub(crate) struct Home {
    folder: tempfile::TempDir,
    store: Option<String>,
    daemon: Option<PathBuf>,
}

impl Home {
    /// With a file of its own.
    pub(crate) fn new() -> Self {
        Self::with("")
    }

    /// The same, with more in its configuration.
    pub(crate) fn with(more: &str) -> Self {
        Self::made(tempfile::tempdir().unwrap(), more)
    }

    /// The same, on this disk.
    pub(crate) fn on(disk: &Path) -> Self {
        Self::made(tempfile::tempdir_in(disk).unwrap(), "")
    }

    fn made(folder: tempfile::TempDir, more: &str) -> Self {
        std::fs::create_dir(folder.path().join("jobs")).unwrap();
        let home = Self { folder, store: None, daemon: None };
        home.configure(more);
        home
    }

    /// For the next start, with more than every engine here has.
    pub(crate) fn configure(&self, more: &str) {
        let lease = LEASE.as_millis();
        let config = format!("lease_ms = {lease}\nprivate_hosts = [\"127.0.0.1\"]\n{more}");
        std::fs::write(self.path().join("jobs/config.toml"), config).unwrap();
    }

    /// With a store that others share.
    pub(crate) fn sharing(store: &str) -> Self {
        Self { store: Some(store.to_owned()), ..Self::new() }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Its jobs send through this daemon.
    pub(crate) fn through(&mut self, socket: PathBuf) {
        self.daemon = Some(socket);
    }

    /// Starts an engine and waits until it is ready.
    pub(crate) fn serve(&self) -> Engine {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command.args(["job", "serve", "--json", "--home"]).arg(self.path());
        if let Some(store) = &self.store {
            command.args(["--store", store]);
        }
        if let Some(daemon) = &self.daemon {
            command.arg("--daemon").arg(daemon);
        }
        let log = self.path().join("log");
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        command.stderr(log);
        let (child, ready) = ready(&mut command).unwrap_or_else(|| panic!("{}", self.log()));
        let client = Client::socket(self.path().join("jobs/sock"));
        let api = ready["api"].as_str().unwrap().to_owned();
        Engine { child, client, api }
    }

    /// What its engines have said.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path().join("log")).unwrap_or_default()
    }
}

/// An engine; killed when it is dropped.
pub(crate) struct Engine {
    child: Child,
    pub(crate) client: Client,
    /// Where it listens besides.
    pub(crate) api: String,
}

impl Engine {
    /// SIGKILL, and wait until it is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM; gives the exit code.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.child.wait().unwrap().code()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let answer = self.client.get(path).await.unwrap();
        assert!(answer.is_success(), "{path}: {answer:?}");
        answer.body
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.client.post(path, body, None).await.unwrap()
    }

    /// Hands a job in; gives its name.
    pub(crate) async fn submit(&self, job: &Value) -> String {
        let answer = self.post("/v1/jobs", job).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.body["id"].as_str().unwrap().to_owned()
    }

    /// Hands a job of these steps in.
    pub(crate) async fn run(&self, steps: &[Value]) -> String {
        self.submit(&json!({"plan": {"steps": steps}})).await
    }

    pub(crate) async fn job(&self, id: &str) -> Value {
        self.get(&format!("/v1/jobs/{id}")).await
    }

    /// What has happened to a job, until something is as it should be; also nothing more, when the
    /// job has ended or its engine is gone.
    pub(crate) async fn story(&self, id: &str, is: impl Fn(&Event) -> bool) -> Vec<Event> {
        let mut events = Vec::new();
        let reading = async {
            let path = format!("/v1/jobs/{id}/events");
            let Ok(mut stream) = self.client.stream(&path).await else { return };
            while let Ok(Some(event)) = stream.next().await {
                let found = is(&event);
                events.push(event);
                if found {
                    return;
                }
            }
        };
        let read = tokio::time::timeout(PATIENCE, reading).await;
        assert!(read.is_ok(), "the job {id} came only so far: {events:#?}");
        events
    }

    /// Waits until a job stands there, and gives it.
    pub(crate) async fn until(&self, id: &str, status: &str) -> Value {
        let events = self.story(id, |event| moved_to(event, status)).await;
        let there = events.last().is_some_and(|event| moved_to(event, status));
        assert!(there, "never {status}: {events:#?}");
        self.job(id).await
    }

    /// Waits until a job has ended, and gives it.
    pub(crate) async fn ended(&self, id: &str) -> Value {
        self.story(id, |_| false).await;
        self.job(id).await
    }

    /// Asks until the answer is as it should be.
    pub(crate) async fn look(&self, path: &str, is: impl Fn(&Value) -> bool) -> Value {
        let asking = async {
            loop {
                let answer = self.get(path).await;
                if is(&answer) {
                    return answer;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, asking).await.expect("it comes to be so")
    }

    /// Says something of a job.
    pub(crate) async fn say(&self, id: &str, verb: &str, body: &Value) -> Answer {
        self.post(&format!("/v1/jobs/{id}/{verb}"), body).await
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // It may have ended already, or stand still.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `semel up` in this home, killed when it is dropped; and what it said when it was ready.
pub(crate) fn up(home: &Path, more: &[&str]) -> (Engine, Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(["up", "--json", "--name", "me", "--broker-listen", "127.0.0.1:0"]);
    command.args(["--api-listen", "127.0.0.1:0", "--home"]).arg(home).args(more);
    command.stderr(Stdio::null());
    let (child, ready) = ready(&mut command).unwrap_or_else(|| panic!("{command:?}"));
    let client = Client::socket(ready["socket"].as_str().unwrap());
    let api = ready["api"].as_str().unwrap().to_owned();
    (Engine { child, client, api }, ready)
}

/// Starts a process and waits until it says that it is ready; nothing when it ends instead.
fn ready(command: &mut Command) -> Option<(Child, Value)> {
    let mut child = command.env_remove("SEMEL_HOME").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let Ok(ready) = serde_json::from_str::<Value>(&line) else {
        child.wait().unwrap();
        return None;
    };
    assert_eq!(ready["event"], "ready");
    Some((child, ready))
}

/// Whether a job came there by this.
pub(crate) fn moved_to(event: &Event, status: &str) -> bool {
    event.kind == "moved" && event.data["status"] == status
}

/// The steps that have been completed so far.
pub(crate) fn completed(events: &[Event]) -> Vec<String> {
    let done = |event: &&Event| event.kind == "step_ended" && event.data["status"] == "completed";
    let name = |event: &Event| event.data["step"].as_str().unwrap().to_owned();
    events.iter().filter(done).map(name).collect()
}

/// Numbers that are the same in every run.
pub(crate) struct Lottery(pub(crate) u64);

impl Lottery {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}
