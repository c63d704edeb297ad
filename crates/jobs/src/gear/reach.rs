//! What a gear may open outside of its workspace: the files and folders that its manifest declares.
//!
//! A declared path is only a name, and a gear that may write beside it could make it lead somewhere
//! else (trap 61). So it is opened without following a link, by one descriptor, and that descriptor
//! is what is judged and what the kernel is given. The engine's home, everything in it and
//! everything above it belong to no gear, whatever a manifest declares.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use serde::{Deserialize, Serialize};

use super::document::Permissions;

/// Folders of the kernel: they show other processes and the machine.
const OF_KERNEL: [&str; 3] = ["/proc", "/sys", "/dev"];

/// What every gear may read and run: programs need it of the system.
pub(crate) const OF_SYSTEM: [&str; 17] = [
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/bin",
    "/sbin",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    // Not all of `/etc/ssl` and `/etc/pki/tls`: an engine of root could read the host's keys there.
    "/etc/ssl/certs",
    "/etc/ssl/cert.pem",
    "/etc/ssl/openssl.cnf",
    "/etc/pki/tls/certs",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/tls/openssl.cnf",
    "/etc/pki/ca-trust/extracted",
    "/etc/localtime",
];

/// Why a gear may not have a path that its manifest declares.
#[derive(Debug, thiserror::Error)]
pub enum Trespass {
    /// It is another place than its name says.
    #[error("{} leads through a link to {}: declare that path", path.display(), target.display())]
    Link {
        /// What was declared.
        path: PathBuf,
        /// Where it leads.
        target: PathBuf,
    },
    /// It would give the gear the engine's own files.
    #[error("{} holds, is or lies in the home {} of the engine", path.display(), home.display())]
    Home {
        /// What was declared.
        path: PathBuf,
        /// The engine's home.
        home: PathBuf,
    },
    /// Every gear may read the system, and the engine's files would be part of it.
    #[error(
        "the home {} lies in {}, which every gear may read: choose another home (--home)",
        home.display(),
        system.display()
    )]
    System {
        /// The engine's home.
        home: PathBuf,
        /// What of the system it lies in.
        system: PathBuf,
    },
    /// It shows other processes or the machine.
    #[error("{} belongs to the kernel: no gear may have it", path.display())]
    Kernel {
        /// What was declared.
        path: PathBuf,
    },
    /// It cannot be opened.
    #[error("{} cannot be opened", path.display())]
    Io {
        /// What was declared.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A file or folder by its numbers, which stay the same under every name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Number {
    device: u64,
    inode: u64,
}

/// A file or folder that was opened, and what it is.
pub(crate) struct Opened {
    pub(crate) file: OwnedFd,
    pub(crate) number: Number,
    pub(crate) is_folder: bool,
}

/// The engine's home, and what is above it.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    path: PathBuf,
    /// Of the home and of all folders above it.
    pub(crate) numbers: Vec<Number>,
}

/// Whether an engine may have its home here; one that is not there yet is judged by where it would
/// be.
pub fn judge_place(root: &Path) -> Result<(), Trespass> {
    Home::judge_place(root)
}

impl Home {
    /// The home as it is now.
    pub(crate) fn of(root: &Path) -> io::Result<Self> {
        let path = fs::canonicalize(root)?;
        let number = |path: &Path| {
            fs::metadata(path).map(|found| Number { device: found.dev(), inode: found.ino() })
        };
        let numbers = path.ancestors().map(number).collect::<io::Result<_>>()?;
        Ok(Self { path, numbers })
    }

    /// Whether a home may be here.
    pub(crate) fn judge_place(root: &Path) -> Result<(), Trespass> {
        let failed = |source| Trespass::Io { path: root.to_owned(), source };
        let root = std::path::absolute(root).map_err(failed)?;
        let is_there = |path: &&Path| path.exists();
        let there = root.ancestors().find(is_there).unwrap_or(Path::new("/"));
        Self::of(there).map_err(failed)?.apart_from(&OF_SYSTEM)
    }

    /// By numbers: what is mounted in several places is the same under every name.
    fn apart_from(&self, system: &[impl AsRef<Path>]) -> Result<(), Trespass> {
        let holds = |path: &&Path| {
            let opened = open_of_system(path);
            opened.is_ok_and(|opened| self.numbers.contains(&opened.number))
        };
        match system.iter().map(AsRef::as_ref).find(holds) {
            None => Ok(()),
            Some(system) => {
                Err(Trespass::System { home: self.path.clone(), system: system.to_owned() })
            }
        }
    }

    /// Judges all paths of a manifest, as they are now.
    pub(crate) fn allow(&self, permissions: &Permissions) -> Result<(), Trespass> {
        permissions.read.iter().chain(&permissions.write).try_for_each(|path| self.judge(path))
    }

