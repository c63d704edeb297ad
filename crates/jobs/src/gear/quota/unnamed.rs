//! Files that have no name any more, or never had one, and live because a process of the gear has
//! them open or in its memory. A walk through its folder does not see them.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::fs::FileType;
use rustix::io::Errno;
use semel_core::clock::{Clock, SystemClock};

use super::BLOCK;
use crate::limits::DISK_LOOK;

/// Processes of this host by those that have started them, each with the time at which it began.
type Children = HashMap<u32, Vec<(u64, u32)>>;

/// What the files without a name take that processes of a sandbox have on this disk. The first of
/// them and its oldest child are stages of ours; what these have started, or have been left, is the
/// gear's. Without namespaces it is the first that orphans are left to.
pub(super) fn bytes(top: u32, device: u64) -> io::Result<u64> {
    let children = children()?;
    let below = |process: &u32| children.get(process).into_iter().flatten().map(|(_, own)| *own);
    let stage = children.get(&top).and_then(|all| all.iter().min()).map(|(_, own)| *own);
    let orphans = below(&top).filter(|child| Some(*child) != stage);
    let mut left: Vec<u32> = orphans.chain(stage.iter().flat_map(below)).collect();
    let (mut all, mut seen) = (0_u64, HashSet::new());
    while let Some(process) = left.pop() {
        left.extend(below(&process));
        let place = Path::new("/proc").join(process.to_string());
        all = all.saturating_add(of(&place, device, &mut seen)?);
    }
    Ok(all)
}

/// What one process has that was not seen yet. Each of its threads may have files of its own, and
/// the first may be gone while others live.
pub(super) fn of(process: &Path, device: u64, seen: &mut HashSet<u64>) -> io::Result<u64> {
    let mut bytes = 0_u64;
    for thread in listed(&process.join("task"))? {
        bytes = bytes.saturating_add(opened(&thread.join("fd"), device, seen)?);
        bytes = bytes.saturating_add(in_memory(&thread.join("maps"), device, seen)?);
    }
    Ok(bytes)
}

/// What is in a folder of a process that may end at any moment.
fn listed(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if is_gone(&error) => return Ok(found),
        Err(error) => return Err(error),
    };
    for entry in entries {
        match entry {
            Ok(entry) => found.push(entry.path()),
            Err(error) if is_gone(&error) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn opened(folder: &Path, device: u64, seen: &mut HashSet<u64>) -> io::Result<u64> {
    let mut bytes = 0_u64;
    for entry in listed(folder)? {
        // Closed meanwhile, and what is no file cannot be looked at.
        let Ok(found) = rustix::fs::stat(&entry) else { continue };
        let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
        let is_unnamed = is_file && found.st_nlink == 0 && found.st_dev == device;
        if is_unnamed && seen.insert(found.st_ino) {
            bytes = bytes.saturating_add(u64::try_from(found.st_blocks).unwrap_or(0) * BLOCK);
        }
    }
    Ok(bytes)
}

/// Closed, and only in memory: as much as it reaches to is counted.
fn in_memory(maps: &Path, device: u64, seen: &mut HashSet<u64>) -> io::Result<u64> {
    let mut bytes = 0_u64;
    let maps = match fs::read_to_string(maps) {
        Ok(maps) => maps,
        Err(error) if is_gone(&error) => return Ok(0),
        Err(error) => return Err(error),
    };
    for (inode, length) in maps.lines().filter_map(|line| mapped(line, device)) {
        if seen.insert(inode) {
            bytes = bytes.saturating_add(length);
        }
    }
    Ok(bytes)
}

/// The file without a name that a part of memory is of, and how far it reaches in there.
fn mapped(line: &str, device: u64) -> Option<(u64, u64)> {
    let mut words = line.strip_suffix(" (deleted)")?.split_ascii_whitespace();
    let (range, _, offset, disk, inode) =
        (words.next()?, words.next()?, words.next()?, words.next()?, words.next()?);
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let (major, minor) = disk.split_once(':')?;
    let part = |text: &str| u32::from_str_radix(text, 16).ok();
    if rustix::fs::makedev(part(major)?, part(minor)?) != device {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    let length = number(end)?.saturating_sub(number(start)?).saturating_add(number(offset)?);
    Some((inode.parse().ok()?, length))
}

fn is_gone(error: &io::Error) -> bool {
    let gone = [Errno::NOENT, Errno::SRCH].map(|errno| Some(errno.raw_os_error()));
    gone.contains(&error.raw_os_error())
}

/// All looks of a moment share one reading of `/proc`.
fn children() -> io::Result<Arc<Children>> {
    static CLOCK: OnceLock<SystemClock> = OnceLock::new();
    static READ: Mutex<Option<(Duration, Arc<Children>)>> = Mutex::new(None);
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    let now = CLOCK.get_or_init(SystemClock::new).monotonic();
    if let Some((at, children)) = &*read
        && now.saturating_sub(*at) < DISK_LOOK / 4
    {
        return Ok(Arc::clone(children));
    }
    let mut children = Children::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let born = number.and_then(|own: u32| Some((own, born(&entry.path())?)));
        if let Some((process, (parent, at))) = born {
            children.entry(parent).or_default().push((at, process));
        }
    }
    let children = Arc::new(children);
    *read = Some((now, Arc::clone(&children)));
    Ok(children)
}

/// Who has started a process, and when; its own name may have anything in it, but ends with the
/// last bracket.
pub(super) fn born(process: &Path) -> Option<(u32, u64)> {
    let stat = fs::read(process.join("stat")).ok()?;
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    let mut rest = rest.split_ascii_whitespace();
    let parent = rest.nth(1)?.parse().ok()?;
    Some((parent, rest.nth(17)?.parse().ok()?))
}
