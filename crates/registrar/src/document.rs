//! Reading a JSON object strictly: every field is taken by name, and what is left over is refused.

use semel_core::clock::UnixMs;
use semel_core::code::Code;
use semel_core::hex::Hex;
use semel_core::json::{self, JsonLimits};
use semel_core::refusal::Refusal;
use semel_core::rfc3339;
use semel_wire::http::name;
use serde_json::{Map, Value};

use crate::limits::{BODY_BYTES_MAX, BODY_DEPTH_MAX};

/// The fields of an object that were not taken yet, and where the object is.
pub(crate) struct Fields {
    left: Map<String, Value>,
    place: String,
}

impl Fields {
    /// Reads a document.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, Refusal> {
        let limits = JsonLimits { bytes_max: BODY_BYTES_MAX, depth_max: BODY_DEPTH_MAX };
        Self::of(json::parse(text, limits)?, String::new())
    }

    /// The fields of a document that was read already.
    pub(crate) fn of_object(object: Map<String, Value>) -> Self {
        Self { left: object, place: String::new() }
    }

    fn of(value: Value, place: String) -> Result<Self, Refusal> {
        match value {
            Value::Object(left) => Ok(Self { left, place }),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => {
                Err(Refusal::at(Code::InvalidField, place, "must be a JSON object"))
            }
        }
    }

    /// The object in a field.
    pub(crate) fn object(&mut self, field: &str) -> Result<Self, Refusal> {
        let place = self.pointer(field);
        Self::of(self.value(field)?, place)
    }

    /// A text of 1 to `bytes_max` bytes without control characters.
    pub(crate) fn name(&mut self, field: &str, bytes_max: usize) -> Result<String, Refusal> {
        let text = self.text(field)?;
        name(text, bytes_max).map_err(|refusal| self.refuse(field, &refusal.detail))
    }

    /// The same, where it is not needed.
    pub(crate) fn optional_name(
        &mut self,
        field: &str,
        bytes_max: usize,
    ) -> Result<Option<String>, Refusal> {
        if !self.has(field) {
            return Ok(None);
        }
        self.name(field, bytes_max).map(Some)
    }

    /// Lower-case hexadecimal digits.
    pub(crate) fn hex<const N: usize>(&mut self, field: &str) -> Result<Hex<N>, Refusal> {
        let text = self.text(field)?;
        Hex::parse(&text).map_err(|refusal| self.refuse(field, &refusal.detail))
    }

    /// A moment.
    pub(crate) fn moment(&mut self, field: &str) -> Result<UnixMs, Refusal> {
        let text = self.text(field)?;
        rfc3339::parse_exact(&text).ok_or_else(|| {
            self.refuse(field, "must be an RFC 3339 time, no finer than milliseconds")
        })
    }

    /// The same, where it is not needed.
    pub(crate) fn optional_moment(&mut self, field: &str) -> Result<Option<UnixMs>, Refusal> {
        if !self.has(field) {
            return Ok(None);
        }
        self.moment(field).map(Some)
    }

    /// A whole number from `min` to `max`.
    pub(crate) fn number(&mut self, field: &str, min: u64, max: u64) -> Result<u64, Refusal> {
        let number = self.value(field)?.as_u64().filter(|number| (min..=max).contains(number));
        number.ok_or_else(|| {
            self.refuse(field, &format!("must be a whole number from {min} to {max}"))
        })
    }

    /// One word of a list.
    pub(crate) fn word<T>(
        &mut self,
        field: &str,
        parse: fn(&str) -> Option<T>,
        choices: &str,
    ) -> Result<T, Refusal> {
        let text = self.text(field)?;
        parse(&text).ok_or_else(|| self.refuse(field, &format!("must be one of {choices}")))
    }

    /// Nothing else may be there.
    pub(crate) fn finish(self) -> Result<(), Refusal> {
        match self.left.keys().next() {
            None => Ok(()),
            Some(unknown) => {
                let detail = format!("there is no field {unknown:?} here");
                Err(Refusal::at(Code::UnknownField, self.pointer(unknown), detail))
            }
        }
    }

    fn has(&self, field: &str) -> bool {
        self.left.get(field).is_some_and(|value| !value.is_null())
    }

    fn text(&mut self, field: &str) -> Result<String, Refusal> {
        let value = self.value(field)?;
        let text = value.as_str().map(str::to_owned);
        text.ok_or_else(|| self.refuse(field, "must be a string"))
    }

    fn value(&mut self, field: &str) -> Result<Value, Refusal> {
        self.left.remove(field).ok_or_else(|| {
            let detail = format!("{field} is needed");
            Refusal::at(Code::MissingField, self.pointer(field), detail)
        })
    }

    fn pointer(&self, field: &str) -> String {
        format!("{}/{}", self.place, field.replace('~', "~0").replace('/', "~1"))
    }

    fn refuse(&self, field: &str, detail: &str) -> Refusal {
        Refusal::at(Code::InvalidField, self.pointer(field), detail)
    }
}
