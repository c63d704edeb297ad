//! Envelopes field by field. The conformance vectors cover the accepted forms end to end.

use super::*;
use crate::fingerprint::Fingerprint;

fn refusal(text: &str) -> (Code, String) {
    let refusal = Envelope::from_json(text.as_bytes()).expect_err(text);
    (refusal.code, refusal.pointer)
}

#[test]
fn names_the_field_that_is_wrong() {
    let key = "ab".repeat(32);
    let long = "x".repeat(256);
    let to = |kind: &str, reference: &str| {
        envelope(&format!(r#""destination_kind":"{kind}","destination_ref":"{reference}""#))
    };
    let plain = |text: &str| text.to_owned();
    let (kind, reference) = ("/destination_kind", "/destination_ref");
    #[rustfmt::skip]
    let cases = [
        (plain("[]"), Code::InvalidField, ""),
        (plain(r#"{"to":"x"}"#), Code::UnknownField, ""),
        (plain(r#"{"destination_ref":"a","message":""}"#), Code::MissingField, kind),
        (plain(r#"{"destination_kind":"topic","message":""}"#), Code::MissingField, reference),
        (plain(r#"{"destination_kind":"topic","destination_ref":"a"}"#), Code::MissingField, ""),
        (to("mail", "a"), Code::InvalidField, kind),
        (to("topic", ""), Code::InvalidField, reference),
        (to("topic", r"a\u0000b"), Code::NulInField, reference),
        (to("topic", &long), Code::InvalidField, reference),
        (to("dm", "@ada"), Code::InvalidField, reference),
        (to("dm", &key.to_uppercase()), Code::InvalidField, reference),
        (topic(r#""reply_to_id":7"#), Code::InvalidField, "/reply_to_id"),
        (topic(r#""reply_to_id":"""#), Code::InvalidField, "/reply_to_id"),
        (topic(r#""reply_to_id":"\u0000""#), Code::NulInField, "/reply_to_id"),
        (topic(r#""priority":"urgent""#), Code::InvalidField, "/priority"),
        (topic(r#""meta":null"#), Code::InvalidField, "/meta"),
        (topic(r#""meta":{"a":9007199254740992}"#), Code::IntegerOutOfRange, "/meta/a"),
        (topic(r#""body_base64":"aGk=""#), Code::InvalidField, "/body_base64"),
    ];
    for (text, code, pointer) in cases {
        assert_eq!(refusal(&text), (code, pointer.to_owned()), "{text}");
    }
}

fn envelope(fields: &str) -> String {
    format!(r#"{{{fields},"message":"hi"}}"#)
}

fn topic(fields: &str) -> String {
    envelope(&format!(r#""destination_kind":"topic","destination_ref":"a",{fields}"#))
}

#[test]
fn base64_is_padded_and_canonical() {
    for body in ["aGk", "aGk=\\n", "a-k=", "aGl=", "====", "aGk=="] {
        let text = format!(
            r#"{{"destination_kind":"queue","destination_ref":"a","body_base64":"{body}"}}"#
        );
        assert_eq!(refusal(&text).0, Code::InvalidField, "{body}");
    }
}

#[test]
fn null_is_absence_for_optional_words() {
    let plain = Envelope::from_json(topic(r#""meta":{}"#).as_bytes());
    let nulls = Envelope::from_json(topic(r#""reply_to_id":null,"priority":null"#).as_bytes());
    assert_eq!(plain, nulls);
    assert!(plain.is_ok());
}

#[test]
fn meta_may_nest_to_its_limit_and_no_further() {
    let meta = |levels: usize| {
        let inner = levels - 1;
        topic(&format!(r#""meta":{{"a":{}1{}}}"#, "[".repeat(inner), "]".repeat(inner)))
    };
    assert!(Envelope::from_json(meta(64).as_bytes()).is_ok());
    assert_eq!(refusal(&meta(65)).0, Code::NestingTooDeep);
}

#[test]
fn a_body_is_bounded() {
    let to = Destination::new(DestinationKind::Queue, "work").unwrap();
    assert!(Envelope::new(to.clone(), vec![0; BODY_BYTES_MAX]).is_ok());
    let refusal = Envelope::new(to, vec![0; BODY_BYTES_MAX + 1]).expect_err("too large");
    assert_eq!(refusal.code, Code::PayloadTooLarge);
}

#[test]
fn every_field_moves_the_fingerprint() {
    let base = r#""destination_kind":"topic","destination_ref":"a""#;
    let texts = [
        envelope(base),
        envelope(r#""destination_kind":"queue","destination_ref":"a""#),
        envelope(r#""destination_kind":"topic","destination_ref":"b""#),
        topic(r#""reply_to_id":"a""#),
        topic(r#""priority":"now""#),
        topic(r#""meta":{"a":1}"#),
        format!(r#"{{{base},"message":"ho"}}"#),
    ];
    let prints: std::collections::HashSet<[u8; 32]> = texts
        .iter()
        .map(|text| Fingerprint::of(&Envelope::from_json(text.as_bytes()).unwrap()).0)
        .collect();
    assert_eq!(prints.len(), texts.len());
}

#[test]
fn ranks_sort_as_priorities_do() {
    let mut ranks: Vec<i64> = Priority::ALL.iter().map(|p| p.rank()).collect();
    ranks.dedup();
    assert!(ranks.is_sorted());
    for priority in Priority::ALL {
        assert_eq!(Priority::from_rank(priority.rank()), Some(*priority));
    }
    assert_eq!(Priority::from_rank(9), None);
}
