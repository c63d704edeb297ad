//! What daemons, brokers and people write to the broker's PostgreSQL store while it serves, with
//! every fault at every request of it and once more in what recovers from that
//! (`semel_testkit::faults`). What only an operator's command writes is not here.
//!
//! Afterwards nothing is half there, what was said of a write is true, the same request again ends
//! in one effect, and the pool is usable.

use std::sync::OnceLock;
use std::time::Duration;

use semel_broker::accept::{AcceptItem, Session, Verdict};
use semel_broker::housekeeping::check_once;
use semel_broker::store::{
    Arrived, Asked, Deleted, Deleter, Ended, Greeted, InUse, Join, Joined, Live, MemberStatus,
    NewInvite, PostgresStore, Role, Store, Take, Taken,
};
use semel_core::clock::UnixMs;
use semel_store::{Fate, StoreError};
use semel_testkit::faults::{Faulty, Tried, every_fault, usable};

use crate::support::{self, Fixture, NOW, pubkey, pulse};

const TOPIC: (&str, &str) = ("topic", "builds");
const WORK: (&str, &str) = ("queue", "work");
/// How often whoever hears no definite answer asks again.
const TRIES: usize = 3;
const LEASE: Duration = Duration::from_secs(30);
const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// Runs it in copies of a mesh to which `more` was done.
async fn each(more: impl AsyncFnOnce(&Fixture), run: impl AsyncFn(&Faulty, &Fixture)) -> Tried {
    let seeded: OnceLock<Fixture> = OnceLock::new();
    let seed = async |address: String| {
        let fixture = support::postgres_at(address).await;
        more(&fixture).await;
        let Store::Postgres(store) = &fixture.store else { unreachable!() };
        store.postgres().close();
        assert!(seeded.set(fixture).is_ok());
    };
    let in_a_copy = async |faulty: &Faulty| {
        let store = open(faulty.options()).await;
        let pool = store.postgres();
        let fixture = seeded.get().unwrap().copied(Store::Postgres(store), faulty.direct());
        // On a busy machine the mesh was made longer ago than a connection lives without a beat.
        let beat = "UPDATE mesh.presence SET heartbeat_at = mesh.now_ms()";
        faulty.look().await.batch_execute(beat).await.unwrap();
        run(faulty, &fixture).await;
        sound(&fixture).await;
        pool.close();
    };
    every_fault(seed, in_a_copy).await
}

async fn open(options: semel_store::postgres::PostgresOptions) -> PostgresStore {
    PostgresStore::open(options, "epoch-1", NOW).await.unwrap()
}

/// The fault happens during `mine`; afterwards the pool is usable.
async fn during<T>(
    (faulty, f): (&Faulty, &Fixture),
    mine: impl Future<Output = T>,
    meanwhile: impl Future<Output = ()>,
) -> T {
    let told = faulty.during(mine, meanwhile).await;
    let Store::Postgres(store) = &f.store else { unreachable!() };
    usable(&store.postgres()).await;
    told
}

/// The same mesh for another broker, on whose way nothing fails.
async fn another(faulty: &Faulty, f: &Fixture) -> Fixture {
    f.copied(Store::Postgres(open(faulty.others()).await), faulty.direct())
}

async fn nothing_more(_: &Fixture) {}

/// No row without its siblings.
async fn sound(f: &Fixture) {
    let mesh = f.store.mesh_find("test").await.unwrap().unwrap();
    let reports = check_once(&f.store, &[mesh], NOW).await;
    let report = reports[0].as_ref().unwrap();
    assert!(report.is_clean(), "{report:?}");
}

/// Asks until the answer is definite and not that nothing was done; all answers, the last one last.
async fn until_told<T>(ask: impl AsyncFn() -> Result<T, StoreError>) -> Vec<Result<T, Fate>> {
    let mut told = Vec::new();
    for _ in 0..TRIES {
        let answer = ask().await.map_err(|error| error.fate());
        let is_done = answer.is_ok();
        told.push(answer);
        if is_done {
            break;
        }
    }
    told
}

/// Whether nothing can be there, by what was said.
fn is_undone<T>(told: &[Result<T, Fate>]) -> bool {
    told.iter().all(|answer| matches!(answer, Err(Fate::Undone)))
}

