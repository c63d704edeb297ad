//! The OpenAPI 3.1 document, written from the table that the door finds its handlers in. Every
//! request and every answer that is a record is a component of its own.

use std::collections::BTreeMap;

use semel_core::code::Code;
use semel_core::limits::{CLIENT_MESSAGE_ID_CHARS_MAX, INTEGER_MAX};
use serde_json::{Map, Value, json};

use crate::field::{Field, Kind};
use crate::limits::HEAD_BYTES_MAX;
use crate::part::Part;
use crate::problem::CONTENT;
use crate::route::{Answer, Facts};
use crate::schema;

/// What every call may be refused for.
const ALWAYS: &[Code] = &[
    Code::InvalidField,
    Code::Unauthorised,
    Code::HostNotAllowed,
    Code::RateLimited,
    Code::InternalError,
    Code::StoreUnavailable,
    Code::OutcomeUnknown,
];

/// What everything that has a body may be refused for besides.
const WITH_BODY: &[Code] = &[Code::PayloadTooLarge, Code::RequestTimeout];

/// The document of these parts together.
pub fn document(parts: &[Part]) -> String {
    let facts: Vec<Facts> = parts.iter().flat_map(Part::facts).collect();
    let mut more = Vec::new();
    for (name, schema) in parts.iter().flat_map(Part::problem_fields) {
        if !more.iter().any(|(known, _)| *known == name) {
            more.push((name, schema));
        }
    }
    let mut components = Components::default();
    components.refer(schema::problem(&more));
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for route in &facts {
        let verb = route.verb.as_str().to_lowercase();
        let operation = components.refer(operation(route));
        paths.entry(route.path).or_default().insert(verb, operation);
    }
    let document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Semel daemon",
            "version": "1",
            "description": "The local API of a daemon, on its Unix socket and on loopback TCP.",
        },
        "paths": paths,
        "components": {
            "schemas": components.0,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer",
                          "description": "Over TCP only; the socket needs none."},
            },
        },
        "security": [{}, {"token": []}],
    });
    document.to_string()
}

/// The records of the document, each once.
#[derive(Default)]
struct Components(BTreeMap<String, Value>);

impl Components {
    /// The same with a reference in the place of each record.
    fn refer(&mut self, value: Value) -> Value {
        match value {
            Value::Array(items) => items.into_iter().map(|item| self.refer(item)).collect(),
            Value::Object(fields) => {
                let fields = fields.into_iter().map(|(name, value)| (name, self.refer(value)));
                let fields = fields.collect();
                self.keep(fields)
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value,
        }
    }

    /// A field that is called like a record's name is a schema, and no text.
    fn keep(&mut self, mut fields: Map<String, Value>) -> Value {
        let Some(Value::String(name)) = fields.get(schema::NAME).cloned() else {
            return fields.into();
        };
        fields.remove(schema::NAME);
        let record = Value::Object(fields);
        let known = self.0.entry(name.clone()).or_insert_with(|| record.clone());
        assert!(*known == record, "{name} is the name of two records");
        reference(&name)
    }
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn operation(route: &Facts) -> Value {
    let id = route.path.contains("{id}").then(|| {
        json!({"name": "id", "in": "path", "required": true,
               "schema": {"type": "string", "minLength": 1}})
    });
    let of = |place: &'static str| move |field: &Field| parameter(field, place);
    let parameters: Vec<Value> = id
        .into_iter()
        .chain(route.query.iter().map(of("query")))
        .chain(route.headers.iter().map(of("header")))
        .collect();
    let mut operation = json!({
        "operationId": operation_id(route),
        "summary": route.about,
        "parameters": parameters,
        "responses": responses(route),
    });
    if route.verb.has_body() {
        operation["requestBody"] = json!({
            "required": route.body.iter().any(|field| field.needed),
            "content": {"application/json": {"schema": body(route)}},
        });
    }
    operation
}

fn operation_id(route: &Facts) -> String {
    if !route.name.is_empty() {
        return route.name.to_owned();
    }
    let words = route.path.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<_> = words.filter(|word| !word.is_empty() && *word != "v1").collect();
    format!("{}_{}", route.verb.as_str().to_lowercase(), words.join("_"))
}

fn parameter(field: &Field, place: &str) -> Value {
    json!({
        "name": field.name,
        "in": place,
        "required": field.needed,
        "description": field.about,
        "schema": kind(field.kind),
    })
}

/// Calls that read nothing have the same empty request.
fn body(route: &Facts) -> Value {
    let name = match route.body {
        [] => "EmptyRequest".to_owned(),
        [..] => format!("{}Request", type_name(&operation_id(route))),
    };
    let property = |field: &Field| {
        let schema = kind(field.kind);
        let mut schema = match field.needed {
            true => schema,
            false => or_null(schema, &format!("{name}{}", type_name(field.name))),
        };
        schema["description"] = field.about.into();
        (field.name.to_owned(), schema)
    };
    let fields = route.body.iter();
    let properties: Map<String, Value> = fields.clone().map(property).collect();
    let required: Vec<_> = fields.filter(|field| field.needed).map(|f| f.name).collect();
    let body = json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    });
    schema::named(&name, body)
}

