//! What is forgotten, and what never is (docs/design/registrar.md, "What is forgotten"), on both
//! stores.

use std::time::Duration;

use semel_core::limits::{CLOCK_SETTLES_AFTER, CLOCK_SETTLES_ALONE};
use semel_registrar::envelope::Envelope;
use semel_registrar::registrar::sweeper::RetentionDays;
use semel_testkit::clock::SimClock;
use semel_testkit::conformance::{Case, conforms};
use serde_json::{Value, json};

use crate::support::{
    Database, MANY, NOW, Response, Served, all_say, envelope, on_postgres, on_sqlite, one_winner,
    sqlite_store, start, with,
};

#[rustfmt::skip]
const CASES: &[Case<Served>] = &[
    Case { name: "old lines are forgotten", run: |s| Box::pin(old_lines(s)) },
    Case { name: "what was used stays used", run: |s| Box::pin(used_stays_used(s)) },
    Case { name: "an open attempt stays open", run: |s| Box::pin(open_stays_open(s)) },
    Case { name: "sweeps among attempts", run: |s| Box::pin(among_attempts(s)) },
    Case { name: "the triggers hold alone", run: |s| Box::pin(triggers(s)) },
    Case { name: "what is asked for is read strictly", run: |s| Box::pin(strictly(s)) },
];

