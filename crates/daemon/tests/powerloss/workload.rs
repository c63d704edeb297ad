//! What is recorded, and what is looked for afterwards: a daemon's outbox and inbox in use, and for
//! comparison a table of which SQLite is told how much to sync.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use futures_util::future::join_all;
use semel_core::clock::{Clock, SystemClock, UnixMs};
use semel_core::envelope::{Destination, DestinationKind, Envelope, Priority};
use semel_core::id::{ClientMessageId, InstanceId, UuidId};
use semel_core::mint::IdMint;
use semel_daemon::inbox::Inbox;
use semel_daemon::outbox::{NewSend, Outbox, Room};
use semel_daemon::store::inbox::{Arrived, Filter, Way};
use semel_daemon::store::outbox::Draft;
use semel_daemon::store::upkeep::Which;
use semel_store::sqlite::OnUncertain;
use uuid::Uuid;

use semel_testkit::dice::Dice;
use semel_testkit::powerloss::acknowledge;

/// Rounds before the files are closed in order, and after they were opened again.
const ROUNDS: [usize; 2] = [15, 60];
const TOGETHER_MAX: usize = 6;
const BODY_BYTES_MAX: usize = 3000;
const CONTROL_ROWS: usize = 100;
const ALL: i64 = 1_000_000;

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::new())
}

fn on_uncertain() -> OnUncertain {
    Arc::new(|error| panic!("{error}"))
}

async fn open(folder: &Path) -> (Outbox, Inbox) {
    let instance_id: InstanceId = UuidId::new(Uuid::from_u128(1));
    let entropy = Box::new(|| Uuid::new_v4().as_u128());
    let mint = Arc::new(IdMint::new(clock(), entropy));
    let path = folder.join("outbox.db");
    let room = Room { bytes_max: u64::MAX, reserved_bytes: 0 };
    let outbox =
        Outbox::open(&path, instance_id, room, mint, clock(), on_uncertain()).await.unwrap();
    let opened = Inbox::open(&folder.join("inbox.db"), clock(), on_uncertain()).unwrap();
    assert_eq!(opened.set_aside, None, "the inbox was not damaged");
    (outbox, opened.inbox)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Sends and arrivals, several at a time, over two lives of the files.
pub(crate) fn run(folder: &Path) {
    runtime().block_on(async {
        let mut dice = Dice::new(7);
        for (life, rounds) in ROUNDS.into_iter().enumerate() {
            let (outbox, inbox) = open(folder).await;
            for round in 0..rounds {
                let together = 1 + dice.below(TOGETHER_MAX);
                let bodies: Vec<usize> =
                    (0..2 * together).map(|_| dice.below(BODY_BYTES_MAX)).collect();
                let sends = (0..together).map(|number| {
                    send(&outbox, folder, format!("{life}-{round}-{number}"), bodies[number])
                });
                let arrivals: Vec<Arrived> = (0..together)
                    .map(|number| {
                        let seq = i64::try_from(10 * (1000 * life + round) + number).unwrap();
                        arrival(&format!("{life}-{round}-{number}"), seq, bodies[together + number])
                    })
                    .collect();
                let receive = async {
                    inbox.receive(arrivals.clone(), Way::Live).await.unwrap();
                    for arrived in &arrivals {
                        acknowledge(folder, &format!("inbox {}", arrived.client_message_id));
                    }
                };
                tokio::join!(join_all(sends), receive);
            }
            // The second life ends with the process.
            if life == 0 {
                outbox.close().await;
                inbox.close().await;
            } else {
                std::mem::forget((outbox, inbox));
            }
        }
    });
}

async fn send(outbox: &Outbox, folder: &Path, id: String, body_bytes: usize) {
    let destination = Destination::new(DestinationKind::Topic, "builds").unwrap();
    let body = vec![b'x'; body_bytes];
    let envelope = Envelope::new(destination.clone(), body).unwrap();
    let send = NewSend {
        client_message_id: Some(ClientMessageId::parse(&id).unwrap()),
        to_given: "#builds".to_owned(),
        resolved: Ok(destination),
        draft: Draft::of(&envelope),
    };
    outbox.send(send).await.unwrap();
    acknowledge(folder, &format!("outbox {id}"));
}

fn arrival(id: &str, seq: i64, body_bytes: usize) -> Arrived {
    Arrived {
        sender_member_id: UuidId::new(Uuid::from_u128(2)),
        client_message_id: ClientMessageId::parse(id).unwrap(),
        broker_message_id: UuidId::new(Uuid::from_u128(u128::try_from(seq).unwrap())),
        seq,
        destination_kind: DestinationKind::Topic,
        topic: Some("builds".to_owned()),
        sender_pubkey: "00".repeat(32),
        sender_name: "somebody".to_owned(),
        priority: Priority::Next,
        reply_to_id: None,
        meta: String::new(),
        body: vec![b'y'; body_bytes],
        accepted_at: UnixMs(1_800_000_000_000),
    }
}

/// What a daemon finds in these files; both open and are whole.
pub(crate) fn found(folder: &Path) -> BTreeSet<String> {
    runtime().block_on(async {
        let (outbox, inbox) = open(folder).await;
        assert_eq!(outbox.quick_check().await.unwrap(), [""; 0]);
        let sent = outbox.list(Which::All, None, ALL).await.unwrap();
        let arrived = inbox.list(Filter::default(), ALL).await.unwrap();
        outbox.close().await;
        inbox.close().await;
        let sent = sent.iter().map(|row| format!("outbox {}", row.client_message_id));
        let arrived = arrived.iter().map(|row| format!("inbox {}", row.arrived.client_message_id));
        sent.chain(arrived).collect()
    })
}

/// Rows committed one by one, with `PRAGMA synchronous` as given.
pub(crate) fn control(folder: &Path, synchronous: &str) {
    let connection = rusqlite::Connection::open(folder.join("control.db")).unwrap();
    connection.pragma_update(None, "journal_mode", "WAL").unwrap();
    connection.execute("CREATE TABLE control (id TEXT PRIMARY KEY)", []).unwrap();
    fs_sync(folder);
    connection.pragma_update(None, "synchronous", synchronous).unwrap();
    for number in 0..CONTROL_ROWS {
        let id = format!("control {number}");
        connection.execute("INSERT INTO control (id) VALUES (?1)", [&id]).unwrap();
        acknowledge(folder, &id);
    }
    std::mem::forget(connection);
}

/// As a store does: a new file is durable only when its folder's entry is.
fn fs_sync(folder: &Path) {
    std::fs::File::open(folder).unwrap().sync_all().unwrap();
}

pub(crate) fn control_found(folder: &Path) -> BTreeSet<String> {
    let connection = rusqlite::Connection::open(folder.join("control.db")).unwrap();
    // A cut before the first commit leaves no table.
    let Ok(mut statement) = connection.prepare("SELECT id FROM control") else {
        return BTreeSet::new();
    };
    statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}
