//! Whether folders of a home are ours alone: whoever else could have prepared one has planted in it
//! what he likes, and is told of what we keep there.

use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{DAEMONS, Home, HomeError};

impl Home {
    /// Refuses folders that somebody else has made, can write to, or has linked elsewhere. What is
    /// not there yet is made by us.
    pub fn check_own(&self) -> Result<(), HomeError> {
        check_own(&self.root, &[DAEMONS.as_ref(), &Path::new(DAEMONS).join(self.mesh.as_str())])
    }
}

/// The same of a home and folders below it. The home itself may be reached through a link.
pub fn check_own(root: &Path, below: &[&Path]) -> Result<(), HomeError> {
    if let Some(found) = there(root, fs::metadata(root))? {
        check(root, &found)?;
    }
    for folder in below {
        let folder = root.join(folder);
        if let Some(found) = there(&folder, fs::symlink_metadata(&folder))? {
            check(&folder, &found)?;
        }
    }
    Ok(())
}

fn there(path: &Path, found: io::Result<Metadata>) -> Result<Option<Metadata>, HomeError> {
    match found {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        found => found.map(Some).map_err(super::io("look at", path)),
    }
}

fn check(folder: &Path, found: &Metadata) -> Result<(), HomeError> {
    let path = folder.to_owned();
    if found.is_symlink() {
        return Err(HomeError::Linked { path });
    }
    if !found.is_dir() {
        return Err(HomeError::WrongKind { path, expected: "folder" });
    }
    let ours = rustix::process::geteuid().as_raw();
    if found.uid() != ours {
        return Err(HomeError::Foreign { path, owner: found.uid(), ours });
    }
    let mode = found.mode() & 0o777;
    if mode & 0o022 != 0 {
        return Err(HomeError::Open { path, mode });
    }
    Ok(())
}
