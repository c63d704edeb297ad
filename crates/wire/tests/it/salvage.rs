//! What can be read of a frame that cannot be read as a whole, and what must not leave.

use semel_core::clock::UnixMs;
use semel_core::code::Code;
use semel_core::limits::INTEGER_MAX;
use semel_wire::frame::{FromBroker, FromDaemon, Push, SendFrame};

use crate::examples::{delivery, send};

const BYTES_MAX: usize = 1 << 20;

fn push(items: &[String]) -> String {
    format!(r#"{{"type":"push","deliveries":[{}]}}"#, items.join(","))
}

/// The JSON of one good delivery.
fn item() -> String {
    let text = FromBroker::Push(Push { deliveries: vec![delivery()] }).encode();
    let list = text.split_once('[').unwrap().1;
    list.strip_suffix("]}").unwrap().to_owned()
}

fn with(field: &str) -> String {
    item().replacen('{', &format!("{{{field},"), 1)
}

#[test]
fn a_frame_that_can_be_read_is_read() {
    let frame = FromBroker::Push(Push { deliveries: vec![delivery()] });
    let salvaged = FromBroker::salvage(frame.encode().as_bytes(), BYTES_MAX);
    assert_eq!((salvaged.frame, salvaged.unread), (Some(frame), vec![]));
}

#[test]
fn one_message_that_makes_no_sense_takes_no_other_along() {
    let deep = format!(r#""x":{}{}"#, "[".repeat(50), "]".repeat(50));
    let twice = format!(r#""seq":{}"#, delivery().seq);
    for (bad, code) in [
        (with(r#""colour":"red""#), Code::UnknownField),
        (with(&twice), Code::DuplicateKey),
        (with(&deep), Code::NestingTooDeep),
        (item().replacen("\"seq\"", "\"sec\"", 1), Code::MissingField),
        ("7".to_owned(), Code::InvalidField),
    ] {
        let text = push(&[item(), bad.clone(), item()]);
        let salvaged = FromBroker::salvage(text.as_bytes(), BYTES_MAX);
        let good = FromBroker::Push(Push { deliveries: vec![delivery(), delivery()] });
        assert_eq!(salvaged.frame, Some(good), "{bad}");
        let [unread] = salvaged.unread.try_into().unwrap();
        assert_eq!((unread.text.as_str(), unread.why.code), (bad.as_str(), code));
        let seq = bad.contains("\"seq\"").then(|| delivery().seq);
        assert_eq!(unread.seq, seq, "{bad}");
    }
}

#[test]
fn what_makes_no_sense_at_all_is_kept_as_it_came() {
    let two_lists = format!(r#"{{"type":"push","deliveries":[{}],"deliveries":[]}}"#, item());
    let unknown = r#"{"type":"weather","deliveries":[]}"#.to_owned();
    for text in ["nonsense".to_owned(), "[]".to_owned(), two_lists, unknown] {
        let salvaged = FromBroker::salvage(text.as_bytes(), BYTES_MAX);
        assert_eq!(salvaged.frame, None, "{text}");
        assert_eq!(salvaged.unread.len(), 1);
        assert_eq!((salvaged.unread[0].seq, &salvaged.unread[0].text), (None, &text));
    }
    let bytes = FromBroker::salvage(&[0xff, 0xfe], BYTES_MAX);
    assert_eq!((bytes.frame, bytes.unread.len()), (None, 1));
}

/// The check before a send leaves and the broker's reading agree.
#[test]
fn what_leaves_can_be_read() {
    let frames = [
        send(),
        SendFrame { destination_ref: String::new(), ..send() },
        SendFrame { destination_ref: "a\0b".to_owned(), ..send() },
        SendFrame { reply_to_id: Some(String::new()), ..send() },
        SendFrame { reply_to_id: Some("x".repeat(256)), ..send() },
        SendFrame { meta: r#"{"b":1,"a":2}"#.to_owned(), ..send() },
        SendFrame { meta: "{".to_owned(), ..send() },
        SendFrame { meta: "[]".to_owned(), ..send() },
        SendFrame { enqueued_at: UnixMs(-1), ..send() },
        SendFrame { enqueued_at: UnixMs(INTEGER_MAX + 1), ..send() },
        SendFrame { body: vec![7; BYTES_MAX / 4 * 3], ..send() },
        SendFrame { body: vec![7; BYTES_MAX / 4 * 3 - 4096], ..send() },
    ];
    let mut readable = 0;
    for frame in frames {
        let (checked, id) = (frame.check(BYTES_MAX), frame.clone());
        let text = FromDaemon::Send(frame).encode();
        let read = FromDaemon::decode(text.as_bytes(), BYTES_MAX);
        assert_eq!(checked.is_ok(), read.is_ok(), "{:?} {:?} {}", checked, read.err(), id.meta);
        readable += usize::from(checked.is_ok());
    }
    assert_eq!(readable, 2);
}
