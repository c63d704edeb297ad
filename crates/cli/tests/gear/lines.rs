//! Lines that are not to be believed.

use serde_json::json;

use crate::world::{World, alive};

#[test]
fn a_right_line_is_believed() {
    assert_eq!(World::new().result("say", &json!({"how": "right"})), "believed");
}

#[test]
fn every_wrong_line_ends_the_gear() {
    let world = World::new();
    for how in [
        "forged",
        "changed",
        "unsigned",
        "replayed",
        "reordered",
        "skipped",
        "reflected",
        "unknown",
        "not json",
        "not asked",
        "signed oversized",
    ] {
        let ended = world.ended("say", &json!({"how": how}), "30s");
        assert_eq!(ended["ended"], "uncertain", "{how}: {ended}");
        assert_eq!(ended["class"], "gear_bug", "{how}: {ended}");
        assert_eq!(ended["code"], "protocol_violation", "{how}: {ended}");
    }
    assert!(alive(&world.path().display().to_string()).is_empty());
}

#[test]
fn a_line_of_a_gigabyte_is_not_kept() {
    let world = World::new();
    // A host that kept the line would not have the room.
    let script = format!(
        "ulimit -v 1000000; exec {} gear test hostile --json --action say \
         --params '{{\"how\": \"oversized\"}}' --timeout 60s",
        env!("CARGO_BIN_EXE_semel")
    );
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script]).env("SEMEL_HOME", world.home()).current_dir(world.path());
    let output = command.output().unwrap();
    let ended: serde_json::Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(ended["ended"], "uncertain");
    assert_eq!(ended["code"], "protocol_violation", "{ended}");
}
