//! A service that is down, and one that says no, as jobs see them (jobs.md §7).

use std::time::Duration;

use serde_json::json;

use crate::process::Home;
use crate::world::{Reply, World};

/// The breaker is open for half a minute, and the test waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn one_probe_reaches_a_service_that_was_down_and_then_all_go_on() {
    let (world, home) = (World::start().await, Home::new());
    let engine = home.serve();
    let mut ids = Vec::new();
    for _ in 0..5 {
        world.will("down", Reply::Status(503));
        ids.push(engine.run(&[world.step("down", "GET")]).await);
    }
    let opened = engine.look("/v1/breakers", |all| all["items"][0]["state"] == "open").await;
    let name = opened["items"][0]["action"].as_str().unwrap().to_owned();
    assert!(name.starts_with("http.request 127.0.0.1:"), "{name}");
    let probe = world.hold("down");
    for _ in 0..16 {
        ids.push(engine.run(&[world.step("down", "GET")]).await);
    }
    for id in &ids {
        let held = |job: &serde_json::Value| job["held_by"] == *name;
        let job = engine.look(&format!("/v1/jobs/{id}"), held).await;
        assert_eq!(job["status"], "pending", "a state of the job, no skipped step");
    }
    assert_eq!(world.count("down"), 5, "nothing goes through");
    world.arrived("down", 6).await;
    world.pass(Duration::from_secs(2)).await;
    assert_eq!(world.count("down"), 6, "one probe, whoever else waits");
    probe.send(200).unwrap();
    for id in &ids {
        assert_eq!(engine.ended(id).await["status"], "completed");
    }
    assert_eq!(world.count("down"), 5 + ids.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_closes_a_breaker() {
    let (world, home) = (World::start().await, Home::new());
    let engine = home.serve();
    for _ in 0..5 {
        world.will("down", Reply::Status(503));
        engine.run(&[world.step("down", "GET")]).await;
    }
    let opened = engine.look("/v1/breakers", |all| all["items"][0]["state"] == "open").await;
    let id = engine.run(&[world.step("up", "GET")]).await;
    engine.look(&format!("/v1/jobs/{id}"), |job| job["held_by"].is_string()).await;
    let closed =
        engine.post("/v1/breakers/close", &json!({"action": opened["items"][0]["action"]})).await;
    assert_eq!(closed.status, 200, "{closed:?}");
    assert_eq!(engine.ended(&id).await["status"], "completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_that_are_refused_are_not_tried_again_and_trip_nothing() {
    let (world, home) = (World::start().await, Home::new());
    let engine = home.serve();
    for _ in 0..10 {
        world.will("closed", Reply::Status(401));
        let id = engine.run(&[world.step("closed", "GET")]).await;
        let job = engine.ended(&id).await;
        assert_eq!(
            (&job["status"], &job["failure_class"]),
            (&json!("failed"), &json!("user_error"))
        );
        assert_eq!(job["error"]["code"], "http_401");
    }
    assert_eq!(world.count("closed"), 10);
    let id = engine.run(&[world.step("open", "GET")]).await;
    assert_eq!(engine.ended(&id).await["status"], "completed");
}
