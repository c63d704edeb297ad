//! What a disk may hold after a power cut: what was synced, for certain; of everything later any
//! part, in any order, torn between sectors.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::record::Event;
use crate::dice::Dice;

const SECTOR: usize = 512;

#[derive(Clone)]
enum Change {
    Write { offset: usize, data: Vec<u8> },
    Truncate { length: usize },
}

/// A file's content, whatever it is called.
#[derive(Default)]
struct Content {
    synced: Vec<u8>,
    later: Vec<(usize, Change)>,
}

/// The files of a folder.
#[derive(Default)]
pub(crate) struct Disk {
    contents: Vec<Content>,
    /// By name: which content it had, from the last that is certain to the last of all.
    names: BTreeMap<String, Vec<(usize, Option<usize>)>>,
}

impl Disk {
    pub(crate) fn apply(&mut self, number: usize, event: &Event) {
        match event {
            Event::Make { file } => {
                let content = Some(self.contents.len());
                self.contents.push(Content::default());
                let states = self.names.entry(file.clone()).or_insert_with(|| vec![(0, None)]);
                states.push((number, content));
            }
            Event::Remove { file } => {
                if let Some(states) = self.names.get_mut(file) {
                    states.push((number, None));
                }
            }
            Event::Write { file, offset, data } => {
                let change = Change::Write { offset: *offset, data: data.clone() };
                self.current(file).later.push((number, change));
            }
            Event::Truncate { file, length } => {
                self.current(file).later.push((number, Change::Truncate { length: *length }));
            }
            Event::Sync { file, began } => {
                let content = self.current(file);
                let certain = content.later.partition_point(|(number, _)| number < began);
                for (_, change) in content.later.drain(..certain) {
                    make(&mut content.synced, &change, &mut |_| true);
                }
            }
            Event::SyncFolder { began } => {
                for states in self.names.values_mut() {
                    let certain = states.partition_point(|(number, _)| number < began);
                    states.drain(..certain.saturating_sub(1));
                }
            }
            Event::Acknowledge(_) => {}
        }
    }

    fn current(&mut self, file: &str) -> &mut Content {
        let (_, content) = *self.names[file].last().expect("a file that was made");
        &mut self.contents[content.expect("a file that is there")]
    }

    /// One of the disks that a power cut now may leave.
    pub(crate) fn write_image(&self, folder: &Path, dice: &mut Dice) {
        let mode = dice.below(3);
        for (name, states) in &self.names {
            let state = match mode {
                0 => states.len() - 1,
                1 => 0,
                _ => dice.below(states.len()),
            };
            if let Some(content) = states[state].1 {
                let bytes = self.contents[content].after_cut(dice);
                fs::write(folder.join(name), bytes).expect("an image");
            }
        }
    }
}

impl Content {
    fn after_cut(&self, dice: &mut Dice) -> Vec<u8> {
        let mut bytes = self.synced.clone();
        let mut later: Vec<&Change> = self.later.iter().map(|(_, change)| change).collect();
        match dice.below(5) {
            // Nothing of it.
            0 => later.clear(),
            // All of it.
            1 => {}
            // Up to a point, and the last one torn.
            2 => {
                later.truncate(dice.below(later.len() + 1));
                if let Some(last) = later.pop() {
                    later.iter().for_each(|change| make(&mut bytes, change, &mut |_| true));
                    make(&mut bytes, last, &mut |_| dice.one_in(2));
                }
                return bytes;
            }
            // Any sector of any.
            3 => {
                later.iter().for_each(|change| make(&mut bytes, change, &mut |_| dice.one_in(2)));
                return bytes;
            }
            // Any of them, in any order.
            _ => {
                for last in (1..later.len()).rev() {
                    later.swap(last, dice.below(last + 1));
                }
                later.retain(|_| dice.one_in(2));
            }
        }
        later.iter().for_each(|change| make(&mut bytes, change, &mut |_| true));
        bytes
    }
}

/// Makes a change, sector by sector where `keeps` says so. A truncation is one sector of its own.
fn make(bytes: &mut Vec<u8>, change: &Change, keeps: &mut dyn FnMut(usize) -> bool) {
    match change {
        Change::Truncate { length } if keeps(0) => bytes.resize(*length, 0),
        Change::Truncate { .. } => {}
        Change::Write { offset, data } => {
            let mut at = 0;
            while at < data.len() {
                let sector = (offset + at) / SECTOR;
                let end = ((sector + 1) * SECTOR - offset).min(data.len());
                if keeps(sector) {
                    if bytes.len() < offset + end {
                        bytes.resize(offset + end, 0);
                    }
                    bytes[offset + at..offset + end].copy_from_slice(&data[at..end]);
                }
                at = end;
            }
        }
    }
}

#[test]
fn what_was_synced_stays_and_the_rest_may_go() {
    let file = || "f".to_owned();
    let write = |offset, byte| Event::Write { file: file(), offset, data: vec![byte; 600] };
    let mut disk = Disk::default();
    disk.apply(0, &Event::Make { file: file() });
    disk.apply(1, &write(0, 1));
    disk.apply(2, &Event::Sync { file: file(), began: 2 });
    disk.apply(3, &write(600, 2));
    let (mut absent, mut lengths) = (false, std::collections::BTreeSet::new());
    for seed in 0..200 {
        let folder = tempfile::tempdir().expect("a folder");
        disk.write_image(folder.path(), &mut Dice::new(seed));
        match fs::read(folder.path().join("f")) {
            Ok(bytes) => {
                assert_eq!(bytes[..600], [1; 600]);
                assert!(bytes[600..].iter().all(|byte| [0, 2].contains(byte)));
                lengths.insert(bytes.len());
            }
            Err(_) => absent = true,
        }
    }
    assert!(absent, "its name was never synced");
    assert_eq!(lengths.into_iter().collect::<Vec<_>>(), [600, 1024, 1200]);
    disk.apply(4, &Event::SyncFolder { began: 4 });
    for seed in 0..50 {
        let folder = tempfile::tempdir().expect("a folder");
        disk.write_image(folder.path(), &mut Dice::new(seed));
        assert!(folder.path().join("f").is_file());
    }
}
