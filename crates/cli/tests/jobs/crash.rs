//! A plan of five steps, killed at every point: what was done is not done again, what was
//! interrupted is recovered as it declares, and the end is the same as without a kill.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use semel_testkit::servers::fresh_postgres;
use serde_json::{Value, json};

use crate::process::{Engine, Home, LEASE, Lottery, completed, moved_to};
use crate::world::World;

/// What may be repeated, and what may not.
const STEPS: [(&str, &str); 5] =
    [("a", "GET"), ("b", "POST"), ("c", "GET"), ("d", "PUT"), ("e", "POST")];
/// Engines at a time.
const AT_ONCE: usize = 6;
/// Pairs of them at a time, each with connections of its own to the same server.
const PAIRS_AT_ONCE: usize = 3;

fn plan(world: &World) -> Vec<Value> {
    let mut steps: Vec<Value> = STEPS.iter().map(|(id, method)| world.step(id, method)).collect();
    // What was done is seen by what follows, also after a kill.
    steps[2]["params"]["headers"] = json!({"x-before": "$ref:step:a/body"});
    steps[4]["params"]["body"] = json!("$ref:step:d");
    steps
}

/// When the engine is killed.
#[derive(Debug, Clone, Copy)]
enum At {
    /// As soon as this line of the ledger is seen.
    Line(usize),
    /// While the world has the request of this step and has not answered.
    Inside(&'static str),
    /// Right after the world has answered it.
    After(&'static str),
    /// Some time after it was handed in.
    Time(Duration),
}

/// The job without a kill: what it gives, and how many lines it leaves.
async fn calm() -> (Value, usize) {
    let (world, home) = (World::start().await, Home::new());
    let engine = home.serve();
    let id = engine.run(&plan(&world)).await;
    let lines = engine.story(&id, |_| false).await.len();
    let job = engine.job(&id).await;
    assert_eq!(job["status"], "completed", "{job:#}");
    (job["result"].clone(), lines)
}

/// The same with a kill of the engine in the first home; the one in the second goes on.
async fn killed(at: At, expected: &Value, homes: (&Home, &Home)) {
    let world = World::start().await;
    let mut engine = homes.0.serve();
    let held = match at {
        At::Inside(step) => Some(world.hold(step)),
        // The engine cannot run ahead of the kill: the step that begins there is not answered.
        At::Line(line) => STEPS.get(line.saturating_sub(3) / 2).map(|(step, _)| world.hold(step)),
        At::After(_) | At::Time(_) => None,
    };
    let id = engine.run(&plan(&world)).await;
    let mut seen = Vec::new();
    match at {
        At::Line(line) => {
            let line = u64::try_from(line).unwrap();
            seen = engine.story(&id, |event| event.id >= line).await;
        }
        At::Inside(step) => world.arrived(step, 1).await,
        At::After(step) => world.answered(step, 1).await,
        At::Time(time) => world.pass(time).await,
    }
    engine.kill();
    drop(held);
    let (before, done) = (world.paths().len(), completed(&seen));
    let engine = homes.1.serve();
    let job = recovered(&engine, &world, &id, expected).await;
    assert_eq!(job["status"], "completed", "{at:?}: {job:#}");
    assert_eq!(job["result"], *expected, "{at:?}");
    let repeated = world.paths().len() - STEPS.len();
    assert!(repeated <= 1, "{at:?}: {before} requests before, then {:?}", world.paths());
    for (step, method) in STEPS {
        let keys = world.keys(step);
        assert!(keys.iter().all(|key| *key == Some(format!("{id}:{step}"))), "{at:?}: {keys:?}");
        let once = method == "POST" || done.contains(&step.to_owned());
        assert!(!once || keys.len() == 1, "{at:?}: {step} {keys:?}");
    }
}

/// Follows a job to its end. Who is asked whether a step has happened looks at the world.
async fn recovered(engine: &Engine, world: &World, id: &str, expected: &Value) -> Value {
    engine.story(id, |event| moved_to(event, "awaiting_approval")).await;
    let job = engine.job(id).await;
    if job["status"] != "awaiting_approval" {
        return job;
    }
    assert_eq!(job["question"]["kind"], "uncertain_step", "{job:#}");
    let step = job["question"]["step"].as_str().unwrap();
    let method = STEPS.iter().find(|(id, _)| *id == step).unwrap().1;
    assert_eq!(method, "POST", "what may be repeated is no question");
    let result = expected.as_array().unwrap().iter().find(|one| one["step"] == step).unwrap();
    let answer = match world.count(step) {
        0 => json!({
            "answer": "run", "plan_hash": job["plan_hash"], "question": job["question"]["number"],
        }),
        _ => json!({
            "answer": "happened", "result": result["result"], "plan_hash": job["plan_hash"],
            "question": job["question"]["number"],
        }),
    };
    let said = engine.say(id, "approve", &answer).await;
    assert_eq!(said.status, 200, "{said:?}");
    engine.ended(id).await
}

async fn all(points: Vec<At>) {
    let (expected, _) = calm().await;
    let expected = Arc::new(expected);
    let runs = points.into_iter().map(|at| {
        let expected = Arc::clone(&expected);
        async move {
            let home = Home::new();
            killed(at, &expected, (&home, &home)).await;
        }
    });
    stream::iter(runs).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_every_line_of_its_ledger() {
    let (_, lines) = calm().await;
    assert!(lines >= 3 + 2 * STEPS.len(), "{lines} lines");
    all((1..lines).map(At::Line).collect()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_inside_every_effect_and_right_after_it() {
    let points = STEPS.iter().flat_map(|(step, _)| [At::Inside(step), At::After(step)]);
    all(points.collect()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_moment() {
    let mut lottery = Lottery(0x5e3e1);
    let moments = (0..20).map(|_| At::Time(Duration::from_millis(lottery.below(150))));
    all(moments.collect()).await;
}

/// Two engines over one database: whichever is left goes on.
#[tokio::test(flavor = "multi_thread")]
async fn another_engine_goes_on_after_a_kill() {
    let (expected, lines) = calm().await;
    let expected = Arc::new(expected);
    let inside = STEPS.iter().flat_map(|(step, _)| [At::Inside(step), At::After(step)]);
    let points = (1..lines).map(At::Line).chain(inside);
    let runs = points.map(|at| {
        let expected = Arc::clone(&expected);
        async move {
            let store = fresh_postgres().await;
            let homes = (Home::sharing(&store), Home::sharing(&store));
            killed(at, &expected, (&homes.0, &homes.1)).await;
        }
    });
    stream::iter(runs).buffer_unordered(PAIRS_AT_ONCE).collect::<Vec<()>>().await;
}

/// Nobody else can have the file of an engine that was killed, however long its lease.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_alone_does_not_wait_for_the_lease_of_a_dead_one() {
    let (world, home) = (World::start().await, Home::new());
    let config = home.path().join("jobs/config.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let lease = format!("lease_ms = {}", LEASE.as_millis());
    std::fs::write(&config, text.replace(&lease, "lease_ms = 600000")).unwrap();
    let mut engine = home.serve();
    let held = world.hold("look");
    let id = engine.run(&[world.step("look", "GET")]).await;
    world.arrived("look", 1).await;
    engine.kill();
    drop(held);
    let job = home.serve().ended(&id).await;
    assert_eq!(job["status"], "completed", "{job:#}");
}

/// The answer "run" is taken at its word: the step is run again, under the same name.
#[tokio::test(flavor = "multi_thread")]
async fn a_person_says_that_it_has_not_happened() {
    let (world, home) = (World::start().await, Home::new());
    let mut engine = home.serve();
    let held = world.hold("pay");
    let id = engine.run(&[world.step("pay", "POST")]).await;
    world.arrived("pay", 1).await;
    engine.kill();
    drop(held);
    let engine = home.serve();
    let job = engine.until(&id, "awaiting_approval").await;
    let wrong = json!({"answer": "approve", "plan_hash": job["plan_hash"]});
    assert_eq!(engine.say(&id, "approve", &wrong).await.status, 400);
    let run = json!({
        "answer": "run", "plan_hash": job["plan_hash"], "question": job["question"]["number"],
    });
    assert_eq!(engine.say(&id, "approve", &run).await.status, 200);
    assert_eq!(engine.ended(&id).await["status"], "completed");
    assert_eq!(world.keys("pay"), vec![Some(format!("{id}:pay")); 2]);
}

/// Deaths are forgotten when a step was completed since: any number of power cuts fails no job that
/// gets on.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_gets_on_between_kills_is_not_given_up() {
    let (world, home) = (World::start().await, Home::new());
    let steps = ["a", "b", "c", "d", "e"];
    let mut engine = home.serve();
    let mut held = vec![world.hold("a")];
    let plan: Vec<Value> = steps.iter().map(|step| world.step(step, "GET")).collect();
    let id = engine.run(&plan).await;
    for (number, step) in steps.iter().enumerate() {
        world.arrived(step, 1).await;
        held.extend(steps.get(number + 1).map(|next| world.hold(next)));
        engine.kill();
        engine = home.serve();
    }
    let job = engine.ended(&id).await;
    assert_eq!(job["status"], "completed", "{job:#}");
}

/// Workers that die over a job are counted: it is not claimed for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_takes_three_engines_down_is_given_up() {
    let (world, home) = (World::start().await, Home::new());
    let mut engine = home.serve();
    let mut held = vec![world.hold("poison")];
    let id = engine.run(&[world.step("poison", "GET")]).await;
    for death in 1..=3 {
        world.arrived("poison", death).await;
        engine.kill();
        held.push(world.hold("poison"));
        engine = home.serve();
    }
    let job = engine.ended(&id).await;
    assert_eq!((&job["status"], &job["failure_class"]), (&json!("failed"), &json!("gear_bug")));
    assert_eq!(job["error"]["code"], "workers_died");
    assert_eq!(world.count("poison"), 3);
}
