//! The built binary, as a user calls it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write;
use std::process::{Command, Output, Stdio};

fn semel(arguments: &[&str], stdin: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that refuses early may close its end first.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

const ENVELOPE: &[u8] = br#"
    {"destination_kind":"topic","destination_ref":"builds","message":"done","meta":{"b":1,"a":1.0}}
"#;

const SHOWN: &str = "\
canonical meta  {\"a\":1,\"b\":1}
body hash       a4c3ed04a95a3da14a9d235c83d868bed7c0f45cf7f3faa751ee8f50598d2211
fingerprint     a5975faa625fb7dc501fdab77fd2ed6e592932e7bbbe50fde046b342a15130bf
";

#[test]
fn shows_the_canonical_form_for_people() {
    let output = semel(&["fingerprint"], ENVELOPE);
    assert_eq!(text(&output.stdout), SHOWN);
    assert!(output.status.success() && output.stderr.is_empty());
}

#[test]
fn shows_every_conformance_case_for_programs() {
    let vectors = include_str!("../../../conformance/fingerprint.json");
    let vectors: serde_json::Value = serde_json::from_str(vectors).unwrap();
    // One accepted case from a file, one refused from stdin; core's tests walk all of them.
    let cases = vectors["cases"].as_array().unwrap();
    let accepted = cases.iter().find(|case| case["envelope"].is_object()).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), accepted["envelope"].to_string()).unwrap();
    let output = semel(&["fingerprint", "--json", file.path().to_str().unwrap()], b"");
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for field in ["canonical_meta", "body_hash", "fingerprint"] {
        assert_eq!(shown[field], accepted[field]);
    }
    for refused in cases.iter().filter(|case| case["error"].is_string() && case["raw"].is_string())
    {
        let output = semel(&["fingerprint", "--json"], refused["raw"].as_str().unwrap().as_bytes());
        assert_eq!(output.status.code(), Some(2), "{refused}");
        let problem: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
        assert_eq!(problem["code"], refused["error"]);
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn bad_input_is_named_and_exits_2() {
    let output = semel(&["fingerprint"], br#"{"meta":{"a":1,"a":2}}"#);
    assert_eq!(output.status.code(), Some(2));
    let expected = "error: duplicate_key: this key was given twice (at /meta/a)\n\
                    to learn more: semel explain duplicate_key\n";
    assert_eq!(text(&output.stderr), expected);
    assert!(output.stdout.is_empty());
    let endless = vec![b' '; 3 << 20];
    let output = semel(&["fingerprint"], &endless);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).starts_with("error: payload_too_large: "));
}

#[test]
fn a_missing_file_and_wrong_usage_have_their_own_exit_codes() {
    let output = semel(&["fingerprint", "no-such-file.json"], b"");
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).starts_with("error: no-such-file.json: "));
    assert_eq!(semel(&["fingerprint", "--yaml"], b"").status.code(), Some(2));
    assert_eq!(semel(&[], b"").status.code(), Some(2));
}

#[test]
fn explains_codes() {
    let output = semel(&["explain", "duplicate_key"], b"");
    assert!(text(&output.stdout).starts_with("# `duplicate_key`\n"));
    assert!(text(&semel(&["explain"], b"").stdout).lines().any(|line| line == "duplicate_key"));
    let output = semel(&["explain", "no_such_code"], b"");
    assert_eq!(output.status.code(), Some(3));
}
