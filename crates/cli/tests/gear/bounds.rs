//! What a gear takes: never more than its limits, in whatever way it asks for more.

use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use semel_jobs::gear::installed::Installed;
use semel_jobs::gear::{Ended, Gear, Resolution, Stop};
use serde_json::{Map, Value, json};

use crate::warm::runtime;
use crate::world::{PATIENCE, World, alive, eventually};

/// A document as TOML writes it inside a line.
fn inline(document: &Value) -> String {
    match document {
        Value::Object(fields) => {
            let fields: Vec<String> = fields
                .iter()
                .map(|(name, inner)| format!("{} = {}", json!(name), inline(inner)))
                .collect();
            format!("{{ {} }}", fields.join(", "))
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(inline).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => document.to_string(),
    }
}

/// Schemas that would take the machine, and a word of why each is refused.
fn bombs() -> Vec<(&'static str, Vec<Value>, &'static str)> {
    let mut unevaluated = json!({"type": "string"});
    for _ in 0..14 {
        unevaluated = json!({"unevaluatedProperties": unevaluated.clone(),
            "anyOf": [unevaluated]});
        if unevaluated.to_string().len() > 20_000 {
            break;
        }
    }
    let twice = |level: usize| {
        let next = json!({"$ref": format!("#/$defs/l{}", level + 1)});
        (format!("l{level}"), json!({"allOf": [next.clone(), next]}))
    };
    let mut doubling: Map<String, Value> = (0..40).map(twice).collect();
    doubling.insert("l40".to_owned(), json!(true));
    let mut names = json!({"allOf": vec![json!({"type": "string"}); 1500]});
    for _ in 0..20 {
        names = json!({"properties": {"k".repeat(3000): names}});
    }
    let tenth = json!({"$defs": {"a": {"allOf": vec![json!({"type": "string"}); 100]}},
        "allOf": vec![json!({"$ref": "#/$defs/a"}); 9]});
    vec![
        ("nested", vec![unevaluated], "unevaluatedProperties is not possible"),
        ("items", vec![json!({"unevaluatedItems": false})], "unevaluatedItems is not possible"),
        ("doubling", vec![json!({"$defs": doubling, "$ref": "#/$defs/l0"})], "parts"),
        ("itself", vec![json!({"properties": {"a": {"$ref": "#"}}})], "refers to itself"),
        ("dynamic", vec![json!({"$dynamicRef": "#a"})], "$dynamicRef is not possible"),
        ("names", vec![names], "bytes"),
        ("pattern", vec![json!({"pattern": "(x|[a-z]{1600})y"})], "too large"),
        ("letters", vec![json!({"pattern": "(?i)[a-z]"})], "no flags"),
        ("all together", vec![tenth; 12], "all schemas together"),
    ]
}

#[test]
fn schemas_that_would_take_the_machine_are_refused_at_once() {
    for (shape, schemas, why) in bombs() {
        let world = World::with(|mut manifest| {
            for (number, schema) in schemas.iter().enumerate() {
                let params = inline(schema);
                write!(manifest, "\n[actions.bomb{number}]\nparams = {params}\n").unwrap();
            }
            manifest
        });
        // Whoever compiled them would not have the room, nor the time.
        let script = format!(
            "ulimit -v 1500000; ulimit -t 20; exec {} gear install hostile",
            env!("CARGO_BIN_EXE_semel")
        );
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &script]).env("SEMEL_HOME", world.home()).current_dir(world.path());
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{shape}: {errors}");
        assert!(errors.contains(why), "{shape}: {errors}");
        assert!(errors.len() < 4000, "{shape}: it says {} bytes", errors.len());
        assert!(!world.home().join("jobs/gear/hostile").exists(), "{shape}");
    }
}

/// With a folder that has room for a hundred megabytes.
fn small(first: &str) -> (World, Installed) {
    let world = World::with(|manifest| {
        let manifest = manifest.replace("open_files = 64", "open_files = 64\ndisk_mb = 100");
        format!("{first}{manifest}")
    });
    let gear = world.engine(&[]);
    (world, gear)
}

/// Files that no walk through the folder finds, while they are open or in memory.
#[test]
fn files_without_a_name_are_counted() {
    for how in ["unlinked", "never named", "mapped"] {
        let (world, gear) = small("");
        let ended = runtime().block_on(async {
            let running = world.run(&gear, "hoard", json!({"how": how}));
            tokio::time::timeout(PATIENCE, running).await
        });
        let Ok(Ended::Uncertain(failure)) = ended else { panic!("{how}: {ended:?}") };
        assert_eq!(failure.code, "disk_limit", "{how}: {failure:?}");
    }
}

/// Without namespaces nobody of the gear is their parent.
#[test]
fn files_without_a_name_of_orphans_are_counted() {
    let (world, _) = small("");
    for waived in [&[][..], &["namespaces"]] {
        let gear = world.engine(waived);
        let ended = runtime().block_on(async {
            let params = json!({"how": "unlinked", "orphan": true});
            tokio::time::timeout(PATIENCE, world.run(&gear, "hoard", params)).await
        });
        let Ok(Ended::Uncertain(failure)) = ended else { panic!("{waived:?}: {ended:?}") };
        assert_eq!(failure.code, "disk_limit", "{waived:?}: {failure:?}");
        fs::remove_dir_all(world.path().join("workspace")).unwrap();
    }
}

#[test]
fn a_gear_that_is_asked_what_became_of_it_is_looked_at_as_well() {
    let (world, gear) = small("");
    let known = runtime().block_on(async {
        let (_switch, stop) = Stop::channel();
        let asking = gear.resolve(world.call("hoard", json!({})), stop);
        tokio::time::timeout(PATIENCE, asking).await
    });
    assert_eq!(known.expect("it is stopped"), Resolution::Unknown);
}

/// One that waits for its next call would be ended by itself only after a minute.
#[test]
fn a_warm_gear_that_waits_is_looked_at_as_well() {
    let (world, gear) = small("warm = true\n");
    let place = world.home().join("jobs/run").display().to_string();
    let runtime = runtime();
    let ended = runtime.block_on(world.run(&gear, "hoard_later", json!({})));
    assert!(matches!(ended, Ended::Done(_)), "{ended:?}");
    assert!(!alive(&place).is_empty(), "it waits");
    eventually(Duration::from_secs(40), "its end", || alive(&place).is_empty());
    let left = || fs::read_dir(world.home().join("jobs/run")).unwrap().count();
    eventually(PATIENCE, "nothing is left", || left() == 0);
}
