//! A backup becomes the store again. What was accepted after the backup is lost to it, so that it
//! must not pass for the store it was: it gets a new `store_epoch` before anybody can open it, and
//! daemons then offer what they know was done (mesh.md §10).

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use semel_core::clock::UnixMs;
use semel_store::sqlite::{Alone, OnUncertain};
use semel_store::{OpenError, StoreError};

use super::{APPLICATION_ID, SqliteStore};

/// What becomes of a store that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// It stays; nothing is restored.
    Keep,
    /// It makes room, and is kept as `.replaced`.
    Replace,
}

/// Why a backup was not restored. The store is as it was, unless it says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// There is a store already.
    #[error("there is a store already")]
    Exists,
    /// A broker or another command has it open.
    #[error("the store is open somewhere")]
    InUse,
    /// It is not a file that a backup has written.
    #[error("it is not a backup of a broker's store: {0}")]
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

impl SqliteStore {
    /// Writes a consistent copy to `target`, which must not exist, while the store is in use.
    pub async fn backup_into(&self, target: &Path) -> Result<(), StoreError> {
        self.sqlite.backup_into(target).await
    }

    /// Puts the backup `from` where the store `to` is, as another life of it.
    pub async fn restore(
        from: &Path,
        to: &Path,
        existing: Existing,
        store_epoch: &str,
        now: UnixMs,
        on_uncertain: OnUncertain,
    ) -> Result<(), RestoreError> {
        check_header(from)?;
        if existing == Existing::Keep && to.exists() {
            return Err(RestoreError::Exists);
        }
        let Some(alone) = Alone::with(to)? else { return Err(RestoreError::InUse) };
        let copy = with(to, ".restoring");
        for leftover in leftovers(&copy) {
            let _ = std::fs::remove_file(leftover);
        }
        let io = |source| RestoreError::Io { path: copy.clone(), source };
        std::fs::copy(from, &copy).map_err(io)?;
        let renewed = renew(&copy, store_epoch, now, on_uncertain).await;
        if let Err(error) = renewed {
            for leftover in leftovers(&copy) {
                let _ = std::fs::remove_file(leftover);
            }
            return Err(error);
        }
        alone.replace_with(&copy)?;
        for leftover in leftovers(&copy) {
            let _ = std::fs::remove_file(leftover);
        }
        Ok(())
    }
}

/// Checks the copy, and makes it another store than the one it was copied from.
async fn renew(
    copy: &Path,
    store_epoch: &str,
    now: UnixMs,
    on_uncertain: OnUncertain,
) -> Result<(), RestoreError> {
    let store = SqliteStore::open(copy, store_epoch.to_owned(), now, on_uncertain).await?;
    let complaints = store.sqlite.quick_check().await?;
    let renewed = store.store_renew(store_epoch).await;
    store.close().await;
    if !complaints.is_empty() {
        return Err(RestoreError::Damaged(complaints));
    }
    renewed?;
    // Closing in order leaves no log; a file without its log would lack the new epoch.
    match std::fs::metadata(with(copy, "-wal")) {
        Ok(log) if log.len() > 0 => Err(RestoreError::NotABackup("its log could not be closed")),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Before anything is opened: SQLite would take an empty file for a new store.
fn check_header(from: &Path) -> Result<(), RestoreError> {
    let io = |source| RestoreError::Io { path: from.to_owned(), source };
    let mut header = Vec::new();
    File::open(from).map_err(io)?.take(100).read_to_end(&mut header).map_err(io)?;
    if !header.starts_with(b"SQLite format 3\0") {
        return Err(RestoreError::NotABackup("it is not an SQLite database"));
    }
    if header.get(68..72) != Some(APPLICATION_ID.to_be_bytes().as_slice()) {
        return Err(RestoreError::NotABackup("it belongs to another program"));
    }
    match std::fs::metadata(with(from, "-wal")) {
        Ok(log) if log.len() > 0 => {
            Err(RestoreError::NotABackup("it has a log beside it, so it is a store in use"))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

fn leftovers(copy: &Path) -> [PathBuf; 4] {
    ["", "-wal", "-shm", ".lock"].map(|ending| with(copy, ending))
}

fn with(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}
