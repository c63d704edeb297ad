//! Who may not, and what is malformed: refused by name, and nothing makes it fail.

use semel_testkit::conformance::{Case, conforms};
use serde_json::{Value, json};

use crate::support::{Served, attempt, envelope, on_postgres, on_sqlite, with};

const CASES: &[Case<Served>] = &[
    Case { name: "the operator's calls need the token", run: |s| Box::pin(tokens(s)) },
    Case { name: "a grant opens its own effect", run: |s| Box::pin(opens(s)) },
    Case { name: "paths, methods and bodies", run: |s| Box::pin(shapes(s)) },
    Case { name: "lists go on where they ended", run: |s| Box::pin(paging(s)) },
];

#[tokio::test(flavor = "multi_thread")]
async fn hostile_on_sqlite() {
    assert_eq!(conforms(CASES, on_sqlite).await, CASES.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_on_postgres() {
    assert_eq!(conforms(CASES, on_postgres).await, CASES.len());
}

async fn tokens(served: &Served) {
    let key = "ab".repeat(32);
    let calls = [
        ("POST", "/v1/grants".to_owned()),
        ("GET", "/v1/grants?domain=deploys".to_owned()),
        ("DELETE", format!("/v1/grants/{}", "ab".repeat(16))),
        ("GET", format!("/v1/effects/{key}")),
        ("POST", format!("/v1/effects/{key}/verify")),
        ("GET", "/v1/registrar/gate?domain=deploys".to_owned()),
        ("POST", "/v1/registrar/gate".to_owned()),
    ];
    for (method, path) in &calls {
        for headers in ["", "Authorization: Bearer wrong\r\n", "Authorization: Basic x\r\n"] {
            let refused = served.ask(method, path, headers, "{}").await;
            assert_eq!(refused.said().1, "unauthorised", "{method} {path} {refused:?}");
        }
    }
}

async fn opens(served: &Served) {
    let (mine, other) = (envelope("opens"), envelope("opens/other"));
    let (grant, foreign) = (served.grant(&mine).await, served.grant(&other).await);
    let won = served.register(&mine, &grant, 0).await;
    let path = format!("/v1/effects/{}", won.body["logical_request_key"].as_str().unwrap());
    let ask = |grant: &Value| format!("Semel-Grant: {grant}\r\n");
    let resolved = served.ask("GET", &path, &ask(&grant), "").await;
    assert_eq!((resolved.status, resolved.result()), (200, won.result()));
    let spoilt = with(&grant, "not_after", "2099-01-01T00:00:00.000Z");
    for wrong in [&foreign, &spoilt, &json!({})] {
        assert_eq!(served.ask("GET", &path, &ask(wrong), "").await.status, 401);
    }
}

async fn shapes(served: &Served) {
    let mine = envelope("shapes");
    let grant = served.grant(&mine).await;
    for (method, path, status) in [
        ("PUT", "/v1/effects", 405),
        ("PUT", "/v1/grants", 405),
        ("GET", "/v1/grants/zz", 405),
        ("DELETE", "/v1/grants/zz", 404),
        ("GET", "/v1/effects/zz", 404),
        ("GET", "/v1/registrar/gate", 400),
        ("GET", "/v1/registrar/gate?domain=a&domain=b", 400),
        ("GET", "/v1/registrar/gate?domain=%00", 400),
        ("GET", "/v1/grants?domain=a&limit=501", 400),
        ("GET", "/v1/grants?domain=a&after=zz", 400),
        ("GET", "/v1/grants?domain=a&page=2", 400),
    ] {
        let refused = served.operate(method, path, &Value::Null).await;
        assert_eq!(refused.status, status, "{method} {path} {refused:?}");
    }
    let good = attempt(&mine, &grant, 0);
    let long = with(&mine, "canonical_target", "x".repeat(1025));
    for body in [
        json!([]),
        json!({}),
        with(&good, "extra", 1),
        with(&good, "attempt_id", ""),
        with(&good, "attempt_id", 7),
        with(&good, "logical_request_key", "ab".repeat(32)),
        attempt(&with(&mine, "protocol_version", 2), &grant, 0),
        attempt(&with(&mine, "ttl_s", 0), &grant, 0),
        attempt(&with(&mine, "issued_at", 1), &grant, 0),
        attempt(&with(&mine, "artifact_hash", "xyz"), &grant, 0),
        attempt(&with(&mine, "operation", "compensate"), &grant, 0),
        attempt(&long, &grant, 0),
        attempt(&mine, &json!("grant"), 0),
    ] {
        let refused = served.ask("POST", "/v1/effects", "", &body.to_string()).await;
        assert_eq!(refused.status, 400, "{body} {refused:?}");
    }
    for text in ["", "{", "\u{0}", &"[".repeat(1000), &format!("\"{}\"", "x".repeat(70_000))] {
        let refused = served.ask("POST", "/v1/effects", "", text).await;
        assert!((400..500).contains(&refused.status), "{refused:?}");
    }
    assert_eq!(served.register(&mine, &grant, 0).await.status, 201, "nothing was used up");
}

async fn paging(served: &Served) {
    for number in 0..5 {
        served.grant(&envelope(&format!("paging/{number}"))).await;
    }
    let (mut path, mut seen) = ("/v1/grants?domain=deploys&limit=2".to_owned(), Vec::new());
    for _ in 0..3 {
        let page = served.operate("GET", &path, &Value::Null).await;
        let items = page.body["items"].as_array().unwrap().clone();
        seen.extend(items.iter().map(|item| item["nonce"].as_str().unwrap().to_owned()));
        match page.body["next"].as_str() {
            Some(next) => path = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(seen.len(), 5);
    assert!(seen.is_sorted());
}
