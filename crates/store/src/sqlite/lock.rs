//! Who has a file open: everybody holds a shared lock on a second file beside it, and who replaces
//! the database holds it alone. Beside it, because closing any other handle of the database file
//! itself would drop SQLite's own locks in this process.
//!
//! Who serves a database holds a lock on the database file itself, too: it is the same under every
//! name of the file, and stays when somebody deletes the file beside it. It is of another kind
//! (`flock`) than SQLite's, which it does not meet.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::open::{fsync_folder, wal_path};
use super::sums;
use crate::OpenError;

/// What the lock's file holds while a database is being replaced.
const REPLACING: &[u8] = b"a restore is under way\n";

/// Whoever opens a database first has the lock alone while it is looked at, and whoever closes it
/// last does while its log is removed: that is waited for.
const LOCK_LOOKS: u32 = 1000;
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// How often it is looked whether somebody still serves a database.
const SERVE_LOOKS: u32 = 200;

/// A database that nobody has open, for as long as this lives.
pub struct Alone {
    lock: File,
    path: PathBuf,
    /// The database file, which nobody serves.
    _file: Option<Serving>,
}

/// A database that nobody else serves. Every thread that has a connection to it holds this until
/// the connection is closed: closing this before would take SQLite's locks away.
pub(super) struct Serving(pub(super) File);

impl Drop for Serving {
    /// Closing is not enough: a child that is being started has a copy of the open file until it
    /// runs its program.
    fn drop(&mut self) {
        // It is closed next in any case.
        let _ = self.0.unlock();
    }
}

/// Held for as long as a database is served; made where it is missing. A process that is about to
/// end, or looks for a moment, is waited for.
#[expect(clippy::disallowed_methods, reason = "nobody tells when another process unlocks")]
pub(super) fn serve(path: &Path) -> Result<Arc<Serving>, OpenError> {
    let io = |source| OpenError::Io { path: path.to_owned(), source };
    let opened = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path);
    let file = opened.map_err(io)?;
    for _ in 0..SERVE_LOOKS {
        match file.try_lock() {
            Ok(()) if is_still(&file, path).map_err(io)? => return Ok(Arc::new(Serving(file))),
            // Somebody has put another file in its place meanwhile.
            Ok(()) => break,
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
    }
    leave_open(file);
    Err(OpenError::Served { path: path.to_owned() })
}

/// Who holds the lock may be in this process, and closing this would take SQLite's locks from it.
/// It is closed when the process ends, which is next.
fn leave_open(file: File) {
    std::mem::forget(file);
}

/// Whether the open file is the one of that name.
fn is_still(file: &File, path: &Path) -> std::io::Result<bool> {
    let (held, named) = (file.metadata()?, std::fs::metadata(path)?);
    Ok((held.dev(), held.ino()) == (named.dev(), named.ino()))
}

/// A database that is being opened here.
pub(super) struct Entry {
    lock: File,
    path: PathBuf,
    is_first: bool,
}

/// A database that is open here: nobody replaces it meanwhile.
pub(super) struct Sharing(File);

impl Drop for Sharing {
    /// As of [`Serving`].
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

impl Sharing {
    /// Whether nobody else has it open. If so, nobody gets in any more until this is dropped;
    /// otherwise this may hold nothing any more.
    pub(super) fn is_last(&self) -> bool {
        self.0.try_lock().is_ok()
    }
}

/// Waits for whoever has the database for itself: to look at it before it is used, to remove its
/// log, or to replace it.
#[expect(clippy::disallowed_methods, reason = "nobody tells when another process unlocks")]
pub(super) fn enter(path: &Path) -> Result<Entry, OpenError> {
    let lock = open(path)?;
    let io = |source| OpenError::Io { path: beside(path), source };
    for _ in 0..LOCK_LOOKS {
        // Whoever wrote that is at work, or stopped half-way: the database may be missing, or
        // without its log.
        let is_marked = || lock.metadata().is_ok_and(|lock| lock.len() > 0);
        if is_marked() {
            break;
        }
        let is_first = match lock.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Error(source)) => return Err(io(source)),
        };
        let is_in = is_first || is_shared(&lock).map_err(io)?;
        match (is_in, is_marked()) {
            (true, false) => return Ok(Entry { lock, path: path.to_owned(), is_first }),
            (_, true) => break,
            (false, false) => std::thread::sleep(LOCK_PAUSE),
        }
    }
    Err(OpenError::Replacing { path: path.to_owned() })
}

fn is_shared(lock: &File) -> std::io::Result<bool> {
    match lock.try_lock_shared() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(source)) => Err(source),
    }
}

impl Entry {
    /// Whether nobody else has the database open, or can open it before [`Entry::share`].
    pub(super) fn is_first(&self) -> bool {
        self.is_first
    }

    /// Lets others in. Somebody may come first for a moment, because a lock is given back before
    /// another is given.
    #[expect(clippy::disallowed_methods, reason = "nobody tells when another process unlocks")]
    pub(super) fn share(self) -> Result<Sharing, OpenError> {
        let Self { lock, path, is_first: _ } = self;
        for _ in 0..LOCK_LOOKS {
            if is_shared(&lock).map_err(|source| OpenError::Io { path: beside(&path), source })? {
                return Ok(Sharing(lock));
            }
            std::thread::sleep(LOCK_PAUSE);
        }
        Err(OpenError::Replacing { path })
    }
}

/// For whoever has nothing to do as the first.
pub(super) fn share(path: &Path) -> Result<Sharing, OpenError> {
    enter(path)?.share()
}

