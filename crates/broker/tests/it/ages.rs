//! Clocks that are wrong, at the broker and at those who send: nothing final is said by them, and
//! no id is taken in twice.

use semel_core::clock::UnixMs;
use semel_core::id::ClientMessageId;
use semel_core::limits::CLOCK_SETTLES_AFTER;
use semel_wire::frame::{FromBroker, FromDaemon, Resolve, ResolveItem, SendResult, Verdict};

use crate::client::{Daemon, Served, send_frame, serve};
use crate::support::{self, NOW};

const QUEUE: (&str, &str) = ("queue", "work");
const HOUR_MS: i64 = 60 * 60 * 1000;
/// Longer than ids are remembered, also from what a server's own clock says on.
const LONG_MS: i64 = 900 * 24 * HOUR_MS;

async fn both() -> [Served; 2] {
    [serve(support::sqlite().await).await, serve(support::postgres().await).await]
}

async fn send_of(daemon: &mut Daemon, id: &str, enqueued_at: UnixMs) -> SendResult {
    let mut frame = send_frame(id, QUEUE, "hi");
    frame.enqueued_at = enqueued_at;
    daemon.send(frame).await
}

async fn resolve(daemon: &mut Daemon, id: &str, enqueued_at: UnixMs) -> Option<Verdict> {
    let item = ResolveItem {
        client_message_id: ClientMessageId::parse(id).unwrap(),
        request_fingerprint: send_frame(id, QUEUE, "hi").request_fingerprint,
        enqueued_at,
    };
    daemon.say(&FromDaemon::Resolve(Resolve { request_id: 3, items: vec![item] })).await;
    let Ok(FromBroker::ResolveResult(result)) = daemon.next().await else { panic!("no result") };
    result.items.first().map(|item| item.verdict)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_was_just_set_says_nothing_final_about_ages() {
    for served in both().await {
        let mut daemon = Daemon::welcomed(served.address, 0).await;
        assert_eq!(daemon.send(send_frame("held", QUEUE, "hi")).await.status, 201);

        served.clock.step_wall_ms(LONG_MS);
        let told = send_of(&mut daemon, "young", NOW).await;
        assert_eq!((told.status, told.retry_after_ms), (429, Some(5000)));
        let told = daemon.send(send_frame("held", QUEUE, "another request")).await;
        assert_eq!(told.status, 429, "nor whether the id was another's first");
        assert_eq!(send_of(&mut daemon, "held", NOW).await.status, 200, "what is known is known");
        assert_eq!(resolve(&mut daemon, "young", NOW).await, None);
        served.clock.step_wall_ms(-LONG_MS);
        assert_eq!(send_of(&mut daemon, "young", NOW).await.status, 201);
        assert_eq!(resolve(&mut daemon, "never", NOW).await, Some(Verdict::Absent));

        // A clock that was set and stays so is believed, where there is no other.
        served.clock.step_wall_ms(LONG_MS);
        assert_eq!(send_of(&mut daemon, "old", NOW).await.status, 429);
        served.clock.advance(CLOCK_SETTLES_AFTER);
        let expected = if served.fixture.store.is_alone() { 410 } else { 429 };
        assert_eq!(send_of(&mut daemon, "old", NOW).await.status, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_was_set_back_takes_nothing_in_that_may_be_forgotten() {
    for served in both().await {
        let mut daemon = Daemon::welcomed(served.address, 0).await;
        let long_ago = UnixMs(NOW.0 - LONG_MS);
        assert_eq!(send_of(&mut daemon, "forgotten", long_ago).await.status, 410);
        served.clock.step_wall_ms(-LONG_MS);
        assert_eq!(send_of(&mut daemon, "forgotten", long_ago).await.status, 429);
        assert_eq!(resolve(&mut daemon, "forgotten", long_ago).await, None);
        served.clock.step_wall_ms(LONG_MS);
        assert_eq!(resolve(&mut daemon, "forgotten", long_ago).await, Some(Verdict::TooOld));
    }
}

/// It is too old only that much later, and so its row is kept for as long.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_from_a_time_that_has_not_come_is_known_until_it_is_too_old() {
    for served in both().await {
        let mut daemon = Daemon::welcomed(served.address, 0).await;
        let (ahead, store) = (UnixMs(NOW.0 + LONG_MS), &served.fixture.store);
        assert_eq!(send_of(&mut daemon, "ahead", ahead).await.status, 201);
        assert_eq!(resolve(&mut daemon, "never", ahead).await, Some(Verdict::Absent));
        let mesh = store.mesh_list().await.unwrap().remove(0);
        let kept_to = mesh.dedupe.expires_at(ahead).unwrap();
        assert_eq!(store.dedupe_sweep(UnixMs(kept_to.0 - 1), 10).await.unwrap(), 0);
        assert_eq!(send_of(&mut daemon, "ahead", ahead).await.status, 200);
        assert!(mesh.too_old(ahead, kept_to), "then it may be forgotten");
    }
}

/// Also by a sweep that comes when the clock is right again.
#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_was_taken_in_by_a_clock_that_was_behind_is_kept_as_long_as_any() {
    for served in both().await {
        let mut daemon = Daemon::welcomed(served.address, 0).await;
        served.clock.step_wall_ms(-LONG_MS);
        assert_eq!(send_of(&mut daemon, "behind", NOW).await.status, 201);
        served.clock.step_wall_ms(LONG_MS);
        assert_eq!(send_of(&mut daemon, "right", NOW).await.status, 201);
        let mesh = served.fixture.store.mesh_list().await.unwrap().remove(0);
        let kept_to = mesh.dedupe.expires_at(NOW).unwrap();
        let swept = served.fixture.store.dedupe_sweep(UnixMs(kept_to.0 - 1), 10).await.unwrap();
        assert_eq!(swept, 0);
        let times = served.fixture.look_up(0, &["behind", "right"]).await;
        let times: Vec<_> = times.into_iter().flatten().map(|held| held.first_seen_at).collect();
        assert_eq!(times, [NOW, NOW]);
        if served.fixture.store.is_alone() {
            assert_eq!(served.fixture.store.dedupe_sweep(kept_to, 10).await.unwrap(), 2);
        }
    }
}
