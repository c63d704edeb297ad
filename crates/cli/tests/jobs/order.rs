//! Conversations: one after the other within, all at once beside each other.

use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use crate::process::{Engine, Home};
use crate::world::World;

async fn submit(engine: &Engine, step: Value, conversation: &str, priority: &str) -> String {
    let job = json!({
        "plan": {"steps": [step]}, "conversation_id": conversation, "priority": priority,
    });
    engine.submit(&job).await
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_a_conversation_run_in_order_whatever_their_priorities() {
    let (world, home) = (World::start().await, Home::with("workers = 1\n"));
    let engine = home.serve();
    let held = world.hold("blocker");
    let blocker = engine.run(&[world.step("blocker", "GET")]).await;
    world.arrived("blocker", 1).await;
    let first = submit(&engine, world.step("first", "GET"), "talk", "low").await;
    let second = submit(&engine, world.step("second", "GET"), "talk", "critical").await;
    let other = submit(&engine, world.step("other", "GET"), "elsewhere", "normal").await;
    held.send(200).unwrap();
    for id in [blocker, first, second, other] {
        assert_eq!(engine.ended(&id).await["status"], "completed");
    }
    assert_eq!(world.paths(), ["/blocker", "/other", "/first", "/second"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_goes_on_after_a_kill_a_failure_and_a_cancel() {
    let (world, home) = (World::start().await, Home::new());
    let mut engine = home.serve();
    let held = [world.hold("one"), world.hold("three")];
    world.will("two", crate::world::Reply::Status(404));
    let mut ids = Vec::new();
    for step in ["one", "two", "three", "four"] {
        ids.push(submit(&engine, world.step(step, "GET"), "talk", "normal").await);
    }
    world.arrived("one", 1).await;
    engine.kill();
    let engine = home.serve();
    world.arrived("three", 1).await;
    assert_eq!(engine.say(&ids[2], "cancel", &json!({})).await.status, 200);
    let mut ends = Vec::new();
    for id in &ids {
        ends.push(engine.ended(id).await["status"].clone());
    }
    assert_eq!(ends, ["completed", "failed", "cancelled", "completed"]);
    assert_eq!(world.paths(), ["/one", "/one", "/two", "/three", "/four"]);
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_conversations_run_beside_each_other() {
    const CONVERSATIONS: usize = 1000;
    const TOGETHER: usize = 50;
    let (world, home) = (World::start().await, Home::new());
    let engine = home.serve();
    let held: Vec<_> = (0..TOGETHER).map(|_| world.hold("many")).collect();
    let submits = (0..CONVERSATIONS).map(|number| {
        let (engine, step) = (&engine, world.step("many", "GET"));
        async move { submit(engine, step, &format!("talk {number}"), "normal").await }
    });
    let ids: Vec<String> = stream::iter(submits).buffer_unordered(32).collect().await;
    world.arrived("many", TOGETHER).await;
    for held in held {
        held.send(200).unwrap();
    }
    for id in &ids {
        assert_eq!(engine.ended(id).await["status"], "completed", "{id}");
    }
    assert_eq!(world.count("many"), CONVERSATIONS, "each once");
}
