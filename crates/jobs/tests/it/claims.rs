//! Who gets a job, and who may write it.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::join_all;
use semel_core::clock::UnixMs;
use semel_core::id::JobId;
use semel_jobs::life::JobStatus;
use semel_jobs::store::{Advanced, Calendar, Claimed, NewJob, Priority, Reach, Store};

use crate::support::{NOW, World, after, completed, id, in_conversation, moved, new_job, started};

const A_WHILE: Duration = Duration::from_secs(60);
const LATER: UnixMs = UnixMs(NOW.0 + 60_000);

fn ids(claimed: &[Claimed]) -> Vec<JobId> {
    claimed.iter().map(|job| job.before.job.id).collect()
}

pub(crate) async fn urgent_ones_first_then_old_ones(world: &World) {
    use Priority::{Critical, High, Low, Normal};
    for (number, priority) in
        [(1, Low), (2, Normal), (3, Critical), (4, High), (5, Normal), (6, Critical)]
    {
        world.made(NewJob { priority, ..new_job(number) }).await;
    }
    assert_eq!(ids(&world.claim("w", 4, NOW).await), [3, 6, 4, 2].map(id));
    assert_eq!(ids(&world.claim("w", 4, NOW).await), [5, 1].map(id));
    let due_in = world.store.next_due(NOW, Vec::new(), None).await.unwrap();
    assert!(due_in.is_some_and(|due_in| !due_in.is_zero()), "the end of a lease: {due_in:?}");
}

pub(crate) async fn what_is_due_goes_before_what_waits(world: &World) {
    world.made(NewJob { priority: Priority::Low, ..new_job(1) }).await;
    let first = world.claim("w", 9, NOW).await;
    assert_eq!(first[0].advance.state.status, JobStatus::Validating);
    world.made(NewJob { priority: Priority::Critical, ..new_job(2) }).await;
    let second = world.claim("x", 9, LATER).await;
    assert_eq!(ids(&second), [1, 2].map(id));
    let again = &second[0];
    assert_eq!(again.before.job.state.worker.as_deref(), Some("w"));
    assert_eq!(again.advance.state.deaths, 1);
    assert_ne!(again.advance.state.fence, first[0].advance.state.fence);
    assert_eq!(world.kept(id(1)).await, after(again));
}

pub(crate) async fn a_conversation_is_served_in_order_whatever_the_priorities(world: &World) {
    use Priority::{Critical, High, Low};
    for (number, priority) in [(1, Low), (2, High), (3, Critical)] {
        world.made(NewJob { priority, ..in_conversation(number, "c") }).await;
    }
    for number in 1..=3 {
        let claimed = world.claim("w", 9, NOW).await;
        assert_eq!(ids(&claimed), [id(number)]);
        assert!(world.claim("w", 9, NOW).await.is_empty(), "one at a time");
        assert_eq!(world.finish(&claimed[0], NOW).await, Advanced::Written);
    }
    assert!(world.claim("w", 9, NOW).await.is_empty());
    assert_eq!(world.store.depth().await.unwrap(), (0, 0));
}

pub(crate) async fn a_thousand_conversations_at_once_each_in_order(world: &World) {
    const CONVERSATIONS: u128 = 1000;
    const EACH: u128 = 3;
    let submit =
        |number: u128| world.made(in_conversation(number, &format!("c{}", number % CONVERSATIONS)));
    // Some are submitted while others are ended.
    join_all((0..CONVERSATIONS * 2).map(submit)).await;
    let store = &world.store;
    // In the order of claims: a job is entered before its end is written, and so before the next
    // one of its conversation can be claimed, however late this task goes on.
    let claims: Mutex<HashMap<u128, Vec<i64>>> = Mutex::default();
    let worker = async |name: String| {
        for _ in 0..10_000 {
            let claimed = world.claim(&name, 64, NOW).await;
            for job in &claimed {
                let (id, no) = (job.before.job.id, job.before.job.no);
                let conversation = id.as_uuid().as_u128() % CONVERSATIONS;
                claims.lock().unwrap().entry(conversation).or_default().push(no.0);
                for round in 0..EACH {
                    let other = self::id(conversation + round * CONVERSATIONS);
                    let earlier = store.job(other).await.unwrap().filter(|kept| kept.job.no < no);
                    let status = earlier.map(|kept| kept.job.state.status);
                    assert!(
                        status.is_none_or(|status| status.is_terminal()),
                        "{other}: {status:?}"
                    );
                }
            }
            let finished = join_all(claimed.iter().map(|job| world.finish(job, NOW))).await;
            assert!(finished.iter().all(|said| *said == Advanced::Written));
            let all: usize = claims.lock().unwrap().values().map(Vec::len).sum();
            if all as u128 == CONVERSATIONS * EACH {
                return;
            }
        }
        panic!("not all of them were served");
    };
    let late = join_all((CONVERSATIONS * 2..CONVERSATIONS * EACH).map(submit));
    let workers = join_all((0..4).map(|n| worker(format!("w{n}"))));
    tokio::join!(late, workers);
    for order in claims.into_inner().unwrap().into_values() {
        assert!(order.is_sorted() && order.len() as u128 == EACH, "{order:?}");
    }
}

