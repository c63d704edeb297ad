//! A store's file, as another program opens it.

use std::path::{Path, PathBuf};

use rusqlite::Connection;

/// Opens it. What is written there, and what is copied from its log when this is closed, is no
/// damage: the sums beside it are gone, and the next start makes them anew.
pub fn open(path: impl AsRef<Path>) -> rusqlite::Result<Connection> {
    forget_sums(path.as_ref());
    Connection::open(path)
}

/// From now on nobody can tell whether the file was changed, until it is opened in order.
pub fn forget_sums(path: &Path) {
    let mut name = path.as_os_str().to_owned();
    name.push(".sums");
    let _ = std::fs::remove_file(PathBuf::from(name));
}
