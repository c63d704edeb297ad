//! The table of a job's life (jobs.md §3) over the API: every row that this program can come to is
//! walked, and every word that is not for a job in its state is refused by its code.

use std::collections::BTreeSet;

use semel_jobs::life::{JOB, JobEvent, JobStatus};
use serde_json::{Value, json};

use crate::process::{Engine, Home};
use crate::world::{Reply, World};

type Row = (JobStatus, JobEvent, JobStatus);

/// What this program does not come to by what is asked of it here, and why.
const ELSEWHERE: &[(JobStatus, JobEvent, &str)] = {
    use JobEvent as E;
    use JobStatus as S;
    const PLANNER: &str = "no planner is part of it: jobs/tests/engine/planning.rs";
    const INSIDE: &str = "a claim comes and goes in one transaction: jobs/tests/it/life.rs";
    &[
        (S::Pending, E::Claim, PLANNER),
        (S::Planning, E::Planned, PLANNER),
        (S::Planning, E::Answered, PLANNER),
        (S::Planning, E::PlannerLost, PLANNER),
        (S::Validating, E::NeedsRevision, PLANNER),
        (S::Executing, E::Replan, PLANNER),
        (S::Planning, E::DeadlinePassed, PLANNER),
        (S::Planning, E::WorkersDied, PLANNER),
        (S::Planning, E::Cancel, PLANNER),
        (S::Validating, E::DeadlinePassed, INSIDE),
        (S::Validating, E::WorkersDied, INSIDE),
        (S::Validating, E::Cancel, INSIDE),
    ]
};

/// The rows that the story of a job walks that has ended.
async fn walked(engine: &Engine, id: &str, rows: &mut BTreeSet<Row>) {
    let mut from = JobStatus::Pending;
    let events = engine.story(id, |_| false).await;
    for event in events.iter().filter(|event| event.kind == "moved") {
        let word = |name: &str| event.data[name].as_str().unwrap().to_owned();
        let to = JobStatus::parse(&word("status")).unwrap();
        rows.insert((from, JobEvent::parse(&word("event")).unwrap(), to));
        from = to;
    }
}

fn risky(world: &World, id: &str) -> Value {
    let mut step = world.step(id, "POST");
    step["risk"] = json!("critical");
    step
}

/// An hour is the least that a person has.
fn nobody_answers_in_time(home: &Home) {
    let file = semel_testkit::sqlite::open(home.path().join("jobs/jobs.db")).unwrap();
    let over = "UPDATE job SET expires_at = 1 WHERE status = 'awaiting_approval'";
    assert_eq!(file.execute(over, []).unwrap(), 1);
}

/// A rule became stricter than what was consented to: the step asks before it is run.
async fn asked_by_a_stricter_rule(world: &World, home: &Home, engine: &mut Engine) -> String {
    let _held = world.hold("early");
    let mut late = world.step("late", "PUT");
    late["depends_on"] = json!(["early"]);
    let id = engine.run(&[world.step("early", "GET"), late]).await;
    world.arrived("early", 1).await;
    engine.kill();
    home.configure("[[policy]]\nmethod = \"PUT\"\nverdict = \"ask\"\n");
    *engine = home.serve();
    let asked = engine.until(&id, "awaiting_approval").await;
    assert_eq!(world.count("late"), 0, "{asked}");
    let approval = json!({"plan_hash": asked["plan_hash"]});
    assert_eq!(engine.say(&id, "approve", &approval).await.status, 200);
    assert_eq!(engine.ended(&id).await["status"], "completed");
    assert_eq!(world.count("late"), 1);
    id
}