/// Who comes while the one before it ends must be seen by one of the two.
pub(crate) async fn an_end_and_a_submission_at_once_lose_nobody(world: &World) {
    const CONVERSATIONS: u128 = 32;
    let submit = |round: u128, n: u128| {
        world.made(in_conversation(round * CONVERSATIONS + n, &format!("c{n}")))
    };
    join_all((0..CONVERSATIONS).map(|n| submit(0, n))).await;
    for round in 1..40 {
        let claimed = world.claim("w", 64, NOW).await;
        assert_eq!(claimed.len() as u128, CONVERSATIONS, "in round {round}");
        let ends = join_all(claimed.iter().map(|job| world.finish(job, NOW)));
        let submits = join_all((0..CONVERSATIONS).map(|n| submit(round, n)));
        tokio::join!(ends, submits);
    }
}

pub(crate) async fn nobody_gets_what_another_has(world: &World) {
    join_all((0..200).map(|number| world.made(new_job(number)))).await;
    let claims = (0..16).map(|n| async move { world.claim(&format!("w{n}"), 20, NOW).await });
    let claimed: Vec<JobId> = join_all(claims).await.iter().flat_map(|c| ids(c)).collect();
    let mut each = claimed.clone();
    each.sort_unstable();
    each.dedup();
    assert_eq!((claimed.len(), each.len()), (200, 200));
}

pub(crate) async fn a_late_worker_writes_nothing(world: &World) {
    world.made(in_conversation(1, "c")).await;
    world.made(in_conversation(2, "c")).await;
    let late = after(&world.claim("late", 1, NOW).await[0]);
    let new = after(&world.claim("new", 1, LATER).await[0]);
    let before = (world.kept(id(1)).await, world.kept(id(2)).await);
    let mut advance = moved(&late, JobStatus::Completed, LATER);
    advance.started = vec![started("fetch", 1, 1)];
    assert_eq!(world.store.advance(advance).await.unwrap(), Advanced::Lost);
    assert_eq!((world.kept(id(1)).await, world.kept(id(2)).await), before);
    assert_eq!(world.count("SELECT count(*) FROM jobs.execution_log").await, 0);
    let ledger = world.store.ledger(id(1), 0, 99).await.unwrap().unwrap();
    assert_eq!((ledger.lines.len(), ledger.entries), (3, 3));
    let advance = moved(&new, JobStatus::Completed, LATER);
    assert_eq!(world.store.advance(advance.clone()).await.unwrap(), Advanced::Written);
    assert_eq!(world.store.advance(advance).await.unwrap(), Advanced::Lost, "once");
}

pub(crate) async fn a_lease_is_renewed_by_its_holder_only(world: &World) {
    world.made(new_job(1)).await;
    world.made(new_job(2)).await;
    let claimed = world.claim("w", 2, NOW).await;
    let fence = claimed[0].advance.state.fence;
    let held = |fence| claimed.iter().map(|job| (job.before.job.no, fence)).collect::<Vec<_>>();
    let renew = async |fence| world.store.renew(held(fence), A_WHILE, NOW).await.unwrap();
    assert_eq!(renew(fence + 1).await.len(), 2, "not its own");
    assert_eq!(renew(fence).await, []);
    assert_eq!(world.kept(id(1)).await.job.state.due_at, Some(LATER));
    assert!(world.claim("x", 9, UnixMs(LATER.0 - 1)).await.is_empty());
    assert_eq!(world.finish(&claimed[0], NOW).await, Advanced::Written);
    assert_eq!(renew(fence).await, [claimed[0].before.job.no]);
}

