//! Taking jobs in.

use futures_util::future::join_all;
use semel_core::clock::UnixMs;
use semel_core::hex::Hex;
use semel_jobs::gear::grants::Grants;
use semel_jobs::life::JobStatus;
use semel_jobs::policy::Verdict;
use semel_jobs::store::{Advanced, Job, Kept, NewJob, Reach, Source, Submitted};

use crate::support::{NOW, World, begin, claim_of, id, in_conversation, moved, new_job, started};

fn keyed(number: u128, key: &str, fingerprint: u8) -> NewJob {
    let key = Some(key.to_owned());
    NewJob { key, fingerprint: Hex([fingerprint; 32]), ..new_job(number) }
}

/// Words that are said in this bucket.
pub(crate) fn said(number: u128, words: u8, bucket: u8) -> NewJob {
    let hash = |bucket: u8| {
        let mut bytes = [words; 32];
        bytes[0] = bucket;
        Hex(bytes)
    };
    let dedup = Some([hash(bucket - 1), hash(bucket), hash(bucket + 1)]);
    NewJob { dedup, request: Some("do".to_owned()), plan: None, ..new_job(number) }
}

pub(crate) async fn the_same_key_is_the_same_job(world: &World) {
    world.made(keyed(1, "a", 1)).await;
    let again = world.store.submit(keyed(2, "a", 1)).await.unwrap();
    assert_eq!(again, Submitted::There(id(1), JobStatus::Pending));
    let ended = moved(&world.kept(id(1)).await, JobStatus::Completed, NOW);
    world.store.advance(ended).await.unwrap();
    let after = world.store.submit(keyed(3, "a", 1)).await.unwrap();
    assert_eq!(after, Submitted::There(id(1), JobStatus::Completed));
    let many = (10..74).map(|number| world.store.submit(keyed(number, "b", 1)));
    let many: Vec<Submitted> = join_all(many).await.into_iter().map(Result::unwrap).collect();
    let made = many.iter().filter(|answer| **answer == Submitted::Made).count();
    assert_eq!((made, many.len()), (1, 64));
    assert_eq!(world.count("SELECT count(*) FROM jobs.job").await, 2);
    assert_eq!(world.count("SELECT count(*) FROM jobs.ledger").await, 1, "of the end");
}

pub(crate) async fn another_request_under_a_key_is_refused(world: &World) {
    world.made(keyed(1, "a", 1)).await;
    let other = world.store.submit(keyed(2, "a", 2)).await.unwrap();
    assert_eq!(other, Submitted::Reused(id(1)));
    assert_eq!(world.store.job(id(2)).await.unwrap(), None);
}

pub(crate) async fn equal_words_are_one_job_across_the_edge_of_a_bucket(world: &World) {
    world.made(said(1, 7, 100)).await;
    for (number, bucket) in [(2, 99), (3, 100), (4, 101)] {
        let there = world.store.submit(said(number, 7, bucket)).await.unwrap();
        assert_eq!(there, Submitted::There(id(1), JobStatus::Pending), "bucket {bucket}");
    }
    world.made(said(5, 7, 102)).await;
    world.made(said(6, 8, 100)).await;
    // Both neighbours are there: the older one is the answer.
    let both = world.store.submit(said(7, 7, 101)).await.unwrap();
    assert_eq!(both, Submitted::There(id(1), JobStatus::Pending));
    let ended = moved(&world.kept(id(1)).await, JobStatus::Completed, NOW);
    world.store.advance(ended).await.unwrap();
    world.made(said(8, 7, 100)).await;
}

pub(crate) async fn equal_words_at_once_are_one_job(world: &World) {
    for round in 0..10_u8 {
        let number = |n: u128| u128::from(round) * 100 + n;
        let bucket = |n: u128| if n.is_multiple_of(2) { 100 } else { 101 };
        let all = (1..33).map(|n| world.store.submit(said(number(n), round + 1, bucket(n))));
        let all: Vec<_> = join_all(all).await.into_iter().map(Result::unwrap).collect();
        let made = all.iter().filter(|answer| **answer == Submitted::Made).count();
        assert_eq!(made, 1, "{all:?}");
    }
}

pub(crate) async fn only_a_failed_job_is_repeated_and_once_at_a_time(world: &World) {
    let repeat =
        |number, of, root| NewJob { retry_of: Some(id(of)), root_id: id(root), ..new_job(number) };
    world.made(new_job(1)).await;
    let store = &world.store;
    assert_eq!(store.submit(repeat(2, 1, 1)).await.unwrap(), Submitted::NotFailed);
    assert_eq!(store.submit(repeat(2, 77, 77)).await.unwrap(), Submitted::NotFailed);
    let failed = moved(&world.kept(id(1)).await, JobStatus::Failed, NOW);
    store.advance(failed).await.unwrap();
    let many = (10..26).map(|number| store.submit(repeat(number, 1, 1)));
    let many: Vec<Submitted> = join_all(many).await.into_iter().map(Result::unwrap).collect();
    let count = |what| many.iter().filter(|answer| **answer == what).count();
    assert_eq!((count(Submitted::Made), count(Submitted::Repeating)), (1, 15));
    let first = many.iter().position(|answer| *answer == Submitted::Made).unwrap();
    let first = 10 + first as u128;
    let failed = moved(&world.kept(id(first)).await, JobStatus::Failed, NOW);
    store.advance(failed).await.unwrap();
    world.made(repeat(30, first, 1)).await;
}

