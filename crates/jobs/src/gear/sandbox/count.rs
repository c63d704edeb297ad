//! Who counts the processes of a gear when no control group does: the kernel counts them by their
//! user, but not those of root; those of root by the numbers that a namespace of processes has, but
//! only since Linux 6.14.

use std::fmt;

use super::super::groups::{Controller, Unused};
use crate::limits::PIDS_MAX_LEAST;

/// Where a namespace bounds its own numbers.
pub(super) const FILE: &str = "/proc/sys/kernel/pid_max";

/// The first kernel whose namespaces have a bound of their own. Before it there is one for the
/// whole host, and whoever may write it sets it for everybody.
const OWN_NUMBERS: (u32, u32) = (6, 14);

/// What is to be known of this process and its host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) is_root: bool,
    /// As the kernel names itself.
    pub(crate) release: String,
    /// The file can be written; it is not where `/proc/sys` was mounted for reading alone.
    pub(crate) is_writable: bool,
}

impl Host {
    pub(crate) fn here() -> Self {
        let writable = rustix::fs::access(FILE, rustix::fs::Access::WRITE_OK);
        Self {
            is_root: rustix::process::geteuid().is_root(),
            release: rustix::system::uname().release().to_string_lossy().into_owned(),
            is_writable: writable.is_ok(),
        }
    }

    /// Whether the number of processes of a sandbox with namespaces has a bound.
    pub(crate) fn counts(&self) -> bool {
        !self.is_root || (has_own_numbers(&self.release) && self.is_writable)
    }
}

/// How many processes a gear may have on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Processes {
    /// So many.
    Most(u64),
    /// Nobody counts them.
    Any,
}

impl Processes {
    /// Of a gear that asks for so many, where these groups are to be had.
    pub fn of(asked: u64, groups: &Result<Vec<Controller>, Unused>) -> Self {
        let grouped = groups.as_ref().is_ok_and(|found| found.contains(&Controller::Pids));
        Self::on(&Host::here(), grouped, asked)
    }

    fn on(host: &Host, grouped: bool, asked: u64) -> Self {
        match grouped || !host.is_root {
            true => Self::Most(asked),
            // A namespace has the numbers below its bound, and cannot have fewer.
            false if host.counts() => Self::Most(asked.max(PIDS_MAX_LEAST) - 1),
            false => Self::Any,
        }
    }
}

impl fmt::Display for Processes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Most(most) => write!(f, "{most} processes"),
            Self::Any => f.write_str("any number of processes"),
        }
    }
}

/// What is written to the file by process 1 of a namespace, if the file is the namespace's own.
pub(super) fn most_numbers(namespaces: bool, release: &str, processes: u64) -> Option<u64> {
    (namespaces && has_own_numbers(release)).then(|| processes.max(PIDS_MAX_LEAST))
}

/// Whether the namespaces of a kernel of this name have a bound of their own.
fn has_own_numbers(release: &str) -> bool {
    let mut parts = release.split('.').map(|part| {
        // `14-rc1` is 14.
        let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        part.get(..end).and_then(|digits| digits.parse::<u32>().ok())
    });
    let mut next = || parts.next().flatten();
    // What cannot be read is old.
    next().zip(next()).is_some_and(|version| version >= OWN_NUMBERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kernels_that_have_a_bound_for_each_namespace_are_told_one() {
        for new in ["6.14.0", "6.14", "6.14-rc2", "6.14.0-15-generic", "6.18.44", "7.0.0-rc1"] {
            assert_eq!(most_numbers(true, new, 400), Some(400), "{new}");
            assert_eq!(most_numbers(true, new, 1), Some(PIDS_MAX_LEAST), "{new}");
            assert_eq!(most_numbers(false, new, 400), None, "{new}: it would be the host's");
        }
        for old in ["6.13.12", "6.9.14", "6.1.0-28-amd64", "5.15.0", "4.18", "6", "6.x", "", "?"] {
            assert_eq!(most_numbers(true, old, 400), None, "{old}: it is the whole host's");
        }
    }

    #[test]
    fn roots_processes_are_counted_by_a_namespace_or_not_at_all() {
        let host = |is_root, release: &str, is_writable| {
            Host { is_root, release: release.to_owned(), is_writable }.counts()
        };
        assert!(host(false, "5.15.0", false), "the kernel counts them by their user");
        assert!(host(true, "6.14.0", true));
        assert!(!host(true, "6.14.0", false) && !host(true, "6.13.0", true));
    }

    #[test]
    fn it_is_said_how_many_processes_there_can_be() {
        let told = |is_root, release: &str, grouped, asked| {
            let host = Host { is_root, release: release.to_owned(), is_writable: true };
            Processes::on(&host, grouped, asked).to_string()
        };
        assert_eq!(told(false, "5.15.0", false, 32), "32 processes");
        assert_eq!(told(true, "6.13.0", true, 32), "32 processes");
        assert_eq!(told(true, "6.14.0", false, 32), "300 processes");
        assert_eq!(told(true, "6.14.0", false, 400), "399 processes");
        assert_eq!(told(true, "6.13.0", false, 32), "any number of processes");
    }
}
