//! A store that a home has made and that is not there any more is never begun anew by itself.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::{Up, command, json, semel};

/// Every store of a home, and the command that begins without it.
fn stores(home: &Path) -> [(&'static str, Vec<String>); 4] {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let file = format!("sqlite:{}", home.join("broker/broker.db").display());
    let mut broker = words("broker start-fresh --confirm --store");
    broker.push(file);
    [
        ("broker/broker.db", broker),
        (
            "daemon/local/outbox.db",
            words("daemon recover --mesh local --start-fresh outbox --confirm"),
        ),
        (
            "daemon/local/inbox.db",
            words("daemon recover --mesh local --start-fresh inbox --confirm"),
        ),
        ("jobs/jobs.db", words("job start-fresh --confirm")),
    ]
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The program with exactly these words, as somebody would copy them.
fn run(words: &[String]) -> Output {
    program(words).output().unwrap()
}

/// How something ends that must not begin to serve.
pub(super) fn refuses(mut command: Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
    if !first.is_empty() {
        let _ = child.kill();
    }
    let output = child.wait_with_output().unwrap();
    assert!(first.is_empty(), "it has begun: {first}");
    output
}

fn program(words: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(words).env_remove("SEMEL_HOME");
    command
}

fn remove(path: &Path) {
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", path.display()));
    }
}

fn made(home: &Path) -> Value {
    let mut up = Up::start(home);
    let pubkey = up.ready["pubkey"].as_str().unwrap().to_owned();
    json(home, &["send", &pubkey, "hello", "--key", "first", "--wait"]);
    assert_eq!(up.stop(Signal::TERM), Some(0));
    up.ready.clone()
}

#[test]
fn a_store_that_is_gone_is_named_and_begun_anew_only_by_a_word() {
    for emptied in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path();
        made(home);
        for (store, fresh) in stores(home) {
            let path = home.join(store);
            remove(&path);
            if emptied {
                std::fs::write(&path, b"").unwrap();
            }
            // It stays refused, however often it is tried.
            for _ in 0..2 {
                let refused = refuses(command(home, &[]));
                let said = text(&refused.stderr);
                assert_eq!(refused.status.code(), Some(78), "{store}: {said}");
                assert!(said.contains(&path.display().to_string()), "{store}: {said}");
                assert!(said.contains("start-fresh"), "{store}: {said}");
            }
            let doctor = semel(home, &["doctor"]);
            let seen = text(&doctor.stdout);
            assert_eq!(doctor.status.code(), Some(1), "{store}: {seen}");
            assert!(seen.contains(&path.display().to_string()), "{store}: {seen}");
            let fresh = [fresh, vec!["--home".to_owned(), home.display().to_string()]].concat();
            // A broker's store is said as a whole.
            let fresh = match store {
                "broker/broker.db" => fresh[..fresh.len() - 2].to_vec(),
                _ => fresh,
            };
            let without: Vec<String> =
                fresh.iter().filter(|word| *word != "--confirm").cloned().collect();
            assert_eq!(run(&without).status.code(), Some(4), "{store}: a second word is needed");
            let done = run(&fresh);
            assert_eq!(done.status.code(), Some(0), "{fresh:?}: {}", text(&done.stderr));
            let mut up = Up::start(home);
            let pubkey = up.ready["pubkey"].as_str().unwrap().to_owned();
            let key = format!("after-{}", store.replace(['/', '.'], "-"));
            json(home, &["send", &pubkey, "again", "--key", &key, "--wait"]);
            assert_eq!(up.stop(Signal::TERM), Some(0));
            // What is there is not begun anew.
            assert_eq!(run(&fresh).status.code(), Some(4), "{store}");
        }
    }
}

#[test]
fn a_store_that_is_put_back_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let ready = made(home);
    for (store, _) in stores(home) {
        let path = home.join(store);
        let copy = path.with_extension("kept");
        std::fs::rename(&path, &copy).unwrap();
        assert_eq!(refuses(command(home, &[])).status.code(), Some(78), "{store}");
        // What was prepared for it meanwhile is in nobody's way.
        std::fs::rename(&copy, &path).unwrap();
        let mut up = Up::start(home);
        assert_eq!(up.ready["member_id"], ready["member_id"]);
        assert_eq!(up.stop(Signal::TERM), Some(0));
    }
}