pub(crate) async fn one_bad_submission_spoils_no_other(world: &World) {
    let jobs = (1..40).map(|number| {
        let plan = if number == 20 { "{no json" } else { "{}" };
        world.store.submit(NewJob { plan: Some(plan.into()), ..new_job(number) })
    });
    for (number, answer) in join_all(jobs).await.into_iter().enumerate() {
        assert_eq!(answer.is_ok(), number + 1 != 20, "{answer:?}");
    }
    assert_eq!(world.count("SELECT count(*) FROM jobs.job").await, 38);
}

/// By every kind of statement that writes a move.
pub(crate) async fn what_was_consented_to_is_kept_and_what_an_asker_declared(world: &World) {
    let sub_jobs = vec!["web.get".to_owned()];
    let grants = Some(Grants { sub_jobs, publish: vec!["#news".to_owned()] });
    let asker = Some("fetcher".to_owned());
    let sub = |number| {
        let (asker, grants, source) = (asker.clone(), grants.clone(), Source::SubJob);
        NewJob { asker, grants, source, ..new_job(number) }
    };
    begun(world, sub(1), 0).await;
    world.made(sub(2)).await;
    let kept = world.kept(id(2)).await;
    assert_eq!((kept.job.grants, kept.job.state.consent), (grants.clone(), None));
    for (to, reach, consent) in [
        (JobStatus::Validating, Reach::All, None),
        (JobStatus::Executing, Reach::Inside, Some(Verdict::Approve)),
        (JobStatus::Executing, Reach::Claim, Some(Verdict::Ask)),
        (JobStatus::Executing, Reach::Inside, None),
        (JobStatus::Completed, Reach::End, Some(Verdict::Ask)),
    ] {
        let mut next = moved(&world.kept(id(2)).await, to, NOW);
        (next.reach, next.state.consent) = (reach, consent);
        assert_eq!(world.store.advance(next).await.unwrap(), Advanced::Written);
        let job = world.kept(id(2)).await.job;
        assert_eq!((job.state.consent, &job.grants), (consent, &grants), "{to} {reach:?}");
    }
    let why = world.refusal("UPDATE jobs.job SET grants = NULL").await;
    assert!(why.contains("grants_are_an_askers"), "{why}");
}

/// Submits it with its first move, as an engine that has room for so many others; whether it began.
async fn begun(world: &World, new: NewJob, room: usize) -> (Submitted, bool) {
    let (fresh, may) = (new.fresh(), world.store.begins_at_once(&new));
    let mut first = begin()(&fresh, &claim_of("w", 1, NOW)).expect("a move");
    first.started = vec![started("fetch", 1, 1)];
    first.state.consent = Some(Verdict::Approve);
    let (said, no) = world.store.submit_begun(new, first.clone(), room).await.unwrap();
    assert!(no.is_none() || may);
    if let Some(no) = no {
        first.no = no;
        let mut kept = Kept { job: Job { no, ..fresh.job }, executions: Vec::new() };
        kept.apply(&first);
        assert_eq!(world.kept(kept.job.id).await, kept, "as if it had been claimed");
        let ledger = world.store.ledger(kept.job.id, 0, 9).await.unwrap().unwrap();
        assert_eq!((ledger.lines.len(), ledger.entries), (2, 2));
    }
    (said, no.is_some())
}

pub(crate) async fn a_job_begins_as_it_comes_unless_others_wait(world: &World) {
    let named = (Submitted::Made, world.store.begins_at_once(&keyed(1, "a", 1)));
    let (made, waits) = ((Submitted::Made, true), (Submitted::Made, false));
    assert_eq!(begun(world, keyed(1, "a", 1), 0).await, named);
    let there = begun(world, keyed(2, "a", 1), 0).await;
    assert!(matches!(there, (Submitted::There(of, _), false) if of == id(1)), "{there:?}");
    world.claim("w", 9, NOW).await;
    assert_eq!(begun(world, in_conversation(3, "c"), 0).await, named);
    world.claim("w", 9, NOW).await;
    assert_eq!(begun(world, in_conversation(4, "c"), 9).await, waits, "after the one before it");
    assert!(!world.kept(id(4)).await.job.state.ready);
    world.made(new_job(5)).await;
    assert_eq!(begun(world, new_job(6), 0).await, waits, "somebody else came first");
    let claimed = world.claim("w", 9, NOW).await;
    assert_eq!(claimed.iter().map(|job| job.before.job.id).collect::<Vec<_>>(), [id(5), id(6)]);
    assert_eq!(begun(world, new_job(7), 0).await, made);
    world.set_time(UnixMs(NOW.0 + 60_000)).await;
    let late = NewJob { now: UnixMs(NOW.0 + 60_000), ..new_job(8) };
    assert_eq!(begun(world, late, 4).await, waits, "five leases of dead workers are over");
}

pub(crate) async fn nobody_waits_for_whom_there_is_room(world: &World) {
    let (made, waits) = ((Submitted::Made, true), (Submitted::Made, false));
    world.made(new_job(1)).await;
    world.made(new_job(2)).await;
    assert_eq!(begun(world, new_job(3), 2).await, made);
    assert_eq!(begun(world, new_job(4), 1).await, waits);
    assert_eq!(begun(world, new_job(5), 2).await, waits, "three wait now");
    let many = (10..74).map(|number| begun(world, new_job(number), 64));
    assert_eq!(join_all(many).await, vec![made; 64]);
    assert_eq!(world.claim("other", 99, NOW).await.len(), 4, "only those that waited");
}
