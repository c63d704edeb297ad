//! Files that cannot be opened, and may be whole: nobody is told to do without them, and nobody
//! does.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use rustix::process::{Signal, geteuid};
use semel_testkit::sqlite;

use super::{Up, json, semel};

/// Somebody who is not root, to whom files are closed.
const SOMEBODY: u32 = 12_345;

/// A home with one message in each database, stopped in order.
fn stopped() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut up = Up::start(folder.path());
    json(folder.path(), &["send", "@me", "hello", "--key", "first", "--wait"]);
    while json(folder.path(), &["inbox", "list"])["items"].as_array().unwrap().is_empty() {
        std::thread::yield_now();
    }
    assert_eq!(up.stop(Signal::TERM), Some(0));
    folder
}

fn give(path: &Path, owner: u32) {
    chown(path, Some(owner), Some(owner)).unwrap();
    if path.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            give(&entry.unwrap().path(), owner);
        }
    }
}

/// The program as whoever the home is given to.
fn asked(home: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(words).arg("--home").arg(home).env_remove("SEMEL_HOME").current_dir("/");
    if geteuid().is_root() {
        command.uid(SOMEBODY).gid(SOMEBODY);
    }
    command.output().unwrap()
}

fn said(output: &Output) -> String {
    let texts = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    texts.concat()
}

#[test]
fn a_file_of_another_user_is_not_called_damaged() {
    let folder = stopped();
    let home = folder.path();
    if geteuid().is_root() {
        give(home, SOMEBODY);
    }
    for name in ["broker/broker.db", "jobs/jobs.db", "daemon/local/outbox.db"] {
        let path = home.join(name);
        if geteuid().is_root() {
            give(&path, 0);
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
        let text = said(&asked(home, &["doctor"]));
        assert!(text.contains(&format!("to do: give {} to the user", path.display())), "{text}");
        for lossy in ["--force", "start-fresh", "recover"] {
            assert!(!text.contains(lossy), "{name}: {text}");
        }
        if name.ends_with("outbox.db") {
            let looked = asked(home, &["daemon", "recover", "--mesh", "local"]);
            let text = said(&looked);
            assert_eq!(looked.status.code(), Some(1), "{text}");
            assert!(text.contains("give it to the user"), "{text}");
            assert!(!text.contains("--start-fresh"), "{text}");
            let words = ["daemon", "recover", "--mesh", "local", "--start-fresh", "outbox"];
            let refused = asked(home, &[&words[..], &["--confirm"]].concat());
            assert_eq!(refused.status.code(), Some(4), "{}", said(&refused));
            assert!(path.exists(), "it stays where it is");
        }
        if geteuid().is_root() {
            give(&path, SOMEBODY);
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let sound = asked(home, &["doctor"]);
    assert_eq!(sound.status.code(), Some(0), "{}", said(&sound));
}

#[test]
fn an_inbox_of_a_newer_version_is_not_set_aside() {
    let folder = stopped();
    let home = folder.path();
    let path = home.join("daemon/local/inbox.db");
    let file = sqlite::open(&path).unwrap();
    let newer = "INSERT INTO schema_migration (component, version, name, checksum, applied_at)
                 SELECT component, 99, 'newer', checksum, 1 FROM schema_migration LIMIT 1";
    assert_eq!(file.execute(newer, []).unwrap(), 1);
    drop(file);
    let looked = semel(home, &["daemon", "recover", "--mesh", "local"]);
    let text = said(&looked);
    assert_eq!(looked.status.code(), Some(1), "{text}");
    assert!(text.contains("the version that made it"), "{text}");
    assert!(!text.contains("--start-fresh"), "{text}");
    let words = ["daemon", "recover", "--mesh", "local", "--start-fresh", "inbox", "--confirm"];
    let refused = semel(home, &words);
    assert_eq!(refused.status.code(), Some(4), "{}", said(&refused));
    assert!(path.exists(), "it stays where it is");
}

/// What is told by one must be known to the other, or nobody gets out.
#[test]
fn a_row_that_was_changed_is_found_by_whoever_can_mend_it() {
    for (database, sql) in [
        ("outbox", "UPDATE outbox SET payload = CAST('hellx' AS BLOB)"),
        ("inbox", "UPDATE inbox SET sender_name = 'somebody'"),
    ] {
        let folder = stopped();
        let home = folder.path();
        let file = sqlite::open(home.join(format!("daemon/local/{database}.db"))).unwrap();
        assert_eq!(file.execute(sql, []).unwrap(), 1);
        drop(file);
        let deep = said(&semel(home, &["doctor", "--deep"]));
        assert!(deep.contains("to do: semel daemon recover"), "{deep}");
        let looked = semel(home, &["daemon", "recover", "--mesh", "local"]);
        let text = said(&looked);
        assert_eq!(looked.status.code(), Some(1), "{text}");
        assert!(text.contains(&format!("{database}.db  damaged")), "{text}");
        let fresh = ["daemon", "recover", "--mesh", "local", "--start-fresh", database];
        let begun = semel(home, &[&fresh[..], &["--confirm"]].concat());
        assert_eq!(begun.status.code(), Some(0), "{}", said(&begun));
        let mut up = Up::start(home);
        assert_eq!(up.stop(Signal::TERM), Some(0));
        let deep = semel(home, &["doctor", "--deep"]);
        assert_eq!(deep.status.code(), Some(0), "{}", said(&deep));
    }
}
