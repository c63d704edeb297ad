//! Lists, dead letters, and what is too old.

use semel_core::clock::UnixMs;
use semel_core::hex::Hex;
use semel_jobs::gear::FailureClass;
use semel_jobs::life::JobStatus;
use semel_jobs::store::{Age, JobNo, List, NewJob, Pattern, Store, Submitted};

use crate::support::{
    NOW, World, completed, id, in_conversation, moved, new_job, on_sqlite, started,
};

async fn end(world: &World, number: u128, how: JobStatus, at: UnixMs) {
    let advance = moved(&world.kept(id(number)).await, how, at);
    world.store.advance(advance).await.unwrap();
}

/// Everything that ended before then.
fn old(before: UnixMs) -> Age {
    Age { before, now: before }
}

async fn fail(world: &World, number: u128, class: FailureClass, action: Option<&str>, at: UnixMs) {
    let mut advance = moved(&world.kept(id(number)).await, JobStatus::Failed, at);
    advance.state.failure_class = Some(class);
    advance.state.failed_action = action.map(str::to_owned);
    world.store.advance(advance).await.unwrap();
}

/// All pages, each of at most `limit`.
async fn pages(world: &World, list: List) -> Vec<u128> {
    let (mut found, mut before) = (Vec::new(), None);
    for _ in 0..100 {
        let page = world.store.list(List { before, ..list.clone() }).await.unwrap();
        assert!(page.jobs.len() <= list.limit as usize);
        found.extend(page.jobs.iter().map(|job| job.id.as_uuid().as_u128()));
        before = page.next;
        if before.is_none() {
            return found;
        }
    }
    panic!("pages without an end");
}

/// A machine that starts with a calendar of last year stamps what it does with that, and is put
/// right: what it has done is as young as it is.
#[tokio::test]
async fn what_a_calendar_behind_has_stamped_is_no_older_than_what_came_before() {
    let world = on_sqlite().await;
    let (day, year) = (24 * 60 * 60 * 1000, 365 * 24 * 60 * 60 * 1000);
    let at = |ms: i64| UnixMs(NOW.0 + ms);
    let stamps = [at(-60 * day), at(0), at(-year), at(year)];
    for (number, now) in (1..).zip(stamps) {
        world.made(NewJob { now, ..new_job(number) }).await;
        end(&world, number, JobStatus::Completed, now).await;
    }
    let sweep = async |now: UnixMs| {
        let age = Age { before: UnixMs(now.0 - 30 * day), now };
        world.store.sweep(age, 9).await.unwrap()
    };
    assert_eq!(sweep(at(day)).await, [id(1)], "the third came after the second");
    assert_eq!(sweep(at(31 * day)).await, [id(3), id(2)], "the second is old");
    // What was stamped with a time to come goes when that is past.
    assert_eq!(sweep(at(year)).await, []);
    assert_eq!(sweep(at(year + 31 * day)).await, [id(4)]);
}

pub(crate) async fn pages_and_filters(world: &World) {
    for number in 1..=20 {
        let name = if number % 2 == 0 { "even" } else { "odd" };
        world.made(in_conversation(number, name)).await;
    }
    for number in 1..=10 {
        fail(world, number, FailureClass::UserError, None, NOW).await;
    }
    end(world, 11, JobStatus::Completed, NOW).await;
    let descending = |numbers: Vec<u128>| numbers.into_iter().rev().collect::<Vec<_>>();
    let every = List { limit: 3, ..List::default() };
    assert_eq!(pages(world, every.clone()).await, descending((1..=20).collect()));
    let pending = List { status: Some(JobStatus::Pending), ..every.clone() };
    assert_eq!(pages(world, pending).await, descending((12..=20).collect()));
    let ended = List { status: Some(JobStatus::Completed), ..every.clone() };
    assert_eq!(pages(world, ended).await, [11]);
    let class = List { class: Some(FailureClass::UserError), ..every.clone() };
    assert_eq!(pages(world, class.clone()).await, descending((1..=10).collect()));
    let other = List { class: Some(FailureClass::GearBug), ..every.clone() };
    assert_eq!(pages(world, other).await, []);
    let odd = List { conversation: Some("odd".to_owned()), ..every.clone() };
    assert_eq!(pages(world, odd).await, [19, 17, 15, 13, 11, 9, 7, 5, 3, 1]);
    let both = List { conversation: Some("odd".to_owned()), ..class };
    assert_eq!(pages(world, both).await, [9, 7, 5, 3, 1]);
    let exact = world.store.list(List { limit: 20, ..every }).await.unwrap();
    assert_eq!((exact.jobs.len(), exact.next), (20, None));
    let none = List { before: Some(JobNo(1)), limit: 5, ..List::default() };
    assert_eq!(world.store.list(none).await.unwrap().jobs, []);
    assert_eq!(world.store.depth().await.unwrap(), (9, 0));
}

