//! How much a running gear has on disk. The kernel bounds each of its files; how many there are,
//! and what they come to, is looked at for as long as its process lives.

mod unnamed;

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::beneath::{self, FOLDER};
use super::{Failure, FailureClass};
use crate::limits::{
    ARTIFACT_BYTES_MAX, DISK_LOOK, DISK_LOOKS_AT_ONCE, DISK_MISSED_MAX, FILES_A_LOOK,
    JOB_FILES_BYTES_MAX, LOOK_FOLDERS_OPEN, LOOK_NAMES_BYTES_MAX, WORKSPACE_DEPTH_MAX,
    WORKSPACE_FILES_MAX,
};

/// The unit in which the system counts what a file takes, whatever the disk's blocks are.
const BLOCK: u64 = 512;

/// Looks under way in the whole engine: each holds a few descriptors, and names in memory.
static LOOKS: Semaphore = Semaphore::const_new(DISK_LOOKS_AT_ONCE);

/// What is looked at.
pub(crate) struct Place {
    pub(crate) folder: PathBuf,
    pub(crate) bytes_max: u64,
    /// The process that all others of the gear are below.
    pub(crate) process: Option<u32>,
}

/// Looks at what a process has on disk, until this is dropped.
pub(crate) struct Watch {
    over: watch::Receiver<Option<Failure>>,
    looking: JoinHandle<()>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.looking.abort();
    }
}

impl Watch {
    pub(crate) fn over(place: Place) -> Self {
        let (told, over) = watch::channel(None);
        let looking = tokio::spawn(async move {
            let failure = until_over(place).await;
            told.send_replace(Some(failure));
        });
        Self { over, looking }
    }

    /// Whether there is more than there may be.
    pub(crate) fn is_over(&self) -> bool {
        self.over.borrow().is_some()
    }

    /// Comes back with the reason as soon as there is.
    pub(crate) fn until_over(&self) -> impl Future<Output = Failure> + Send + use<> {
        let mut over = self.over.clone();
        async move {
            let told = over.wait_for(Option::is_some).await.ok().and_then(|told| told.clone());
            // Whoever looked is gone, which is no reason to let it go on unseen.
            told.unwrap_or_else(|| limit("its files are not checked any more".to_owned()))
        }
    }
}

fn limit(text: String) -> Failure {
    Failure::new(FailureClass::ResourceLimit, "disk_limit", text)
}

/// Waits until there is more than there may be. Never, if it stays within its bounds. What cannot
/// be counted counts as too much: otherwise it would be the way around.
async fn until_over(place: Place) -> Failure {
    let place = std::sync::Arc::new(place);
    let (mut missed, mut looks) = (0_u32, 0_u32);
    loop {
        // It is never closed.
        let turn = LOOKS.acquire().await;
        let of = std::sync::Arc::clone(&place);
        // One that has just begun has no files without names yet.
        let unnamed = looks > 0;
        let looked = tokio::task::spawn_blocking(move || look_at(&of, unnamed)).await;
        drop(turn);
        looks = looks.saturating_add(1);
        let looked = looked.unwrap_or_else(|error| Err(io::Error::other(error)));
        let (files, complete) = match looked {
            Ok(Found::Over(text)) => return limit(text),
            Ok(Found::Within { files, complete, .. }) => (files, complete),
            Err(error) => return limit(format!("what it has on disk cannot be counted: {error}")),
        };
        missed = if complete { 0 } else { missed + 1 };
        if missed > DISK_MISSED_MAX {
            return limit("its folders change so often that they cannot be counted".to_owned());
        }
        // A large folder takes long to look at, and is looked at the less often.
        let pause = u32::try_from(files / FILES_A_LOOK).unwrap_or(u32::MAX).saturating_add(1);
        sleep(DISK_LOOK.saturating_mul(pause)).await;
    }
}

fn look_at(place: &Place, unnamed: bool) -> io::Result<Found> {
    let found = look(&place.folder, place.bytes_max)?;
    let Found::Within { bytes, .. } = &found else { return Ok(found) };
    let Some(process) = place.process.filter(|_| unnamed) else { return Ok(found) };
    // The first look has opened the folder, so this one finds it.
    let device = rustix::fs::stat(&place.folder)?.st_dev;
    let all = bytes.saturating_add(unnamed::bytes(process, device)?);
    if all > place.bytes_max {
        let text = "its files have more than";
        let text = format!("{text} {} MB with those without a name", place.bytes_max >> 20);
        return Ok(Found::Over(text));
    }
    Ok(found)
}

/// Where the files are kept that the steps of a job gave, beside its workspace.
pub(crate) fn kept_beside(workspace: &Path) -> PathBuf {
    let name = workspace.file_name().unwrap_or_default();
    workspace.with_file_name("artifacts").join(name)
}

