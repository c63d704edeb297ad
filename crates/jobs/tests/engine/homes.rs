//! Engines of several homes over one database: each takes what it can go on with.

use std::sync::Arc;
use std::time::Duration;

use semel_jobs::gear::{Ended, ORIGIN_UNKNOWN, Output};
use semel_jobs::life::JobStatus;
use semel_store::postgres::{Postgres, PostgresOptions};
use semel_testkit::servers;
use serde_json::json;

use crate::support::{Bench, Script, Setup, step, uncertain};

const LEASE: Duration = Duration::from_secs(5);

async fn postgres(address: &str) -> Postgres {
    Postgres::open(PostgresOptions::new(address), &[], 0).await.expect("a database")
}

async fn engine(address: &str, home: &'static str, setup: Setup) -> Bench {
    let (postgres, shutdown) = (Some(address.to_owned()), Duration::ZERO);
    let setup = Setup { postgres, shutdown, worker: home, home: Some(home), lease: LEASE, ..setup };
    setup.open().await
}

/// A job that was taken in where its gear is, and is claimed where it is not, is not failed there.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_waits_for_an_engine_that_has_its_gear() {
    let address = servers::fresh_postgres().await;
    let has = engine(&address, "has", Setup { more: vec!["rare"], ..Setup::default() }).await;
    let script = Arc::clone(&has.script);
    let lacks = engine(&address, "lacks", Setup { script, ..Setup::default() }).await;
    let rare = json!([{"id": "r", "gear": "rare", "action": "echo"}]);
    for _ in 0..20 {
        let id = has.submit(rare.clone()).await;
        // Both look for work, and whoever finds it first may be the wrong one.
        lacks.engine.wake();
        assert_eq!(has.ended(id).await.job.state.status, JobStatus::Completed);
    }
    assert_eq!(has.script.ran().len(), 20);
}

/// Files of a job are in one home. While its engine lives nobody else goes on with the job; once it
/// is gone, what needs the files is not run without them.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_stays_where_its_files_are() {
    let address = servers::fresh_postgres().await;
    let first = engine(&address, "first", Setup::default()).await;
    let id = first.submit(json!([step("writes", "echo"), step("reads", "hang")])).await;
    first.script.until_ran(2).await;
    let script = Arc::clone(&first.script);
    let other = engine(&address, "other", Setup { script, ..Setup::default() }).await;
    let kept = other.see(id, |kept| kept.job.state.home.is_some()).await;
    assert_eq!(kept.job.state.home.as_deref(), Some("first"));
    // It stops as a process does that is told to: what it had is free at once, for its own home.
    first.engine.stop().await;
    drop(first);
    let state = other.ended(id).await.job.state;
    assert_eq!(state.status, JobStatus::Failed);
    let error = state.error.unwrap_or_default();
    assert!(error.contains("workspace_lost"), "{error}");
    assert_eq!(other.script.ran(), ["writes", "reads"], "nothing ran without its files");
}

/// What left as one member and may have arrived is not sent again as another: a person is asked.
#[tokio::test(flavor = "multi_thread")]
async fn what_may_have_left_as_one_member_is_not_repeated_as_another() {
    let address = servers::fresh_postgres().await;
    let one = Setup { origin: Some("mesh/one"), ..Setup::default() };
    let one = engine(&address, "one", one).await;
    one.script.will("send", vec![uncertain()]);
    // The same engine repeats it as the same member.
    let id = one.submit(json!([step("send", "echo")])).await;
    assert_eq!(one.ended(id).await.job.state.status, JobStatus::Completed);
    assert_eq!(one.script.ran().len(), 2);
    let id = one.submit(json!([step("send", "hang")])).await;
    one.script.until_ran(3).await;
    let kept = one.until(id, JobStatus::Executing).await;
    one.engine.stop().await;
    drop(one);
    assert_eq!(kept.executions[0].via.as_deref(), Some("mesh/one"));
    let two = Setup { origin: Some("mesh/two"), ..Setup::default() };
    let two = engine(&address, "two", two).await;
    let kept = two.until(id, JobStatus::AwaitingApproval).await;
    assert!(kept.job.state.question.unwrap_or_default().contains("may have happened"));
    assert_eq!(two.script.ran(), Vec::<String>::new());
}

/// An engine that does not know as whom it acts finds it out, and goes on with what waits for that.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_until_it_is_known_who_sends_goes_on() {
    let address = servers::fresh_postgres().await;
    let one = Setup { origin: Some("mesh/learned"), ..Setup::default() };
    let one = engine(&address, "home", one).await;
    let id = one.submit(json!([step("send", "hang")])).await;
    one.script.until_ran(1).await;
    one.engine.stop().await;
    drop(one);
    let script = Arc::new(Script::default());
    script.will("send", vec![Ended::Done(Output::Value(json!({})))]);
    let again = Setup { origin: Some(ORIGIN_UNKNOWN), script, ..Setup::default() };
    let again = engine(&address, "home", again).await;
    assert_eq!(again.ended(id).await.job.state.status, JobStatus::Completed);
}

