//! `files.read|write|list`: the job's workspace, and nothing else. The kernel holds the border
//! (`openat2`: beneath the folder, no symbolic link on the way), so no path is checked before it is
//! used by another (trap 36).

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use serde_json::{Value, json};

use super::super::beneath::{self, BENEATH, FOLDER};
use super::super::manifest::{Manifest, Risk};
use super::super::quota;
use super::super::{Call, Desk, Ended, Failure, FailureClass, Gear, Later, Resolution, Stop};
use crate::limits::{ARTIFACT_BYTES_MAX, FILES_LISTED_MAX, INLINE_BYTES_MAX, JOB_FILES_BYTES_MAX};

/// The gear.
pub struct Files(Manifest);

impl Files {
    /// The gear.
    pub fn new() -> Self {
        let path = || json!({"type": "string", "minLength": 1, "maxLength": 4096});
        let read = super::action(
            "Read a file of the workspace, as text or as base64",
            json!({"path": path()}),
            &["path"],
        );
        let content = json!({"path": path(), "text": {"type": "string"},
            "base64": {"type": "string"}});
        let mut write =
            super::action("Write a file of the workspace as a whole", content, &["path"]);
        write.params["oneOf"] = json!([{"required": ["text"]}, {"required": ["base64"]}]);
        write.risk = Risk::Medium;
        let list = super::action(
            "List a folder of the workspace",
            json!({"path": {"type": "string", "maxLength": 4096}}),
            &[],
        );
        Self(super::manifest("files", [("read", read), ("write", write), ("list", list)]))
    }
}

impl Default for Files {
    fn default() -> Self {
        Self::new()
    }
}

impl Gear for Files {
    fn manifest(&self) -> &Manifest {
        &self.0
    }

    fn run<'a>(&'a self, call: Call, _desk: Arc<dyn Desk>, stop: Stop) -> Later<'a, Ended> {
        Box::pin(async move {
            if stop.is_stopped() {
                return super::stopped();
            }
            let ended = tokio::task::spawn_blocking(move || act(&call)).await;
            ended.unwrap_or_else(|error| {
                let class = FailureClass::GearBug;
                Ended::Uncertain(Failure::new(class, "panicked", error.to_string()))
            })
        })
    }

    /// Made when the first file is written.
    fn begins_in_workspace(&self) -> bool {
        false
    }

    fn resolve<'a>(&'a self, _call: Call, _stop: Stop) -> Later<'a, Resolution> {
        Box::pin(async { Resolution::NotDone })
    }
}

/// What is there is no plain file, or no folder.
const WRONG_KINDS: [ErrorKind; 3] =
    [ErrorKind::IsADirectory, ErrorKind::NotADirectory, ErrorKind::InvalidInput];

/// What went wrong, and with which class.
struct Trouble(FailureClass, &'static str, String);

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        let kind = error.kind();
        let (class, code) = if kind == ErrorKind::NotFound {
            (FailureClass::UserError, "no_such_file")
        } else if quota::is_of_job(&error) {
            (FailureClass::ResourceLimit, "disk_limit")
        } else if [ErrorKind::StorageFull, ErrorKind::QuotaExceeded].contains(&kind) {
            (FailureClass::ResourceLimit, "no_space")
        } else if kind == ErrorKind::FileTooLarge {
            (FailureClass::ResourceLimit, "file_too_large")
        } else if kind == ErrorKind::InvalidFilename {
            (FailureClass::UserError, "name_too_long")
        } else if WRONG_KINDS.contains(&kind) {
            (FailureClass::UserError, "wrong_kind")
        } else if is_border(&error) {
            (FailureClass::UserError, "outside_workspace")
        } else {
            (FailureClass::Transient, "io")
        };
        Self(class, code, error.to_string())
    }
}

impl From<rustix::io::Errno> for Trouble {
    fn from(errno: rustix::io::Errno) -> Self {
        std::io::Error::from(errno).into()
    }
}

