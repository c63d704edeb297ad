//! `semel doctor`: what it finds in a home that is sound, stopped, killed, open to others, damaged.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::process::Signal;
use semel_testkit::{servers, sqlite};
use serde_json::Value;

use crate::program::{Up, semel, stderr, stdout};

/// The exit code, and everything that was found.
fn doctor(home: &Path, more: &[&str]) -> (Option<i32>, Vec<Value>) {
    let output = semel(home, &[&["doctor", "--json"], more].concat());
    let text = stdout(&output);
    let found: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
    let items = found["items"].as_array().unwrap().clone();
    for item in &items {
        let is_sound = item["condition"] == "ok";
        assert_eq!(is_sound, item["to_do"].is_null(), "a fault says what to do: {item}");
    }
    (output.status.code(), items)
}

/// How a check went; those of one name are the worst of them.
fn condition(items: &[Value], check: &str) -> String {
    let found = |condition: &str| {
        items.iter().any(|item| item["check"] == check && item["condition"] == condition)
    };
    let known = ["problem", "warning", "ok"].into_iter().find(|condition| found(condition));
    known.unwrap_or("absent").to_owned()
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// Everything below a folder.
fn names(folder: &Path) -> Vec<String> {
    let (mut names, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            names.push(path.display().to_string());
            folders.extend(path.is_dir().then_some(path));
        }
    }
    names.sort();
    names
}

#[test]
fn a_machine_without_a_home_is_no_problem_and_none_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    let (code, items) = doctor(&home, &[]);
    assert_eq!(code, Some(0), "{items:?}");
    for check in ["kernel", "disk", "fsync", "clock", "limits of gears", "sandbox", "home"] {
        assert_ne!(condition(&items, check), "absent", "{check}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
    let text = stdout(&semel(&home, &["doctor"]));
    assert!(text.lines().any(|line| line.starts_with("ok       home: ")), "{text}");
}

#[test]
fn what_runs_was_stopped_or_was_killed_is_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let mut up = Up::start(home);
    let (code, items) = doctor(home, &[]);
    assert_eq!(code, Some(0), "{items:?}");
    for check in ["mesh local", "permissions", "store", "jobs", "token of local"] {
        assert_eq!(condition(&items, check), "ok", "{check}: {items:?}");
    }
    assert_eq!(condition(&items, "broker of local"), "ok", "{items:?}");
    assert_eq!(condition(&items, "leftovers of local"), "absent");
    let stores = items.iter().filter(|item| item["check"] == "store").count();
    assert_eq!(stores, 4, "broker, jobs, outbox, inbox: {items:?}");
    up.stop(Signal::KILL);
    let (code, items) = doctor(home, &[]);
    assert_eq!(code, Some(0), "{items:?}");
    assert_eq!(condition(&items, "leftovers of local"), "warning", "{items:?}");
    assert_eq!(condition(&items, "daemon of local"), "warning");
    assert_eq!(condition(&items, "broker of local"), "warning");
    assert!(home.join("daemon/local/sock").exists(), "nothing is removed");
    let mut up = Up::start(home);
    assert_eq!(up.stop(Signal::TERM), Some(0));
    let before = names(home);
    let (code, items) = doctor(home, &[]);
    assert_eq!((code, condition(&items, "leftovers of local").as_str()), (Some(0), "absent"));
    assert_eq!(names(home), before, "not even a log beside a store");
    assert_eq!(condition(&items, "daemon of local"), "warning");
}

