//! `docs/protocol.md` forgets no frame, and its examples are the exact bytes.

use semel_wire::close::{CloseCode, CloseKind};
use semel_wire::features::Feature;
use semel_wire::{FromBroker, FromDaemon};

use crate::examples::{from_broker, from_daemon};

const DOCUMENT: &str = include_str!("../../../../docs/protocol.md");

/// The example under the heading of a frame.
fn example(kind: &str) -> &'static str {
    let heading = format!("\n### `{kind}`\n");
    let (_, section) = DOCUMENT.split_once(&heading).unwrap_or_else(|| panic!("no {heading:?}"));
    let section = section.split("\n### ").next().unwrap();
    let (_, example) = section.split_once("```json\n").unwrap_or_else(|| panic!("{kind}: none"));
    example.split_once("\n```").unwrap().0
}

#[test]
fn every_frame_is_there_with_its_exact_bytes() {
    for frame in from_daemon() {
        assert_eq!(frame.encode(), example(frame.type_name()));
    }
    for frame in from_broker() {
        assert_eq!(frame.encode(), example(frame.type_name()));
    }
}

#[test]
fn there_is_no_frame_that_the_code_does_not_have() {
    let headings = DOCUMENT.lines().filter_map(|line| line.strip_prefix("### `"));
    for kind in headings.filter_map(|heading| heading.strip_suffix('`')) {
        let known = FromDaemon::TYPES.contains(&kind) || FromBroker::TYPES.contains(&kind);
        assert!(known, "{kind} is documented and unknown");
    }
}

#[test]
fn close_codes_kinds_and_features_are_there() {
    for (_, number, _) in CloseCode::ALL {
        assert!(DOCUMENT.contains(&format!("\n| `{number}` |")), "{number}");
    }
    for kind in CloseKind::ALL {
        assert!(DOCUMENT.contains(&format!("`{kind}`")), "{kind}");
    }
    for feature in Feature::ALL {
        assert!(DOCUMENT.contains(&format!("\n| `{feature}` |")), "{feature}");
    }
}

/// Every field that an example shows has a row in the table of its section.
#[test]
fn every_field_is_explained() {
    let frames = from_daemon().into_iter().map(|frame| (frame.type_name(), frame.encode()));
    let others = from_broker().into_iter().map(|frame| (frame.type_name(), frame.encode()));
    for (kind, text) in frames.chain(others) {
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let section = DOCUMENT.split_once(&format!("\n### `{kind}`\n")).unwrap().1;
        let section = section.split("\n### ").next().unwrap();
        for field in value.as_object().unwrap().keys().filter(|field| *field != "type") {
            assert!(section.contains(&format!("\n| `{field}`")), "{kind}: {field}");
        }
    }
}
