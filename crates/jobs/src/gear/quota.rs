//! How much a running gear has on disk. The kernel bounds each of its files; how many there are,
//! and what they come to, is looked at while it runs.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use tokio::time::sleep;

use super::beneath::{self, FOLDER};
use super::{Failure, FailureClass};
use crate::limits::{DISK_LOOK, FILES_A_LOOK, WORKSPACE_DEPTH_MAX, WORKSPACE_FILES_MAX};

/// The unit in which the system counts what a file takes, whatever the disk's blocks are.
const BLOCK: u64 = 512;

/// Waits until a folder has more in it than it may. Never, if it stays within its bounds.
pub(crate) async fn over(folder: PathBuf, bytes_max: u64) -> Failure {
    loop {
        let place = folder.clone();
        let looked = tokio::task::spawn_blocking(move || look(&place, bytes_max)).await;
        let files = match looked {
            Ok(Ok(Found::Over(text))) => {
                return Failure::new(FailureClass::ResourceLimit, "disk_limit", text);
            }
            Ok(Ok(Found::Within { files })) => files,
            // A folder that cannot be looked at is its gear's affair: what fails there tells of it.
            Ok(Err(_)) | Err(_) => 0,
        };
        // A large folder takes long to look at, and is looked at the less often.
        let looks = u32::try_from(files / FILES_A_LOOK).unwrap_or(u32::MAX).saturating_add(1);
        sleep(DISK_LOOK.saturating_mul(looks)).await;
    }
}

/// What is in a folder.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// It is within its bounds.
    Within {
        /// Files and folders.
        files: usize,
    },
    /// It is not, and this is how.
    Over(String),
}

/// Links are not followed, and as many descriptors are open as folders are inside each other.
fn look(folder: &Path, bytes_max: u64) -> io::Result<Found> {
    let mut path = vec![Dir::new(beneath::folder(folder)?)?];
    let (mut bytes, mut files) = (0_u64, 0_usize);
    while let Some(inside) = path.last_mut() {
        let Some(entry) = inside.next() else {
            path.pop();
            continue;
        };
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let found = match rustix::fs::statat(inside.fd()?, name, AtFlags::SYMLINK_NOFOLLOW) {
            // Removed meanwhile.
            Err(Errno::NOENT) => continue,
            found => found?,
        };
        files += 1;
        bytes = bytes.saturating_add(u64::try_from(found.st_blocks).unwrap_or(0) * BLOCK);
        if files > WORKSPACE_FILES_MAX {
            return Ok(Found::Over(format!("it has more than {WORKSPACE_FILES_MAX} files")));
        }
        if bytes > bytes_max {
            return Ok(Found::Over(format!("its files have more than {} MB", bytes_max >> 20)));
        }
        if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
            continue;
        }
        if path.len() > WORKSPACE_DEPTH_MAX {
            let text = format!("more than {WORKSPACE_DEPTH_MAX} folders are inside each other");
            return Ok(Found::Over(text));
        }
        let flags = FOLDER | OFlags::NOFOLLOW;
        let Some(inside) = path.last() else { break };
        match rustix::fs::openat(inside.fd()?, name, flags, Mode::empty()) {
            Ok(folder) => path.push(Dir::new(folder)?),
            // Removed, exchanged or closed to us meanwhile: the next look counts it.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(Found::Within { files })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_a_folder_has_in_it() {
        let place = tempfile::tempdir().expect("a folder");
        let (folder, outside) = (place.path().join("folder"), place.path().join("outside"));
        fs::create_dir_all(folder.join("a/b")).expect("folders");
        fs::write(&outside, vec![1; 8 << 20]).expect("a file");
        symlink(&outside, folder.join("link")).expect("a link");
        symlink(&folder, folder.join("a/round")).expect("a link");
        fs::write(folder.join("a/b/file"), vec![1; 2 << 20]).expect("a file");
        let look = |bytes_max| look(&folder, bytes_max).expect("a look");
        assert_eq!(look(4 << 20), Found::Within { files: 5 });
        assert_eq!(look(1 << 20), Found::Over("its files have more than 1 MB".to_owned()));
        // A file without content that is long on paper takes nothing.
        let long = fs::File::create(folder.join("long")).expect("a file");
        long.set_len(1 << 40).expect("a length");
        assert_eq!(look(4 << 20), Found::Within { files: 6 });
        let mut deep = folder.clone();
        for _ in 0..WORKSPACE_DEPTH_MAX + 1 {
            deep.push("d");
            fs::create_dir(&deep).expect("a folder");
        }
        let Found::Over(over) = look(4 << 20) else { panic!("it is too deep") };
        assert!(over.contains("inside each other"), "{over}");
    }
}
