//! What the command line refuses at once, because it would be taken for something else.

use std::process::{Command, Output};

use crate::process::Home;

fn semel(home: &Home, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(words).arg("--home").arg(home.path()).env_remove("SEMEL_HOME");
    command.output().unwrap()
}

fn refused(home: &Home, words: &[&str]) -> (Option<i32>, String) {
    let output = semel(home, words);
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn an_engine_that_could_not_hear_its_messages_says_so() {
    let home = Home::with("from = [\"#jobs\"]\n");
    let (code, said) = refused(&home, &["job", "serve", "--json"]);
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("config.toml") && said.contains("--daemon SOCKET"), "{said}");
    assert!(!home.path().join("jobs/jobs.db").exists(), "nothing was made");
}

#[test]
fn numbers_that_would_be_taken_for_others_are_refused() {
    let home = Home::new();
    for words in [
        &["job", "patterns", "--since", "30s"][..],
        &["job", "patterns", "--since", "90s"],
        &["job", "list", "--limit", "0"],
        &["inbox", "list", "--limit", "0"],
        &["outbox", "list", "--limit", "0"],
        &["peers", "--limit", "0"],
    ] {
        let (code, said) = refused(&home, words);
        assert_eq!(code, Some(2), "{words:?}: {said}");
        let about = if words.contains(&"0") { "1 or more" } else { "number of minutes" };
        assert!(said.contains(about), "{words:?}: {said}");
    }
}

#[test]
fn a_request_in_words_has_no_planner() {
    let home = Home::new();
    let _engine = home.serve();
    let (code, said) = refused(&home, &["job", "submit", "--request", "tidy up"]);
    assert!(code.is_some_and(|code| code != 0), "{said}");
    assert!(said.contains("planner_missing"), "{said}");
}
