//! What people read of a step whose outcome nobody knows: never that it failed.

use std::path::Path;
use std::process::{Command, Stdio};

use semel_core::shown::shown_lines;
use serde_json::{Value, json};

use crate::process::{Home, up};
use crate::world::{Reply, World};

fn job(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.arg("job").args(arguments).arg("--home").arg(home).env_remove("SEMEL_HOME");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_may_have_happened_is_never_said_to_have_failed() {
    let (world, home) = (World::start().await, Home::new());
    let (engine, _) = up(home.path(), &[]);
    let plan = home.path().join("plan.json");
    let steps = [world.step("a", "POST"), world.step("b", "GET")];
    std::fs::write(&plan, json!({"steps": steps}).to_string()).unwrap();
    let plan = plan.display().to_string();
    for status in ["cancelled", "failed"] {
        let held = world.hold("a");
        let before = world.count("a");
        let timeout = if status == "failed" { "1s" } else { "60s" };
        let submit = ["submit", "--wait", "--plan", &plan, "--timeout", timeout];
        let waiting = job(home.path(), &submit).spawn().unwrap();
        world.arrived("a", before + 1).await;
        let newest = engine.get("/v1/jobs?limit=1").await;
        let id = newest["items"][0]["id"].as_str().unwrap().to_owned();
        if status == "cancelled" {
            assert_eq!(engine.say(&id, "cancel", &json!({})).await.status, 200);
        }
        let waited = waiting.wait_with_output().unwrap();
        drop(held);
        assert_eq!(waited.status.code(), Some(6), "nobody knows: {waited:?}");
        let said = String::from_utf8(waited.stdout).unwrap();
        assert!(said.contains("\n  a  uncertain: "), "{said}");
        assert!(!said.contains("a  failed"), "{said}");
        assert!(said.ends_with("\nuncertain: a (may have happened)\n"), "{said}");

        let shown = job(home.path(), &["show", &id]).output().unwrap();
        let shown = String::from_utf8(shown.stdout).unwrap();
        assert!(shown.contains("\nuncertain: a (may have happened)\n"), "{shown}");
        let row = shown.lines().find(|line| line.starts_with("a ")).unwrap();
        assert!(row.contains("  uncertain  ") && !row.contains("failed"), "{shown}");
        let document = job(home.path(), &["show", &id, "--json"]).output().unwrap();
        let document: Value = serde_json::from_slice(&document.stdout).unwrap();
        let step = &document["steps"][0];
        assert_eq!((&step["status"], &step["certain"]), (&json!("failed"), &json!(false)));
    }
}

/// What a server answers is printed, and does not speak to the terminal.
#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_result_does_not_move_the_cursor() {
    let (world, home) = (World::start().await, Home::new());
    let (_engine, _) = up(home.path(), &[]);
    world.will("a", Reply::Body("a\u{1b}[2J\u{9b}2J\u{202e}b\u{200b}\u{e0041}".into()));
    let plan = home.path().join("plan.json");
    std::fs::write(&plan, json!({"steps": [world.step("a", "GET")]}).to_string()).unwrap();
    let plan = plan.display().to_string();
    let waited = job(home.path(), &["submit", "--wait", "--plan", &plan]).output().unwrap();
    assert_eq!(waited.status.code(), Some(0), "{waited:?}");
    let said = String::from_utf8(waited.stdout).unwrap();
    assert!(said.contains(r"\u009b2J\u202eb\u200b\udb40\udc41"), "{said:?}");
    assert_eq!(shown_lines(&said), said);
    // For programs it is what it was.
    let waited = ["submit", "--wait", "--json", "--plan", &plan];
    world.will("a", Reply::Body("\u{202e}b".into()));
    let said = job(home.path(), &waited).output().unwrap().stdout;
    assert!(String::from_utf8(said).unwrap().contains("\u{202e}b"));
}
