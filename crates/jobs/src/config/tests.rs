//! What is refused, in which words, and that the documentation is true.

use serde_json::{Map, Value};

use super::*;

const DOCUMENT: &str = include_str!("../../../../docs/jobs.md");

/// The document's one TOML block.
fn documented() -> &'static str {
    let (_, rest) = DOCUMENT.split_once("```toml\n").expect("a TOML block");
    rest.split_once("```").expect("its end").0
}

/// A document's keys that say something.
fn said(value: &Value) -> &Map<String, Value> {
    value.as_object().expect("a table")
}

#[test]
fn the_document_shows_every_key() {
    let config = Config::parse(documented()).expect("a configuration");
    let config = serde_json::to_value(config).expect("a document");
    for (key, value) in said(&config) {
        let is_shown = !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty());
        assert!(is_shown, "{key} is not in the document");
    }
    // The keys of a rule are told in words, beside the rule that is shown.
    let (_, words) = documented().split_once("[[policy]]").expect("a rule");
    for key in said(&config["policy"][0]).keys() {
        assert!(words.contains(key.as_str()), "policy.{key} is not in the document");
    }
}

#[test]
fn what_the_document_shows_of_numbers_is_the_default() {
    let config = Config::parse(documented()).expect("a configuration");
    let (mut tuned, usual) = (EngineOptions::new("w", "/tmp"), EngineOptions::new("w", "/tmp"));
    config.tune(&mut tuned).expect("tuned");
    assert_eq!((tuned.workers, tuned.lease), (usual.workers, usual.lease));
    let times =
        |options: &EngineOptions| (options.approval_timeout, options.retention, options.shutdown);
    assert_eq!(times(&tuned), times(&usual));
}

#[test]
fn numbers_are_held_to_their_ranges_and_the_document_says_them() {
    let config = Config::parse(documented()).expect("a configuration");
    let numbers = serde_json::to_value(config).expect("a document");
    let numbers: Vec<&str> = said(&numbers)
        .iter()
        .filter(|(_, value)| value.is_number())
        .map(|(key, _)| key.as_str())
        .collect();
    let mut ranged: Vec<&str> = RANGES.iter().map(|(key, ..)| *key).collect();
    ranged.sort_unstable();
    assert_eq!(numbers, ranged, "every number has a range");
    for (key, min, max) in RANGES {
        let line = documented().lines().find(|line| line.starts_with(key)).expect(key);
        let digits: String = line.chars().filter(|digit| *digit != '_').collect();
        assert!(digits.contains(&format!("# {min} to {max}")), "{line}");
        for good in [min, max] {
            Config::parse(&format!("{key} = {good}")).expect(key);
        }
        for bad in [min.checked_sub(1), Some(max + 1)].into_iter().flatten() {
            let said = Config::parse(&format!("{key} = {bad}")).expect_err(key).to_string();
            assert_eq!(said, format!("{key} must be from {min} to {max}"));
        }
    }
}

#[test]
fn unknown_keys_are_named() {
    for (text, named) in [
        ("worker = 3", "worker"),
        ("[policy]", "policy"),
        ("[[policy]]\nverdict = \"ask\"\ngear = \"http\"", "gear"),
    ] {
        let said = Config::parse(text).expect_err(text).to_string();
        assert!(said.contains(named), "{said}");
    }
}

#[test]
fn a_pattern_that_would_never_fit_is_refused() {
    let rule = |key: &str, value: &str| {
        Config::parse(&format!("[[policy]]\n{key} = {value:?}\nverdict = \"reject\""))
    };
    for (key, values) in [
        ("action", &["http", "http.re*", "*.request", "http.", ".request", "http.a.b", ""][..]),
        ("path", &["etc/*", ""]),
        ("host", &["*.example.com", "example.com:80", "http://example.com", "a b", ""]),
        ("method", &["*", "GET, POST", ""]),
        ("parent", &["x*", "X", "http.request", ""]),
    ] {
        for value in values {
            let said = rule(key, value).expect_err(value).to_string();
            assert!(said.starts_with(&format!("policy.{key}: {value:?} matches")), "{said}");
        }
    }
    for (key, values) in [
        ("action", &["http.request", "http.*", "*", "my-gear.do_it"][..]),
        ("path", &["etc", "/etc/", "/", "a/../b"]),
        ("host", &["example.com.", "127.1", "::1", "[::1]", "EXAMPLE.com"]),
        ("method", &["get", "POST", "M-SEARCH"]),
        ("parent", &["*", "my-gear"]),
    ] {
        for value in values {
            rule(key, value).expect(value);
        }
    }
}

#[test]
fn what_nobody_knows_is_refused_by_name() {
    let config = Config::parse("workers = 3\n[[policy]]\naction = \"http.*\"\nverdict = \"ask\"");
    let mut options = EngineOptions::new("w", "/tmp");
    config.expect("a configuration").tune(&mut options).expect("tuned");
    assert_eq!((options.workers, options.policy.rules.len()), (3, 1));
    for (text, named) in [
        ("wrokers = 3", "wrokers"),
        ("workers = 0", "workers"),
        ("[[policy]]\nverdict = \"perhaps\"", "policy.verdict"),
        ("[[policy]]\nrisk = \"some\"\nverdict = \"ask\"", "policy.risk"),
    ] {
        let error = Config::parse(text).expect_err(text).to_string();
        assert!(error.contains(named), "{error}");
    }
}
