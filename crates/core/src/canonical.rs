//! Meta in canonical form: RFC 8785 (JCS), with the empty string for "none" (mesh.md §3).

use serde_json::{Map, Value};

use crate::code::Code;
use crate::limits::META_BYTES_MAX;
use crate::refusal::Refusal;

/// A meta object in canonical form. Two metas are the same request iff these bytes are equal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Meta {
    canonical: String,
}

impl Meta {
    /// Canonicalises a strictly read object; nothing and `{}` are the same.
    pub fn new(object: &Map<String, Value>) -> Result<Self, Refusal> {
        if object.is_empty() {
            return Ok(Self::default());
        }
        let canonical = serde_json_canonicalizer::to_string(object).map_err(|error| {
            Refusal::at(Code::InvalidField, "/meta", format!("meta has no canonical form: {error}"))
        })?;
        if canonical.len() > META_BYTES_MAX {
            return Err(Refusal::at(
                Code::MetaTooLarge,
                "/meta",
                format!("meta has {} bytes, {META_BYTES_MAX} are allowed", canonical.len()),
            ));
        }
        Ok(Self { canonical })
    }

    /// The canonical text; empty when there is no meta.
    pub fn as_str(&self) -> &str {
        &self.canonical
    }

    /// The text itself.
    pub fn into_string(self) -> String {
        self.canonical
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        let value: Value = serde_json::from_str(text).unwrap();
        Meta::new(value.as_object().unwrap()).unwrap().as_str().to_owned()
    }

    #[test]
    fn empty_meta_is_the_empty_string() {
        assert_eq!(canonical("{}"), "");
    }

    #[test]
    fn keys_are_sorted_by_utf16_units() {
        // U+1F600 is D83D DE00 in UTF-16: it sorts before U+FB33, which has the smaller code point.
        let text = r#"{"\u20ac":1,"\r":2,"\ufb33":3,"1":4,"😀":5,"\u0080":6,"\u00f6":7}"#;
        let expected = "{\"\\r\":2,\"1\":4,\"\u{80}\":6,\"ö\":7,\"€\":1,\"😀\":5,\"\u{fb33}\":3}";
        assert_eq!(canonical(text), expected);
    }

    #[test]
    fn limit_is_on_the_canonical_bytes() {
        let of = |length: usize| {
            let value = Value::String("x".repeat(length));
            Meta::new(&Map::from_iter([("k".to_owned(), value)]))
        };
        let frame = r#"{"k":""}"#.len();
        assert!(of(META_BYTES_MAX - frame).is_ok());
        assert_eq!(of(META_BYTES_MAX - frame + 1).map_err(|r| r.code), Err(Code::MetaTooLarge));
    }
}
