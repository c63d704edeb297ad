//! What a change of a mesh's rules, and a restore, mean for ids that were accepted before.

use std::sync::Arc;

use semel_broker::accept::{AcceptBatch, DedupeMode, Verdict};
use semel_broker::housekeeping::sweep_once;
use semel_broker::store::{Greeted, Mesh, MeshChange};
use semel_core::clock::UnixMs;

use super::store;
use crate::client::{Daemon, Served, send_frame};
use crate::support::{Fixture, NOW};

const TOPIC: (&str, &str) = ("topic", "builds");

const fn days(days: u32) -> DedupeMode {
    DedupeMode::RetentionScoped { days }
}

fn day(number: i64) -> UnixMs {
    UnixMs(NOW.0 + number * 24 * 60 * 60 * 1000)
}

async fn mesh(served: &Served) -> Mesh {
    store(served).mesh_find("test").await.unwrap().unwrap()
}

async fn set(served: &Served, dedupe: DedupeMode, now: UnixMs) -> Mesh {
    let change = MeshChange { dedupe: Some(dedupe), ..MeshChange::default() };
    let was = mesh(served).await;
    assert!(store(served).mesh_set(&was, &change, now).await.unwrap());
    mesh(served).await
}

/// Accepts under a rule that need not be the mesh's any more: a connection keeps the one it was
/// told.
async fn accept(f: &Fixture, id: &str, mode: DedupeMode, now: UnixMs) {
    let items = vec![f.item(0, id, TOPIC, "hi")];
    let expires_at = mode.expires_at(now);
    let batch = Arc::new(AcceptBatch { mesh_id: f.mesh_id, now, expires_at, items });
    let verdicts = f.store.accept(&batch).await.unwrap().verdicts;
    assert!(matches!(verdicts[..], [Verdict::Accepted { .. }]), "{verdicts:?}");
}

/// Which of these are still known after a sweep at that time.
async fn known(served: &Served, now: UnixMs, ids: &[&str]) -> Vec<bool> {
    let meshes = [mesh(served).await];
    assert_eq!(sweep_once(store(served), &meshes, now).await.failures, [] as [String; 0]);
    served.fixture.look_up(0, ids).await.iter().map(Option::is_some).collect()
}

pub(super) async fn raise(served: &Served) {
    let f = &served.fixture;
    set(served, days(3), NOW).await;
    // More than a page of them.
    let mut items = Vec::new();
    for number in 0..1100 {
        items.push(f.item(
            number % 3,
            &format!("id-{number}"),
            ("dm", &crate::support::pubkey(0)),
            "x",
        ));
    }
    for some in items.chunks(400) {
        f.accept(some.to_vec()).await;
    }
    accept(f, "old", days(3), NOW).await;
    let raised = set(served, days(30), day(2)).await;
    assert_eq!(raised.dedupe, days(30));
    accept(f, "stale rule", days(3), day(2)).await;
    assert_eq!(known(served, day(5), &["old", "id-0", "id-1098"]).await, [true, true, true]);
    assert_eq!(known(served, day(30), &["old", "stale rule"]).await, [true, true]);
    assert_eq!(known(served, day(31), &["old", "stale rule"]).await, [false, true]);
    assert_eq!(known(served, day(33), &["old", "stale rule"]).await, [false, false]);
    // What the shorter rule may have forgotten is not judged by the longer one.
    assert!(raised.too_old(UnixMs(day(-1).0 - 1), day(2)));
    assert!(!raised.too_old(day(-1), day(2)));
    // Somebody else was faster.
    let change = MeshChange { dedupe: Some(days(9)), ..MeshChange::default() };
    let stale = Mesh { dedupe: days(3), ..raised };
    assert!(!store(served).mesh_set(&stale, &change, day(3)).await.unwrap());
    let change =
        MeshChange { rate_limit: Some(7), inline_bytes: Some(2048), ..MeshChange::default() };
    assert!(store(served).mesh_set(&mesh(served).await, &change, day(3)).await.unwrap());
    let changed = mesh(served).await;
    assert_eq!((changed.rate_limit, changed.inline_bytes, changed.dedupe), (7, 2048, days(30)));
}

pub(super) async fn lower(served: &Served) {
    let f = &served.fixture;
    set(served, days(30), NOW).await;
    accept(f, "long", days(30), NOW).await;
    // Told thirty days by the mesh, written under a connection's older rule.
    accept(f, "stale", days(3), NOW).await;
    let lowered = set(served, days(3), NOW).await;
    accept(f, "short", days(3), NOW).await;
    assert_eq!(lowered.dedupe_known_since, UnixMs(0), "nothing was forgotten");
    assert_eq!(known(served, day(4), &["long", "stale", "short"]).await, [true, true, false]);
    assert_eq!(known(served, day(31), &["long", "stale"]).await, [false, false]);
    // For ever, and back.
    set(served, DedupeMode::Permanent, day(31)).await;
    accept(f, "ever", DedupeMode::Permanent, day(31)).await;
    accept(f, "ever, too", days(3), day(31)).await;
    set(served, days(3), day(32)).await;
    assert_eq!(known(served, day(9999), &["ever", "ever, too"]).await, [true, true]);
}

/// A lane of the pipeline outlives a change, and must not judge new connections by old rules.
pub(super) async fn connections(served: &Served) {
    set(served, days(3), NOW).await;
    let body = "x".repeat(3000);
    let mut older = Daemon::welcomed(served.address, 0).await;
    assert_eq!(older.send(send_frame("one", TOPIC, &body)).await.status, 201);
    let change = MeshChange { inline_bytes: Some(2048), ..MeshChange::default() };
    assert!(store(served).mesh_set(&mesh(served).await, &change, NOW).await.unwrap());
    set(served, days(30), NOW).await;
    assert_eq!(older.send(send_frame("two", TOPIC, &body)).await.status, 201, "as it was told");
    let mut newer = Daemon::welcomed(served.address, 1).await;
    assert_eq!(newer.send(send_frame("three", TOPIC, &body)).await.status, 413);
    assert_eq!(newer.send(send_frame("four", TOPIC, "x")).await.status, 201);
    // Three days back every id is known, however long they are remembered from now on.
    for (ago, status) in [(3, 201), (4, 410)] {
        let mut frame = send_frame(&format!("{ago} days"), TOPIC, "x");
        frame.enqueued_at = day(-ago);
        assert_eq!(newer.send(frame).await.status, status, "{ago}");
    }
}

pub(super) async fn renewed(served: &Served) {
    let f = &served.fixture;
    let (before, old) = (store(served).store_epoch().await.unwrap(), f.hello(0).await);
    store(served).store_renew("epoch-2").await.unwrap();
    assert_ne!(store(served).store_epoch().await.unwrap(), before);
    let mut late = f.item(0, "late", TOPIC, "hi");
    late.session = old;
    assert_eq!(f.accept_one(late).await, Verdict::Stale, "no connection outlives its store");
    assert_eq!(store(served).roster(f.mesh_id, crate::support::pulse(NOW), 10).await.unwrap(), []);
    let mut new = f.new_session(0, 0);
    assert_eq!(store(served).hello(&new).await.unwrap(), Greeted::Restored);
    new.store_epoch = "epoch-2".to_owned();
    match store(served).hello(&new).await.unwrap() {
        Greeted::Welcome { session, .. } => assert!(session.epoch >= old.epoch + 1_000_000),
        other => panic!("{other:?}"),
    }
}
