//! A copy of the database, written under a name that nobody can have foreseen: the folder may be
//! one where others write, too, and what they have put there is neither followed nor written to.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use rustix::fs::{CWD, OFlags, RenameFlags};

use super::open::fsync_folder;
use crate::StoreError;

/// Copies the database to a file that its owner alone can read. It has the name `target` when it is
/// whole and on disk, and not before; nothing is overwritten.
pub(super) fn backup_into(connection: &Connection, target: &Path) -> Result<(), StoreError> {
    let failed = |what: &dyn std::fmt::Display| StoreError::Copy {
        path: target.to_owned(),
        cause: what.to_string().into(),
    };
    // A link that leads nowhere is there, too.
    if fs::symlink_metadata(target).is_ok() {
        return Err(failed(&"it exists already"));
    }
    if sweep(target).map_err(|error| failed(&error))? == Others::AtWork {
        return Err(failed(&"another backup is being written there"));
    }
    let part = part_of(target);
    let name = part.to_str().ok_or_else(|| failed(&"the name is not UTF-8"))?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600).custom_flags(no_links());
    let file = options.open(&part).map_err(|error| failed(&error))?;
    if file.try_lock().is_err() {
        return Err(failed(&"another backup is being written there"));
    }
    let copied = copy_into(connection, &file, name).map_err(|why| failed(&why)).and_then(|()| {
        // SQLite has opened it by its name.
        if !is_still(&file, &part) {
            return Err(failed(&"another file was put in its place"));
        }
        let named = rustix::fs::renameat_with(CWD, &part, CWD, target, RenameFlags::NOREPLACE);
        named.map_err(|error| failed(&error))
    });
    if copied.is_err() {
        // It is of no use to anybody.
        let _ = fs::remove_file(&part);
    }
    copied?;
    fsync_folder(target).map_err(|error| failed(&error))
}

/// `VACUUM INTO` does not sync what it writes, so that is done here.
fn copy_into(connection: &Connection, file: &File, name: &str) -> Result<(), String> {
    let copied = connection.execute("VACUUM INTO ?1", [name]);
    copied.map_err(|error| StoreError::from(error).chain())?;
    file.sync_all().map_err(|error| error.to_string())
}

/// How the names of parts begin.
fn prefix_of(target: &Path) -> OsString {
    let mut prefix = target.file_name().unwrap_or_default().to_owned();
    prefix.push(".part-");
    prefix
}

fn part_of(target: &Path) -> PathBuf {
    let mut name = prefix_of(target);
    // Its keys are from the system's entropy.
    name.push(format!("{:016x}", RandomState::new().hash_one(0)));
    target.with_file_name(name)
}

/// Whether somebody else is making the same backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Others {
    AtWork,
    None,
}

/// Deletes what backups of that name have left that were killed: files of ours that nobody holds.
fn sweep(target: &Path) -> io::Result<Others> {
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty());
    let prefix = prefix_of(target);
    for entry in fs::read_dir(folder.unwrap_or(Path::new(".")))? {
        let entry = entry?;
        if !is_part(&entry.file_name(), &prefix) {
            continue;
        }
        let mut options = OpenOptions::new();
        let opened = options.read(true).custom_flags(no_links()).open(entry.path());
        // A link, or somebody else's.
        let Ok(file) = opened else { continue };
        let found = file.metadata()?;
        if !found.is_file() || found.uid() != rustix::process::geteuid().as_raw() {
            continue;
        }
        if file.try_lock().is_err() {
            return Ok(Others::AtWork);
        }
        if is_still(&file, &entry.path()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(Others::None)
}

fn is_part(name: &OsStr, prefix: &OsStr) -> bool {
    let digits = name.as_bytes().strip_prefix(prefix.as_bytes());
    digits.is_some_and(|digits| digits.len() == 16 && digits.iter().all(u8::is_ascii_hexdigit))
}

/// Neither followed nor, where somebody has put a pipe there, waited for.
fn no_links() -> i32 {
    (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC).bits().cast_signed()
}

fn is_still(opened: &File, path: &Path) -> bool {
    let (Ok(held), Ok(named)) = (opened.metadata(), fs::symlink_metadata(path)) else {
        return false;
    };
    (held.dev(), held.ino()) == (named.dev(), named.ino())
}
