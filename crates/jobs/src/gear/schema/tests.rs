//! Bombs, prices and budgets.

use serde_json::json;

use super::*;
use crate::limits::SCHEMA_CHECKS_AT_ONCE;

fn read(document: &Value) -> Result<Schema, String> {
    Schema::read(document, &mut Budget::default())
}

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
    let usual = read(&usual).expect("a schema");
    usual.check(&json!({"a": "x", "b": ["y"]})).expect("it fits");
    assert!(usual.check(&json!({"a": 1})).expect_err("it does not").ends_with("(at /a)"));
    read(&bomb(5)).expect("a schema").check(&json!(1)).expect("it fits");
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
        json!({"pattern": "(x|[a-z]{1600})y"}),
        json!({"pattern": "(?i)\\pL"}),
        json!({"pattern": "\\p{L}?".repeat(100)}),
        json!({"pattern": "a".repeat(2000)}),
        json!({"unevaluatedProperties": false}),
        json!({"allOf": [{"unevaluatedItems": {"type": "string"}}]}),
        json!({"$schema": "http://json-schema.org/draft-07/schema#",
            "contentMediaType": "application/json", "contentSchema": {"type": "string"}}),
    ] {
        assert!(read(&bad).is_err(), "{bad}");
    }
    let long: String = "a".repeat(1 << 20);
    let backtracks = read(&json!({"pattern": "^(a+)+$"})).expect("a schema");
    assert!(backtracks.check(&json!(format!("{long}!"))).is_err());
}

#[test]
fn what_would_take_long_is_not_begun() {
    let list: Vec<Value> = (0..2000).map(|n| json!({"const": n})).collect();
    let schema = read(&json!({"items": {"anyOf": list}})).expect("a schema");
    schema.check(&json!([1, 2, 3])).expect("it fits");
    let many: Vec<Value> = (0..400_000).map(|n| json!(n % 2000)).collect();
    let refused = schema.check(&json!(many)).expect_err("too much");
    assert!(refused.contains("cannot be checked"), "{refused}");
    // A pattern of many states looks at each byte with each of them.
    let large = read(&json!({"pattern": "(x|[a-z]{300})y"})).expect("a schema");
    let refused = large.check(&json!("ab".repeat(1 << 20))).expect_err("too much");
    assert!(refused.contains("cannot be checked"), "{refused}");
}

/// Prices, so that nobody makes one of them smaller by mistake.
#[test]
fn what_it_costs() {
    let price = |document: &Value| read(document).expect("a schema").price;
    let plain = price(&json!({"type": "string"}));
    assert_eq!(plain, Price { parts: 2, bytes: 6 + 5, per_byte: 0, unique: 0 });
    let named = price(&json!({"properties": {"a": {"type": "string"}}}));
    assert_eq!((named.parts, named.bytes), (4, 11 + 2 * 2 + 3 * 11));
    let referred = json!({"$defs": {"a": {"type": "string"}},
        "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]});
    assert_eq!(price(&referred).parts, 1 + (1 + 2) + (1 + 2 * (1 + 2)));
    let small = price(&json!({"pattern": "^[a-z]+$"}));
    let large = price(&json!({"pattern": "^[a-z]{300}$"}));
    assert_eq!(small.parts, 1 + SCHEMA_PATTERN_COST + 8);
    assert!(large.per_byte >= 4 * small.per_byte && small.per_byte > 0, "{small:?} {large:?}");
    let names = price(&json!({"patternProperties": {"^a": true, "^b": true}}));
    assert_eq!(names.per_byte, 2 * small.per_byte);
    assert_eq!(price(&json!({"uniqueItems": true})).unique, 1);
    // Every level of a document is compared with its neighbours.
    let schema = read(&json!({"uniqueItems": true})).expect("a schema");
    let deep = json!([[[[1]]]]);
    assert_eq!(schema.work(&deep), 2 * 5 + (1 + 2 + 3 + 4 + 5));
    // Names of fields are texts, too.
    let schema = read(&json!({"propertyNames": {"pattern": "^a+$"}})).expect("a schema");
    let work = schema.work(&json!({"a".repeat(1000): 1}));
    assert!(work >= 1000 * small.per_byte, "{work}");
}

/// The validator keeps the names of all that is above a part with each part.
#[test]
fn long_names_above_many_parts_are_refused() {
    let mut schema = json!({"allOf": vec![json!({"type": "string"}); 2000]});
    for _ in 0..60 {
        schema = json!({"properties": {"k".repeat(1000): schema}});
    }
    let refused = read(&schema).err().expect("too much");
    assert!(refused.contains("bytes"), "{refused}");
}

#[test]
fn all_schemas_of_a_manifest_have_one_budget() {
    let list: Vec<Value> = (0..3000).map(|_| json!({"type": "string"})).collect();
    let schema = json!({"allOf": list});
    let mut budget = Budget::default();
    Schema::read(&schema, &mut budget).expect("the first");
    Schema::read(&schema, &mut budget).expect("the second");
    let refused = (0..3).find_map(|_| Schema::read(&schema, &mut budget).err());
    assert!(refused.is_some_and(|text| text.contains("together")), "it was paid for");
}

/// The reason names the place of each branch: a long name times many branches would be gigabytes.
#[test]
fn what_is_wrong_is_not_told_at_any_price() {
    let list: Vec<Value> = (0..4000).map(|n| json!({"const": n})).collect();
    let schema = read(&json!({"additionalProperties": {"anyOf": list}})).expect("a schema");
    let refused = schema.check(&json!({"k".repeat(100_000): "x"})).expect_err("it does not fit");
    assert!(refused.len() < 1000 && refused.contains("too large"), "{}", refused.len());
}

/// What is checked by a format could cost anything, and depends on the draft otherwise.
#[test]
fn formats_are_not_checked() {
    let schema = json!({"$schema": "http://json-schema.org/draft-07/schema#", "format": "regex"});
    read(&schema).expect("a schema").check(&json!("(")).expect("it fits");
}

/// Beside those that take long there is room for everything else.
#[test]
fn only_so_many_long_checks_go_on_at_once() {
    let under_way: Vec<_> = (0..SCHEMA_CHECKS_AT_ONCE).map(|_| turns::take()).collect();
    let checked = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build();
        let schema = read(&json!({"items": {"pattern": "^a*$"}})).expect("a schema");
        let long = json!(vec!["a"; SCHEMA_WORK_AT_ONCE]);
        assert!(schema.work(&long) > SCHEMA_WORK_AT_ONCE);
        let checking = async move { schema.check(&long) };
        runtime.expect("a runtime").block_on(async { tokio::spawn(checking).await })
    });
    while turns::waiting() == 0 {
        assert!(!checked.is_finished(), "it has waited for nobody");
        std::thread::yield_now();
    }
    drop(under_way);
    checked.join().expect("no panic").expect("a task").expect("it fits");
}
