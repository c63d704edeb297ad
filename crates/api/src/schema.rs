//! Shapes of answers, for the OpenAPI document: what parts write their schemas with. Tests of live
//! answers compare them.

use serde_json::{Map, Value, json};

/// An object with these fields; those whose names end in `?` may be missing.
pub fn object(fields: &[(&str, Value)]) -> Value {
    let name = |field: &str| field.trim_end_matches('?').to_owned();
    let properties: Map<String, Value> =
        fields.iter().map(|(field, schema)| (name(field), schema.clone())).collect();
    let required = fields.iter().filter(|(field, _)| !field.ends_with('?'));
    let required: Vec<String> = required.map(|(field, _)| name(field)).collect();
    json!({"type": "object", "properties": properties, "required": required})
}

/// A text.
pub fn text() -> Value {
    json!({"type": "string"})
}

/// Bytes as they are.
pub fn bytes() -> Value {
    json!({"type": "string", "format": "binary"})
}

/// A text or null.
pub fn maybe_text() -> Value {
    json!({"type": ["string", "null"]})
}

/// One of these words.
pub fn word(words: &[&str]) -> Value {
    json!({"type": "string", "enum": words})
}

/// A time.
pub fn time() -> Value {
    json!({"type": "string", "format": "date-time"})
}

/// A time or null.
pub fn maybe_time() -> Value {
    json!({"type": ["string", "null"], "format": "date-time"})
}

/// A whole number.
pub fn number() -> Value {
    json!({"type": "integer"})
}

/// A whole number or null.
pub fn maybe_number() -> Value {
    json!({"type": ["integer", "null"]})
}

/// True or false.
pub fn flag() -> Value {
    json!({"type": "boolean"})
}

/// An object of which no more is said.
pub fn any_object() -> Value {
    json!({"type": "object"})
}

/// The same, or null.
pub fn maybe_object() -> Value {
    json!({"type": ["object", "null"]})
}

/// Several of the same.
pub fn array(item: Value) -> Value {
    json!({"type": "array", "items": item})
}

/// A page of a list, as [`crate::page::Page`] writes it.
pub fn list_of(item: Value) -> Value {
    object(&[("items", array(item)), ("next", maybe_text())])
}

/// RFC 9457, with what parts add to it.
pub(crate) fn problem(more: &[(&'static str, Value)]) -> Value {
    let mut fields = vec![
        ("type", text()),
        ("title", text()),
        ("status", number()),
        ("code", text()),
        ("detail", text()),
        ("pointer?", text()),
    ];
    fields.extend(more.iter().cloned());
    object(&fields)
}