/// `job_list` as types are called: `JobList`.
fn type_name(id: &str) -> String {
    let capital = |word: &str| {
        let mut chars = word.chars();
        let first = chars.next().map(|first| first.to_ascii_uppercase());
        first.into_iter().chain(chars).collect::<String>()
    };
    id.split('_').map(capital).collect()
}

/// In a body `null` and absence mean the same. Words get a name of their own: without one,
/// generators make a type of them, and another one of the same with `null`.
fn or_null(mut schema: Value, name: &str) -> Value {
    if schema["enum"].is_array() {
        return json!({"anyOf": [schema::named(name, schema), {"type": "null"}]});
    }
    if let Some(one) = schema["type"].as_str() {
        schema["type"] = json!([one, "null"]);
    }
    schema
}

fn kind(kind: Kind) -> Value {
    match kind {
        Kind::Text { bytes_max } => json!({"type": "string", "maxLength": bytes_max}),
        Kind::Name { bytes_max } => {
            json!({"type": "string", "minLength": 1, "maxLength": bytes_max})
        }
        Kind::Id => json!({
            "type": "string",
            "minLength": 1,
            "maxLength": CLIENT_MESSAGE_ID_CHARS_MAX,
            "pattern": "^[!-~]([ -~]*[!-~])?$",
        }),
        Kind::Word(words) => json!({"type": "string", "enum": words}),
        Kind::Number { min, max } => json!({"type": "integer", "minimum": min, "maximum": max}),
        Kind::Flag => json!({"type": "boolean"}),
        Kind::Time => json!({"type": "string", "format": "date-time"}),
        Kind::Base64 => json!({"type": "string", "contentEncoding": "base64"}),
        Kind::Object => json!({"type": "object"}),
        Kind::Any => json!({}),
        Kind::Names { items_max, bytes_max } => json!({
            "type": "array",
            "maxItems": items_max,
            "items": {"type": "string", "minLength": 1, "maxLength": bytes_max},
        }),
        Kind::Numbers { items_max } => json!({
            "type": "array",
            "maxItems": items_max,
            "items": {"type": "integer", "minimum": 0, "maximum": INTEGER_MAX},
        }),
    }
}

/// Every status that a call may answer with.
fn responses(route: &Facts) -> Map<String, Value> {
    let mut responses = Map::new();
    for Answer { status, content, about, schema } in route.answers {
        let mut response = json!({"description": about});
        if !content.is_empty() {
            response["content"] = json!({*content: {"schema": schema()}});
        }
        responses.insert(status.to_string(), response);
    }
    let with_body = if route.verb.has_body() { WITH_BODY } else { &[] };
    let problem = CONTENT;
    let problem = problem.to_str().unwrap_or_default();
    let mut codes: BTreeMap<u16, Vec<&str>> = BTreeMap::new();
    for code in ALWAYS.iter().chain(with_body).chain(route.problems) {
        codes.entry(code.http()).or_default().push(code.as_str());
    }
    for (status, codes) in codes {
        let schema = reference("Problem");
        let description = format!("refused, for example with {}", codes.join(", "));
        let response = json!({
            "description": description,
            "content": {problem: {"schema": schema}},
        });
        responses.insert(status.to_string(), response);
    }
    // HTTP itself refuses this, before anything is known of the call.
    let head = format!("refused without a document: the head has over {HEAD_BYTES_MAX} bytes");
    responses.insert("431".to_owned(), json!({"description": head}));
    responses
}
