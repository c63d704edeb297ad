//! `home.json`: which stores and keys a home has made. One that is in it and not on disk was lost,
//! and is never begun anew by itself (traps.md 67).
//!
//! A store is noted after it was made and before anything is taken into it. Who is killed in
//! between leaves a file that the next start notes; who is killed before that has lost nothing.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use semel_store::sqlite::sums_path;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::durable::{self, MachineDisk};
use crate::limits::SMALL_FILE_BYTES_MAX;

/// Its name in a home.
const HOME_FILE: &str = "home.json";

const VERSION: u32 = 1;

/// Which stores were made, for a home or for one file that is in none.
#[derive(Debug, Clone)]
pub struct MadeStores {
    /// What the names of stores are relative to.
    folder: PathBuf,
    name: String,
}

/// How a store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// There never was one.
    New,
    /// Something is there.
    There,
    /// There was one, and there is no file, or an empty one.
    Lost,
}

/// Why nobody knows which stores were made.
#[derive(Debug, thiserror::Error)]
pub enum StoresError {
    /// The list makes no sense.
    #[error(
        "{} cannot be read: {what}; restore a good copy, or remove it if every store exists",
        path.display()
    )]
    Malformed {
        /// The list.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The file system said no.
    #[error("{} could not be read or written", path.display())]
    Io {
        /// What it was about.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    /// Of the home, for ever.
    id: String,
    /// Raised whenever somebody begins without a store that was lost.
    epoch: u64,
    /// Keys, too. Relative to the folder that the list is in.
    stores: Vec<String>,
}

impl MadeStores {
    /// Of a home.
    pub fn of_home(root: &Path) -> Self {
        Self { folder: root.to_owned(), name: HOME_FILE.to_owned() }
    }

    /// Of one file, wherever it is: beside it.
    pub fn beside(store: &Path) -> Self {
        let folder = store.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).to_owned();
        let name = store.file_name().unwrap_or_default().to_string_lossy();
        Self { folder, name: format!("{name}.json") }
    }

    /// Of the home that a store is in, where there is a list of that.
    pub fn around(store: &Path) -> Option<Self> {
        let home = Self::of_home(store.parent()?.parent()?);
        home.path().exists().then_some(home)
    }

    /// The list's file.
    pub fn path(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    /// How a store is, by the list and by its file.
    pub fn look(&self, store: &Path) -> Result<Presence, StoresError> {
        let there = match fs::metadata(store) {
            Ok(file) => file.len() > 0,
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(source) => return Err(StoresError::Io { path: store.to_owned(), source }),
        };
        let known = self.read()?.is_some_and(|list| list.stores.contains(&self.name_of(store)));
        Ok(match (there, known) {
            (true, _) => Presence::There,
            (false, true) => Presence::Lost,
            (false, false) => Presence::New,
        })
    }

    /// Notes a store that is there now; it is on disk when this returns. `id` is the home's, if it
    /// has none yet.
    pub fn note(&self, store: &Path, id: u128) -> Result<(), StoresError> {
        let _alone = self.lock()?;
        let mut list = self.read()?.unwrap_or(Document {
            version: VERSION,
            id: Uuid::from_u128(id).to_string(),
            epoch: 1,
            stores: Vec::new(),
        });
        let name = self.name_of(store);
        if list.stores.contains(&name) {
            return Ok(());
        }
        list.stores.push(name);
        self.write(&list)
    }

    /// Forgets a store that was lost: the next start begins a new one. `false` when it was not
    /// known.
    pub fn forget(&self, store: &Path) -> Result<bool, StoresError> {
        let _alone = self.lock()?;
        if fs::metadata(store).map_or(0, |file| file.len()) == 0 {
            self.forget_sums(store)?;
        }
        let Some(mut list) = self.read()? else { return Ok(false) };
        let (name, before) = (self.name_of(store), list.stores.len());
        list.stores.retain(|known| *known != name);
        if list.stores.len() == before {
            return Ok(false);
        }
        list.epoch = list.epoch.saturating_add(1);
        self.write(&list)?;
        Ok(true)
    }

    /// A new one is not to be compared with what it was.
    fn forget_sums(&self, store: &Path) -> Result<(), StoresError> {
        match fs::remove_file(sums_path(store)) {
            Err(source) if source.kind() != ErrorKind::NotFound => {
                Err(StoresError::Io { path: sums_path(store), source })
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// What was made here: names, relative to the folder that the list is in.
    pub fn names(&self) -> Result<Vec<String>, StoresError> {
        Ok(self.read()?.map(|list| list.stores).unwrap_or_default())
    }

    fn name_of(&self, store: &Path) -> String {
        let inside = store.strip_prefix(&self.folder).ok();
        let name = inside.or_else(|| store.file_name().map(Path::new)).unwrap_or(store);
        name.to_string_lossy().into_owned()
    }

    /// Daemons of several meshes and an engine share a home. Held for as long as one small write.
    fn lock(&self) -> Result<File, StoresError> {
        let io = |source| StoresError::Io { path: self.folder.clone(), source };
        let folder = File::open(&self.folder).map_err(io)?;
        folder.lock().map_err(io)?;
        Ok(folder)
    }

    fn read(&self) -> Result<Option<Document>, StoresError> {
        let path = self.path();
        let io = |source| StoresError::Io { path: path.clone(), source };
        let malformed = |what: String| StoresError::Malformed { path: path.clone(), what };
        let file = match File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.map_err(io)?,
        };
        let mut bytes = Vec::new();
        file.take(SMALL_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(io)?;
        if bytes.len() as u64 > SMALL_FILE_BYTES_MAX {
            return Err(malformed(format!("it has more than {SMALL_FILE_BYTES_MAX} bytes")));
        }
        let list: Document =
            serde_json::from_slice(&bytes).map_err(|error| malformed(error.to_string()))?;
        match list.version {
            VERSION => Ok(Some(list)),
            version => Err(malformed(format!("version {version} is not known here"))),
        }
    }

    fn write(&self, list: &Document) -> Result<(), StoresError> {
        let path = self.path();
        let text = serde_json::to_string_pretty(list).map_err(|error| StoresError::Malformed {
            path: path.clone(),
            what: error.to_string(),
        })?;
        let text = format!("{text}\n");
        let written =
            durable::write(&MachineDisk, &self.folder, &self.name, 0o600, text.as_bytes());
        written.map_err(|source| StoresError::Io { path, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_lost_only_after_it_was_noted_and_until_it_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("jobs").join("jobs.db");
        fs::create_dir(store.parent().unwrap()).unwrap();
        let made = MadeStores::of_home(folder.path());
        let look = || made.look(&store).unwrap();
        assert_eq!(look(), Presence::New);
        // Prepared, and made, by somebody who was killed before it was noted.
        fs::write(&store, b"").unwrap();
        assert_eq!(look(), Presence::New);
        fs::write(&store, b"SQLite").unwrap();
        assert_eq!(look(), Presence::There);
        fs::remove_file(&store).unwrap();
        assert_eq!(look(), Presence::New, "nothing was in it");
        fs::write(&store, b"SQLite").unwrap();
        for number in 1..3 {
            made.note(&store, number).unwrap();
        }
        assert_eq!(made.read().unwrap().unwrap().id, Uuid::from_u128(1).to_string());
        assert_eq!(made.read().unwrap().unwrap().stores, ["jobs/jobs.db"]);
        assert_eq!(look(), Presence::There);
        fs::write(&store, b"").unwrap();
        assert_eq!(look(), Presence::Lost);
        fs::remove_file(&store).unwrap();
        assert_eq!(look(), Presence::Lost);
        assert!(made.forget(&store).unwrap());
        assert!(!made.forget(&store).unwrap());
        assert_eq!(look(), Presence::New);
        assert_eq!(made.read().unwrap().unwrap().epoch, 2);
    }

    #[test]
    fn a_list_that_makes_no_sense_is_told_and_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("broker.db");
        let made = MadeStores::beside(&store);
        assert_eq!(made.path(), folder.path().join("broker.db.json"));
        made.note(&store, 1).unwrap();
        let good = fs::read(made.path()).unwrap();
        for length in 0..good.len() - 1 {
            fs::write(made.path(), &good[..length]).unwrap();
            assert!(made.look(&store).is_err(), "{length}");
            assert!(made.note(&store, 2).is_err(), "{length}");
        }
        let newer = String::from_utf8(good).unwrap().replace("\"version\": 1", "\"version\": 2");
        fs::write(made.path(), newer).unwrap();
        assert!(matches!(made.look(&store), Err(StoresError::Malformed { .. })));
    }
}