    fn judge(&self, path: &Path) -> Result<(), Trespass> {
        let owned = || path.to_owned();
        if OF_KERNEL.iter().any(|kernel| path.starts_with(kernel)) {
            return Err(Trespass::Kernel { path: owned() });
        }
        let opened = open(path).map_err(|source| match fs::canonicalize(path) {
            Ok(target) if target != path => Trespass::Link { path: owned(), target },
            Ok(_) | Err(_) => Trespass::Io { path: owned(), source },
        })?;
        let holds = self.path.starts_with(path) || self.numbers.contains(&opened.number);
        if holds || path.starts_with(&self.path) {
            return Err(Trespass::Home { path: owned(), home: self.path.clone() });
        }
        Ok(())
    }
}

/// Opens a full path by a descriptor that can be judged and handed on, but not read. A link
/// anywhere on the way is an error.
pub(crate) fn open(path: &Path) -> io::Result<Opened> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let straight = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    opened(rustix::fs::openat2(CWD, path, flags, Mode::empty(), straight)?)
}

/// The same for a path of the system, whose links its administrator made.
pub(crate) fn open_of_system(path: &Path) -> io::Result<Opened> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    opened(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
}

fn opened(file: OwnedFd) -> io::Result<Opened> {
    let found = rustix::fs::fstat(file.as_fd())?;
    let number = Number { device: found.st_dev, inode: found.st_ino };
    let is_folder = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
    Ok(Opened { file, number, is_folder })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn reading(path: &Path) -> Permissions {
        Permissions { read: vec![path.to_owned()], ..Permissions::default() }
    }

    #[test]
    fn only_what_is_straight_and_not_of_the_engine() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = fs::canonicalize(folder.path()).expect("it is there");
        let home = root.join("home");
        for name in ["home/jobs", "data/cache", "homes"] {
            fs::create_dir_all(root.join(name)).expect("a folder");
        }
        symlink(&home, root.join("data/link")).expect("a link");
        symlink("link/jobs", root.join("data/far")).expect("a link");
        let kept = Home::of(&root.join("home")).expect("a home");
        for fine in ["data", "data/cache", "homes"] {
            kept.allow(&reading(&root.join(fine))).expect(fine);
        }
        for of_the_engine in ["home", "home/jobs", ""] {
            let refused = kept.allow(&reading(&root.join(of_the_engine)));
            assert!(matches!(refused, Err(Trespass::Home { .. })), "{of_the_engine}: {refused:?}");
        }
        for link in ["data/link", "data/link/jobs", "data/far"] {
            let refused = kept.allow(&reading(&root.join(link)));
            assert!(matches!(refused, Err(Trespass::Link { .. })), "{link}: {refused:?}");
        }
        let refused = kept.allow(&reading(Path::new("/proc/self")));
        assert!(matches!(refused, Err(Trespass::Kernel { .. })), "{refused:?}");
        let refused = kept.allow(&reading(&root.join("nothing")));
        assert!(matches!(refused, Err(Trespass::Io { .. })), "{refused:?}");
    }

    #[test]
    fn a_home_lies_in_nothing_that_every_gear_may_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = fs::canonicalize(folder.path()).expect("it is there");
        fs::create_dir_all(root.join("usr/local/home")).expect("a folder");
        fs::create_dir_all(root.join("data/usr")).expect("a folder");
        symlink("usr/local", root.join("link")).expect("a link");
        let system = [root.join("none"), root.join("usr")];
        for inside in ["usr", "usr/local/home", "link/home"] {
            let home = Home::of(&root.join(inside)).expect("a home");
            let refused = home.apart_from(&system);
            assert!(matches!(refused, Err(Trespass::System { .. })), "{inside}: {refused:?}");
        }
        for apart in ["", "data/usr"] {
            let home = Home::of(&root.join(apart)).expect("a home");
            home.apart_from(&system).expect(apart);
        }
        for inside in ["/usr/local/no-such-home/at/all", "/usr"] {
            let refused = Home::judge_place(Path::new(inside));
            assert!(matches!(refused, Err(Trespass::System { .. })), "{inside}: {refused:?}");
        }
        Home::judge_place(&root.join("not/there/yet")).expect("it may be there");
    }

    #[test]
    fn a_home_under_another_name_is_known_by_its_number() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = fs::canonicalize(folder.path()).expect("it is there");
        fs::create_dir(root.join("home")).expect("a folder");
        let kept = Home::of(&root.join("home")).expect("a home");
        fs::rename(root.join("home"), root.join("elsewhere")).expect("another name");
        let refused = kept.allow(&reading(&root.join("elsewhere")));
        assert!(matches!(refused, Err(Trespass::Home { .. })), "{refused:?}");
    }
}
