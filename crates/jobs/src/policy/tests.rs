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
fn the_floor_equals_the_document() {
    let document = include_str!("../../../../docs/design/jobs.md");
    let verdict = |policy: &Policy, action: &Action| {
        policy.judge(&Judged::of(&step(&json!({}), None), action, Asker::Caller)).as_str()
    };
    let (all, none) = (approve_all(), Policy::default());
    let mut rows = Vec::new();
    for risk in Risk::ALL {
        for (always_asks, said) in [(false, "no"), (true, "yes")] {
            let action = action(*risk, always_asks);
            rows.push([risk.as_str(), said, verdict(&none, &action), verdict(&all, &action)]);
        }
    }
    semel_testkit::tables::equals_document(document, "policy_floor", rows);
}

#[test]
fn nothing_lowers_a_floor() {
    let judge = |policy: &Policy, action: &Action, risk: Option<&str>| {
        policy.judge(&Judged::of(&step(&json!({}), risk), action, Asker::Caller))
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
        assert_eq!(policy.judge(&Judged::of(&step, &action, Asker::Caller)), verdict, "{params}");
    }
}

/// What an earlier step gives may be anything, whatever of the parameters it stands for.
#[test]
fn what_is_not_known_yet_is_asked_about() {
    let reject =
        |rule: Rule| Policy { rules: vec![Rule { verdict: Some(Verdict::Reject), ..rule }] };
    let host = || Rule { host: Some("bad.example".to_owned()), ..Rule::default() };
    let method = || Rule { method: Some("POST".to_owned()), ..Rule::default() };
    let action = action(Risk::Low, false);
    for params in
        [json!("$ref:step:a"), json!({"url": "$ref:step:a/url", "method": "$ref:step:a/method"})]
    {
        let step = step(&params, None);
        let judged = Judged::of(&step, &action, Asker::Caller);
        for rule in [host(), method()] {
            assert_eq!(reject(rule).judge(&judged), Verdict::Ask, "{params}");
        }
        // A request that may become any other is no GET.
        let get = Rule {
            method: Some("GET".to_owned()),
            verdict: Some(Verdict::Approve),
            ..Rule::default()
        };
        let rest = Rule { verdict: Some(Verdict::Reject), ..Rule::default() };
        assert_eq!(Policy { rules: vec![get, rest] }.judge(&judged), Verdict::Reject);
    }
    // An address that cannot be read is not known to be another.
    let step = step(&json!({"url": "bad.example"}), None);
    let judged = Judged::of(&step, &action, Asker::Caller);
    assert_eq!(reject(host()).judge(&judged), Verdict::Ask);
}

#[test]
fn a_host_is_the_same_however_it_is_spelled() {
    let action = action(Risk::Low, false);
    for (named, urls) in [
        ("bad.example", &["http://bad.example./", "https://BAD.example..:8080/a"][..]),
        ("127.0.0.2", &["http://127.2/", "http://2130706434/", "http://[::ffff:127.0.0.2]:80/"]),
        ("::1", &["http://[0:0:0:0:0:0:0:1]/"]),
    ] {
        let rule = Rule {
            host: Some(named.to_owned()),
            verdict: Some(Verdict::Reject),
            ..Rule::default()
        };
        let policy = Policy { rules: vec![rule] };
        for url in urls {
            let step = step(&json!({"url": url}), None);
            let judged = Judged::of(&step, &action, Asker::Caller);
            assert_eq!(policy.judge(&judged), Verdict::Reject, "{url}");
        }
    }
}

#[test]
fn a_rule_may_be_about_jobs_of_gears() {
    let rule = |parent: &str| Policy {
        rules: vec![Rule {
            parent: Some(parent.to_owned()),
            verdict: Some(Verdict::Reject),
            ..Rule::default()
        }],
    };
    let (step, action) = (step(&json!({}), None), action(Risk::Low, false));
    for (parent, asker, verdict) in [
        ("one", Asker::Caller, Verdict::Approve),
        ("one", Asker::Gear("one"), Verdict::Reject),
        ("one", Asker::Gear("two"), Verdict::Approve),
        ("*", Asker::Caller, Verdict::Approve),
        ("*", Asker::Gear("two"), Verdict::Reject),
    ] {
        let judged = Judged::of(&step, &action, asker);
        assert_eq!(rule(parent).judge(&judged), verdict, "{parent} {asker:?}");
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
    assert_eq!(
        Policy::default().judge_plan(&plan, known, Asker::Caller),
        (Verdict::Ask, vec!["b", "c"])
    );
    let (verdict, about) = approve_all().judge_plan(&plan, |_| None::<Action>, Asker::Caller);
    assert_eq!((verdict, about), (Verdict::Reject, vec!["a", "b", "c"]));
}

#[test]
fn the_path_of_an_address_is_a_path() {
    let rule = Rule {
        path: Some("/secret".to_owned()),
        verdict: Some(Verdict::Reject),
        ..Rule::default()
    };
    let (policy, low) = (Policy { rules: vec![rule] }, action(Risk::Low, false));
    let judge = |url: &str| {
        policy.judge(&Judged::of(&step(&json!({"url": url}), None), &low, Asker::Caller))
    };
    for inside in ["/secret", "/secret/x?y=1", "/a/../secret", "/%73ecret", "//secret", "/secret#x"]
    {
        assert_eq!(judge(&format!("http://example.com{inside}")), Verdict::Reject, "{inside}");
    }
    for outside in ["", "/", "/secrets", "/a/secret", "/?x=/secret"] {
        assert_eq!(judge(&format!("http://example.com{outside}")), Verdict::Approve, "{outside}");
    }
    assert_eq!(judge("no address"), Verdict::Ask, "nobody can tell");
    assert_eq!(judge("http://example.com/%zz"), Verdict::Ask);
}

/// A gear that knows only paths does not look at the address beside them, and may be told one.
#[test]
fn an_address_beside_a_path_makes_no_rule_fit() {
    let policy = |verdict| Policy {
        rules: vec![
            Rule { path: Some("/open".to_owned()), verdict: Some(verdict), ..Rule::default() },
            Rule { verdict: Some(Verdict::Approve), ..Rule::default() },
        ],
    };
    let high = action(Risk::High, false);
    let judge = |verdict, params: Value| {
        policy(verdict).judge(&Judged::of(&step(&params, None), &high, Asker::Caller))
    };
    let both = |path: &str, url: &str| json!({"path": path, "url": format!("http://a{url}")});
    for (path, url) in [("/closed", "/open/x"), ("/open/x", "/closed")] {
        assert_eq!(judge(Verdict::Approve, both(path, url)), Verdict::Ask, "{path} {url}");
        assert_eq!(judge(Verdict::Reject, both(path, url)), Verdict::Reject, "{path} {url}");
    }
    let not_a_text = json!({"path": 1, "url": "http://a/open"});
    assert_eq!(judge(Verdict::Approve, not_a_text), Verdict::Ask);
    assert_eq!(judge(Verdict::Approve, both("/open/x", "/open")), Verdict::Approve);
    assert_eq!(judge(Verdict::Reject, both("/closed", "/closed")), Verdict::Approve);
}
