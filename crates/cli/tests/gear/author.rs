//! What authors and operators do: begin, try, install, enable, disable, and keep secrets.

use std::fs;

use serde_json::{Value, json};

use crate::world::World;

/// What the page says is what happens, copied and pasted.
#[test]
fn the_five_minutes_of_the_page() {
    let page = include_str!("../../../../docs/gear.md");
    let script = page.split("<!-- run -->\n```sh\n").nth(1).unwrap().split("```").next().unwrap();
    let said = page.split("```json\n").nth(1).unwrap().split("```").next().unwrap();
    let main = page.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    let world = World::new();
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_semel")).parent().unwrap();
    let output = std::process::Command::new("sh")
        .args(["-ec", script])
        .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
        .env("SEMEL_HOME", world.home())
        .current_dir(world.path())
        .output()
        .unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(shown.contains(said), "{shown}");
    assert!(shown.contains("hello   0.1.0     enabled   greet"), "{shown}");
    assert_eq!(fs::read_to_string(world.path().join("hello/main.py")).unwrap(), main);
}

#[test]
fn a_gear_from_nothing_in_five_minutes() {
    let world = World::new();
    world.succeeds(&["gear", "new", "hello"], "");
    let looked: Value =
        serde_json::from_str(&world.succeeds(&["gear", "test", "hello", "--json"], "")).unwrap();
    assert_eq!(looked["actions"], json!(["greet"]));
    let greet = ["gear", "test", "hello", "--action", "greet", "--params"];
    let result = world.succeeds(&[&greet[..], &[r#"{"name": "world"}"#]].concat(), "");
    assert_eq!(result, "{\"text\":\"hello world\"}\n");
    let refused = world.semel(&[&greet[..], &[r#"{"nam": "world"}"#]].concat(), "");
    let errors = String::from_utf8(refused.stderr).unwrap();
    assert!(errors.contains("invalid_params"), "{errors}");
    world.succeeds(&["gear", "install", "hello"], "");
    let listed = || -> Value {
        serde_json::from_str(&world.succeeds(&["gear", "list", "--json"], "")).unwrap()
    };
    let of = |listed: &Value, id: &str| {
        let items = listed["items"].as_array().unwrap().iter();
        items.clone().find(|item| item["id"] == id).unwrap().clone()
    };
    let hello = of(&listed(), "hello");
    assert_eq!((&hello["enabled"], &hello["built_in"]), (&json!(true), &json!(false)));
    assert_eq!(hello["actions"][0]["recovery"], "idempotent");
    assert_eq!(of(&listed(), "shell")["enabled"], false);
    world.succeeds(&["gear", "disable", "hello"], "");
    world.succeeds(&["gear", "enable", "shell"], "");
    assert_eq!(of(&listed(), "hello")["enabled"], false);
    assert_eq!(of(&listed(), "shell")["enabled"], true);
    assert_eq!(world.semel(&["gear", "enable", "none"], "").status.code(), Some(3));
    // An installation says what it asks for, and keeps out what takes a name that is taken.
    let manifest = fs::read_to_string(world.path().join("hello/gear.toml")).unwrap();
    let more = format!("{manifest}\n[permissions]\nnetwork = [\"example.com\"]\n");
    fs::write(world.path().join("hello/gear.toml"), more).unwrap();
    let text = world.succeeds(&["gear", "install", "hello"], "");
    assert!(text.contains("it may reach hosts: example.com"), "{text}");
    let taken = manifest.replace("\"hello\"", "\"http\"");
    fs::write(world.path().join("hello/gear.toml"), taken).unwrap();
    assert_eq!(world.semel(&["gear", "install", "hello"], "").status.code(), Some(4));
    assert_eq!(world.semel(&["gear", "new", "hello"], "").status.code(), Some(4));
}

#[test]
fn the_beginning_of_a_gear_in_rust_has_a_manifest_that_reads() {
    let world = World::new();
    world.succeeds(&["gear", "new", "quick", "--lang", "rust"], "");
    let looked = world.succeeds(&["gear", "test", "quick/package", "--json"], "");
    assert!(looked.contains("\"id\":\"quick\""), "{looked}");
    assert!(world.path().join("quick/src/main.rs").exists());
}

#[test]
fn secrets_are_set_listed_and_removed() {
    let world = World::new();
    world.succeeds(&["secret", "set", "token"], "s3cret\n");
    assert_eq!(world.succeeds(&["secret", "list"], ""), "token\n");
    assert_eq!(world.succeeds(&["secret", "list", "--json"], ""), "{\"items\":[\"token\"]}\n");
    world.succeeds(&["secret", "rm", "token"], "");
    assert_eq!(world.semel(&["secret", "rm", "token"], "").status.code(), Some(3));
    assert_eq!(world.semel(&["secret", "set", "a/b"], "x").status.code(), Some(2));
    assert_eq!(world.semel(&["secret", "set", "empty"], "").status.code(), Some(2));
    assert_eq!(world.semel(&["secret", "set", "short"], "abc\n").status.code(), Some(2));
}
