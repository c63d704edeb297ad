//! What people say of jobs: approve, reject, cancel; and what time does to them.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::process::{Engine, Home, moved_to};
use crate::world::World;

/// A step that nobody does without a person.
fn risky(world: &World, id: &str) -> Value {
    let mut step = world.step(id, "POST");
    step["risk"] = json!("critical");
    step
}

async fn approve(engine: &Engine, id: &str, plan_hash: &Value) -> u16 {
    engine.say(id, "approve", &json!({"plan_hash": plan_hash})).await.status
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_is_for_this_very_plan_and_used_once() {
    let (world, home) = (World::start().await, Home::new());
    let mut engine = home.serve();
    let id = engine.run(&[risky(&world, "drop")]).await;
    let job = engine.until(&id, "awaiting_approval").await;
    assert_eq!(job["question"]["kind"], "plan", "{job:#}");
    let other = engine.run(&[risky(&world, "other")]).await;
    let other = engine.until(&other, "awaiting_approval").await;
    let wrong = json!({"plan_hash": other["plan_hash"]});
    let refused = engine.say(&id, "approve", &wrong).await;
    assert_eq!((refused.status, refused.code()), (409, Some("plan_changed")));
    engine.kill();
    let mut engine = home.serve();
    let hash = &job["plan_hash"];
    let all = join_all((0..16).map(|_| approve(&engine, &id, hash))).await;
    assert_eq!(all.iter().filter(|status| **status == 200).count(), 1, "{all:?}");
    assert!(all.iter().all(|status| [200, 409].contains(status)), "{all:?}");
    // Whatever it was at: it goes on.
    engine.kill();
    let engine = home.serve();
    engine.story(&id, |event| event.id > 4 && moved_to(event, "awaiting_approval")).await;
    let job = engine.job(&id).await;
    if job["status"] == "awaiting_approval" {
        // It was inside its effect when it was killed.
        assert_eq!(job["question"]["kind"], "uncertain_step");
    } else {
        assert_eq!(job["status"], "completed", "{job:#}");
    }
    assert!(world.count("drop") <= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approved_job_waits_for_a_slot_and_survives_a_kill() {
    let (world, home) = (World::start().await, Home::with("workers = 1\n"));
    let mut engine = home.serve();
    let id = engine.run(&[risky(&world, "drop")]).await;
    let job = engine.until(&id, "awaiting_approval").await;
    let held = world.hold("blocker");
    engine.run(&[world.step("blocker", "GET")]).await;
    world.arrived("blocker", 1).await;
    assert_eq!(approve(&engine, &id, &job["plan_hash"]).await, 200);
    assert_eq!(approve(&engine, &id, &job["plan_hash"]).await, 409);
    world.pass(Duration::from_millis(300)).await;
    assert_eq!(world.count("drop"), 0, "the only slot is taken");
    engine.kill();
    drop(held);
    let engine = home.serve();
    assert_eq!(engine.ended(&id).await["status"], "completed");
    assert_eq!(world.count("drop"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_rejected_is_not_done_and_blocks_nobody() {
    let (world, home) = (World::start().await, Home::new());
    let engine = home.serve();
    let job = |step: Value| json!({"plan": {"steps": [step]}, "conversation_id": "talk"});
    let id = engine.submit(&job(risky(&world, "drop"))).await;
    let next = engine.submit(&job(world.step("next", "GET"))).await;
    let asked = engine.until(&id, "awaiting_approval").await;
    assert_eq!(engine.say(&id, "reject", &json!({"reason": "no"})).await.status, 200);
    assert_eq!(approve(&engine, &id, &asked["plan_hash"]).await, 409);
    assert_eq!(engine.ended(&id).await["status"], "cancelled");
    assert_eq!(engine.ended(&next).await["status"], "completed");
    assert_eq!(world.paths(), ["/next"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_a_person_costs_no_time() {
    let (world, home) = (World::start().await, Home::new());
    let engine = home.serve();
    let plan = json!({"steps": [risky(&world, "drop")]});
    let id = engine.submit(&json!({"plan": plan, "timeout_ms": 2000})).await;
    let job = engine.until(&id, "awaiting_approval").await;
    assert_eq!(job["deadline_at"], Value::Null, "no clock runs");
    world.pass(Duration::from_millis(2500)).await;
    assert_eq!(approve(&engine, &id, &job["plan_hash"]).await, 200);
    assert_eq!(engine.ended(&id).await["status"], "completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_ends_a_running_step_at_once_and_everything_after_it() {
    let (world, home) = (World::start().await, Home::new());
    let mut engine = home.serve();
    let held = world.hold("a");
    let id = engine.run(&[world.step("a", "GET"), world.step("b", "GET")]).await;
    world.arrived("a", 1).await;
    assert_eq!(engine.say(&id, "cancel", &json!({})).await.status, 200);
    world.left("a").await;
    assert!(held.send(200).is_err(), "nobody waits for it");
    let again = engine.say(&id, "cancel", &json!({})).await;
    assert_eq!((again.status, again.code()), (409, Some("job_ended")));
    assert_eq!(engine.stop(), Some(0));
    let engine = home.serve();
    let events = engine.story(&id, |_| false).await;
    assert!(moved_to(events.last().unwrap(), "cancelled"), "{events:#?}");
    assert!(!events.iter().any(|event| event.data["status"] == "completed"), "{events:#?}");
    assert_eq!(world.paths(), ["/a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn time_that_is_over_ends_a_running_step_and_the_job() {
    let (world, home) = (World::start().await, Home::new());
    let engine = home.serve();
    let _held = world.hold("a");
    let plan = json!({"steps": [world.step("a", "GET"), world.step("b", "GET")]});
    let id = engine.submit(&json!({"plan": plan, "timeout_ms": 1000})).await;
    world.left("a").await;
    let job = engine.ended(&id).await;
    assert_eq!((&job["status"], &job["failure_class"]), (&json!("failed"), &json!("transient")));
    assert_eq!(job["error"]["code"], "deadline_passed");
    assert_eq!(world.paths(), ["/a"]);
    // A step of its own limit: what may be repeated is, a payment is a question.
    let _held = world.hold("pay");
    let mut pay = world.step("pay", "POST");
    pay["timeout_ms"] = json!(500);
    let id = engine.run(&[pay, world.step("c", "GET")]).await;
    let job = engine.until(&id, "awaiting_approval").await;
    assert_eq!(job["steps"][0]["error"]["code"], "step_timeout");
    assert_eq!((world.count("pay"), world.count("c")), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_survives_a_restart() {
    let (world, home) = (World::start().await, Home::new());
    let mut engine = home.serve();
    let _held = [world.hold("a"), world.hold("a")];
    let plan = json!({"steps": [world.step("a", "GET"), world.step("b", "GET")]});
    let id = engine.submit(&json!({"plan": plan, "timeout_ms": 8000})).await;
    world.arrived("a", 1).await;
    let deadline = engine.job(&id).await["deadline_at"].clone();
    assert!(deadline.is_string());
    engine.kill();
    let engine = home.serve();
    world.arrived("a", 2).await;
    assert_eq!(engine.job(&id).await["deadline_at"], deadline);
    let job = engine.ended(&id).await;
    assert_eq!(
        (&job["status"], &job["error"]["code"]),
        (&json!("failed"), &json!("deadline_passed"))
    );
    assert!(job["completed_at"].as_str() >= deadline.as_str(), "{job:#}");
    assert_eq!(world.count("b"), 0);
}