async fn count(faulty: &Faulty, sql: &str) -> i64 {
    faulty.look().await.query_one(sql, &[]).await.unwrap().get(0)
}

fn sends(f: &Fixture) -> Vec<AcceptItem> {
    let direct = pubkey(2);
    let mut first = f.item(0, "one", TOPIC, "hi");
    first.mentions = vec![pubkey(2)];
    vec![first, f.item(1, "two", ("dm", &direct), "hi"), f.item(0, "three", WORK, "hi")]
}

const IDS: [(usize, &str); 3] = [(0, "one"), (1, "two"), (0, "three")];

#[tokio::test(flavor = "multi_thread")]
async fn an_accept_is_whole_or_not_there() {
    const IDS_THERE: &str = "SELECT count(*) FROM mesh.client_message_dedupe";
    const MESSAGES_THERE: &str = "SELECT count(*) FROM mesh.message_history";
    let there = async |faulty: &Faulty, f: &Fixture| {
        let mut found = vec![count(faulty, IDS_THERE).await, count(faulty, MESSAGES_THERE).await];
        for member in 0..3 {
            found.push(f.waiting(member).await.len().try_into().unwrap());
        }
        found
    };
    let tried = each(nothing_more, async |faulty, f| {
        let accept = async || f.store.accept(&f.batch(sends(f))).await;
        let again = another(faulty, f).await;
        // What a transaction has left on its connection is there for the next one.
        assert!(is_there(&f.accept_one(f.item(0, "before", TOPIC, "hi")).await));
        let before = there(faulty, f).await;
        // The daemon has come back meanwhile, by another broker, and sends them once more.
        let meanwhile = async {
            let _ = again.store.accept(&again.batch(sends(&again))).await;
        };
        let told = during((faulty, f), until_told(accept), meanwhile).await;
        let others = again.look_up(0, &["one"]).await[0].is_some();
        let ids = count(faulty, IDS_THERE).await;
        assert!(!is_undone(&told) || others || ids == before[0], "undone, and there");
        let verdicts = f.accept(sends(f)).await;
        assert!(verdicts.iter().all(is_there), "{told:?}, then {verdicts:?}");
        // Each of them once: two subscribers, one recipient, the queue; in one order for all.
        let more: Vec<i64> =
            before.iter().zip([3, 3, 1, 1, 1]).map(|(it, more)| it + more).collect();
        assert_eq!(there(faulty, f).await, more);
        for (member, id) in IDS {
            let held = again.look_up(member, &[id]).await.remove(0).unwrap();
            assert!(held.history_id.is_some(), "{id} promises what is not there: {held:?}");
        }
    })
    .await;
    assert!(tried.requests > 6, "{tried:?}");
}

fn is_there(verdict: &Verdict) -> bool {
    match verdict {
        Verdict::Accepted { .. } => true,
        Verdict::Duplicate(held) => held.history_id.is_some(),
        _ => false,
    }
}