/// However many jobs wait that only another home can run, what comes behind them is run.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_another_home_holds_up_nobody() {
    let address = servers::fresh_postgres().await;
    let has = Setup { more: vec!["rare"], workers: 0, ..Setup::default() };
    let has = engine(&address, "has", has).await;
    let rare = json!([{"id": "r", "gear": "rare", "action": "echo"}]);
    let waiting = futures_util::future::join_all((0..400).map(|_| has.submit(rare.clone())));
    let waiting = waiting.await;
    has.engine.stop().await;
    drop(has);
    let lacks = engine(&address, "lacks", Setup { workers: 2, ..Setup::default() }).await;
    let id = lacks.submit(json!([step("s", "echo")])).await;
    assert_eq!(lacks.ended(id).await.job.state.status, JobStatus::Completed);
    assert_eq!(lacks.see(waiting[0], |_| true).await.job.state.status, JobStatus::Pending);
}

/// A home that is gone for a while is waited for: nobody else can run what only it has.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_waits_for_a_home_that_is_away() {
    let address = servers::fresh_postgres().await;
    let rare = || Setup { more: vec!["rare"], ..Setup::default() };
    let has = engine(&address, "has", Setup { workers: 0, ..rare() }).await;
    let id = has.submit(json!([{"id": "r", "gear": "rare", "action": "echo"}])).await;
    has.engine.stop().await;
    drop(has);
    let hour = "UPDATE jobs.home SET seen_at = seen_at - 3600000";
    postgres(&address).await.write(hour, &[]).await.unwrap();
    let lacks = engine(&address, "lacks", Setup::default()).await;
    // Claimed behind it, by the only engine that works.
    let next = lacks.submit(json!([step("s", "echo")])).await;
    assert_eq!(lacks.ended(next).await.job.state.status, JobStatus::Completed);
    assert_eq!(lacks.see(id, |_| true).await.job.state.status, JobStatus::Pending);
    let back = engine(&address, "has", rare()).await;
    assert_eq!(back.ended(id).await.job.state.status, JobStatus::Completed);
    assert_eq!(lacks.script.ran(), ["s"]);
}

/// What no home has is not waited for: the job ends, and says why.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_gear_nobody_has_any_more_fails() {
    let address = servers::fresh_postgres().await;
    let had = Setup { more: vec!["rare"], workers: 0, ..Setup::default() };
    let had = engine(&address, "had", had).await;
    let lacks = engine(&address, "lacks", Setup::default()).await;
    let id = had.submit(json!([{"id": "r", "gear": "rare", "action": "echo"}])).await;
    had.engine.gears().remove("rare");
    let state = lacks.ended(id).await.job.state;
    assert_eq!(state.status, JobStatus::Failed);
    let error = state.error.unwrap_or_default();
    assert!(error.contains("gear_not_found"), "{error}");
}

/// A gear without its secrets is as good as none.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_left_to_an_engine_whose_gear_has_its_secrets() {
    let address = servers::fresh_postgres().await;
    let script = Arc::new(Script::default());
    script.lacks_secrets("test");
    let lacks = engine(&address, "lacks", Setup { script, ..Setup::default() }).await;
    let has = engine(&address, "has", Setup::default()).await;
    for _ in 0..5 {
        let id = lacks.submit(json!([step("s", "echo")])).await;
        assert_eq!(lacks.ended(id).await.job.state.status, JobStatus::Completed);
    }
    assert_eq!((lacks.script.ran().len(), has.script.ran().len()), (0, 5));
}

/// A step that was begun and whose gear is gone since may have happened: that is not a failure.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_was_begun_is_asked_about_when_its_gear_is_gone() {
    let address = servers::fresh_postgres().await;
    let had = Setup { postgres: Some(address.clone()), more: vec!["rare"], ..Setup::default() };
    let had = Setup { shutdown: Duration::ZERO, ..had }.open().await;
    let id = had.submit(json!([{"id": "r", "gear": "rare", "action": "hang"}])).await;
    had.script.until_ran(1).await;
    had.engine.stop().await;
    drop(had);
    let lacks = Setup { postgres: Some(address), worker: "lacks", ..Setup::default() };
    let lacks = lacks.open().await;
    let kept = lacks.until(id, JobStatus::AwaitingApproval).await;
    assert!(kept.job.state.question.unwrap_or_default().contains("may have happened"));
}

/// While its home is busy or away a job waits as it came: its time does not begin, and it does not
/// pass others by.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_left_to_another_home_stays_as_it_is() {
    let address = servers::fresh_postgres().await;
    let has = Setup { more: vec!["rare"], workers: 0, ..Setup::default() };
    let has = engine(&address, "has", has).await;
    let lacks = engine(&address, "lacks", Setup::default()).await;
    let rare = has.submit(json!([{"id": "r", "gear": "rare", "action": "echo"}])).await;
    // Claimed behind it, by the only engine that works.
    let next = has.submit(json!([step("s", "echo")])).await;
    assert_eq!(lacks.ended(next).await.job.state.status, JobStatus::Completed);
    let state = lacks.see(rare, |_| true).await.job.state;
    assert_eq!((state.status, state.started_at), (JobStatus::Pending, None));
    assert_eq!((state.deadline_at, state.due_at, state.fence), (None, None, 0));
}