/// Whoever moves it has last seen the lease that it was given.
pub(crate) async fn a_move_within_a_job_leaves_its_lease_alone(world: &World) {
    world.made(new_job(1)).await;
    let claimed = world.claim("w", 1, NOW).await;
    let held = vec![(claimed[0].before.job.no, claimed[0].advance.state.fence)];
    assert_eq!(world.store.renew(held, A_WHILE, NOW).await.unwrap(), []);
    let mut inside = moved(&after(&claimed[0]), JobStatus::Executing, NOW);
    inside.reach = Reach::Inside;
    assert_eq!(world.store.advance(inside.clone()).await.unwrap(), Advanced::Written);
    let mut kept = world.kept(id(1)).await;
    assert_eq!(kept.job.state.due_at, Some(LATER));
    assert!(world.claim("x", 9, UnixMs(LATER.0 - 1)).await.is_empty());
    // Everything else is as it was told.
    kept.job.state.due_at = inside.state.due_at;
    assert_eq!(kept.job.state, inside.state);
    let mut let_go = moved(&kept, JobStatus::Executing, NOW);
    (let_go.reach, let_go.state.due_at, let_go.state.worker) = (Reach::Claim, Some(NOW), None);
    assert_eq!(world.store.advance(let_go.clone()).await.unwrap(), Advanced::Written);
    assert_eq!(world.kept(id(1)).await.job.state, let_go.state);
    assert_eq!(ids(&world.claim("x", 9, NOW).await), [id(1)]);
}

pub(crate) async fn a_job_that_ends_while_it_is_claimed_frees_the_next(world: &World) {
    world.made(in_conversation(1, "c")).await;
    world.made(in_conversation(2, "c")).await;
    let mut now = NOW;
    for _ in 0..3 {
        assert_eq!(ids(&world.claim("w", 9, now).await), [id(1)]);
        now = UnixMs(now.0 + 60_000);
    }
    let died = world.claim("w", 9, now).await;
    assert_eq!(died[0].advance.state.status, JobStatus::Failed);
    assert_eq!(ids(&world.claim("w", 9, now).await), [id(2)]);
}

pub(crate) async fn one_bad_move_spoils_no_other(world: &World) {
    join_all((0..40).map(|number| world.made(new_job(number)))).await;
    let claimed = world.claim("w", 64, NOW).await;
    let moves = claimed.iter().enumerate().map(|(number, job)| {
        let mut advance = moved(&after(job), JobStatus::Executing, NOW);
        match number {
            // What was never begun cannot end.
            7 => advance.ended = vec![completed("fetch")],
            9 => advance.lines[0].detail = "no json".to_owned(),
            _ => advance.started = vec![started("fetch", 1, 1)],
        }
        world.store.advance(advance)
    });
    for (number, answer) in join_all(moves).await.into_iter().enumerate() {
        assert_eq!(answer.is_ok(), number != 7 && number != 9, "{number}: {answer:?}");
    }
    assert_eq!(world.count("SELECT count(*) FROM jobs.execution_log").await, 38);
    let sql = "SELECT count(*) FROM jobs.job WHERE status = 'executing'";
    assert_eq!(world.count(sql).await, 38);
}

/// The next engine goes by the calendar again: times that lie ahead are moved along with it, and
/// what a dead one has claimed is free soon.
#[tokio::test]
async fn times_that_lie_ahead_follow_a_calendar_that_stepped() {
    for ahead in [3_600_000, -3_600_000] {
        let world = crate::support::on_sqlite().await;
        let Store::Sqlite(file) = &world.store else { panic!("a file") };
        world.made(new_job(1)).await;
        let before = after(&world.claim("w", 1, NOW).await[0]).job.state;
        world.store.note_calendar(Calendar::new(ahead, NOW, None)).await.unwrap();
        let now = UnixMs(NOW.0 + ahead);
        file.begin_life(now, None, now.saturating_add(Duration::from_millis(7))).await.unwrap();
        let state = world.kept(id(1)).await.job.state;
        let moved = |at: Option<UnixMs>| at.map(|at| UnixMs(at.0 + ahead));
        assert_eq!(state.deadline_at, moved(before.deadline_at));
        assert_eq!(state.due_at, Some(UnixMs(now.0 + 7)));
        assert_eq!(world.claim("next", 1, UnixMs(now.0 + 7)).await.len(), 1);
    }
}
