//! Two engines over one database: a worker that was presumed dead writes nothing any more.

use rustix::process::Signal;
use semel_testkit::servers::fresh_postgres;
use serde_json::json;

use crate::process::{Home, moved_to};
use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stood_still_past_its_lease_is_fenced_off() {
    let (world, store) = (World::start().await, fresh_postgres().await);
    let homes = (Home::sharing(&store), Home::sharing(&store));
    let one = homes.0.serve();
    let late = world.hold("a");
    let id = one.run(&[world.step("a", "GET"), world.step("b", "POST")]).await;
    world.arrived("a", 1).await;
    one.signal(Signal::STOP);
    let two = homes.1.serve();
    let before = (two.ended(&id).await, two.story(&id, |_| false).await);
    assert_eq!(before.0["status"], "completed", "{:#}", before.0);
    assert_eq!((world.count("a"), world.count("b")), (2, 1));
    // Another result than the one that counts is there when it wakes up.
    late.send(201).unwrap();
    world.answered("a", 2).await;
    one.signal(Signal::CONT);
    // It works again, and has heard of its loss by then or will not write any more.
    let other = one.run(&[world.step("later", "GET")]).await;
    assert_eq!(one.ended(&other).await["status"], "completed");
    until_idle(&homes.0, &one).await;
    let after = (two.job(&id).await, two.story(&id, |_| false).await);
    assert_eq!(before, after, "the late worker changes nothing");
    assert_eq!(after.0["result"][0]["result"]["status"], 200);
    assert_eq!((world.count("a"), world.count("b")), (2, 1));
}

/// Until an engine has said that it left a job to somebody else.
async fn until_idle(home: &Home, engine: &crate::process::Engine) {
    let waiting = async {
        while !home.log().contains("another worker has the job now") {
            engine.get("/v1/breakers").await;
        }
    };
    // It leaves without a word when it hears of its loss before the gear has ended.
    let _ = tokio::time::timeout(crate::process::LEASE, waiting).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_answer_does_not_answer_a_persons_question() {
    let (world, store) = (World::start().await, fresh_postgres().await);
    let homes = (Home::sharing(&store), Home::sharing(&store));
    let one = homes.0.serve();
    let late = world.hold("pay");
    let id = one.run(&[world.step("pay", "POST"), world.step("after", "GET")]).await;
    world.arrived("pay", 1).await;
    one.signal(Signal::STOP);
    let two = homes.1.serve();
    let job = two.until(&id, "awaiting_approval").await;
    late.send(200).unwrap();
    world.answered("pay", 1).await;
    one.signal(Signal::CONT);
    until_idle(&homes.0, &one).await;
    assert_eq!(two.job(&id).await, job, "the question stands");
    assert_eq!(world.count("after"), 0);
    let happened = json!({
        "answer": "happened", "result": 7, "plan_hash": job["plan_hash"],
        "question": job["question"]["number"],
    });
    // Anybody may be told, and anybody goes on.
    let said = one.say(&id, "approve", &happened).await;
    assert_eq!(said.status, 200, "{:#?}", said.body);
    let job = two.ended(&id).await;
    assert_eq!((&job["status"], &job["result"][0]["result"]), (&json!("completed"), &json!(7)));
    assert_eq!((world.count("pay"), world.count("after")), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_at_one_engine_stops_what_runs_at_another() {
    let (world, store) = (World::start().await, fresh_postgres().await);
    let homes = (Home::sharing(&store), Home::sharing(&store));
    let one = homes.0.serve();
    let held = world.hold("a");
    let id = one.run(&[world.step("a", "GET"), world.step("b", "GET")]).await;
    world.arrived("a", 1).await;
    let two = homes.1.serve();
    let said = two.say(&id, "cancel", &json!({"reason": "enough"})).await;
    assert_eq!((said.status, &said.body["status"]), (200, &json!("cancelled")));
    world.left("a").await;
    assert!(held.send(200).is_err(), "nobody waits for it");
    let events = one.story(&id, |event| moved_to(event, "completed")).await;
    assert!(moved_to(events.last().unwrap(), "cancelled"), "{events:#?}");
    assert_eq!(world.count("b"), 0);
}
