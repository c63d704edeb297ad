//! A backup becomes the database again. Everything is done to a copy beside it, which then takes
//! its place: stopped anywhere, there is the old one, or nobody can open it until this is done
//! again.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::{Alone, Sqlite};
use crate::error::chain;
use crate::{OpenError, StoreError, limits};

/// What becomes of a database that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// It stays; nothing is restored.
    Keep,
    /// It makes room, and is kept as `.replaced`, or with a number behind that.
    Replace,
}

/// Why a backup was not restored. The store is as it was, unless it says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// There is a store already.
    #[error("there is a store already: {}", .0.display())]
    Exists(PathBuf),
    /// Somebody has it open.
    #[error("the store {} is open somewhere", .0.display())]
    InUse(PathBuf),
    /// It is not a file that a backup has written.
    #[error("{} is not a backup of such a store: {what}", path.display())]
    NotABackup {
        /// Which file.
        path: PathBuf,
        /// What it is instead.
        what: &'static str,
    },
    /// SQLite finds fault with it.
    #[error("the backup {} is damaged: {}", path.display(), wrong.join("; "))]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        wrong: Vec<String>,
    },
    /// It could not be opened, or the folder not be written.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It could not be read or changed.
    #[error("the backup cannot be used")]
    Store(#[from] StoreError),
    /// A file could not be read or written.
    #[error("{} could not be read or written", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// Puts the backup `from` where the database `to` is. `prepare` gets the copy before that: it makes
/// it another one than it was copied from, and closes it in order.
pub async fn restore<Prepare>(
    from: &Path,
    to: &Path,
    existing: Existing,
    application_id: i32,
    prepare: Prepare,
) -> Result<(), RestoreError>
where
    Prepare: AsyncFnOnce(&Path) -> Result<(), RestoreError>,
{
    // What a link names is replaced, not the link: who serves it has it open under its own name.
    let to = &std::fs::canonicalize(to).unwrap_or_else(|_| to.to_owned());
    check_header(from, application_id)?;
    if existing == Existing::Keep && to.exists() {
        return Err(RestoreError::Exists(to.clone()));
    }
    let Some(alone) = Alone::with(to)? else { return Err(RestoreError::InUse(to.clone())) };
    let copy = with(to, ".restoring");
    remove(&copy);
    let prepared = match copy_private(from, &copy) {
        Ok(()) => prepare(&copy).await.and_then(|()| closed_in_order(&copy, from)),
        Err(error) => Err(error),
    };
    let replaced = prepared.and_then(|()| Ok(alone.replace_with(&copy)?));
    remove(&copy);
    replaced.map_err(|error| about(from, error))
}

/// What is wrong with the copy was wrong with the backup, and the copy is gone by now.
fn about(from: &Path, error: RestoreError) -> RestoreError {
    let path = from.to_owned();
    match error {
        RestoreError::Damaged { wrong, .. } => RestoreError::Damaged { path, wrong },
        RestoreError::Open(OpenError::Damaged { place, what, .. }) => {
            RestoreError::Damaged { path, wrong: vec![format!("{place}: {what}")] }
        }
        RestoreError::Open(OpenError::Sqlite { source, .. }) => {
            let error = OpenError::Sqlite { path: path.clone(), source };
            match error.is_damage() {
                true => RestoreError::Damaged { path, wrong: vec![chain(&error)] },
                false => RestoreError::Open(error),
            }
        }
        RestoreError::Exists(_)
        | RestoreError::InUse(_)
        | RestoreError::NotABackup { .. }
        | RestoreError::Open(_)
        | RestoreError::Store(_)
        | RestoreError::Io { .. } => error,
    }
}

/// Whatever the mode of the backup is, the copy is for its owner alone.
fn copy_private(from: &Path, to: &Path) -> Result<(), RestoreError> {
    let io = |path: &Path, source| RestoreError::Io { path: path.to_owned(), source };
    let mut backup = File::open(from).map_err(|error| io(from, error))?;
    let mut options = OpenOptions::new();
    let copy = options.write(true).create_new(true).mode(0o600).open(to);
    let mut copy = copy.map_err(|error| io(to, error))?;
    let mut bytes = vec![0; limits::COPY_BYTES];
    loop {
        match backup.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(read) => copy.write_all(&bytes[..read]).map_err(|error| io(to, error))?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(io(from, error)),
        }
    }
}

/// What SQLite finds wrong with a copy that was just opened.
pub async fn refuse_damaged(copy: &Sqlite) -> Result<(), RestoreError> {
    let complaints = copy.quick_check().await?;
    match complaints.is_empty() {
        true => Ok(()),
        false => Err(RestoreError::Damaged { path: copy.path.clone(), wrong: complaints }),
    }
}

/// Closing in order leaves no log; a file without its log would lack what was prepared.
fn closed_in_order(copy: &Path, from: &Path) -> Result<(), RestoreError> {
    match std::fs::metadata(with(copy, "-wal")) {
        Ok(log) if log.len() > 0 => Err(not_a_backup(from, "its log could not be closed")),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Before anything is opened: SQLite would take an empty file for a new store.
fn check_header(from: &Path, application_id: i32) -> Result<(), RestoreError> {
    let io = |source| RestoreError::Io { path: from.to_owned(), source };
    let mut header = Vec::new();
    File::open(from).map_err(io)?.take(100).read_to_end(&mut header).map_err(io)?;
    if !header.starts_with(b"SQLite format 3\0") {
        return Err(not_a_backup(from, "it is not an SQLite database"));
    }
    if header.get(68..72) != Some(application_id.to_be_bytes().as_slice()) {
        return Err(not_a_backup(from, "it belongs to another program"));
    }
    match std::fs::metadata(with(from, "-wal")) {
        Ok(log) if log.len() > 0 => {
            Err(not_a_backup(from, "it has a log beside it, so it is a store in use"))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

fn not_a_backup(from: &Path, what: &'static str) -> RestoreError {
    RestoreError::NotABackup { path: from.to_owned(), what }
}

/// The copy, if it is still there, and what was made beside it.
fn remove(copy: &Path) {
    for ending in ["", "-wal", "-shm", ".lock", ".sums"] {
        let _ = std::fs::remove_file(with(copy, ending));
    }
}

fn with(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}
