//! The strict reader against cases by hand, and against a general reader by property.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn read(text: &str) -> Result<Value, (Code, String)> {
    let limits = JsonLimits { bytes_max: 1 << 20, depth_max: 4 };
    parse(text.as_bytes(), limits).map_err(|refusal| (refusal.code, refusal.pointer))
}

fn refused(text: &str, code: Code, pointer: &str) {
    assert_eq!(read(text), Err((code, pointer.to_owned())), "{text}");
}

#[test]
fn reads_what_json_is() {
    assert_eq!(
        read(" {\"a\" : [1, -2.5e1, true, false, null, \"x\"]}\r\n\t"),
        Ok(json!({"a": [1, -25.0, true, false, null, "x"]}))
    );
    assert_eq!(read("[]"), Ok(json!([])));
    assert_eq!(
        read(r#""\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00é""#),
        Ok(json!("\"\\/\u{8}\u{c}\n\r\té😀é"))
    );
}

#[test]
fn refuses_what_json_is_not() {
    for text in [
        "",
        " ",
        "{",
        "[",
        "[1,]",
        "{\"a\":1,}",
        "{a:1}",
        "{\"a\" 1}",
        "[1 2]",
        "{\"a\":1 \"b\":2}",
        "nul",
        "tru",
        "NaN",
        "Infinity",
        "-",
        "+1",
        "01",
        "1.",
        ".5",
        "1e",
        "1e+",
        "0x1",
        "\"",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\u12g4\"",
        "\"\\u+123\"",
        "\"a\nb\"",
        "\"\\",
        "1 1",
        "\u{feff}1",
        "'a'",
        "[1]]",
        "\u{a0}1",
    ] {
        let code = read(text).expect_err(text).0;
        assert_eq!(code, Code::InvalidJson, "{text:?}");
    }
    let not_utf8 = parse(b"\"\xff\"", JsonLimits { bytes_max: 9, depth_max: 9 });
    assert_eq!(not_utf8.map_err(|r| r.code), Err(Code::InvalidJson));
}

#[test]
fn names_the_place_of_a_refusal() {
    refused(r#"{"a":{"b":1,"b":2}}"#, Code::DuplicateKey, "/a/b");
    refused(r#"{"a":1,"\u0061":2}"#, Code::DuplicateKey, "/a");
    refused(r#"{"x/y":[0,{"~":1e999}]}"#, Code::NumberOutOfRange, "/x~1y/1/~0");
    refused(r#"[0,"\ud800"]"#, Code::LoneSurrogate, "/1");
}

#[test]
fn refuses_lone_surrogates_of_every_kind() {
    for text in [
        r#""\ud800""#,
        r#""\udc00""#,
        r#""\ud800x""#,
        r#""\ud800\n""#,
        r#""\ud800\ud800""#,
        r#""\ud800\u0041""#,
        r#""\udfff\ud800""#,
    ] {
        refused(text, Code::LoneSurrogate, "");
    }
    refused(r#"{"\ud800":1}"#, Code::LoneSurrogate, "");
}

#[test]
fn keeps_integers_that_a_double_holds_and_refuses_the_next() {
    assert_eq!(read("9007199254740991"), Ok(json!(9_007_199_254_740_991_i64)));
    assert_eq!(read("-9007199254740991"), Ok(json!(-9_007_199_254_740_991_i64)));
    for text in
        ["9007199254740992", "-9007199254740992", "9223372036854775808", "1".repeat(400).as_str()]
    {
        refused(text, Code::IntegerOutOfRange, "");
    }
    assert_eq!(read("9007199254740993.0"), Ok(json!(9_007_199_254_740_992.0)));
    assert_eq!(read("1e-400"), Ok(json!(0.0)));
    refused("-1.8e308", Code::NumberOutOfRange, "");
}

#[test]
fn counts_containers_not_commas() {
    assert!(read("[[[[1]]]]").is_ok());
    refused("[[[[[]]]]]", Code::NestingTooDeep, "/0/0/0/0");
    let many = format!("[{}]", vec!["[]"; 1000].join(","));
    assert!(read(&many).is_ok());
    let deep = "[".repeat(500_000);
    assert_eq!(read(&deep).map_err(|e| e.0), Err(Code::NestingTooDeep));
}

#[test]
fn bounds_the_text() {
    let limits = JsonLimits { bytes_max: 3, depth_max: 1 };
    assert!(parse(b"123", limits).is_ok());
    assert_eq!(parse(b"1234", limits).map_err(|r| r.code), Err(Code::PayloadTooLarge));
}

fn arbitrary_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-INTEGER_MAX..=INTEGER_MAX).prop_map(Value::from),
        any::<f64>().prop_filter("finite", |n| n.is_finite()).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn reads_back_whatever_a_general_writer_writes(value in arbitrary_json()) {
        let text = serde_json::to_string(&value).unwrap();
        prop_assert_eq!(read(&text).map_err(|e| e.0), Ok(value));
    }

    #[test]
    fn accepts_nothing_that_a_general_reader_refuses(
        text in r#"[\[\]{}",:\\u0-9a-f.eE+\- \ntrl]{0,24}"#,
    ) {
        if let Ok(ours) = read(&text) {
            let theirs: Value = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(ours.to_string(), theirs.to_string().replace("-0,", "0,"), "{}", text);
        }
    }

    #[test]
    fn never_panics_on_bytes(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = parse(&bytes, JsonLimits { bytes_max: 1 << 20, depth_max: 4 });
    }
}

#[test]
fn the_end_of_a_run_is_found_wherever_it_is() {
    for length in 0..20 {
        let plain: Vec<u8> =
            (0..length).map(|n| [b'x', 0x20, 0x7f, 0xc3, b'!', b'#'][n % 6]).collect();
        assert_eq!(plain_length(&plain), None);
        for end in [b'"', b'\\', 0x00, 0x1f] {
            for place in 0..length {
                let mut text = plain.clone();
                text[place] = end;
                assert_eq!(plain_length(&text), Some(place), "{text:?}");
                text[place..].fill(b'"');
                assert_eq!(plain_length(&text), Some(place), "{text:?}");
            }
        }
    }
}
