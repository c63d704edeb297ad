//! Removes folders that somebody else has filled: by descriptors, so that nothing outside is
//! reached through a link, and without recursion, so that no depth ends the stack or the
//! descriptors (trap 62).
//!
//! The folders of a folder are moved to the top before it is removed. So each is opened at the top,
//! however deep it was, and two descriptors are enough.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

/// Names of a folder that are held in memory.
const NAMES_AT_ONCE: usize = 1024;

/// Removes a folder with everything in it, or a file. What is not there is removed already.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match rustix::fs::unlinkat(CWD, path, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    }
    let top = open(CWD, path)?;
    let mut moved = 0;
    each(&top, |name| match remove_plain(&top, name)? {
        true => Ok(()),
        false => flatten(&top, name, &mut moved),
    })?;
    drop(top);
    rustix::fs::unlinkat(CWD, path, AtFlags::REMOVEDIR)?;
    Ok(())
}

/// Empties a folder of the top, moves its folders beside it, and removes it.
fn flatten(top: &OwnedFd, name: &CString, moved: &mut u64) -> io::Result<()> {
    let folder = open(top, name)?;
    each(&folder, |inner| match remove_plain(&folder, inner)? {
        true => Ok(()),
        false => lift(&folder, inner, top, moved),
    })?;
    drop(folder);
    rustix::fs::unlinkat(top, name, AtFlags::REMOVEDIR)?;
    Ok(())
}

/// Moves a folder to the top, under a name that nobody has there.
fn lift(folder: &OwnedFd, name: &CString, top: &OwnedFd, moved: &mut u64) -> io::Result<()> {
    // To move a folder changes it, too: its `..` is another one.
    drop(open(folder, name)?);
    loop {
        *moved += 1;
        let free = format!(".removed-{moved}");
        match rustix::fs::renameat_with(folder, name, top, free, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(()),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Removes what is no folder, or an empty one; `false` when it is a folder that is not empty.
fn remove_plain(parent: &OwnedFd, name: &CString) -> io::Result<bool> {
    let removed = match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR),
        removed => removed,
    };
    match removed {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST | Errno::ACCESS) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// A folder, open for reading; whatever its maker has forbidden is allowed first.
fn open(parent: impl AsFd, name: impl rustix::path::Arg + Copy) -> io::Result<OwnedFd> {
    let folder = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let named = rustix::fs::openat(&parent, name, folder | OFlags::PATH, Mode::empty())?;
    // Of a descriptor that only names a folder the mode is changed through its own path.
    let own = format!("/proc/self/fd/{}", named.as_raw_fd());
    rustix::fs::chmod(own, Mode::RWXU)?;
    let folder = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(&named, c".", folder, Mode::empty())?)
}

/// Does something with everything in a folder, some names at a time, until nothing is left there.
fn each(folder: &OwnedFd, mut act: impl FnMut(&CString) -> io::Result<()>) -> io::Result<()> {
    loop {
        let mut names = Vec::new();
        for entry in Dir::read_from(folder)? {
            let name = entry?.file_name().to_owned();
            if name.as_c_str() != c"." && name.as_c_str() != c".." {
                names.push(name);
            }
            if names.len() == NAMES_AT_ONCE {
                break;
            }
        }
        if names.is_empty() {
            return Ok(());
        }
        names.iter().try_for_each(&mut act)?;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    use super::*;

    /// Deeper than any path that the kernel takes.
    fn dig(folder: &Path, levels: u32) {
        let mut at =
            rustix::fs::open(folder, OFlags::DIRECTORY, Mode::empty()).expect("it is there");
        for _ in 0..levels {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).expect("a folder");
            let file = OFlags::CREATE | OFlags::WRONLY;
            drop(rustix::fs::openat(&at, "f", file, Mode::RUSR).expect("a file"));
            at = rustix::fs::openat(&at, "d", OFlags::DIRECTORY, Mode::empty()).expect("a folder");
        }
    }

    #[test]
    fn no_depth_is_too_much() {
        let folder = tempfile::tempdir().expect("a folder");
        let deep = folder.path().join("deep");
        fs::create_dir(&deep).expect("a folder");
        dig(&deep, 20_000);
        remove(&deep).expect("it can be removed");
        assert!(!deep.exists());
        remove(&deep).expect("it is gone already");
    }

    #[test]
    fn what_a_link_leads_to_stays_and_forbidden_folders_go() {
        let folder = tempfile::tempdir().expect("a folder");
        let (outside, tree) = (folder.path().join("outside"), folder.path().join("tree"));
        fs::create_dir(&outside).expect("a folder");
        fs::write(outside.join("file"), "mine").expect("a file");
        let inner: PathBuf = tree.join("a/b");
        fs::create_dir_all(inner.join("c/d")).expect("folders");
        symlink(&outside, tree.join("a/link")).expect("a link");
        symlink(&outside, tree.join(".removed-1")).expect("a link");
        fs::set_permissions(inner.join("c"), fs::Permissions::from_mode(0o000)).expect("a mode");
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o500)).expect("a mode");
        let before = fs::metadata(&outside).expect("it is there").permissions().mode();
        remove(&tree).expect("it can be removed");
        assert!(!tree.exists());
        assert_eq!(fs::read_to_string(outside.join("file")).expect("it is there"), "mine");
        assert_eq!(fs::metadata(&outside).expect("it is there").permissions().mode(), before);
        symlink(&outside, &tree).expect("a link");
        remove(&tree).expect("a link is removed itself");
        assert!(outside.join("file").exists());
    }
}
