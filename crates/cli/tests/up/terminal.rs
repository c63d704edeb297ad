//! Names that would not look like what they are cannot be made; what somebody else wrote in a
//! message is shown as text.

use std::path::Path;

use semel_core::shown::shown;

use super::{Up, json, semel};

const HOSTILE: [&str; 4] = ["a\u{1b}[2Jb", "a\u{202e}b\u{200b}", "a\nb\rc", "a\u{9b}31m\u{7f}"];

/// Gives what was said, on both, of which every line is plain.
fn said(home: &Path, words: &[&str]) -> (bool, String) {
    let output = semel(home, words);
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    for line in text.lines() {
        assert_eq!(shown(line), line, "{:?}", &words[..2]);
    }
    (output.status.success(), text)
}

#[test]
fn names_that_do_not_look_like_what_they_are_are_not_made() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let _up = Up::start(home);
    let invite = json(home, &["mesh", "invite"])["invite"].clone();
    let (invite, other) = (invite.as_str().unwrap(), folder.path().join("other"));
    let long = "x".repeat(10 << 10);
    for name in HOSTILE.iter().copied().chain([&*long]) {
        for words in [
            &["topic", "create", name][..],
            &["queue", "create", name],
            &["topic", "subscribe", name],
            &["send", "@me", "hello", "--key", name],
            &["send", name, "hello"],
            &["member", "revoke", name],
            &["outbox", "inspect", name],
            &["job", "show", name],
            &["gear", "enable", name],
            &["secret", "rm", name],
            &["effect", "show", name],
        ] {
            let (done, text) = said(home, words);
            assert!(!done, "{words:?}: {text}");
        }
        let (done, text) = said(&other, &["mesh", "join", invite, "--name", name]);
        assert!(!done, "{name:?}: {text}");
    }
    for list in [["topic", "list"], ["queue", "list"], ["outbox", "list"]] {
        assert_eq!(json(home, &list)["items"], serde_json::json!([]), "{list:?}");
    }
}

#[test]
fn messages_are_shown_as_text() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let _up = Up::start(home);
    assert!(semel(home, &["queue", "create", "work"]).status.success());
    assert!(semel(home, &["topic", "create", "builds"]).status.success());
    for (number, text) in HOSTILE.into_iter().enumerate() {
        let long = format!("word {text}{}", "x".repeat(10 << 10));
        for to in ["@me", "#builds", "queue:work"] {
            let key = format!("{number}{}", to.trim_matches(['@', '#']).replace(':', "-"));
            let sent = json(home, &["send", to, &long, "--key", &key, "--wait"]);
            assert_eq!(sent["status"], "done");
        }
    }
    while json(home, &["inbox", "list"])["items"].as_array().unwrap().len() < 2 * HOSTILE.len() {
        std::thread::yield_now();
    }
    for (words, shows) in [
        (&["inbox", "list"][..], true),
        (&["inbox", "search", "word"], true),
        (&["queue", "take", "work", "--max", "10"], true),
        (&["outbox", "list"], false),
        (&["outbox", "inspect", "0me"], false),
        (&["peers"], false),
        (&["daemon", "status"], false),
        (&["mesh", "list"], false),
    ] {
        let (done, text) = said(home, words);
        assert!(done, "{words:?}: {text}");
        assert!(!shows || text.contains("\\u{1b}[2J"), "{words:?}: {text}");
    }
}
