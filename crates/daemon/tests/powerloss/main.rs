//! Power cuts: what a workload did to its files is recorded call by call, and from the record come
//! the disks that a power cut may leave at any moment. On each of them both databases open, and
//! everything that was acknowledged before is there.
//!
//! `SEMEL_POWERLOSS_IMAGES` and `SEMEL_POWERLOSS_SEED` say how many and which.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod disk;
mod record;
mod workload;

use std::collections::BTreeSet;
use std::path::Path;

use disk::{Disk, Random};
use record::{Event, Record};

const IMAGES: usize = 2000;
const CONTROL_IMAGES: usize = 300;
const SEED: usize = 1;
const THREADS: usize = 2;

/// What became of the images.
#[derive(Debug, Default)]
struct Tally {
    images: usize,
    /// Things that were acknowledged before a cut, over all images.
    acknowledged: usize,
    /// Those of them that were not there afterwards.
    lost: usize,
    /// One of them.
    example: Option<String>,
}

#[test]
fn whatever_was_acknowledged_survives_every_power_cut() {
    let record = Record::of("whatever_was_acknowledged_survives_every_power_cut", |folder| {
        workload::run(folder);
    });
    for name in ["outbox.db", "inbox.db"] {
        let writes = |event: &&Event| matches!(event, Event::Write { file, .. } if file == name);
        let checkpointed = record.events.iter().filter(writes).count();
        assert!(checkpointed > 20, "{name} was checkpointed under load: {checkpointed}");
    }
    let tally = over_images(&record, number("SEMEL_POWERLOSS_IMAGES", IMAGES), workload::found);
    println!("{} recorded events, {tally:?}", record.events.len());
    assert!(tally.acknowledged > tally.images, "{tally:?}");
    assert_eq!(tally.lost, 0, "{tally:?}");
}

#[test]
fn a_log_that_is_not_synced_loses_what_was_acknowledged() {
    let test = "a_log_that_is_not_synced_loses_what_was_acknowledged";
    let record = Record::of(test, |folder| workload::control(folder, "NORMAL"));
    let tally = over_images(&record, CONTROL_IMAGES, workload::control_found);
    println!("{tally:?}");
    assert!(tally.lost > 0, "the images are too kind: {tally:?}");
}

#[test]
fn a_log_that_is_synced_does_not() {
    let test = "a_log_that_is_synced_does_not";
    let record = Record::of(test, |folder| workload::control(folder, "FULL"));
    let tally = over_images(&record, CONTROL_IMAGES, workload::control_found);
    assert!(tally.acknowledged > 0 && tally.lost == 0, "the images are too cruel: {tally:?}");
}

/// Cuts the power so many times, anywhere in the record, and asks each image for what it has.
fn over_images(record: &Record, images: usize, found: fn(&Path) -> BTreeSet<String>) -> Tally {
    let seed = u64::try_from(number("SEMEL_POWERLOSS_SEED", SEED)).unwrap();
    let tallies: Vec<Tally> = std::thread::scope(|scope| {
        let share = |thread: usize| images / THREADS + usize::from(thread < images % THREADS);
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let random = Random(seed.wrapping_add(u64::try_from(thread).unwrap() << 32));
                scope.spawn(move || over_share(record, share(thread), random, found))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
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
    mut random: Random,
    found: fn(&Path) -> BTreeSet<String>,
) -> Tally {
    let mut cuts: Vec<usize> = (0..images).map(|_| random.below(record.events.len() + 1)).collect();
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
        disk.write_image(folder.path(), &mut random);
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
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap()
}

fn number(variable: &str, otherwise: usize) -> usize {
    std::env::var(variable).map_or(otherwise, |text| text.parse().unwrap())
}
