//! Who is there, told to daemons of every broker, and pushes that go out again by the timer.

use std::collections::BTreeMap;
use std::time::Duration;

use semel_broker::limits::{GHOST_AFTER, PRESENCE_NAMES_AGAIN, PRESENCE_NAMES_MAX, Timings};
use semel_broker::store::{Acked, Greeted, NewMember, Pulse, Role};
use semel_core::clock::Reading;
use semel_wire::frame::{FromBroker, FromDaemon, PresenceCount, PresenceRequest};

use crate::client::{Daemon, send_frame, serve_timed, until};
use crate::sessions::{QUICK, negotiate};
use crate::support::{self, Fixture};

const TOPIC: (&str, &str) = ("topic", "builds");

/// Reads presence until it is as wanted: members by number.
async fn sees(daemon: &mut Daemon, seen: &mut BTreeMap<usize, bool>, wanted: &[(usize, bool)]) {
    let wanted: BTreeMap<usize, bool> = wanted.iter().copied().collect();
    while *seen != wanted {
        match daemon.next().await {
            Ok(FromBroker::Presence(presence)) => {
                let number = (0..3).find(|n| presence.name.starts_with(&format!("member {n}")));
                assert_eq!(presence.pubkey, support::keys(number.unwrap()).public().to_hex());
                seen.insert(number.unwrap(), presence.online);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_was_there_by_a_clock_that_was_ahead_is_gone_in_time() {
    let fixture = support::sqlite().await;
    assert!(fixture.plant("UPDATE presence SET heartbeat_at = heartbeat_at + 3600000").await > 0);
    let served = serve_timed(fixture, 1, false, QUICK).await;
    // Somebody is answered, so the broker has begun.
    let _daemon = Daemon::welcomed(served.address, 0).await;
    let at = Reading { wall: support::NOW.saturating_add(GHOST_AFTER), monotonic: GHOST_AFTER };
    let pulse = Pulse { at, ghost_after: GHOST_AFTER };
    let Fixture { store, mesh_id, .. } = &served.fixture;
    let others = store.roster(*mesh_id, pulse, 10).await.unwrap();
    let others = others.iter().filter(|one| !one.name.starts_with("member 0"));
    assert_eq!(others.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn coming_and_going_is_seen_at_every_broker() {
    let fixture = support::postgres().await;
    fixture.plant("DELETE FROM mesh.presence").await;
    let two = serve_timed(fixture.elsewhere().await, 2, true, QUICK).await;
    let one = serve_timed(fixture, 1, true, QUICK).await;
    let mut watcher = Daemon::welcomed(one.address, 0).await;
    negotiate(&mut watcher).await;
    let mut seen = BTreeMap::new();
    sees(&mut watcher, &mut seen, &[(0, true)]).await;
    let other = Daemon::welcomed(two.address, 1).await;
    sees(&mut watcher, &mut seen, &[(0, true), (1, true)]).await;
    drop(other);
    sees(&mut watcher, &mut seen, &[(0, true), (1, false)]).await;
    // A broker that vanishes takes nobody along: its daemons are gone after the limit.
    let _stays = Daemon::welcomed(two.address, 2).await;
    sees(&mut watcher, &mut seen, &[(0, true), (1, false), (2, true)]).await;
    two.stopped.abort();
    assert!(two.stopped.await.unwrap_err().is_cancelled());
    age(&one.fixture, GHOST_AFTER / 2).await;
    let mut late = Daemon::welcomed(one.address, 1).await;
    sees(&mut watcher, &mut seen, &[(0, true), (1, true), (2, true)]).await;
    // The heartbeat of those who live is on time.
    let beaten = format!(
        "UPDATE mesh.presence SET acked_seq = 0 WHERE heartbeat_at >= mesh.now_ms() - {}",
        (GHOST_AFTER / 4).as_millis()
    );
    until(async || one.fixture.plant(&beaten).await >= 2).await;
    age(&one.fixture, GHOST_AFTER / 2).await;
    sees(&mut watcher, &mut seen, &[(0, true), (1, true), (2, false)]).await;
    until(async || one.fixture.plant("UPDATE mesh.presence SET acked_seq = 0").await == 2).await;
    // Who comes now is told of nobody who is not there.
    negotiate(&mut late).await;
    sees(&mut late, &mut BTreeMap::new(), &[(0, true), (1, true)]).await;
}

/// So much time passes for heartbeats: the store goes by a clock of its own.
async fn age(fixture: &Fixture, by: Duration) {
    let sql = "UPDATE mesh.presence SET heartbeat_at = heartbeat_at";
    fixture.plant(&format!("{sql} - {}", by.as_millis())).await;
}

/// Two daemons of a member get every delivery. A clock that steps ahead makes no ghost of the
/// slower one: what it has not got yet is not ended by the other's acknowledgement.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_steps_makes_nobody_a_ghost() {
    for f in [support::sqlite().await, support::postgres().await] {
        let sql = "UPDATE mesh.mesh SET clone_concurrency_policy = 'allow_concurrent'";
        assert_eq!(f.plant(sql).await, 1);
        let fast = f.sessions[1];
        let slow = f.store.hello(&f.new_session(1, 50)).await.unwrap();
        let Greeted::Welcome { session: slow, .. } = slow else { panic!("{slow:?}") };
        f.accept_one(f.item(0, "one", TOPIC, "hi")).await;
        for step in [Duration::from_secs(60), Duration::from_secs(365 * 24 * 60 * 60)] {
            let mut pulse = support::pulse(support::NOW);
            pulse.at.wall = pulse.at.wall.saturating_add(step);
            assert_eq!(f.store.ghosts_sweep(pulse, 10).await.unwrap(), 0);
            assert_eq!(f.store.roster(f.mesh_id, pulse, 10).await.unwrap().len(), 4);
            let acked = f.store.deliveries_acked(f.mesh_id, &fast, (0, 1), pulse).await.unwrap();
            assert_eq!(acked, Acked { up_to: 0, ended: 0 });
            assert_eq!(f.waiting(1).await, [1], "the other one has not got it");
        }
        let pulse = support::pulse(support::NOW);
        let acked = f.store.deliveries_acked(f.mesh_id, &slow, (0, 1), pulse).await.unwrap();
        assert_eq!(acked, Acked { up_to: 1, ended: 1 });
    }
}

/// What is left of earlier ones until it is vacuumed is not gone through for every later one.
#[tokio::test(flavor = "multi_thread")]
async fn deliveries_to_several_daemons_end_from_where_the_last_ones_ended() {
    for f in [support::sqlite().await, support::postgres().await] {
        let sql = "UPDATE mesh.mesh SET clone_concurrency_policy = 'allow_concurrent'";
        assert_eq!(f.plant(sql).await, 1);
        for id in ["one", "two", "three"] {
            f.accept_one(f.item(0, id, TOPIC, "hi")).await;
        }
        let (session, pulse) = (f.sessions[1], support::pulse(support::NOW));
        let acked = f.store.deliveries_acked(f.mesh_id, &session, (1, 2), pulse).await.unwrap();
        assert_eq!(acked, Acked { up_to: 2, ended: 1 });
        assert_eq!(f.waiting(1).await, [1, 3]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_forgotten_while_it_lives_is_written_again() {
    for fixture in [support::sqlite().await, support::postgres().await] {
        fixture.plant("DELETE FROM mesh.presence").await;
        let served = serve_timed(fixture, 1, false, QUICK).await;
        let mut daemon = Daemon::welcomed(served.address, 0).await;
        until(async || served.fixture.plant("DELETE FROM mesh.presence").await != 0).await;
        until(async || served.fixture.plant("UPDATE mesh.presence SET acked_seq = 0").await != 0)
            .await;
        assert_eq!(daemon.send(send_frame("one", TOPIC, "hi")).await.status, 201);
        drop(daemon);
        until(async || served.fixture.plant("UPDATE mesh.presence SET acked_seq = 0").await != 1)
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_read_holds_nobody_up() {
    let fixture = support::sqlite().await;
    fixture.plant("DELETE FROM presence").await;
    let served = serve_timed(fixture, 1, false, QUICK).await;
    let mut slow = Daemon::welcomed(served.address, 1).await;
    negotiate(&mut slow).await;
    let mut watcher = Daemon::welcomed(served.address, 0).await;
    negotiate(&mut watcher).await;
    let mut seen = BTreeMap::new();
    sees(&mut watcher, &mut seen, &[(0, true), (1, true)]).await;
    for _ in 0..5 {
        let guest = Daemon::welcomed(served.address, 2).await;
        sees(&mut watcher, &mut seen, &[(0, true), (1, true), (2, true)]).await;
        drop(guest);
        sees(&mut watcher, &mut seen, &[(0, true), (1, true), (2, false)]).await;
    }
}

/// Reads presence up to a count.
async fn counted(daemon: &mut Daemon) -> PresenceCount {
    loop {
        match daemon.next().await {
            Ok(FromBroker::PresenceCount(count)) => return count,
            Ok(FromBroker::Presence(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_mesh_is_counted_and_asked_for_names() {
    let fixture = support::sqlite().await;
    fixture.plant("DELETE FROM presence").await;
    let mut members = fixture.members.clone();
    for number in 3..=PRESENCE_NAMES_MAX {
        let member = NewMember {
            member_id: fixture.mint.uuid(),
            name: format!("member {number}"),
            role: Role::Member,
            key_id: format!("key-{number}"),
            pubkey: support::pubkey(number),
        };
        members.push(member.member_id);
        fixture.store.member_add(fixture.mesh_id, &member, support::NOW).await.unwrap();
    }
    let served = serve_timed(fixture, 1, false, QUICK).await;
    let mut watcher = Daemon::welcomed(served.address, 0).await;
    negotiate(&mut watcher).await;
    let mut others = Vec::new();
    for number in 1..=PRESENCE_NAMES_MAX {
        others.push(Daemon::welcomed(served.address, number).await);
    }
    let count = counted(&mut watcher).await;
    assert_eq!(count, PresenceCount { online: PRESENCE_NAMES_MAX as u64 + 1, names: false });
    let nobody = served.fixture.mint.uuid();
    let asked = PresenceRequest { request_id: 1, members: vec![members[2], nobody, members[0]] };
    watcher.say(&FromDaemon::PresenceRequest(asked)).await;
    match watcher.next().await {
        Ok(FromBroker::PresenceResult(result)) => {
            assert_eq!(result.online, [members[2], members[0]]);
        }
        other => panic!("{other:?}"),
    }
    others.truncate(PRESENCE_NAMES_AGAIN / 2);
    let count = loop {
        let count = counted(&mut watcher).await;
        if count.names {
            break count.online;
        }
    };
    let mut told = std::collections::BTreeSet::new();
    for _ in 0..count {
        match watcher.next().await {
            Ok(FromBroker::Presence(one)) => assert!(one.online && told.insert(one.member_id)),
            other => panic!("{other:?}"),
        }
    }
    assert!(told.contains(&members[0]) && told.len() <= PRESENCE_NAMES_AGAIN);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_acknowledged_goes_out_again_by_the_timer() {
    for fixture in [support::sqlite().await, support::postgres().await] {
        let redeliver_after = Duration::from_millis(50);
        // No heartbeat and no hint: nothing happens but the timer.
        let timings = Timings { redeliver_after, ..Timings::default() };
        let served = serve_timed(fixture, 1, false, timings).await;
        let mut sender = Daemon::welcomed(served.address, 0).await;
        let mut receiver = Daemon::welcomed(served.address, 1).await;
        assert_eq!(sender.send(send_frame("one", TOPIC, "hi")).await.status, 201);
        let first = receiver.pushed().await.deliveries;
        for _ in 0..2 {
            served.clock.advance(redeliver_after);
            assert_eq!(receiver.pushed().await.deliveries, first);
        }
        receiver.ack(first[0].seq).await;
        until(async || served.fixture.waiting(1).await.is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_said_is_set_aside_and_no_acknowledgement_ends_it() {
    for fixture in [support::sqlite().await, support::postgres().await] {
        let served = serve_timed(fixture, 1, false, Timings::default()).await;
        let fixture = &served.fixture;
        let mut sender = Daemon::welcomed(served.address, 0).await;
        assert_eq!(sender.send(send_frame("unsaid", TOPIC, "hi")).await.status, 201);
        // The sender has its own copy by now, and what is left is the receiver's.
        let sent = fixture.waiting(1).await[0];
        until(async || {
            sender.ack(sent).await;
            fixture.waiting(0).await.is_empty()
        })
        .await;
        // The key is gone, and comes back with what is sent later.
        let lose = "UPDATE mesh.member_key SET status = 'rotated_out' WHERE key_id = 'key-0'";
        assert_eq!(fixture.plant(lose).await, 1);
        let mut receiver = Daemon::welcomed(served.address, 1).await;
        until(async || fixture.waiting(1).await.is_empty()).await;
        let find = "UPDATE mesh.member_key SET status = 'current' WHERE key_id = 'key-0'";
        assert_eq!(fixture.plant(find).await, 1);
        assert_eq!(sender.send(send_frame("said", TOPIC, "hi")).await.status, 201);
        let pushed = receiver.pushed().await.deliveries;
        assert_eq!(pushed[0].client_message_id.as_str(), "said");
        receiver.ack(pushed[0].seq).await;
        until(async || fixture.waiting(1).await.is_empty()).await;
        let mesh = fixture.store.mesh_find("test").await.unwrap().unwrap();
        let report = fixture.store.check(&mesh, support::NOW).await.unwrap();
        assert_eq!(report.delivery_set_aside, 1);
        assert!(!report.is_clean());
        // It is kept for as long as its message.
        let later = semel_core::clock::UnixMs(support::NOW.0 + 1);
        assert_eq!(fixture.store.retention_sweep(mesh.mesh_id, later, 10).await.unwrap(), 2);
        let report = fixture.store.check(&mesh, support::NOW).await.unwrap();
        assert_eq!(report.delivery_set_aside, 0);
    }
}
