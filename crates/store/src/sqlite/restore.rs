//! A backup becomes the database again. Everything is done to a copy beside it, which then takes
//! its place: stopped anywhere, there is the old one, or nobody can open it until this is done
//! again.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::{Alone, Sqlite};
use crate::{OpenError, StoreError};

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
    #[error("there is a store already")]
    Exists,
    /// Somebody has it open.
    #[error("the store is open somewhere")]
    InUse,
    /// It is not a file that a backup has written.
    #[error("it is not a backup of such a store: {0}")]
    NotABackup(&'static str),
    /// SQLite finds fault with it.
    #[error("the backup is damaged: {}", .0.join("; "))]
    Damaged(Vec<String>),
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
        return Err(RestoreError::Exists);
    }
    let Some(alone) = Alone::with(to)? else { return Err(RestoreError::InUse) };
    let copy = with(to, ".restoring");
    remove(&copy);
    let io = |source| RestoreError::Io { path: copy.clone(), source };
    copy_private(from, &copy).map_err(io)?;
    let prepared = prepare(&copy).await.and_then(|()| closed_in_order(&copy));
    let replaced = prepared.and_then(|()| Ok(alone.replace_with(&copy)?));
    remove(&copy);
    replaced
}

/// Whatever the mode of the backup is, the copy is for its owner alone.
fn copy_private(from: &Path, to: &Path) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    let mut copy = options.write(true).create_new(true).mode(0o600).open(to)?;
    std::io::copy(&mut File::open(from)?, &mut copy).map(drop)
}

/// What SQLite finds wrong with a copy that was just opened.
pub async fn refuse_damaged(copy: &Sqlite) -> Result<(), RestoreError> {
    let complaints = copy.quick_check().await?;
    if complaints.is_empty() { Ok(()) } else { Err(RestoreError::Damaged(complaints)) }
}

/// Closing in order leaves no log; a file without its log would lack what was prepared.
fn closed_in_order(copy: &Path) -> Result<(), RestoreError> {
    match std::fs::metadata(with(copy, "-wal")) {
        Ok(log) if log.len() > 0 => Err(RestoreError::NotABackup("its log could not be closed")),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Before anything is opened: SQLite would take an empty file for a new store.
fn check_header(from: &Path, application_id: i32) -> Result<(), RestoreError> {
    let io = |source| RestoreError::Io { path: from.to_owned(), source };
    let mut header = Vec::new();
    File::open(from).map_err(io)?.take(100).read_to_end(&mut header).map_err(io)?;
    if !header.starts_with(b"SQLite format 3\0") {
        return Err(RestoreError::NotABackup("it is not an SQLite database"));
    }
    if header.get(68..72) != Some(application_id.to_be_bytes().as_slice()) {
        return Err(RestoreError::NotABackup("it belongs to another program"));
    }
    match std::fs::metadata(with(from, "-wal")) {
        Ok(log) if log.len() > 0 => {
            Err(RestoreError::NotABackup("it has a log beside it, so it is a store in use"))
        }
        Ok(_) | Err(_) => Ok(()),
    }
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