/// Every send of a daemon over this session would be taken.
async fn speaks(f: &Fixture, session: Session) -> bool {
    let mut item = f.item(0, &format!("by-{}", session.epoch), TOPIC, "hi");
    item.session = session;
    is_there(&f.accept_one(item).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_raises_the_epoch_once_for_each_who_is_welcome() {
    let tried = each(nothing_more, async |faulty, f| {
        let welcome = |greeted: Greeted| match greeted {
            Greeted::Welcome { session, .. } => session,
            other => panic!("{other:?}"),
        };
        let hello = async || f.store.hello(&f.new_session(0, 0)).await.map(welcome);
        let other = another(faulty, f).await;
        let others: OnceLock<Session> = OnceLock::new();
        let meanwhile = async {
            if let Ok(greeted) = other.store.hello(&other.new_session(0, 0)).await {
                let _ = others.set(welcome(greeted));
            }
        };
        let told = during((faulty, f), until_told(hello), meanwhile).await;
        let newest = "SELECT max(session_epoch) FROM mesh.session AS session
                        JOIN mesh.member AS member USING (member_id)
                       WHERE member.role = 'owner'";
        let newest = count(faulty, newest).await;
        let others = others.get().map(|session| session.epoch);
        let mut epochs: Vec<i64> =
            told.iter().flatten().map(|session| session.epoch).chain(others).collect();
        let all = epochs.len();
        epochs.sort_unstable();
        epochs.dedup();
        assert_eq!(epochs.len(), all, "two of them speak at a time: {told:?}, {others:?}");
        let before = f.sessions[0].epoch;
        assert!(!is_undone(&told) || others.is_some() || newest == before, "undone, and raised");
        for session in told.iter().flatten() {
            let is_newest = session.epoch == newest;
            assert_eq!(speaks(f, *session).await, is_newest, "{session:?}, newest {newest}");
        }
        // One that was cut off may have done nothing; whoever is welcome has replaced the first.
        let is_welcome = told.iter().any(Result::is_ok) || others.is_some();
        assert!(newest > before || !is_welcome, "welcome, and not raised");
        assert!(newest == before || !speaks(f, f.sessions[0]).await, "two of them speak");
    })
    .await;
    assert!(tried.requests > 3, "{tried:?}");
}

/// Whoever is connected stays so, is told what is known of its ids, and leaves.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_lives_is_never_told_that_it_does_not() {
    let more = async |f: &Fixture| {
        assert!(is_there(&f.accept_one(f.item(0, "known", TOPIC, "hi")).await));
    };
    let tried = each(more, async |faulty, f| {
        let session = f.sessions[0];
        let live = [Live { session, host_fingerprint: None }];
        let broker = f.new_session(0, 0).broker_id;
        let beat = async || f.store.heartbeat(f.mesh_id, broker, &live, pulse(NOW)).await;
        let known = f.item(0, "known", TOPIC, "hi").client_message_id;
        let ids = [known, f.item(0, "unknown", TOPIC, "hi").client_message_id];
        let ask = async || f.store.resolve(f.mesh_id, &session, &ids).await;
        let life = async { (until_told(beat).await, until_told(ask).await) };
        let (beats, resolved) = during((faulty, f), life, std::future::ready(())).await;
        use semel_broker::store::{Resolved, Standing};
        for beat in beats.into_iter().flatten() {
            assert!(matches!(beat.standings[..], [Standing::Current | Standing::Revived]));
        }
        for resolved in resolved.into_iter().flatten() {
            let Resolved::Current(found) = resolved else { panic!("it is not stale") };
            assert_eq!((found.held[0].is_some(), found.held[1].is_some()), (true, false));
        }
        assert!(speaks(f, session).await);
    })
    .await;
    assert!(tried.requests > 3, "{tried:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_acknowledged_is_delivered() {
    let more = async |f: &Fixture| {
        for id in ["a", "b", "c"] {
            assert!(is_there(&f.accept_one(f.item(0, id, TOPIC, "hi")).await));
        }
    };
    let tried = each(more, async |faulty, f| {
        let [first, recipient] = [0, 1].map(|member| f.members[member].as_uuid());
        let asked =
            [recipient, first].map(|recipient| Asked { recipient, after_seq: 0, limit: 10 });
        let push = async || f.store.deliveries_of(f.mesh_id, &asked).await;
        let arrived = [Arrived { recipient, after: 0, seq: 1 }];
        let done = async || f.store.deliveries_done_along(f.mesh_id, &arrived).await;
        let acked =
            async || f.store.deliveries_acked(f.mesh_id, &f.sessions[1], (0, 2), pulse(NOW)).await;
        let life =
            async { (until_told(push).await, until_told(done).await, until_told(acked).await) };
        let (pushed, done, acked) = during((faulty, f), life, std::future::ready(())).await;
        for pushed in pushed.into_iter().flatten() {
            assert_eq!(pushed.seqs, [[1, 2, 3], [1, 2, 3]]);
            assert_eq!(pushed.messages.whole.len(), 3, "each of them once");
        }
        let waiting = f.waiting(1).await;
        assert!(waiting.contains(&3), "it was never acknowledged: {waiting:?}");
        let said = |told: &[Result<u64, Fate>]| told.iter().any(Result::is_ok);
        let acked: Vec<_> = acked.into_iter().map(|told| told.map(|acked| acked.ended)).collect();
        assert!(!said(&done) || !waiting.contains(&1), "acknowledged, and there: {done:?}");
        assert!(!said(&acked) || !waiting.contains(&2), "acknowledged, and there: {acked:?}");
        assert!(!is_undone(&done) || said(&acked) || !is_undone(&acked) || waiting.contains(&1));
        let again = f.store.deliveries_acked(f.mesh_id, &f.sessions[1], (0, 2), pulse(NOW)).await;
        assert!(again.is_ok(), "{again:?}");
        assert_eq!((f.waiting(1).await, f.waiting(0).await), (vec![3], vec![1, 2, 3]));
    })
    .await;
    assert!(tried.requests > 3, "{tried:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_said_waits_or_is_set_aside() {
    let more = async |f: &Fixture| {
        assert!(is_there(&f.accept_one(f.item(0, "large", TOPIC, "hi")).await));
    };
    let tried = each(more, async |faulty, f| {
        let recipient = f.members[1].as_uuid();
        let set_aside =
            async || f.store.deliveries_set_aside(f.mesh_id, recipient, &[1], "large", NOW).await;
        let told = during((faulty, f), until_told(set_aside), std::future::ready(())).await;
        let is_aside = count(faulty, "SELECT count(*) FROM mesh.delivery_set_aside").await == 1;
        assert_eq!(is_aside, f.waiting(1).await.is_empty(), "neither or both: {told:?}");
        assert!(told.iter().all(Result::is_err) || is_aside, "set aside, and there: {told:?}");
        assert!(!is_undone(&told) || !is_aside, "undone, and set aside: {told:?}");
        assert_eq!(set_aside().await.unwrap(), u64::from(!is_aside), "{told:?}");
        assert_eq!((f.waiting(1).await, f.waiting(0).await), (vec![], vec![1]));
        // Somebody has looked at it: a check would tell of it.
        f.plant("DELETE FROM mesh.delivery_set_aside").await;
    })
    .await;
    assert!(tried.requests > 2, "{tried:?}");
}

/// Every lease that is written is over, unless somebody is writing it.
async fn leases_pass(faulty: &Faulty) {
    let over = "SET lock_timeout = '500ms';
                UPDATE mesh.delivery_queue SET lease_until = 1 WHERE lease_until > 0";
    let _ = faulty.look().await.batch_execute(over).await;
}

/// The one piece of work that was taken, if one was.
async fn take(f: &Fixture, member: usize) -> Result<Option<i64>, StoreError> {
    let (taker, at) = (f.members[member], support::at(NOW));
    let take = Take { taker, at, lease: LEASE, max: 1, bytes_max: 1 << 20 };
    match f.store.queue_take(f.mesh_id, "work", take).await? {
        Taken::Leased { taken, .. } => Ok(taken.first().map(|work| work.seq)),
        Taken::NoQueue => panic!("there is a queue"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn work_is_done_by_one_and_never_lost() {
    let more = async |f: &Fixture| {
        assert!(is_there(&f.accept_one(f.item(0, "work", WORK, "hi")).await));
    };
    let tried = each(more, async |faulty, f| {
        let other = another(faulty, f).await;
        let ack = async |f: &Fixture, member: usize, seq: i64| {
            f.store.queue_ack(f.mesh_id, "work", f.members[member], &[seq]).await
        };
        let mine = async {
            let told = until_told(async || take(f, 0).await).await;
            let Some(Ok(Some(seq))) = told.last() else { return (told, Vec::new()) };
            let acked = until_told(async || ack(f, 0, *seq).await).await;
            (told, acked)
        };
        // The lease has passed, and somebody else does the work.
        let others: OnceLock<i64> = OnceLock::new();
        let meanwhile = async {
            leases_pass(faulty).await;
            if let Ok(Some(seq)) = take(&other, 1).await
                && ack(&other, 1, seq).await.is_ok_and(|acked| acked == [seq])
            {
                let _ = others.set(seq);
            }
        };
        let (told, acked) = during((faulty, f), mine, meanwhile).await;
        let is_mine = acked.iter().flatten().any(|acked| !acked.is_empty());
        assert!(!(is_mine && others.get().is_some()), "two have ended it: {told:?} {acked:?}");
        let left = "SELECT count(*) FROM mesh.delivery_queue AS waiting
                      JOIN mesh.queue AS queue ON waiting.recipient = queue.queue_id";
        let left = count(faulty, left).await;
        let ended = is_mine || others.get().is_some();
        assert!(!ended || left == 0, "ended, and there: {told:?} {acked:?}");
        assert!(ended || left == 1 || acked.contains(&Err(Fate::Uncertain)), "lost: {told:?}");
        assert!(!is_undone(&acked) || acked.is_empty() || left == 1 || others.get().is_some());
        // Nobody has it for ever.
        leases_pass(faulty).await;
        let again = take(&other, 2).await.unwrap();
        assert_eq!(again.is_some(), left == 1);
    })
    .await;
    assert!(tried.requests > 5, "{tried:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_takes_whole_messages() {
    let more = async |f: &Fixture| {
        assert!(f.accept(sends(f)).await.iter().all(is_there));
        f.plant("UPDATE mesh.mesh SET dedupe_retention_days = 3").await;
    };
    let tried = each(more, async |faulty, f| {
        let (day, week) = (UnixMs(NOW.0 + DAY_MS), UnixMs(NOW.0 + 7 * DAY_MS));
        let messages = async || f.store.retention_sweep(f.mesh_id, day, 2).await;
        let ids = async || f.store.dedupe_sweep(week, 2).await;
        let sweep = async { (until_told(messages).await, until_told(ids).await) };
        let (swept, forgotten) = during((faulty, f), sweep, std::future::ready(())).await;
        let counts = [
            "SELECT count(*) FROM mesh.message_history",
            "SELECT count(*) FROM mesh.client_message_dedupe",
        ];
        let left = (count(faulty, counts[0]).await, count(faulty, counts[1]).await);
        assert!(!is_undone(&swept) || left.0 == 3, "undone, and swept: {swept:?} {left:?}");
        assert!(!is_undone(&forgotten) || left.1 == 3, "undone, and swept: {forgotten:?} {left:?}");
        // Each time no more than was asked for.
        let may_have = swept.iter().filter(|told| **told != Err(Fate::Undone)).count();
        assert!(usize::try_from(3 - left.0).unwrap() <= 2 * may_have, "{swept:?} {left:?}");
        for _ in 0..3 {
            f.store.retention_sweep(f.mesh_id, day, 2).await.unwrap();
            f.store.dedupe_sweep(week, 2).await.unwrap();
        }
        assert_eq!((count(faulty, counts[0]).await, count(faulty, counts[1]).await), (0, 0));
    })
    .await;
    assert!(tried.requests > 3, "{tried:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invite_for_one_lets_one_in() {
    let token_hash = [7; 32];
    let more = async |f: &Fixture| {
        let invite = NewInvite {
            token_hash,
            role: Role::Member,
            uses: 1,
            expires_at: NOW.saturating_add(Duration::from_secs(3600)),
            created_by: Some(f.members[0]),
        };
        f.store.invite_create(f.mesh_id, &invite, NOW).await.unwrap();
    };
    let tried = each(more, async |faulty, f| {
        let join = |f: &Fixture, number: usize| Join {
            token_hash,
            member_id: f.mint.uuid(),
            name: format!("new {number}"),
            key_id: format!("key-{number}"),
            pubkey: pubkey(number),
        };
        let other = another(faulty, f).await;
        let mine = async || f.store.join(f.mesh_id, &join(f, 50), NOW).await;
        let others: OnceLock<bool> = OnceLock::new();
        let meanwhile = async {
            let joined = other.store.join(other.mesh_id, &join(&other, 60), NOW).await;
            let _ = others.set(matches!(joined, Ok(Joined::New(_))));
        };
        let told = during((faulty, f), until_told(mine), meanwhile).await;
        let others = others.get().copied().unwrap_or(false);
        let mine = |told: &Joined| matches!(told, Joined::New(_) | Joined::Again(_));
        let is_in = told.iter().flatten().any(mine);
        assert!(!(is_in && others), "two came in by one invite: {told:?}");
        let members = "SELECT count(*) FROM mesh.member WHERE name LIKE 'new %'";
        let there = count(faulty, members).await;
        assert!(!is_undone(&told) || others || there == 0, "undone, and in: {told:?}");
        let again = f.store.join(f.mesh_id, &join(f, 50), NOW).await.unwrap();
        assert_eq!(mine(&again), !others, "{told:?}, then {again:?}");
        assert_eq!(count(faulty, members).await, 1);
    })
    .await;
    assert!(tried.requests > 3, "{tried:?}");
}

/// What was told of an end: whether this has ended it.
type Told = Vec<Result<bool, Fate>>;

/// It has ended with all that is its own, or not at all, and the trail says so once.
async fn ended_whole(faulty: &Faulty, told: &Told, [there, own, trail]: [&str; 3]) {
    let (there, own) = (count(faulty, there).await, count(faulty, own).await);
    let trail = count(faulty, trail).await;
    assert_eq!((own > 0, trail), (there == 1, 1 - there), "{told:?}");
    assert!(!is_undone(told) || there == 1, "undone, and gone: {told:?}");
    assert!(told.iter().all(Result::is_err) || there == 0, "ended, and there: {told:?}");
    let may_be = told.contains(&Err(Fate::Uncertain));
    assert!(may_be || !told.contains(&Ok(false)), "nobody else has ended it: {told:?}");
}

/// Ends it with a fault, and then without one: it has ended once.
async fn ends_whole(
    rows: [&'static str; 3],
    end: impl AsyncFn(&Fixture) -> Result<bool, StoreError>,
) {
    let more = async |f: &Fixture| {
        assert!(is_there(&f.accept_one(f.item(0, "work", WORK, "hi")).await));
    };
    let tried = each(more, async |faulty, f| {
        let ending = until_told(async || end(f).await);
        let told = during((faulty, f), ending, std::future::ready(())).await;
        ended_whole(faulty, &told, rows).await;
        let again = end(f).await.unwrap();
        assert!(!(again && told.contains(&Ok(true))), "ended twice: {told:?}");
        assert_eq!((count(faulty, rows[0]).await, count(faulty, rows[2]).await), (0, 1));
    })
    .await;
    assert!(tried.requests > 3, "{tried:?}");
}

const BY_OPERATOR: (Deleter, InUse) = (Deleter { member_id: None, may_all: true }, InUse::End);

fn is_done(deleted: Deleted) -> bool {
    match deleted {
        Deleted::Done => true,
        Deleted::NotFound => false,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_ends_with_its_subscriptions_and_once() {
    let rows = [
        "SELECT count(*) FROM mesh.topic WHERE name = 'builds'",
        "SELECT count(*) FROM mesh.topic_subscription",
        "SELECT count(*) FROM mesh.audit_event WHERE kind = 'topic_deleted'",
    ];
    let end = async |f: &Fixture| {
        f.store.topic_delete(f.mesh_id, TOPIC.1, BY_OPERATOR, f.audited()).await.map(is_done)
    };
    ends_whole(rows, end).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_ends_with_its_work_and_once() {
    let rows = [
        "SELECT count(*) FROM mesh.queue WHERE name = 'work'",
        "SELECT count(*) FROM mesh.delivery_queue",
        "SELECT count(*) FROM mesh.audit_event WHERE kind = 'queue_deleted'",
    ];
    let end = async |f: &Fixture| {
        f.store.queue_delete(f.mesh_id, WORK.1, BY_OPERATOR, f.audited()).await.map(is_done)
    };
    ends_whole(rows, end).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_ends_with_its_keys_and_once() {
    let rows = [
        "SELECT count(*) - 2 FROM mesh.member WHERE status = 'active'",
        "SELECT count(*) - 2 FROM mesh.member_key WHERE status <> 'revoked'",
        "SELECT count(*) FROM mesh.audit_event WHERE kind = 'member_revoked'",
    ];
    let end = async |f: &Fixture| {
        let (member, revoked) = (f.members[2], MemberStatus::Revoked);
        let ended = f.store.member_end(f.mesh_id, member, revoked, f.audited()).await?;
        assert_ne!(ended, Ended::LastOwner);
        Ok(ended == Ended::Done)
    };
    ends_whole(rows, end).await;
}
