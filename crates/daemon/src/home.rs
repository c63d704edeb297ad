//! The daemon's folder, `$SEMEL_HOME/daemon/<mesh>/` (daemon.md, "Files").
//!
//! Who holds the lock on the open file `lock` owns the folder; no pid and no time-out is asked
//! (trap 14). Reading needs no lock; everything that writes is on [`LockedHome`].

mod durable;
mod files;
mod own;
mod slug;
mod stores;

#[cfg(test)]
mod tests;

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, Mode, OFlags};
use zeroize::Zeroizing;

use crate::limits::{MESHES_LISTED_MAX, SMALL_FILE_BYTES_MAX, SOCKET_PATH_BYTES_MAX};
use durable::{Disk, MachineDisk};

pub use files::HomeFile;
pub use own::check_own;
pub use slug::{MeshSlug, SlugInvalid};
pub use stores::{MadeStores, Presence, StoresError};

/// A link in the place of the file is refused.
const NOFOLLOW: i32 = OFlags::NOFOLLOW.bits().cast_signed();

/// The folder of all daemons below a home.
const DAEMONS: &str = "daemon";

/// What went wrong with the folder or a file in it.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// Somebody else holds the lock.
    #[error("{} is in use: a daemon runs there already", folder.display())]
    Busy {
        /// The folder.
        folder: PathBuf,
    },
    /// Somebody deleted the folder's lock file while we took the lock.
    #[error("{} was replaced while it was being locked; try again", folder.display())]
    Replaced {
        /// The folder.
        folder: PathBuf,
    },
    /// A folder, socket or device where a file should be, or the other way round.
    #[error("{} is not a {expected}", path.display())]
    WrongKind {
        /// What is there.
        path: PathBuf,
        /// What should be there.
        expected: &'static str,
    },
    /// A folder of another user.
    #[error(
        "{} belongs to the user {owner}, and this is the user {ours}\n\
         run semel as the user that the home belongs to, or chown -R it",
        path.display()
    )]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who we are.
        ours: u32,
    },
    /// A link where a folder or a private file of the home must be.
    #[error("{} is a link, which another user may have put there", path.display())]
    Linked {
        /// The link.
        path: PathBuf,
    },
    /// A folder that others can write to.
    #[error(
        "others can write to {} (mode {mode:03o})\n\
         look whether everything in it is yours, then: chmod go-w {}",
        path.display(),
        path.display()
    )]
    Open {
        /// The folder.
        path: PathBuf,
        /// What it allows.
        mode: u32,
    },
    /// More than any such file can need.
    #[error("{} has more than {SMALL_FILE_BYTES_MAX} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The system has no address for a socket there.
    #[error(
        "the path {} is too long for a socket ({SOCKET_PATH_BYTES_MAX} bytes at most); \
         choose a shorter home",
        path.display()
    )]
    SocketPathTooLong {
        /// The socket.
        path: PathBuf,
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

/// For `map_err`: what was done to which path.
fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> HomeError {
    let path = path.to_owned();
    move |source| HomeError::Io { what, path, source }
}

/// A daemon's folder, which may not exist yet.
#[derive(Debug, Clone)]
pub struct Home {
    root: PathBuf,
    mesh: MeshSlug,
    folder: PathBuf,
    disk: Arc<dyn Disk>,
    modes: Modes,
}

/// What becomes of a private file that others could read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Modes {
    Tighten,
    Leave,
}

impl Home {
    /// The folder of this mesh's daemon below the home `root`. Nothing is read or made.
    pub fn at(root: &Path, mesh: &MeshSlug) -> Self {
        Self::on(Arc::new(MachineDisk), root, mesh)
    }

    fn on(disk: Arc<dyn Disk>, root: &Path, mesh: &MeshSlug) -> Self {
        let folder = root.join(DAEMONS).join(mesh.as_str());
        Self { root: root.to_owned(), mesh: mesh.clone(), folder, disk, modes: Modes::Tighten }
    }

