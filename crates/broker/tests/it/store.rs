//! What both stores of the broker promise, as one suite.

use std::collections::HashSet;
use std::sync::Arc;

use semel_broker::accept::Verdict;
use semel_broker::store::{
    Arrived, Asked, Deleted, Deleter, Ended, Greeted, InUse, MemberStatus, Store,
};
use semel_core::code::Code;
use semel_core::fingerprint::{BodyHash, Fingerprint};
use semel_core::id::UuidId;
use semel_testkit::conformance::{Case, conforms};
use semel_testkit::proxy::Fault;

use crate::support::{self, Fixture, NOW, pubkey};

const TOPIC: (&str, &str) = ("topic", "builds");

/// To the third member.
fn dm2() -> (&'static str, &'static str) {
    static KEY: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    ("dm", KEY.get_or_init(|| pubkey(2)))
}

fn history_id(verdict: &Verdict) -> i64 {
    match verdict {
        Verdict::Accepted { history_id, .. } => *history_id,
        other => panic!("not accepted: {other:?}"),
    }
}

#[rustfmt::skip]
const CASES: &[Case<Fixture>] = &[
    Case { name: "a first send has all its effects", run: |f| Box::pin(first_send(f)) },
    Case { name: "a retry is a duplicate, another request not", run: |f| Box::pin(retries(f)) },
    Case { name: "a refusal leaves nothing behind", run: |f| Box::pin(refusals(f)) },
    Case { name: "a refusal removes only its own claim", run: |f| Box::pin(mixed_batch(f)) },
    Case { name: "an id that occurs twice in a batch", run: |f| Box::pin(twice_in_a_batch(f)) },
    Case { name: "two senders may use the same id", run: |f| Box::pin(same_id_two_senders(f)) },
    Case { name: "a stale session is closed, not refused", run: |f| Box::pin(stale_session(f)) },
    Case { name: "only a known, active key is greeted", run: |f| Box::pin(greetings(f)) },
    Case { name: "of many racers with one id one is accepted", run: |f| Box::pin(racers(f)) },
    Case { name: "history numbers have no gap", run: |f| Box::pin(gap_free(f)) },
    Case { name: "acknowledged deliveries are gone", run: |f| Box::pin(acknowledged(f)) },
    Case { name: "many are read and ended at once", run: |f| Box::pin(read_and_ended_together(f)) },
    Case { name: "the rows of an accepted send read back", run: |f| Box::pin(reads_back(f)) },
];

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_conforms() {
    assert_eq!(conforms(CASES, support::sqlite).await, CASES.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_conforms() {
    assert_eq!(conforms(CASES, support::postgres).await, CASES.len());
}

async fn first_send(f: &Fixture) {
    let topic = f.accept_one(f.item(0, "one", TOPIC, "hi")).await;
    assert_eq!(history_id(&topic), 1);
    let direct = f.accept_one(f.item(0, "two", dm2(), "hi")).await;
    assert_eq!(history_id(&direct), 2);
    let queued = f.accept_one(f.item(0, "three", ("queue", "work"), "hi")).await;
    assert_eq!(history_id(&queued), 3);
    // Every subscriber, the sender too; the recipient alone; no member.
    assert_eq!(f.waiting(0).await, [1]);
    assert_eq!(f.waiting(1).await, [1]);
    assert_eq!(f.waiting(2).await, [2]);
}

async fn retries(f: &Fixture) {
    let first = f.item(0, "one", TOPIC, "hi");
    let id = first.broker_message_id;
    history_id(&f.accept_one(first).await);
    match f.accept_one(f.item(0, "one", TOPIC, "hi")).await {
        Verdict::Duplicate(held) => {
            assert_eq!((held.broker_message_id, held.history_id), (id, Some(1)));
            assert_eq!((held.first_seen_at, held.history_available), (NOW, true));
        }
        other => panic!("{other:?}"),
    }
    for other in [f.item(0, "one", TOPIC, "ho"), f.item(0, "one", dm2(), "hi")] {
        match f.accept_one(other).await {
            Verdict::Reused(held) => assert_eq!(held.broker_message_id, id),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(f.waiting(1).await, [1], "one message");
    let found = f.look_up(0, &["one", "never"]).await;
    assert_eq!(found[0].as_ref().unwrap().broker_message_id, id);
    assert_eq!(found[1], None);
}

async fn refusals(f: &Fixture) {
    let nobody = pubkey(99);
    let cases = [
        (0, ("topic", "nowhere"), Code::TopicNotFound),
        (2, TOPIC, Code::NotSubscribed),
        (0, ("dm", nobody.as_str()), Code::RecipientNotFound),
        (0, ("queue", "nowhere"), Code::QueueNotFound),
    ];
    for (sender, to, code) in cases {
        let verdict = f.accept_one(f.item(sender, "one", to, "hi")).await;
        assert_eq!(verdict, Verdict::Refused(code));
        assert_eq!(f.look_up(sender, &["one"]).await, [None], "a refusal takes its claim back");
    }
    let end = |status| f.store.member_end(f.mesh_id, f.members[1], status, f.audited());
    assert_eq!(end(MemberStatus::Revoked).await.unwrap(), Ended::Done);
    let verdict = f.accept_one(f.item(1, "one", TOPIC, "hi")).await;
    assert_eq!(verdict, Verdict::Stale, "its sessions have ended with it");
    assert_eq!(end(MemberStatus::Left).await.unwrap(), Ended::NotActive, "it ended before");
    let revoke = "UPDATE mesh.member SET status = 'revoked' WHERE name LIKE 'member 2%'";
    assert_eq!(f.plant(revoke).await, 1);
    let verdict = f.accept_one(f.item(2, "one", ("queue", "work"), "hi")).await;
    assert_eq!(verdict, Verdict::Refused(Code::MemberInactive));
    // The same id is free for the request that is allowed.
    assert_eq!(history_id(&f.accept_one(f.item(0, "one", TOPIC, "hi")).await), 1);
}

async fn mixed_batch(f: &Fixture) {
    history_id(&f.accept_one(f.item(0, "old", TOPIC, "hi")).await);
    let verdicts = f
        .accept(vec![
            f.item(0, "a", TOPIC, "hi"),
            f.item(0, "b", ("topic", "nowhere"), "hi"),
            f.item(0, "old", TOPIC, "hi"),
            f.item(2, "c", dm2(), "hi"),
            f.item(0, "old", TOPIC, "other"),
        ])
        .await;
    assert_eq!(history_id(&verdicts[0]), 2);
    assert_eq!(verdicts[1], Verdict::Refused(Code::TopicNotFound));
    assert!(matches!(verdicts[2], Verdict::Duplicate(_)), "{verdicts:?}");
    assert_eq!(history_id(&verdicts[3]), 3);
    assert!(matches!(verdicts[4], Verdict::Reused(_)), "{verdicts:?}");
    let found = f.look_up(0, &["a", "b"]).await;
    assert!(found[0].is_some() && found[1].is_none(), "{found:?}");
}

async fn twice_in_a_batch(f: &Fixture) {
    let verdicts = f
        .accept(vec![
            f.item(0, "a", TOPIC, "hi"),
            f.item(0, "a", TOPIC, "hi"),
            f.item(0, "b", TOPIC, "hi"),
            f.item(0, "a", TOPIC, "other"),
        ])
        .await;
    assert_eq!(history_id(&verdicts[0]), 1);
    match &verdicts[1] {
        Verdict::Duplicate(held) => assert_eq!(held.history_id, Some(1)),
        other => panic!("{other:?}"),
    }
    assert_eq!(history_id(&verdicts[2]), 2);
    assert!(matches!(verdicts[3], Verdict::Reused(_)), "{verdicts:?}");
    assert_eq!(f.waiting(0).await, [1, 2]);
}

async fn same_id_two_senders(f: &Fixture) {
    let verdicts =
        f.accept(vec![f.item(0, "deploy-1", TOPIC, "a"), f.item(1, "deploy-1", TOPIC, "b")]).await;
    assert_eq!((history_id(&verdicts[0]), history_id(&verdicts[1])), (1, 2));
}

async fn stale_session(f: &Fixture) {
    let old = f.item(0, "one", TOPIC, "hi");
    let newer = f.hello(0).await;
    assert!(newer.epoch > old.session.epoch, "epochs never repeat");
    assert_eq!(f.accept_one(old).await, Verdict::Stale);
    assert_eq!(f.waiting(1).await, [] as [i64; 0]);
    let mut current = f.item(0, "one", TOPIC, "hi");
    current.session = newer;
    history_id(&f.accept_one(current.clone()).await);
    // Also for an id that is known: only the current connection is answered.
    let mut unknown = f.item(0, "one", TOPIC, "hi");
    unknown.session.instance_id = UuidId::new(uuid::Uuid::from_u128(555));
    let verdicts = f.accept(vec![f.item(0, "one", TOPIC, "hi"), unknown, current]).await;
    assert_eq!(verdicts[..2], [Verdict::Stale, Verdict::Stale]);
}

async fn greetings(f: &Fixture) {
    let new = |number| f.new_session(number, 1);
    assert_eq!(f.store.hello(&new(99)).await.unwrap(), Greeted::Unknown);
    let left = MemberStatus::Left;
    assert_eq!(
        f.store.member_end(f.mesh_id, f.members[1], left, f.audited()).await.unwrap(),
        Ended::Done
    );
    assert_eq!(f.store.hello(&new(1)).await.unwrap(), Greeted::Inactive);
    assert_eq!(f.store.store_epoch().await.unwrap(), "epoch-1");
}

async fn racers(f: &Fixture) {
    let racers = (0..24).map(|n| {
        let body = if n % 3 == 0 { "other" } else { "hi" };
        let item = f.item(0, "contended", TOPIC, body);
        async move { f.accept_one(item).await }
    });
    let verdicts = futures_util::future::join_all(racers).await;
    let winners: Vec<&Verdict> =
        verdicts.iter().filter(|v| matches!(v, Verdict::Accepted { .. })).collect();
    assert_eq!(winners.len(), 1, "{verdicts:?}");
    let Verdict::Accepted { broker_message_id, .. } = winners[0] else { unreachable!() };
    for verdict in &verdicts {
        match verdict {
            Verdict::Accepted { .. } => {}
            Verdict::Duplicate(held) | Verdict::Reused(held) => {
                assert_eq!(held.broker_message_id, *broker_message_id);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(f.waiting(1).await, [1]);
}

async fn gap_free(f: &Fixture) {
    let writers = (0..8).map(|writer| async move {
        let mut seqs = Vec::new();
        for n in 0..12 {
            let id = format!("{writer}-{n}");
            // Every third one is refused, and must not use a number up.
            let to = if n % 3 == 2 { ("topic", "nowhere") } else { TOPIC };
            match f.accept_one(f.item(writer % 2, &id, to, "hi")).await {
                Verdict::Accepted { history_id, .. } => seqs.push(history_id),
                Verdict::Refused(_) => {}
                other => panic!("{other:?}"),
            }
        }
        seqs
    });
    let seqs: Vec<i64> =
        futures_util::future::join_all(writers).await.into_iter().flatten().collect();
    let distinct: HashSet<i64> = seqs.iter().copied().collect();
    assert_eq!(distinct, (1..=64).collect::<HashSet<i64>>());
    assert_eq!(f.waiting(0).await, (1..=64).collect::<Vec<i64>>());
}

async fn acknowledged(f: &Fixture) {
    for id in ["a", "b", "c"] {
        history_id(&f.accept_one(f.item(0, id, TOPIC, "hi")).await);
    }
    let recipient = f.members[1].as_uuid();
    assert_eq!(f.done(recipient, 2).await, 2);
    assert_eq!(f.waiting(1).await, [3]);
    assert_eq!(f.waiting(0).await, [1, 2, 3]);
    let page =
        support::deliveries(&f.store, f.mesh_id, f.members[0].as_uuid(), (1, 1)).await.unwrap();
    assert_eq!(page.whole.iter().map(|d| d.seq).collect::<Vec<_>>(), [2]);
}

async fn read_and_ended_together(f: &Fixture) {
    for id in ["a", "b", "c"] {
        history_id(&f.accept_one(f.item(0, id, TOPIC, "hi")).await);
    }
    history_id(&f.accept_one(f.item(0, "d", dm2(), "hi")).await);
    let recipient = |number: usize| f.members[number].as_uuid();
    let asked = |number, after_seq, limit| Asked { recipient: recipient(number), after_seq, limit };
    let asked = [asked(1, 0, 2), asked(2, 0, 10), asked(0, 2, 10), asked(0, 9, 10)];
    let found = f.store.deliveries_of(f.mesh_id, &asked).await.unwrap();
    assert_eq!(found.seqs, [vec![1, 2], vec![4], vec![3], vec![]]);
    let read: Vec<i64> = found.messages.whole.iter().map(|message| message.seq).collect();
    assert_eq!((read, found.cut), (vec![1, 2, 3, 4], vec![false; 4]), "each message once");
    let arrived = |number, seq| Arrived { recipient: recipient(number), after: 0, seq };
    let arrived = [arrived(1, 2), arrived(0, 1), arrived(2, 3)];
    assert_eq!(f.store.deliveries_done_along(f.mesh_id, &arrived).await.unwrap(), 3);
    assert_eq!(f.store.deliveries_done_along(f.mesh_id, &arrived).await.unwrap(), 0);
    assert_eq!((f.waiting(0).await, f.waiting(1).await), (vec![2, 3], vec![3]));
    assert_eq!(f.waiting(2).await, [4]);
    // What is before was ended already, and is not looked at.
    let rest = [Arrived { recipient: recipient(0), after: 2, seq: 3 }];
    assert_eq!(f.store.deliveries_done_along(f.mesh_id, &rest).await.unwrap(), 1);
    assert_eq!(f.waiting(0).await, [2]);
}

async fn reads_back(f: &Fixture) {
    let mut item = f.item(0, "one", dm2(), "bytes \u{0} and é");
    item.envelope = item.envelope.with_reply_to("earlier").unwrap();
    item.body_commitment = Some([9; 32]);
    item.fingerprint = Fingerprint::with_body_hash(&item.envelope, BodyHash([9; 32]));
    item.mentions = vec![pubkey(1), pubkey(99)];
    history_id(&f.accept_one(item.clone()).await);
    let found =
        support::deliveries(&f.store, f.mesh_id, f.members[2].as_uuid(), (0, 10)).await.unwrap();
    let [delivery] = found.whole.as_slice() else { panic!("{found:?}") };
    assert_eq!(delivery.client_message_id, item.client_message_id);
    assert_eq!(delivery.broker_message_id, item.broker_message_id);
    assert_eq!(delivery.destination, *item.envelope.destination());
    assert_eq!(delivery.body, item.envelope.body());
    assert_eq!(delivery.reply_to_id.as_deref(), Some("earlier"));
    assert_eq!(delivery.body_commitment, item.body_commitment);
    assert_eq!(delivery.sender_member_id, f.members[0]);
    assert_eq!(delivery.sender_name, "member 0 o'brien'); --");
    assert_eq!(delivery.sender_pubkey, pubkey(0));
    assert_eq!(delivery.accepted_at, NOW);
}

#[tokio::test]
async fn statements_per_batch_do_not_depend_on_its_size() {
    let f = support::postgres().await;
    let Store::Postgres(postgres) = &f.store else { unreachable!() };
    let mut counts = HashSet::new();
    for (round, size) in [1, 1, 7, 64, 300].into_iter().enumerate() {
        let item = |n| f.item(0, &format!("{round}-{n}"), TOPIC, "hi");
        let items = (0..size).map(item).collect();
        let before = postgres.statements_sent();
        assert_eq!(f.accept(items).await.len(), size);
        counts.insert(postgres.statements_sent() - before);
    }
    assert_eq!(counts.len(), 1, "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_waits_for_the_accepts_of_the_old_session() {
    let hello = async |f: Arc<Fixture>| {
        let session = f.hello(0).await;
        assert!(session.epoch > f.sessions[0].epoch);
    };
    waits_for_accepts(hello).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_takes_the_place_of_another_waits_for_its_accepts() {
    let hello = async |f: Arc<Fixture>| {
        let greeted = f.store.hello(&f.new_session(0, 50)).await.unwrap();
        assert!(matches!(greeted, Greeted::Welcome { .. }), "{greeted:?}");
        let verdict = f.accept_one(f.item(0, "late", TOPIC, "hi")).await;
        assert_eq!(verdict, Verdict::Stale);
    };
    waits_for_accepts(hello).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_retires_another_waits_for_its_accepts() {
    let hello = async |f: Arc<Fixture>| {
        let sql = "UPDATE mesh.mesh SET clone_concurrency_policy = 'allow_concurrent'";
        assert_eq!(f.plant(sql).await, 1);
        let mut new = f.new_session(0, 50);
        new.retire = vec![f.sessions[0].instance_id];
        let greeted = f.store.hello(&new).await.unwrap();
        assert!(matches!(greeted, Greeted::Welcome { .. }), "{greeted:?}");
        let verdict = f.accept_one(f.item(0, "late", TOPIC, "hi")).await;
        assert_eq!(verdict, Verdict::Stale);
    };
    waits_for_accepts(hello).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_members_end_waits_for_its_accepts() {
    let end = async |f: Arc<Fixture>| {
        let (member_id, revoked) = (f.members[0], MemberStatus::Revoked);
        assert_eq!(f.plant("UPDATE mesh.member SET role = 'owner'").await, 3);
        assert_eq!(
            f.store.member_end(f.mesh_id, member_id, revoked, f.audited()).await.unwrap(),
            Ended::Done
        );
        let verdict = f.accept_one(f.item(0, "late", TOPIC, "hi")).await;
        assert_eq!(verdict, Verdict::Stale);
    };
    waits_for_accepts(end).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_not_deleted_under_work_that_comes() {
    let f = Arc::new(support::postgres().await);
    let address = f.address.clone().unwrap();
    let (client, connection) =
        tokio_postgres::connect(&address, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let waiting = async |wanted: i64| {
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'
                        AND datname = current_database()";
        while client.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) < wanted {
            tokio::task::yield_now().await;
        }
    };
    // Numbers come last: an accept that waits for its own has chosen its queue.
    client.batch_execute("BEGIN; SELECT 1 FROM mesh.mesh FOR UPDATE").await.unwrap();
    let accept = tokio::spawn({
        let f = Arc::clone(&f);
        async move { f.accept_one(f.item(0, "work", ("queue", "work"), "do")).await }
    });
    waiting(1).await;
    let delete = tokio::spawn({
        let f = Arc::clone(&f);
        let by = (Deleter { member_id: None, may_all: true }, InUse::Refuse);
        async move { f.store.queue_delete(f.mesh_id, "work", by, f.audited()).await.unwrap() }
    });
    let waits = tokio::select! {
        () = waiting(2) => true,
        () = async { while !delete.is_finished() { tokio::task::yield_now().await } } => false,
    };
    client.batch_execute("COMMIT").await.unwrap();
    let accepted = accept.await.unwrap();
    assert!(matches!(accepted, Verdict::Accepted { .. }), "{accepted:?}");
    assert_eq!((waits, delete.await.unwrap()), (true, Deleted::InUse));
}

async fn waits_for_accepts<Ending>(ending: impl FnOnce(Arc<Fixture>) -> Ending)
where
    Ending: Future<Output = ()> + Send + 'static,
{
    let f = Arc::new(support::postgres().await);
    // An accept in the middle of its transaction: it holds the session's row.
    let address = f.address.clone().unwrap();
    let (client, connection) =
        tokio_postgres::connect(&address, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let lock = "BEGIN; SELECT 1 FROM mesh.session FOR SHARE";
    client.batch_execute(lock).await.unwrap();
    let hello = tokio::spawn(ending(Arc::clone(&f)));
    // It is seen to wait in the server, not guessed by time.
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    while client.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) == 0 {
        assert!(!hello.is_finished(), "hello did not wait");
        tokio::task::yield_now().await;
    }
    client.batch_execute("COMMIT").await.unwrap();
    hello.await.unwrap();
}

/// A batch that repeats an id is cut into two transactions. When the second one fails, the first
/// is committed: nothing definite may be said of the whole.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_was_half_committed_is_uncertain() {
    let f = support::postgres().await;
    let (proxy, store) = support::through_a_proxy(&f).await;
    let items = vec![
        f.item(0, "a", TOPIC, "hi"),
        f.item(0, "a", TOPIC, "hi"),
        f.item(0, "doomed", TOPIC, "hi"),
    ];
    proxy.fail_next("doomed", Fault::CutBefore);
    let error = store.accept(&f.batch(items)).await.expect_err("the second part is cut off");
    assert_eq!(error.fate(), semel_store::Fate::Uncertain, "{error:?}");
    let held = f.look_up(0, &["a", "doomed"]).await;
    assert!(held[0].is_some() && held[1].is_none(), "{held:?}");
}
