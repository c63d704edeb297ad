//! Backups that cannot be written, and files that are none: what is said names the file.

use std::path::Path;
use std::process::{Command, Output};

use rustix::process::Signal;
use semel_testkit::disk::{fill, with_a_small_disk};

use super::{Up, semel};

fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn program(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(words).env_remove("SEMEL_HOME").output().unwrap()
}

/// The words that mean this home, or the store in it.
fn words<'a>(verb: &'a [&'a str], home: &'a str, store: &'a str) -> Vec<&'a str> {
    match verb[0] {
        "broker" => [verb, &["--store", store]].concat(),
        _ => [verb, &["--home", home]].concat(),
    }
}

fn stopped(home: &Path) -> (String, String) {
    let mut up = Up::start(home);
    assert_eq!(up.stop(Signal::TERM), Some(0));
    let store = format!("sqlite:{}", home.join("broker/broker.db").display());
    (home.display().to_string(), store)
}

#[test]
fn a_backup_without_room_names_its_target() {
    let test = "copies::a_backup_without_room_names_its_target";
    let Some(disk) = with_a_small_disk(test, 1_000_000) else { return };
    fill(&disk.join("filled"));
    let folder = tempfile::tempdir().unwrap();
    let (home, store) = stopped(folder.path());
    let target = disk.join("backup.db").display().to_string();
    for verb in ["broker", "job"] {
        let refused = program(&words(&[verb, "backup", "--out", &target], &home, &store));
        let said = said(&refused);
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains(&target) && said.contains("full"), "{said}");
    }
    assert_eq!(std::fs::read_dir(&disk).unwrap().count(), 1, "nothing is left of it");
}

#[test]
fn a_backup_that_is_larger_than_it_may_be_names_its_target() {
    let folder = tempfile::tempdir().unwrap();
    let (home, store) = stopped(&folder.path().join("home"));
    let target = folder.path().join("backup.db").display().to_string();
    for verb in ["broker", "job"] {
        let backup = [verb, "backup", "--out", &target];
        let words = words(&backup, &home, &store);
        let limited = r#"trap '' XFSZ; ulimit -f 100; exec "$@""#;
        let mut shell = Command::new("sh");
        shell.args(["-c", limited, "limited", env!("CARGO_BIN_EXE_semel")]).args(words);
        let refused = shell.env_remove("SEMEL_HOME").output().unwrap();
        let said = said(&refused);
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains(&target), "{said}");
    }
}

#[test]
fn what_is_no_backup_is_named_and_so_is_what_is_in_its_way() {
    let folder = tempfile::tempdir().unwrap();
    let (home, store) = stopped(&folder.path().join("home"));
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("notes"), "no database").unwrap();
    let databases = [
        ("broker", path("home/broker/broker.db"), path("home/jobs/jobs.db")),
        ("job", path("home/jobs/jobs.db"), path("home/broker/broker.db")),
    ];
    for (verb, own, foreign) in databases {
        let restore = |from: &str, force: bool| {
            let force = if force { &["--force"][..] } else { &[] };
            let verb = [&[verb, "restore", "--in", from], force].concat();
            program(&words(&verb, &home, &store))
        };
        let backup = path(verb);
        let done = program(&words(&[verb, "backup", "--out", &backup], &home, &store));
        assert!(done.status.success(), "{}", said(&done));
        let damaged = path("damaged");
        let mut bytes = std::fs::read(&backup).unwrap();
        bytes[100..4096].fill(0x5a);
        std::fs::write(&damaged, bytes).unwrap();
        for (from, force, exit, named) in [
            (path("notes"), true, 78, path("notes")),
            (foreign.clone(), true, 78, foreign),
            (path("nothing"), true, 1, path("nothing")),
            (damaged.clone(), true, 78, damaged),
            (backup.clone(), false, 4, own.clone()),
        ] {
            let refused = restore(&from, force);
            let said = said(&refused);
            assert_eq!(refused.status.code(), Some(exit), "{from}: {said}");
            assert!(said.contains(&named), "{from}: {said}");
            assert!(!said.contains(".restoring"), "that is gone by now: {said}");
        }
        let mut up = Up::start(&folder.path().join("home"));
        let refused = restore(&backup, true);
        let said = said(&refused);
        assert_eq!(refused.status.code(), Some(4), "{said}");
        assert!(said.contains(&own), "{said}");
        assert_eq!(up.stop(Signal::TERM), Some(0));
    }
    let doctor = semel(&folder.path().join("home"), &["doctor", "--deep"]);
    assert_eq!(doctor.status.code(), Some(0), "nothing was restored: {doctor:?}");
}
