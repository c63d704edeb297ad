//! `semel demo`: every step holds, and nothing is left.

use serde_json::Value;

use crate::program::{semel, stderr, stdout};

#[test]
fn the_tour_holds_and_cleans_up() {
    let home = tempfile::tempdir().unwrap();
    let output = semel(home.path(), &["demo", "--json"]);
    let (text, errors) = (stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(0), "{text}{errors}");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = lines.iter().filter_map(|line| line["name"].as_str()).collect();
    let all = ["start", "send", "repeat", "reuse", "kill", "invite", "job", "stop"];
    assert_eq!(names, all);
    assert!(lines.iter().all(|line| line["ok"] == true), "{text}");
    let used = lines[0]["detail"].as_str().unwrap().split_whitespace().last().unwrap();
    assert!(used.contains("semel-demo-"), "{used}");
    assert!(!std::path::Path::new(used).exists(), "{used} is left");
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0, "the user's home is untouched");
}
