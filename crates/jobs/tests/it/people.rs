//! A person's word.

use std::sync::Arc;

use futures_util::future::join_all;
use semel_core::clock::UnixMs;
use semel_core::code::Code;
use semel_core::hex::Hex;
use semel_core::refusal::Refusal;
use semel_crypto::keys::KeyPair;
use semel_jobs::life::JobStatus;
use semel_jobs::store::{Advanced, Answering, Wrote};
use semel_registrar::decide::Outcome;
use semel_registrar::envelope::{Envelope, validate};
use semel_registrar::grant::{Grant, Nonce};
use semel_registrar::store::{Attempt, JOBS_DOMAIN};

use crate::support::{Database, NOW, World, after, id, in_conversation, moved, new_fence, new_job};

/// The approval of a plan, in the domain that is open from the beginning.
pub(crate) fn approval(run: &str) -> Box<Attempt> {
    let text = format!(
        "{{\"protocol_version\":1,\"domain\":\"{JOBS_DOMAIN}\",\"operation\":\"approve\",\
         \"canonical_target\":\"plan\",\"artifact_hash\":\"{}\",\"owner_binding\":\"me\",\
         \"run_id\":\"{run}\",\"issued_at\":\"{}\",\"ttl_s\":3600}}",
        "ab".repeat(32),
        semel_core::rfc3339::format(NOW),
    );
    let valid = validate(Envelope::parse(text.as_bytes()).unwrap(), NOW).unwrap();
    let (authority, key) = (KeyPair::from_secret(&[9; 32]), valid.logical_request_key);
    let window = (NOW, UnixMs(NOW.0 + 1000));
    let grant = Grant::issue(&authority, JOBS_DOMAIN, Nonce(Hex([7; 16])), key, window);
    let (attempt_id, result) = ("a".to_owned(), b"{}".to_vec());
    Box::new(Attempt { valid, grant, compensates: None, attempt_id, result, now: NOW })
}

/// Lets the registrar know of the grant.
pub(crate) async fn issue(database: &Database) {
    use semel_registrar::store::{PostgresStore, SqliteStore, Store};
    let store = match database {
        Database::Sqlite(file, _) => Store::Sqlite(SqliteStore::new(Arc::clone(file))),
        Database::Postgres(pool, _) => Store::Postgres(PostgresStore::new(pool.clone())),
    };
    store.grant_issue(&approval("r1").grant, NOW).await.unwrap();
}

/// Moves the job there under a fence of its own, if it stands here.
pub(crate) fn word(from: JobStatus, to: JobStatus) -> Answering {
    let fence = new_fence();
    Arc::new(move |kept| {
        if kept.job.state.status != from {
            return Err(Refusal::new(Code::InvalidField, "it stands elsewhere"));
        }
        let mut advance = moved(kept, to, NOW);
        advance.state.fence = fence;
        advance.state.due_at = (!to.is_terminal()).then_some(UnixMs(0));
        Ok(advance)
    })
}

pub(crate) async fn a_word_and_its_grant_are_one(world: &World) {
    use JobStatus::{AwaitingApproval, Executing};
    issue(&world.database).await;
    for number in [1, 2] {
        world.made(new_job(number)).await;
        let asks = moved(&world.kept(id(number)).await, AwaitingApproval, NOW);
        world.store.advance(asks).await.unwrap();
    }
    let store = &world.store;
    let before = world.kept(id(1)).await;
    // A word that does not count uses nothing.
    let refused = store.person(id(1), Some(approval("r1")), word(Executing, Executing)).await;
    assert!(matches!(refused.unwrap(), Wrote::Refused(_)));
    assert_eq!(world.kept(id(1)).await, before);
    assert_eq!(world.count("SELECT count(*) FROM registrar.nonce_use").await, 0);
    let approve = || store.person(id(1), Some(approval("r1")), word(AwaitingApproval, Executing));
    let many = join_all((0..8).map(|_| approve())).await;
    let many: Vec<Wrote> = many.into_iter().map(Result::unwrap).collect();
    let written = many.iter().filter(|wrote| matches!(wrote, Wrote::Written(_))).count();
    assert_eq!(written, 1, "{many:?}");
    assert_eq!(world.count("SELECT count(*) FROM registrar.nonce_use").await, 1);
    // Used: nothing is written for another job.
    let before = world.kept(id(2)).await;
    for (run, outcome) in [("r1", Outcome::Replayed), ("r2", Outcome::NoBypass)] {
        let used = store.person(id(2), Some(approval(run)), word(AwaitingApproval, Executing));
        assert_eq!(used.await.unwrap(), Wrote::GrantRefused(outcome));
    }
    assert_eq!(world.kept(id(2)).await, before);
    let nobody = store.person(id(9), None, word(AwaitingApproval, Executing)).await;
    assert_eq!(nobody.unwrap(), Wrote::NotFound);
}

pub(crate) async fn a_word_stops_the_worker(world: &World) {
    world.made(in_conversation(1, "c")).await;
    world.made(in_conversation(2, "c")).await;
    let worker = after(&world.claim("w", 9, NOW).await[0]);
    let cancel = word(JobStatus::Validating, JobStatus::Cancelled);
    let said = world.store.person(id(1), None, cancel).await.unwrap();
    let Wrote::Written(advance) = said else { panic!("{said:?}") };
    assert_ne!(advance.state.fence, worker.job.state.fence);
    let late = moved(&worker, JobStatus::Executing, NOW);
    assert_eq!(world.store.advance(late).await.unwrap(), Advanced::Lost);
    assert_eq!(world.kept(id(1)).await.job.state.status, JobStatus::Cancelled);
    let next = world.claim("w", 9, NOW).await;
    assert_eq!(next[0].before.job.id, id(2), "the conversation goes on");
}
