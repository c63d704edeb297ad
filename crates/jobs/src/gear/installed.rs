//! A gear with a program of its own: started in the sandbox, spoken to by lines, and gone when it
//! was told to stop (jobs.md §6, §8).

mod hide;
mod talk;
mod warm;

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use semel_core::hex::Hex;
use semel_gear::line::{Direction, Key, Signer, Verifier};
use semel_gear::message::ToGear;
use tokio::sync::oneshot;
use zeroize::Zeroizing;

use super::document::{Document, PACKAGE, Permissions};
use super::grants::Grants;
use super::groups::Groups;
use super::manifest::Manifest;
use super::package::{self, PackageError, Scratch};
use super::process::{Running, Start};
use super::proxy::{Allowed, Proxy};
use super::reach::{Home, Number};
use super::room::Lane;
use super::sandbox::PROXY_PORT;
use super::secrets::Secrets;
use super::{Call, Desk, Ended, Failure, FailureClass, Gear, Later, Resolution, Stop, quota};
use talk::Said;
use warm::{Living, Starting, Turn, Warm};

/// How the engine's own variables are seen.
pub type Environment = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Where programs are looked for by name.
const PATH: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/bin"];

/// An installed gear.
pub struct Installed {
    document: Document,
    /// As it was read: what runs has to say the same.
    manifest_text: String,
    /// Where its package is.
    root: PathBuf,
    /// The home of the engine, whose files it is kept from.
    home: PathBuf,
    /// The home whose secrets it is given.
    secrets: PathBuf,
    shim: PathBuf,
    environment: Environment,
    warm: Arc<Warm>,
    lane: Arc<Lane>,
    groups: Option<Arc<Groups>>,
}

/// A process that speaks the protocol.
struct Worker {
    running: Running,
    signer: Signer,
    verifier: Verifier,
    secrets: Vec<Zeroizing<String>>,
    /// Where its files are; a warm one has a folder of its own.
    folder: PathBuf,
    /// Looks at them for as long as it lives, whatever it does.
    disk: quota::Watch,
    executions: u32,
    was_stopped: bool,
    /// It has not said anything yet.
    silent: Option<oneshot::Sender<()>>,
    /// One of those that may come back.
    _living: Option<Living>,
    _proxy: Option<Proxy>,
    _run: Scratch,
}

impl Installed {
    /// The gear of this name in the home `root`.
    pub fn open(
        root: &Path,
        id: &str,
        shim: PathBuf,
        environment: Environment,
    ) -> Result<Self, PackageError> {
        let text = package::manifest_text(&package::folder(root).join(id).join("package"))?;
        let document = Document::parse(&text)?;
        let warm = Arc::new(Warm::default());
        let idle: Weak<Warm> = Arc::downgrade(&warm);
        let lane = Arc::new(Lane::with_spare(idle));
        let (root, home, secrets) = (root.to_owned(), root.to_owned(), root.to_owned());
        let manifest_text = text;
        let groups = None;
        Ok(Self {
            document,
            manifest_text,
            root,
            home,
            secrets,
            shim,
            environment,
            warm,
            lane,
            groups,
        })
    }

    /// The same gear for the engine of another home than its package is in.
    #[must_use]
    pub(crate) fn of_home(mut self, home: &Path) -> Self {
        self.home = home.to_owned();
        self
    }

    /// The same gear with the secrets of another home.
    #[must_use]
    pub(crate) fn with_secrets_of(mut self, home: &Path) -> Self {
        self.secrets = home.to_owned();
        self
    }

    /// The same gear with its processes in control groups, where the host has them.
    #[must_use]
    pub(crate) fn in_groups(mut self, groups: Option<Arc<Groups>>) -> Self {
        self.groups = groups;
        self
    }

    /// What its author wrote.
    pub fn document(&self) -> &Document {
        &self.document
    }

    /// A process for this call: one that waits, or a new one. Nothing was executed when it fails.
    async fn worker(&self, call: &Call) -> Result<Worker, Failure> {
        let starting = match self.document.warm {
            false => None,
            true => match self.warm.turn().await {
                Turn::Serve(worker) => return Ok(*worker),
                Turn::Start(starting) => Some(starting),
            },
        };
        let preparing = Preparing {
            root: self.root.clone(),
            home: self.home.clone(),
            secrets: self.secrets.clone(),
            id: self.document.manifest.id.clone(),
            manifest_text: self.manifest_text.clone(),
            permissions: self.document.permissions.clone(),
            workspace: (!self.document.warm).then(|| call.workspace.clone()),
        };
        let prepared = tokio::task::spawn_blocking(move || preparing.prepare());
        let prepared = prepared.await.map_err(|error| bug("panicked", error.to_string()))??;
        let (living, silent) = starting.map(Starting::started).unzip();
        self.start(prepared, living, silent).map_err(|error| {
            Failure::new(FailureClass::ResourceLimit, "not_started", error.to_string())
        })
    }

