//! Plans: what they say, what they are called, what they refer to.

use std::sync::Arc;

use serde_json::json;

use super::*;

fn plan(steps: Value) -> Plan {
    Plan::read(&json!({ "steps": steps })).expect("a plan")
}

#[test]
fn what_a_person_approves_has_every_value_in_it() {
    let of =
        |params: Value| plan(json!([{"id": "a", "gear": "g", "action": "x", "params": params}]));
    let base = of(json!({"to": "me", "amount": 1})).hash();
    assert_eq!(base, of(json!({"amount": 1, "to": "me"})).hash(), "order says nothing");
    assert_ne!(base, of(json!({"to": "me", "amount": 2})).hash());
    assert_ne!(base, of(json!({"to": "you", "amount": 1})).hash());
    let text = of(json!({"n": 1.5})).to_canonical();
    assert_eq!(Plan::parse(text.as_bytes()).expect("it is read again").to_canonical(), text);
}

#[test]
fn the_same_work_has_the_same_fingerprint_whatever_it_is_called() {
    let of = |id: &str, n: u64| {
        let step = json!({"id": id, "gear": "g", "action": "x", "params": {"n": n}});
        plan(json!([step])).steps[0].fingerprint()
    };
    assert_eq!(of("a", 1), of("b", 1));
    assert_ne!(of("a", 1), of("a", 2));
}

#[test]
fn what_nobody_knows_is_refused_where_it_stands() {
    let step = json!({"id": "a", "gear": "g", "action": "x"});
    for (name, value) in [
        ("trusted", json!(true)),
        ("timeout_ms", json!(0)),
        ("risk", json!("none")),
        ("depends_on", json!("a")),
        ("continue_on_failure", json!("yes")),
        ("condition", json!({"ref": "$ref:step:a", "op": "like"})),
    ] {
        let mut step = step.clone();
        step[name] = value;
        let refusal = Plan::read(&json!({"steps": [step]})).expect_err(name);
        assert!(refusal.pointer.starts_with("/steps/0/"), "{refusal}");
    }
    assert!(Plan::read(&json!({"steps": []})).is_err());
}

#[test]
fn neighbours_of_one_group_run_together() {
    let step = |id: &str, group: Value| {
        let (gear, action) = ("g", "x");
        json!({"id": id, "gear": gear, "action": action, "parallel_group": group})
    };
    let plan = plan(json!([
        step("a", json!("one")),
        step("b", json!("one")),
        step("c", json!("two")),
        step("d", json!(null)),
        step("e", json!(null)),
        step("f", json!("one")),
    ]));
    let groups = [0, 2, 3, 4, 5, 6].map(|place| plan.group_at(place));
    assert_eq!(groups, [0..2, 2..3, 3..4, 4..5, 5..6, 6..6]);
}

#[test]
fn a_step_is_given_what_others_gave_or_is_not_run() {
    let outcomes = Outcomes::from([
        ("done".to_owned(), Outcome::Done(Arc::new(json!({"n": 7, "list": ["x"]})))),
        ("failed".to_owned(), Outcome::Failed),
        ("skipped".to_owned(), Outcome::Skipped),
    ]);
    let input_of = |more: Value| {
        let mut step = json!({"id": "s", "gear": "g", "action": "x"});
        for (name, value) in more.as_object().expect("fields") {
            step[name] = value.clone();
        }
        input(&plan(json!([step])).steps[0], &outcomes)
    };
    let given =
        input_of(json!({"params": {"a": ["$ref:step:done/n"], "b": "$ref:step:done/list/0"}}));
    assert!(matches!(given, StepInput::Run(params) if params == json!({"a": [7], "b": "x"})));
    for more in [
        json!({"params": "$ref:step:failed/n"}),
        json!({"params": ["$ref:step:skipped"]}),
        json!({"depends_on": ["failed"]}),
        json!({"condition": {"ref": "$ref:step:done/n", "op": "gt", "value": 7}}),
        json!({"condition": {"ref": "$ref:step:skipped", "op": "exists"}}),
        json!({"condition": {"ref": "$ref:step:done/gone", "op": "ne", "value": 1}}),
    ] {
        assert!(matches!(input_of(more.clone()), StepInput::Skip), "{more}");
    }
    // It never reaches a gear as text.
    assert!(matches!(input_of(json!({"params": "$ref:step:done/gone"})), StepInput::Dangling(_)));
    for (op, value, holds) in [
        ("eq", json!(7.0), true),
        ("ne", json!(7), false),
        ("lt", json!(8), true),
        ("gt", json!(6), true),
        ("gt", json!("6"), false),
        ("exists", json!(null), true),
    ] {
        let condition = json!({"ref": "$ref:step:done/n", "op": op, "value": value});
        let runs = matches!(input_of(json!({"condition": condition})), StepInput::Run(_));
        assert_eq!(runs, holds, "{op} {value}");
    }
}

/// A short plan can stand for very much; it is refused before that is made.
#[test]
fn what_references_stand_for_has_a_bound() {
    let much = "x".repeat(400 * 1024);
    let outcomes =
        Outcomes::from([("big".to_owned(), Outcome::Done(Arc::new(json!({"text": much}))))]);
    let given = |count: usize| {
        let params = vec!["$ref:step:big/text"; count];
        let step = json!({"id": "s", "gear": "g", "action": "x", "params": {"all": params}});
        input(&plan(json!([step])).steps[0], &outcomes)
    };
    assert!(matches!(given(2), StepInput::Run(_)));
    for count in [3, 1000] {
        assert_eq!(given(count), StepInput::TooLarge, "{count}");
    }
}
