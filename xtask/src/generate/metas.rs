//! Accepted meta without its numbers: the order of keys, strings, nesting and size (RFC 8785).

use super::accepted::to_builds;
use super::vectors::{Case, Expected, Input};

/// A name, the meta of a document, and its canonical form.
const METAS: &[(&str, &str, &str)] = &[
    ("meta-one-key", r#"{"a":1}"#, r#"{"a":1}"#),
    ("meta-literals", r#"{"f":false,"n":null,"t":true}"#, r#"{"f":false,"n":null,"t":true}"#),
    ("meta-null-is-not-absence", r#"{"a":null}"#, r#"{"a":null}"#),
    ("meta-number-in-a-string", r#"{"a":"1"}"#, r#"{"a":"1"}"#),
    ("meta-empty-containers", r#"{"a":{},"b":[],"c":""}"#, r#"{"a":{},"b":[],"c":""}"#),
    ("meta-empty-key", r#"{"":{"":[""]}}"#, r#"{"":{"":[""]}}"#),
    ("meta-mentions", r#"{"mentions":["ada","grace"]}"#, r#"{"mentions":["ada","grace"]}"#),
    ("meta-one-key-in-two-objects", r#"{"a":{"x":1},"b":{"x":1}}"#, r#"{"a":{"x":1},"b":{"x":1}}"#),
    ("meta-keys-named-like-fields", r#"{"message":1,"meta":{}}"#, r#"{"message":1,"meta":{}}"#),
    ("meta-keys-by-case", r#"{"a":1,"B":2,"b":3,"A":4}"#, r#"{"A":4,"B":2,"a":1,"b":3}"#),
    ("meta-keys-by-prefix", r#"{"b":1,"aa":2,"a":3,"":4}"#, r#"{"":4,"a":3,"aa":2,"b":1}"#),
    ("meta-keys-of-digits", r#"{"9":1,"10":2,"1":3}"#, r#"{"1":3,"10":2,"9":1}"#),
    (
        "meta-nested",
        r#"{"z":{"d":[{"b":1,"a":2}],"c":{"y":{},"x":[]}},"a":0}"#,
        r#"{"a":0,"z":{"c":{"x":[],"y":{}},"d":[{"a":2,"b":1}]}}"#,
    ),
    (
        "meta-array-keeps-its-order",
        r#"{"a":[3,"b",1,null,[2,[]],"a",true,{}]}"#,
        r#"{"a":[3,"b",1,null,[2,[]],"a",true,{}]}"#,
    ),
    ("meta-with-white-space", "{ \"a\" :\t[ 1 ,\r\n2 ] }", r#"{"a":[1,2]}"#),
    ("meta-keys-in-escapes", r#"{"\u0062":1,"\u0061":2}"#, r#"{"a":2,"b":1}"#),
    (
        "meta-keys-by-utf16-units-rfc8785",
        r#"{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh",
            "1":"One","\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control",
            "\u00f6":"Latin Small Letter O With Diaeresis"}"#,
        concat!(
            r#"{"\r":"Carriage Return","1":"One","#,
            "\"\u{80}\":\"Control\",\"ö\":\"Latin Small Letter O With Diaeresis\",",
            "\"€\":\"Euro Sign\",\"😀\":\"Emoji: Grinning Face\",",
            "\"\u{fb33}\":\"Hebrew Letter Dalet With Dagesh\"}",
        ),
    ),
    (
        "meta-keys-around-the-surrogates",
        r#"{"\uffff":1,"\ud800\udc00":2,"\ue000":3,"\ud7ff":4,"\udbff\udfff":5}"#,
        "{\"\u{d7ff}\":4,\"\u{10000}\":2,\"\u{10ffff}\":5,\"\u{e000}\":3,\"\u{ffff}\":1}",
    ),
    (
        "meta-keys-that-differ-after-a-common-start",
        r#"{"x":{"a\ufb33":1,"a😀":2,"a":3}}"#,
        "{\"x\":{\"a\":3,\"a😀\":2,\"a\u{fb33}\":1}}",
    ),
    (
        "meta-keys-sort-before-they-are-escaped",
        r#"{"\\":1,"a":2,"/":3,"\"":4,"\n":5,"A":6}"#,
        r#"{"\n":5,"\"":4,"/":3,"A":6,"\\":1,"a":2}"#,
    ),
    (
        "meta-keys-of-control-characters",
        r#"{"\u001F":1,"\u0000":2,"\b":3,"\u007f":4}"#,
        "{\"\\u0000\":2,\"\\b\":3,\"\\u001f\":1,\"\u{7f}\":4}",
    ),
    ("meta-quotes-and-backslashes", r#"{"a":"\"\\\u0022\u005C"}"#, r#"{"a":"\"\\\"\\"}"#),
    ("meta-solidus", r#"{"a":"\/ / \u002f"}"#, r#"{"a":"/ / /"}"#),
    ("meta-html-characters", r#"{"a":"<b>&'</b>"}"#, r#"{"a":"<b>&'</b>"}"#),
    ("meta-ascii-in-escapes", r#"{"a":"\u0041\u007e\u0020"}"#, r#"{"a":"A~ "}"#),
    ("meta-delete-and-c1", r#"{"a":"\u007f\u0080\u009F"}"#, "{\"a\":\"\u{7f}\u{80}\u{9f}\"}"),
    ("meta-line-separators", r#"{"a":"\u2028\u2029"}"#, "{\"a\":\"\u{2028}\u{2029}\"}"),
    ("meta-byte-order-mark-inside", r#"{"a":"\uFEFF"}"#, "{\"a\":\"\u{feff}\"}"),
    (
        "meta-noncharacters",
        r#"{"a":"\ufdd0\uffff\udbff\udfff"}"#,
        "{\"a\":\"\u{fdd0}\u{ffff}\u{10ffff}\"}",
    ),
    ("meta-pair-in-escapes", r#"{"a":"\uD83D\ude00"}"#, "{\"a\":\"😀\"}"),
    ("meta-composed", "{\"a\":\"\u{e9}\"}", "{\"a\":\"\u{e9}\"}"),
    ("meta-decomposed", "{\"a\":\"e\u{301}\"}", "{\"a\":\"e\u{301}\"}"),
    (
        "meta-rfc8785-example",
        r#"{
            "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
            "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
            "literals": [null, true, false]
        }"#,
        concat!(
            r#"{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"#,
            r#""string":"€$\u000f\nA'B\"\\\\\"/"}"#,
        ),
    ),
];

pub(super) fn cases() -> Vec<Case> {
    let metas = METAS.iter().map(|(name, given, canonical)| with_meta(name, given, canonical));
    metas.chain(built()).collect()
}

/// Every control character, and the limits.
fn built() -> Vec<Case> {
    let controls: String = (0..0x20).map(|byte| format!("\\u{byte:04X}")).collect();
    let short = [(8, "\\b"), (9, "\\t"), (10, "\\n"), (12, "\\f"), (13, "\\r")];
    let canonical: String = (0..0x20)
        .map(|byte| match short.iter().find(|(of, _)| *of == byte) {
            Some((_, escape)) => (*escape).to_owned(),
            None => format!("\\u{byte:04x}"),
        })
        .collect();
    // The meta object itself is the first of its 64 levels.
    let arrays = format!(r#"{{"a":{}{}}}"#, "[".repeat(63), "]".repeat(63));
    let objects = format!("{}1{}", r#"{"a":"#.repeat(64), "}".repeat(64));
    let largest = format!(r#"{{"a":"{}"}}"#, "x".repeat(16_384 - 8));
    let shrinking = format!(r#"{{"a":"{}"}}"#, r"\u0061".repeat(3000));
    let shrunk = format!(r#"{{"a":"{}"}}"#, "a".repeat(3000));
    let value = |text: &str| format!(r#"{{"a":"{text}"}}"#);
    vec![
        with_meta("meta-every-control-character", &value(&controls), &value(&canonical)),
        raw("meta-of-64-levels-of-arrays", &arrays, &arrays),
        raw("meta-of-64-levels-of-objects", &objects, &objects),
        with_meta("meta-of-16384-bytes", &largest, &largest),
        with_meta("meta-longer-than-its-canonical-form", &shrinking, &shrunk),
    ]
}

/// A meta that is canonical already is kept by every writer; any other is there for its spelling.
fn with_meta(name: &'static str, given: &str, canonical: &str) -> Case {
    if given != canonical {
        return raw(name, given, canonical);
    }
    let input = Input::Envelope(document_with_meta(given));
    Case { name, input, expected: Expected::Accepted { canonical_meta: canonical.to_owned() } }
}

pub(super) fn raw(name: &'static str, given: &str, canonical: &str) -> Case {
    let input = Input::Raw(document_with_meta(given));
    Case { name, input, expected: Expected::Accepted { canonical_meta: canonical.to_owned() } }
}

/// A send to the topic `builds` with this meta.
pub(super) fn document_with_meta(meta: &str) -> String {
    to_builds(&format!(r#""message":"hi","meta":{meta}"#))
}