    /// The same, for somebody who looks and changes nothing, modes included.
    pub fn untouched(&self) -> Self {
        Self { modes: Modes::Leave, ..self.clone() }
    }

    /// The folders of all meshes on this host, by name, and whether there are more than are
    /// listed. What has no mesh's name is not ours.
    pub fn list(root: &Path) -> Result<(Vec<Self>, Complete), HomeError> {
        let daemons = root.join(DAEMONS);
        let entries = match fs::read_dir(&daemons) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok((Vec::new(), Complete::Yes));
            }
            entries => entries.map_err(io("list", &daemons))?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(io("list", &daemons))?;
            let slug = entry.file_name().to_str().and_then(|name| MeshSlug::parse(name).ok());
            let Some(slug) = slug.filter(|_| entry.path().is_dir()) else { continue };
            if found.len() == MESHES_LISTED_MAX {
                return Ok((sorted(found), Complete::No));
            }
            found.push(Self::at(root, &slug));
        }
        Ok((sorted(found), Complete::Yes))
    }

    /// The folder that a file of this name, relative to the home, is in; nothing when it is of no
    /// mesh.
    pub fn of_name(root: &Path, name: &str) -> Option<Self> {
        let mut parts = name.split('/');
        let (daemons, slug, file) = (parts.next()?, parts.next()?, parts.next());
        let is_daemons = daemons == DAEMONS && file.is_some();
        is_daemons.then(|| MeshSlug::parse(slug).ok().map(|slug| Self::at(root, &slug)))?
    }

    /// The home that it is in.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The mesh's name.
    pub fn mesh(&self) -> &MeshSlug {
        &self.mesh
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where a file of the folder is.
    pub fn path(&self, file: HomeFile) -> PathBuf {
        self.folder.join(file.as_str())
    }

    /// Where the local API's socket is, if the system can have one there.
    pub fn socket_path(&self) -> Result<PathBuf, HomeError> {
        let path = self.path(HomeFile::Socket);
        if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            return Err(HomeError::SocketPathTooLong { path });
        }
        Ok(path)
    }

    /// A small file's bytes, wiped when dropped; `None` when there is no such file. A private file
    /// that others could read is tightened, with a warning.
    pub fn read(&self, file: HomeFile) -> Result<Option<Zeroizing<Vec<u8>>>, HomeError> {
        let path = self.path(file);
        // Without NONBLOCK a named pipe in the file's place would be waited for.
        let mut flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        // What is for its owner alone is in the folder itself, not where a link leads.
        flags.set(OFlags::NOFOLLOW, file.is_private());
        let opened = match rustix::fs::open(&path, flags, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(rustix::io::Errno::LOOP) if path.is_symlink() => {
                return Err(HomeError::Linked { path });
            }
            opened => opened.map_err(|errno| io("open", &path)(errno.into()))?,
        };
        let opened = File::from(opened);
        let metadata = opened.metadata().map_err(io("look at", &path))?;
        if !metadata.is_file() {
            return Err(HomeError::WrongKind { path, expected: "plain file" });
        }
        if self.modes == Modes::Tighten {
            tighten(&opened, metadata.mode(), file, &path);
        }
        let room = usize::try_from(metadata.len().min(SMALL_FILE_BYTES_MAX)).unwrap_or(0);
        // Room for all of it at once: a vector that grows leaves copies of a secret behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(room + 32));
        let mut limited = opened.take(SMALL_FILE_BYTES_MAX + 1);
        let read = limited.read_to_end(&mut bytes).map_err(io("read", &path))?;
        if u64::try_from(read).is_ok_and(|read| read > SMALL_FILE_BYTES_MAX) {
            return Err(HomeError::TooLarge { path });
        }
        Ok(Some(bytes))
    }

    /// Makes the folder where it is missing, and takes its lock for as long as the result lives.
    pub fn lock(self) -> Result<LockedHome, HomeError> {
        self.check_own()?;
        self.create_folders()?;
        let path = self.path(HomeFile::Lock);
        if path.is_symlink() {
            return Err(HomeError::Linked { path });
        }
        let lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(HomeFile::Lock.mode())
            .custom_flags(NOFOLLOW)
            .open(&path)
            .map_err(io("open", &path))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(HomeError::Busy { folder: self.folder });
            }
            locked => locked.map_err(|errno| io("lock", &path)(errno.into()))?,
        }
        if !is_still(&lock, &path).map_err(io("look at", &path))? {
            return Err(HomeError::Replaced { folder: self.folder });
        }
        Ok(LockedHome { home: self, _lock: Lock(lock) })
    }

    /// The names of the folders are synced each time, not only when they are made: the start that
    /// made them may have been cut off before it came to that.
    fn create_folders(&self) -> Result<(), HomeError> {
        if let Some(parent) = self.root.parent() {
            // The parent of a relative name of one part.
            let here = parent.as_os_str().is_empty();
            let parent = if here { Path::new(".") } else { parent };
            // Whoever can write to a parent can put another folder in the home's place.
            let made = DirBuilder::new().recursive(true).mode(0o700).create(parent);
            made.map_err(io("make", parent))?;
            durable::create_folder(&self.root).map_err(io("make", &self.root))?;
            match self.disk.sync_folder(parent) {
                // Whose folder the home is in may not be ours to open.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
                synced => synced.map_err(io("sync", parent))?,
            }
        }
        let daemons = self.root.join(DAEMONS);
        for (folder, parent) in [(&daemons, &self.root), (&self.folder, &daemons)] {
            if !durable::create_folder(folder).map_err(io("make", folder))? {
                let opened = File::open(folder).map_err(io("open", folder))?;
                let mode = opened.metadata().map_err(io("look at", folder))?.mode();
                tighten_to(&opened, mode, 0o700, folder);
            }
            self.disk.sync_folder(parent).map_err(io("sync", parent))?;
        }
        Ok(())
    }
}

