//! Requests made from an OpenAPI document: valid ones, mutated, of wrong types, huge, with parts
//! missing. Whatever comes, the answer has a status that the document names for that call, the body
//! that it names for that status, and nothing falls over.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::dice::Dice;
use crate::http::{Said, request, say};

/// What a field of some name should hold, where the schema alone cannot tell.
pub type Hint<'a> = &'a (dyn Fn(&mut Dice, &str) -> Option<Value> + Sync);

/// What is asked.
pub struct Fuzz<'a> {
    /// Where the dice begin.
    pub seed: u64,
    /// How often.
    pub requests: u32,
    /// Every fourth request is of this verb and path: where there is most to go wrong.
    pub often: (&'a str, &'a str),
    /// Whether a path is asked at all.
    pub asks: fn(&str) -> bool,
    /// See [`Hint`].
    pub hint: Hint<'a>,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fuzzed {
    /// Requests that reached a call.
    pub judged: u32,
    /// Those that were answered well.
    pub well: u32,
}

/// Asks and judges; panics over the first answer that is not as documented.
pub async fn fuzz<S>(document: &Value, fuzz: &Fuzz<'_>, connect: impl AsyncFn() -> S) -> Fuzzed
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let document = spelt_out(document, document);
    let paths = document["paths"].as_object().expect("paths");
    let mut operations = Vec::new();
    for (path, verbs) in paths.iter().filter(|(path, _)| (fuzz.asks)(path)) {
        let verbs = verbs.as_object().expect("verbs");
        operations.extend(verbs.iter().map(|(verb, operation)| (path.as_str(), verb, operation)));
    }
    let (verb, path) = fuzz.often;
    let often = operations.iter().position(|known| known.0 == path && known.1 == verb);
    let often = operations[often.expect("what is asked often is there")];
    let mut dice = Dice::new(fuzz.seed);
    let mut fuzzed = Fuzzed { judged: 0, well: 0 };
    for round in 0..fuzz.requests {
        let any = operations[dice.below(operations.len())];
        let (path, verb, operation) = if round % 4 == 0 { often } else { any };
        let bytes = dice.request(path, verb, operation, fuzz.hint);
        let said = say(connect().await, &bytes).await;
        // Bytes that are no request never reach a call: hyper answers them by itself.
        if said.status == 400 && said.body.is_empty() {
            continue;
        }
        let what = String::from_utf8_lossy(&bytes[..bytes.len().min(700)]).into_owned();
        judge(&said, operation, &what);
        fuzzed.judged += 1;
        fuzzed.well += u32::from(said.status < 300);
    }
    fuzzed
}

/// Every call has a name, and every request and every answer in JSON is a record that has one:
/// whoever generates a client gets types with names. Panics over the first that has not.
pub fn has_names(document: &Value) {
    let is_record = |schema: &Value| {
        let name = schema["$ref"].as_str().and_then(|to| to.strip_prefix(COMPONENTS));
        name.is_some_and(|name| document["components"]["schemas"][name]["type"] == "object")
    };
    let mut names = BTreeSet::new();
    for (path, verbs) in document["paths"].as_object().expect("paths") {
        for (verb, operation) in verbs.as_object().expect("verbs") {
            let name = operation["operationId"].as_str().expect("a name");
            assert!(names.insert(name), "{name} is the name of two calls");
            let of_path = format!("{verb}_");
            assert!(!name.starts_with(&of_path), "{verb} {path} has no name of its own");
            let asked = &operation["requestBody"];
            let answered = operation["responses"].as_object().expect("answers").values();
            let bodies = answered.chain([asked]).filter_map(|body| body["content"].as_object());
            for (content, body) in bodies.flatten().filter(|(content, _)| content.ends_with("json"))
            {
                assert!(is_record(&body["schema"]), "{verb} {path}: {content} has no name: {body}");
            }
        }
    }
}

/// Where records are, as references say it.
const COMPONENTS: &str = "#/components/schemas/";

