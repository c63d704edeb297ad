//! Taking jobs in, reading their stories, repeating those that failed (jobs.md §2, §7, §10).

use std::collections::HashSet;
use std::path::Path;

use semel_jobs::limits::RETRIES_MAX;
use serde_json::{Value, json};

use crate::process::{Home, PATIENCE};
use crate::world::{Reply, World};

#[tokio::test(flavor = "multi_thread")]
async fn a_story_goes_on_where_it_was_cut_across_a_restart() {
    let (world, home) = (World::start().await, Home::new());
    let mut engine = home.serve();
    let held = world.hold("b");
    let steps = ["a", "b", "c"].map(|id| world.step(id, "GET"));
    let id = engine.run(&steps).await;
    world.arrived("b", 1).await;
    let mut seen = engine.story(&id, |event| event.id >= 3).await;
    let last = seen.last().unwrap().id;
    engine.kill();
    drop(held);
    let engine = home.serve();
    let path = format!("/v1/jobs/{id}/events?after={last}");
    let mut stream = engine.client.stream(&path).await.unwrap();
    while let Some(event) = stream.next().await.unwrap() {
        seen.push(event);
    }
    let numbers: Vec<u64> = seen.iter().map(|event| event.id).collect();
    let all: Vec<u64> = (1..=seen.last().unwrap().id).collect();
    assert_eq!(numbers, all, "no gap and no repetition");
    assert_eq!(seen, engine.story(&id, |_| false).await);
    assert_eq!(seen.last().unwrap().data["status"], "completed");
}

