//! Which control group is ours, and whether we may use it: facts in, a plan out.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use semel_core::status;

status! {
    /// What the kernel counts for a group.
    pub enum Controller {
        /// Memory.
        Memory = "memory",
        /// Processes and threads.
        Pids = "pids",
        /// Time of the processor.
        Cpu = "cpu",
    }
}

impl Controller {
    /// Its name in the kernel's files.
    pub fn name(self) -> &'static str {
        self.as_str()
    }

    /// What is bounded by it.
    pub fn bounds(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "the number of processes",
            Self::Cpu => "the share of the processor",
        }
    }
}

/// Why there are no groups for gears.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unused {
    /// The host has none.
    #[error("this host has no control groups of version 2")]
    NoHierarchy,
    /// They are not to be seen from here.
    #[error("the control group {path} is under no mount that is seen from here")]
    Unseen {
        /// As the kernel names it.
        path: String,
    },
    /// They are somebody else's.
    #[error(
        "the control group {} is not delegated to this user (systemd: Delegate=yes)",
        folder.display()
    )]
    NotDelegated {
        /// Whose.
        folder: PathBuf,
    },
    /// They cannot be written.
    #[error("the control group {} cannot be written", folder.display())]
    ReadOnly {
        /// Which.
        folder: PathBuf,
    },
    /// The kernel divides no group that has processes of its own.
    #[error("other processes are in the control group {}", folder.display())]
    Shared {
        /// Which.
        folder: PathBuf,
    },
    /// They would bound nothing.
    #[error("the control group {} has no controllers", folder.display())]
    NoControllers {
        /// Which.
        folder: PathBuf,
    },
    /// The kernel said no.
    #[error("the kernel does not let {what} the control group {}: {why}", root.display())]
    Failed {
        /// What was tried.
        what: &'static str,
        /// Where.
        root: PathBuf,
        /// Why.
        why: String,
    },
}

/// The group of this process, on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Own {
    pub(super) folder: PathBuf,
    /// It is all that its namespace shows.
    pub(super) is_namespace: bool,
    /// The one above it is.
    pub(super) is_namespace_parent: bool,
}

/// By what the kernel says of this process and of its mounts.
pub(super) fn own(cgroup: &str, mountinfo: &str) -> Result<Own, Unused> {
    let path = cgroup.lines().find_map(|line| line.strip_prefix("0::"));
    let path = path.ok_or(Unused::NoHierarchy)?;
    let mounts: Vec<(PathBuf, PathBuf)> = mountinfo.lines().filter_map(mount).collect();
    if mounts.is_empty() {
        return Err(Unused::NoHierarchy);
    }
    // One that was removed, or lies outside of the namespace, is named so.
    let is_plain = path.starts_with('/') && !path.ends_with(" (deleted)") && !path.contains("/..");
    let below = |(root, point): &(PathBuf, PathBuf)| {
        let rest = Path::new(path).strip_prefix(root).ok()?;
        Some(if rest.as_os_str().is_empty() { point.clone() } else { point.join(rest) })
    };
    let folder = mounts.iter().filter(|_| is_plain).find_map(below);
    let folder = folder.ok_or_else(|| Unused::Unseen { path: path.to_owned() })?;
    let above = Path::new(path).parent();
    let is_namespace_parent = above.is_some_and(|above| above == Path::new("/"));
    Ok(Own { folder, is_namespace: path == "/", is_namespace_parent })
}

/// Of a line of `mountinfo` what of the hierarchy is mounted, and where, if it is one of version 2.
fn mount(line: &str) -> Option<(PathBuf, PathBuf)> {
    let (before, after) = line.split_once(" - ")?;
    let is_group = after.split(' ').next() == Some("cgroup2");
    let mut fields = before.split(' ').skip(3).map(plain);
    Some((fields.next()?, fields.next()?)).filter(|_| is_group)
}

/// Spaces and their kind are written as octal numbers.
fn plain(field: &str) -> PathBuf {
    let mut text = field.to_owned();
    for (written, meant) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        text = text.replace(written, meant);
    }
    PathBuf::from(text)
}

/// What is to be known of a group before it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) folder: PathBuf,
    pub(super) is_namespace: bool,
    /// Who runs the host says that it is ours.
    pub(super) is_delegated: bool,
    pub(super) is_writable: bool,
    /// The first of all groups may have processes beside its groups.
    pub(super) is_first: bool,
    pub(super) has_others: bool,
    pub(super) controllers: String,
}

impl Seen {
    pub(super) fn at(folder: &Path, is_namespace: bool) -> Self {
        let given = |name: &str| {
            let mut value = [0_u8; 8];
            let read = rustix::fs::getxattr(folder, name, &mut value[..]);
            read.is_ok_and(|read| value.get(..read) == Some(b"1".as_slice()))
        };
        let writable = |name: &str, how: Access| rustix::fs::access(folder.join(name), how).is_ok();
        let own = std::process::id().to_string();
        let within = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
        let controllers = fs::read_to_string(folder.join("cgroup.controllers"));
        Self {
            folder: folder.to_owned(),
            is_namespace,
            is_delegated: given("user.delegate") || given("trusted.delegate"),
            is_writable: writable("", Access::WRITE_OK | Access::EXEC_OK)
                && writable("cgroup.procs", Access::WRITE_OK)
                && writable("cgroup.subtree_control", Access::WRITE_OK),
            has_others: within.lines().any(|pid| pid != own),
            is_first: !folder.join("cgroup.type").exists(),
            controllers: controllers.unwrap_or_default(),
        }
    }
}

/// What is to be done so that gears have groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) root: PathBuf,
    /// This process goes into a leaf first.
    pub(super) moves: bool,
    pub(super) controllers: Vec<Controller>,
}

pub(super) fn plan(seen: &Seen) -> Result<Plan, Unused> {
    let folder = || seen.folder.clone();
    if !(seen.is_namespace || seen.is_delegated) {
        return Err(Unused::NotDelegated { folder: folder() });
    }
    if !seen.is_writable {
        return Err(Unused::ReadOnly { folder: folder() });
    }
    let has = |controller: &&Controller| {
        seen.controllers.split_whitespace().any(|name| name == controller.name())
    };
    let controllers: Vec<Controller> = Controller::ALL.iter().filter(has).copied().collect();
    if controllers.is_empty() {
        return Err(Unused::NoControllers { folder: folder() });
    }
    if seen.has_others && !seen.is_first {
        return Err(Unused::Shared { folder: folder() });
    }
    Ok(Plan { root: folder(), moves: !seen.is_first, controllers })
}
