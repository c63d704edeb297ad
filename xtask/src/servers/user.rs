//! The account that a server runs under: PostgreSQL refuses to run as root.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

/// In the order that we prefer them.
const UNPRIVILEGED: [&str; 2] = ["postgres", "nobody"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct User {
    uid: u32,
    gid: u32,
}

impl User {
    /// `None`: we are not root, so the server may run as we do.
    pub(crate) fn for_postgres() -> Result<Option<Self>> {
        if !is_root() {
            return Ok(None);
        }
        let accounts = fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
        let user = UNPRIVILEGED.iter().find_map(|name| lookup(&accounts, name));
        user.map(Some).with_context(|| {
            format!("PostgreSQL refuses to run as root, and there is no user {UNPRIVILEGED:?}")
        })
    }

    /// The standard library also drops the supplementary groups.
    pub(crate) fn run(self, command: &mut Command) {
        command.uid(self.uid).gid(self.gid);
    }

    pub(crate) fn own(self, path: &Path) -> Result<()> {
        chown(path, Some(self.uid), Some(self.gid))
            .with_context(|| format!("cannot hand {} to the server's user", path.display()))
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A line of `/etc/passwd` is `name:password:uid:gid:…`.
fn lookup(accounts: &str, name: &str) -> Option<User> {
    accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some(name) {
            return None;
        }
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some(User { uid, gid })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_an_account_by_its_whole_name() {
        let accounts = "root:x:0:0:root:/:/bin/sh\npostgres2:x:7:7::/:\npostgres:x:106:113::/:\n";
        assert_eq!(lookup(accounts, "postgres"), Some(User { uid: 106, gid: 113 }));
        assert_eq!(lookup(accounts, "nobody"), None);
    }

    #[test]
    fn a_broken_line_is_no_account() {
        assert_eq!(lookup("postgres:x:many:1\n", "postgres"), None);
    }
}
