//! A broker that is stopped under load: whatever it has accepted it has answered before it closes,
//! and who sends the rest again loses and repeats nothing.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use semel_testkit::servers;
use semel_wire::close::CloseKind;
use semel_wire::frame::{FromBroker, FromDaemon, SendFrame};

use crate::daemon::{Daemon, dm, pubkey};
use crate::process::{Broker, succeeds};

const SENDERS: u8 = 4;
const SENDS: usize = 4000;
const IN_FLIGHT: usize = 200;
const RECEIVER: u8 = 100;

#[tokio::test(flavor = "multi_thread")]
async fn what_was_accepted_is_answered_before_the_close_on_postgres() {
    stopped_under_load(&servers::fresh_postgres().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_accepted_is_answered_before_the_close_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    stopped_under_load(&format!("sqlite:{}", folder.path().join("broker.db").display())).await;
}

/// What a sender has seen of one connection.
struct Seen {
    number: u8,
    answered: HashMap<String, u16>,
    told: Option<CloseKind>,
}

async fn stopped_under_load(store: &str) {
    let run = |verb: &[&str]| succeeds(&[&["broker"], verb, &["--store", store]].concat());
    run(&["mesh", "create", "test", "--owner", "receiver", "--owner-key", &pubkey(RECEIVER)]);
    run(&["mesh", "set", "test", "rate_limit=1000000"]);
    for number in 1..=SENDERS {
        run(&["member", "add", "test", &format!("sender {number}"), &pubkey(number)]);
    }
    let mut broker = Broker::start(store, &[]);
    let count = Arc::new(AtomicUsize::new(0));
    let mut senders = tokio::task::JoinSet::new();
    for number in 1..=SENDERS {
        let daemon = Daemon::connect(&broker.url, number).await.expect("it is let in");
        senders.spawn(converse(daemon, number, HashSet::new(), Arc::clone(&count)));
    }
    // By progress, not by time: the end meets sends in flight.
    while count.load(Ordering::SeqCst) < 500 {
        tokio::task::yield_now().await;
    }
    broker.terminate();
    let seen = senders.join_all().await;
    assert_eq!(broker.stop_code(), Some(0), "it ends by itself");
    let answered: usize = seen.iter().map(|seen| seen.answered.len()).sum();
    assert!(answered < SENDS * usize::from(SENDERS), "it was stopped under way");
    for seen in &seen {
        assert_eq!(seen.told, Some(CloseKind::Draining), "sender {}", seen.number);
        assert!(seen.answered.values().all(|status| *status == 201));
    }
    // The store has no message of which nobody was told.
    let messages = |checked: &str| -> usize {
        let words = checked.strip_prefix("test: ").and_then(|rest| rest.split(' ').next());
        assert!(checked.ends_with(", consistent"), "{checked}");
        // Its id, itself, its place in history, its delivery.
        words.unwrap().parse::<usize>().unwrap() / 4
    };
    assert_eq!(messages(&run(&["check"])), answered, "what was accepted was answered");

    let broker = Broker::start(store, &[]);
    let mut senders = tokio::task::JoinSet::new();
    for seen in seen {
        let daemon = Daemon::connect(&broker.url, seen.number).await.expect("it is let in");
        let done: HashSet<String> = seen.answered.into_keys().collect();
        senders.spawn(converse(daemon, seen.number, done, Arc::clone(&count)));
    }
    for seen in senders.join_all().await {
        assert!(seen.answered.values().all(|status| *status == 201), "nothing was there yet");
    }
    assert_eq!(messages(&run(&["check"])), SENDS * usize::from(SENDERS));
}

/// Sends what is not done yet and listens, until everything is answered or the connection ends.
async fn converse(
    mut daemon: Daemon,
    number: u8,
    done: HashSet<String>,
    count: Arc<AtomicUsize>,
) -> Seen {
    let to = pubkey(RECEIVER);
    let mut waiting: Vec<SendFrame> =
        (0..SENDS).map(|n| dm(&format!("{number}-{n}"), &to, "hi")).collect();
    waiting.retain(|frame| !done.contains(frame.client_message_id.as_str()));
    let (mut in_flight, mut seen) = (0, Seen { number, answered: HashMap::new(), told: None });
    loop {
        if in_flight < IN_FLIGHT
            && seen.told.is_none()
            && let Some(frame) = waiting.pop()
        {
            // A broker that went away is found out by listening.
            let _ = daemon.say(&FromDaemon::Send(frame)).await;
            in_flight += 1;
            continue;
        }
        if in_flight == 0 {
            return seen;
        }
        match daemon.next().await {
            None => return seen,
            Some(FromBroker::SendResult(result)) => {
                in_flight -= 1;
                count.fetch_add(1, Ordering::SeqCst);
                seen.answered.insert(result.client_message_id.to_string(), result.status);
            }
            Some(FromBroker::CloseReason(reason)) => seen.told = Some(reason.kind),
            Some(FromBroker::Ping(_)) => {}
            Some(other) => panic!("{other:?}"),
        }
    }
}
