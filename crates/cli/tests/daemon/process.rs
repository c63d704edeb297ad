//! Running the binary: a broker, daemons beside it, and commands that ask them.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use semel_client::Client;
use semel_daemon::environment::VARIABLES;
use serde_json::Value;

pub(crate) const MESH: &str = "ops";

/// Long enough for a loaded machine; only a failure waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The binary as on a machine of its own, wherever these tests run.
fn program(arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    for name in ["SEMEL_HOME", "SEMEL_INVITE"].iter().chain(VARIABLES) {
        command.env_remove(name);
    }
    command.args(arguments).envs(variables.iter().copied());
    command
}

pub(crate) fn semel(arguments: &[&str]) -> Output {
    program(arguments, &[]).output().unwrap()
}

/// What a command prints when it succeeds.
pub(crate) fn succeeds(arguments: &[&str]) -> String {
    succeeds_in(&[], arguments)
}

/// The same where these variables are set.
pub(crate) fn succeeds_in(variables: &[(&str, &str)], arguments: &[&str]) -> String {
    let output = program(arguments, variables).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    text.trim().to_owned()
}

/// What a command says, and with which code it ends, when it does not.
pub(crate) fn fails(arguments: &[&str]) -> (i32, String) {
    fails_in(&[], arguments)
}

/// The same where these variables are set.
pub(crate) fn fails_in(variables: &[(&str, &str)], arguments: &[&str]) -> (i32, String) {
    let output = program(arguments, variables).output().unwrap();
    assert!(!output.status.success(), "{arguments:?}");
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// A process that says when it is ready; killed when it is dropped.
pub(crate) struct Process {
    child: Child,
    pub(crate) ready: Value,
}

impl Process {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_in(&[], arguments)
    }

    /// The same where these variables are set.
    pub(crate) fn start_in(variables: &[(&str, &str)], arguments: &[&str]) -> Self {
        let mut child = program(arguments, variables)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line)
            .unwrap_or_else(|_| panic!("{arguments:?} is not ready: {line:?}"));
        assert_eq!(ready["event"], "ready");
        Self { child, ready }
    }

    /// SIGKILL, and wait until it is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM, and wait until it has ended in order.
    pub(crate) fn terminate(&mut self) {
        self.signal("-TERM");
        assert_eq!(self.ends(), Some(0));
    }

    pub(crate) fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// Waits until it ends by itself.
    pub(crate) fn ends(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A mesh with a broker of its own, at an address that it keeps.
pub(crate) struct Mesh {
    folder: tempfile::TempDir,
    address: String,
    pub(crate) broker: Option<Process>,
}

impl Mesh {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap().to_string();
        drop(free);
        let mut mesh = Self { folder, address, broker: None };
        // Nobody has the owner's key: the mesh is run from its store.
        let owner = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
        mesh.broker(&["mesh", "create", MESH, "--owner", "nobody", "--owner-key", owner]);
        mesh.serve();
        mesh
    }

    pub(crate) fn store(&self) -> String {
        format!("sqlite:{}", self.folder.path().join("broker.db").display())
    }

    /// An operator's verb.
    pub(crate) fn broker(&self, verb: &[&str]) -> String {
        succeeds(&[&["broker"], verb, &["--store", &self.store()]].concat())
    }

    pub(crate) fn serve(&mut self) {
        let store = self.store();
        let arguments = ["broker", "serve", "--json", "--listen", &self.address, "--store", &store];
        self.broker = Some(Process::start(&arguments));
    }

    pub(crate) fn invite(&self, role: &str) -> String {
        let url = format!("http://{}", self.address);
        self.broker(&["invite", MESH, "--broker-url", &url, "--role", role])
    }

    /// A host that has joined.
    pub(crate) fn join(&self, name: &str, role: &str) -> Host {
        self.join_in(self.folder.path(), name, role)
    }

    /// A host that has not.
    pub(crate) fn host(&self, name: &str) -> Host {
        Host { home: self.folder.path().join(name) }
    }

    /// The same, in a folder of its own.
    pub(crate) fn join_in(&self, folder: &Path, name: &str, role: &str) -> Host {
        let home = folder.join(name);
        let invite = self.invite(role);
        let at = home.display().to_string();
        succeeds(&["mesh", "join", &invite, "--name", name, "--home", &at]);
        Host { home }
    }
}

/// A host in the mesh.
pub(crate) struct Host {
    home: PathBuf,
}

impl Host {
    pub(crate) fn home(&self) -> String {
        self.home.display().to_string()
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.home.join("daemon").join(MESH)
    }

    pub(crate) fn up(&self) -> Process {
        self.up_with(&[])
    }

    pub(crate) fn up_with(&self, extra: &[&str]) -> Process {
        let home = self.home();
        let up = ["daemon", "up", "--json", "--no-tcp", "--home", &home];
        Process::start(&[&up, extra].concat())
    }

    pub(crate) fn client(&self) -> Client {
        Client::socket(self.socket())
    }

    fn socket(&self) -> PathBuf {
        Path::new(&self.folder()).join("sock")
    }

    /// A verb of a user.
    pub(crate) fn run(&self, verb: &[&str]) -> String {
        succeeds(&[verb, &["--home", &self.home()]].concat())
    }

    pub(crate) fn run_json(&self, verb: &[&str]) -> Value {
        serde_json::from_str(&self.run(&[verb, &["--json"]].concat())).unwrap()
    }
}

/// Every message in a host's inbox, in the order of arrival.
pub(crate) async fn inbox(client: &Client) -> Option<Vec<Value>> {
    let mut items = Vec::new();
    let mut next = Some("/v1/inbox?limit=500".to_owned());
    while let Some(path) = next {
        let page = client.get(&path).await.ok()?.body;
        items.extend(page["items"].as_array()?.iter().cloned());
        next = page["next"].as_str().map(str::to_owned);
    }
    Some(items)
}

/// Waits until so many messages are in a host's inbox, and gives all that are there.
pub(crate) async fn arrived(host: &Host, count: usize) -> Vec<Value> {
    let client = host.client();
    let mut seen = 0;
    let waiting = async {
        loop {
            match inbox(&client).await {
                Some(messages) if messages.len() >= count => return messages,
                Some(messages) => seen = messages.len(),
                None => {}
            }
            tokio::task::yield_now().await;
        }
    };
    let arrived = tokio::time::timeout(PATIENCE, waiting).await;
    arrived.unwrap_or_else(|_| panic!("{seen} of {count} messages have arrived"))
}

/// Asks until the answer is as it should be.
pub(crate) async fn until(client: &Client, path: &str, is: impl Fn(&Value) -> bool) -> Value {
    let asking = async {
        loop {
            let answer = client.get(path).await.unwrap().body;
            if is(&answer) {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.expect("it comes to be so")
}
