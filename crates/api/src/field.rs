//! The fields of requests: one declaration says what is read, what is refused, and what the
//! OpenAPI document tells of it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use semel_core::clock::UnixMs;
use semel_core::code::Code;
use semel_core::id::ClientMessageId;
use semel_core::json::{self, JsonLimits};
use semel_core::limits::{INTEGER_MAX, META_DEPTH_MAX};
use semel_core::refusal::Refusal;
use semel_core::rfc3339;
use serde_json::{Map, Value};

/// What a field may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text {
        /// Bytes at the most.
        bytes_max: usize,
    },
    /// A text with something in it, and without byte 00.
    Name {
        /// Bytes at the most.
        bytes_max: usize,
    },
    /// A client's id for a send (mesh.md §4).
    Id,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A whole number.
    Number {
        /// The least.
        min: i64,
        /// The largest.
        max: i64,
    },
    /// True or false.
    Flag,
    /// RFC 3339.
    Time,
    /// Bytes, in padded standard base64.
    Base64,
    /// A JSON object.
    Object,
    /// Any JSON: a document that its part reads by itself.
    Any,
    /// Some names.
    Names {
        /// How many at the most.
        items_max: usize,
        /// Bytes of each at the most.
        bytes_max: usize,
    },
    /// Some numbers, none below 0.
    Numbers {
        /// How many at the most.
        items_max: usize,
    },
}

/// A field of a body, a query or a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// As it is written.
    pub name: &'static str,
    /// What it may hold.
    pub kind: Kind,
    /// A request without it is refused.
    pub needed: bool,
    /// For a person.
    pub about: &'static str,
}

impl Field {
    /// A field that may be missing.
    pub const fn new(name: &'static str, kind: Kind, about: &'static str) -> Self {
        Self { name, kind, needed: false, about }
    }

    /// A field that must be there.
    pub const fn needed(name: &'static str, kind: Kind, about: &'static str) -> Self {
        Self { name, kind, needed: true, about }
    }

    fn pointer(&self) -> String {
        format!("/{}", self.name)
    }

    fn check(&self, value: &Value) -> Result<(), Refusal> {
        let refuse = |code, detail: String| Err(Refusal::at(code, self.pointer(), detail));
        match (self.kind, value) {
            (Kind::Text { bytes_max }, Value::String(text)) if text.len() > bytes_max => {
                let detail = format!("has {} bytes, {bytes_max} are allowed", text.len());
                refuse(Code::InvalidField, detail)
            }
            (Kind::Name { bytes_max }, Value::String(text)) => {
                name(text, bytes_max, || self.pointer())
            }
            (Kind::Id, Value::String(text)) => match ClientMessageId::parse(text) {
                Ok(_) => Ok(()),
                Err(refusal) => refuse(refusal.code, refusal.detail),
            },
            (Kind::Word(words), Value::String(text)) if !words.contains(&text.as_str()) => {
                refuse(Code::InvalidField, format!("must be one of {}", words.join(", ")))
            }
            (Kind::Time, Value::String(text)) if rfc3339::parse(text).is_none() => {
                refuse(Code::InvalidField, "must be a time as in RFC 3339".to_owned())
            }
            (Kind::Text { .. } | Kind::Word(_) | Kind::Time | Kind::Base64, Value::String(_))
            | (Kind::Flag, Value::Bool(_))
            | (Kind::Object, Value::Object(_))
            | (Kind::Any, _) => Ok(()),
            (Kind::Number { min, max }, Value::Number(number)) => match number.as_i64() {
                Some(number) if (min..=max).contains(&number) => Ok(()),
                _ => refuse(
                    Code::InvalidField,
                    format!("must be a whole number from {min} to {max}"),
                ),
            },
            (Kind::Names { items_max, .. } | Kind::Numbers { items_max }, Value::Array(items)) => {
                if items.len() > items_max {
                    let detail = format!("has {} items, {items_max} are allowed", items.len());
                    return refuse(Code::InvalidField, detail);
                }
                items.iter().enumerate().try_for_each(|(index, item)| self.item(index, item))
            }
            (_, _) => refuse(Code::InvalidField, format!("must be {}", self.kind.words())),
        }
    }

    fn item(&self, index: usize, item: &Value) -> Result<(), Refusal> {
        let pointer = || format!("/{}/{index}", self.name);
        match (self.kind, item) {
            (Kind::Names { bytes_max, .. }, Value::String(text)) => name(text, bytes_max, pointer),
            (Kind::Numbers { .. }, Value::Number(number))
                if number.as_i64().is_some_and(|number| number >= 0) =>
            {
                Ok(())
            }
            (_, _) => {
                let words = self.kind.words();
                let detail = format!("is not valid: the list is {words}");
                Err(Refusal::at(Code::InvalidField, pointer(), detail))
            }
        }
    }

