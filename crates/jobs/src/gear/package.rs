//! Installed gears: `$home/jobs/gear/<id>/package/` and `state.json` beside it.
//!
//! What runs is a private copy, made for one process: its bytes are hashed as they are written
//! into it, so what was checked is what is executed (trap 36), whatever happens to the package
//! meanwhile.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use semel_core::hex::Hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::runtime::{Handle, RuntimeFlavor};

use super::beneath::{self, BENEATH, FOLDER};
use super::document::{Document, FILE, Invalid, PACKAGE};
use super::installed::in_path;
use super::reach::{Home, Trespass};
use super::sandbox::Ability;
use super::secrets::durable_write;
use super::tree;
use crate::limits::{MANIFEST_BYTES_MAX, PACKAGE_BYTES_MAX, PACKAGE_DEPTH_MAX, PACKAGE_FILES_MAX};

/// What went wrong with a package.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    /// Its manifest is none.
    #[error(transparent)]
    Manifest(#[from] Invalid),
    /// It cannot be a package.
    #[error("{}: {why}", path.display())]
    Unfit {
        /// What is wrong.
        path: PathBuf,
        /// Why.
        why: &'static str,
    },
    /// It wants what no gear may have.
    #[error(transparent)]
    Trespass(#[from] Trespass),
    /// It is not what was installed.
    #[error("the package of {id} is not what was installed; install it again")]
    Changed {
        /// Which gear.
        id: String,
    },
    /// The file system said no.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// A verb.
        what: &'static str,
        /// What it was done to.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PackageError {
    let path = path.to_owned();
    move |source| PackageError::Io { what, path, source }
}

/// What is kept beside a package, and for built-in gears that were switched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Whether plans may name it.
    pub enabled: bool,
    /// The hash of everything in the package.
    #[serde(default)]
    pub sha256: String,
    /// What the operator does without, because the host cannot enforce it.
    #[serde(default)]
    pub waived: Vec<String>,
}

/// The folder of all gears of a home.
pub fn folder(root: &Path) -> PathBuf {
    root.join("jobs").join("gear")
}

/// What is kept of a gear; `None` when nothing is.
pub fn state(root: &Path, id: &str) -> Result<Option<State>, PackageError> {
    let path = folder(root).join(id).join("state.json");
    match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        bytes => {
            let bytes = bytes.map_err(io("read", &path))?;
            let state = serde_json::from_slice(&bytes);
            Ok(Some(state.map_err(|error| io("understand", &path)(error.into()))?))
        }
    }
}

/// Keeps something of a gear; it is on disk when this returns.
pub fn set_state(root: &Path, id: &str, state: &State) -> Result<(), PackageError> {
    let folder = folder(root).join(id);
    make(&folder, 0o700)?;
    write_state(&folder, state)
}

fn write_state(folder: &Path, state: &State) -> Result<(), PackageError> {
    let path = folder.join("state.json");
    let bytes = serde_json::to_vec(state).map_err(|error| io("write", &path)(error.into()))?;
    durable_write(folder, "state.json", &bytes).map_err(io("write", &path))
}

/// Names of gears that were installed.
pub fn installed(root: &Path) -> Result<Vec<String>, PackageError> {
    let folder = folder(root);
    let entries = match fs::read_dir(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(io("list", &folder))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(io("list", &folder))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') && entry.path().join("package").is_dir() {
            found.push(name);
        }
    }
    found.sort();
    Ok(found)
}

/// The manifest in a package's folder.
pub fn manifest(package: &Path) -> Result<Document, PackageError> {
    Ok(Document::parse(&manifest_text(package)?)?)
}

/// The same as it is written.
pub(crate) fn manifest_text(package: &Path) -> Result<String, PackageError> {
    let path = package.join(FILE);
    let mut bytes = Vec::new();
    let limit = u64::try_from(MANIFEST_BYTES_MAX).unwrap_or(u64::MAX);
    let file = beneath::plain_file(&opened(package)?, Path::new(FILE));
    let file = file.map_err(io("open", &path))?;
    file.take(limit + 1).read_to_end(&mut bytes).map_err(io("read", &path))?;
    let why = "it is not text";
    String::from_utf8(bytes).map_err(|_| PackageError::Unfit { path, why })
}

/// Installs a package in place of the one of its name. The document comes from the copy. What it
/// declares is judged against the `home` of the engine that will run it.
pub fn install(
    root: &Path,
    home: &Path,
    source: &Path,
    waived: &[Ability],
) -> Result<(Document, State), PackageError> {
    take_in(root, home, source, waived, can_start)
}

/// The same for a look at it: what has not been built yet cannot be started.
pub(crate) fn install_to_look_at(
    root: &Path,
    home: &Path,
    source: &Path,
    waived: &[Ability],
) -> Result<Document, PackageError> {
    take_in(root, home, source, waived, |_, _, _| Ok(())).map(|(document, _)| document)
}