/// Whether a list is all there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Complete {
    /// It is.
    Yes,
    /// There is more than is listed.
    No,
}

fn sorted(mut homes: Vec<Home>) -> Vec<Home> {
    homes.sort_by(|a, b| a.mesh.cmp(&b.mesh));
    homes
}

/// Whether the open file is the one of that name. A lock on one that is not keeps nobody out.
fn is_still(opened: &File, path: &Path) -> io::Result<bool> {
    let held = opened.metadata()?;
    match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        named => named.map(|named| (held.dev(), held.ino()) == (named.dev(), named.ino())),
    }
}

/// Takes from others what they may not do with a private file. What cannot be changed (a volume
/// that is mounted read-only) is read all the same.
fn tighten(opened: &File, mode: u32, file: HomeFile, path: &Path) {
    // A link may lead to a device, which others need as it is.
    if file.is_private() && opened.metadata().is_ok_and(|found| found.is_file()) {
        tighten_to(opened, mode, file.mode(), path);
    }
}

fn tighten_to(opened: &File, mode: u32, allowed: u32, path: &Path) {
    let (mode, path) = (mode & 0o777, path.display());
    if mode & !allowed == 0 {
        return;
    }
    let was = format!("{mode:o}");
    match opened.set_permissions(Permissions::from_mode(mode & allowed)) {
        Ok(()) => tracing::warn!(%path, was, "others had access; it was taken away"),
        Err(error) => tracing::warn!(%path, was, %error, "others have access"),
    }
}

/// The folder, while no other daemon can use it. Dropping it gives the lock back; a clean stop is
/// [`LockedHome::stop`].
#[derive(Debug)]
pub struct LockedHome {
    home: Home,
    _lock: Lock,
}

#[derive(Debug)]
struct Lock(File);