/// The same with every record in the places that refer to it.
fn spelt_out(value: &Value, document: &Value) -> Value {
    let name = value["$ref"].as_str().and_then(|to| to.strip_prefix(COMPONENTS));
    match (name, value) {
        (Some(name), _) => spelt_out(&document["components"]["schemas"][name], document),
        (None, Value::Array(items)) => items.iter().map(|item| spelt_out(item, document)).collect(),
        (None, Value::Object(fields)) => {
            fields.iter().map(|(name, value)| (name.clone(), spelt_out(value, document))).collect()
        }
        (None, Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => value.clone(),
    }
}

/// What a value of this schema is, unless it is null.
fn type_of(schema: &Value) -> &str {
    let one = schema["type"].as_str();
    one.or_else(|| schema["type"][0].as_str()).unwrap_or("object")
}

impl Dice {
    /// Something that fits this schema, or nearly.
    fn valid(&mut self, name: &str, schema: &Value, hint: Hint<'_>) -> Value {
        if let Some(value) = hint(self, name) {
            return value;
        }
        let schema = schema["anyOf"].get(0).unwrap_or(schema);
        if let Some(words) = schema["enum"].as_array() {
            return words[self.below(words.len())].clone();
        }
        match type_of(schema) {
            "integer" => {
                let (min, max) = (
                    schema["minimum"].as_i64().expect("a schema of ours"),
                    schema["maximum"].as_i64().expect("a schema of ours"),
                );
                json!([min, max, min.max(1).min(max), (min + 100).min(max)][self.below(4)])
            }
            "boolean" => json!(self.roll(2) == 0),
            "object" => json!({"k": {"deep": [1, "two", null]}, "n": 1.5}),
            "array" => {
                let items = (0..self.roll(3)).map(|_| self.valid("item", &schema["items"], hint));
                Value::Array(items.collect())
            }
            _ if schema["format"] == "date-time" => json!("2027-01-15T08:00:00Z"),
            _ if schema["contentEncoding"] == "base64" => json!("aGVsbG8="),
            _ => json!(self.pick(&["a", "deploy-1", "builds", "ünï", "with space"])),
        }
    }

    /// Something that does not.
    fn nasty(&mut self) -> Value {
        let huge = "h".repeat(300_000);
        let values = [
            Value::Null,
            json!(true),
            json!(-1),
            json!(1.5),
            json!(9_007_199_254_740_991_i64),
            json!(""),
            json!("\u{0}"),
            json!("' OR 1=1 --"),
            json!("../../etc/passwd"),
            json!("😀".repeat(300)),
            json!(huge),
            json!([]),
            json!([[[[]]]]),
            json!({}),
            json!({"mentions": ["x"]}),
            json!(vec!["a"; 700]),
        ];
        values[self.below(values.len())].clone()
    }

    fn body(&mut self, schema: &Value, hint: Hint<'_>) -> Vec<u8> {
        let mut body = Map::new();
        let none = Map::new();
        for (name, field) in schema["properties"].as_object().unwrap_or(&none) {
            let needed =
                schema["required"].as_array().expect("a schema of ours").contains(&json!(name));
            let roll = self.roll(10);
            if roll == 0 {
                body.insert(name.clone(), self.nasty());
            } else if (needed && roll > 1) || roll > 6 {
                body.insert(name.clone(), self.valid(name, field, hint));
            }
        }
        if self.roll(15) == 0 {
            body.insert("surprise".to_owned(), self.nasty());
        }
        let mut text = Value::Object(body).to_string().into_bytes();
        match self.roll(25) {
            0 => text.truncate(self.below(text.len().max(1))),
            1 => text = b"[1,2".to_vec(),
            2 => {
                let at = self.below(text.len().max(1));
                text[at] = b'\xff';
            }
            3 => text = vec![b'['; 2000],
            4 => text = vec![b' '; (1 << 20) + 7],
            5 => text.clear(),
            _ => {}
        }
        text
    }

    fn request(&mut self, path: &str, verb: &str, operation: &Value, hint: Hint<'_>) -> Vec<u8> {
        let parameters = operation["parameters"].as_array().expect("parameters");
        let (address, headers) = self.address(path, parameters, hint);
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        let body = if schema.is_object() { self.body(schema, hint) } else { Vec::new() };
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        request(&verb.to_uppercase(), &address, &headers, &body)
    }

    fn address(
        &mut self,
        path: &str,
        parameters: &[Value],
        hint: Hint<'_>,
    ) -> (String, Vec<(String, String)>) {
        let mut address = path.to_owned();
        let (mut query, mut headers) = (Vec::new(), Vec::new());
        for parameter in parameters {
            let name = parameter["name"].as_str().expect("a schema of ours");
            let place = parameter["in"].as_str().expect("a schema of ours");
            let value = match self.roll(8) {
                0 => self.nasty(),
                _ => self.valid(name, &parameter["schema"], hint),
            };
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let value = value.chars().take(2000).collect::<String>();
            let escaped = escaped(&value);
            match place {
                "path" => {
                    let part = if escaped.is_empty() { "x" } else { &escaped };
                    address = address.replace("{id}", part);
                }
                "query" if parameter["required"] == true || self.roll(2) == 0 => {
                    query.push(format!("{name}={escaped}"));
                }
                "header" if self.roll(2) == 0 && !value.contains(['\0', '\n', '\r']) => {
                    headers.push((name.to_owned(), value));
                }
                _ => {}
            }
        }
        if self.roll(20) == 0 {
            query.push(self.pick(&["surprise=1", "%zz", "a=%ff", "limit", "&&", "="]).to_string());
        }
        if !query.is_empty() {
            address = format!("{address}?{}", query.join("&"));
        }
        (address, headers)
    }
}

/// Whether a value is what a schema says, as far as our schemas go.
fn fits(value: &Value, schema: &Value) -> Result<(), String> {
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => return Ok(()),
    };
    let is = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    if !types.contains(&is) {
        return Err(format!("{value} is not {types:?}"));
    }
    if let Some(words) = schema["enum"].as_array()
        && !words.contains(value)
    {
        return Err(format!("{value} is none of {words:?}"));
    }
    if let Some(items) = value.as_array() {
        items.iter().try_for_each(|item| fits(item, &schema["items"]))?;
    }
    let (Some(object), Some(properties)) = (value.as_object(), schema["properties"].as_object())
    else {
        return Ok(());
    };
    for needed in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !object.contains_key(needed) {
            return Err(format!("{needed} is missing in {value}"));
        }
    }
    for (name, value) in object {
        let schema = properties.get(name).ok_or_else(|| format!("{name} is not documented"))?;
        fits(value, schema).map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(())
}

fn judge(said: &Said, operation: &Value, what: &str) {
    let response = &operation["responses"][said.status.to_string()];
    assert!(response.is_object(), "{} is not documented: {what}: {said:?}", said.status);
    assert!(said.status < 500 || [503, 507].contains(&said.status), "{what}: {said:?}");
    let Some(content) = said.header("content-type") else {
        assert!(response["content"].is_null() && said.body.is_empty(), "{what}: {said:?}");
        return;
    };
    let schema = &response["content"][content]["schema"];
    assert!(schema.is_object(), "{content} is not documented: {what}");
    if content.ends_with("json") {
        fits(&said.json(), schema).unwrap_or_else(|why| panic!("{what}: {why}"));
    }
}

fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let one = |byte: u8| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}
