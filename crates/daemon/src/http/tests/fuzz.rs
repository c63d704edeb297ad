//! Requests made from the document: valid ones, mutated, of wrong types, huge, with parts missing.
//! Whatever comes, the answer has a status that the document names for that call, the body that it
//! names for that status, and nothing falls over.

use serde_json::{Map, Value, json};

use super::support::{Said, Served, request, say, served};

const REQUESTS: u32 = 2400;

/// A small generator of our own: the same requests every time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }

    fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[usize::try_from(self.roll(of.len() as u64)).unwrap()]
    }

    fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.roll(len as u64)).unwrap()
    }

    /// Something that fits this schema, or nearly.
    fn valid(&mut self, name: &str, schema: &Value) -> Value {
        if let Some(words) = schema["enum"].as_array() {
            return words[self.index(words.len())].clone();
        }
        match schema["type"].as_str().unwrap() {
            "integer" => {
                let (min, max) =
                    (schema["minimum"].as_i64().unwrap(), schema["maximum"].as_i64().unwrap());
                json!([min, max, min.max(1).min(max), (min + 100).min(max)][self.index(4)])
            }
            "boolean" => json!(self.roll(2) == 0),
            "object" => json!({"k": {"deep": [1, "two", null]}, "n": 1.5}),
            "array" => {
                let items = (0..self.roll(3)).map(|_| self.valid("item", &schema["items"]));
                Value::Array(items.collect())
            }
            _ if schema["format"] == "date-time" => json!("2027-01-15T08:00:00Z"),
            _ if schema["contentEncoding"] == "base64" => json!("aGVsbG8="),
            _ if name == "to" => {
                json!(self.pick(&["#builds", "@ada", "queue:work", &"ab".repeat(32) as &str]))
            }
            _ if name == "kinds" => json!("message,peer_join"),
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
        values[self.index(values.len())].clone()
    }

    fn body(&mut self, schema: &Value) -> Vec<u8> {
        let mut body = Map::new();
        let none = Map::new();
        for (name, field) in schema["properties"].as_object().unwrap_or(&none) {
            let needed = schema["required"].as_array().unwrap().contains(&json!(name));
            let roll = self.roll(10);
            if roll == 0 {
                body.insert(name.clone(), self.nasty());
            } else if (needed && roll > 1) || roll > 6 {
                body.insert(name.clone(), self.valid(name, field));
            }
        }
        if self.roll(15) == 0 {
            body.insert("surprise".to_owned(), self.nasty());
        }
        let mut text = Value::Object(body).to_string().into_bytes();
        match self.roll(25) {
            0 => text.truncate(self.index(text.len().max(1))),
            1 => text = b"[1,2".to_vec(),
            2 => {
                let at = self.index(text.len().max(1));
                text[at] = b'\xff';
            }
            3 => text = vec![b'['; 2000],
            4 => text = vec![b' '; (1 << 20) + 7],
            5 => text.clear(),
            _ => {}
        }
        text
    }

    fn address(&mut self, path: &str, parameters: &[Value]) -> (String, Vec<(String, String)>) {
        let mut address = path.to_owned();
        let (mut query, mut headers) = (Vec::new(), Vec::new());
        for parameter in parameters {
            let name = parameter["name"].as_str().unwrap();
            let place = parameter["in"].as_str().unwrap();
            let value = match self.roll(8) {
                0 => self.nasty(),
                _ => self.valid(name, &parameter["schema"]),
            };
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let value = value.chars().take(2000).collect::<String>();
            let mut escaped = String::new();
            crate::http::field::escape(&value, &mut escaped);
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
            query.push(self.pick(&["surprise=1", "%zz", "a=%ff", "limit", "&&", "="]).to_owned());
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

fn judge(said: &Said, operation: &Value, document: &Value, what: &str) {
    let response = &operation["responses"][said.status.to_string()];
    assert!(response.is_object(), "{} is not documented: {what}: {said:?}", said.status);
    assert!(said.status < 500 || [503, 507].contains(&said.status), "{what}: {said:?}");
    let content = said.header("content-type").unwrap();
    let schema = &response["content"][content]["schema"];
    assert!(schema.is_object(), "{content} is not documented: {what}");
    if content.ends_with("json") {
        let schema = match schema["$ref"].as_str() {
            Some(_) => &document["components"]["schemas"]["Problem"],
            None => schema,
        };
        fits(&said.json(), schema).unwrap_or_else(|why| panic!("{what}: {why}"));
    }
}

async fn ask(
    served: &Served,
    verb: &str,
    dice: &mut Dice,
    path: &str,
    operation: &Value,
) -> (String, Said) {
    let parameters = operation["parameters"].as_array().unwrap();
    let (address, headers) = dice.address(path, parameters);
    let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
    let body = if schema.is_object() { dice.body(schema) } else { Vec::new() };
    let headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let bytes = request(&verb.to_uppercase(), &address, &headers, &body);
    let said = say(served.connect().await, &bytes).await;
    let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(700)]).into_owned();
    (shown, said)
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_comes_is_answered_as_documented() {
    let served = served().await;
    served.arrive(1, &["hello", "builds", "a"]).await;
    let document = served.get("/v1/openapi.json").await.json();
    let mut operations = Vec::new();
    for (path, verbs) in document["paths"].as_object().unwrap() {
        for (verb, operation) in verbs.as_object().unwrap() {
            operations.push((path, verb, operation));
        }
    }
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let (mut judged, mut well) = (0, 0);
    for round in 0..REQUESTS {
        let (path, verb, operation) = operations[dice.index(operations.len())];
        // A stream has no end; its refusals are in its own tests.
        if path == "/v1/events" {
            continue;
        }
        // Sends most often: there is most to go wrong.
        let (path, verb, operation) = match round % 4 {
            0 => {
                let send = "/v1/send".to_owned();
                let operation = &document["paths"]["/v1/send"]["post"];
                (send, "post", operation)
            }
            _ => (path.clone(), verb.as_str(), operation),
        };
        let (what, said) = ask(&served, verb, &mut dice, &path, operation).await;
        // Bytes that are no request never reach a call: hyper answers them by itself.
        if said.status == 400 && said.body.is_empty() {
            continue;
        }
        judge(&said, operation, &document, &what);
        judged += 1;
        well += u32::from(said.status < 300);
    }
    assert!(judged > 2000, "only {judged} reached a call");
    assert!(well > REQUESTS / 10, "only {well} were valid: the generator is blunt");
    served.stop().await;
}