    /// What a text in a query or a head stands for.
    fn spelt(&self, text: String) -> Value {
        match self.kind {
            // One number has one spelling: `+5` and `007` are none.
            Kind::Number { .. } => match text.parse::<i64>() {
                Ok(number) if number.to_string() == text => number.into(),
                Ok(_) | Err(_) => Value::String(text),
            },
            Kind::Flag if text == "true" => Value::Bool(true),
            Kind::Flag if text == "false" => Value::Bool(false),
            Kind::Flag
            | Kind::Text { .. }
            | Kind::Name { .. }
            | Kind::Id
            | Kind::Word(_)
            | Kind::Time
            | Kind::Base64
            | Kind::Object
            | Kind::Any
            | Kind::Names { .. }
            | Kind::Numbers { .. } => Value::String(text),
        }
    }
}

impl Kind {
    fn words(self) -> &'static str {
        match self {
            Self::Text { .. } | Self::Name { .. } | Self::Id | Self::Word(_) => "a string",
            Self::Number { .. } => "a whole number",
            Self::Flag => "true or false",
            Self::Time => "a time as in RFC 3339",
            Self::Base64 => "a string in padded standard base64",
            Self::Object => "an object",
            Self::Any => "any JSON",
            Self::Names { .. } => "an array of strings",
            Self::Numbers { .. } => "an array of whole numbers from 0",
        }
    }
}

fn name(text: &str, bytes_max: usize, pointer: impl Fn() -> String) -> Result<(), Refusal> {
    if text.is_empty() {
        return Err(Refusal::at(Code::InvalidField, pointer(), "must not be empty"));
    }
    if text.len() > bytes_max {
        let detail = format!("has {} bytes, {bytes_max} are allowed", text.len());
        return Err(Refusal::at(Code::InvalidField, pointer(), detail));
    }
    if text.contains('\0') {
        return Err(Refusal::at(Code::NulInField, pointer(), "must not contain byte 00"));
    }
    Ok(())
}

/// Fields as they were given: all of them declared, each of its kind.
#[derive(Debug, Default)]
pub struct Given(Map<String, Value>);

impl Given {
    /// Reads a JSON body. None at all means an empty object.
    pub fn of_json(text: &[u8], fields: &[Field], bytes_max: usize) -> Result<Self, Refusal> {
        if text.is_empty() {
            return Self::checked(Map::new(), fields);
        }
        // The document itself is one level around what it holds.
        let limits = JsonLimits { bytes_max, depth_max: META_DEPTH_MAX + 1 };
        match json::parse(text, limits)? {
            Value::Object(object) => Self::checked(object, fields),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => {
                Err(Refusal::new(Code::InvalidField, "the body must be a JSON object"))
            }
        }
    }

