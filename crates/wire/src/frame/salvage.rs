//! What can be read of a frame that cannot be read as a whole. One message that makes no sense must
//! neither end the connection, on which it would come again and again, nor take the others in its
//! frame along.

use std::collections::BTreeMap;

use semel_core::code::Code;
use semel_core::json::{self, JsonLimits};
use semel_core::refusal::Refusal;
use serde_json::value::RawValue;

use super::{Delivery, FromBroker, History, Push, QueueTaken, read};
use crate::codec::Fields;
use crate::limits::{DELIVERIES_MAX, FRAME_DEPTH_MAX};

/// Something that could not be read, as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// Its number in the mesh's history, where that much could be read of a message.
    pub seq: Option<i64>,
    /// Its JSON, or whatever it was.
    pub text: String,
    /// What is wrong with it.
    pub why: Refusal,
}

/// Of a frame that makes no sense: what it is, and which question it answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addressed {
    /// Its type, if it says so.
    pub kind: Option<String>,
    /// The question's number, if it says so.
    pub request_id: Option<u64>,
}

impl Unread {
    /// What can be read of a whole frame's address.
    pub fn addressed(&self) -> Addressed {
        let Ok(fields) = serde_json::from_str::<Members<'_>>(&self.text) else {
            return Addressed::default();
        };
        let text = |name: &str| fields.get(name).map(|field| field.get());
        Addressed {
            kind: text("type").and_then(|text| serde_json::from_str(text).ok()),
            request_id: text("request_id").and_then(|text| serde_json::from_str(text).ok()),
        }
    }
}

/// A frame, and what could not be read of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Salvaged {
    /// With those of its messages that could be read; nothing if it makes no sense at all.
    pub frame: Option<FromBroker>,
    /// The rest.
    pub unread: Vec<Unread>,
}

type Members<'a> = BTreeMap<String, &'a RawValue>;

impl FromBroker {
    /// Reads one text frame of at most `bytes_max` bytes, or what can be read of it.
    pub fn salvage(text: &[u8], bytes_max: usize) -> Salvaged {
        let why = match Self::decode(text, bytes_max) {
            Ok(frame) => return Salvaged { frame: Some(frame), unread: Vec::new() },
            Err(why) => why,
        };
        let nonsense = |why| {
            let text = String::from_utf8_lossy(text).into_owned();
            Salvaged { frame: None, unread: vec![Unread { seq: None, text, why }] }
        };
        // Of two lists of one name nobody knows which counts.
        let is_ambiguous = why.code == Code::DuplicateKey && why.pointer.matches('/').count() < 2;
        if is_ambiguous || text.len() > bytes_max {
            return nonsense(why);
        }
        match messages(text, bytes_max) {
            Some(salvaged) => salvaged,
            None => nonsense(why),
        }
    }
}

/// A frame that is a list of messages, one by one.
fn messages(text: &[u8], bytes_max: usize) -> Option<Salvaged> {
    let mut fields: Members<'_> = serde_json::from_slice(text).ok()?;
    let list: Vec<&RawValue> = serde_json::from_str(fields.remove("deliveries")?.get()).ok()?;
    if list.len() > DELIVERIES_MAX {
        return None;
    }
    let (mut deliveries, mut unread) = (Vec::new(), Vec::new());
    for item in list {
        match delivery(item.get(), bytes_max) {
            Ok(delivery) => deliveries.push(delivery),
            Err(why) => unread.push(Unread { seq: seq(item.get()), text: item.to_string(), why }),
        }
    }
    let kind: String = serde_json::from_str(fields.remove("type")?.get()).ok()?;
    let number = |name: &str| -> Option<u64> { serde_json::from_str(fields.get(name)?.get()).ok() };
    let signed = |name: &str| -> Option<i64> { serde_json::from_str(fields.get(name)?.get()).ok() };
    let frame = match kind.as_str() {
        "push" => FromBroker::Push(Push { deliveries }),
        "history" => {
            let (request_id, next_after_seq) = (number("request_id")?, signed("next_after_seq"));
            FromBroker::History(History { request_id, deliveries, next_after_seq })
        }
        "queue_taken" => {
            let request_id = number("request_id")?;
            let lease_until = semel_core::clock::UnixMs(signed("lease_until")?);
            FromBroker::QueueTaken(QueueTaken { request_id, deliveries, lease_until })
        }
        _ => return None,
    };
    Some(Salvaged { frame: Some(frame), unread })
}

fn delivery(text: &str, bytes_max: usize) -> Result<Delivery, Refusal> {
    let limits = JsonLimits { bytes_max, depth_max: FRAME_DEPTH_MAX };
    read(Fields::of(json::read(text.as_bytes(), limits)?)?)
}

fn seq(text: &str) -> Option<i64> {
    let fields: Members<'_> = serde_json::from_str(text).ok()?;
    let seq: i64 = serde_json::from_str(fields.get("seq")?.get()).ok()?;
    (seq >= 0).then_some(seq)
}
