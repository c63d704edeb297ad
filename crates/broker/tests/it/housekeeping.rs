//! Sweeps and the consistency check, as one suite on both stores.

use std::sync::Arc;
use std::time::Duration;

use semel_broker::accept::{AcceptBatch, AcceptItem, DedupeMode, Verdict};
use semel_broker::housekeeping::{
    SweepReport, check_once, night_when_settled, sweep_clock, sweep_once,
};
use semel_broker::limits::{DAY, HOUSEKEEPING_INTERVAL};
use semel_broker::metrics::Metrics;
use semel_broker::store::{Mesh, Report};
use semel_core::clock::UnixMs;
use semel_core::limits::{CLOCK_SETTLES_AFTER, CLOCK_SETTLES_ALONE};
use semel_core::plausible::SweepClock;
use semel_testkit::clock::SimClock;
use semel_testkit::conformance::{Case, conforms};

use crate::support::{self, Fixture, NOW, pubkey};

const TOPIC: (&str, &str) = ("topic", "builds");
const QUEUE: (&str, &str) = ("queue", "work");
const DAY_MS: i64 = 24 * 60 * 60 * 1000;

#[rustfmt::skip]
const CASES: &[Case<Fixture>] = &[
    Case { name: "expired ids go, within the limit", run: |f| Box::pin(expiry(f)) },
    Case { name: "a permanent mesh forgets nothing", run: |f| Box::pin(permanent(f)) },
    Case { name: "retention leaves the id taken", run: |f| Box::pin(retention(f)) },
    Case { name: "retention keeps to the limit and the age", run: |f| Box::pin(limited(f)) },
    Case { name: "a later message of the same id stays", run: |f| Box::pin(reused_id(f)) },
    Case { name: "a sound store is clean", run: |f| Box::pin(clean(f)) },
    Case { name: "clocks that differ leave no gap", run: |f| Box::pin(skewed_clocks(f)) },
    Case { name: "a clock that steps deletes nothing", run: |f| Box::pin(steps(f)) },
    Case { name: "a start that is ahead deletes nothing", run: |f| Box::pin(starts_ahead(f)) },
    Case { name: "more rows than a page", run: |f| Box::pin(pages(f)) },
    Case { name: "accepts and sweeps meanwhile are no damage", run: |f| Box::pin(meanwhile(f)) },
    Case { name: "one mesh that fails stops no other", run: |f| Box::pin(one_fails(f)) },
    Case { name: "planted damage is found and named", run: |f| Box::pin(damage(f)) },
];

