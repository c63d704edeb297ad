//! A gear in Rust, with the kit, in the sandbox.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::world::World;

const MANIFEST: &str = r#"
id = "greeter"
version = "1"
command = ["{package}/bin/greeter"]
permissions = {secrets = ["token"]}
[actions.greet]
[actions.wait]
[actions.panic]
[actions.print]
[actions.flood]
"#;

fn ended(world: &World, action: &str, params: &Value) -> Value {
    let package = world.path().join("greeter");
    if !package.exists() {
        let built = Path::new(env!("CARGO_BIN_EXE_semel")).with_file_name("examples");
        let built = built.join("greeter_gear");
        assert!(built.exists(), "first: cargo build -p semel --examples");
        fs::create_dir_all(package.join("bin")).unwrap();
        fs::copy(built, package.join("bin/greeter")).unwrap();
        fs::write(package.join("gear.toml"), MANIFEST).unwrap();
        world.succeeds(&["secret", "set", "token"], "12345");
    }
    let params = params.to_string();
    let arguments = [
        "gear",
        "test",
        "greeter",
        "--json",
        "--action",
        action,
        "--params",
        &params,
        "--with-secrets",
        "token",
        "--timeout",
        "2s",
    ];
    let output = world.semel(&arguments, "");
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn the_kit_and_the_host_understand_each_other() {
    let world = World::new();
    let greeted = ended(&world, "greet", &json!({"name": "world"}));
    assert_eq!(greeted["result"], json!({"text": "hello world", "known": 5}), "{greeted}");
    let refused = ended(&world, "greet", &json!({}));
    assert_eq!((&refused["ended"], &refused["code"]), (&json!("failed"), &json!("no_name")));
    for (action, words) in [("panic", "index out of bounds"), ("flood", "more than 1 MB")] {
        let broken = ended(&world, action, &json!({}));
        assert_eq!(broken["ended"], "uncertain", "{broken}");
        assert_eq!(broken["code"], "gear_crashed", "{broken}");
        assert!(broken["message"].as_str().unwrap().contains(words), "{broken}");
    }
    let printed = ended(&world, "print", &json!({}));
    assert_eq!(printed["result"], json!({"read": ""}), "{printed}");
    let cancelled = ended(&world, "wait", &json!({}));
    assert_eq!(
        (&cancelled["ended"], &cancelled["code"]),
        (&json!("failed"), &json!("cancelled")),
        "{cancelled}"
    );
}
