//! Ten thousand sends over two brokers on one PostgreSQL, a third of them repeated, some of those
//! as other requests, while one of the brokers is killed five times: every answer agrees with the
//! rows, and every id has exactly one of each.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use semel_testkit::servers;
use semel_wire::frame::{FromBroker, FromDaemon, SendFrame, SendResult};

use crate::daemon::{Daemon, dm, pubkey};
use crate::process::{Broker, succeeds};

const SENDERS: u8 = 8;
const IDS_PER_SENDER: usize = 875;
const REPEATED_PER_SENDER: usize = 250;
const CHANGED_PER_SENDER: usize = 125;
const TOTAL: usize = SENDERS as usize * (IDS_PER_SENDER + REPEATED_PER_SENDER + CHANGED_PER_SENDER);
const KILLS: usize = 5;
const IN_FLIGHT: usize = 32;
const RECEIVER: u8 = 100;

/// What a sender was told about each of its sends.
type Answered = Vec<(SendFrame, SendResult)>;

/// Where brokers are now, and how many sends have been answered.
#[derive(Default)]
struct Shared {
    urls: Mutex<Vec<String>>,
    answered: AtomicUsize,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_killed_under_load_loses_and_repeats_nothing() {
    assert_eq!(TOTAL, 10_000);
    let store = servers::fresh_postgres().await;
    prepare(&store);
    let shared = Arc::new(Shared::default());
    let steady = Broker::start(&store, &[]);
    let mut victim = Broker::start(&store, &[]);
    *shared.urls.lock().unwrap() = vec![steady.url.clone(), victim.url.clone()];

    let mut senders = tokio::task::JoinSet::new();
    for number in 1..=SENDERS {
        let shared = Arc::clone(&shared);
        senders.spawn(async move { (number, run_sender(number, &shared).await) });
    }
    for kill in 1..=KILLS {
        // By progress, not by time: each kill meets sends in flight.
        while shared.answered.load(Ordering::SeqCst) < TOTAL * kill / (KILLS + 1) {
            tokio::task::yield_now().await;
        }
        victim.kill();
        victim = Broker::start(&store, &[]);
        shared.urls.lock().unwrap()[1] = victim.url.clone();
    }
    let answers: HashMap<u8, Answered> = senders.join_all().await.into_iter().collect();
    check(&store, &answers).await;
}

fn prepare(store: &str) {
    let target = ["--store", store];
    let run = |verb: &[&str]| succeeds(&[&["broker"], verb, &target].concat());
    run(&["mesh", "create", "test", "--owner", "receiver", "--owner-key", &pubkey(RECEIVER)]);
    for number in 1..=SENDERS {
        run(&["member", "add", "test", &format!("sender {number}"), &pubkey(number)]);
    }
}

/// First sends, repetitions and conflicting uses of the same ids, in a mixed order.
fn work(number: u8) -> VecDeque<SendFrame> {
    let to = pubkey(RECEIVER);
    let one = |n: usize, body: &str| dm(&format!("{number}-{n}"), &to, body);
    let mut work: Vec<SendFrame> = (0..IDS_PER_SENDER).map(|n| one(n, "first")).collect();
    work.extend((0..REPEATED_PER_SENDER).map(|n| one(n * 3, "first")));
    work.extend((0..CHANGED_PER_SENDER).map(|n| one(n * 5 + 1, "changed")));
    // A fixed shuffle: steps that are prime to the length visit every place.
    let length = work.len();
    (0..length).map(|n| work[n * 389 % length].clone()).collect()
}

async fn run_sender(number: u8, shared: &Shared) -> Answered {
    let mut waiting = work(number);
    let mut answered = Vec::new();
    let mut broker = usize::from(number);
    while !waiting.is_empty() {
        broker += 1;
        let url = {
            let urls = shared.urls.lock().unwrap();
            urls[broker % urls.len()].clone()
        };
        let Some(mut daemon) = Daemon::connect(&url, number).await else { continue };
        let mut in_flight: HashMap<String, SendFrame> = HashMap::new();
        converse(&mut daemon, &mut waiting, &mut in_flight, &mut answered, shared).await;
        // The connection is gone: what was not answered is sent again on the next one.
        in_flight.into_values().for_each(|frame| waiting.push_front(frame));
    }
    answered
}

/// Sends and listens until everything is answered or the connection ends.
async fn converse(
    daemon: &mut Daemon,
    waiting: &mut VecDeque<SendFrame>,
    in_flight: &mut HashMap<String, SendFrame>,
    answered: &mut Answered,
    shared: &Shared,
) {
    loop {
        // Never two attempts of one id on a connection.
        let free = |frame: &SendFrame| !in_flight.contains_key(frame.client_message_id.as_str());
        match waiting.iter().position(free).filter(|_| in_flight.len() < IN_FLIGHT) {
            Some(place) => {
                let frame = waiting.remove(place).unwrap();
                in_flight.insert(frame.client_message_id.to_string(), frame.clone());
                if daemon.say(&FromDaemon::Send(frame)).await.is_none() {
                    return;
                }
            }
            None if in_flight.is_empty() => return,
            None => match daemon.next().await {
                None => return,
                Some(FromBroker::SendResult(result)) => {
                    let frame = in_flight.remove(result.client_message_id.as_str()).unwrap();
                    if result.status == 503 {
                        waiting.push_back(frame);
                        continue;
                    }
                    answered.push((frame, result));
                    shared.answered.fetch_add(1, Ordering::SeqCst);
                }
                Some(FromBroker::CloseReason(_) | FromBroker::Ping(_)) => {}
                Some(other) => panic!("{other:?}"),
            },
        }
    }
}

/// A dedupe row, with its history number.
struct Row {
    message: uuid::Uuid,
    fingerprint: Vec<u8>,
    seq: i64,
}

async fn check(store: &str, answers: &HashMap<u8, Answered>) {
    let checked = succeeds(&["broker", "check", "--store", store]);
    assert!(checked.ends_with(", consistent"), "{checked}");
    let (client, connection) = tokio_postgres::connect(store, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let sql = "SELECT d.client_message_id, d.broker_message_id, d.request_fingerprint, h.seq
                 FROM mesh.client_message_dedupe d
                 JOIN mesh.message_history h USING (mesh_id, broker_message_id)
                 JOIN mesh.message_queue q USING (mesh_id, broker_message_id)
                 JOIN mesh.delivery_queue v ON v.mesh_id = d.mesh_id AND v.seq = h.seq";
    let rows: HashMap<String, Row> = client
        .query(sql, &[])
        .await
        .unwrap()
        .iter()
        .map(|row| {
            (row.get(0), Row { message: row.get(1), fingerprint: row.get(2), seq: row.get(3) })
        })
        .collect();
    let ids = SENDERS as usize * IDS_PER_SENDER;
    assert_eq!(rows.len(), ids, "every id has a whole set of rows");
    for table in ["client_message_dedupe", "message_queue", "message_history", "delivery_queue"] {
        let count = client.query_one(&format!("SELECT count(*) FROM mesh.{table}"), &[]).await;
        let count: i64 = count.unwrap().get(0);
        assert_eq!(usize::try_from(count).unwrap(), ids, "{table} has no row too many");
    }
    let seqs: HashSet<i64> = rows.values().map(|row| row.seq).collect();
    assert_eq!(seqs, (1..=i64::try_from(ids).unwrap()).collect(), "history has no gap");
    let mut accepted = HashSet::new();
    for (frame, result) in answers.values().flatten() {
        let row = &rows[frame.client_message_id.as_str()];
        let ours = frame.request_fingerprint.0 == *row.fingerprint;
        let named = result.broker_message_id.map(|id| id.as_uuid());
        match result.status {
            201 | 200 => {
                assert!(ours, "{result:?} for a request that was not accepted");
                assert_eq!((named, result.history_id), (Some(row.message), Some(row.seq)));
                if result.status == 201 {
                    assert!(accepted.insert(row.message), "accepted twice: {result:?}");
                }
            }
            409 => assert!(!ours, "{result:?} for the request that was accepted"),
            _ => panic!("{result:?}"),
        }
    }
    assert_eq!(answers.values().map(Vec::len).sum::<usize>(), TOTAL, "everything was answered");
}
