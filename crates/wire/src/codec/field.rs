//! How each type of value is spelt in a frame. Every type has one spelling; a value that is read
//! is valid for its type.

use std::borrow::Cow;
use std::fmt::{Display, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use semel_core::clock::UnixMs;
use semel_core::code::Code;
use semel_core::envelope::{DestinationKind, Priority};
use semel_core::fingerprint::{BodyHash, Fingerprint};
use semel_core::hex::Hex;
use semel_core::id::{ClientMessageId, UuidId};
use semel_core::json::Node;
use semel_core::refusal::Refusal;
use serde_json::Value;

use super::{Fields, NUMBER_MAX, Object, Record};

/// A value with one spelling in JSON.
pub(crate) trait Field: Sized {
    fn read(node: Node<'_>) -> Result<Self, Refusal>;
    fn write(&self, out: &mut String);
}

/// Every record is also a value: an object of its own.
impl<R: Record> Field for R {
    fn read(node: Node<'_>) -> Result<Self, Refusal> {
        let mut fields = Fields::of(node)?;
        let record = R::read(&mut fields)?;
        fields.finish()?;
        Ok(record)
    }

    fn write(&self, out: &mut String) {
        let mut object = Object::open(out);
        self.write(&mut object);
        object.close();
    }
}

impl Field for String {
    fn read(node: Node<'_>) -> Result<Self, Refusal> {
        text(node).map(Cow::into_owned)
    }

    fn write(&self, out: &mut String) {
        write_text(self, out);
    }
}

impl Field for bool {
    fn read(node: Node<'_>) -> Result<Self, Refusal> {
        let Node::Bool(flag) = node else { return Err(invalid("must be true or false")) };
        Ok(flag)
    }

    fn write(&self, out: &mut String) {
        out.push_str(if *self { "true" } else { "false" });
    }
}

impl Field for u64 {
    fn read(node: Node<'_>) -> Result<Self, Refusal> {
        let number = if let Node::Number(number) = node { number.as_u64() } else { None };
        let number = number.filter(|number| *number <= NUMBER_MAX);
        number.ok_or_else(|| invalid("must be a whole number from 0 to 2^53 − 1"))
    }

    fn write(&self, out: &mut String) {
        write_shown(self, out);
    }
}

/// Numbers that databases hold as signed ones: history numbers and epochs, never below 0.
impl Field for i64 {
    fn read(node: Node<'_>) -> Result<Self, Refusal> {
        let number = <u64 as Field>::read(node)?;
        Self::try_from(number).map_err(|_| invalid("must be a whole number from 0 to 2^53 − 1"))
    }

    fn write(&self, out: &mut String) {
        write_shown(self, out);
    }
}

impl Field for UnixMs {
    fn read(node: Node<'_>) -> Result<Self, Refusal> {
        <i64 as Field>::read(node).map(Self)
    }

    fn write(&self, out: &mut String) {
        Field::write(&self.0, out);
    }
}

/// Bytes as padded standard base64, the form without stray bits only.
impl Field for Vec<u8> {
    fn read(node: Node<'_>) -> Result<Self, Refusal> {
        STANDARD.decode(&*text(node)?).map_err(|_| invalid("must be padded standard base64"))
    }

    fn write(&self, out: &mut String) {
        out.push('"');
        STANDARD.encode_string(self, out);
        out.push('"');
    }
}

impl<const N: usize> Field for Hex<N> {
    fn read(node: Node<'_>) -> Result<Self, Refusal> {
        Self::parse(&text(node)?)
    }

    fn write(&self, out: &mut String) {
        write_plain(&self.to_string(), out);
    }
}

impl Field for Fingerprint {
    fn read(node: Node<'_>) -> Result<Self, Refusal> {
        <Hex<32> as Field>::read(node).map(|hex| Self(hex.0))
    }

    fn write(&self, out: &mut String) {
        write_plain(&self.to_hex(), out);
    }
}

impl Field for BodyHash {
    fn read(node: Node<'_>) -> Result<Self, Refusal> {
        <Hex<32> as Field>::read(node).map(|hex| Self(hex.0))
    }

    fn write(&self, out: &mut String) {
        write_plain(&self.to_hex(), out);
    }
}

impl Field for ClientMessageId {
    fn read(node: Node<'_>) -> Result<Self, Refusal> {
        Self::parse(&text(node)?)
    }

    fn write(&self, out: &mut String) {
        write_text(self.as_str(), out);
    }
}

impl<Kind> Field for UuidId<Kind> {
    fn read(node: Node<'_>) -> Result<Self, Refusal> {
        Self::parse(&text(node)?).ok_or_else(|| invalid("must be a hyphenated, lower-case UUID"))
    }

    fn write(&self, out: &mut String) {
        out.push('"');
        write_shown(self, out);
        out.push('"');
    }
}

impl Field for DestinationKind {
    fn read(node: Node<'_>) -> Result<Self, Refusal> {
        one_of(node, Self::parse, "must be one of topic, dm, queue")
    }

    fn write(&self, out: &mut String) {
        write_plain(self.as_str(), out);
    }
}

impl Field for Priority {
    fn read(node: Node<'_>) -> Result<Self, Refusal> {
        one_of(node, Self::parse, "must be one of now, next, low")
    }

    fn write(&self, out: &mut String) {
        write_plain(self.as_str(), out);
    }
}

/// What is checked before it is kept need not be copied before.
fn text(node: Node<'_>) -> Result<Cow<'_, str>, Refusal> {
    match node {
        Node::Text(text) => Ok(text),
        Node::Null | Node::Bool(_) | Node::Number(_) | Node::List(_) | Node::Object(_) => {
            Err(invalid("must be a string"))
        }
    }
}

/// A word of a list.
pub(crate) fn one_of<T>(
    node: Node<'_>,
    parse: fn(&str) -> Option<T>,
    detail: &str,
) -> Result<T, Refusal> {
    parse(&text(node)?).ok_or_else(|| invalid(detail))
}

/// A string, with the escapes that it needs.
pub(crate) fn write_text(text: &str, out: &mut String) {
    if text.bytes().all(|byte| byte >= 0x20 && byte != b'"' && byte != b'\\') {
        write_plain(text, out);
    } else {
        write_shown(Value::from(text), out);
    }
}

fn write_shown(value: impl Display, out: &mut String) {
    // Writing to memory does not fail.
    let _ = write!(out, "{value}");
}

/// A string that is known to need no escapes.
pub(crate) fn write_plain(text: &str, out: &mut String) {
    out.push('"');
    out.push_str(text);
    out.push('"');
}

pub(crate) fn invalid(detail: &str) -> Refusal {
    Refusal::new(Code::InvalidField, detail)
}
