//! Who speaks for a member: the three policies, revocation, retirement, and a store that was
//! restored under its broker, over real sockets and on both stores.

use std::time::Duration;

use semel_broker::hints;
use semel_broker::limits::{GHOST_AFTER, RETIRED_OF_MEMBER_MAX, Timings};
use semel_broker::store::{AuditKind, Ended, Greeted, MemberStatus, Store};
use semel_core::clock::UnixMs;
use semel_core::hex::Hex;
use semel_core::id::{InstanceId, UuidId};
use semel_wire::features::{ConnectionPolicy, Feature, accept};
use semel_wire::frame::{FromBroker, FromDaemon, Hello};
use uuid::Uuid;

use crate::client::{
    Closed, Daemon, Features, Served, features, send_frame, serve, serve_as, serve_timed, until,
};
use crate::support::{self, Fixture, NOW};

const TOPIC: (&str, &str) = ("topic", "builds");

/// Heartbeats that come at once.
pub(crate) const QUICK: Timings = Timings {
    heartbeat: Duration::from_millis(20),
    ghost_after: GHOST_AFTER,
    redeliver_after: Duration::from_secs(30),
};

/// Nothing is found out by waiting.
const NO_HEARTBEAT: Timings = Timings { heartbeat: Duration::from_secs(3600), ..QUICK };

/// Two doors to one store: two brokers on PostgreSQL, the same broker twice on SQLite.
struct Doors {
    one: Served,
    other: Option<Served>,
}

impl Doors {
    async fn open(fixture: Fixture, policy: ConnectionPolicy) -> Self {
        let policy = format!("UPDATE mesh.mesh SET clone_concurrency_policy = '{policy}'");
        // "mesh." is cut for SQLite, and the table has the name of the schema.
        fixture.plant(&policy).await;
        // The fixture's own sessions are nobody's.
        fixture.plant("DELETE FROM mesh.presence").await;
        let other = match &fixture.store {
            Store::Postgres(_) => {
                Some(serve_timed(fixture.elsewhere().await, 2, true, NO_HEARTBEAT).await)
            }
            Store::Sqlite(_) => None,
        };
        let one = serve_timed(fixture, 1, other.is_some(), NO_HEARTBEAT).await;
        for served in other.iter().chain(other.is_some().then_some(&one)) {
            until(async || served.hints.as_ref().unwrap().counts().connects > 0).await;
        }
        Self { one, other }
    }

    fn other(&self) -> &Served {
        self.other.as_ref().unwrap_or(&self.one)
    }

    async fn kinds(&self) -> Vec<String> {
        let fixture = &self.one.fixture;
        let events = fixture.store.audit_list(fixture.mesh_id, 100).await.unwrap();
        events.into_iter().map(|event| event.kind).collect()
    }
}

async fn both() -> [Fixture; 2] {
    [support::sqlite().await, support::postgres().await]
}

fn instance(number: u128) -> InstanceId {
    UuidId::new(Uuid::from_u128(number))
}

/// Says hello as an instance of the member, with whatever else is changed.
async fn hello(
    served: &Served,
    number: usize,
    change: impl Fn(&mut Hello),
) -> (Daemon, Hello, Result<FromBroker, Closed>) {
    let mut daemon = Daemon::connect(served.address).await;
    let mut hello = daemon.hello(number);
    change(&mut hello);
    daemon.sign(number, &mut hello);
    daemon.say(&FromDaemon::Hello(hello.clone())).await;
    let answer = daemon.next().await;
    (daemon, hello, answer)
}

async fn welcome(served: &Served, number: usize, id: u128) -> (Daemon, Hello) {
    let (daemon, hello, answer) =
        hello(served, number, |hello| hello.instance_id = instance(id)).await;
    assert!(matches!(answer, Ok(FromBroker::HelloAck(_))), "{answer:?}");
    (daemon, hello)
}

