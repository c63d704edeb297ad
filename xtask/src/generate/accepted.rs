//! Accepted envelopes without meta: destinations, priorities, replies and bodies.

use super::vectors::{Case, Expected, Input};

/// Different spellings of one request, among the cases without meta.
#[cfg(test)]
pub(super) const SAME_REQUEST: &[&[&str]] = &[
    &[
        "topic",
        "priority-null",
        "priority-explicit-default",
        "reply-to-null",
        "body-base64-of-the-message",
        "meta-empty",
        "meta-empty-with-space",
        "document-with-white-space",
        "document-with-escaped-keys-and-values",
        "document-in-another-order",
    ],
    &["body-empty", "body-base64-empty"],
    &["body-with-nul", "body-base64-with-nul"],
    &["body-non-ascii", "body-base64-non-ascii"],
];

/// A name and the rest of a document to the topic `builds`.
const SENDS: &[(&str, &str)] = &[
    ("topic", r#""message":"hi""#),
    ("priority-now", r#""message":"hi","priority":"now""#),
    ("priority-explicit-default", r#""message":"hi","priority":"next""#),
    ("priority-low", r#""message":"hi","priority":"low""#),
    ("priority-null", r#""message":"hi","priority":null"#),
    ("reply-to", r#""message":"hi","reply_to_id":"01890a5d-ac96-774b-bcce-b302099a8057""#),
    ("reply-to-non-ascii", r#""message":"hi","reply_to_id":"é😀""#),
    ("reply-to-null", r#""message":"hi","reply_to_id":null"#),
    ("reply-to-looks-like-a-priority", r#""message":"hi","reply_to_id":"next""#),
    ("body-empty", r#""message":"""#),
    ("body-with-nul", r#""message":"a\u0000b""#),
    ("body-non-ascii", r#""message":"é€😀""#),
    ("body-composed", "\"message\":\"\u{e9}\""),
    ("body-decomposed", "\"message\":\"e\u{301}\""),
    ("body-with-line-breaks", r#""message":"a\r\nb\n""#),
    ("body-looks-like-json", r#""message":"{\"a\": 1}""#),
    ("meta-empty", r#""message":"hi","meta":{}"#),
];

/// A name and a whole document.
const DOCUMENTS: &[(&str, &str)] = &[
    ("queue", r#"{"destination_kind":"queue","destination_ref":"builds","message":"hi"}"#),
    (
        "ref-is-not-trimmed",
        r#"{"destination_kind":"topic","destination_ref":" a ","message":"hi"}"#,
    ),
    (
        "ref-with-line-break-and-quotes",
        r#"{"destination_kind":"queue","destination_ref":"a\nb \"c\" \\","message":"hi"}"#,
    ),
    (
        "boundary-after-two-letters",
        r#"{"destination_kind":"topic","destination_ref":"ab","message":"hi","reply_to_id":"c"}"#,
    ),
    (
        "boundary-after-one-letter",
        r#"{"destination_kind":"topic","destination_ref":"a","message":"hi","reply_to_id":"bc"}"#,
    ),
    (
        "body-base64-of-the-message",
        r#"{"body_base64":"aGk=","destination_kind":"topic","destination_ref":"builds"}"#,
    ),
    (
        "body-base64-empty",
        r#"{"body_base64":"","destination_kind":"topic","destination_ref":"builds"}"#,
    ),
    (
        "body-base64-with-nul",
        r#"{"body_base64":"YQBi","destination_kind":"topic","destination_ref":"builds"}"#,
    ),
    (
        "body-base64-non-ascii",
        r#"{"body_base64":"w6nigqzwn5iA","destination_kind":"topic","destination_ref":"builds"}"#,
    ),
    (
        "body-base64-not-utf8",
        r#"{"body_base64":"/w==","destination_kind":"topic","destination_ref":"builds"}"#,
    ),
    (
        "body-base64-plus-and-solidus",
        r#"{"body_base64":"++//","destination_kind":"topic","destination_ref":"builds"}"#,
    ),
];

/// A name and the text of a document that no general writer would write like this.
const SPELLINGS: &[(&str, &str)] = &[
    (
        "document-with-white-space",
        " {\t\"destination_kind\" : \"topic\" ,\r\n \"destination_ref\":\n\"builds\", \
         \"message\": \"hi\" }\n",
    ),
    (
        "document-with-escaped-keys-and-values",
        r#"{"destination\u005fkind":"t\u006Fpic","destination_ref":"builds","message":"\u0068i"}"#,
    ),
    (
        "document-in-another-order",
        r#"{"message":"hi","destination_ref":"builds","destination_kind":"topic"}"#,
    ),
    (
        "meta-empty-with-space",
        r#"{"destination_kind":"topic","destination_ref":"builds","message":"hi","meta":{ }}"#,
    ),
];

pub(super) fn cases() -> Vec<Case> {
    let sends = SENDS.iter().map(|(name, rest)| without_meta(name, to_builds(rest)));
    let documents = DOCUMENTS.iter().map(|(name, text)| without_meta(name, (*text).to_owned()));
    let spellings = SPELLINGS.iter().map(|(name, text)| Case {
        name,
        input: Input::Raw((*text).to_owned()),
        expected: Expected::Accepted { canonical_meta: String::new() },
    });
    sends.chain(documents).chain(spellings).chain(built()).collect()
}

/// Cases at the limits, and with every byte there is.
fn built() -> Vec<Case> {
    use base64::Engine;
    let key = "0123456789abcdef".repeat(4);
    let to = |kind: &str, reference: &str| {
        format!(r#"{{"destination_kind":"{kind}","destination_ref":"{reference}","message":"hi"}}"#)
    };
    let every_byte: Vec<u8> = (0..=u8::MAX).collect();
    let every_byte = base64::engine::general_purpose::STANDARD.encode(every_byte);
    let binary = format!(
        r#"{{"body_base64":"{every_byte}","destination_kind":"queue","destination_ref":"blobs"}}"#
    );
    let long = "x".repeat(255);
    let reply = to_builds(&format!(r#""message":"hi","reply_to_id":"{long}""#));
    vec![
        without_meta("dm", to("dm", &key)),
        without_meta("topic-named-like-a-key", to("topic", &key)),
        without_meta("queue-named-like-a-key", to("queue", &key)),
        without_meta("ref-composed", to("topic", "\u{e9}")),
        without_meta("ref-decomposed", to("topic", "e\u{301}")),
        without_meta("ref-of-255-bytes", to("topic", &long)),
        without_meta("ref-of-255-bytes-non-ascii", to("topic", &format!("{}x", "é".repeat(127)))),
        without_meta("reply-to-of-255-bytes", reply),
        without_meta("body-base64-of-every-byte", binary),
    ]
}

/// A document to the topic `builds` with these fields besides.
pub(super) fn to_builds(rest: &str) -> String {
    format!(r#"{{"destination_kind":"topic","destination_ref":"builds",{rest}}}"#)
}

fn without_meta(name: &'static str, document: String) -> Case {
    let expected = Expected::Accepted { canonical_meta: String::new() };
    Case { name, input: Input::Envelope(document), expected }
}