#[test]
fn what_others_can_read_and_what_is_damaged_are_problems_and_stay_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let mut up = Up::start(home);
    assert_eq!(up.stop(Signal::TERM), Some(0));
    for name in ["daemon/local/mesh.json", "daemon/local/local_token", "broker/admin_token"] {
        let path = home.join(name);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let (code, items) = doctor(home, &[]);
        assert_eq!((code, condition(&items, "permissions").as_str()), (Some(1), "problem"));
        assert_eq!(mode(&path), 0o644, "{name}: nothing is changed");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    assert_eq!(doctor(home, &[]).0, Some(0));
    // Another program's name in the header; then no header at all.
    let store = home.join("jobs/jobs.db");
    let sound = std::fs::read(&store).unwrap();
    for (from, to) in [(68, 72), (0, 16)] {
        let mut damaged = sound.clone();
        damaged[from..to].fill(0x58);
        std::fs::write(&store, &damaged).unwrap();
        let output = semel(home, &["doctor"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stdout(&output).contains("problem  store: "), "{}", stdout(&output));
        assert!(stderr(&output).contains("see above what to do"), "{}", stderr(&output));
        assert_eq!(std::fs::read(&store).unwrap(), damaged, "it is not touched");
    }
    std::fs::write(&store, &sound).unwrap();
    std::fs::write(home.join("jobs/config.toml"), "workers = \"many\"").unwrap();
    let (code, items) = doctor(home, &[]);
    assert_eq!((code, condition(&items, "jobs").as_str()), (Some(1), "problem"));
}

/// Files and folders of a home that are changed, one after the other.
const READ_BY_A_START: [&str; 17] = [
    "home.json",
    "daemon/local",
    "daemon/local/keypair.json",
    "daemon/local/instance_id",
    "daemon/local/fingerprint_secret",
    "daemon/local/local_token",
    "daemon/local/mesh.json",
    "daemon/local/config.toml",
    "daemon/local/lock",
    "daemon/local/sock",
    "broker/admin_token",
    "broker/authority",
    "broker/broker.db.json",
    "jobs/authority",
    "jobs/lock",
    "jobs/config.toml",
    "jobs/gear/shell/state.json",
];

#[test]
fn what_a_start_refuses_is_a_problem() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let mut up = Up::start(home);
    assert_eq!(up.stop(Signal::TERM), Some(0));
    let mut refused = 0;
    for name in READ_BY_A_START {
        let (path, kept) = (home.join(name), home.join("kept"));
        for how in ["missing", "empty", "garbage", "a folder"] {
            let was_there = path.exists();
            if was_there {
                std::fs::rename(&path, &kept).unwrap();
            }
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            match how {
                "missing" => {}
                "a folder" => std::fs::create_dir(&path).unwrap(),
                _ => {
                    let bytes: &[u8] = if how == "empty" { b"" } else { b"\xff garbage" };
                    std::fs::write(&path, bytes).unwrap();
                    let private = std::fs::Permissions::from_mode(0o600);
                    std::fs::set_permissions(&path, private).unwrap();
                }
            }
            // Before the start, which may make what is missing.
            let (code, items) = doctor(home, &[]);
            if let Some(exit) = Up::refused(home) {
                refused += 1;
                assert_eq!((exit, code), (78, Some(1)), "{name} {how}: {items:?}");
            }
            let _ = std::fs::remove_file(&path);
            let _ = std::fs::remove_dir(&path);
            if was_there {
                std::fs::rename(&kept, &path).unwrap();
            }
        }
    }
    assert!(refused >= 25, "{refused} of them were refused");
    assert_eq!(doctor(home, &[]).0, Some(0), "everything is as it was");
}

/// The registrar proves its tables before it serves, and so does whoever looks.
#[test]
fn a_table_of_the_registrar_that_is_gone_is_a_problem() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let mut up = Up::start(home);
    assert_eq!(up.stop(Signal::TERM), Some(0));
    for name in ["broker/broker.db", "jobs/jobs.db"] {
        let (path, kept) = (home.join(name), home.join("kept"));
        std::fs::copy(&path, &kept).unwrap();
        let file = sqlite::open(&path).unwrap();
        file.execute_batch("DROP TABLE sweep").unwrap();
        drop(file);
        let before = names(home);
        let (code, items) = doctor(home, &[]);
        assert_eq!(names(home), before, "{name}: nothing is left beside it");
        assert_eq!((Up::refused(home), code), (Some(78), Some(1)), "{name}: {items:?}");
        let told = |item: &Value| item["detail"].as_str().unwrap().contains("replay_");
        assert!(items.iter().any(told), "{name}: {items:?}");
        sqlite::forget_sums(&path);
        std::fs::rename(&kept, &path).unwrap();
    }
    assert_eq!(doctor(home, &[]).0, Some(0), "everything is as it was");
}

/// In the server's own words where it has any, and never with the password.
#[test]
fn why_redis_does_not_answer() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    let of_redis = |address: &str| {
        let (code, items) = doctor(&home, &["--limiter", address]);
        let found = items.into_iter().find(|item| item["check"] == "Redis").unwrap();
        let said = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
        (code, said("condition"), said("detail"), said("to_do"))
    };
    let redis = servers::redis();
    let (code, condition, detail, _) = of_redis(&redis);
    assert_eq!((code, condition.as_str()), (Some(0), "ok"), "{detail}");
    let (_, place) = redis.rsplit_once('@').unwrap();
    let look = "check that the server runs, and its address, user and password";
    let secure = "use rediss://, or read semel explain plain_text_refused";
    for (address, why, advice) in [
        (format!("redis://:wr0ng@{place}"), "Password authentication failed", look),
        (format!("redis://{place}"), "NOAUTH", look),
        ("redis://:wr0ng@127.0.0.1:1".to_owned(), "refused", look),
        ("redis://:wr0ng@192.0.2.1".to_owned(), "would be plain text", secure),
        ("redis://:wr0ng@cache.example:6379".to_owned(), "would be plain text", secure),
    ] {
        let (code, condition, detail, to_do) = of_redis(&address);
        assert_eq!((code, condition.as_str()), (Some(1), "problem"), "{address}: {detail}");
        assert!(detail.contains(why), "{address}: {detail}");
        assert_eq!(to_do, advice, "{address}: {detail}");
        assert!(!detail.contains("wr0ng"), "{address}: {detail}");
    }
}