/// What `openat2` says of a path that leads out, or over a symbolic link.
fn is_border(error: &std::io::Error) -> bool {
    let border = [rustix::io::Errno::XDEV, rustix::io::Errno::LOOP];
    border.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn act(call: &Call) -> Ended {
    let path = super::text(&call.params, "path").unwrap_or(".");
    let root = || rustix::fs::open(&call.workspace, FOLDER, Mode::empty());
    let acted = match call.action.as_str() {
        "read" => root().map_err(Trouble::from).and_then(|root| read(&root, path)),
        "write" => write(&call.workspace, path, &call.params),
        "list" => match root() {
            // Nothing was written yet: that is an empty folder, too.
            Err(rustix::io::Errno::NOENT) if is_all(path) => {
                Ok(json!({"entries": [], "complete": true}))
            }
            root => root.map_err(Trouble::from).and_then(|root| list(&root, path)),
        },
        other => return super::no_such_action(other),
    };
    match acted {
        Ok(value) => super::done(value),
        // Writing again gives the same file: nothing is half done.
        Err(Trouble(class, code, message)) => {
            Ended::Failed(Failure::new(class, code, format!("{path}: {message}")))
        }
    }
}

fn read(root: &OwnedFd, path: &str) -> Result<Value, Trouble> {
    let file = beneath::plain_file(root, Path::new(path))?;
    let mut bytes = Vec::new();
    let limit = u64::try_from(INLINE_BYTES_MAX).unwrap_or(u64::MAX);
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() > INLINE_BYTES_MAX {
        let text = format!("it has more than {INLINE_BYTES_MAX} bytes");
        return Err(Trouble(FailureClass::ResourceLimit, "file_too_large", text));
    }
    let length = bytes.len();
    Ok(match super::text_or_base64(bytes) {
        Ok(text) => json!({"bytes": length, "text": text}),
        Err(encoded) => json!({"bytes": length, "base64": encoded}),
    })
}

/// Whether it names the workspace itself.
fn is_all(path: &str) -> bool {
    Path::new(path).components().all(|part| part == Component::CurDir)
}

fn write(workspace: &Path, path: &str, params: &Value) -> Result<Value, Trouble> {
    let invalid = |text: &str| Trouble(FailureClass::UserError, "invalid", text.to_owned());
    let bytes = match (super::text(params, "text"), super::text(params, "base64")) {
        (Some(text), None) => text.as_bytes().to_vec(),
        (None, Some(encoded)) => {
            STANDARD.decode(encoded).map_err(|_| invalid("this is not base64"))?
        }
        (Some(_), Some(_)) | (None, None) => return Err(invalid("give text or base64")),
    };
    names_of(path)?;
    beneath::make_private(workspace)?;
    let root = beneath::folder(workspace)?;
    let room = quota::room_of_job(workspace, JOB_FILES_BYTES_MAX)?;
    put(&root, path, &mut &*bytes, room)?;
    Ok(json!({"bytes": bytes.len()}))
}

/// Writes a file of a workspace, which is made if it is missing; all of it or nothing. What others
/// have put there does not lead it elsewhere, and together the files of a job have a bound.
pub(in crate::gear) fn keep(
    workspace: &Path,
    path: &str,
    content: &mut impl Read,
) -> std::io::Result<()> {
    beneath::make_private(workspace)?;
    let root = beneath::folder(workspace)?;
    let room = quota::room_of_job(workspace, JOB_FILES_BYTES_MAX)?;
    put(&root, path, content, room).map_err(|Trouble(_, _, text)| std::io::Error::other(text))
}

fn put(root: &OwnedFd, path: &str, content: &mut impl Read, room: u64) -> Result<(), Trouble> {
    let (folder, name) = folder_of(root, path)?;
    match rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile => {
            let text = "there is something other than a plain file";
            return Err(Trouble(FailureClass::UserError, "wrong_kind", text.to_owned()));
        }
        Ok(_) | Err(rustix::io::Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|_| rustix::io::Errno::IO)?;
    let temporary = format!(".semel-{:016x}", u64::from_be_bytes(random));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o600);
    let file = rustix::fs::openat2(&folder, &temporary, flags, mode, BENEATH)?;
    let mut file = File::from(file);
    let written = beneath::copy(content, &mut file, room.min(ARTIFACT_BYTES_MAX), |_| {});
    let written = written.and_then(|_| file.sync_all());
    let written = written.map_err(|error| quota::told(error, room));
    let renamed = written.map_err(Trouble::from).and_then(|()| {
        rustix::fs::renameat(&folder, &temporary, &folder, &name)?;
        Ok(rustix::fs::fsync(&folder)?)
    });
    if renamed.is_err() {
        // Gone already when only the last sync failed.
        let _ = rustix::fs::unlinkat(&folder, &temporary, AtFlags::empty());
    }
    renamed
}

/// The folders of a path and its last name, if it stays inside.
fn names_of(path: &str) -> Result<(Vec<PathBuf>, PathBuf), Trouble> {
    let outside = || {
        let text = "this leads out of the workspace".to_owned();
        Trouble(FailureClass::UserError, "outside_workspace", text)
    };
    let mut names = Vec::new();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => names.push(PathBuf::from(name)),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(outside());
            }
        }
    }
    let name = names.pop().ok_or_else(outside)?;
    Ok((names, name))
}

/// The folder of a path, made where it is missing, and the last name.
fn folder_of(root: &OwnedFd, path: &str) -> Result<(OwnedFd, PathBuf), Trouble> {
    let (names, name) = names_of(path)?;
    let mut folder = root.try_clone()?;
    for part in names {
        match rustix::fs::mkdirat(&folder, &part, Mode::from_raw_mode(0o700)) {
            Ok(()) => rustix::fs::fsync(&folder)?,
            Err(rustix::io::Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        folder = rustix::fs::openat2(&folder, &part, FOLDER, Mode::empty(), BENEATH)?;
    }
    Ok((folder, name))
}

fn list(root: &OwnedFd, path: &str) -> Result<Value, Trouble> {
    let path = if path.is_empty() { "." } else { path };
    let folder = rustix::fs::openat2(root, path, FOLDER, Mode::empty(), BENEATH)?;
    let mut entries = Vec::new();
    let mut complete = true;
    for entry in Dir::read_from(&folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == "." || name == ".." {
            continue;
        }
        if entries.len() == FILES_LISTED_MAX {
            complete = false;
            break;
        }
        // What went away meanwhile is not listed.
        let found = rustix::fs::statat(&folder, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
        let Ok(found) = found else { continue };
        let kind = match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => "file",
            FileType::Directory => "folder",
            FileType::Symlink
            | FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => "other",
        };
        entries.push((name, kind, found.st_size));
    }
    entries.sort();
    let entry = |(name, kind, bytes)| json!({"name": name, "kind": kind, "bytes": bytes});
    let entries: Vec<Value> = entries.into_iter().map(entry).collect();
    Ok(json!({"entries": entries, "complete": complete}))
}

#[cfg(test)]
mod tests;