    fn start(
        &self,
        prepared: Prepared,
        living: Option<Living>,
        silent: Option<oneshot::Sender<()>>,
    ) -> std::io::Result<Worker> {
        let Prepared { run, package, folder, secrets, waived, kept_from } = prepared;
        let mut key = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *key).map_err(|_| std::io::ErrorKind::Other)?;
        let proxy = match self.document.has_network() {
            true => Some(Proxy::start(&run.0, Allowed::of(&self.document.permissions))?),
            false => None,
        };
        let mut command = self.document.command.iter();
        let place = package.display().to_string();
        let program = command.next().map(|program| program.replace(PACKAGE, &place));
        let program = found(&program.unwrap_or_default());
        let mut read = self.document.permissions.read.clone();
        read.push(package);
        let mut write = self.document.permissions.write.clone();
        write.push(folder.clone());
        let named = |(name, value): (&String, &Zeroizing<String>)| {
            (name.clone(), value.as_str().to_owned())
        };
        let running = Running::start(Start {
            shim: &self.shim,
            key: Some(Hex::<32>(*key).to_string()),
            secrets: secrets.iter().map(named).collect(),
            program,
            arguments: command.map(|argument| argument.replace(PACKAGE, &place)).collect(),
            folder: folder.clone(),
            environment: self.variables(&folder),
            read,
            write,
            limits: self.document.limits.clone(),
            proxy: proxy.is_some().then(|| run.0.clone()),
            kept_from,
            waived,
            lives: self.lane.lives(),
            groups: self.groups.clone(),
        })?;
        let disk = quota::Watch::over(quota::Place {
            folder: folder.clone(),
            bytes_max: self.document.limits.disk_bytes,
            process: running.id(),
        });
        let key = Key::new(*key);
        Ok(Worker {
            running,
            signer: Signer::new(key.clone(), Direction::ToGear),
            verifier: Verifier::new(key, Direction::FromGear),
            secrets: secrets.into_values().collect(),
            folder,
            disk,
            executions: 0,
            was_stopped: false,
            silent,
            _living: living,
            _proxy: proxy,
            _run: run,
        })
    }

    /// Everything that a gear sees of variables.
    fn variables(&self, folder: &Path) -> BTreeMap<String, String> {
        let folder = folder.display().to_string();
        let mut variables = clean_environment(&folder);
        if self.document.has_network() {
            for name in ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"] {
                let value = format!("http://127.0.0.1:{PROXY_PORT}");
                variables.insert(name.to_owned(), value);
            }
        }
        for name in &self.document.permissions.environment {
            if let Some(value) = (self.environment)(name) {
                variables.insert(name.clone(), value);
            }
        }
        variables
    }

    async fn execute(&self, call: Call, desk: Arc<dyn Desk>, stop: Stop) -> Ended {
        if stop.is_stopped() {
            let text = "stopped before it was begun";
            return Ended::Failed(Failure::new(FailureClass::Transient, "stopped", text));
        }
        let mut worker = match self.worker(&call).await {
            Ok(worker) => worker,
            Err(failure) => return Ended::Failed(failure),
        };
        let execute = ToGear::Execute {
            execution_id: call.execution_id.clone(),
            attempt: call.attempt,
            action: call.action.clone(),
            params: call.params.clone(),
        };
        // A process that waits has read all that it was told before.
        if worker.say(&execute) != Said::Fine {
            worker.running.kill().await;
            let text = "the parameters have more than 1 MB";
            return Ended::Failed(Failure::new(FailureClass::UserError, "params_too_large", text));
        }
        let talked = worker.talk(&*desk, stop).await;
        let ended = worker.ended(talked, &call).await;
        self.after(worker, &ended).await;
        ended
    }

    async fn ask(&self, call: Call, stop: Stop) -> Resolution {
        let Ok(mut worker) = self.worker(&call).await else { return Resolution::Unknown };
        let resolve = ToGear::Resolve {
            execution_id: call.execution_id.clone(),
            action: call.action.clone(),
            params: call.params.clone(),
        };
        let known = match worker.say(&resolve) {
            Said::Fine => worker.hear_resolved(stop, &call).await,
            Said::TooLong | Said::Unread => Resolution::Unknown,
        };
        worker.running.kill().await;
        known
    }

    /// One that has done what it was told may wait for more; any other is gone before this is over.
    async fn after(&self, worker: Worker, ended: &Ended) {
        let is_fine = match ended {
            Ended::Done(_) => true,
            Ended::Failed(failure) => failure.class != FailureClass::GearBug,
            Ended::Uncertain(_) => false,
        };
        if self.document.warm && is_fine && worker.is_reusable() {
            self.warm.give(worker).await;
        } else {
            worker.running.kill().await;
        }
    }
}

impl Gear for Installed {
    fn manifest(&self) -> &Manifest {
        &self.document.manifest
    }

    fn lane(&self) -> Option<&Arc<Lane>> {
        Some(&self.lane)
    }

    fn grants(&self) -> &Grants {
        &self.document.permissions.grants
    }

    /// A warm one has a folder of its own.
    fn needs_workspace(&self) -> bool {
        !self.document.warm
    }

    fn is_ready(&self) -> bool {
        let names = &self.document.permissions.secrets;
        names.is_empty() || matches!(Secrets::of(&self.secrets).select(names), Ok(Ok(_)))
    }

