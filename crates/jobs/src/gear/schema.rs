//! The JSON Schemas of a gear's manifest. Their author is a stranger, and they are checked on the
//! engine's own threads: so a schema has a price, the price has a bound, and a document is checked
//! only if that costs little.

use std::collections::HashMap;

use jsonschema::{PatternOptions, Validator};
use serde_json::Value;

use crate::limits::{
    PATTERN_BYTES_MAX, SCHEMA_COST_MAX, SCHEMA_DEPTH_MAX, SCHEMA_PATTERN_COST, SCHEMA_WORK_AT_ONCE,
    SCHEMA_WORK_MAX,
};

/// A schema that can be used.
pub(crate) struct Schema {
    validator: Validator,
    /// How many parts of it may look at one part of a document.
    cost: usize,
}

impl Schema {
    /// Refuses what is no schema, and what could take for ever.
    pub(crate) fn read(document: &Value) -> Result<Self, String> {
        let cost = Prices { whole: document, known: HashMap::new() }.of(document, 0)?;
        // Patterns in time that grows with the text alone, in bounded memory, whatever they are.
        let patterns = PatternOptions::regex();
        let patterns = patterns.size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX);
        let options = jsonschema::options().with_pattern_options(patterns);
        let validator = options.build(document).map_err(|error| error.to_string())?;
        Ok(Self { validator, cost })
    }

    /// How many steps it takes to check a document, at the most.
    pub(crate) fn work(&self, document: &Value) -> usize {
        self.cost.saturating_mul(parts(document))
    }

    /// What is wrong with a document; the first thing only.
    pub(crate) fn check(&self, document: &Value) -> Result<(), String> {
        let work = self.work(document);
        if work > SCHEMA_WORK_MAX {
            return Err(format!("its schema cannot be checked: that would take {work} steps"));
        }
        let is_long = work > SCHEMA_WORK_AT_ONCE;
        match tokio::runtime::Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
            Ok(tokio::runtime::RuntimeFlavor::MultiThread) if is_long => {
                tokio::task::block_in_place(|| self.checked(document))
            }
            Ok(_) | Err(_) => self.checked(document),
        }
    }

    fn checked(&self, document: &Value) -> Result<(), String> {
        let checked = self.validator.validate(document);
        checked.map_err(|error| format!("{error} (at {})", error.instance_path()))
    }
}

/// What the parts of a schema cost, with everything that they refer to.
struct Prices<'a> {
    whole: &'a Value,
    /// Of what was referred to; nothing while it is being looked at.
    known: HashMap<&'a str, Option<usize>>,
}