/// A row that a disk, or somebody, has damaged takes no other with it.
#[tokio::test]
async fn a_row_that_cannot_be_read_is_passed_over_and_the_page_goes_on() {
    let world = on_sqlite().await;
    for number in 1..=6 {
        world.made(new_job(number)).await;
    }
    world.plant("UPDATE jobs.job SET held_by = CAST(x'ff' AS TEXT) WHERE no = 3").await;
    world.plant("PRAGMA ignore_check_constraints = ON").await;
    world.plant("UPDATE jobs.job SET source = 'odd' WHERE no = 5").await;
    for limit in [2, 6] {
        let every = List { limit, ..List::default() };
        assert_eq!(pages(&world, every).await, [6, 4, 2, 1]);
    }
}

pub(crate) async fn patterns_count_by_class_and_action(world: &World) {
    use FailureClass::{GearBug, Transient};
    for number in 1..=7 {
        world.made(new_job(number)).await;
    }
    let at = |ms| UnixMs(NOW.0 + ms);
    fail(world, 1, Transient, Some("web.get"), at(0)).await;
    for number in 2..=4 {
        fail(world, number, Transient, Some("web.get"), at(10)).await;
    }
    fail(world, 5, GearBug, None, at(11)).await;
    fail(world, 6, GearBug, Some("Web.get"), at(12)).await;
    fail(world, 7, GearBug, Some("a.b"), at(13)).await;
    let pattern = |class, action: Option<&str>, count, ms| Pattern {
        class,
        action: action.map(str::to_owned),
        count,
        last_at: at(ms),
    };
    let told = [
        pattern(Transient, Some("web.get"), 3, 10),
        pattern(GearBug, None, 1, 11),
        pattern(GearBug, Some("Web.get"), 1, 12),
        pattern(GearBug, Some("a.b"), 1, 13),
    ];
    assert_eq!(world.store.patterns(at(5)).await.unwrap(), told);
}

pub(crate) async fn old_jobs_go_and_a_repeated_one_stays(world: &World) {
    let at = |ms| UnixMs(NOW.0 + ms);
    for number in 1..=3 {
        world.made(new_job(number)).await;
        let mut advance = moved(&world.kept(id(number)).await, JobStatus::Executing, NOW);
        advance.started = vec![started("fetch", 1, 1)];
        world.store.advance(advance).await.unwrap();
    }
    end(world, 1, JobStatus::Failed, at(1)).await;
    end(world, 2, JobStatus::Completed, at(2)).await;
    let repeat = NewJob { retry_of: Some(id(1)), root_id: id(1), ..new_job(4) };
    world.made(repeat).await;
    assert_eq!(world.kept(id(4)).await.executions.len(), 1, "its root's");
    assert_eq!(world.store.sweep(old(at(2)), 9).await.unwrap(), [], "not old enough, or repeated");
    assert_eq!(world.store.sweep(old(at(9)), 9).await.unwrap(), [id(2)]);
    let mut advance = moved(&world.kept(id(4)).await, JobStatus::Completed, at(3));
    advance.ended = vec![completed("fetch")];
    world.store.advance(advance).await.unwrap();
    assert_eq!(world.store.sweep(old(at(9)), 9).await.unwrap(), [id(4)]);
    let executions = "SELECT count(*) FROM jobs.execution_log";
    assert_eq!(world.count(executions).await, 2);
    assert_eq!(world.store.sweep(old(at(9)), 9).await.unwrap(), [id(1)]);
    assert_eq!(world.count(executions).await, 1);
    let of_the_live = "SELECT count(*) FROM jobs.ledger WHERE job_no = 3";
    assert_eq!(world.count(of_the_live).await, 1);
    assert_eq!(world.count("SELECT count(*) FROM jobs.ledger").await, 1);
}

