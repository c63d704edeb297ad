//! A hundred thousand inputs that are nearly frames and bodies: the examples of the document with
//! bytes changed, cut, doubled and mixed. None makes a decoder panic, and whatever is still
//! accepted is a frame in every respect: it comes back from its own text, in one spelling.

use std::fmt::Debug;

use semel_testkit::dice::Dice;
use semel_wire::http::{
    Body, Join, List, MemberItem, NameItem, NewInvite, NewMesh, NewName, Problem, Profile,
    TopicItem,
};
use semel_wire::limits::{INLINE_BYTES_DEFAULT, frame_bytes_max};
use semel_wire::{FromBroker, FromDaemon};

use crate::examples;

const INPUTS: usize = 100_000;
const BYTES_MAX: usize = frame_bytes_max(INLINE_BYTES_DEFAULT);

/// Where decoders stumble: the borders of numbers, of text and of structure.
const TOKENS: &[&str] = &[
    "null",
    "true",
    "[]",
    "{}",
    "\"\"",
    "0",
    "-0",
    "-1",
    "1e999",
    "0.5",
    "9007199254740993",
    "18446744073709551616",
    "\\u0000",
    "\\ud800",
    "\\\"",
    "\"",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"type\":\"send\",",
    "[[[[[[[[[[",
    "\u{feff}",
    "\u{0}",
    " ",
];

/// A piece of it.
fn range(dice: &mut Dice, bytes: &[u8]) -> std::ops::Range<usize> {
    let start = dice.below(bytes.len() + 1);
    start..start + dice.below(bytes.len() - start + 1).min(40)
}

fn mutate(dice: &mut Dice, of: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = of.to_vec();
    for _ in 0..=dice.below(3) {
        let at = dice.below(bytes.len() + 1);
        match dice.below(7) {
            0 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << dice.below(8);
                }
            }
            1 => bytes.insert(at, dice.number().to_le_bytes()[0]),
            2 => drop(bytes.drain(range(dice, of).start.min(at)..at)),
            3 => bytes.truncate(at),
            4 => {
                let piece = bytes[range(dice, &bytes)].to_vec();
                bytes.splice(at..at, piece);
            }
            5 => {
                let token = TOKENS[dice.below(TOKENS.len())];
                let end = (at + dice.below(6)).min(bytes.len());
                bytes.splice(at..end, token.bytes());
            }
            _ => {
                let piece = other[range(dice, other)].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
    bytes
}

/// `true` when it was accepted.
fn comes_back<T: PartialEq + Debug, E: Debug>(
    bytes: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, E>,
    encode: impl Fn(&T) -> String,
) -> bool {
    let Ok(read) = decode(bytes) else { return false };
    let text = encode(&read);
    let again = decode(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error:?}"));
    assert_eq!(again, read, "{:?}", String::from_utf8_lossy(bytes));
    assert_eq!(encode(&again), text, "one spelling");
    true
}

fn body<T: Body + PartialEq + Debug>(bytes: &[u8]) -> bool {
    comes_back(bytes, T::decode, T::encode)
}

type Decoder = fn(&[u8]) -> bool;

/// Every example with the decoder that it is for.
fn examples() -> Vec<(String, Decoder)> {
    let from_daemon: Decoder =
        |bytes| comes_back(bytes, |b| FromDaemon::decode(b, BYTES_MAX), FromDaemon::encode);
    let from_broker: Decoder =
        |bytes| comes_back(bytes, |b| FromBroker::decode(b, BYTES_MAX), FromBroker::encode);
    let (key, token) = ("ab".repeat(32), semel_wire::link::token(&[7; 32]));
    let member = r#"{"items":[{"member_id":"018bcfe5-6800-7000-8000-000000000001","name":"ada","#
        .to_owned()
        + r#""role":"owner","status":"active","pubkey":null,"profile":{"status":"busy"},"#
        + r#""joined_at":"2027-01-15T08:00:00.000Z"}],"next":"/v1/x?after=a"}"#;
    let mut all: Vec<(String, Decoder)> = Vec::new();
    all.extend(examples::from_daemon().iter().map(|frame| (frame.encode(), from_daemon)));
    all.extend(examples::from_broker().iter().map(|frame| (frame.encode(), from_broker)));
    let bodies: [(String, Decoder); 9] = [
        (format!(r#"{{"slug":"m","owner_name":"ada","owner_pubkey":"{key}"}}"#), body::<NewMesh>),
        (r#"{"uses":3,"ttl_seconds":60,"role":"owner"}"#.to_owned(), body::<NewInvite>),
        (format!(r#"{{"token":"{token}","name":"ada","key_id":"k"}}"#), body::<Join>),
        (r#"{"summary":"s","status":"busy"}"#.to_owned(), body::<Profile>),
        (r#"{"name":"a/b"}"#.to_owned(), body::<NewName>),
        (r#"{"items":[{"name":"a/b"}],"next":null}"#.to_owned(), body::<List<NameItem>>),
        (
            r#"{"items":[{"name":"a/b","subscribed":true}],"next":null}"#.to_owned(),
            body::<List<TopicItem>>,
        ),
        (member, body::<List<MemberItem>>),
        (
            r#"{"type":"urn:semel:error:last_owner","title":"last owner","status":409,"#.to_owned()
                + r#""code":"last_owner","detail":"no","pointer":"/x"}"#,
            body::<Problem>,
        ),
    ];
    all.extend(bodies);
    all
}

#[test]
fn what_is_nearly_a_frame_is_refused_or_is_one() {
    let examples = examples();
    for (text, decode) in &examples {
        assert!(decode(text.as_bytes()), "an example is accepted: {text}");
    }
    let mut dice = Dice::new(0x5eed_0fa5_eed0_15e5);
    let (mut accepted, mut refused) = (0, 0);
    for number in 0..INPUTS {
        let (text, decode) = &examples[number % examples.len()];
        let (other, _) = &examples[dice.below(examples.len())];
        let bytes = mutate(&mut dice, text.as_bytes(), other.as_bytes());
        if decode(&bytes) {
            accepted += 1;
        } else {
            refused += 1;
        }
    }
    // Otherwise the inputs are too far from frames, or not different from them.
    assert!(accepted > INPUTS / 50 && refused > INPUTS / 2, "{accepted} {refused}");
}
