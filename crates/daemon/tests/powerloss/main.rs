//! Power cuts under a daemon: on every disk that one may leave both databases open, and everything
//! that was acknowledged before is there.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod workload;

use semel_testkit::powerloss::{Event, Record, images, over_images};

const IMAGES: usize = 2000;
const CONTROL_IMAGES: usize = 300;

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
    let tally = over_images(&record, images(IMAGES), workload::found);
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