    fn run<'a>(&'a self, call: Call, desk: Arc<dyn Desk>, stop: Stop) -> Later<'a, Ended> {
        Box::pin(self.execute(call, desk, stop))
    }

    fn resolve<'a>(&'a self, call: Call, stop: Stop) -> Later<'a, Resolution> {
        Box::pin(self.ask(call, stop))
    }
}

/// What has to be on disk before a process is started.
struct Prepared {
    run: Scratch,
    package: PathBuf,
    folder: PathBuf,
    secrets: BTreeMap<String, Zeroizing<String>>,
    waived: Vec<String>,
    kept_from: Vec<Number>,
}

/// What is needed for that.
struct Preparing {
    root: PathBuf,
    home: PathBuf,
    secrets: PathBuf,
    id: String,
    manifest_text: String,
    permissions: Permissions,
    /// Of the job, unless the process has a folder of its own.
    workspace: Option<PathBuf>,
}

impl Preparing {
    fn prepare(self) -> Result<Prepared, Failure> {
        let secrets = self.secrets()?;
        let kept_from = self.kept_from()?;
        let run = Scratch::new(&run_folder(&self.root), &std::process::id().to_string());
        let run = run.map_err(not_prepared)?;
        // Rules are kept by what a path leads to, so links in it are followed first.
        let place = std::fs::canonicalize(&run.0).map_err(no_workspace)?;
        let package = place.join("package");
        let state = package::private_copy(&self.root, &self.id, &package).map_err(not_prepared)?;
        if package::manifest_text(&package).map_err(not_prepared)? != self.manifest_text {
            let text = "its manifest was changed since the engine has read it";
            return Err(bug("package_changed", text));
        }
        let folder = match self.workspace {
            Some(workspace) => std::fs::canonicalize(workspace).map_err(no_workspace)?,
            None => {
                let own = place.join("work");
                let made = DirBuilder::new().mode(0o700).create(&own);
                made.map_err(|error| bug("not_started", error.to_string()))?;
                own
            }
        };
        Ok(Prepared { run, package, folder, secrets, waived: state.waived, kept_from })
    }

    fn secrets(&self) -> Result<BTreeMap<String, Zeroizing<String>>, Failure> {
        let user_error = |code, text| Failure::new(FailureClass::UserError, code, text);
        let known = Secrets::of(&self.secrets).select(&self.permissions.secrets);
        let known = known.map_err(|error| user_error("secrets_unreadable", error.to_string()))?;
        known.map_err(|name| {
            let text = format!("the secret {name} is not set; to set it: semel secret set {name}");
            user_error("secret_missing", text)
        })
    }

    /// Judges what the manifest declares as it is now: somebody may have moved things since it was
    /// installed. The process judges once more, by what it has opened.
    fn kept_from(&self) -> Result<Vec<Number>, Failure> {
        let home = Home::of(&self.home).map_err(no_workspace)?;
        home.allow(&self.permissions).map_err(|trespass| {
            let text = match trespass.source() {
                None => trespass.to_string(),
                Some(source) => format!("{trespass}: {source}"),
            };
            Failure::new(FailureClass::UserError, "path_refused", text)
        })?;
        Ok(home.numbers)
    }
}

fn not_prepared(error: PackageError) -> Failure {
    match &error {
        PackageError::Changed { .. } => bug("package_changed", error.to_string()),
        PackageError::Manifest(_) | PackageError::Unfit { .. } | PackageError::Trespass(_) => {
            bug("package_unfit", error.to_string())
        }
        PackageError::Io { source, .. } => {
            let text = format!("{error}: {source}");
            Failure::new(FailureClass::ResourceLimit, "not_started", text)
        }
    }
}

fn no_workspace(error: std::io::Error) -> Failure {
    bug("no_workspace", error.to_string())
}

/// Where processes have their private copies.
pub(crate) fn run_folder(root: &Path) -> PathBuf {
    root.join("jobs").join("run")
}

/// Removes what engines that were killed have left behind.
pub(crate) fn sweep(root: &Path) {
    for entry in std::fs::read_dir(run_folder(root)).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.split_once('-')?.0.parse::<u32>().ok());
        let lives = pid.is_some_and(|pid| Path::new("/proc").join(pid.to_string()).exists());
        if !lives {
            package::remove(&entry.path());
        }
    }
}

/// The variables that every program in the sandbox has.
pub(crate) fn clean_environment(folder: &str) -> BTreeMap<String, String> {
    [("PATH", &*PATH.join(":")), ("HOME", folder), ("TMPDIR", folder), ("LANG", "C.UTF-8")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
}

/// Where a program is that is named without its folder.
pub(super) fn in_path(program: &str) -> Option<PathBuf> {
    let mut places = PATH.iter().map(|folder| Path::new(folder).join(program));
    places.find(|path| path.exists())
}

fn found(program: &str) -> PathBuf {
    if program.contains('/') {
        return PathBuf::from(program);
    }
    in_path(program).unwrap_or_else(|| Path::new("/usr/bin").join(program))
}

fn bug(code: &str, message: impl Into<String>) -> Failure {
    Failure::new(FailureClass::GearBug, code, message)
}
