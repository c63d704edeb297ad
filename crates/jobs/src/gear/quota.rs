//! How much a running gear has on disk. The kernel bounds each of its files; how many there are, and
//! what they come to, is looked at while it runs.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use tokio::time::{Instant, sleep};

use super::beneath::{self, FOLDER};
use super::{Failure, FailureClass};
use crate::limits::{DISK_LOOK, WORKSPACE_DEPTH_MAX, WORKSPACE_FILES_MAX};

/// The unit in which the system counts what a file takes, whatever the disk's blocks are.
const BLOCK: u64 = 512;

/// Waits until a folder has more in it than it may. Never, if it stays within its bounds.
pub(crate) async fn over(folder: PathBuf, bytes_max: u64) -> Failure {
    loop {
        let began = Instant::now();
        let place = folder.clone();
        let looked = tokio::task::spawn_blocking(move || excess(&place, bytes_max)).await;
        // A folder that cannot be looked at is its gear's affair: what fails there tells of it.
        if let Ok(Ok(Some(text))) = looked {
            return Failure::new(FailureClass::ResourceLimit, "disk_limit", text);
        }
        // A large folder takes long to look at, and is looked at the less often.
        sleep(began.elapsed().saturating_mul(10).max(DISK_LOOK)).await;
    }
}

/// In what way a folder has more in it than it may. Links are not followed, and as many
/// descriptors are open as folders are inside each other.
pub(crate) fn excess(folder: &Path, bytes_max: u64) -> io::Result<Option<String>> {
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
            return Ok(Some(format!("its folder has more than {WORKSPACE_FILES_MAX} files")));
        }
        if bytes > bytes_max {
            return Ok(Some(format!("its files have more than {} MB", bytes_max >> 20)));
        }
        if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
            continue;
        }
        if path.len() > WORKSPACE_DEPTH_MAX {
            let text = format!("more than {WORKSPACE_DEPTH_MAX} folders are inside each other");
            return Ok(Some(text));
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
    Ok(None)
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
        assert_eq!(excess(&folder, 4 << 20).expect("a look"), None);
        let over = excess(&folder, 1 << 20).expect("a look").expect("too much");
        assert_eq!(over, "its files have more than 1 MB");
        // A file without content that is long on paper takes nothing.
        let long = fs::File::create(folder.join("long")).expect("a file");
        long.set_len(1 << 40).expect("a length");
        assert_eq!(excess(&folder, 4 << 20).expect("a look"), None);
        let mut deep = folder.clone();
        for _ in 0..WORKSPACE_DEPTH_MAX + 1 {
            deep.push("d");
            fs::create_dir(&deep).expect("a folder");
        }
        let over = excess(&folder, 4 << 20).expect("a look").expect("too deep");
        assert!(over.contains("inside each other"), "{over}");
    }
}