#[test]
fn a_home_of_before_is_taken_as_it_is_and_known_from_then_on() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    made(home);
    let list = home.join("home.json");
    std::fs::remove_file(&list).unwrap();
    made(home);
    let known: Value = serde_json::from_slice(&std::fs::read(&list).unwrap()).unwrap();
    for (store, _) in stores(home) {
        let listed = known["stores"].as_array().unwrap().iter();
        assert!(listed.clone().any(|one| one == store), "{store}: {known}");
    }
    // One that cannot be read says nothing of what there was.
    std::fs::write(&list, b"").unwrap();
    let refused = refuses(command(home, &[]));
    let said = text(&refused.stderr);
    assert!(refused.status.code() == Some(78) && said.contains("home.json"), "{said}");
}

/// Keys that are made once: who has them is who it was.
const KEYS: [&str; 4] =
    ["daemon/local/instance_id", "broker/admin_token", "broker/authority", "jobs/authority"];

#[test]
fn a_key_that_is_gone_is_named_and_made_anew_only_when_the_home_forgets_it() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    made(home);
    let list = home.join("home.json");
    for key in KEYS {
        let (path, kept) = (home.join(key), home.join("kept"));
        std::fs::rename(&path, &kept).unwrap();
        for emptied in [false, true] {
            if emptied {
                std::fs::copy(&kept, &path).unwrap();
                std::fs::write(&path, b"").unwrap();
            }
            let refused = refuses(command(home, &[]));
            let said = text(&refused.stderr);
            assert_eq!(refused.status.code(), Some(78), "{key}: {said}");
            assert!(said.contains(&path.display().to_string()), "{key}: {said}");
            let by_hand = format!("remove {key:?} from {}", list.display());
            assert!(said.contains(&by_hand), "{key}: {said}");
            let doctor = semel(home, &["doctor"]);
            let seen = text(&doctor.stdout);
            assert_eq!(doctor.status.code(), Some(1), "{key}: {seen}");
            assert!(seen.contains(&by_hand), "{key}: {seen}");
        }
        // The one way out.
        std::fs::copy(&kept, &path).unwrap();
        made(home);
        assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(&kept).unwrap(), "{key}");
        // And the other.
        std::fs::remove_file(&path).unwrap();
        let mut known: Value = serde_json::from_slice(&std::fs::read(&list).unwrap()).unwrap();
        known["stores"].as_array_mut().unwrap().retain(|one| one != key);
        std::fs::write(&list, known.to_string()).unwrap();
        made(home);
        assert_ne!(std::fs::read(&path).unwrap(), std::fs::read(&kept).unwrap(), "{key}");
        std::fs::rename(&path, &kept).unwrap();
        assert_eq!(refuses(command(home, &[])).status.code(), Some(78), "{key}: known again");
        std::fs::rename(&kept, &path).unwrap();
    }
}

#[test]
fn a_brokers_own_key_is_known_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let store = format!("sqlite:{}", file("mesh.db"));
    let token = file("token");
    let words = ["broker", "serve", "--listen", "127.0.0.1:0", "--store", &store];
    let words = [&words[..], &["--admin-token-file", &token]].concat();
    let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
    let serves = || {
        let mut child = program(&words).stdout(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        first
    };
    assert!(serves().contains("ready"));
    let (key, note) = (file("token.authority"), file("token.authority.json"));
    std::fs::remove_file(&key).unwrap();
    let refused = refuses(program(&words));
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(78), "{said}");
    assert!(said.contains(&key) && said.contains(&format!("remove {note}")), "{said}");
    std::fs::remove_file(&note).unwrap();
    assert!(serves().contains("ready"));
}

#[test]
fn a_brokers_own_file_is_known_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mesh.db");
    let store = format!("sqlite:{}", path.display());
    let words = |words: &[&str]| -> Vec<String> {
        let words = [&["broker"], words, &["--store", &store]].concat();
        words.iter().map(|word| (*word).to_owned()).collect()
    };
    let broker = |given: &[&str]| run(&words(given));
    assert_eq!(broker(&["migrate"]).status.code(), Some(0));
    remove(&path);
    for given in [&["serve", "--listen", "127.0.0.1:0"][..], &["migrate"]] {
        let refused = refuses(program(&words(given)));
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(78), "{said}");
        assert!(said.contains(&path.display().to_string()), "{said}");
        assert!(said.contains("broker start-fresh"), "{said}");
    }
    assert_eq!(broker(&["start-fresh"]).status.code(), Some(4));
    assert_eq!(broker(&["start-fresh", "--confirm"]).status.code(), Some(0));
    assert_eq!(broker(&["migrate"]).status.code(), Some(0));
}