/// What fails too often is held, and goes on when a person says so.
async fn held_by_a_breaker(world: &World, engine: &Engine) -> String {
    for _ in 0..5 {
        world.will("down", Reply::Status(503));
        engine.run(&[world.step("down", "GET")]).await;
    }
    let opened = engine.look("/v1/breakers", |all| all["items"][0]["state"] == "open").await;
    let held = engine.run(&[world.step("up", "GET")]).await;
    engine.look(&format!("/v1/jobs/{held}"), |job| job["held_by"].is_string()).await;
    let name = &opened["items"][0]["action"];
    let closed = engine.post("/v1/breakers/close", &json!({"action": name})).await;
    assert_eq!(closed.status, 200, "{closed:?}");
    assert_eq!(engine.ended(&held).await["status"], "completed");
    held
}

#[tokio::test(flavor = "multi_thread")]
async fn every_row_that_can_be_is_walked() {
    let reject = "[[policy]]\nmethod = \"DELETE\"\nverdict = \"reject\"\n";
    let (world, home) = (World::start().await, Home::with(reject));
    let mut engine = home.serve();
    let mut ids = Vec::new();
    // Done, refused by the policy, failed for good, late.
    ids.push(engine.run(&[world.step("good", "GET")]).await);
    ids.push(engine.run(&[world.step("never", "DELETE")]).await);
    world.will("bad", Reply::Status(404));
    ids.push(engine.run(&[world.step("bad", "GET")]).await);
    let _held = world.hold("slow");
    let plan = json!({"steps": [world.step("slow", "GET")]});
    ids.push(engine.submit(&json!({"plan": plan, "timeout_ms": 1000})).await);
    for id in &ids {
        engine.ended(id).await;
    }
    // A person approves, rejects, cancels while it waits, runs, and has not begun.
    for verb in ["approve", "reject", "cancel"] {
        let id = engine.run(&[risky(&world, verb)]).await;
        let asked = engine.until(&id, "awaiting_approval").await;
        let approval = json!({"plan_hash": asked["plan_hash"]});
        let word = if verb == "approve" { approval } else { json!({}) };
        let said = engine.say(&id, verb, &word).await;
        assert_eq!(said.status, 200, "{verb}: {said:?}");
        engine.ended(&id).await;
        ids.push(id);
    }
    let _held = world.hold("runs");
    let in_turn = |step: Value| json!({"plan": {"steps": [step]}, "conversation_id": "talk"});
    let runs = engine.submit(&in_turn(world.step("runs", "GET"))).await;
    let waits = engine.submit(&in_turn(world.step("waits", "GET"))).await;
    world.arrived("runs", 1).await;
    for id in [waits, runs] {
        assert_eq!(engine.say(&id, "cancel", &json!({})).await.status, 200);
        ids.push(id);
    }
    // Nobody knows whether it happened, and its engines die over it.
    let _held = [world.hold("pay"), world.hold("dies"), world.hold("dies"), world.hold("dies")];
    let pay = engine.run(&[world.step("pay", "POST")]).await;
    let dies = engine.run(&[world.step("dies", "GET")]).await;
    world.arrived("pay", 1).await;
    for death in 1..=3 {
        world.arrived("dies", death).await;
        engine.kill();
        engine = home.serve();
    }
    engine.until(&pay, "awaiting_approval").await;
    engine.kill();
    nobody_answers_in_time(&home);
    engine = home.serve();
    assert_eq!(engine.ended(&pay).await["status"], "cancelled");
    assert_eq!(engine.ended(&dies).await["error"]["code"], "workers_died");
    ids.extend([pay, dies]);
    ids.push(asked_by_a_stricter_rule(&world, &home, &mut engine).await);
    ids.push(held_by_a_breaker(&world, &engine).await);
    let mut rows = BTreeSet::new();
    for id in &ids {
        walked(&engine, id, &mut rows).await;
    }
    let elsewhere =
        |row: &&Row| ELSEWHERE.iter().any(|(from, event, _)| (row.0, row.1) == (*from, *event));
    let wanted: BTreeSet<Row> = JOB.iter().filter(|row| !elsewhere(row)).copied().collect();
    assert_eq!(rows, wanted);
}

