//! What is too old goes by a clock that can be believed, or not yet.

use std::sync::Arc;
use std::time::Duration;

use semel_core::clock::{Clock, SystemClock};
use semel_core::id::JobId;
use semel_core::limits::{CLOCK_SETTLES_AFTER, CLOCK_SETTLES_ALONE};
use semel_jobs::life::JobStatus;
use semel_jobs::limits::RETENTION;
use semel_store::postgres::{Postgres, PostgresOptions};
use semel_testkit::clock::SimClock;
use semel_testkit::servers;
use serde_json::json;

use crate::support::{Bench, Setup, step};

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const TEN_YEARS_MS: i64 = 10 * 365 * 24 * 60 * 60 * 1000;

async fn write(postgres: &Postgres, sql: &str, by: i64, id: JobId) {
    let changed = postgres.write(sql, &[&by, &id.as_uuid()]).await.expect("a store");
    assert_eq!(changed.len(), 1, "{sql}");
}

/// Comes back when upkeep was done from beginning to end: it cancels what nobody has answered in
/// time before it sweeps, so that the second of two is cancelled after the sweep of the first.
async fn upkeep(bench: &Bench, postgres: &Postgres) {
    for _ in 0..2 {
        let id = bench.submit(json!([step("asks", "drop")])).await;
        bench.until(id, JobStatus::AwaitingApproval).await;
        write(postgres, "UPDATE jobs.job SET expires_at = $1 WHERE id = $2 RETURNING no", 1, id)
            .await;
        bench.until(id, JobStatus::Cancelled).await;
    }
}

async fn done(bench: &Bench) -> JobId {
    let id = bench.submit(json!([step("s", "echo")])).await;
    assert_eq!(bench.ended(id).await.job.state.status, JobStatus::Completed);
    id
}

async fn is_there(bench: &Bench, id: JobId) -> bool {
    bench.engine.store().job(id).await.expect("a store").is_some()
}

/// Comes back when upkeep was done from beginning to end, and two days have passed.
async fn upkeep_of_days(bench: &Bench, clock: &SimClock) {
    for _ in 0..2 {
        let id = bench.submit(json!([step("asks", "drop")])).await;
        bench.until(id, JobStatus::AwaitingApproval).await;
        clock.advance(DAY + MINUTE);
        bench.until(id, JobStatus::Cancelled).await;
    }
}

/// Comes back when upkeep was done from beginning to end: it takes note of breakers, and sweeps.
async fn looked_after(bench: &Bench) {
    for _ in 0..2 {
        let id = bench.submit(json!([step("asks", "drop")])).await;
        bench.until(id, JobStatus::AwaitingApproval).await;
        let file = bench.file();
        file.execute("UPDATE job SET expires_at = 1 WHERE expires_at IS NOT NULL", [])
            .expect("a row");
        bench.until(id, JobStatus::Cancelled).await;
    }
}

/// What an engine alone has finished is kept for its time from then on, however far ahead the
/// calendar was put since, and however long the machine slept.
#[tokio::test(flavor = "multi_thread")]
async fn old_jobs_of_a_file_go_when_their_time_has_passed() {
    let clock = SimClock::at_ms(1_800_000_000_000);
    let bench = Setup { clock: Arc::new(clock.clone()), ..Setup::default() }.open().await;
    upkeep_of_days(&bench, &clock).await;
    let before = done(&bench).await;
    clock.step_wall_ms(TEN_YEARS_MS);
    upkeep_of_days(&bench, &clock).await;
    let after = done(&bench).await;
    upkeep_of_days(&bench, &clock).await;
    assert!(is_there(&bench, before).await && is_there(&bench, after).await);
    clock.advance(RETENTION);
    upkeep_of_days(&bench, &clock).await;
    assert!(!is_there(&bench, before).await && !is_there(&bench, after).await);
}

/// An engine alone starts with a calendar that is a year ahead: what it finds stays until that has
/// lasted for a day, and is swept in its time once the calendar is right again.
#[tokio::test(flavor = "multi_thread")]
async fn old_jobs_of_a_file_outlive_a_start_with_a_calendar_that_has_leapt() {
    let begin = 1_800_000_000_000;
    let on = |clock: &SimClock| Arc::new(clock.clone());
    let clock = SimClock::at_ms(begin);
    let bench = Setup { clock: on(&clock), ..Setup::default() }.open().await;
    let id = done(&bench).await;
    let folder = Some(bench.end().await);
    let ahead = SimClock::at_ms(begin + TEN_YEARS_MS);
    let bench = Setup { clock: on(&ahead), folder, ..Setup::default() }.open().await;
    for passed in [CLOCK_SETTLES_AFTER, CLOCK_SETTLES_ALONE - CLOCK_SETTLES_AFTER - MINUTE] {
        ahead.advance(passed);
        looked_after(&bench).await;
        assert!(is_there(&bench, id).await, "after {passed:?}");
    }
    let folder = Some(bench.end().await);
    // An hour later: names are made of the time.
    let clock = SimClock::at_ms(begin + 60 * 60 * 1000);
    let bench = Setup { clock: on(&clock), folder, ..Setup::default() }.open().await;
    upkeep_of_days(&bench, &clock).await;
    assert!(is_there(&bench, id).await);
    clock.advance(RETENTION);
    upkeep_of_days(&bench, &clock).await;
    assert!(!is_there(&bench, id).await, "its time has passed");
}

/// The calendar leaps ten years ahead. While it has not settled nothing goes; then only what is old
/// by the database's clock, too.
#[tokio::test(flavor = "multi_thread")]
async fn old_jobs_of_a_database_go_by_no_calendar_that_leaps() {
    let address = servers::fresh_postgres().await;
    let clock = SimClock::at_ms(SystemClock::new().wall().0);
    let postgres = Postgres::open(PostgresOptions::new(&address), &[], 0);
    let setup = Setup {
        clock: Arc::new(clock.clone()),
        postgres: Some(address.clone()),
        ..Setup::default()
    };
    let bench = setup.open().await;
    let postgres = postgres.await.expect("a database");
    let (old, young) = (done(&bench).await, done(&bench).await);
    let ms = i64::try_from((RETENTION + MINUTE).as_millis()).expect("a month");
    let age = "UPDATE jobs.job SET completed_at = completed_at - $1 WHERE id = $2 RETURNING no";
    write(&postgres, age, ms, old).await;
    let steps: [(&str, &dyn Fn()); 4] = [
        ("it has just begun", &|| {}),
        ("it has not settled", &|| clock.advance(CLOCK_SETTLES_AFTER - MINUTE)),
        ("the calendar leaps", &|| clock.step_wall_ms(TEN_YEARS_MS)),
        ("it has not settled again", &|| clock.advance(CLOCK_SETTLES_AFTER - MINUTE)),
    ];
    for (when, happens) in steps {
        happens();
        upkeep(&bench, &postgres).await;
        assert!(is_there(&bench, old).await, "{when}");
    }
    clock.advance(MINUTE);
    upkeep(&bench, &postgres).await;
    assert!(!is_there(&bench, old).await, "it has settled");
    assert!(is_there(&bench, young).await, "the database knows better");
}