/// Whoever follows the advice has no trouble that he did not have before.
#[test]
fn a_folder_that_is_removed_as_advised_is_missed_by_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let mut up = Up::start(home);
    assert_eq!(up.stop(Signal::TERM), Some(0));
    let ops = home.join("daemon/ops");
    std::fs::create_dir(&ops).unwrap();
    std::fs::set_permissions(&ops, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::fs::copy(home.join("daemon/local/keypair.json"), ops.join("keypair.json")).unwrap();
    let list = home.join("home.json");
    let mut known: Value = serde_json::from_slice(&std::fs::read(&list).unwrap()).unwrap();
    known["stores"].as_array_mut().unwrap().push("daemon/ops/instance_id".into());
    std::fs::write(&list, known.to_string()).unwrap();
    let advice = format!("remove \"daemon/ops/instance_id\" from {}", list.display());
    for there in [true, false] {
        let (code, items) = doctor(home, &[]);
        let told = items.iter().find(|item| item["check"] == "mesh ops").unwrap();
        assert!(told["to_do"].as_str().unwrap().ends_with(&advice), "{told}");
        assert_eq!(told["condition"] == "warning", there, "{told}");
        let folder = format!("remove {}", ops.display());
        assert_eq!(told["to_do"].as_str().unwrap().contains(&folder), there, "{told}");
        // The first part of the advice without the second.
        if there {
            std::fs::remove_dir_all(&ops).unwrap();
        } else {
            assert_eq!(code, Some(1), "{items:?}");
        }
    }
    known["stores"].as_array_mut().unwrap().pop();
    std::fs::write(&list, known.to_string()).unwrap();
    assert_eq!(doctor(home, &[]).0, Some(0));
}

/// Who could have prepared a folder could have planted anything in it.
#[test]
fn folders_that_are_not_ours_alone_are_refused_and_told() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    let mut up = Up::start(&home);
    assert_eq!(up.stop(Signal::TERM), Some(0));
    let refused = |path: &Path, words: &str| {
        let (code, items) = doctor(&home, &[]);
        assert_eq!(code, Some(1), "{}: {items:?}", path.display());
        let of_path = path.display().to_string();
        let told = |item: &Value| {
            let detail = item["detail"].as_str().unwrap();
            detail.contains(&of_path) && detail.contains(words)
        };
        assert!(items.iter().any(told), "{}: {items:?}", path.display());
        assert_eq!(Up::refused(&home), Some(78), "{}", path.display());
    };
    let below = ["daemon", "daemon/local", "broker", "jobs"];
    for path in std::iter::once(home.clone()).chain(below.map(|name| home.join(name))) {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o770)).unwrap();
        refused(&path, "others can write to");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
            refused(&path, "belongs to the user 12345");
            std::os::unix::fs::chown(&path, Some(0), None).unwrap();
        }
    }
    let aside = folder.path().join("aside");
    let private = ["broker/admin_token", "jobs/authority", "daemon/local/keypair.json"];
    for name in below.into_iter().chain(private) {
        let path = home.join(name);
        std::fs::rename(&path, &aside).unwrap();
        std::os::unix::fs::symlink(&aside, &path).unwrap();
        refused(&path, "is a link");
        std::fs::remove_file(&path).unwrap();
        std::fs::rename(&aside, &path).unwrap();
    }
    assert_eq!(doctor(&home, &[]).0, Some(0), "everything is as it was");
}

#[test]
fn servers_that_do_not_answer_are_problems() {
    let home = tempfile::tempdir().unwrap();
    let more = ["--store", "postgres://a@127.0.0.1:1/a", "--limiter", "redis://127.0.0.1:1"];
    let (code, items) = doctor(home.path(), &more);
    assert_eq!(code, Some(1));
    assert_eq!(condition(&items, "PostgreSQL"), "problem", "{items:?}");
    assert_eq!(condition(&items, "Redis"), "problem", "{items:?}");
}