fn take_in(
    root: &Path,
    home: &Path,
    source: &Path,
    waived: &[Ability],
    judge: impl FnOnce(&Document, &Path, &Path) -> Result<(), PackageError>,
) -> Result<(Document, State), PackageError> {
    Home::judge_place(home)?;
    let gears = folder(root);
    make(&gears, 0o700)?;
    let home = Home::of(home).map_err(io("find", home))?;
    let new = Scratch::new(&gears, ".new")?;
    let package = new.0.join("package");
    let sha256 = copy(source, &package)?;
    let document = manifest(&package)?;
    home.allow(&document.permissions)?;
    judge(&document, source, &package)?;
    let waived = waived.iter().map(|ability| ability.as_str().to_owned()).collect();
    let state = State { enabled: true, sha256, waived };
    write_state(&new.0, &state)?;
    let place = gears.join(&document.manifest.id);
    let old = Scratch::new(&gears, ".old")?;
    match fs::rename(&place, old.0.join("gear")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        moved => moved.map_err(io("replace", &place))?,
    }
    fs::rename(&new.0, &place).map_err(io("name", &place))?;
    let synced = File::open(&gears).and_then(|folder| folder.sync_all());
    synced.map_err(io("sync", &gears))?;
    Ok((document, state))
}

/// Whether the program of its command is there, so that the first step does not find out. What it
/// needs to run (libraries, an interpreter's own files) only a trial shows.
fn can_start(document: &Document, source: &Path, copy: &Path) -> Result<(), PackageError> {
    let program = document.command.first().map(String::as_str).unwrap_or_default();
    let (path, why) = if let Some(inside) = program.strip_prefix(PACKAGE) {
        let inside = Path::new(inside.trim_start_matches('/'));
        match fs::metadata(copy.join(inside)) {
            Ok(found) if found.is_file() && found.mode() & 0o100 != 0 => return Ok(()),
            Ok(_) => (source.join(inside), "the program of its command is no file that can be run"),
            Err(_) => (source.join(inside), "the program of its command is not in the package"),
        }
    } else if program.starts_with('/') {
        match fs::metadata(program) {
            Ok(found) if found.is_file() => return Ok(()),
            Ok(_) | Err(_) => (program.into(), "the program of its command is not there"),
        }
    } else if in_path(program).is_some() {
        return Ok(());
    } else {
        (program.into(), "the program of its command is not on this host")
    };
    Err(PackageError::Unfit { path, why })
}

/// A copy of an installed package for one process, of the very bytes that were installed.
pub(crate) fn private_copy(root: &Path, id: &str, to: &Path) -> Result<State, PackageError> {
    let changed = || PackageError::Changed { id: id.to_owned() };
    let state = state(root, id)?.ok_or_else(changed)?;
    let copied = copy(&folder(root).join(id).join("package"), to)?;
    if copied != state.sha256 {
        return Err(changed());
    }
    Ok(state)
}

/// Whether the package of a gear is what was installed.
pub fn check(root: &Path, id: &str) -> Result<(), PackageError> {
    let changed = || PackageError::Changed { id: id.to_owned() };
    let state = state(root, id)?.ok_or_else(changed)?;
    let read = hash(&folder(root).join(id).join("package"))?;
    if read == state.sha256 { Ok(()) } else { Err(changed()) }
}

/// A folder that is removed when it is no longer needed.
#[derive(Debug)]
pub struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(parent: &Path, prefix: &str) -> Result<Self, PackageError> {
        let mut random = [0; 8];
        getrandom::fill(&mut random)
            .map_err(|_| io("name", parent)(io::ErrorKind::Other.into()))?;
        let path = parent.join(format!("{prefix}-{:016x}", u64::from_be_bytes(random)));
        make(&path, 0o700)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    /// A gear may have filled it, and then it takes long: other tasks go on meanwhile.
    fn drop(&mut self) {
        match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
            Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(|| remove(&self.0)),
            Ok(_) | Err(_) => remove(&self.0),
        }
    }
}

/// Removes a tree of ours. What cannot be removed is left for the next start.
pub(crate) fn remove(path: &Path) {
    if let Err(error) = tree::remove(path) {
        tracing::warn!(path = %path.display(), %error, "a folder was not removed");
    }
}

fn make(path: &Path, mode: u32) -> Result<(), PackageError> {
    let made = DirBuilder::new().recursive(true).mode(mode).create(path);
    made.map_err(io("make", path))
}

/// How much may still come.
struct Room {
    files: usize,
    bytes: u64,
}

/// Copies a package and hashes what is read: names, whether they can be run, and contents.
fn copy(from: &Path, to: &Path) -> Result<String, PackageError> {
    read_package(from, Some(to))
}

/// The hash alone.
fn hash(from: &Path) -> Result<String, PackageError> {
    read_package(from, None)
}

fn read_package(from: &Path, to: Option<&Path>) -> Result<String, PackageError> {
    let mut hash = Sha256::new();
    let mut room = Room { files: PACKAGE_FILES_MAX, bytes: PACKAGE_BYTES_MAX };
    let folder = opened(from)?;
    read_folder((&folder, from), to, "", 0, &mut room, &mut hash)?;
    Ok(Hex::<32>(hash.finalize().into()).to_string())
}

