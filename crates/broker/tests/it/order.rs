//! A store that goes away keeps nobody's messages in another order (mesh.md §2): what was under way
//! behind a send that was undone is told the same, until that send comes again.

use std::time::Duration;

use semel_core::envelope::{Destination, Envelope, Priority};
use semel_core::fingerprint::Fingerprint;
use semel_testkit::proxy::Fault;
use semel_wire::frame::{FromDaemon, SendFrame};

use crate::answers::set_rate_limit;
use crate::client::{Daemon, send_frame, serve};
use crate::support;

const TOPIC: (&str, &str) = ("topic", "builds");

/// The store is behind the proxy; `needle` is in what is cut off: an id is in the look-up already,
/// a destination only in the transaction.
async fn nothing_overtakes_what_was_undone(needle: &str) {
    let mut fixture = support::postgres().await;
    let (proxy, store) = support::through_a_proxy(&fixture).await;
    fixture.store = store;
    let served = serve(fixture).await;
    let mut daemon = Daemon::welcomed(served.address, 0).await;
    let mut sibling = Daemon::welcomed(served.address, 1).await;

    // How many subscribe to the topic is known from now on.
    assert_eq!(daemon.send(send_frame("before", TOPIC, "hi")).await.status, 201);
    proxy.fail_next(needle, Fault::CutBefore);
    let undone = || send_frame("the-undone-one", TOPIC, "hi");
    assert_eq!(daemon.send(undone()).await.status, 503);
    assert_eq!(proxy.fired(), 1);
    assert_eq!(daemon.send(urgent()).await.status, 201, "another priority has its own order");
    assert_eq!(sibling.send(send_frame("other", TOPIC, "hi")).await.status, 201, "and a sender");
    for id in ["second", "third"] {
        assert_eq!(daemon.send(send_frame(id, TOPIC, "hi")).await.status, 503, "under way");
    }
    for frame in [undone(), send_frame("second", TOPIC, "hi"), send_frame("third", TOPIC, "hi")] {
        assert_eq!(daemon.send(frame).await.status, 201, "in the order of the daemon");
    }
}

fn urgent() -> SendFrame {
    let mut frame = send_frame("urgent", TOPIC, "hi");
    let destination = Destination::new(frame.destination_kind, TOPIC.1).unwrap();
    let envelope = Envelope::new(destination, "hi".into()).unwrap().with_priority(Priority::Now);
    frame.priority = Priority::Now;
    frame.request_fingerprint = Fingerprint::of(&envelope);
    frame
}

