//! `conformance/fingerprint.json` against this crate: the file that every implementation reads.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use semel_core::envelope::Envelope;
use semel_core::fingerprint::{BodyHash, Fingerprint};
use serde_json::{Value, json};

/// The least that mesh.md §3 asks for; a file that lost its cases must not pass.
const CASES_MIN: usize = 60;

fn cases() -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../conformance/fingerprint.json");
    let text = std::fs::read_to_string(path).unwrap();
    let mut file: Value = serde_json::from_str(&text).unwrap();
    let Value::Array(cases) = file["cases"].take() else { panic!("no list of cases") };
    cases
}

/// The bytes of a case's document; a case has exactly one of three inputs.
fn document(case: &Value) -> Vec<u8> {
    match (&case["envelope"], &case["raw"], &case["raw_base64"]) {
        (Value::Object(_), Value::Null, Value::Null) => case["envelope"].to_string().into_bytes(),
        (Value::Null, Value::String(raw), Value::Null) => raw.clone().into_bytes(),
        (Value::Null, Value::Null, Value::String(encoded)) => STANDARD.decode(encoded).unwrap(),
        _ => panic!("one input is needed: {case}"),
    }
}

/// What the core makes of a document, in the words of the file.
fn outcome(document: &[u8]) -> Value {
    match Envelope::from_json(document) {
        Ok(envelope) => json!({
            "canonical_meta": envelope.meta().as_str(),
            "body_hash": BodyHash::of(envelope.body()).to_hex(),
            "fingerprint": Fingerprint::of(&envelope).to_hex(),
        }),
        Err(refusal) => json!({ "error": refusal.code.as_str() }),
    }
}

#[test]
fn every_case_comes_out_as_the_file_says() {
    let cases = cases();
    assert!(cases.len() >= CASES_MIN, "only {} cases", cases.len());
    for mut case in cases {
        let found = outcome(&document(&case));
        // Without its name and input, a case is all that it promises.
        let expected = case.as_object_mut().unwrap();
        let name = expected.remove("name").unwrap();
        expected.retain(|key, _| !["envelope", "raw", "raw_base64"].contains(&key.as_str()));
        assert_eq!(found, case, "{name}");
    }
}
