//! Control groups (version 2): what all processes that a gear's process starts may use together,
//! where the host lets the engine have a group of its own (decision 033).
//!
//! Under the engine's own group there is a leaf for the engine itself, because the kernel counts
//! nothing for groups that have both processes and groups in them, and one for each process of a
//! gear. What is not to be had is told at install and by `semel doctor`, and in the log if it fails
//! while the engine runs: no step is lost over it.

mod found;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::io::Errno;

use super::sandbox::Limits;
use crate::limits::{
    GROUP_CPU_WEIGHT, GROUP_LEAVES_TRIED, GROUP_MEMORY_BYTES, GROUP_TASKS, KILL_TIMEOUT,
    PROXY_CONNECTIONS_MAX,
};

pub use found::{Controller, Unused};
use found::{Plan, Seen};

/// The leaf of engines.
const ENGINE: &str = "semel-engine";

/// What leaves of gears begin with; their engine's process and a number follow.
const GEAR: &str = "semel-gear-";

/// The groups of an engine.
pub struct Groups {
    root: PathBuf,
    controllers: Vec<Controller>,
    next: AtomicU64,
    has_complained: AtomicBool,
}

/// What this process could have, without any change.
pub fn look() -> Result<Vec<Controller>, Unused> {
    Ok(plan()?.controllers)
}

/// What is bounded for a gear as a whole, in words.
pub fn told(found: &Result<Vec<Controller>, Unused>) -> String {
    let all = Controller::ALL.iter();
    let had = |controller: &&Controller| {
        found.as_ref().is_ok_and(|controllers| controllers.contains(controller))
    };
    let names = |list: Vec<&str>| list.join(" and ");
    let bounded = names(all.clone().filter(had).map(|one| one.bounds()).collect());
    let each = names(all.filter(|one| !had(one)).map(|one| one.bounds()).collect());
    match found {
        Ok(_) if each.is_empty() => {
            format!("{bounded} are bounded for all processes of a gear together")
        }
        Ok(_) => format!(
            "{bounded} are bounded for all processes of a gear together; {each} for each of them, \
             not for all together: its control group has no controller for that"
        ),
        Err(why) => {
            format!(
                "memory and processor time are bounded for each process of a gear, not for all \
                 together: {why}"
            )
        }
    }
}

fn plan() -> Result<Plan, Unused> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let own = found::own(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))?;
    // The leaf that an earlier start of the same process has moved to.
    found::plan(&match own.folder.parent() {
        Some(parent) if own.folder.ends_with(ENGINE) => Seen::at(parent, own.is_namespace_parent),
        Some(_) | None => Seen::at(&own.folder, own.is_namespace),
    })
}

impl Groups {
    /// Takes the engine's own group into use: moves this process into a leaf, and has the kernel
    /// count for the others.
    pub fn take() -> Result<Self, Unused> {
        Self::by(plan()?)
    }

    fn by(plan: Plan) -> Result<Self, Unused> {
        let Plan { root, moves, controllers } = plan;
        let failed = |what: &'static str| {
            let root = root.clone();
            move |error: io::Error| Unused::Failed { what, root, why: error.to_string() }
        };
        let engine = root.join(ENGINE);
        if moves {
            make(&engine).map_err(failed("a leaf be made in"))?;
            enter(&engine, std::process::id()).map_err(failed("a leaf be entered in"))?;
        }
        let enable = |controller: &Controller| {
            let line = format!("+{}", controller.name());
            fs::write(root.join("cgroup.subtree_control"), line)
        };
        let (mut enabled, mut why) = (Vec::new(), None);
        for controller in controllers {
            match enable(&controller) {
                Ok(()) => enabled.push(controller),
                Err(error) => why = Some(error),
            }
        }
        if let (true, Some(error)) = (enabled.is_empty(), why) {
            if moves {
                // Back to where it was; where that cannot be, the leaf does no harm.
                let _ = enter(&root, std::process::id());
                let _ = fs::remove_dir(&engine);
            }
            return Err(failed("controllers be enabled in")(error));
        }
        let groups = Self::at(root, enabled);
        groups.sweep();
        Ok(groups)
    }

    /// Whether this is bounded for all processes of a gear together.
    pub(crate) fn bounds(&self, controller: Controller) -> bool {
        self.controllers.contains(&controller)
    }

    fn at(root: PathBuf, controllers: Vec<Controller>) -> Self {
        let (next, has_complained) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { root, controllers, next, has_complained }
    }

    /// Removes what engines that are gone have left. Whoever is in there still has lost its engine,
    /// and is about to end by itself.
    fn sweep(&self) {
        for entry in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let owner = name.to_str().and_then(|name| name.strip_prefix(GEAR)?.split_once('-'));
            let owner = owner.and_then(|(pid, _)| pid.parse::<u32>().ok());
            if owner.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
                // One that is not empty is left for the next start.
                let _ = fs::remove_dir(entry.path());
            }
        }
    }

    /// A group for one process with everything that it starts. Nothing when it cannot be had: then
    /// each of them has its limits for itself.
    pub(crate) fn leaf(self: &Arc<Self>, limits: &Limits, network: Network) -> Option<Leaf> {
        match self.new_leaf(limits, network) {
            Ok(leaf) => Some(leaf),
            Err(error) => {
                self.complain("made", &error);
                None
            }
        }
    }

    fn new_leaf(self: &Arc<Self>, limits: &Limits, network: Network) -> io::Result<Leaf> {
        let mut made = Err(io::ErrorKind::AlreadyExists.into());
        for _ in 0..GROUP_LEAVES_TRIED {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let path = self.root.join(format!("{GEAR}{}-{number}", std::process::id()));
            // Another engine may have the same number in another namespace of processes.
            made = fs::create_dir(&path).map(|()| path);
            if !matches!(&made, Err(error) if error.kind() == io::ErrorKind::AlreadyExists) {
                break;
            }
        }
        let leaf = Leaf { path: made?, groups: Arc::clone(self) };
        for (file, value) in writes(limits, &self.controllers, network) {
            fs::write(leaf.path.join(file), value)?;
        }
        for (file, value) in extras(&self.controllers) {
            // Kernels without these files do without.
            let _ = fs::write(leaf.path.join(file), value);
        }
        Ok(leaf)
    }

    /// Once: what fails for one process fails for the next.
    fn complain(&self, what: &str, error: &io::Error) {
        if !self.has_complained.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                root = %self.root.display(), %error,
                "a control group could not be {what}: limits apply to each process, not to all \
                 together"
            );
        }
    }
}