#[tokio::test(flavor = "multi_thread")]
async fn when_it_could_not_be_looked_up() {
    nothing_overtakes_what_was_undone("the-undone-one").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_its_transaction_was_undone() {
    nothing_overtakes_what_was_undone(TOPIC.1).await;
}

/// One of many sends is refused by the store and takes its transaction with it. What was handed to
/// the writer behind that transaction is not kept before it has been tried again without the one.
#[tokio::test(flavor = "multi_thread")]
async fn on_sqlite_nothing_overtakes_a_transaction_that_is_tried_again() {
    const SENDS: usize = 300;
    const REFUSED: usize = 100;
    let fixture = support::sqlite().await;
    let refuse = format!(
        "CREATE TRIGGER refuse BEFORE INSERT ON topic_message
           WHEN NEW.client_message_id = '{REFUSED}'
          BEGIN SELECT RAISE(ROLLBACK, 'on purpose'); END"
    );
    fixture.plant(&refuse).await;
    let file = semel_testkit::sqlite::open(fixture.folder().join("broker.db")).unwrap();
    let served = serve(fixture).await;
    let mut daemon = Daemon::welcomed(served.address, 0).await;
    for number in 0..SENDS {
        let frame = send_frame(&number.to_string(), TOPIC, "hi");
        daemon.say(&FromDaemon::Send(frame)).await;
    }
    let mut answers = vec![0; SENDS];
    for _ in 0..SENDS {
        let result = daemon.answer().await;
        answers[result.client_message_id.as_str().parse::<usize>().unwrap()] = result.status;
    }
    assert_eq!(answers.remove(REFUSED), 503);
    // What was lost with it is told to come again, and so is everything behind that.
    let kept = answers.iter().take_while(|status| **status == 201).count();
    assert!(answers[kept..].iter().all(|status| *status == 503), "{answers:?}");
    let mut rows =
        file.prepare("SELECT client_message_id FROM topic_message ORDER BY seq").unwrap();
    let ids = rows.query_map([], |row| row.get::<_, String>(0)).unwrap().map(Result::unwrap);
    let others = (0..SENDS).filter(|number| *number != REFUSED).map(|number| number.to_string());
    assert!(ids.eq(others.take(kept)), "in the order of the daemon");
}

/// A crowd arrives at a transaction that looks up and checks it; who is told to wait there leaves
/// nothing behind, and comes again in order.
#[tokio::test(flavor = "multi_thread")]
async fn on_sqlite_who_is_told_to_wait_in_its_transaction_leaves_nothing() {
    const ALLOWED: usize = 5;
    let ids = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let served = serve(support::sqlite().await).await;
    set_rate_limit(&served, ALLOWED.try_into().unwrap()).await;
    let mut daemon = Daemon::welcomed(served.address, 0).await;
    let statuses = answers_to_all(&mut daemon, &ids).await;
    assert_eq!(statuses, [201, 201, 201, 201, 201, 429, 429, 429]);
    let held = served.fixture.look_up(0, &ids).await;
    assert_eq!(held.iter().filter(|held| held.is_some()).count(), ALLOWED);
    assert_eq!(served.fixture.waiting(1).await, [1, 2, 3, 4, 5]);
    served.clock.advance(Duration::from_secs(3600));
    assert_eq!(answers_to_all(&mut daemon, &ids[ALLOWED..]).await, [201; 3]);
    assert_eq!(served.fixture.waiting(1).await, [1, 2, 3, 4, 5, 6, 7, 8]);
}

/// After a known id sends are looked up before their transaction, and some batches later in it
/// again: where the way changes nobody overtakes anybody.
#[tokio::test(flavor = "multi_thread")]
async fn on_sqlite_known_ids_among_new_ones_change_no_order() {
    const CROWD: usize = 20;
    let served = serve(support::sqlite().await).await;
    let file = semel_testkit::sqlite::open(served.fixture.folder().join("broker.db")).unwrap();
    let mut daemon = Daemon::welcomed(served.address, 0).await;
    let mut new = Vec::new();
    for crowd in 0..200 {
        let mut ids: Vec<_> = (0..CROWD).map(|number| format!("{crowd}-{number}")).collect();
        let known = (crowd > 0 && crowd % 50 == 0).then_some(CROWD / 2);
        if let Some(place) = known {
            ids[place].clone_from(&new[0]);
        }
        let fresh = ids.iter().enumerate().filter(|(place, _)| Some(*place) != known);
        new.extend(fresh.map(|(_, id)| id.clone()));
        let ids: Vec<_> = ids.iter().map(String::as_str).collect();
        let statuses = answers_to_all(&mut daemon, &ids).await;
        for (place, status) in statuses.into_iter().enumerate() {
            assert_eq!(status, if Some(place) == known { 200 } else { 201 }, "{}", ids[place]);
        }
    }
    let mut rows =
        file.prepare("SELECT client_message_id FROM topic_message ORDER BY seq").unwrap();
    let kept = rows.query_map([], |row| row.get::<_, String>(0)).unwrap().map(Result::unwrap);
    assert!(kept.eq(new), "in the order of the daemon");
}

/// All are said before the first answer is read.
async fn answers_to_all(daemon: &mut Daemon, ids: &[&str]) -> Vec<u16> {
    for id in ids {
        daemon.say(&FromDaemon::Send(send_frame(id, TOPIC, "hi"))).await;
    }
    let mut answers = vec![0; ids.len()];
    for _ in ids {
        let result = daemon.answer().await;
        let place = ids.iter().position(|id| *id == result.client_message_id.as_str()).unwrap();
        answers[place] = result.status;
    }
    answers
}

/// Somebody cancels a statement: none of the sends is to blame, and none overtakes another.
#[tokio::test(flavor = "multi_thread")]
async fn on_postgres_nothing_overtakes_what_was_cancelled() {
    const SENDS: usize = 300;
    const CANCELLED: usize = 100;
    let fixture = support::postgres().await;
    let cancel = format!(
        "CREATE FUNCTION mesh.cancel() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN
                IF NEW.client_message_id = '{CANCELLED}' THEN
                    RAISE EXCEPTION 'on purpose' USING ERRCODE = '57014';
                END IF;
                RETURN NEW;
            END $$"
    );
    fixture.plant(&cancel).await;
    let trigger = "CREATE TRIGGER cancel BEFORE INSERT ON mesh.client_message_dedupe
                      FOR EACH ROW EXECUTE FUNCTION mesh.cancel()";
    fixture.plant(trigger).await;
    let served = serve(fixture).await;
    let mut daemon = Daemon::welcomed(served.address, 0).await;
    for number in 0..SENDS {
        let frame = send_frame(&number.to_string(), TOPIC, "hi");
        daemon.say(&FromDaemon::Send(frame)).await;
    }
    let mut answers = vec![0; SENDS];
    for _ in 0..SENDS {
        let result = daemon.answer().await;
        answers[result.client_message_id.as_str().parse::<usize>().unwrap()] = result.status;
    }
    let kept = answers.iter().take_while(|status| **status == 201).count();
    assert!(kept <= CANCELLED, "{kept}");
    assert!(answers[kept..].iter().all(|status| *status == 503), "{answers:?}");
}
