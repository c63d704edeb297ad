//! How each type of value is spelt in a frame. Every type has one spelling; a value that is read
//! is valid for its type.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use semel_core::clock::UnixMs;
use semel_core::code::Code;
use semel_core::envelope::{DestinationKind, Priority};
use semel_core::fingerprint::{BodyHash, Fingerprint};
use semel_core::hex::Hex;
use semel_core::id::{ClientMessageId, UuidId};
use semel_core::refusal::Refusal;
use serde_json::Value;

use super::{Fields, NUMBER_MAX, Object, Record};

/// A value with one spelling in JSON.
pub(crate) trait Field: Sized {
    fn read(value: Value) -> Result<Self, Refusal>;
    fn write(&self, out: &mut String);
}

/// Every record is also a value: an object of its own.
impl<R: Record> Field for R {
    fn read(value: Value) -> Result<Self, Refusal> {
        let mut fields = Fields::of(value)?;
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
    fn read(value: Value) -> Result<Self, Refusal> {
        match value {
            Value::String(text) => Ok(text),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Array(_)
            | Value::Object(_) => Err(invalid("must be a string")),
        }
    }

    fn write(&self, out: &mut String) {
        write_text(self, out);
    }
}

impl Field for bool {
    fn read(value: Value) -> Result<Self, Refusal> {
        value.as_bool().ok_or_else(|| invalid("must be true or false"))
    }

    fn write(&self, out: &mut String) {
        out.push_str(if *self { "true" } else { "false" });
    }
}

impl Field for u64 {
    fn read(value: Value) -> Result<Self, Refusal> {
        let number = value.as_u64().filter(|number| *number <= NUMBER_MAX);
        number.ok_or_else(|| invalid("must be a whole number from 0 to 2^53 − 1"))
    }

    fn write(&self, out: &mut String) {
        out.push_str(&self.to_string());
    }
}

/// Numbers that databases hold as signed ones: history numbers and epochs, never below 0.
impl Field for i64 {
    fn read(value: Value) -> Result<Self, Refusal> {
        let number = <u64 as Field>::read(value)?;
        Self::try_from(number).map_err(|_| invalid("must be a whole number from 0 to 2^53 − 1"))
    }

    fn write(&self, out: &mut String) {
        out.push_str(&self.to_string());
    }
}

impl Field for UnixMs {
    fn read(value: Value) -> Result<Self, Refusal> {
        <i64 as Field>::read(value).map(Self)
    }

    fn write(&self, out: &mut String) {
        Field::write(&self.0, out);
    }
}

/// Bytes as padded standard base64, the form without stray bits only.
impl Field for Vec<u8> {
    fn read(value: Value) -> Result<Self, Refusal> {
        let text = <String as Field>::read(value)?;
        STANDARD.decode(text).map_err(|_| invalid("must be padded standard base64"))
    }

    fn write(&self, out: &mut String) {
        out.push('"');
        STANDARD.encode_string(self, out);
        out.push('"');
    }
}

impl<const N: usize> Field for Hex<N> {
    fn read(value: Value) -> Result<Self, Refusal> {
        Self::parse(&<String as Field>::read(value)?)
    }

    fn write(&self, out: &mut String) {
        write_plain(&self.to_string(), out);
    }
}

impl Field for Fingerprint {
    fn read(value: Value) -> Result<Self, Refusal> {
        <Hex<32> as Field>::read(value).map(|hex| Self(hex.0))
    }

    fn write(&self, out: &mut String) {
        write_plain(&self.to_hex(), out);
    }
}

impl Field for BodyHash {
    fn read(value: Value) -> Result<Self, Refusal> {
        <Hex<32> as Field>::read(value).map(|hex| Self(hex.0))
    }

    fn write(&self, out: &mut String) {
        write_plain(&self.to_hex(), out);
    }
}

impl Field for ClientMessageId {
    fn read(value: Value) -> Result<Self, Refusal> {
        Self::parse(&<String as Field>::read(value)?)
    }

    fn write(&self, out: &mut String) {
        write_text(self.as_str(), out);
    }
}

impl<Kind> Field for UuidId<Kind> {
    fn read(value: Value) -> Result<Self, Refusal> {
        let text = <String as Field>::read(value)?;
        Self::parse(&text).ok_or_else(|| invalid("must be a hyphenated, lower-case UUID"))
    }

    fn write(&self, out: &mut String) {
        write_plain(&self.to_string(), out);
    }
}

impl Field for DestinationKind {
    fn read(value: Value) -> Result<Self, Refusal> {
        one_of(value, Self::parse, "must be one of topic, dm, queue")
    }

    fn write(&self, out: &mut String) {
        write_plain(self.as_str(), out);
    }
}

impl Field for Priority {
    fn read(value: Value) -> Result<Self, Refusal> {
        one_of(value, Self::parse, "must be one of now, next, low")
    }

    fn write(&self, out: &mut String) {
        write_plain(self.as_str(), out);
    }
}

/// A word of a list.
pub(crate) fn one_of<T>(
    value: Value,
    parse: fn(&str) -> Option<T>,
    detail: &str,
) -> Result<T, Refusal> {
    parse(&<String as Field>::read(value)?).ok_or_else(|| invalid(detail))
}

/// A string, with the escapes that it needs.
pub(crate) fn write_text(text: &str, out: &mut String) {
    out.push_str(&Value::from(text).to_string());
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