pub(crate) async fn expired_and_failed_are_found_in_order(world: &World) {
    for number in 1..=5 {
        world.made(new_job(number)).await;
    }
    for number in [3, 1] {
        let mut asks = moved(&world.kept(id(number)).await, JobStatus::AwaitingApproval, NOW);
        asks.state.expires_at = Some(UnixMs(NOW.0 + 9));
        world.store.advance(asks).await.unwrap();
    }
    let expired = |ms, limit| world.store.expired(UnixMs(NOW.0 + ms), limit);
    assert_eq!(expired(8, 9).await.unwrap(), []);
    assert_eq!(expired(9, 9).await.unwrap(), [id(1), id(3)]);
    assert_eq!(expired(9, 1).await.unwrap(), [id(1)]);
    for number in [2, 4, 5] {
        fail(world, number, FailureClass::GearBug, None, NOW).await;
    }
    let store = &world.store;
    let first = store.failed(FailureClass::GearBug, 0, 2).await.unwrap();
    assert_eq!(first.iter().map(|(_, id)| *id).collect::<Vec<_>>(), [id(2), id(4)]);
    let rest = store.failed(FailureClass::GearBug, first[1].0, 2).await.unwrap();
    assert_eq!(rest.iter().map(|(_, id)| *id).collect::<Vec<_>>(), [id(5)]);
    assert_eq!(store.failed(FailureClass::Transient, 0, 2).await.unwrap(), []);
}

pub(crate) async fn a_ledger_is_read_from_anywhere(world: &World) {
    world.made(new_job(1)).await;
    for _ in 0..3 {
        end(world, 1, JobStatus::Executing, NOW).await;
    }
    let ledger = world.store.ledger(id(1), 1, 2).await.unwrap().unwrap();
    let entries: Vec<i64> = ledger.lines.iter().map(|line| line.entry).collect();
    assert_eq!((entries, ledger.entries, ledger.status), (vec![2, 3], 4, JobStatus::Executing));
    let first = world.store.ledger(id(1), 0, 1).await.unwrap().unwrap();
    assert_eq!(first.lines[0].line.detail, "{\"status\":\"pending\",\"source\":\"api\"}");
    assert_eq!(world.store.ledger(id(2), 0, 1).await.unwrap(), None);
}

/// What was asked for under a key is asked for once, also when nothing else is known of it.
pub(crate) async fn a_key_outlives_its_job(world: &World) {
    let keyed = |number, fingerprint| NewJob {
        key: Some("k".to_owned()),
        fingerprint: Hex([fingerprint; 32]),
        ..new_job(number)
    };
    world.made(keyed(1, 1)).await;
    let ended = moved(&world.kept(id(1)).await, JobStatus::Completed, NOW);
    world.store.advance(ended).await.unwrap();
    assert_eq!(world.store.sweep(old(UnixMs(NOW.0 + 1)), 9).await.unwrap(), [id(1)]);
    assert_eq!(world.store.job(id(1)).await.unwrap(), None);
    let same = world.store.submit(keyed(2, 1)).await.unwrap();
    assert_eq!(same, Submitted::There(id(1), JobStatus::Completed));
    assert_eq!(world.store.submit(keyed(3, 2)).await.unwrap(), Submitted::Reused(id(1)));
    assert_eq!(world.count("SELECT count(*) FROM jobs.job").await, 0);
}

/// What happened stays as it was told, whoever writes to the database, for as long as the job does.
pub(crate) async fn a_ledger_is_only_added_to(world: &World) {
    world.made(new_job(1)).await;
    let claimed = world.claim("w", 1, NOW).await;
    world.finish(&claimed[0], NOW).await;
    let lines = world.count("SELECT count(*) FROM jobs.ledger").await;
    assert!(lines > 0);
    // What replaces a row tells no trigger that it deletes one.
    let replaced = "INSERT OR REPLACE INTO jobs.ledger (job_no, entry, at, lines)
                    SELECT job_no, entry, 7, lines FROM jobs.ledger";
    let mut changes = vec!["UPDATE jobs.ledger SET at = 7", "DELETE FROM jobs.ledger"];
    if let Store::Sqlite(_) = &world.store {
        changes.push(replaced);
    }
    for sql in changes {
        let refused = world.refusal(sql).await;
        assert!(refused.contains("only added to"), "{sql}: {refused}");
    }
    assert_eq!(world.count("SELECT count(*) FROM jobs.ledger").await, lines);
    assert_eq!(world.store.sweep(old(UnixMs(NOW.0 + 1)), 9).await.unwrap(), [id(1)]);
    assert_eq!(world.count("SELECT count(*) FROM jobs.ledger").await, 0);
}
