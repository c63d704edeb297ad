//! Rules over floors.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::gear::manifest::Recovery;

fn action(risk: Risk, always_asks: bool) -> Action {
    Action {
        about: String::new(),
        params: json!({}),
        result: None,
        risk,
        recovery: Recovery::Ask,
        timeout: Duration::from_secs(1),
        always_asks,
    }
}

fn step(params: &Value, risk: Option<&str>) -> Step {
    let document = json!({"steps": [
        {"id": "s", "gear": "http", "action": "request", "params": params, "risk": risk},
    ]});
    Plan::read(&document).expect("a plan").steps.remove(0)
}

fn approve_all() -> Policy {
    Policy { rules: vec![Rule { verdict: Some(Verdict::Approve), ..Rule::default() }] }
}

#[test]
fn nothing_lowers_a_floor() {
    let judge = |policy: &Policy, action: &Action, risk: Option<&str>| {
        policy.judge(&Judged { step: &step(&json!({}), risk), action })
    };
    let (all, none) = (approve_all(), Policy::default());
    assert_eq!(judge(&all, &action(Risk::Critical, false), Some("low")), Verdict::Ask);
    assert_eq!(judge(&all, &action(Risk::Low, true), None), Verdict::Ask);
    assert_eq!(judge(&all, &action(Risk::Low, false), Some("critical")), Verdict::Ask);
    assert_eq!(judge(&all, &action(Risk::High, false), None), Verdict::Approve);
    assert_eq!(judge(&none, &action(Risk::High, false), Some("low")), Verdict::Ask);
    assert_eq!(judge(&none, &action(Risk::Medium, false), None), Verdict::Approve);
}

#[test]
fn the_first_rule_that_fits_decides() {
    let rule = |host: &str, method: Option<&str>, verdict| Rule {
        action: Some("http.*".to_owned()),
        host: Some(host.to_owned()),
        method: method.map(str::to_owned),
        verdict: Some(verdict),
        ..Rule::default()
    };
    let policy = Policy {
        rules: vec![
            rule("good.example", Some("GET"), Verdict::Approve),
            rule("good.example", None, Verdict::Ask),
            Rule { verdict: Some(Verdict::Reject), ..Rule::default() },
        ],
    };
    for (params, verdict) in [
        (json!({"url": "http://good.example/a"}), Verdict::Approve),
        (json!({"url": "http://GOOD.example:80/a", "method": "get"}), Verdict::Approve),
        (json!({"url": "http://good.example/a", "method": "POST"}), Verdict::Ask),
        (json!({"url": "http://good.example@bad.example/"}), Verdict::Reject),
        (json!({"url": "http://bad.example/?http://good.example"}), Verdict::Reject),
        (json!({"url": "http://good.example.bad/"}), Verdict::Reject),
    ] {
        let (step, action) = (step(&params, None), action(Risk::Low, false));
        assert_eq!(policy.judge(&Judged { step: &step, action: &action }), verdict, "{params}");
    }
}

#[test]
fn a_plan_is_judged_by_its_strictest_step_and_one_that_nobody_knows_is_refused() {
    let plan = json!({"steps": [
        {"id": "a", "gear": "http", "action": "request"},
        {"id": "b", "gear": "http", "action": "request", "risk": "critical"},
        {"id": "c", "gear": "http", "action": "request", "risk": "high"},
    ]});
    let plan = Plan::read(&plan).expect("a plan");
    let known = |_: &Step| Some(action(Risk::Low, false));
    assert_eq!(Policy::default().judge_plan(&plan, known), (Verdict::Ask, vec!["b", "c"]));
    let (verdict, about) = approve_all().judge_plan(&plan, |_| None::<Action>);
    assert_eq!((verdict, about), (Verdict::Reject, vec!["a", "b", "c"]));
}