#[tokio::test(flavor = "multi_thread")]
async fn sweeps_on_sqlite() {
    assert_eq!(conforms(CASES, on_sqlite).await, CASES.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn sweeps_on_postgres() {
    assert_eq!(conforms(CASES, on_postgres).await, CASES.len());
}

/// A calendar that is a year ahead for a moment forgets nothing; one that has settled sweeps.
#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_at_night_goes_by_a_clock_that_has_settled() {
    let folder = tempfile::tempdir().unwrap();
    let clock = SimClock::at_ms(NOW.0);
    let registrar = start(sqlite_store(folder.path()), &clock).await.unwrap();
    let mine = Envelope::parse(envelope("night").to_string().as_bytes()).unwrap();
    registrar.grant_issue(&mine, (None, None)).await.unwrap().expect("a grant");
    let sweep = || registrar.sweep_settled(RetentionDays::new(1).unwrap(), 9);
    let kept = async || registrar.grant_list(&mine.domain, None, 9).await.unwrap().len();
    assert!(sweep().await.unwrap().is_err(), "nothing is known of the clock yet");
    clock.advance(CLOCK_SETTLES_AFTER);
    assert_eq!(sweep().await.unwrap().map(|swept| swept.grants), Ok(0), "it is young");
    let year = i64::try_from(DAY.as_millis()).unwrap() * 365;
    clock.step_wall_ms(year);
    for _ in 0..3 {
        assert!(sweep().await.unwrap().is_err(), "the calendar has leapt");
        clock.advance(Duration::from_secs(2));
    }
    assert_eq!(kept().await, 1);
    clock.step_wall_ms(-year);
    assert!(sweep().await.unwrap().is_err(), "and back");
    clock.advance(CLOCK_SETTLES_ALONE);
    assert_eq!(sweep().await.unwrap().map(|swept| swept.grants), Ok(0));
    // In its time it is forgotten.
    clock.advance(DAY * 3);
    assert_eq!(sweep().await.unwrap().map(|swept| swept.grants), Ok(1));
    assert_eq!(kept().await, 0);
}

/// A start with a calendar that is a year ahead forgets nothing before that has lasted for a day.
#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_after_a_start_goes_by_no_calendar_that_has_leapt() {
    let folder = tempfile::tempdir().unwrap();
    let registrar = start(sqlite_store(folder.path()), &SimClock::at_ms(NOW.0)).await.unwrap();
    let mine = Envelope::parse(envelope("leapt").to_string().as_bytes()).unwrap();
    registrar.grant_issue(&mine, (None, None)).await.unwrap().expect("a grant");
    drop(registrar);
    let year = i64::try_from(DAY.as_millis()).unwrap() * 365;
    let ahead = SimClock::at_ms(NOW.0 + year);
    let registrar = start(sqlite_store(folder.path()), &ahead).await.unwrap();
    let sweep = || registrar.sweep_settled(RetentionDays::new(1).unwrap(), 9);
    for passed in [CLOCK_SETTLES_AFTER, CLOCK_SETTLES_ALONE - CLOCK_SETTLES_AFTER * 2] {
        ahead.advance(passed);
        assert!(sweep().await.unwrap().is_err(), "after {passed:?}");
    }
    assert_eq!(registrar.grant_list(&mine.domain, None, 9).await.unwrap().len(), 1);
    // Who leaves it so is believed.
    ahead.advance(CLOCK_SETTLES_AFTER);
    assert_eq!(sweep().await.unwrap().map(|swept| swept.grants), Ok(1));
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

async fn swept(served: &Served, days: u32) -> Response {
    served.operate("POST", "/v1/registrar/sweep", &json!({"older_than_days": days})).await
}

async fn rows(served: &Served) -> [i64; 3] {
    let mut rows = [0; 3];
    for (rows, table) in rows.iter_mut().zip(["attempt", "failure_audit", "grant_issued"]) {
        *rows = served.database.count(&format!("SELECT count(*) FROM registrar.{table}")).await;
    }
    rows
}

/// A registered effect, one that was refused, and a grant that nobody has used.
async fn some_lines(served: &Served, target: &str) -> (Value, Value) {
    let mine = envelope(target);
    let grant = served.grant(&mine).await;
    assert_eq!(served.register(&mine, &grant, 0).await.status, 201);
    let other_run = with(&mine, "run_id", "r2");
    assert_eq!(served.register(&other_run, &grant, 1).await.status, 409);
    served.grant(&mine).await;
    (mine, grant)
}

async fn old_lines(served: &Served) {
    some_lines(served, "old").await;
    assert_eq!(rows(served).await, [3, 1, 2], "started, closed, answered; one refused");
    let none = json!({"attempts": 0, "failures": 0, "grants": 0, "more": false});
    assert_eq!(swept(served, 1).await.body, none, "everything is young");
    served.clock.advance(DAY + Duration::from_secs(60 * 60));
    assert_eq!(swept(served, 2).await.body, none);
    // The grants' time was over an hour after they were issued.
    let lines = json!({"attempts": 3, "failures": 1, "grants": 0, "more": false});
    assert_eq!(swept(served, 1).await.body, lines);
    served.clock.advance(Duration::from_secs(60 * 60));
    let grants = json!({"attempts": 0, "failures": 0, "grants": 2, "more": false});
    assert_eq!(swept(served, 1).await.body, grants);
    assert_eq!(rows(served).await, [0; 3]);
    assert_eq!(served.database.count("SELECT count(*) FROM registrar.sweep").await, 4);
}

/// The words of every answer are the same as before.
async fn used_stays_used(served: &Served) {
    let (mine, grant) = some_lines(served, "used").await;
    let revoked = served.grant(&mine).await;
    let path = format!("/v1/grants/{}", revoked["nonce"].as_str().unwrap());
    assert_eq!(served.operate("DELETE", &path, &Value::Null).await.status, 204);
    let won = served.register(&mine, &grant, 2).await;
    served.clock.advance(400 * DAY);
    assert_eq!(swept(served, 1).await.body["grants"], 3);
    for table in ["effect_key", "nonce_use", "registration", "grant_revoked"] {
        let left = served.database.count(&format!("SELECT count(*) FROM registrar.{table}")).await;
        assert_eq!(left, 1, "{table}");
    }
    for count in [1, MANY] {
        let again = served.race(&mine, &grant, count).await;
        all_say(&again, (200, "", "REGISTERED"));
        assert!(again.iter().all(|again| again.result() == won.result()));
        let bypass = (409, "replay_attempt_no_bypass", "REPLAY_ATTEMPT_NO_BYPASS");
        all_say(&served.race(&with(&mine, "run_id", "r2"), &grant, count).await, bypass);
        let other = with(&mine, "canonical_target", "another");
        let consumed = (409, "replay_nonce_consumed", "REPLAY_NONCE_CONSUMED");
        all_say(&served.race(&other, &grant, count).await, consumed);
        let duplicate = (409, "replay_duplicate", "REPLAY_DUPLICATE");
        all_say(&served.race(&mine, &revoked, count).await, duplicate);
    }
}

async fn open_stays_open(served: &Served) {
    let issued = served.operate("POST", "/v1/grants", &json!({"envelope": envelope("open")})).await;
    let key = issued.body["logical_request_key"].as_str().unwrap();
    let literal = literal(served, key);
    let at = NOW.0;
    let started = format!(
        "INSERT INTO registrar.attempt (event, logical_request_key, attempt_id, at)
         VALUES ('started', {literal}, 'lost', {at})"
    );
    served.database.plant(&started).await;
    served.clock.advance(400 * DAY);
    assert_eq!(swept(served, 1).await.body["attempts"], 0);
    let resolved = served.resolve(key).await;
    assert_eq!(resolved.body["closed_attempts"], 1, "it was still to be told");
    // Its end is young, so its beginning stays as well.
    assert_eq!(swept(served, 1).await.body["attempts"], 0);
    served.clock.advance(2 * DAY);
    assert_eq!(swept(served, 1).await.body["attempts"], 2);
}

/// Sweeps as fast as they come, while many try to have the same thing.
async fn among_attempts(served: &Served) {
    for round in 0..4 {
        let issued_at = semel_core::rfc3339::format(semel_core::clock::Clock::wall(&served.clock));
        let mine = with(&envelope(&format!("among/{round}")), "issued_at", issued_at);
        let grant = served.grant(&mine).await;
        let sweeps = async {
            for _ in 0..8 {
                assert_eq!(swept(served, 1).await.status, 200);
            }
        };
        let (raced, ()) = tokio::join!(served.race(&mine, &grant, MANY), sweeps);
        let (won, others) = one_winner(raced);
        assert!(others.iter().all(|other| other.result() == won.result()));
        served.clock.advance(2 * DAY);
        let sweeps = async { all_say(&[swept(served, 1).await], (200, "", "")) };
        let (again, ()) = tokio::join!(served.race(&mine, &grant, MANY), sweeps);
        all_say(&again, (200, "", "REGISTERED"));
    }
    assert_eq!(served.database.count("SELECT count(*) FROM registrar.effect_key").await, 4);
    assert_eq!(served.database.count("SELECT count(*) FROM registrar.nonce_use").await, 4);
}

/// What somebody who uses SQL may delete, whatever the program does.
async fn triggers(served: &Served) {
    let (_, grant) = some_lines(served, "triggers").await;
    let key = literal(served, grant["logical_request_key"].as_str().unwrap());
    let everything = [
        "DELETE FROM registrar.attempt",
        "DELETE FROM registrar.failure_audit",
        "DELETE FROM registrar.grant_issued",
    ];
    let refused = async |sql: &str| {
        let refused = served.database.refusal(sql).await;
        assert!(refused.contains("never changed"), "{sql}: {refused}");
    };
    for sql in everything {
        refused(sql).await;
    }
    let late = NOW.0 + 500 * 86_400_000;
    let sweep =
        |before: i64| format!("INSERT INTO registrar.sweep (before, at) VALUES ({before}, {late})");
    let refusal = served.database.refusal(&sweep(late - 86_400_000 + 1)).await;
    assert!(refusal.contains("a_day_and_more_ago"), "{refusal}");
    served.database.plant(&sweep(NOW.0)).await;
    for sql in everything {
        refused(sql).await;
    }
    let started = |at: i64| {
        format!(
            "INSERT INTO registrar.attempt (event, logical_request_key, attempt_id, at)
                 VALUES ('started', {key}, 'open', {at})"
        )
    };
    served.database.plant(&started(NOW.0)).await;
    served.database.plant(&sweep(NOW.0 + 86_400_000)).await;
    refused("DELETE FROM registrar.attempt WHERE attempt_id = 'open'").await;
    refused("DELETE FROM registrar.attempt WHERE event = 'closed'").await;
    // Only the last line of `sweep` counts.
    served.database.plant(&sweep(NOW.0)).await;
    refused("DELETE FROM registrar.attempt WHERE event = 'answered'").await;
    served.database.plant(&sweep(NOW.0 + 86_400_000)).await;
    for sql in [
        "DELETE FROM registrar.attempt WHERE event = 'answered'",
        "DELETE FROM registrar.attempt WHERE event = 'started' AND attempt_id <> 'open'",
        "DELETE FROM registrar.attempt WHERE event = 'closed'",
        "DELETE FROM registrar.failure_audit",
        "DELETE FROM registrar.grant_issued",
    ] {
        served.database.plant(sql).await;
    }
    assert_eq!(rows(served).await, [1, 0, 0]);
    for table in ["effect_key", "nonce_use", "registration", "gate", "sweep"] {
        refused(&format!("DELETE FROM registrar.{table}")).await;
    }
    for table in ["attempt", "sweep"] {
        refused(&format!("UPDATE registrar.{table} SET at = 0")).await;
    }
}

async fn strictly(served: &Served) {
    let path = "/v1/registrar/sweep";
    for (body, code) in [
        (json!({"older_than_days": 0}), "invalid_field"),
        (json!({"older_than_days": 36_501}), "invalid_field"),
        (json!({"older_than_days": "1"}), "invalid_field"),
        (json!({}), "missing_field"),
        (json!({"older_than_days": 1, "now": true}), "unknown_field"),
    ] {
        assert_eq!(served.operate("POST", path, &body).await.said().1, code, "{body}");
    }
    let body = json!({"older_than_days": 1}).to_string();
    assert_eq!(served.ask("POST", path, "", &body).await.status, 401, "the operator's alone");
    assert_eq!(served.operate("GET", path, &Value::Null).await.status, 405);
    assert_eq!(served.database.count("SELECT count(*) FROM registrar.sweep").await, 0);
}

fn literal(served: &Served, hex: &str) -> String {
    match &served.database {
        Database::Sqlite(_) => format!("x'{hex}'"),
        Database::Postgres(_) => format!("'\\x{hex}'"),
    }
}