/// Nothing more can come; a stream that waits for it keeps a place that others need.
#[tokio::test(flavor = "multi_thread")]
async fn a_story_that_is_resumed_at_its_end_is_over_at_once() {
    let (world, home) = (World::start().await, Home::new());
    let engine = home.serve();
    let id = engine.run(&[world.step("a", "GET")]).await;
    let last = engine.story(&id, |_| false).await.last().unwrap().id;
    let mut streams = Vec::new();
    for after in [last, last + 7] {
        for _ in 0..20 {
            let path = format!("/v1/jobs/{id}/events?after={after}");
            let mut stream = engine.client.stream(&path).await.unwrap();
            let ended = tokio::time::timeout(PATIENCE, stream.next()).await;
            assert!(matches!(ended, Ok(Ok(None))), "after {after}: it goes on");
            streams.push(stream);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_for_one_job() {
    let (world, home) = (World::start().await, Home::new());
    let mut engine = home.serve();
    let job = json!({"plan": {"steps": [world.step("once", "POST")]}});
    let first = engine.client.post("/v1/jobs", &job, Some("k")).await.unwrap();
    assert_eq!(first.status, 201);
    engine.ended(first.body["id"].as_str().unwrap()).await;
    engine.kill();
    let engine = home.serve();
    let again = engine.client.post("/v1/jobs", &job, Some("k")).await.unwrap();
    assert_eq!((again.status, &again.body["id"]), (200, &first.body["id"]));
    assert_eq!(again.body["deduplicated"], true);
    let other = json!({"plan": {"steps": [world.step("other", "POST")]}});
    let other = engine.client.post("/v1/jobs", &other, Some("k")).await.unwrap();
    assert_eq!((other.status, other.code()), (409, Some("idempotency_key_reused")));
    assert_eq!(world.paths(), ["/once"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_jobs_are_counted_and_repeated_without_doing_anything_twice() {
    let (world, home) = (World::start().await, Home::new());
    let mut engine = home.serve();
    let mut ids = Vec::new();
    for number in 0..3 {
        let (good, bad) = (format!("good{number}"), format!("bad{number}"));
        world.will(&bad, Reply::Status(404));
        ids.push(engine.run(&[world.step(&good, "POST"), world.step(&bad, "GET")]).await);
    }
    for id in &ids {
        assert_eq!(engine.ended(id).await["failure_class"], "user_error");
    }
    let patterns = engine.get("/v1/jobs/patterns").await;
    let first = &patterns["items"][0];
    assert_eq!((&first["class"], &first["count"]), (&json!("user_error"), &json!(3)));
    assert_eq!(first["action"], "http.request");
    let one = engine.say(&ids[0], "retry", &json!({})).await;
    assert_eq!(one.status, 201, "{one:?}");
    let again = one.body["id"].as_str().unwrap().to_owned();
    let job = engine.ended(&again).await;
    assert_eq!((&job["status"], &job["retry_of"]), (&json!("completed"), &json!(ids[0])));
    engine.kill();
    let engine = home.serve();
    let rest = engine.post("/v1/jobs/retry", &json!({"class": "user_error"})).await;
    let jobs: Vec<Value> = rest.body["jobs"].as_array().unwrap().clone();
    assert_eq!(jobs.len(), 2, "the first was repeated with success: {rest:?}");
    for job in &jobs {
        assert_eq!(engine.ended(job["id"].as_str().unwrap()).await["status"], "completed");
    }
    let none = engine.post("/v1/jobs/retry", &json!({"class": "user_error"})).await;
    assert_eq!(none.body["jobs"], json!([]), "nothing is left to repeat");
    for (number, id) in ids.iter().enumerate() {
        let (good, bad) = (format!("good{number}"), format!("bad{number}"));
        assert_eq!((world.count(&good), world.count(&bad)), (1, 2));
        assert_eq!(world.keys(&bad), vec![Some(format!("{id}:{bad}")); 2]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_done_is_refused_at_the_door() {
    let (world, home) = (World::start().await, Home::new());
    let engine = home.serve();
    let step = world.step("a", "GET");
    let with = |name: &str, value: Value| {
        let mut step = step.clone();
        step[name] = value;
        json!({"plan": {"steps": [step]}})
    };
    for (job, status, code) in [
        (json!({}), 400, "missing_field"),
        (json!({"request": "do it"}), 400, "planner_missing"),
        (with("gear", json!("nobody")), 400, "gear_not_found"),
        (with("params", json!({"url": 7})), 400, "invalid_plan"),
        (with("depends_on", json!(["later"])), 400, "invalid_plan"),
        (with("params", json!({"url": "$ref:step:later"})), 400, "invalid_plan"),
        (json!({"plan": {"steps": [step.clone(), step.clone()]}}), 400, "invalid_plan"),
        (with("shell", json!(true)), 400, "unknown_field"),
    ] {
        let refused = engine.post("/v1/jobs", &job).await;
        assert_eq!((refused.status, refused.code()), (status, Some(code)), "{job}: {refused:?}");
    }
    assert_eq!(world.paths(), Vec::<String>::new());
}

/// Makes so many more of the only job that there is, each with an id of its own.
fn multiply(file: &Path, count: usize) {
    let mut file = semel_testkit::sqlite::open(file).unwrap();
    let all = file.transaction().unwrap();
    all.execute_batch("CREATE TEMP TABLE one AS SELECT * FROM job").unwrap();
    for number in 1..=count {
        let id = u128::try_from(number).unwrap().to_be_bytes();
        all.execute("UPDATE one SET no = NULL, id = ?1, root_id = ?1", [id]).unwrap();
        all.execute("INSERT INTO job SELECT * FROM one", []).unwrap();
    }
    all.commit().unwrap();
}

/// A call repeats a bounded number, and says whether it has left some; the next one goes on there.
#[tokio::test(flavor = "multi_thread")]
async fn more_failed_jobs_than_one_call_repeats_are_each_repeated_once() {
    let (world, home) = (World::start().await, Home::with("workers = 1\n"));
    let mut engine = home.serve();
    world.will("bad", Reply::Status(404));
    let id = engine.run(&[world.step("bad", "GET")]).await;
    assert_eq!(engine.ended(&id).await["failure_class"], "user_error");
    assert_eq!(engine.stop(), Some(0));
    let (file, rest) = (home.path().join("jobs/jobs.db"), 7);
    multiply(&file, RETRIES_MAX + rest - 1);
    let mut engine = home.serve();
    // The only slot is taken: what is repeated waits, and nothing fails again.
    let _held = world.hold("blocker");
    engine.run(&[world.step("blocker", "GET")]).await;
    world.arrived("blocker", 1).await;
    let (mut repeats, mut calls, mut more) = (HashSet::new(), 0, true);
    while more {
        let said = engine.post("/v1/jobs/retry", &json!({"class": "user_error"})).await;
        let jobs = said.body["jobs"].as_array().unwrap();
        assert!(jobs.len() <= RETRIES_MAX);
        repeats.extend(jobs.iter().map(|job| job["id"].as_str().unwrap().to_owned()));
        (calls, more) = (calls + 1, said.body["more"].as_bool().unwrap());
    }
    assert!(calls > 1, "one call does not repeat all");
    assert_eq!(repeats.len(), RETRIES_MAX + rest);
    engine.kill();
    let file = semel_testkit::sqlite::open(&file).unwrap();
    let sql = "SELECT count(*), count(DISTINCT retry_of), count(DISTINCT root_id)
                 FROM job WHERE retry_of IS NOT NULL";
    let found = file.query_row(sql, [], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?]));
    let found: [i64; 3] = found.unwrap();
    assert_eq!(found, [i64::try_from(repeats.len()).unwrap(); 3], "each of them once");
}

/// What `semel` says in this home, and its exit code.
fn semel(home: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_semel"));
    let output = command.args(arguments).env("SEMEL_HOME", home).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// An engine that runs alone is found by its socket, and at its address with its token.
#[tokio::test(flavor = "multi_thread")]
async fn commands_find_an_engine_that_runs_alone() {
    let (world, home) = (World::start().await, Home::new());
    let (code, _, said) = semel(home.path(), &["job", "list"]);
    assert_eq!(code, Some(3), "nobody is here: {said}");
    let engine = home.serve();
    let version = engine.get("/v1/version").await;
    assert_eq!(version["engine_version"], env!("CARGO_PKG_VERSION"));
    let plan = home.path().join("plan.json");
    std::fs::write(&plan, json!({"steps": [world.step("a", "GET")]}).to_string()).unwrap();
    let plan = plan.display().to_string();
    let (code, _, said) = semel(home.path(), &["job", "submit", "--wait", "--plan", &plan]);
    assert_eq!(code, Some(0), "{said}");
    let (_, listed, _) = semel(home.path(), &["job", "list", "--json"]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["items"][0]["status"], "completed", "{listed}");
    assert_eq!(semel(home.path(), &["gear", "breaker", "list"]).0, Some(0));
    // From another home.
    let other = tempfile::tempdir().unwrap();
    let token = home.path().join("jobs/local_token").display().to_string();
    let url = engine.api.clone();
    let at = ["job", "list", "--engine", &url, "--engine-token-file", &token, "--json"];
    let (code, there, said) = semel(other.path(), &at);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(serde_json::from_str::<Value>(&there).unwrap(), listed);
    for (wrong, exit) in
        [("https://127.0.0.1:1", 2), ("http://192.0.2.1:1", 2), ("http://127.0.0.1:1", 5)]
    {
        let at = ["job", "list", "--engine", wrong, "--engine-token-file", &token];
        let (code, _, said) = semel(other.path(), &at);
        assert_eq!(code, Some(exit), "{wrong}: {said}");
    }
}

/// The command returns when plans are judged by what it has changed.
#[tokio::test(flavor = "multi_thread")]
async fn a_gear_that_was_disabled_is_used_by_nobody_from_then_on() {
    let (world, home) = (World::start().await, Home::new());
    let (code, _, said) = semel(home.path(), &["gear", "disable", "http"]);
    assert!(code == Some(0) && said.contains("no engine runs"), "{code:?}: {said}");
    let engine = home.serve();
    let job = json!({"plan": {"steps": [world.step("a", "GET")]}});
    for _ in 0..5 {
        assert_eq!(semel(home.path(), &["gear", "enable", "http"]).0, Some(0));
        let taken = engine.post("/v1/jobs", &job).await;
        assert_eq!(taken.status, 201, "{taken:?}");
        engine.ended(taken.body["id"].as_str().unwrap()).await;
        let (code, _, said) = semel(home.path(), &["gear", "disable", "http"]);
        assert_eq!((code, said.as_str()), (Some(0), ""));
        let refused = engine.post("/v1/jobs", &job).await;
        assert_eq!((refused.status, refused.code()), (400, Some("gear_disabled")));
    }
    // A job that was taken before does not begin its next step.
    assert_eq!(semel(home.path(), &["gear", "enable", "http"]).0, Some(0));
    let held = world.hold("first");
    let id = engine.run(&[world.step("first", "GET"), world.step("second", "GET")]).await;
    world.arrived("first", 1).await;
    assert_eq!(semel(home.path(), &["gear", "disable", "http"]).0, Some(0));
    held.send(200).unwrap();
    assert_eq!(engine.ended(&id).await["status"], "failed");
    assert_eq!(world.count("second"), 0);
}
