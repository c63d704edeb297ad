//! What is done to one file of a home, drawn from a seed: a byte flipped, an end cut off, all of it
//! gone, or an earlier state of the same file put back.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::random::Random;

/// Which damage, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Damage {
    /// The byte at this place, with these bits turned over.
    Flip {
        at: usize,
        bits: u8,
    },
    /// Only so many bytes are left.
    Truncate {
        left: usize,
    },
    Empty,
    Remove,
    /// As it was when the home was stopped the last time but one.
    Older,
}

/// A damage to a file, which is named from the home on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Blow {
    pub(crate) file: PathBuf,
    pub(crate) damage: Damage,
}

impl Blow {
    /// What an error message or a report must name: a log and sums belong to their database.
    pub(crate) fn file_name(&self) -> String {
        let name = self.file.file_name().unwrap_or_default().to_string_lossy();
        let database = name.trim_end_matches("-wal").trim_end_matches("-shm");
        database.trim_end_matches(".lock").trim_end_matches(".sums").to_owned()
    }

    /// Does it to the files below this folder.
    pub(crate) fn strike(&self, home: &Path, older: &Path) -> Result<()> {
        let path = home.join(&self.file);
        let about = || format!("{self:?}");
        match &self.damage {
            Damage::Flip { at, bits } => {
                let mut bytes = fs::read(&path).with_context(about)?;
                if let Some(byte) = bytes.get_mut(*at) {
                    *byte ^= bits;
                }
                fs::write(&path, bytes).with_context(about)
            }
            Damage::Truncate { left } => {
                let file = fs::OpenOptions::new().write(true).open(&path).with_context(about)?;
                file.set_len(*left as u64).with_context(about)
            }
            Damage::Empty => fs::write(&path, b"").with_context(about),
            Damage::Remove => fs::remove_file(&path).with_context(about),
            Damage::Older => {
                fs::copy(older.join(&self.file), &path).map(|_| ()).with_context(about)
            }
        }
    }
}

/// Files of a folder and all below it, with their lengths, by their paths from there on.
pub(crate) fn files(folder: &Path) -> Result<BTreeMap<PathBuf, usize>> {
    let (mut files, mut folders) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next)? {
            let (path, about) = { entry.map(|entry| (entry.path(), entry.metadata()))? };
            let about = about?;
            if about.is_dir() {
                folders.push(path);
            } else if about.is_file() {
                let name = path.strip_prefix(folder)?.to_owned();
                files.insert(name, usize::try_from(about.len())?);
            }
        }
    }
    Ok(files)
}

/// Half of the blows meet databases and their logs, however many other files there are.
pub(crate) fn draw(
    random: &mut Random,
    files: &BTreeMap<PathBuf, usize>,
    older: &BTreeMap<PathBuf, usize>,
) -> Blow {
    let is_store = |file: &&PathBuf| {
        let name = file.to_string_lossy();
        name.ends_with(".db") || name.ends_with(".db-wal")
    };
    let (stores, others): (Vec<&PathBuf>, Vec<&PathBuf>) = files.keys().partition(is_store);
    let kind = if random.below(2) == 0 || others.is_empty() { &stores } else { &others };
    let file = (*random.pick(kind)).clone();
    let length = files.get(&file).copied().unwrap_or(0);
    let damage = match random.below(20) {
        0..12 if length > 0 => {
            Damage::Flip { at: random.below(length), bits: 1 << random.below(8) }
        }
        12..15 if length > 0 => Damage::Truncate { left: random.below(length) },
        15 => Damage::Empty,
        16..18 if older.contains_key(&file) => Damage::Older,
        _ => Damage::Remove,
    };
    Blow { file, damage }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[(&str, usize)]) -> BTreeMap<PathBuf, usize> {
        names.iter().map(|(name, length)| (PathBuf::from(name), *length)).collect()
    }

    #[test]
    fn a_seed_draws_the_same_blows_and_every_kind() {
        let files = named(&[("a.db", 4096), ("a.db-wal", 100), ("key", 32), ("lock", 0)]);
        let older = named(&[("a.db", 2048), ("key", 32)]);
        let draws = |seed| {
            let mut random = Random::new(seed);
            (0..400).map(|_| draw(&mut random, &files, &older)).collect::<Vec<_>>()
        };
        assert_eq!(draws(1), draws(1));
        let drawn = draws(2);
        let count = |is: fn(&Damage) -> bool| drawn.iter().filter(|blow| is(&blow.damage)).count();
        assert!(count(|damage| matches!(damage, Damage::Flip { .. })) > 100);
        assert!(count(|damage| matches!(damage, Damage::Truncate { .. })) > 10);
        for one in [Damage::Empty, Damage::Remove, Damage::Older] {
            assert!(drawn.iter().any(|blow| blow.damage == one), "{one:?}");
        }
        let stores = drawn.iter().filter(|blow| blow.file.to_string_lossy().contains(".db"));
        assert!((150..250).contains(&stores.count()));
    }

    #[test]
    fn a_blow_changes_what_it_says_and_nothing_else() {
        let (home, older) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = PathBuf::from("below/a.db-wal");
        for folder in [&home, &older] {
            fs::create_dir(folder.path().join("below")).unwrap();
        }
        fs::write(older.path().join(&file), b"old").unwrap();
        for (damage, left) in [
            (Damage::Flip { at: 1, bits: 0x20 }, Some(&b"nEw!"[..])),
            (Damage::Truncate { left: 2 }, Some(b"ne")),
            (Damage::Empty, Some(b"")),
            (Damage::Older, Some(b"old")),
            (Damage::Remove, None),
        ] {
            fs::write(home.path().join(&file), b"new!").unwrap();
            let blow = Blow { file: file.clone(), damage };
            assert_eq!(blow.file_name(), "a.db");
            blow.strike(home.path(), older.path()).unwrap();
            let found = fs::read(home.path().join(&file)).ok();
            assert_eq!(found.as_deref(), left, "{blow:?}");
        }
        assert!(files(home.path()).unwrap().is_empty());
    }
}
