//! Writing a small file so that after a power cut there is the old one or the new one, and after
//! the answer the new one: temporary name in the same folder, fsync, rename, fsync of the folder.
//! Without the last step acknowledged keys were lost (traps 46, 51).

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// The steps, each of which a power cut can follow. There is one implementation in the product;
/// tests cut the power with theirs.
pub(crate) trait Disk: fmt::Debug + Send + Sync {
    /// A new, empty file of exactly this mode.
    fn create(&self, path: &Path, mode: u32) -> io::Result<File>;

    fn write(&self, file: &File, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// The bytes are on disk afterwards; the file's name may not be.
    fn sync(&self, file: &File, path: &Path) -> io::Result<()>;

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// The names in the folder are on disk afterwards.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;
}

/// The machine's disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MachineDisk;

impl Disk for MachineDisk {
    fn create(&self, path: &Path, mode: u32) -> io::Result<File> {
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        // The process's umask may have taken bits away.
        file.set_permissions(Permissions::from_mode(mode))?;
        Ok(file)
    }

    fn write(&self, mut file: &File, _path: &Path, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    fn sync(&self, file: &File, _path: &Path) -> io::Result<()> {
        file.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }
}

/// Writes `folder/name`. The caller holds the folder's lock: the temporary name is always the same,
/// so that crashes leave one at the most.
pub(crate) fn write(
    disk: &dyn Disk,
    folder: &Path,
    name: &str,
    mode: u32,
    bytes: &[u8],
) -> io::Result<()> {
    let new = folder.join(format!(".{name}.new"));
    remove(&new)?;
    let written = disk.create(&new, mode).and_then(|file| {
        disk.write(&file, &new, bytes)?;
        disk.sync(&file, &new)
    });
    if let Err(error) = written.and_then(|()| disk.rename(&new, &folder.join(name))) {
        // Best effort: it may hold half a secret, and the next write removes it too.
        let _ = remove(&new);
        return Err(error);
    }
    disk.sync_folder(folder)
}

/// Deletes a file that may not be there.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Makes a folder that only its owner may enter, unless it is there; `true` when it was made.
pub(crate) fn create_folder(path: &Path) -> io::Result<bool> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {
            fs::set_permissions(path, Permissions::from_mode(0o700))?;
            Ok(true)
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
