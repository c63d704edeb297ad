//! Actions that end without a word of their own: nobody can tell what they did before, so the
//! attempt is uncertain, and what a gear prints is never taken for what it says.

use semel_jobs::gear::{Ended, Gear, Output, Resolution, Stop};
use serde_json::{Value, json};

use crate::warm::runtime;
use crate::world::World;

/// It ended by itself, and its last words say why.
fn is_unsure(ended: &Value, words: &str) {
    assert_eq!(ended["ended"], "uncertain", "{ended}");
    assert_eq!(ended["code"], "gear_crashed", "{ended}");
    assert!(ended["message"].as_str().unwrap().contains(words), "{ended}");
}

#[test]
fn whatever_is_not_a_problem_leaves_the_attempt_uncertain() {
    let world = World::new();
    for (action, words) in [
        ("raises", "RuntimeError: broken"),
        ("exits", "SystemExit"),
        ("too_much", "more than 1 MB"),
        ("not_json", "not JSON serializable"),
        ("not_a_number", "not JSON compliant"),
        ("bad_problem", "not JSON serializable"),
    ] {
        is_unsure(&world.ended(action, &json!({}), "20s"), words);
    }
    let refused = world.ended("no_such", &json!({}), "20s");
    assert_eq!((&refused["ended"], &refused["code"]), (&json!("failed"), &json!("no_such_action")));
}

#[test]
fn what_a_gear_prints_is_not_what_it_says() {
    let world = World::new();
    let printed = world.result("prints", &json!({}));
    // Nor does it read what it is told: its input is empty.
    assert_eq!(printed, json!({"read": "", "child": 0}));
    let shown = world.ended("prints", &json!({"crash": true}), "20s");
    is_unsure(&shown, "printed by the action");
    assert!(shown["message"].as_str().unwrap().contains("printed by a child"), "{shown}");
}

#[test]
fn a_resolver_that_fails_knows_nothing() {
    let world = World::new();
    let gear = world.engine(&[]);
    runtime().block_on(async {
        for action in ["raises", "not_a_number", "too_much", "prints"] {
            let (_switch, stop) = Stop::channel();
            let asked = gear.resolve(world.call(action, json!({})), stop);
            let known = tokio::time::timeout(crate::world::PATIENCE, asked).await;
            assert_eq!(known, Ok(Resolution::Unknown), "{action}");
        }
    });
}

/// A line for the log is cut, and no reason to end.
#[test]
fn a_log_line_may_be_of_any_length() {
    let world = World::new();
    let gear = world.engine(&[]);
    let ended = runtime().block_on(world.run(&gear, "logs_much", json!({})));
    assert_eq!(ended, Ended::Done(Output::Value(json!("done"))));
}
