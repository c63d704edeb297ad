//! What a server adds: keys that must expire, a script that can be lost, a calendar that can be
//! set.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use semel_broker::limiter::{LimitRequest, LimiterCounts, Verdict};
use semel_testkit::servers;

use super::{Bench, LONG, is_denied, own, retry_after};

const TAKES: usize = 10_000;
const TAKES_AT_ONCE: usize = 40;
const SENDERS: usize = 20;

async fn raw() -> MultiplexedConnection {
    let client = redis::Client::open(servers::redis()).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

async fn keys_of(bench: &Bench, connection: &mut MultiplexedConnection) -> Vec<String> {
    let mut keys = Vec::new();
    let mut cursor = 0_u64;
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(format!("*{}*", bench.mesh)).arg("COUNT").arg(1000);
        let (next, found): (u64, Vec<String>) = scan.query_async(connection).await.unwrap();
        keys.extend(found);
        cursor = next;
        if cursor == 0 {
            return keys;
        }
    }
}

/// The one key of a test with one sender.
async fn key_of(bench: &Bench, connection: &mut MultiplexedConnection) -> String {
    let mut keys = keys_of(bench, connection).await;
    assert_eq!(keys.len(), 1, "{keys:?}");
    keys.remove(0)
}

async fn left_ms(connection: &mut MultiplexedConnection, key: &str) -> i64 {
    redis::cmd("PTTL").arg(key).query_async(connection).await.unwrap()
}

/// Of 10,000 replays none is charged twice, and no key stays without expiry.
#[tokio::test]
async fn no_replay_is_charged_and_no_key_stays() {
    let bench = Bench::redis();
    let mut charged: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for first in (0..TAKES).step_by(TAKES_AT_ONCE) {
        let takes = (first..first + TAKES_AT_ONCE).map(async |number| {
            // Every id four times; every third sender has a window that ends during the run,
            // every fourth too low a limit.
            let (sender, id) = (number % SENDERS, number / SENDERS / 4);
            let window = if sender % 3 == 0 { Duration::from_millis(5) } else { LONG };
            let limit = if sender % 4 == 0 { 50 } else { 1000 };
            let (name, text) = (sender.to_string(), id.to_string());
            let request = LimitRequest { window, ..bench.request(&name, &text, limit) };
            let verdict = own(&bench.limiters[number / SENDERS % 2], &request).await;
            ((sender, id), verdict)
        });
        for (what, verdict) in join_all(takes).await {
            if verdict == Verdict::Counted && what.0 % 3 != 0 {
                *charged.entry(what).or_default() += 1;
            }
        }
    }
    assert!(charged.len() > 1000, "{}", charged.len());
    assert_eq!(charged.values().filter(|times| **times > 1).count(), 0);
    let counts = bench.limiters.each_ref().map(|limiter| limiter.counts());
    assert!(counts.iter().all(|counts| counts.denied > 0 && counts.free > 0), "{counts:?}");

    let mut connection = raw().await;
    let keys = keys_of(&bench, &mut connection).await;
    assert!(keys.len() >= SENDERS * 2 / 3 - 1, "{}", keys.len());
    for key in keys {
        // -2: gone since; -1: for ever.
        let left = left_ms(&mut connection, &key).await;
        assert!(left == -2 || left >= 0, "{key} has no expiry");
        assert!(left <= 600_001, "{key} lives for {left} ms");
    }
}

#[tokio::test]
async fn every_entry_prolongs_its_key() {
    let bench = Bench::redis();
    let mut connection = raw().await;
    assert_eq!(bench.take("a", "x", 2).await, Verdict::Counted);
    let key = key_of(&bench, &mut connection).await;
    let mut shorten = redis::cmd("PEXPIRE");
    let _: () = shorten.arg(&key).arg(1000).query_async(&mut connection).await.unwrap();
    assert_eq!(bench.take("a", "y", 2).await, Verdict::Counted);
    let left = left_ms(&mut connection, &key).await;
    assert!((500_000..=600_001).contains(&left), "{left}");
}

/// Also what a restart of the server does to it (traps.md 47).
#[tokio::test]
async fn a_lost_script_is_sent_again() {
    let bench = Bench::redis();
    let mut connection = raw().await;
    for number in 0..20 {
        let mut flush = redis::cmd("SCRIPT");
        let _: () = flush.arg("FLUSH").query_async(&mut connection).await.unwrap();
        let id = number.to_string();
        assert_eq!(bench.take("a", &id, 20).await, Verdict::Counted);
        assert_eq!(bench.take("a", &id, 20).await, Verdict::Free);
    }
    assert!(is_denied(bench.take("a", "new", 20).await));
    let counts = LimiterCounts { allowed: 20, free: 20, denied: 1, ..LimiterCounts::default() };
    assert_eq!(bench.counts(), counts);
}

#[tokio::test]
async fn a_calendar_set_back_blocks_nobody_for_longer_than_a_window() {
    let bench = Bench::redis();
    let mut connection = raw().await;
    for id in ["x", "y"] {
        assert_eq!(bench.take("a", id, 3).await, Verdict::Counted);
    }
    // What the server finds after its clock went back by a year.
    let key = key_of(&bench, &mut connection).await;
    let year_us = 365_i64 * 24 * 60 * 60 * 1_000_000;
    for id in ["x", "y"] {
        let mut later = redis::cmd("ZINCRBY");
        let later = later.arg(&key).arg(year_us).arg(id);
        let _: () = later.query_async(&mut connection).await.unwrap();
    }
    let mut stay = redis::cmd("PEXPIRE");
    let _: () = stay.arg(&key).arg(year_us / 1000).query_async(&mut connection).await.unwrap();

    assert_eq!(bench.take("a", "x", 2).await, Verdict::Free, "still counted");
    assert!(retry_after(bench.take("a", "z", 2).await) <= LONG);
    let left = left_ms(&mut connection, &key).await;
    assert!((0..=600_001).contains(&left), "{left}");
}

/// A mistyped window is no reason to lose the server.
#[tokio::test]
async fn windows_that_make_no_sense_are_cut() {
    let bench = Bench::redis();
    for (sender, window) in [("long", Duration::MAX), ("none", Duration::ZERO)] {
        let request = LimitRequest { window, ..bench.request(sender, "x", 1) };
        assert_eq!(bench.ask(&request).await, Verdict::Counted, "{window:?}");
    }
    assert_eq!(bench.counts().fallback, 0);
}
