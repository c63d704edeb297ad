//! A home that somebody else could have prepared: nobody starts in it, and nothing is made there.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::Signal;
use semel_wire::link::{self, JoinLink};

use super::{DAEMON_UP, Up, semel};

/// Everything that starts in a home, and the folder below it that is its own.
const STARTS: [(&[&str], &str); 3] = [
    (&["up", "--broker-listen", "127.0.0.1:0", "--api-listen", "127.0.0.1:0"], "broker"),
    (&DAEMON_UP, "daemon/local"),
    (&["job", "serve"], "jobs"),
];

fn is_refused(home: &Path, start: &[&str], path: &Path, words: &str) {
    let output = semel(home, start);
    let text = String::from_utf8_lossy(&output.stderr);
    let path = path.display().to_string();
    assert_eq!(output.status.code(), Some(78), "{start:?} {path}: {text}");
    assert!(text.contains(&path) && text.contains(words), "{start:?} {path}: {text}");
}

/// Everything below a folder, with what is in it.
fn all(folder: &Path) -> Vec<String> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            found.push(path.display().to_string());
            folders.extend((path.is_dir() && !path.is_symlink()).then_some(path));
        }
    }
    found.sort();
    found
}

#[test]
fn nobody_starts_in_a_home_that_others_can_change() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    let mut up = Up::start(&home);
    assert_eq!(up.stop(Signal::TERM), Some(0));
    let before = all(&home);
    let private = std::fs::Permissions::from_mode(0o700);
    for (start, own) in STARTS {
        for path in [home.clone(), home.join(own)] {
            for mode in [0o770, 0o707, 0o702] {
                let open = std::fs::Permissions::from_mode(mode);
                std::fs::set_permissions(&path, open).unwrap();
                is_refused(&home, start, &path, "others can write to");
            }
            std::fs::set_permissions(&path, private.clone()).unwrap();
            if rustix::process::geteuid().is_root() {
                chown(&path, Some(12_345), None).unwrap();
                is_refused(&home, start, &path, "belongs to the user 12345");
                chown(&path, Some(0), None).unwrap();
            }
        }
        let (path, aside) = (home.join(own), folder.path().join("aside"));
        std::fs::rename(&path, &aside).unwrap();
        symlink(&aside, &path).unwrap();
        is_refused(&home, start, &path, "is a link");
        std::fs::remove_file(&path).unwrap();
        std::fs::rename(&aside, &path).unwrap();
    }
    assert_eq!(all(&home), before, "nothing was made");
    let mut up = Up::start(&home);
    assert_eq!(up.stop(Signal::TERM), Some(0));
}

/// An empty folder is enough to plant something later.
#[test]
fn nobody_makes_a_home_in_a_folder_of_somebody_else() {
    let folder = tempfile::tempdir().unwrap();
    let token = link::token(&[7; 32]);
    let invite =
        JoinLink { broker_url: "http://127.0.0.1:1".to_owned(), mesh: "ops".to_owned(), token };
    let invite = invite.encode();
    let [(up, _), _, (engine, _)] = STARTS;
    for start in [up, engine, &["mesh", "join", &invite]] {
        let home = folder.path().join(start[0]);
        std::fs::create_dir(&home).unwrap();
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(&home, open).unwrap();
        is_refused(&home, start, &home, "others can write to");
        assert_eq!(all(&home), Vec::<String>::new(), "{start:?}");
    }
}

/// What it says; one that starts all the same is ended.
fn refused(mut child: Child) -> Output {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    if !line.is_empty() {
        child.kill().unwrap();
    }
    assert_eq!(line, "", "it is not refused");
    child.wait_with_output().unwrap()
}

/// A broker alone has files instead of a home: its token, the key of its registrar, its store.
#[test]
fn a_broker_does_not_take_files_of_somebody_else() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let name = |name: &str| path(name).display().to_string();
    let (store, token, authority) =
        (format!("sqlite:{}", name("broker.db")), name("token"), name("authority"));
    let start = [
        &["broker", "serve", "--listen", "127.0.0.1:0", "--json", "--store", &store][..],
        &["--admin-token-file", &token, "--authority-file", &authority],
    ]
    .concat();
    let started = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command.args(&start).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut broker = Up::ready(started());
    assert_eq!(broker.stop(Signal::TERM), Some(0));
    for file in ["token", "authority"] {
        chown(path(file), Some(12_345), None).unwrap();
        let output = refused(started());
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{file}: {text}");
        assert!(text.contains(&name(file)) && text.contains("the user 12345"), "{file}: {text}");
        chown(path(file), Some(0), None).unwrap();
    }
    let mut broker = Up::ready(started());
    assert_eq!(broker.stop(Signal::TERM), Some(0));
}