/// The daemon was replaced by this hello.
async fn replaced(daemon: &mut Daemon, by: &Hello) {
    let closed = daemon.closed().await;
    assert_eq!((closed.code, closed.reason.unwrap().nonce), (4003, Some(by.nonce)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_is_preferred() {
    for fixture in both().await {
        let doors = Doors::open(fixture, ConnectionPolicy::PreferNewest).await;
        let (mut first, _) = welcome(&doors.one, 0, 1).await;
        let (mut second, by) = welcome(doors.other(), 0, 2).await;
        replaced(&mut first, &by).await;
        assert_eq!(second.send(send_frame("two", TOPIC, "hi")).await.status, 201);
        assert_eq!(doors.kinds().await, [AuditKind::ConcurrentConnection.as_str()]);
        // The same daemon again is no concurrence.
        let (_third, by) = welcome(&doors.one, 0, 2).await;
        replaced(&mut second, &by).await;
        assert_eq!(doors.kinds().await.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_welcome_says_the_number_of_the_next_message() {
    for fixture in both().await {
        let served = serve(fixture).await;
        for number in 1..=3 {
            let (mut daemon, ack) = Daemon::greeted(served.address, 0).await;
            assert_eq!(ack.next_seq, number);
            let sent = daemon.send(send_frame(&format!("send-{number}"), TOPIC, "hi")).await;
            assert_eq!(sent.status, 201);
        }
        // It is the mesh's, whoever asks.
        let (_, ack) = Daemon::greeted(served.address, 1).await;
        assert_eq!(ack.next_seq, 4);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_is_preferred() {
    for fixture in both().await {
        let doors = Doors::open(fixture, ConnectionPolicy::PreferOldest).await;
        let (mut first, _) = welcome(&doors.one, 0, 1).await;
        let newcomer = |hello: &mut Hello| hello.instance_id = instance(2);
        let (_, _, refused) = hello(doors.other(), 0, newcomer).await;
        let refused = refused.unwrap_err();
        assert_eq!((refused.code, doors.kinds().await.len()), (4004, 1));
        assert_eq!(first.send(send_frame("one", TOPIC, "hi")).await.status, 201, "nothing raised");
        // Its own reconnect takes over.
        let (mut again, by) = welcome(doors.other(), 0, 1).await;
        replaced(&mut first, &by).await;
        assert_eq!(again.send(send_frame("two", TOPIC, "hi")).await.status, 201);
        // A newcomer that retires it may come.
        let (_heir, _, welcome) = hello(&doors.one, 0, |hello| {
            hello.instance_id = instance(2);
            hello.retire = vec![instance(1)];
        })
        .await;
        assert!(matches!(welcome, Ok(FromBroker::HelloAck(_))), "{welcome:?}");
        assert!(matches!(again.closed().await.code, 4003 | 4005));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_gone_is_not_preferred() {
    for fixture in both().await {
        let doors = Doors::open(fixture, ConnectionPolicy::PreferOldest).await;
        let (first, _) = welcome(&doors.one, 0, 1).await;
        drop(first);
        until(async || doors.one.hub.connections() == 0).await;
        // Its end may still be on its way to the store.
        let welcomed = async || {
            let newcomer = |hello: &mut Hello| hello.instance_id = instance(2);
            hello(doors.other(), 0, newcomer).await.2.is_ok()
        };
        until(welcomed).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn siblings_get_every_message_and_it_ends_when_all_have_it() {
    for fixture in both().await {
        let doors = Doors::open(fixture, ConnectionPolicy::AllowConcurrent).await;
        let fixture = &doors.one.fixture;
        let (mut one, _) = welcome(&doors.one, 1, 1).await;
        let (mut two, _) = welcome(doors.other(), 1, 2).await;
        assert_eq!(doors.kinds().await, [AuditKind::ConcurrentConnection.as_str()]);
        let (mut sender, _) = welcome(&doors.one, 0, 9).await;
        assert_eq!(sender.send(send_frame("a", TOPIC, "hi")).await.status, 201);
        let seq = one.pushed().await.deliveries[0].seq;
        assert_eq!(two.pushed().await.deliveries[0].seq, seq);
        one.ack(seq).await;
        // The answer to this comes after the acknowledgement was written.
        acked(fixture, 1, 1, seq).await;
        assert_eq!(fixture.waiting(1).await, [seq], "the other one does not have it");
        two.ack(seq).await;
        until_waiting(fixture, 1, &[]).await;
        // One that leaves is waited for no longer.
        assert_eq!(sender.send(send_frame("b", TOPIC, "hi")).await.status, 201);
        let seq = one.pushed().await.deliveries[0].seq;
        one.ack(seq).await;
        acked(fixture, 1, 1, seq).await;
        assert_eq!(fixture.waiting(1).await, [seq]);
        drop(two);
        until_waiting(fixture, 1, &[]).await;
        // The same daemon again closes only its own older connection.
        let (mut three, _) = welcome(&doors.one, 1, 3).await;
        let (_again, by) = welcome(doors.other(), 1, 1).await;
        replaced(&mut one, &by).await;
        assert_eq!(three.send(send_frame("c", TOPIC, "hi")).await.status, 201);
    }
}

/// Waits until the instance's acknowledgement is in the store.
async fn acked(fixture: &Fixture, member: usize, id: u128, seq: i64) {
    let sql = match fixture.store {
        Store::Sqlite(_) => format!(
            "UPDATE presence SET acked_seq = acked_seq WHERE acked_seq = {seq} AND instance_id = \
             x'{}'",
            instance(id).as_uuid().simple()
        ),
        Store::Postgres(_) => format!(
            "UPDATE mesh.presence SET acked_seq = acked_seq WHERE acked_seq = {seq} AND \
             instance_id = '{}'",
            instance(id)
        ),
    };
    assert!(member < fixture.members.len());
    until(async || fixture.plant(&sql).await == 1).await;
}

async fn until_waiting(fixture: &Fixture, member: usize, wanted: &[i64]) {
    until(async || fixture.waiting(member).await == wanted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_is_offered_truthfully() {
    let doors = Doors::open(support::sqlite().await, ConnectionPolicy::AllowConcurrent).await;
    let (mut daemon, _) = welcome(&doors.one, 0, 1).await;
    let response = negotiate(&mut daemon).await;
    let negotiated = accept(Feature::REQUIRED, &response).expect("all that is required");
    assert_eq!(negotiated.connection_policy, Some(ConnectionPolicy::AllowConcurrent));
}

/// Agrees on features: presence begins after that.
pub(crate) async fn negotiate(
    daemon: &mut Daemon,
) -> semel_wire::frame::FeatureNegotiationResponse {
    daemon.features = Features::Shown;
    daemon.say(&FromDaemon::FeatureNegotiationRequest(features())).await;
    match daemon.next().await {
        Ok(FromBroker::FeatureNegotiationResponse(response)) => response,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_revoked_is_told_first_and_closed_everywhere() {
    for fixture in both().await {
        let doors = Doors::open(fixture, ConnectionPolicy::AllowConcurrent).await;
        let (mut one, _) = welcome(&doors.one, 1, 1).await;
        let (mut two, _) = welcome(doors.other(), 1, 2).await;
        let (mut witness, _) = welcome(doors.other(), 0, 3).await;
        let fixture = &doors.one.fixture;
        let (member_id, revoked) = (fixture.members[1], MemberStatus::Revoked);
        let ended =
            fixture.store.member_end(fixture.mesh_id, member_id, revoked, fixture.audited());
        assert_eq!(ended.await.unwrap(), Ended::Done);
        // As the operator's verb does; on SQLite this is the running broker's own.
        let from = UuidId::new(Uuid::from_u128(99));
        hints::tell_sessions_changed(&fixture.store, from, fixture.mesh_id).await.unwrap();
        if doors.other.is_none() {
            doors.one.hub.touch_sessions(semel_broker::meshes::Meshes::one(fixture.mesh_id));
        }
        for daemon in [&mut one, &mut two] {
            assert!(matches!(daemon.next().await, Ok(FromBroker::MemberRevoked(_))));
            assert_eq!(daemon.closed().await.code, 4005);
        }
        assert_eq!(witness.send(send_frame("one", TOPIC, "hi")).await.status, 201);
        let kinds = doors.kinds().await;
        assert!(kinds.contains(&AuditKind::MemberRevoked.as_str().to_owned()), "{kinds:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_finds_a_revocation_of_which_nobody_told() {
    for fixture in both().await {
        let served = serve_timed(fixture, 1, false, QUICK).await;
        let mut daemon = Daemon::welcomed(served.address, 1).await;
        let fixture = &served.fixture;
        let (member_id, left) = (fixture.members[1], MemberStatus::Left);
        let ended = fixture.store.member_end(fixture.mesh_id, member_id, left, fixture.audited());
        assert_eq!(ended.await.unwrap(), Ended::Done);
        assert!(matches!(daemon.next().await, Ok(FromBroker::MemberRevoked(_))));
        assert_eq!(daemon.closed().await.code, 4005);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_of_who_was_revoked_is_not_answered_but_told_why() {
    for fixture in both().await {
        let served = serve_as(fixture, 1, false).await;
        let mut daemon = Daemon::welcomed(served.address, 1).await;
        let fixture = &served.fixture;
        let (member_id, revoked) = (fixture.members[1], MemberStatus::Revoked);
        let ended =
            fixture.store.member_end(fixture.mesh_id, member_id, revoked, fixture.audited());
        assert_eq!(ended.await.unwrap(), Ended::Done);
        daemon.say(&FromDaemon::Send(send_frame("late", TOPIC, "hi"))).await;
        assert!(matches!(daemon.next().await, Ok(FromBroker::MemberRevoked(_))));
        assert_eq!(daemon.closed().await.code, 4005);
        assert_eq!(fixture.look_up(1, &["late"]).await, [None]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_was_retired_is_refused_for_ever_and_sends_nothing_more() {
    for fixture in both().await {
        let doors = Doors::open(fixture, ConnectionPolicy::AllowConcurrent).await;
        let (mut owner, _) = welcome(&doors.one, 0, 1).await;
        let late = {
            let fixture = &doors.one.fixture;
            let roster =
                fixture.store.roster(fixture.mesh_id, support::pulse(NOW), 10).await.unwrap();
            let mut late = fixture.item(0, "late", TOPIC, "hi");
            late.session = roster[0].session;
            late
        };
        let adopt = |hello: &mut Hello| {
            hello.instance_id = instance(2);
            hello.retire = vec![instance(1)];
        };
        let (mut adopter, _, welcomed) = hello(doors.other(), 0, adopt).await;
        assert!(matches!(welcomed, Ok(FromBroker::HelloAck(_))), "{welcomed:?}");
        assert_eq!(owner.closed().await.code, 4005);
        let verdict = doors.one.fixture.accept_one(late).await;
        assert_eq!(verdict, semel_broker::accept::Verdict::Stale);
        for _ in 0..2 {
            let retired = |hello: &mut Hello| hello.instance_id = instance(1);
            let (_, _, refused) = hello(&doors.one, 0, retired).await;
            assert_eq!(refused.unwrap_err().code, 4005);
        }
        // Another member's instance of that name is another one.
        let (_other, _) = welcome(&doors.one, 1, 1).await;
        assert_eq!(adopter.send(send_frame("one", TOPIC, "hi")).await.status, 201);
        let kinds = doors.kinds().await;
        let retired = kinds.iter().filter(|kind| *kind == AuditKind::InstanceRetired.as_str());
        assert_eq!(retired.count(), 1, "{kinds:?}");
        let itself = |hello: &mut Hello| hello.retire = vec![hello.instance_id];
        let (_, _, refused) = hello(&doors.one, 0, itself).await;
        assert_eq!(refused.unwrap_err().code, 4008);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_retires_so_many_and_no_more() {
    for fixture in both().await {
        let retire = async |first: i64, count: i64| {
            let ids = first..first + count;
            let mut new = fixture.new_session(0, 60);
            new.retire = ids.map(|id| instance(1000 + u128::try_from(id).unwrap())).collect();
            new.event_ids = [(); 3].map(|()| fixture.mint.uuid());
            fixture.store.hello(&new).await.unwrap()
        };
        for first in (0..RETIRED_OF_MEMBER_MAX).step_by(64) {
            let greeted = retire(first, 64).await;
            assert!(matches!(greeted, Greeted::Welcome { .. }), "{first}: {greeted:?}");
        }
        assert_eq!(retire(RETIRED_OF_MEMBER_MAX, 1).await, Greeted::TooManyRetired);
        // Those that are retired may be named again, and others of the member still come.
        let again = retire(0, 64).await;
        assert!(matches!(again, Greeted::Welcome { .. }), "{again:?}");
        let count = "UPDATE mesh.retired_instance SET retired_at = retired_at";
        let count = fixture.plant(count).await;
        assert_eq!(i64::try_from(count).unwrap(), RETIRED_OF_MEMBER_MAX);
        let mut other = fixture.new_session(1, 60);
        other.retire = vec![instance(1)];
        let other = fixture.store.hello(&other).await.unwrap();
        assert!(matches!(other, Greeted::Welcome { .. }), "{other:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_instance_on_two_machines_is_a_suspicion() {
    for fixture in both().await {
        let doors = Doors::open(fixture, ConnectionPolicy::PreferNewest).await;
        let on = |host: u8| move |hello: &mut Hello| hello.host_fingerprint = Some(Hex([host; 32]));
        let (_one, _, _) = hello(&doors.one, 0, on(1)).await;
        let (_same, _, _) = hello(doors.other(), 0, on(1)).await;
        assert!(doors.kinds().await.is_empty());
        let (_two, _, _) = hello(&doors.one, 0, on(2)).await;
        assert_eq!(doors.kinds().await, [AuditKind::CloneSuspected.as_str()]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_restored_under_its_broker_ends_it() {
    for (fixture, timings) in both().await.into_iter().zip([QUICK, Timings::default()]) {
        let restored = "UPDATE mesh.store SET store_epoch = 'epoch-2'";
        let served = serve_timed(fixture, 1, false, timings).await;
        let mut daemon = Daemon::welcomed(served.address, 0).await;
        assert_eq!(served.fixture.plant(restored).await, 1);
        if timings == Timings::default() {
            // Without a heartbeat the next hello finds out.
            let mut late = Daemon::connect(served.address).await;
            let hello = late.hello(1);
            late.say(&FromDaemon::Hello(hello)).await;
            let closed = late.closed().await;
            assert!(closed.reason.is_none(), "{closed:?}");
        }
        let closed = daemon.closed().await;
        assert!(closed.code == 1011 && closed.reason.is_none(), "{closed:?}");
        assert!(served.stopped.await.unwrap().is_err());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_trail_ends_after_a_year() {
    for fixture in both().await {
        let end = fixture.store.member_end(
            fixture.mesh_id,
            fixture.members[1],
            MemberStatus::Left,
            fixture.audited(),
        );
        assert_eq!(end.await.unwrap(), Ended::Done);
        let events = fixture.store.audit_list(fixture.mesh_id, 10).await.unwrap();
        assert_eq!(events[0].kind, AuditKind::MemberLeft.as_str());
        let (on_it, after) = (NOW, UnixMs(NOW.0 + 1));
        assert_eq!(fixture.store.audit_sweep(on_it, 10).await.unwrap(), 0);
        assert_eq!(fixture.store.audit_sweep(after, 10).await.unwrap(), 1);
    }
}
