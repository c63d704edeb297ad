//! What is left of a gear when it has ended, in whatever way: nothing.

use semel_core::clock::{Clock, SystemClock};
use serde_json::{Value, json};

use crate::world::{PATIENCE, STOPPED_IN, World, alive, eventually, marker, processes, stay};

/// All three kinds of process that stay behind, and the one that is never the same.
fn are_there(marker: &str) -> bool {
    let found = alive(marker);
    let is_there = |name: &str| found.iter().any(|command| command.contains(name));
    ["-child", "-session", "-daemon"].iter().all(|name| is_there(name)) && is_there("setsid")
}

#[test]
fn a_timeout_leaves_nothing_of_a_gear_that_does_not_listen() {
    let world = World::new();
    let marker = marker(&world);
    let child = world.begun("stay", &stay(&world, ""), "2s");
    eventually(PATIENCE, "its processes", || are_there(&marker));
    let clock = SystemClock::new();
    let output = child.wait_with_output().unwrap();
    let left = alive(&marker);
    assert!(left.is_empty(), "{left:?}");
    // The two seconds were under way already.
    assert!(clock.monotonic() < STOPPED_IN + std::time::Duration::from_secs(2));
    let ended: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&ended["ended"], &ended["code"]), (&json!("uncertain"), &json!("stopped")));
    assert_eq!(world.runs(), 0);
}

/// A host without memory must not lose its engine, and every job with it, for one gear.
#[test]
fn the_kernel_ends_a_gear_before_its_engine() {
    let world = World::new();
    let marker = marker(&world);
    let mut child = world.begun("stay", &stay(&world, ""), "600s");
    eventually(PATIENCE, "its processes", || are_there(&marker));
    let first = |folder: &std::path::Path| {
        let said = std::fs::read_to_string(folder.join("oom_score_adj")).ok()?;
        Some(said.trim() == "1000")
    };
    // One that has ended meanwhile says nothing.
    let all: Vec<bool> =
        processes(&marker).iter().filter_map(|(folder, _)| first(folder)).collect();
    assert!(all.len() >= 3 && all.iter().all(|first| *first), "{all:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    eventually(PATIENCE, "the end of them", || alive(&marker).is_empty());
}

/// Whoever only looks at a gear has no home afterwards that was not there before.
#[test]
fn a_trial_leaves_no_home_behind() {
    let world = World::new();
    let above = world.path().join("new");
    let home = above.join("home");
    let trial = |gear: &str, action: &[&str]| {
        let words = ["gear", "test", gear, "--home", home.to_str().unwrap()];
        world.semel(&[&words[..], action].concat(), "").status.success()
    };
    let (gives, crash) = (json!({"value": 1}).to_string(), stay(&world, "crash").to_string());
    let gives = ["--action", "gives", "--params", &gives];
    let crash = ["--action", "stay", "--params", &crash];
    for (gear, action, succeeds) in [
        ("hostile", &[][..], true),
        ("hostile", &gives[..], true),
        ("hostile", &crash[..], false),
        ("nowhere", &[][..], false),
    ] {
        assert_eq!(trial(gear, action), succeeds, "{gear} {action:?}");
        assert!(!above.exists(), "{gear} {action:?}");
    }
    // One that was there stays, and so does what is in it.
    std::fs::create_dir_all(home.join("jobs")).unwrap();
    assert!(trial("hostile", &gives));
    assert!(home.join("jobs").exists() && !home.join("jobs/run").exists());
}

#[test]
fn a_crash_and_a_result_leave_nothing_either() {
    for (how, expected) in [("crash", "uncertain"), ("result", "done")] {
        let world = World::new();
        let ended = world.ended("stay", &stay(&world, how), "60s");
        let left = alive(&marker(&world));
        assert!(left.is_empty(), "{how}: {left:?}");
        assert_eq!(ended["ended"], expected, "{how}: {ended}");
        if how == "crash" {
            assert_eq!(ended["code"], "gear_crashed");
            assert!(ended["message"].as_str().unwrap().contains("code 7"), "{ended}");
        }
    }
}

#[test]
fn an_engine_that_is_killed_takes_everything_with_it() {
    let world = World::new();
    let marker = marker(&world);
    let mut child = world.begun("stay", &stay(&world, ""), "600s");
    eventually(PATIENCE, "its processes", || are_there(&marker));
    child.kill().unwrap();
    child.wait().unwrap();
    let second = std::time::Duration::from_secs(1);
    eventually(10 * second, "the end of them", || alive(&marker).is_empty());
    // The next engine removes what the killed one could not, once it has begun.
    let run = world.home().join("jobs/run");
    let left = || std::fs::read_dir(&run).unwrap().count();
    assert_eq!(left(), 1);
    let mut engine = world.command(&["job", "serve"]).spawn().unwrap();
    eventually(PATIENCE, "nothing is left", || left() == 0);
    engine.kill().unwrap();
    engine.wait().unwrap();
}

/// Whoever removes them one inside the other ends on the end of its stack, or of its descriptors.
#[test]
fn folders_in_folders_without_end_are_removed() {
    for warm in ["", "warm = true\n"] {
        let world = World::with(|manifest| format!("{warm}{manifest}"));
        // It is done before anybody looks how deep it is, or it is stopped.
        let ended = world.ended("dig", &json!({"levels": 20_000}), "600s");
        assert!(ended["ended"] == "done" || ended["code"] == "disk_limit", "{ended}");
        assert_eq!(world.runs(), 0);
    }
}

#[test]
fn a_gear_that_listens_ends_in_its_own_words() {
    let world = World::new();
    let clock = SystemClock::new();
    let ended = world.ended("gentle", &json!({}), "1s");
    assert_eq!((&ended["ended"], &ended["code"]), (&json!("failed"), &json!("cancelled")));
    assert_eq!(ended["retry_after_ms"], 5);
    assert!(clock.monotonic() < STOPPED_IN);
}

#[test]
fn without_namespaces_nothing_is_left_either() {
    let world = World::new();
    let gear = world.engine(&["namespaces"]);
    let marker = marker(&world);
    world.stopped_when(&gear, "stay", stay(&world, ""), || are_there(&marker));
    let left = alive(&marker);
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn an_execution_that_is_forgotten_leaves_nothing() {
    for waived in [&[][..], &["namespaces"]] {
        let world = World::new();
        let gear = world.engine(waived);
        let marker = marker(&world);
        world.dropped_when(&gear, "stay", stay(&world, ""), || are_there(&marker));
        eventually(PATIENCE, "the end of them", || alive(&marker).is_empty());
    }
}
