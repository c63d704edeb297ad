//! Power cuts under a broker on SQLite: on every disk that one may leave the store opens, and every
//! accept that was acknowledged before is there with its five effects (mesh.md §2, "atomic").

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use semel_broker::accept::{AcceptItem, Verdict};
use semel_broker::store::Store;
use semel_testkit::dice::Dice;
use semel_testkit::powerloss::{Event, Record, acknowledge, images, over_images};

use crate::support::{self, Fixture, NOW, pubkey};

const IMAGES: usize = 1000;
const ROUNDS: usize = 120;
const TOGETHER_MAX: usize = 6;
const BODY_BYTES_MAX: usize = 3000;

/// An id with all its effects: its message, its history number, and as many deliveries and mentions
/// as a send of its kind has in this mesh.
const WHOLE: &str = "
    SELECT dedupe.client_message_id
      FROM client_message_dedupe AS dedupe
      JOIN message_history AS history USING (mesh_id, broker_message_id)
      JOIN (SELECT seq, count(*) AS count FROM delivery_queue GROUP BY seq) AS deliveries
           USING (seq)
      LEFT JOIN (SELECT seq, count(*) AS count FROM mention_index GROUP BY seq) AS mentions
           USING (seq)
     WHERE (EXISTS (SELECT 1 FROM topic_message AS message
                     WHERE message.mesh_id = dedupe.mesh_id
                       AND message.broker_message_id = dedupe.broker_message_id)
            OR EXISTS (SELECT 1 FROM message_queue AS message
                        WHERE message.mesh_id = dedupe.mesh_id
                          AND message.broker_message_id = dedupe.broker_message_id))
       AND deliveries.count = CASE dedupe.destination_kind WHEN 'topic' THEN 2 ELSE 1 END
       AND COALESCE(mentions.count, 0) = (dedupe.destination_kind = 'topic')";

#[test]
fn every_accept_that_was_acknowledged_survives_every_power_cut_with_all_its_effects() {
    let test = "powerloss::every_accept_that_was_acknowledged_survives_every_power_cut_with_all_\
                its_effects";
    let record = Record::of(test, |folder| runtime().block_on(workload(folder)));
    let writes = |event: &&Event| matches!(event, Event::Write { file, .. } if file == "broker.db");
    let checkpointed = record.events.iter().filter(writes).count();
    assert!(checkpointed > 20, "it was checkpointed under load: {checkpointed}");
    let tally = over_images(&record, images(IMAGES), |folder| runtime().block_on(found(folder)));
    println!("{} recorded events, {tally:?}", record.events.len());
    assert!(tally.acknowledged > tally.images, "{tally:?}");
    assert_eq!(tally.lost, 0, "{tally:?}");
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Batches of sends of every kind; the process ends in the middle of its life.
async fn workload(folder: &Path) {
    let fixture = support::sqlite_in(folder).await;
    let mut dice = Dice::new(7);
    for round in 0..ROUNDS {
        let together = 1 + dice.below(TOGETHER_MAX);
        let items: Vec<AcceptItem> =
            (0..together).map(|number| send(&fixture, &mut dice, round, number)).collect();
        let ids: Vec<String> =
            items.iter().map(|item| item.client_message_id.as_str().to_owned()).collect();
        for (id, verdict) in ids.iter().zip(fixture.accept(items).await) {
            assert!(matches!(verdict, Verdict::Accepted { .. }), "{verdict:?}");
            acknowledge(folder, id);
        }
    }
    std::mem::forget(fixture);
}

fn send(fixture: &Fixture, dice: &mut Dice, round: usize, number: usize) -> AcceptItem {
    let (id, body) = (format!("{round}-{number}"), "x".repeat(dice.below(BODY_BYTES_MAX)));
    let recipient = pubkey(2);
    match dice.below(3) {
        0 => fixture.item(0, &id, ("dm", &recipient), &body),
        1 => fixture.item(1, &id, ("queue", "work"), &body),
        _ => {
            let topic = fixture.item(0, &id, ("topic", "builds"), &body);
            AcceptItem { mentions: vec![pubkey(1)], ..topic }
        }
    }
}

/// What a broker finds: the store opens, nothing has some of its effects and not the others.
async fn found(folder: &Path) -> BTreeSet<String> {
    let store = support::open_sqlite(folder).await;
    if let Some(mesh) = store.mesh_find("test").await.unwrap() {
        let report = store.check(&mesh, NOW).await.unwrap();
        assert!(report.findings().iter().all(|(_, count)| *count == 0), "{report:?}");
    }
    let Store::Sqlite(store) = store else { panic!("it is SQLite") };
    Arc::into_inner(store).unwrap().close().await;
    let file = semel_testkit::sqlite::open(folder.join("broker.db")).unwrap();
    let complaints: String = file.query_row("PRAGMA quick_check", [], |row| row.get(0)).unwrap();
    assert_eq!(complaints, "ok");
    let mut whole = file.prepare(WHOLE).unwrap();
    whole.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}