/// One job in each state that lasts.
async fn one_of_each(world: &World, engine: &Engine) -> Vec<(&'static str, String)> {
    let completed = engine.run(&[world.step("good", "GET")]).await;
    world.will("bad", Reply::Status(404));
    let failed = engine.run(&[world.step("bad", "GET")]).await;
    let cancelled = engine.run(&[risky(world, "no")]).await;
    engine.until(&cancelled, "awaiting_approval").await;
    assert_eq!(engine.say(&cancelled, "reject", &json!({})).await.status, 200);
    let awaiting = engine.run(&[risky(world, "maybe")]).await;
    engine.until(&awaiting, "awaiting_approval").await;
    let in_turn = |step: Value| json!({"plan": {"steps": [step]}, "conversation_id": "talk"});
    let executing = engine.submit(&in_turn(world.step("runs", "GET"))).await;
    world.arrived("runs", 1).await;
    let pending = engine.submit(&in_turn(world.step("waits", "GET"))).await;
    for id in [&completed, &failed] {
        engine.ended(id).await;
    }
    vec![
        ("pending", pending),
        ("executing", executing),
        ("awaiting_approval", awaiting),
        ("completed", completed),
        ("failed", failed),
        ("cancelled", cancelled),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_word_that_is_not_for_its_state_is_refused() {
    let (world, home) = (World::start().await, Home::new());
    let engine = home.serve();
    let _held = world.hold("runs");
    let all = one_of_each(&world, &engine).await;
    for (status, id) in &all {
        let before = engine.job(id).await;
        assert_eq!(before["status"], *status);
        let approval = json!({"plan_hash": before["plan_hash"]});
        let refused: &[(&str, &Value, u16, &str)] = match *status {
            "pending" | "executing" => &[
                ("approve", &approval, 409, "job_not_waiting"),
                ("reject", &json!({}), 409, "job_not_waiting"),
                ("retry", &json!({}), 409, "job_not_failed"),
            ],
            "awaiting_approval" => &[
                ("approve", &json!({"plan_hash": "00".repeat(32)}), 409, "plan_changed"),
                (
                    "approve",
                    &json!({"plan_hash": before["plan_hash"], "answer": "run"}),
                    400,
                    "invalid_field",
                ),
                ("retry", &json!({}), 409, "job_not_failed"),
            ],
            "completed" | "cancelled" => &[
                ("approve", &approval, 409, "job_not_waiting"),
                ("reject", &json!({}), 409, "job_not_waiting"),
                ("cancel", &json!({}), 409, "job_ended"),
                ("retry", &json!({}), 409, "job_not_failed"),
            ],
            _ => &[
                ("approve", &approval, 409, "job_not_waiting"),
                ("reject", &json!({}), 409, "job_not_waiting"),
                ("cancel", &json!({}), 409, "job_ended"),
            ],
        };
        for (verb, body, http, code) in refused {
            let said = engine.say(id, verb, body).await;
            assert_eq!(
                (said.status, said.code()),
                (*http, Some(*code)),
                "{status} {verb}: {said:?}"
            );
        }
        assert_eq!(engine.job(id).await, before, "{status}: nothing has changed");
    }
    // Being repeated, and nobody at all.
    let failed = &all[4].1;
    let _held = world.hold("bad");
    assert_eq!(engine.say(failed, "retry", &json!({})).await.status, 201);
    world.arrived("bad", 2).await;
    let again = engine.say(failed, "retry", &json!({})).await;
    assert_eq!((again.status, again.code()), (409, Some("job_repeating")));
    let nobody = "00000000-0000-7000-8000-000000000000";
    for verb in ["approve", "reject", "cancel", "retry"] {
        let approval = json!({"plan_hash": "00".repeat(32)});
        let word = if verb == "approve" { approval } else { json!({}) };
        let said = engine.say(nobody, verb, &word).await;
        assert_eq!((said.status, said.code()), (404, Some("job_not_found")), "{verb}: {said:?}");
    }
}
