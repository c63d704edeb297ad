//! A member whose key is lost, in the home of the mesh itself: what is printed leads out of it.

use std::path::Path;
use std::process::{Command, Output};

use rustix::process::Signal;
use semel_testkit::sqlite;

use super::stores::refuses;
use super::{Up, command, json, semel};

/// Runs words as they were printed.
fn shell(words: &str) -> Output {
    let program = Path::new(env!("CARGO_BIN_EXE_semel")).parent().unwrap().display();
    let path = format!("{program}:{}", std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-c", words]).env("PATH", &path).env_remove("SEMEL_HOME").output().unwrap()
}

/// What comes behind these words, in the line that has them.
fn behind<'a>(said: &'a str, words: &str) -> &'a str {
    let found = said.lines().find_map(|line| line.split_once(words));
    found.unwrap_or_else(|| panic!("{words:?} is not in {said}")).1
}

#[test]
fn a_lost_key_is_replaced_by_the_words_that_are_printed() {
    for file in ["keypair.json", "fingerprint_secret"] {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path();
        let mut up = Up::start(home);
        let before = up.ready["member_id"].clone();
        json(home, &["send", "@me", "hello", "--key", "first", "--wait"]);
        assert_eq!(up.stop(Signal::TERM), Some(0));
        std::fs::remove_file(home.join("daemon/local").join(file)).unwrap();
        let refused = refuses(command(home, &[]));
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(78), "{said}");
        let doctor = String::from_utf8(semel(home, &["doctor"]).stdout).unwrap();
        assert!(doctor.contains("as a new member: remove "), "{doctor}");
        let (path, start) =
            behind(&said, "as a new member: remove ").split_once(", then: ").unwrap();
        assert!(start.starts_with("semel up --home "), "{said}");
        std::fs::remove_file(path).unwrap();
        if file == "keypair.json" {
            let refused = refuses(command(home, &[]));
            let said = String::from_utf8(refused.stderr).unwrap();
            assert_eq!(refused.status.code(), Some(78), "{said}");
            let done = shell(behind(&said, "to add the new key: "));
            assert!(done.status.success(), "{done:?}");
            assert!(behind(&said, "to continue: ").starts_with("semel up --home "), "{said}");
        }
        let mut up = Up::start(home);
        assert_eq!(up.ready["member_id"] == before, file != "keypair.json");
        json(home, &["send", "@me", "hello", "--key", "second", "--wait"]);
        assert_eq!(up.stop(Signal::TERM), Some(0));
        let store = sqlite::open(home.join("broker/broker.db")).unwrap();
        let role = "SELECT count(*) FROM member WHERE role = 'owner'";
        let owners: i64 = store.query_row(role, [], |row| row.get(0)).unwrap();
        assert_eq!(owners, if file == "keypair.json" { 2 } else { 1 });
    }
}