    /// Reads the part of an address after its question mark.
    pub fn of_query(query: &str, fields: &[Field]) -> Result<Self, Refusal> {
        let mut given = Map::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (Some(name), Some(value)) = (unescape(name), unescape(value)) else {
                let detail = "a part of the query is not percent-encoded UTF-8";
                return Err(Refusal::new(Code::InvalidField, detail));
            };
            let field = fields.iter().find(|field| field.name == name);
            let value = field.map_or(Value::Null, |field| field.spelt(value));
            if given.contains_key(&name) {
                let pointer = format!("/{name}");
                return Err(Refusal::at(Code::DuplicateKey, pointer, "this was given twice"));
            }
            given.insert(name, value);
        }
        Self::checked(given, fields)
    }

    /// Reads what was found under each field's name elsewhere.
    pub fn of_texts<'a>(
        texts: impl Iterator<Item = (&'a Field, String)>,
        fields: &[Field],
    ) -> Result<Self, Refusal> {
        let given = texts.map(|(field, text)| (field.name.to_owned(), field.spelt(text)));
        Self::checked(given.collect(), fields)
    }

    fn checked(given: Map<String, Value>, fields: &[Field]) -> Result<Self, Refusal> {
        for (name, value) in &given {
            let Some(field) = fields.iter().find(|field| field.name == name) else {
                let names: Vec<_> = fields.iter().map(|field| field.name).collect();
                let shown = &name[..name.floor_char_boundary(64)];
                let detail = match names.is_empty() {
                    true => format!("there is no field {shown:?}, nor any other"),
                    false => format!("there is no field {shown:?}; there are {}", names.join(", ")),
                };
                return Err(Refusal::new(Code::UnknownField, detail));
            };
            // `null` and absence mean the same.
            if !value.is_null() {
                field.check(value)?;
            }
        }
        for field in fields.iter().filter(|field| field.needed) {
            if given.get(field.name).is_none_or(Value::is_null) {
                let detail = format!("{} is needed", field.name);
                return Err(Refusal::at(Code::MissingField, field.pointer(), detail));
            }
        }
        Ok(Self(given))
    }

    /// Takes a text; none if it was not given.
    pub fn text(&mut self, name: &str) -> Option<String> {
        match self.0.get_mut(name).map(Value::take) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// A number, if it was given.
    pub fn number(&self, name: &str) -> Option<i64> {
        self.0.get(name).and_then(Value::as_i64)
    }

    /// Whether a flag was given and true.
    pub fn flag(&self, name: &str) -> bool {
        self.0.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    /// A time, if it was given.
    pub fn time(&mut self, name: &str) -> Option<UnixMs> {
        self.text(name).as_deref().and_then(rfc3339::parse)
    }

    /// Takes an object; none if it was not given.
    pub fn object(&mut self, name: &str) -> Option<Map<String, Value>> {
        match self.0.get_mut(name).map(Value::take) {
            Some(Value::Object(object)) => Some(object),
            _ => None,
        }
    }

    /// Takes whatever it is; none if it was not given, or null.
    pub fn value(&mut self, name: &str) -> Option<Value> {
        self.0.get_mut(name).map(Value::take).filter(|value| !value.is_null())
    }

    /// Everything that was given and not taken, for a part with a reader of its own.
    pub fn into_object(mut self) -> Map<String, Value> {
        self.0.retain(|_, value| !value.is_null());
        self.0
    }

    /// Takes names; none if they were not given.
    pub fn names(&mut self, name: &str) -> Vec<String> {
        let Some(Value::Array(items)) = self.0.get_mut(name).map(Value::take) else {
            return Vec::new();
        };
        items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
    }

    /// Numbers; none if they were not given.
    pub fn numbers(&self, name: &str) -> Vec<i64> {
        let items = self.0.get(name).and_then(Value::as_array);
        items.into_iter().flatten().filter_map(Value::as_i64).collect()
    }

    /// Takes a body that was given as `message` or as `body_base64`, but not as both.
    pub fn bytes(&mut self) -> Result<Option<Vec<u8>>, Refusal> {
        match (self.text("message"), self.text("body_base64")) {
            (None, None) => Ok(None),
            (Some(message), None) => Ok(Some(message.into_bytes())),
            (None, Some(encoded)) => match STANDARD.decode(encoded) {
                Ok(bytes) => Ok(Some(bytes)),
                Err(_) => Err(Refusal::at(
                    Code::InvalidField,
                    "/body_base64",
                    "must be padded standard base64",
                )),
            },
            (Some(_), Some(_)) => Err(Refusal::at(
                Code::InvalidField,
                "/body_base64",
                "message and body_base64 exclude each other",
            )),
        }
    }
}

/// The largest number of a field that has no other bound.
pub const NUMBER_MAX: i64 = INTEGER_MAX;

/// What a part of a query or a path says.
pub fn unescape(text: &str) -> Option<String> {
    if !text.bytes().any(|byte| matches!(byte, b'%' | b'+')) {
        return Some(text.to_owned());
    }
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let value = digit(bytes.next())? * 16 + digit(bytes.next())?;
                u8::try_from(value).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(out).ok()
}

/// A value as a query holds it.
pub fn escape(text: &str, out: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_read_back_and_broken_ones_do_not() {
        for text in ["", "plain", "a b&c=d%", "ünï/😀+"] {
            let mut escaped = String::new();
            escape(text, &mut escaped);
            assert_eq!(unescape(&escaped).as_deref(), Some(text));
        }
        assert_eq!(unescape("a+b").as_deref(), Some("a b"));
        for bad in ["%", "%4", "%zz", "%ff"] {
            assert_eq!(unescape(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_is_not_declared_is_refused_by_name() {
        let fields = [Field::new("limit", Kind::Number { min: 1, max: 500 }, "")];
        let code = |query: &str| Given::of_query(query, &fields).map_err(|refusal| refusal.code);
        assert_eq!(code("limit=7").map(|given| given.number("limit")), Ok(Some(7)));
        for spelt in ["x", "%2B7", "07", "-0", "7.0", "%207", ""] {
            assert_eq!(code(&format!("limit={spelt}")).err(), Some(Code::InvalidField), "{spelt}");
        }
        assert_eq!(code("limit=501").err(), Some(Code::InvalidField));
        assert_eq!(code("limit=1&limit=2").err(), Some(Code::DuplicateKey));
        assert_eq!(code("limits=1").err(), Some(Code::UnknownField));
        let refusal = Given::of_json(br#"{"b":1}"#, &fields, 100).expect_err("unknown");
        assert!(refusal.detail.contains("\"b\""), "{refusal}");
    }
}
