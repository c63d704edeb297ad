//! Power cuts: what a workload did to its files is recorded call by call ([`record`]), and from the
//! record come the disks that a power cut may leave at any moment. Each of them is asked for what
//! was acknowledged before.
//!
//! `SEMEL_POWERLOSS_IMAGES` and `SEMEL_POWERLOSS_SEED` say how many and which.

mod disk;
mod record;

use std::collections::BTreeSet;
use std::path::Path;

use crate::dice::Dice;
use disk::Disk;

pub use record::{Event, Record, acknowledge};

const SEED: usize = 1;
const THREADS: usize = 2;

/// What became of the images.
#[derive(Debug, Default)]
pub struct Tally {
    /// How many there were.
    pub images: usize,
    /// Things that were acknowledged before a cut, over all images.
    pub acknowledged: usize,
    /// Those of them that were not there afterwards.
    pub lost: usize,
    /// One of them.
    pub example: Option<String>,
}

/// Cuts the power so many times, anywhere in the record, and asks each image for what it has.
pub fn over_images(record: &Record, images: usize, found: fn(&Path) -> BTreeSet<String>) -> Tally {
    let seed = u64::try_from(number("SEMEL_POWERLOSS_SEED", SEED)).expect("a seed");
    let tallies: Vec<Tally> = std::thread::scope(|scope| {
        let share = |thread: usize| images / THREADS + usize::from(thread < images % THREADS);
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let dice =
                    Dice::new(seed.wrapping_add(u64::try_from(thread).expect("few threads") << 32));
                scope.spawn(move || over_share(record, share(thread), dice, found))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a thread that has seen nothing impossible"))
            .collect()
    });
    tallies.into_iter().fold(Tally::default(), |sum, tally| Tally {
        images: sum.images + tally.images,
        acknowledged: sum.acknowledged + tally.acknowledged,
        lost: sum.lost + tally.lost,
        example: sum.example.or(tally.example),
    })
}

fn over_share(
    record: &Record,
    images: usize,
    mut dice: Dice,
    found: fn(&Path) -> BTreeSet<String>,
) -> Tally {
    let mut cuts: Vec<usize> = (0..images).map(|_| dice.below(record.events.len() + 1)).collect();
    cuts.sort_unstable();
    let (mut disk, mut acknowledged) = (Disk::default(), BTreeSet::new());
    let (mut tally, mut done) = (Tally::default(), 0);
    for cut in cuts {
        while done < cut {
            let event = &record.events[done];
            if let Event::Acknowledge(what) = event {
                acknowledged.insert(what.clone());
            }
            disk.apply(done, event);
            done += 1;
        }
        let folder = memory_folder();
        disk.write_image(folder.path(), &mut dice);
        let found = found(folder.path());
        let lost: Vec<_> = acknowledged.difference(&found).collect();
        tally.images += 1;
        tally.acknowledged += acknowledged.len();
        tally.lost += lost.len();
        if let (None, Some(first)) = (&tally.example, lost.first()) {
            tally.example = Some(format!("cut at event {cut}: {first}"));
        }
    }
    tally
}

/// Images are many and need no disk.
fn memory_folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }
        .expect("a folder")
}

/// How many images are wanted.
pub fn images(otherwise: usize) -> usize {
    number("SEMEL_POWERLOSS_IMAGES", otherwise)
}

fn number(variable: &str, otherwise: usize) -> usize {
    std::env::var(variable).map_or(otherwise, |text| text.parse().expect("a number"))
}
