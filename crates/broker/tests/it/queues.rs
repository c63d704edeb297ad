//! Work queues with leases, and history: what both stores promise, and the frames.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use semel_broker::limits::QUEUE_TAKES_MAX;
use semel_broker::store::{Delivery, Store, Take, Taken};
use semel_core::clock::UnixMs;
use semel_testkit::conformance::{Case, conforms};
use semel_wire::frame::{
    FromBroker, FromDaemon, History, HistoryRequest, QueueAck, QueueTake, QueueTaken,
};
use semel_wire::limits::message_bytes_max;

use crate::client::{Daemon, send_frame, serve};
use crate::support::{self, Fixture, NOW, open_postgres, pubkey};

const WORK: (&str, &str) = ("queue", "work");
const TOPIC: (&str, &str) = ("topic", "builds");
const PLENTY: usize = 1 << 24;

#[rustfmt::skip]
const CASES: &[Case<Fixture>] = &[
    Case { name: "each message goes to one consumer, in order", run: |f| Box::pin(one_each(f)) },
    Case { name: "when a lease ends, the message goes out again", run: |f| Box::pin(again(f)) },
    Case { name: "a clock that is set back ends leases", run: |f| Box::pin(set_back(f)) },
    Case { name: "a clock that steps ends no lease", run: |f| Box::pin(steps(f)) },
    Case { name: "leases of different lengths end in order", run: |f| Box::pin(in_order(f)) },
    Case { name: "who lost its lease acknowledges nothing", run: |f| Box::pin(acks(f)) },
    Case { name: "what nobody ends is set aside", run: |f| Box::pin(never_ended(f)) },
    Case { name: "only what fits is leased", run: |f| Box::pin(fits(f)) },
    Case { name: "eight takers share the work", run: |f| Box::pin(shared_by_eight(f)) },
    Case { name: "history is what a member may see", run: |f| Box::pin(visible(f)) },
    Case { name: "a subscription begins when it is made", run: |f| Box::pin(subscribed(f)) },
    Case { name: "history is read in pages", run: |f| Box::pin(pages(f)) },
    Case { name: "no more history is read than fits", run: |f| Box::pin(pages_of_bytes(f)) },
];

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_conforms() {
    assert_eq!(conforms(CASES, support::sqlite).await, CASES.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_conforms() {
    assert_eq!(conforms(CASES, support::postgres).await, CASES.len());
}

fn after(seconds: u64) -> UnixMs {
    NOW.saturating_add(Duration::from_secs(seconds))
}

/// Time passes until so many seconds after the start, or it is set back: what is leased is moved,
/// because a store goes by a clock of its own.
async fn pass(f: &Fixture, at: u64) {
    let before = f.leased_at.swap(at, Ordering::SeqCst);
    let by_ms = 1000 * (i64::try_from(before).unwrap() - i64::try_from(at).unwrap());
    if by_ms != 0 {
        let moved = "UPDATE mesh.delivery_queue SET lease_until = lease_until";
        f.plant(&format!("{moved} + {by_ms} WHERE lease_until > 0")).await;
    }
}

/// A take of this member for `lease` seconds.
fn asking(f: &Fixture, member: usize, lease: u64, max: i64) -> Take {
    let lease = Duration::from_secs(lease);
    Take { taker: f.members[member], at: support::at(NOW), lease, max, bytes_max: PLENTY }
}

fn leased(taken: Taken) -> Vec<Delivery> {
    match taken {
        Taken::Leased { taken, .. } => taken,
        Taken::NoQueue => panic!("no queue"),
    }
}

fn seqs(deliveries: &[Delivery]) -> Vec<i64> {
    deliveries.iter().map(|delivery| delivery.seq).collect()
}

async fn take(f: &Fixture, member: usize, (at, lease): (u64, u64), max: i64) -> Vec<i64> {
    pass(f, at).await;
    let take = asking(f, member, lease, max);
    seqs(&leased(f.store.queue_take(f.mesh_id, "work", take).await.unwrap()))
}

async fn ack(f: &Fixture, member: usize, seqs: &[i64]) -> Vec<i64> {
    f.store.queue_ack(f.mesh_id, "work", f.members[member], seqs).await.unwrap()
}

/// Puts work into the queue: numbers 1 to `count` of an empty mesh.
async fn fill(f: &Fixture, count: usize) {
    let items = (0..count).map(|n| f.item(0, &format!("work-{n}"), WORK, "dig"));
    assert_eq!(f.accept(items.collect()).await.len(), count);
}

/// How often each message in the delivery table was taken.
async fn attempts(f: &Fixture) -> Vec<(i64, i64)> {
    match &f.address {
        Some(address) => {
            let (client, connection) =
                tokio_postgres::connect(address, tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            let sql = "SELECT seq, attempts FROM mesh.delivery_queue ORDER BY seq";
            let rows = client.query(sql, &[]).await.unwrap();
            rows.iter().map(|row| (row.get(0), row.get(1))).collect()
        }
        None => {
            let file = semel_testkit::sqlite::open(f.folder().join("broker.db")).unwrap();
            let sql = "SELECT seq, attempts FROM delivery_queue ORDER BY seq";
            let mut statement = file.prepare(sql).unwrap();
            let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
            rows.map(Result::unwrap).collect()
        }
    }
}

async fn one_each(f: &Fixture) {
    fill(f, 5).await;
    assert_eq!(take(f, 1, (0, 60), 2).await, [1, 2]);
    assert_eq!(take(f, 2, (0, 60), 2).await, [3, 4]);
    // Also for the same member: what it has, it has.
    assert_eq!(take(f, 1, (59, 60), 10).await, [5]);
    assert!(take(f, 2, (59, 60), 10).await.is_empty());
    let nowhere = f.store.queue_take(f.mesh_id, "nowhere", asking(f, 1, 60, 1)).await;
    assert_eq!(nowhere.unwrap(), Taken::NoQueue);
}

async fn again(f: &Fixture) {
    fill(f, 3).await;
    let first = f.store.queue_take(f.mesh_id, "work", asking(f, 1, 60, 2)).await.unwrap();
    assert_eq!(attempts(f).await, [(1, 1), (2, 1), (3, 0)]);
    assert_eq!(take(f, 2, (59, 60), 1).await, [3], "the lease lasts");
    pass(f, 60).await;
    let second = f.store.queue_take(f.mesh_id, "work", asking(f, 2, 60, 2)).await.unwrap();
    assert_eq!(first, second, "the same messages");
    assert_eq!(attempts(f).await, [(1, 2), (2, 2), (3, 1)]);
    let [one, _] = leased(first).try_into().unwrap();
    assert_eq!((one.body.as_slice(), one.destination.reference()), (&b"dig"[..], "work"));
    assert_eq!((one.sender_member_id, one.client_message_id.as_str()), (f.members[0], "work-0"));
}

/// The longest lease, and those of a clock that was ahead by a year until somebody set it back.
async fn set_back(f: &Fixture) {
    let (day, year) = (24 * 60 * 60, 365 * 24 * 60 * 60);
    fill(f, 3).await;
    assert_eq!(take(f, 1, (0, day), 1).await, [1]);
    assert_eq!(take(f, 1, (year, 60), 2).await, [1, 2]);
    assert_eq!(take(f, 1, (0, day), 1).await, [1], "it was leased in a year that is not there");
    assert_eq!(take(f, 2, (0, day), 9).await, [2, 3]);
    assert!(take(f, 2, (0, day), 9).await.is_empty(), "a lease of a day lasts");
}

/// Of the broker that is asked, or of another one whose clock is wrong.
async fn steps(f: &Fixture) {
    fill(f, 2).await;
    let hour = 60 * 60 * 1000;
    assert_eq!(take(f, 1, (0, 60), 1).await, [1]);
    for step_ms in [20_000, -20_000, hour, -hour, 365 * 24 * hour, -365 * 24 * hour] {
        let mut take = asking(f, 2, 60, 1);
        take.at.wall = UnixMs(take.at.wall.0 + step_ms);
        let taken = f.store.queue_take(f.mesh_id, "work", take).await.unwrap();
        let expected: &[i64] = if step_ms == 20_000 { &[2] } else { &[] };
        assert_eq!(seqs(&leased(taken)), expected, "after a step of {step_ms} ms");
    }
    assert_eq!(take(f, 2, (60, 60), 9).await, [1, 2], "and all of them end");
}

async fn never_ended(f: &Fixture) {
    fill(f, 3).await;
    let at = |round: u64| (round * 60, 60);
    assert_eq!(take(f, 1, at(0), 1).await, [1]);
    for round in 1..u64::try_from(QUEUE_TAKES_MAX).unwrap() {
        assert_eq!(take(f, 1, at(round), 1).await, [1], "round {round}");
    }
    pass(f, 99 * 60).await;
    let once_more = asking(f, 1, 60, 2);
    match f.store.queue_take(f.mesh_id, "work", once_more).await.unwrap() {
        Taken::Leased { taken, set_aside, .. } => {
            assert_eq!((seqs(&taken), set_aside), (vec![2], 1));
        }
        Taken::NoQueue => panic!("no queue"),
    }
    assert_eq!(ack(f, 1, &[1]).await, [] as [i64; 0], "nobody has it any more");
    assert_eq!(take(f, 2, at(99), 9).await, [3]);
    assert_eq!(attempts(f).await, [(2, 1), (3, 1)]);
    let mesh = f.store.mesh_find("test").await.unwrap().unwrap();
    assert_eq!(f.store.check(&mesh, NOW).await.unwrap().delivery_set_aside, 1);
}

async fn in_order(f: &Fixture) {
    fill(f, 4).await;
    assert_eq!(take(f, 1, (0, 90), 1).await, [1]);
    assert_eq!(take(f, 1, (0, 30), 1).await, [2]);
    assert_eq!(take(f, 1, (0, 60), 1).await, [3]);
    assert_eq!(take(f, 2, (100, 10), 2).await, [1, 2], "not by when the lease ended");
    assert_eq!(take(f, 2, (100, 10), 2).await, [3, 4], "and what is new comes after");
}

async fn acks(f: &Fixture) {
    fill(f, 4).await;
    assert_eq!(take(f, 1, (0, 60), 3).await, [1, 2, 3]);
    assert_eq!(ack(f, 1, &[2, 4, 99]).await, [2], "what it has not taken is not its own");
    assert!(ack(f, 1, &[2]).await.is_empty(), "once");
    assert!(ack(f, 2, &[1]).await.is_empty(), "of another");
    assert_eq!(take(f, 2, (60, 60), 1).await, [1], "the lease is over, and taken");
    assert_eq!(ack(f, 1, &[3, 1]).await, [3], "over, and not taken by anyone");
    assert_eq!(attempts(f).await, [(1, 2), (4, 0)]);
    assert_eq!(ack(f, 2, &[1]).await, [1]);
    let nowhere = f.store.queue_ack(f.mesh_id, "nowhere", f.members[1], &[4]).await;
    assert!(nowhere.unwrap().is_empty());
    // A member's own deliveries are not work.
    f.accept_one(f.item(0, "news", TOPIC, "hi")).await;
    assert_eq!(take(f, 1, (200, 60), 10).await, [4]);
    assert_eq!(f.waiting(1).await, [5]);
}

async fn fits(f: &Fixture) {
    let body = "x".repeat(30_000);
    let items = (0..4).map(|n| f.item(0, &format!("work-{n}"), WORK, &body));
    f.accept(items.collect()).await;
    let narrow = |bytes_max| Take { bytes_max, ..asking(f, 1, 60, 10) };
    let one = f.store.queue_take(f.mesh_id, "work", narrow(1)).await.unwrap();
    assert_eq!(seqs(&leased(one)), [1], "one always");
    let two = f.store.queue_take(f.mesh_id, "work", narrow(130_000)).await.unwrap();
    assert_eq!(seqs(&leased(two)), [2, 3]);
    assert_eq!(attempts(f).await, [(1, 1), (2, 1), (3, 1), (4, 0)]);
    assert_eq!(take(f, 2, (0, 60), 10).await, [4], "the rest is free");
}

/// Eight at once until there is nothing left: disjoint, each in order, and all of it.
async fn eight(f: &Fixture, stores: [&Store; 2], (at, lease): (u64, u64)) {
    pass(f, at).await;
    let takers = (0..8).map(|n| async move {
        let mut mine = Vec::new();
        loop {
            let take = asking(f, n % 3, lease, 7);
            let taken = stores[n % 2].queue_take(f.mesh_id, "work", take).await.unwrap();
            let taken = seqs(&leased(taken));
            if taken.is_empty() {
                return mine;
            }
            assert!(taken.is_sorted(), "{taken:?}");
            mine.extend(taken);
        }
    });
    let all: Vec<i64> =
        futures_util::future::join_all(takers).await.into_iter().flatten().collect();
    let distinct: BTreeSet<i64> = all.iter().copied().collect();
    assert_eq!(distinct.len(), all.len(), "nothing twice");
    assert_eq!(distinct, (1..=300).collect());
}

async fn shared_by_eight(f: &Fixture) {
    fill(f, 300).await;
    eight(f, [&f.store, &f.store], (0, 60)).await;
    // And when all of it has to go out again.
    eight(f, [&f.store, &f.store], (60, 60)).await;
    assert!(attempts(f).await.iter().all(|(_, attempts)| *attempts == 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_brokers_never_give_the_same_work() {
    let f = support::postgres().await;
    let other = open_postgres(f.address.as_ref().unwrap()).await;
    fill(&f, 300).await;
    eight(&f, [&f.store, &other], (0, 60)).await;
    eight(&f, [&f.store, &other], (60, 60)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_taker_holds_nobody_up() {
    let f = support::postgres().await;
    fill(&f, 4).await;
    assert_eq!(take(&f, 1, (0, 10), 2).await, [1, 2]);
    let address = f.address.as_ref().unwrap();
    let (client, connection) =
        tokio_postgres::connect(address, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    pass(&f, 10).await;
    // One that is over and one that was never taken are in somebody's hands.
    let lock = "BEGIN; SELECT 1 FROM mesh.delivery_queue WHERE seq IN (1, 3) FOR UPDATE";
    client.batch_execute(lock).await.unwrap();
    assert_eq!(take(&f, 2, (10, 60), 10).await, [2, 4]);
    client.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(take(&f, 2, (10, 60), 10).await, [1, 3]);
}

async fn history(f: &Fixture, member: usize, after_seq: i64, limit: i64) -> Vec<i64> {
    let page =
        f.store.history(f.mesh_id, f.members[member], after_seq, limit, PLENTY).await.unwrap();
    seqs(&page.deliveries)
}

async fn visible(f: &Fixture) {
    let (dm1, dm2) = (pubkey(1), pubkey(2));
    f.store.topic_create(f.mesh_id, "secret", None, NOW).await.unwrap();
    f.store.topic_subscribe(f.mesh_id, "secret", f.members[0]).await.unwrap();
    let to = [TOPIC, WORK, ("dm", &dm2), ("dm", &dm1), ("topic", "secret"), TOPIC];
    let items = to.iter().enumerate().map(|(n, to)| f.item(0, &format!("m{n}"), *to, "hi"));
    f.accept(items.collect()).await;
    assert_eq!(history(f, 0, 0, 10).await, [1, 5, 6], "not its own to others");
    assert_eq!(history(f, 1, 0, 10).await, [1, 4, 6]);
    assert_eq!(history(f, 2, 0, 10).await, [3]);
    // Byte for byte what a delivery says, also after its acknowledgement.
    let member = f.members[1];
    let waiting =
        support::deliveries(&f.store, f.mesh_id, member.as_uuid(), (0, 10)).await.unwrap();
    f.done(member.as_uuid(), 6).await;
    let page = f.store.history(f.mesh_id, member, 0, 10, PLENTY).await.unwrap();
    assert_eq!((page.deliveries, page.next_after_seq), (waiting.whole, None));
}

/// Who subscribes, perhaps again, gets what comes from then on, also when it was away.
async fn subscribed(f: &Fixture) {
    let accept = async |id: &str| f.accept_one(f.item(0, id, TOPIC, "hi")).await;
    let subscribe = async || f.store.topic_subscribe(f.mesh_id, "builds", f.members[2]).await;
    accept("before").await;
    assert!(subscribe().await.unwrap());
    assert_eq!(history(f, 2, 0, 10).await, [] as [i64; 0], "nothing of the past");
    accept("first").await;
    assert!(subscribe().await.unwrap(), "it was subscribed");
    accept("second").await;
    assert_eq!(history(f, 2, 0, 10).await, [2, 3]);
    assert_eq!(f.waiting(2).await, [2, 3], "history has what was delivered");
    assert!(f.store.topic_unsubscribe(f.mesh_id, "builds", f.members[2]).await.unwrap());
    assert_eq!(history(f, 2, 0, 10).await, [] as [i64; 0]);
    accept("between").await;
    assert!(subscribe().await.unwrap());
    accept("third").await;
    assert_eq!(history(f, 2, 0, 10).await, [5]);
    assert_eq!(history(f, 1, 0, 10).await, [1, 2, 3, 4, 5]);
}

/// No more is read than fits, and one always does.
async fn pages_of_bytes(f: &Fixture) {
    let body = "x".repeat(3000);
    let item = |n: usize| f.item(0, &format!("large{n}"), TOPIC, &body);
    f.accept((0..6).map(item).collect()).await;
    for (bytes_max, pages) in [(1, 6), (3 * message_bytes_max(3000, 0), 3), (PLENTY, 1)] {
        let (mut found, mut next, mut requests) = (Vec::new(), Some(0), 0);
        while let Some(after) = next {
            let page = f.store.history(f.mesh_id, f.members[1], after, 10, bytes_max).await;
            let page = page.unwrap();
            found.extend(seqs(&page.deliveries));
            next = page.next_after_seq;
            requests += 1;
        }
        assert_eq!((found, requests), ((1..=6).collect(), pages), "{bytes_max}");
    }
}

async fn pages(f: &Fixture) {
    // More than one request looks through, of which the third member may see the last only.
    let dm2 = pubkey(2);
    for round in 0..10 {
        let item = |n| f.item(0, &format!("{round}-{n}"), WORK, "dig");
        f.accept((0..500).map(item).collect()).await;
    }
    f.accept(vec![f.item(0, "x", ("dm", &dm2), "hi"), f.item(0, "y", ("dm", &dm2), "hi")]).await;
    let mut found = Vec::new();
    let mut next = Some(0);
    let mut requests = 0;
    while let Some(after_seq) = next {
        let page = f.store.history(f.mesh_id, f.members[2], after_seq, 1, PLENTY).await.unwrap();
        found.extend(seqs(&page.deliveries));
        assert!(page.next_after_seq.is_none_or(|next| next > after_seq), "it goes on");
        next = page.next_after_seq;
        requests += 1;
    }
    assert_eq!((found, requests), (vec![5001, 5002], 4));
}

async fn ask_work(daemon: &mut Daemon, max: u64, lease_ms: Option<u64>) -> QueueTaken {
    let (request_id, queue) = (max + 1000, "work".to_owned());
    daemon.say(&FromDaemon::QueueTake(QueueTake { request_id, queue, max, lease_ms })).await;
    match daemon.next().await {
        Ok(FromBroker::QueueTaken(taken)) if taken.request_id == request_id => taken,
        other => panic!("{other:?}"),
    }
}

async fn end_work(daemon: &mut Daemon, seqs: Vec<i64>) -> Vec<i64> {
    let (request_id, queue) = (5, "work".to_owned());
    daemon.say(&FromDaemon::QueueAck(QueueAck { request_id, queue, seqs })).await;
    match daemon.next().await {
        Ok(FromBroker::QueueAcked(acked)) if acked.request_id == request_id => acked.acked,
        other => panic!("{other:?}"),
    }
}

fn numbers(deliveries: &[semel_wire::frame::Delivery]) -> Vec<i64> {
    deliveries.iter().map(|delivery| delivery.seq).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn work_is_taken_and_acknowledged_over_the_socket() {
    let served = serve(support::sqlite().await).await;
    let mut boss = Daemon::welcomed(served.address, 0).await;
    for id in ["a", "b", "c"] {
        assert_eq!(boss.send(send_frame(id, WORK, id)).await.status, 201);
    }
    let mut one = Daemon::welcomed(served.address, 1).await;
    let mut two = Daemon::welcomed(served.address, 2).await;
    let taken = ask_work(&mut one, 2, None).await;
    assert_eq!((numbers(&taken.deliveries), taken.lease_until), (vec![1, 2], after(60)));
    assert_eq!(taken.deliveries[0].body, b"a");
    let taken = ask_work(&mut two, 2, Some(90_000)).await;
    assert_eq!((numbers(&taken.deliveries), taken.lease_until), (vec![3], after(90)));
    assert_eq!(end_work(&mut one, vec![1, 3]).await, [1]);
    served.clock.advance(Duration::from_secs(60));
    assert_eq!(numbers(&ask_work(&mut two, 9, None).await.deliveries), [2]);
    assert!(end_work(&mut one, vec![2]).await.is_empty(), "its lease is lost");
    assert_eq!(end_work(&mut two, vec![2, 3]).await, [2, 3]);
    served.clock.advance(Duration::from_secs(600));
    assert!(ask_work(&mut one, 9, None).await.deliveries.is_empty());
    let queue = "nowhere".to_owned();
    one.say(&FromDaemon::QueueTake(QueueTake { request_id: 8, queue, max: 1, lease_ms: None }))
        .await;
    match one.next().await {
        Ok(FromBroker::RequestFailed(failed)) => {
            assert_eq!((failed.request_id, failed.code.as_str()), (8, "queue_not_found"));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_work_is_taken_as_it_fits() {
    let served = serve(support::sqlite().await).await;
    let mut boss = Daemon::welcomed(served.address, 0).await;
    let body = "x".repeat(65_000);
    for n in 0..12 {
        assert_eq!(boss.send(send_frame(&n.to_string(), WORK, &body)).await.status, 201);
    }
    let mut worker = Daemon::welcomed(served.address, 1).await;
    let first = numbers(&ask_work(&mut worker, 100, None).await.deliveries);
    assert!((2..12).contains(&first.len()), "{first:?}");
    let mut all = first;
    while all.len() < 12 {
        all.extend(numbers(&ask_work(&mut worker, 100, None).await.deliveries));
    }
    assert_eq!(all, (1..=12).collect::<Vec<i64>>());
}

async fn ask_history(daemon: &mut Daemon, after_seq: i64, limit: u64) -> History {
    let request = HistoryRequest { request_id: 7, after_seq, limit };
    daemon.say(&FromDaemon::HistoryRequest(request)).await;
    loop {
        match daemon.next().await {
            Ok(FromBroker::History(history)) => return history,
            Ok(FromBroker::Push(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn history_is_what_was_pushed() {
    let served = serve(support::sqlite().await).await;
    let mut sender = Daemon::welcomed(served.address, 0).await;
    let mut reader = Daemon::welcomed(served.address, 1).await;
    let (dm1, body) = (pubkey(1), "x".repeat(60_000));
    // Small ones, and enough large ones that they do not fit into one frame.
    for n in 0..20 {
        let to = [TOPIC, WORK, ("dm", dm1.as_str()), TOPIC][n % 4];
        let body = if n < 8 { "small" } else { &body };
        assert_eq!(sender.send(send_frame(&n.to_string(), to, body)).await.status, 201);
    }
    let mut pushed = Vec::new();
    while pushed.len() < 15 {
        pushed.extend(reader.pushed().await.deliveries);
    }
    for (limit, at_least) in [(500, 2), (4, 4), (1, 15)] {
        let (mut found, mut next, mut requests) = (Vec::new(), Some(0), 0);
        while let Some(after_seq) = next {
            let history = ask_history(&mut reader, after_seq, limit).await;
            assert!(history.deliveries.len() as u64 <= limit);
            found.extend(history.deliveries);
            next = history.next_after_seq;
            requests += 1;
        }
        assert_eq!(found, pushed);
        assert!(requests >= at_least, "{requests}");
    }
    assert_eq!(ask_history(&mut reader, pushed[13].seq, 500).await.deliveries, pushed[14..]);
    let mut stranger = Daemon::welcomed(served.address, 2).await;
    let nothing = ask_history(&mut stranger, 0, 500).await;
    assert_eq!((nothing.deliveries, nothing.next_after_seq), (vec![], None));
}