/// How many of so many bytes a job may still have on disk: in its workspace, and of what its steps
/// gave. Asked before the engine writes something for it.
pub(crate) fn room_of_job(workspace: &Path, bytes_max: u64) -> io::Result<u64> {
    let mut left = bytes_max;
    for folder in [workspace, &kept_beside(workspace)] {
        match look(folder, left) {
            Ok(Found::Within { bytes, .. }) => left = left.saturating_sub(bytes),
            Ok(Found::Over(_)) => left = 0,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(left)
}

/// What a copy that had so much room failed of: a file that is too large as such, or the job's
/// files together.
pub(crate) fn told(error: io::Error, room: u64) -> io::Error {
    if error.kind() != io::ErrorKind::FileTooLarge || room >= ARTIFACT_BYTES_MAX {
        return error;
    }
    let text = format!("the files of a job have at most {} MB", JOB_FILES_BYTES_MAX >> 20);
    io::Error::new(io::ErrorKind::QuotaExceeded, text)
}

/// Whether it is the job's files that are too large, and not the system that says so.
pub(crate) fn is_of_job(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::QuotaExceeded && error.raw_os_error().is_none()
}

/// What is in a folder.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// It is within its bounds.
    Within {
        /// Files and folders.
        files: usize,
        /// What they take.
        bytes: u64,
        /// Nothing was moved away while it was looked at.
        complete: bool,
    },
    /// It is not, and this is how.
    Over(String),
}

/// A folder on the way from the top to where the look is.
struct Level {
    name: CString,
    /// Only the nearest ones are open: how deep a gear digs does not cost descriptors.
    open: Option<OwnedFd>,
    /// Folders in it that were not looked at.
    left: Vec<CString>,
}

/// A look at everything below a folder. Links are not followed, and no other disk is counted.
struct Look {
    levels: Vec<Level>,
    bytes: u64,
    bytes_max: u64,
    files: usize,
    /// Of names that wait.
    names: usize,
    complete: bool,
}

fn look(folder: &Path, bytes_max: u64) -> io::Result<Found> {
    let (bytes, files, names) = (0, 0, 0);
    let mut look = Look { levels: Vec::new(), bytes, bytes_max, files, names, complete: true };
    let over = look.enter(CString::default(), beneath::folder(folder)?)?;
    if let Some(text) = over {
        return Ok(Found::Over(text));
    }
    while let Some(level) = look.levels.last_mut() {
        let Some(name) = level.left.pop() else {
            look.levels.pop();
            continue;
        };
        look.names = look.names.saturating_sub(name.as_bytes().len());
        let Some(folder) = look.open(&name)? else { continue };
        if let Some(text) = look.enter(name, folder)? {
            return Ok(Found::Over(text));
        }
    }
    let Look { bytes, files, complete, .. } = look;
    Ok(Found::Within { files, bytes, complete })
}

/// Removed or exchanged meanwhile: the next look counts it.
const GONE: [Errno; 3] = [Errno::NOENT, Errno::NOTDIR, Errno::LOOP];

impl Look {
    /// Opens a folder of the last level; nothing when it is not there any more.
    fn open(&mut self, name: &CString) -> io::Result<Option<OwnedFd>> {
        let flags = FOLDER | OFlags::NOFOLLOW;
        let open = |parent: &OwnedFd, name: &CString| {
            rustix::fs::openat(parent, name, flags, Mode::empty())
        };
        let opened = self.levels.iter().rposition(|level| level.open.is_some());
        let Some(nearest) = opened.and_then(|at| self.levels.get(at)?.open.as_ref()) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let mut folder = nearest.try_clone()?;
        let below = self.levels.iter().skip(opened.map_or(0, |at| at + 1));
        for name in below.map(|level| &level.name).chain([name]) {
            folder = match open(&folder, name) {
                Ok(folder) => folder,
                Err(errno) if GONE.contains(&errno) => {
                    self.complete = false;
                    return Ok(None);
                }
                Err(errno) => {
                    let error = io::Error::from(errno);
                    let text = format!("a folder in it cannot be read: {error}");
                    return Err(io::Error::new(error.kind(), text));
                }
            };
        }
        Ok(Some(folder))
    }

    /// Counts what is in a folder; the reason when it is too much.
    fn enter(&mut self, name: CString, folder: OwnedFd) -> io::Result<Option<String>> {
        let mut left = Vec::new();
        for entry in Dir::read_from(&folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let found = match rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                // Removed meanwhile.
                Err(Errno::NOENT) => continue,
                found => found?,
            };
            self.files += 1;
            let bytes = u64::try_from(found.st_blocks).unwrap_or(0) * BLOCK;
            self.bytes = self.bytes.saturating_add(bytes);
            if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
                self.names += name.to_bytes().len();
                left.push(name.to_owned());
            }
            if let Some(text) = self.is_over() {
                return Ok(Some(text));
            }
        }
        if self.levels.len() >= WORKSPACE_DEPTH_MAX && !left.is_empty() {
            let text = format!("folders are nested more than {WORKSPACE_DEPTH_MAX} deep");
            return Ok(Some(text));
        }
        self.levels.push(Level { name, open: Some(folder), left });
        // The top stays open: everything is found again from there.
        let far = self.levels.len().checked_sub(LOOK_FOLDERS_OPEN).filter(|far| *far > 0);
        if let Some(level) = far.and_then(|far| self.levels.get_mut(far)) {
            level.open = None;
        }
        Ok(None)
    }

    fn is_over(&self) -> Option<String> {
        if self.files > WORKSPACE_FILES_MAX {
            return Some(format!("it has more than {WORKSPACE_FILES_MAX} files"));
        }
        if self.names > LOOK_NAMES_BYTES_MAX {
            return Some("its folders have too many and too long names".to_owned());
        }
        let is_over = self.bytes > self.bytes_max;
        is_over.then(|| format!("its files have more than {} MB", self.bytes_max >> 20))
    }
}

#[cfg(test)]
mod tests;