impl Alone {
    /// Nothing when somebody has the database open.
    pub fn with(path: &Path) -> Result<Option<Self>, OpenError> {
        let lock = open(path)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(source)) => {
                return Err(OpenError::Io { path: beside(path), source });
            }
        }
        // The file beside it may be another one than theirs.
        let io = |source| OpenError::Io { path: path.to_owned(), source };
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Some(Self { lock, path: path.to_owned(), _file: None }));
            }
            Err(error) => return Err(io(error)),
        };
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { lock, path: path.to_owned(), _file: Some(Serving(file)) })),
            Err(TryLockError::WouldBlock) => {
                leave_open(file);
                Ok(None)
            }
            Err(TryLockError::Error(source)) => Err(io(source)),
        }
    }

    /// Puts `new`, a whole database in the same folder, where the old one is. That one is kept
    /// beside it as `.replaced`. Stopped half-way, nobody can open the database until this is done
    /// again.
    pub fn replace_with(mut self, new: &Path) -> Result<(), OpenError> {
        let path = self.path.clone();
        let io = |source| OpenError::Io { path: path.clone(), source };
        File::open(new).and_then(|new| new.sync_all()).map_err(io)?;
        self.lock.write_all(REPLACING).and_then(|()| self.lock.sync_all()).map_err(io)?;
        fsync_folder(&path)?;
        let old = place_of_replaced(&path);
        // A log that belongs to another database would be replayed into this one.
        gone(std::fs::remove_file(wal_path(&old))).map_err(io)?;
        gone(std::fs::rename(&path, &old)).map_err(io)?;
        gone(std::fs::rename(wal_path(&path), wal_path(&old))).map_err(io)?;
        gone(std::fs::remove_file(with(&path, "-shm"))).map_err(io)?;
        // Nor may the new one be compared with what the old one was.
        gone(std::fs::rename(sums::path_of(&path), sums::path_of(&old))).map_err(io)?;
        fsync_folder(&path)?;
        std::fs::rename(new, &path).map_err(io)?;
        fsync_folder(&path)?;
        self.lock.set_len(0).and_then(|()| self.lock.sync_all()).map_err(io)
    }
}

/// Where the database goes that makes room: nothing that made room before is lost for it. One that
/// has gone there already, when this was stopped half-way, is where its log goes, too.
fn place_of_replaced(path: &Path) -> PathBuf {
    let mut last = with(path, ".replaced");
    for number in 2_u32.. {
        if !last.exists() {
            break;
        }
        let next = with(path, &format!(".replaced-{number}"));
        if !path.exists() && !next.exists() {
            break;
        }
        last = next;
    }
    last
}

/// What is not there need not be moved.
fn gone(done: std::io::Result<()>) -> std::io::Result<()> {
    match done {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn open(path: &Path) -> Result<File, OpenError> {
    let lock = OpenOptions::new().create(true).append(true).mode(0o600).open(beside(path));
    lock.map_err(|source| OpenError::Io { path: beside(path), source })
}

fn beside(path: &Path) -> PathBuf {
    with(path, ".lock")
}

fn with(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn whoever_opens_at_the_same_moment_is_let_in() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let together = Barrier::new(4);
        let opener = || {
            let mut refused = 0;
            for _ in 0..500 {
                together.wait();
                let shared = enter(&path).and_then(Entry::share);
                together.wait();
                refused += usize::from(shared.is_err());
            }
            refused
        };
        let refused: usize = std::thread::scope(|scope| {
            let openers: Vec<_> = (0..4).map(|_| scope.spawn(opener)).collect();
            openers.into_iter().map(|opener| opener.join().unwrap()).sum()
        });
        assert_eq!(refused, 0);
    }

    #[test]
    fn a_file_is_served_once_under_all_of_its_names_whatever_is_deleted_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let path = at("a.db");
        let serving = serve(&path).unwrap();
        std::fs::hard_link(&path, at("b.db")).unwrap();
        std::os::unix::fs::symlink(&path, at("c.db")).unwrap();
        drop(share(&path).unwrap());
        std::fs::remove_file(beside(&path)).unwrap();
        for name in ["a.db", "b.db", "c.db"] {
            assert!(matches!(serve(&at(name)), Err(OpenError::Served { .. })), "{name}");
            assert!(Alone::with(&at(name)).unwrap().is_none(), "{name}");
        }
        drop(serving);
        drop(Alone::with(&path).unwrap().unwrap());
        drop(serve(&at("b.db")).unwrap());
    }

    #[test]
    fn whatever_makes_room_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        std::fs::write(&path, "1").unwrap();
        for new in ["2", "3", "4"] {
            let copy = folder.path().join("new");
            std::fs::write(&copy, new).unwrap();
            Alone::with(&path).unwrap().expect("nobody has it").replace_with(&copy).unwrap();
        }
        let kept = ["", ".replaced", ".replaced-2", ".replaced-3"]
            .map(|ending| std::fs::read_to_string(with(&path, ending)).unwrap());
        assert_eq!(kept, ["4", "1", "2", "3"]);
        // Stopped after the database has gone and before its log has.
        std::fs::remove_file(&path).unwrap();
        assert_eq!(place_of_replaced(&path), with(&path, ".replaced-3"));
    }

    #[test]
    fn nobody_opens_what_is_being_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let alone = Alone::with(&path).unwrap().unwrap();
        assert!(matches!(share(&path), Err(OpenError::Replacing { .. })));
        drop(alone);
        drop(share(&path).unwrap());
        std::fs::write(beside(&path), REPLACING).unwrap();
        assert!(matches!(share(&path), Err(OpenError::Replacing { .. })));
    }
}