impl<'a> Prices<'a> {
    fn of(&mut self, part: &'a Value, depth: usize) -> Result<usize, String> {
        if depth > SCHEMA_DEPTH_MAX {
            return Err(format!("it is more than {SCHEMA_DEPTH_MAX} levels deep"));
        }
        let mut cost = 1_usize;
        match part {
            Value::Object(object) => {
                for (name, inner) in object {
                    let more = match (name.as_str(), inner) {
                        ("$ref", Value::String(pointer)) => self.referred(pointer, depth + 1)?,
                        // They make a reference lead elsewhere than its text says.
                        (
                            "$id" | "$anchor" | "$dynamicAnchor" | "$recursiveAnchor"
                            | "$dynamicRef" | "$recursiveRef",
                            Value::String(_) | Value::Bool(_),
                        ) => return Err(format!("{name} is not possible here")),
                        // It would have `id` where others have `$id`.
                        ("$schema", Value::String(draft)) if draft.contains("draft-04") => {
                            return Err(format!("{draft} is not possible here"));
                        }
                        ("pattern", Value::String(_)) => SCHEMA_PATTERN_COST,
                        ("patternProperties", Value::Object(patterns)) => {
                            let inner = self.of(inner, depth + 1)?;
                            inner.saturating_add(patterns.len() * SCHEMA_PATTERN_COST)
                        }
                        _ => self.of(inner, depth + 1)?,
                    };
                    cost = cost.saturating_add(more);
                }
            }
            Value::Array(list) => {
                for inner in list {
                    cost = cost.saturating_add(self.of(inner, depth + 1)?);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        match cost > SCHEMA_COST_MAX {
            true => Err(format!("it has more than {SCHEMA_COST_MAX} parts with what it refers to")),
            false => Ok(cost),
        }
    }

    fn referred(&mut self, pointer: &'a str, depth: usize) -> Result<usize, String> {
        match self.known.get(pointer) {
            Some(Some(cost)) => return Ok(*cost),
            Some(None) => return Err(format!("{pointer:?} refers to itself")),
            None => {}
        }
        // The validator would read a percent sign as the beginning of another character.
        let plain = pointer.strip_prefix('#').filter(|path| !path.contains('%'));
        let target = plain.and_then(|path| self.whole.pointer(path));
        let target = target.ok_or_else(|| format!("{pointer:?} is no part of it"))?;
        self.known.insert(pointer, None);
        let cost = self.of(target, depth)?;
        self.known.insert(pointer, Some(cost));
        Ok(cost)
    }
}

/// How many parts a document has.
fn parts(document: &Value) -> usize {
    let (mut count, mut left) = (0, vec![document]);
    while let Some(part) = left.pop() {
        count += 1;
        match part {
            Value::Object(object) => left.extend(object.values()),
            Value::Array(list) => left.extend(list),
            // A pattern looks at every character.
            Value::String(text) => count += text.len() / 16,
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Each of its parts refers twice to the next one.
    fn bomb(levels: usize) -> Value {
        let part = |level: usize| {
            let next = json!({"$ref": format!("#/$defs/{}", level + 1)});
            (level.to_string(), json!({"allOf": [next.clone(), next]}))
        };
        let mut parts: serde_json::Map<_, _> = (0..levels).map(part).collect();
        parts.insert(levels.to_string(), json!({"type": "number"}));
        json!({"$defs": parts, "$ref": "#/$defs/0"})
    }

    #[test]
    fn what_could_take_for_ever_is_refused() {
        let usual = json!({"type": "object", "required": ["a"], "properties": {
            "a": {"$ref": "#/$defs/name"},
            "b": {"type": "array", "items": {"$ref": "#/$defs/name"}}},
            "$defs": {"name": {"type": "string", "pattern": "^[a-z]+$"}}});
        let usual = Schema::read(&usual).expect("a schema");
        usual.check(&json!({"a": "x", "b": ["y"]})).expect("it fits");
        assert!(usual.check(&json!({"a": 1})).expect_err("it does not").ends_with("(at /a)"));
        Schema::read(&bomb(5)).expect("a schema").check(&json!(1)).expect("it fits");
        for bad in [
            bomb(30),
            json!({"$ref": "#"}),
            json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
                "$ref": "#/$defs/a"}),
            json!({"$ref": "#/nowhere"}),
            json!({"$ref": "http://127.0.0.1/schema"}),
            json!({"$dynamicRef": "#a"}),
            json!({"pattern": "(a"}),
            json!({"type": 3}),
            // Other names for a part that costs more than it seems to.
            json!({"$defs": {"%61": {}, "a": {"allOf": [{"$ref": "#/$defs/%61"}]}},
                "$ref": "#/$defs/a"}),
            json!({"$id": "x:a", "properties": {"a": {"$id": "x:b"}}}),
            json!({"properties": {"a": {"$anchor": "b"}}}),
            json!({"$schema": "http://json-schema.org/draft-04/schema#"}),
            json!({"allOf": vec![json!({"pattern": "a"}); 200]}),
            json!({"pattern": "(((\\w{50}){50}){50})"}),
        ] {
            assert!(Schema::read(&bad).is_err(), "{bad}");
        }
        let long: String = "a".repeat(1 << 20);
        let backtracks = Schema::read(&json!({"pattern": "^(a+)+$"})).expect("a schema");
        assert!(backtracks.check(&json!(format!("{long}!"))).is_err());
    }

    #[test]
    fn what_would_take_long_is_not_begun() {
        let list: Vec<Value> = (0..2000).map(|n| json!({"const": n})).collect();
        let schema = Schema::read(&json!({"items": {"anyOf": list}})).expect("a schema");
        schema.check(&json!([1, 2, 3])).expect("it fits");
        let many: Vec<Value> = (0..400_000).map(|n| json!(n % 2000)).collect();
        let refused = schema.check(&json!(many)).expect_err("too much");
        assert!(refused.contains("cannot be checked"), "{refused}");
    }
}