/// The folder of a package. Whoever names it may do so by a link; in there, nothing leads out.
fn opened(folder: &Path) -> Result<OwnedFd, PackageError> {
    let opened = rustix::fs::open(folder, FOLDER, Mode::empty());
    opened.map_err(|errno| io("open", folder)(errno.into()))
}

/// The names in a folder.
fn names((folder, path): (&OwnedFd, &Path), room: &mut Room) -> Result<Vec<String>, PackageError> {
    let failed = |errno: Errno| io("list", path)(errno.into());
    let unfit = |why| PackageError::Unfit { path: path.to_owned(), why };
    let mut names = Vec::new();
    for entry in Dir::read_from(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_str().map_err(|_| unfit("a file's name is not text"))?;
        if name == "." || name == ".." {
            continue;
        }
        let left = room.files.checked_sub(1);
        room.files = left.ok_or_else(|| unfit("there are too many files in the package"))?;
        names.push(name.to_owned());
    }
    names.sort();
    Ok(names)
}

fn read_folder(
    (folder, from): (&OwnedFd, &Path),
    to: Option<&Path>,
    name: &str,
    depth: usize,
    room: &mut Room,
    hash: &mut Sha256,
) -> Result<(), PackageError> {
    if depth > PACKAGE_DEPTH_MAX {
        let why = "folders are nested without end";
        return Err(PackageError::Unfit { path: from.to_owned(), why });
    }
    to.map_or(Ok(()), |to| make(to, 0o700))?;
    for entry in names((folder, from), room)? {
        let (source, target) = (from.join(&entry), to.map(|to| to.join(&entry)));
        let failed = |what| {
            let source = source.clone();
            move |errno: Errno| io(what, &source)(errno.into())
        };
        let found = rustix::fs::statat(folder, &entry, AtFlags::SYMLINK_NOFOLLOW);
        let kind = FileType::from_raw_mode(found.map_err(failed("look at"))?.st_mode);
        // What was exchanged since for a link or a pipe is not opened: the kernel goes beneath this
        // folder and nowhere else.
        let open = |flags| {
            let opened = rustix::fs::openat2(folder, &entry, flags, Mode::empty(), BENEATH);
            opened.map_err(failed("open"))
        };
        let path = if name.is_empty() { entry.clone() } else { format!("{name}/{entry}") };
        if kind == FileType::Directory {
            let inner = open(FOLDER | OFlags::NOFOLLOW)?;
            read_folder((&inner, &source), target.as_deref(), &path, depth + 1, room, hash)?;
        } else if kind == FileType::RegularFile {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
            let file = File::from(open(flags)?);
            read_file((file, &source), target.as_deref(), &path, room, hash)?;
        } else {
            let why = "only plain files and folders can be in a package";
            return Err(PackageError::Unfit { path: source, why });
        }
    }
    to.map_or(Ok(()), |to| {
        fs::set_permissions(to, Permissions::from_mode(0o500)).map_err(io("close", to))
    })
}

fn read_file(
    (mut source, from): (File, &Path),
    to: Option<&Path>,
    name: &str,
    room: &mut Room,
    hash: &mut Sha256,
) -> Result<(), PackageError> {
    let found = source.metadata().map_err(io("look at", from))?;
    if !found.is_file() {
        let why = "not a plain file any more";
        return Err(PackageError::Unfit { path: from.to_owned(), why });
    }
    let runs = found.mode() & 0o100 != 0;
    let mode = if runs { 0o500 } else { 0o400 };
    let made = |to: &Path| {
        let target = OpenOptions::new().write(true).create_new(true).mode(mode).open(to);
        target.map_err(io("make", to)).map(|target| (target, to.to_owned()))
    };
    let mut target = to.map(made).transpose()?;
    let mut content = Sha256::new();
    let mut piece = vec![0; 64 << 10];
    let mut length = 0_u64;
    loop {
        let read = source.read(&mut piece).map_err(io("read", from))?;
        if read == 0 {
            break;
        }
        let bytes = u64::try_from(read).unwrap_or(u64::MAX);
        let Some(left) = room.bytes.checked_sub(bytes) else {
            let why = "the package is too large";
            return Err(PackageError::Unfit { path: from.to_owned(), why });
        };
        room.bytes = left;
        length += bytes;
        let piece = piece.get(..read).unwrap_or_default();
        content.update(piece);
        if let Some((target, to)) = &mut target {
            target.write_all(piece).map_err(io("write", to))?;
        }
    }
    // Lengths first, so that no two packages read the same.
    let name_length = u64::try_from(name.len()).unwrap_or(u64::MAX);
    hash.update(name_length.to_be_bytes());
    hash.update(name.as_bytes());
    hash.update([u8::from(runs)]);
    hash.update(length.to_be_bytes());
    hash.update(content.finalize());
    Ok(())
}

#[cfg(test)]
mod tests;