/// Whether the sandbox carries a network: that takes threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    None,
    Proxy,
}

/// What is written into a new leaf, which has to be there.
fn writes(
    limits: &Limits,
    controllers: &[Controller],
    network: Network,
) -> Vec<(&'static str, String)> {
    let carrying = match network {
        Network::None => 0,
        Network::Proxy => 1 + 2 * u64::try_from(PROXY_CONNECTIONS_MAX).unwrap_or(u64::MAX),
    };
    let write = |controller: &Controller| match controller {
        Controller::Memory => {
            ("memory.max", limits.memory_bytes.saturating_add(GROUP_MEMORY_BYTES).to_string())
        }
        Controller::Pids => {
            let tasks = limits.processes.saturating_add(GROUP_TASKS).saturating_add(carrying);
            ("pids.max", tasks.to_string())
        }
        Controller::Cpu => ("cpu.weight", GROUP_CPU_WEIGHT.to_string()),
    };
    controllers.iter().map(write).collect()
}

/// And what not every kernel has: no way around the bound into swap, and an end of all of it when
/// the memory is used up, instead of an end of some.
fn extras(controllers: &[Controller]) -> Vec<(&'static str, &'static str)> {
    match controllers.contains(&Controller::Memory) {
        true => vec![("memory.swap.max", "0"), ("memory.oom.group", "1")],
        false => Vec::new(),
    }
}

/// The group of one process of a gear. Dropped, it is removed.
pub(crate) struct Leaf {
    path: PathBuf,
    groups: Arc<Groups>,
}

impl Leaf {
    /// Puts a process in, with everything that it starts from then on.
    pub(crate) fn put(&self, pid: u32) {
        if let Err(error) = enter(&self.path, pid)
            // It is gone already.
            && error.raw_os_error() != Some(Errno::SRCH.raw_os_error())
        {
            self.groups.complain("entered", &error);
        }
    }

    /// Kills whoever is in there. Kernels before Linux 5.14 have no such file.
    pub(crate) fn kill(&self) {
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
    }

    /// Waits until nobody is in there, and kills who is.
    pub(crate) async fn emptied(&self) {
        let mut waited = std::time::Duration::ZERO;
        while !is_empty(&self.path) && waited < KILL_TIMEOUT {
            self.kill();
            tokio::time::sleep(KILL_TIMEOUT / 40).await;
            waited += KILL_TIMEOUT / 40;
        }
    }
}

impl Drop for Leaf {
    fn drop(&mut self) {
        // What is not empty yet is removed by the next engine.
        let _ = fs::remove_dir(&self.path);
    }
}

/// Whether no process is in a group; one that is gone is empty.
fn is_empty(path: &Path) -> bool {
    let events = fs::read_to_string(path.join("cgroup.events")).unwrap_or_default();
    !events.lines().any(|line| line == "populated 1")
}

fn make(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

fn enter(path: &Path, pid: u32) -> io::Result<()> {
    fs::write(path.join("cgroup.procs"), pid.to_string())
}

#[cfg(test)]
mod tests;
