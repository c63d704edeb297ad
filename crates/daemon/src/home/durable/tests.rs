//! A disk whose power can be cut after every step, and the two ways of writing that do not
//! survive it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;

use super::*;

/// What a disk claims to do and does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lies {
    Never,
    AboutFiles,
    AboutFolders,
}

/// Beside the real files it keeps what would be left of them. The system may write names to disk
/// earlier than it was asked to, but need not; of bytes that nobody synced nothing is left.
#[derive(Debug)]
struct Fragile {
    lies: Lies,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes, and what is on disk of them.
    files: Vec<(Vec<u8>, Vec<u8>)>,
    names: BTreeMap<PathBuf, usize>,
    names_on_disk: BTreeMap<PathBuf, usize>,
    answered: u32,
    /// After each step: how many writes were answered, and the possible contents of the file.
    left: Vec<(u32, [Option<Vec<u8>>; 2])>,
}

impl Fragile {
    fn step(&self, target: &Path, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock().unwrap();
        change(&mut state);
        let of = |names: &BTreeMap<PathBuf, usize>| {
            names.get(target).map(|file| state.files[*file].1.clone())
        };
        let left = [of(&state.names), of(&state.names_on_disk)];
        let answered = state.answered;
        state.left.push((answered, left));
    }
}

const TARGET: &str = "keypair.json";

fn target(path: &Path) -> PathBuf {
    path.with_file_name(TARGET)
}

impl Disk for Fragile {
    fn create(&self, path: &Path, mode: u32) -> io::Result<File> {
        let file = MachineDisk.create(path, mode)?;
        self.step(&target(path), |state| {
            state.files.push((Vec::new(), Vec::new()));
            state.names.insert(path.to_owned(), state.files.len() - 1);
        });
        Ok(file)
    }

    fn write(&self, file: &File, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.step(&target(path), |state| {
            let file = state.names[path];
            state.files[file].0.extend_from_slice(bytes);
        });
        MachineDisk.write(file, path, bytes)
    }

    fn sync(&self, file: &File, path: &Path) -> io::Result<()> {
        self.step(&target(path), |state| {
            let file = state.names[path];
            if self.lies != Lies::AboutFiles {
                state.files[file].1 = state.files[file].0.clone();
            }
        });
        MachineDisk.sync(file, path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step(to, |state| {
            let file = state.names.remove(from).expect("it was created");
            state.names.insert(to.to_owned(), file);
        });
        MachineDisk.rename(from, to)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        self.step(&folder.join(TARGET), |state| {
            if self.lies != Lies::AboutFolders {
                state.names_on_disk = state.names.clone();
            }
        });
        MachineDisk.sync_folder(folder)
    }
}

/// Whether every possible rest is the old file or the new one, and what was answered is there.
fn survives(lies: Lies) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let disk = Fragile { lies, state: Mutex::default() };
    for text in [b"one", b"two"] {
        write(&disk, folder.path(), TARGET, 0o600, text).unwrap();
        disk.step(&folder.path().join(TARGET), |state| state.answered += 1);
    }
    let state = disk.state.into_inner().unwrap();
    assert_eq!(state.left.len(), 12, "five steps and an answer, twice");
    state.left.iter().all(|(answered, left)| {
        left.iter().all(|left| match (answered, left.as_deref()) {
            (0, None | Some(b"one")) => true,
            (1, Some(b"one" | b"two")) => true,
            (answered, left) => *answered == 2 && left == Some(b"two"),
        })
    })
}

#[test]
fn a_power_cut_leaves_the_old_file_or_the_new_one() {
    assert!(survives(Lies::Never));
}

#[test]
fn without_either_sync_something_answered_is_lost() {
    assert!(!survives(Lies::AboutFiles));
    assert!(!survives(Lies::AboutFolders));
}

#[test]
fn a_write_that_fails_leaves_the_old_file_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    // A folder that is not empty cannot be renamed over.
    fs::create_dir_all(folder.path().join("taken/x")).unwrap();
    write(&MachineDisk, folder.path(), "taken", 0o600, b"secret").expect_err("in the way");
    let names = || fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names().collect::<Vec<_>>(), ["taken"]);
}

#[test]
fn what_a_killed_writer_left_is_in_nobodys_way() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(".a.new"), "half").unwrap();
    write(&MachineDisk, folder.path(), "a", 0o644, b"whole").unwrap();
    assert_eq!(fs::read(folder.path().join("a")).unwrap(), b"whole");
    assert!(!folder.path().join(".a.new").exists());
}
