//! Files that a gear exchanges for links while they are kept, through the engine of the binary.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::world::{Up, World};

const OF_OTHERS: &[u8] = b"of somebody else";

/// Jobs of each kind.
const RACES: usize = 15;

/// Files below a folder, links not followed.
fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            match entry.file_type().unwrap() {
                kind if kind.is_dir() => folders.push(entry.path()),
                kind if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files
}

fn is_raced(warm: &str, action: &str) {
    let world = World::with(|manifest| format!("{warm}{manifest}"));
    let outside = world.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), OF_OTHERS).unwrap();
    let up = Up::start(&world);
    world.succeeds(&["gear", "install", "hostile"], "");
    let params = json!({"outside": outside});
    let swap = json!([{"id": "swap", "gear": "hostile", "action": action, "params": params}]);
    let ids: Vec<String> = (0..RACES).map(|_| up.submit(&swap)).collect();
    let mut kept = 0;
    for id in &ids {
        let job = up.ended(id);
        let step = &job["steps"][0];
        if job["status"] == "completed" {
            kept += 1;
            let hash = step["result"]["sha256"].as_str().unwrap();
            assert_eq!(world.succeeds(&["job", "artifact", id, hash], ""), "mine", "{job:#}");
        } else {
            assert_eq!(job["status"], "awaiting_approval", "{job:#}");
            let code = step["error"]["code"].as_str().unwrap();
            assert!(["bad_artifact", "invalid_artifact"].contains(&code), "{job:#}");
        }
        assert_eq!(fs::read(outside.join("file")).unwrap(), OF_OTHERS);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "nothing was moved there");
    }
    println!("{action}: {kept} of {RACES} were kept");
    for file in files(&world.home()) {
        let bytes = fs::read(&file).unwrap_or_default();
        assert_ne!(bytes, OF_OTHERS, "{}", file.display());
    }
}

#[test]
fn a_folder_that_a_process_of_its_own_exchanges_gives_nothing_away() {
    is_raced("", "swap");
}

#[test]
fn a_file_that_a_process_of_its_own_exchanges_gives_nothing_away() {
    is_raced("", "swap_file");
}