#[tokio::test(flavor = "multi_thread")]
async fn housekeeping_on_sqlite() {
    assert_eq!(conforms(CASES, support::sqlite).await, CASES.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn housekeeping_on_postgres() {
    assert_eq!(conforms(CASES, support::postgres).await, CASES.len());
}

fn day(number: i64) -> UnixMs {
    UnixMs(NOW.0 + number * DAY_MS)
}

async fn plant(f: &Fixture, sql: &str) -> u64 {
    f.plant(sql).await
}

async fn accept_at(f: &Fixture, now: UnixMs, mode: DedupeMode, items: Vec<AcceptItem>) {
    if mode == THREE_DAYS {
        // The sweep goes by the mesh's rule too.
        plant(f, "UPDATE mesh.mesh SET dedupe_retention_days = 3").await;
    }
    let (mesh_id, expires_at, wanted) = (f.mesh_id, mode.expires_at(now), items.len());
    let batch = Arc::new(AcceptBatch { mesh_id, now, expires_at, items });
    let verdicts = f.store.accept(&batch).await.unwrap().verdicts;
    let accepted = verdicts.iter().filter(|v| matches!(v, Verdict::Accepted { .. })).count();
    assert_eq!(accepted, wanted, "{verdicts:?}");
}

async fn mesh(f: &Fixture) -> Mesh {
    let meshes = f.store.mesh_list().await.unwrap();
    let found = f.store.mesh_find("test").await.unwrap().unwrap();
    assert_eq!((meshes.len(), &meshes[0]), (1, &found));
    found
}

async fn check(f: &Fixture, now: UnixMs) -> Report {
    let mut reports = check_once(&f.store, &[mesh(f).await], now).await;
    assert_eq!(reports.len(), 1);
    reports.remove(0).unwrap()
}

const THREE_DAYS: DedupeMode = DedupeMode::RetentionScoped { days: 3 };

async fn expiry(f: &Fixture) {
    let items = ["a", "b", "c"].map(|id| f.item(0, id, TOPIC, "hi")).to_vec();
    accept_at(f, NOW, THREE_DAYS, items).await;
    accept_at(f, day(1), THREE_DAYS, vec![f.item(0, "later", TOPIC, "hi")]).await;
    accept_at(f, NOW, DedupeMode::Permanent, vec![f.item(0, "kept", TOPIC, "hi")]).await;
    let just_before = UnixMs(day(4).0 - 1);
    assert_eq!(f.store.dedupe_sweep(just_before, 10).await.unwrap(), 0, "they live a day longer");
    assert_eq!(f.store.dedupe_sweep(day(4), 2).await.unwrap(), 2, "the limit");
    assert_eq!(f.store.dedupe_sweep(day(4), 2).await.unwrap(), 1);
    assert_eq!(f.store.dedupe_sweep(day(4), 2).await.unwrap(), 0);
    let found = f.look_up(0, &["a", "b", "c", "later", "kept"]).await;
    let found: Vec<bool> = found.iter().map(Option::is_some).collect();
    assert_eq!(found, [false, false, false, true, true]);
    assert_eq!(f.store.dedupe_sweep(day(100_000), 10).await.unwrap(), 1);
    assert!(f.look_up(0, &["kept"]).await[0].is_some(), "for ever");
}

async fn permanent(f: &Fixture) {
    accept_at(f, NOW, THREE_DAYS, vec![f.item(0, "a", TOPIC, "hi")]).await;
    plant(f, "UPDATE mesh.mesh SET dedupe_mode = 'permanent'").await;
    assert_eq!(f.store.dedupe_sweep(day(1000), 10).await.unwrap(), 0);
    assert!(f.look_up(0, &["a"]).await[0].is_some());
}

async fn retention(f: &Fixture) {
    let mut first = f.item(0, "a", TOPIC, "hi");
    first.mentions = vec![pubkey(2)];
    let id = first.broker_message_id;
    f.accept(vec![first, f.item(0, "b", ("dm", &pubkey(2)), "hi"), f.item(0, "c", QUEUE, "hi")])
        .await;
    assert_eq!(f.store.retention_sweep(f.mesh_id, NOW, 10).await.unwrap(), 0, "not older");
    assert_eq!(f.store.retention_sweep(f.mesh_id, day(1), 10).await.unwrap(), 3);
    for number in 0..3 {
        assert_eq!(f.waiting(number).await, [] as [i64; 0], "undelivered ones go too");
    }
    for table in ["topic_message", "message_queue", "message_history", "delivery_queue"] {
        assert_eq!(plant(f, &format!("DELETE FROM mesh.{table}")).await, 0, "{table}");
    }
    assert_eq!(plant(f, "DELETE FROM mesh.mention_index").await, 0);
    match f.accept_one(f.item(0, "a", TOPIC, "hi")).await {
        Verdict::Duplicate(held) => {
            assert_eq!((held.broker_message_id, held.history_id), (id, None));
            assert!(!held.history_available);
        }
        other => panic!("{other:?}"),
    }
    let reused = f.accept_one(f.item(0, "a", TOPIC, "other")).await;
    assert!(matches!(reused, Verdict::Reused(_)), "{reused:?}");
    // The numbers go on.
    match f.accept_one(f.item(0, "d", TOPIC, "hi")).await {
        Verdict::Accepted { history_id, .. } => assert_eq!(history_id, 4),
        other => panic!("{other:?}"),
    }
    assert!(check(f, day(1)).await.is_clean());
}

async fn one_fails(f: &Fixture) {
    f.accept(vec![f.item(0, "a", TOPIC, "hi")]).await;
    accept_at(f, NOW, THREE_DAYS, vec![f.item(0, "b", TOPIC, "hi")]).await;
    let other = f.another_mesh("second").await;
    other.accept(vec![other.item(0, "a", TOPIC, "hi")]).await;
    f.forbid_retention().await;
    let meshes = f.store.mesh_list().await.unwrap();
    assert_eq!(
        meshes.iter().map(|mesh| mesh.slug.as_str()).collect::<Vec<_>>(),
        ["second", "test"]
    );
    // The one that fails comes first.
    let meshes = [meshes[1].clone(), meshes[0].clone()];
    let swept = sweep_once(&f.store, &meshes, day(400)).await;
    assert_eq!((swept.messages, swept.ids), (1, 3), "{swept:?}");
    assert_eq!(swept.failures.len(), 1, "{swept:?}");
    assert!(swept.failures[0].starts_with("messages of \"test\": "), "{swept:?}");
}

async fn limited(f: &Fixture) {
    for n in 0..6 {
        let to = if n % 2 == 0 { TOPIC } else { QUEUE };
        accept_at(f, day(n), THREE_DAYS, vec![f.item(0, &format!("{n}"), to, "hi")]).await;
    }
    assert_eq!(f.store.retention_sweep(f.mesh_id, day(4), 3).await.unwrap(), 3);
    assert_eq!(f.waiting(0).await, [5], "the oldest of both kinds go first");
    assert_eq!(f.store.retention_sweep(f.mesh_id, day(4), 3).await.unwrap(), 1);
    assert_eq!(f.store.retention_sweep(f.mesh_id, day(4), 3).await.unwrap(), 0);
    let other = f.mint.uuid();
    assert_eq!(f.store.retention_sweep(other, day(1000), 3).await.unwrap(), 0, "of this mesh");
    assert_eq!(f.waiting(0).await, [5]);
    let found = f.look_up(0, &["3", "4"]).await;
    let found: Vec<_> =
        found.iter().flatten().map(|h| (h.history_available, h.history_id)).collect();
    assert_eq!(found, [(false, None), (true, Some(5))]);
}

async fn reused_id(f: &Fixture) {
    accept_at(f, NOW, THREE_DAYS, vec![f.item(0, "a", TOPIC, "hi")]).await;
    assert_eq!(f.store.dedupe_sweep(day(4), 10).await.unwrap(), 1);
    accept_at(f, day(5), THREE_DAYS, vec![f.item(0, "a", TOPIC, "again")]).await;
    assert_eq!(f.store.retention_sweep(f.mesh_id, day(1), 10).await.unwrap(), 1);
    let held = f.look_up(0, &["a"]).await.remove(0).unwrap();
    assert_eq!((held.history_available, held.history_id), (true, Some(2)));
}

/// Accepts of every kind, a refusal, a retry and a mention, at that time.
async fn mix(f: &Fixture, now: UnixMs, round: &str) {
    let id = |name: &str| format!("{round}-{name}");
    let mut mention = f.item(0, &id("mention"), TOPIC, "hi");
    mention.mentions = vec![pubkey(1), pubkey(2)];
    let items = vec![
        mention,
        f.item(1, &id("dm"), ("dm", &pubkey(2)), "hi"),
        f.item(1, &id("queue"), QUEUE, "hi"),
        f.item(0, &id("topic"), TOPIC, "hi"),
    ];
    accept_at(f, now, THREE_DAYS, items).await;
    let refused = f.accept_one(f.item(0, &id("no"), ("topic", "nowhere"), "hi")).await;
    assert!(matches!(refused, Verdict::Refused(_)), "{refused:?}");
    let retried = f.accept_one(f.item(0, &id("topic"), TOPIC, "hi")).await;
    assert!(matches!(retried, Verdict::Duplicate(_)), "{retried:?}");
}

async fn clean(f: &Fixture) {
    assert_eq!(check(f, NOW).await, Report::default(), "nothing at all");
    plant(f, "UPDATE mesh.mesh SET dedupe_retention_days = 3, message_retention_days = 7").await;
    for (number, round) in (0..).zip(["a", "b", "c", "d", "e", "f"]) {
        let now = day(2 * number);
        mix(f, now, round).await;
        let acknowledged = f.members[0].as_uuid();
        f.done(acknowledged, 3 * number).await;
        let report = check(f, now).await;
        assert!(report.is_clean() && report.rows > 0, "before the sweep: {report:?}");
        sweep_once(&f.store, &[mesh(f).await], now).await;
        let report = check(f, now).await;
        assert!(report.is_clean() && report.rows > 0, "after the sweep: {report:?}");
    }
    let swept = sweep_once(&f.store, &[mesh(f).await], day(100)).await;
    // On day 10 the rounds of days 0 to 6 had lost their ids, and that of days 0 and 2 their rows.
    assert_eq!(swept, SweepReport { ids: 8, messages: 16, ..SweepReport::default() });
    assert_eq!(check(f, day(100)).await, Report::default());
}

async fn skewed_clocks(f: &Fixture) {
    let hour = |number: i64| UnixMs(NOW.0 + number * DAY_MS / 24);
    for (id, at) in [("a", 2), ("b", 0), ("c", 3)] {
        accept_at(f, hour(at), DedupeMode::Permanent, vec![f.item(0, id, TOPIC, "hi")]).await;
    }
    plant(f, "UPDATE mesh.mesh SET message_retention_days = 7").await;
    let now = UnixMs(hour(1).0 + 7 * DAY_MS);
    let swept = sweep_once(&f.store, &[mesh(f).await], now).await;
    assert_eq!((swept.messages, f.waiting(0).await), (1, vec![1, 3]));
    assert!(check(f, now).await.is_clean());
}

/// A year ahead for four seconds, and a day off; then a year that really passes.
async fn steps(f: &Fixture) {
    accept_at(f, NOW, THREE_DAYS, vec![f.item(0, "kept", TOPIC, "hi")]).await;
    let (clock, metrics, mut sweeps) =
        (SimClock::at_ms(NOW.0), Metrics::default(), SweepClock::new());
    let night = async |sweeps: &mut SweepClock| {
        night_when_settled(&f.store, &clock, &metrics, sweeps).await.unwrap()
    };
    night(&mut sweeps).await;
    clock.advance(CLOCK_SETTLES_AFTER);
    assert_eq!(night(&mut sweeps).await, HOUSEKEEPING_INTERVAL, "it has settled");
    for ms in [365 * DAY_MS, -365 * DAY_MS, DAY_MS, -DAY_MS] {
        clock.step_wall_ms(ms);
        assert!(night(&mut sweeps).await < HOUSEKEEPING_INTERVAL * 2);
        assert_eq!(f.waiting(1).await, [1], "after a step of {ms} ms");
        assert!(f.look_up(0, &["kept"]).await[0].is_some());
        clock.advance(Duration::from_secs(4));
    }
    clock.advance(CLOCK_SETTLES_ALONE);
    night(&mut sweeps).await;
    assert_eq!(f.waiting(1).await, [1]);
    clock.advance(DAY * 400);
    assert_eq!(night(&mut sweeps).await, HOUSEKEEPING_INTERVAL, "no clock has stepped");
    // PostgreSQL's own clock says that no year has passed.
    assert_eq!(f.waiting(1).await.is_empty(), f.store.is_alone());
}

/// A broker that starts a year after its newest message; then one a few hours after it.
async fn starts_ahead(f: &Fixture) {
    accept_at(f, NOW, THREE_DAYS, vec![f.item(0, "kept", TOPIC, "hi")]).await;
    let metrics = Metrics::default();
    let ahead = SimClock::at_ms(day(400).0);
    let mut sweeps = sweep_clock(&f.store, &ahead).await;
    for _ in 0..3 {
        ahead.advance(CLOCK_SETTLES_AFTER);
        night_when_settled(&f.store, &ahead, &metrics, &mut sweeps).await.unwrap();
        assert_eq!(f.waiting(1).await, [1]);
        assert!(f.look_up(0, &["kept"]).await[0].is_some());
    }
    let right = SimClock::at_ms(day(0).0 + DAY_MS / 2);
    let mut sweeps = sweep_clock(&f.store, &right).await;
    right.advance(CLOCK_SETTLES_AFTER);
    let next = night_when_settled(&f.store, &right, &metrics, &mut sweeps).await.unwrap();
    assert_eq!(next, HOUSEKEEPING_INTERVAL, "nothing was ahead");
    ahead.advance(CLOCK_SETTLES_ALONE);
    let mut sweeps = sweep_clock(&f.store, &ahead).await;
    ahead.advance(CLOCK_SETTLES_ALONE);
    night_when_settled(&f.store, &ahead, &metrics, &mut sweeps).await.unwrap();
    // PostgreSQL's own clock says that no year has passed.
    assert_eq!(f.waiting(1).await.is_empty(), f.store.is_alone(), "it has lasted");
}

async fn pages(f: &Fixture) {
    for round in 0..5 {
        let items = (0..500).map(|n| f.item(0, &format!("{round}-{n}"), TOPIC, "hi")).collect();
        accept_at(f, NOW, THREE_DAYS, items).await;
    }
    let report = check(f, NOW).await;
    assert!(report.is_clean());
    assert_eq!(report.rows, 2500 * 5, "an id, a message, its history and two deliveries");
    assert_eq!(plant(f, "DELETE FROM mesh.message_history WHERE seq IN (1, 1001, 2500)").await, 3);
    let found = check(f, NOW).await;
    let expected = Report {
        rows: 2500 * 5 - 3,
        message_without_history: 3,
        history_gaps: 2,
        delivery_without_history: 6,
        ..Report::default()
    };
    assert_eq!(found, expected, "the first number is like one that retention removed");
    let swept = sweep_once(&f.store, &[mesh(f).await], day(400)).await;
    assert_eq!(swept, SweepReport { ids: 2500, messages: 2500, ..SweepReport::default() });
}

async fn meanwhile(f: &Fixture) {
    plant(f, "UPDATE mesh.mesh SET message_retention_days = 7").await;
    let mesh = mesh(f).await;
    // Half of what is written is too old at once.
    let writer = async {
        for round in 0..40 {
            let at = if round % 2 == 0 { NOW } else { day(10) };
            let id = |n| format!("{round}-{n}");
            let items = (0..60).map(|n| f.item(0, &id(n), TOPIC, "hi")).collect();
            accept_at(f, at, DedupeMode::Permanent, items).await;
        }
    };
    let sweeper = async {
        let mut swept = 0;
        while swept < 20 * 60 {
            swept += f.store.retention_sweep(f.mesh_id, day(3), 100).await.unwrap();
        }
    };
    // Old and new take turns in history here, which clocks do not: gaps are left out.
    let checker = async {
        for _ in 0..20 {
            let report = f.store.check(&mesh, day(10)).await.unwrap();
            let report = Report { history_gaps: 0, ..report };
            assert!(report.is_clean(), "{report:?}");
        }
    };
    tokio::join!(writer, sweeper, checker);
    assert_eq!(f.store.check(&mesh, day(10)).await.unwrap().rows, 1200 * 5 + 1200);
}

/// What planted damage does to a report.
type Effect = fn(&mut Report);

async fn damage(f: &Fixture) {
    plant(f, "UPDATE mesh.mesh SET dedupe_retention_days = 3").await;
    // Eight rounds of four messages. Damage goes where no other was done.
    for number in 0..8 {
        mix(f, NOW, &format!("{number}")).await;
    }
    let mut expected = check(f, NOW).await;
    assert!(expected.is_clean());
    let steps: [(&str, Effect); 7] = [
        ("mesh.client_message_dedupe WHERE client_message_id = '0-topic'", |r| {
            r.message_without_dedupe += 1;
        }),
        ("mesh.client_message_dedupe WHERE client_message_id = '0-dm'", |r| {
            r.message_without_dedupe += 1;
        }),
        ("mesh.topic_message WHERE client_message_id = '1-topic'", |r| {
            r.dedupe_without_message += 1;
            r.history_without_message += 1;
        }),
        ("mesh.message_queue WHERE client_message_id = '1-queue'", |r| {
            r.dedupe_without_message += 1;
            r.history_without_message += 1;
        }),
        // A message to the topic that mentions two: two deliveries, two mentions.
        ("mesh.message_history WHERE seq = 9", |r| {
            r.message_without_history += 1;
            r.history_gaps += 1;
            r.delivery_without_history += 2;
            r.mention_without_history += 2;
        }),
        ("mesh.message_history WHERE seq = 32", |r| {
            r.message_without_history += 1;
            r.history_gaps += 1;
            r.delivery_without_history += 2;
        }),
        // What acknowledgements do as well, and so no damage that can be seen.
        ("mesh.delivery_queue WHERE seq = 16", |r| r.rows -= 1),
    ];
    for (rows, effect) in steps {
        let deleted = plant(f, &format!("DELETE FROM {rows}")).await;
        expected.rows -= 1;
        effect(&mut expected);
        let found = check(f, NOW).await;
        assert_eq!(found, expected, "{deleted} rows of {rows}");
        assert!(!found.is_clean());
    }
    // Ids may be gone once their window is over.
    expected.message_without_dedupe = 0;
    assert_eq!(check(f, day(3)).await, expected);
}
