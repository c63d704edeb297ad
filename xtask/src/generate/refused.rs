//! The documents that have no fingerprint, each with the code that says why.

use semel_core::code::Code::{self, *};

use super::accepted::to_builds;
use super::metas::document_with_meta;
use super::vectors::{Case, Expected, Input};

/// What is wrong with the document as a whole.
const DOCUMENTS: &[(&str, Code, &str)] = &[
    ("invalid-json-empty-text", InvalidJson, ""),
    ("invalid-json-only-white-space", InvalidJson, " \n"),
    ("invalid-json-unfinished", InvalidJson, r#"{"message":"hi""#),
    ("invalid-json-single-quotes", InvalidJson, "{'message':'hi'}"),
    ("invalid-json-unquoted-key", InvalidJson, r#"{message:"hi"}"#),
    ("duplicate-key-at-the-top", DuplicateKey, r#"{"message":"hi","message":"hi"}"#),
    ("unknown-field-in-capitals", UnknownField, r#"{"Message":"hi"}"#),
    ("unknown-field-empty", UnknownField, r#"{"":"hi"}"#),
    ("missing-field-all", MissingField, "{}"),
    ("missing-field-kind", MissingField, r#"{"destination_ref":"builds","message":"hi"}"#),
    ("missing-field-ref", MissingField, r#"{"destination_kind":"topic","message":"hi"}"#),
    (
        "missing-field-body",
        MissingField,
        r#"{"destination_kind":"topic","destination_ref":"builds"}"#,
    ),
    ("invalid-field-document-is-an-array", InvalidField, "[]"),
    ("invalid-field-document-is-null", InvalidField, "null"),
];

/// What is wrong with the fields after the destination.
const SENDS: &[(&str, Code, &str)] = &[
    ("invalid-json-trailing-comma", InvalidJson, r#""message":"hi","#),
    ("invalid-json-trailing-text", InvalidJson, r#""message":"hi"}x{"a":1"#),
    ("invalid-json-comment", InvalidJson, r#""message":"hi"/* a comment */"#),
    ("invalid-json-raw-control-character", InvalidJson, "\"message\":\"a\nb\""),
    ("invalid-json-unknown-escape", InvalidJson, r#""message":"\x41""#),
    ("invalid-json-short-unicode-escape", InvalidJson, r#""message":"\u041""#),
    ("invalid-json-no-break-space", InvalidJson, "\u{a0}\"message\":\"hi\""),
    ("lone-surrogate-in-the-message", LoneSurrogate, r#""message":"\ud83d""#),
    ("unknown-field", UnknownField, r#""message":"hi","to":"ada""#),
    ("unknown-field-of-the-api", UnknownField, r#""client_message_id":"deploy-1","message":"hi""#),
    ("invalid-field-priority", InvalidField, r#""message":"hi","priority":"urgent""#),
    ("invalid-field-priority-in-capitals", InvalidField, r#""message":"hi","priority":"Next""#),
    ("invalid-field-priority-empty", InvalidField, r#""message":"hi","priority":"""#),
    ("invalid-field-priority-number", InvalidField, r#""message":"hi","priority":1"#),
    ("invalid-field-meta-null", InvalidField, r#""message":"hi","meta":null"#),
    ("invalid-field-meta-array", InvalidField, r#""message":"hi","meta":[]"#),
    ("invalid-field-meta-string", InvalidField, r#""message":"hi","meta":"{}""#),
    ("invalid-field-message-null", InvalidField, r#""message":null"#),
    ("invalid-field-message-object", InvalidField, r#""message":{}"#),
    ("invalid-field-both-bodies", InvalidField, r#""body_base64":"aGk=","message":"hi""#),
    ("invalid-field-base64-null", InvalidField, r#""body_base64":null"#),
    ("invalid-field-base64-unpadded", InvalidField, r#""body_base64":"aGk""#),
    ("invalid-field-base64-url-safe", InvalidField, r#""body_base64":"-_-_""#),
    ("invalid-field-base64-trailing-bits", InvalidField, r#""body_base64":"aGl=""#),
    ("invalid-field-base64-line-break", InvalidField, r#""body_base64":"aGk=\n""#),
    ("invalid-field-base64-too-much-padding", InvalidField, r#""body_base64":"aGk==""#),
    ("invalid-field-reply-to-empty", InvalidField, r#""message":"hi","reply_to_id":"""#),
    ("invalid-field-reply-to-number", InvalidField, r#""message":"hi","reply_to_id":7"#),
    ("nul-in-field-reply-to", NulInField, r#""message":"hi","reply_to_id":"a\u0000b""#),
];

/// What is wrong with the meta.
const METAS: &[(&str, Code, &str)] = &[
    ("invalid-json-trailing-comma-in-an-array", InvalidJson, r#"{"a":[1,]}"#),
    ("invalid-json-nan", InvalidJson, r#"{"a":NaN}"#),
    ("invalid-json-infinity", InvalidJson, r#"{"a":-Infinity}"#),
    ("invalid-json-leading-zero", InvalidJson, r#"{"a":01}"#),
    ("invalid-json-plus-sign", InvalidJson, r#"{"a":+1}"#),
    ("invalid-json-point-without-digit", InvalidJson, r#"{"a":1.}"#),
    ("invalid-json-literal-in-capitals", InvalidJson, r#"{"a":True}"#),
    ("duplicate-key", DuplicateKey, r#"{"a":1,"a":2}"#),
    ("duplicate-key-with-equal-values", DuplicateKey, r#"{"a":1,"b":2,"a":1}"#),
    ("duplicate-key-in-another-spelling", DuplicateKey, r#"{"a":1,"\u0061":2}"#),
    ("duplicate-key-nested", DuplicateKey, r#"{"a":[{"b":{"":1,"":2}}]}"#),
    ("duplicate-key-as-a-pair", DuplicateKey, r#"{"😀":1,"\ud83d\ude00":2}"#),
    ("lone-surrogate-high", LoneSurrogate, r#"{"a":"\ud800"}"#),
    ("lone-surrogate-low", LoneSurrogate, r#"{"a":"\uDC00"}"#),
    ("lone-surrogate-reversed-pair", LoneSurrogate, r#"{"a":"\ude00\ud83d"}"#),
    ("lone-surrogate-twice-high", LoneSurrogate, r#"{"a":"\ud83d\ud83d"}"#),
    ("lone-surrogate-before-an-escape", LoneSurrogate, r#"{"a":"\ud83d\n"}"#),
    ("lone-surrogate-in-a-key", LoneSurrogate, r#"{"\udfff":1}"#),
    ("integer-out-of-range", IntegerOutOfRange, r#"{"a":9007199254740992}"#),
    ("integer-out-of-range-negative", IntegerOutOfRange, r#"{"a":-9007199254740992}"#),
    ("integer-out-of-range-64-bits", IntegerOutOfRange, r#"{"a":[18446744073709551616]}"#),
    ("number-out-of-range", NumberOutOfRange, r#"{"a":1e309}"#),
    ("number-out-of-range-negative", NumberOutOfRange, r#"{"a":-1e400}"#),
    ("number-out-of-range-by-rounding", NumberOutOfRange, r#"{"a":1.7976931348623159e308}"#),
];

pub(super) fn cases() -> Vec<Case> {
    let documents = DOCUMENTS.iter().map(|(name, code, text)| refused(name, *code, *text));
    let sends = SENDS.iter().map(|(name, code, rest)| refused(name, *code, to_builds(rest)));
    let metas = METAS.iter().map(|(name, code, meta)| with_meta(name, *code, meta));
    documents
        .chain(sends)
        .chain(metas)
        .chain(destinations())
        .chain(limits())
        .chain(bytes())
        .collect()
}

fn destinations() -> Vec<Case> {
    let to = |name, code, kind: &str, reference: &str| {
        let fields = format!(r#""destination_kind":{kind},"destination_ref":{reference}"#);
        refused(name, code, format!(r#"{{{fields},"message":"hi"}}"#))
    };
    let key = "0123456789abcdef".repeat(4);
    let quoted = |text: &str| format!("\"{text}\"");
    let topic = r#""topic""#;
    let dm = r#""dm""#;
    vec![
        to("invalid-field-kind", InvalidField, r#""mail""#, r#""builds""#),
        to("invalid-field-kind-in-capitals", InvalidField, r#""Topic""#, r#""builds""#),
        to("invalid-field-kind-null", InvalidField, "null", r#""builds""#),
        to("invalid-field-ref-number", InvalidField, topic, "7"),
        to("invalid-field-ref-empty", InvalidField, topic, r#""""#),
        to("invalid-field-ref-of-256-bytes", InvalidField, topic, &quoted(&"x".repeat(256))),
        // Bytes are counted, not characters.
        to("invalid-field-ref-of-128-characters", InvalidField, topic, &quoted(&"é".repeat(128))),
        to("invalid-field-dm-to-a-name", InvalidField, dm, r#""@ada""#),
        to("invalid-field-dm-in-capitals", InvalidField, dm, &quoted(&key.to_uppercase())),
        to("invalid-field-dm-too-short", InvalidField, dm, &quoted(&key[1..])),
        to("invalid-field-dm-too-long", InvalidField, dm, &quoted(&format!("{key}0"))),
        to("nul-in-field-ref", NulInField, topic, r#""a\u0000b""#),
    ]
}

/// One more than is allowed.
fn limits() -> Vec<Case> {
    let nested = |open: &str, close: &str, levels| {
        format!("{}1{}", open.repeat(levels), close.repeat(levels))
    };
    let in_key = |value: &str| format!(r#"{{"a":{value}}}"#);
    let string = |text: &str| in_key(&format!("\"{text}\""));
    // 21 digits each in canonical form: the limit is on what is hashed, not on what was typed.
    let growing = in_key(&format!("[{}]", vec!["1e20"; 800].join(",")));
    let reply = format!(r#""message":"hi","reply_to_id":"{}""#, "x".repeat(256));
    let outside_meta = format!(r#""message":{}"#, nested("[", "]", 65));
    vec![
        refused("invalid-field-reply-to-of-256-bytes", InvalidField, to_builds(&reply)),
        with_meta("integer-out-of-range-400-digits", IntegerOutOfRange, &in_key(&"1".repeat(400))),
        with_meta("nesting-too-deep-arrays", NestingTooDeep, &in_key(&nested("[", "]", 64))),
        with_meta("nesting-too-deep-objects", NestingTooDeep, &nested(r#"{"a":"#, "}", 65)),
        refused("nesting-too-deep-outside-meta", NestingTooDeep, to_builds(&outside_meta)),
        with_meta("meta-too-large", MetaTooLarge, &string(&"x".repeat(16_385 - 8))),
        // 16384 characters, one of them of two bytes.
        with_meta("meta-too-large-in-bytes", MetaTooLarge, &string(&("x".repeat(16_375) + "é"))),
        with_meta("meta-too-large-in-canonical-form", MetaTooLarge, &growing),
    ]
}

/// Documents that a JSON string cannot carry, or that a reader of the file could lose.
fn bytes() -> Vec<Case> {
    let of = |name, bytes: Vec<u8>| Case {
        name,
        input: Input::Bytes(bytes),
        expected: Expected::Refused(InvalidJson),
    };
    let message = |bytes: &[u8]| {
        let document = to_builds(r#""message":"*""#);
        let (before, after) = document.split_once('*').unwrap_or_default();
        [before.as_bytes(), bytes, after.as_bytes()].concat()
    };
    let good = message(b"hi");
    vec![
        of("invalid-json-byte-order-mark", [b"\xef\xbb\xbf", good.as_slice()].concat()),
        of("invalid-json-utf16", good.iter().flat_map(|byte| [0, *byte]).collect()),
        of("invalid-json-not-utf8", message(b"\xff")),
        of("invalid-json-utf8-cut-short", message(b"\xe2\x82")),
        of("invalid-json-utf8-overlong", message(b"\xc0\x80")),
        of("invalid-json-utf8-surrogate", message(b"\xed\xa0\x80")),
    ]
}

fn with_meta(name: &'static str, code: Code, meta: &str) -> Case {
    refused(name, code, document_with_meta(meta))
}

fn refused(name: &'static str, code: Code, document: impl Into<String>) -> Case {
    Case { name, input: Input::Raw(document.into()), expected: Expected::Refused(code) }
}
