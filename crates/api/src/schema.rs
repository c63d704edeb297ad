//! Shapes of answers, for the OpenAPI document: what parts write their schemas with. Tests of live
//! answers compare them.
//!
//! A record carries its name as the schema's `title`; the document keeps it under that name, once,
//! and refers to it wherever it is used (`openapi`). Whoever generates a client gets a type of
//! that name.

use serde_json::{Map, Value, json};

/// Where a schema carries the name of its record.
pub(crate) const NAME: &str = "title";

/// The same shape with a name of its own.
pub fn named(name: &str, mut schema: Value) -> Value {
    schema[NAME] = name.into();
    schema
}

/// A record: an object with a name.
pub fn record(name: &str, fields: &[(&str, Value)]) -> Value {
    named(name, object(fields))
}

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

/// The document itself.
pub fn openapi() -> Value {
    named("OpenApiDocument", any_object())
}

/// Several of the same.
pub fn array(item: Value) -> Value {
    json!({"type": "array", "items": item})
}

/// An object of the same under any names.
pub fn map_of(item: Value) -> Value {
    json!({"type": "object", "additionalProperties": item})
}

/// A page of a list, as [`crate::page::Page`] writes it. A list of records has a name, too.
pub fn list_of(item: Value) -> Value {
    let name = item[NAME].as_str().map(|name| format!("{name}List"));
    let list = object(&[("items", array(item)), ("next", maybe_text())]);
    match name {
        Some(name) => named(&name, list),
        None => list,
    }
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
    record("Problem", &fields)
}