impl Drop for Lock {
    /// Closing is not enough: a child that is being started has a copy of the open file until it
    /// runs its program, and would keep the folder in use for that long.
    fn drop(&mut self) {
        // It is closed next in any case.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

impl LockedHome {
    /// The folder.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// Writes a small file; it is on disk, name and all, when this returns.
    pub fn write(&self, file: HomeFile, bytes: &[u8]) -> Result<(), HomeError> {
        let (home, path) = (&self.home, self.home.path(file));
        let written = durable::write(&*home.disk, &home.folder, file.as_str(), file.mode(), bytes);
        written.map_err(io("write", &path))
    }

    /// Removes a small file, if it is there.
    pub fn remove(&self, file: HomeFile) -> Result<(), HomeError> {
        let path = self.home.path(file);
        durable::remove(&path).map_err(io("remove", &path))
    }

    /// Makes a file, empty and with its mode, for somebody who would open it with another mode: a
    /// database takes its mode, and that of its log, from the file it finds.
    pub fn prepare(&self, file: HomeFile) -> Result<PathBuf, HomeError> {
        self.prepare_in(&self.home.folder, file)
    }

    /// Makes the folder for the databases of an ephemeral member, who has nothing to do with those
    /// of another member. Whatever an earlier one has left is gone.
    pub fn prepare_ephemeral(&self) -> Result<PathBuf, HomeError> {
        self.remove_ephemeral()?;
        let folder = self.home.path(HomeFile::Ephemeral);
        durable::create_folder(&folder).map_err(io("make", &folder))?;
        for file in [HomeFile::OutboxDb, HomeFile::InboxDb] {
            self.prepare_in(&folder, file)?;
        }
        Ok(folder)
    }

    fn remove_ephemeral(&self) -> Result<(), HomeError> {
        let folder = self.home.path(HomeFile::Ephemeral);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(io("remove", &folder)),
        }
    }

    fn prepare_in(&self, folder: &Path, file: HomeFile) -> Result<PathBuf, HomeError> {
        let path = folder.join(file.as_str());
        let opened = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(file.mode())
            .custom_flags(NOFOLLOW)
            .open(&path)
            .map_err(io("open", &path))?;
        let mode = opened.metadata().map_err(io("look at", &path))?.mode();
        tighten(&opened, mode, file, &path);
        Ok(path)
    }

    /// Removes what a daemon that was killed has left: nobody else runs here while we hold the
    /// lock, so its socket answers nobody.
    pub fn remove_leftovers(&self) -> Result<(), HomeError> {
        let socket = self.home.path(HomeFile::Socket);
        match fs::symlink_metadata(&socket) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(HomeError::WrongKind { path: socket, expected: "socket" });
            }
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(io("look at", &socket)(error));
            }
            Ok(_) | Err(_) => durable::remove(&socket).map_err(io("remove", &socket))?,
        }
        for file in [HomeFile::HttpPort, HomeFile::Pid] {
            self.remove(file)?;
        }
        // Of an ephemeral member: its key is gone, so nobody can send or read what is in it.
        self.remove_ephemeral()
    }

    /// Tells the host where this daemon is: `pid`, and `http.port` where TCP is on.
    pub fn announce(&self, pid: u32, http_port: Option<u16>) -> Result<(), HomeError> {
        if let Some(port) = http_port {
            self.write(HomeFile::HttpPort, format!("{port}\n").as_bytes())?;
        }
        self.write(HomeFile::Pid, format!("{pid}\n").as_bytes())
    }

    /// A clean stop: takes back what was announced, then gives the lock back.
    pub fn stop(self) -> Result<(), HomeError> {
        self.remove_leftovers()
    }
}

/// A folder whose writer dies at the crash point that its parent named.
#[cfg(test)]
pub(crate) fn crashing(root: &Path, mesh: &str) -> Home {
    let mesh = MeshSlug::parse(mesh).expect("a mesh's name");
    Home::on(Arc::new(tests::Crashing), root, &mesh)
}
