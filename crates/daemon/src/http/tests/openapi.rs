//! The document and the door say the same.

use std::collections::BTreeSet;

use semel_testkit::http::{request, say};
use semel_testkit::openapi::has_names;
use serde_json::{Value, json};

use super::support::served;
use crate::http::table::ROUTES;

#[tokio::test(flavor = "multi_thread")]
async fn every_call_is_documented_and_every_documented_call_is_there() {
    let served = served().await;
    let document = served.get("/v1/openapi.json").await.json();
    assert_eq!(document["openapi"], "3.1.0");
    has_names(&document);
    let mut documented = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (verb, operation) in operations.as_object().unwrap() {
            documented.insert((verb.to_uppercase(), path.clone()));
            assert!(ids.insert(operation["operationId"].to_string()), "{path}");
            let responses = operation["responses"].as_object().unwrap();
            assert!(responses.keys().any(|status| status.starts_with('2')), "{path}");
            assert!(
                ["400", "401", "403", "429", "500", "503"]
                    .iter()
                    .all(|status| responses.contains_key(*status))
            );
        }
    }
    let table = ROUTES.iter().map(|route| (route.verb.to_string(), route.path.to_owned()));
    assert_eq!(documented, table.collect());
    for (verb, path) in &documented {
        let path = path.replace("{id}", "x");
        if path == "/v1/events" {
            continue;
        }
        let said = say(served.connect().await, &request(verb, &path, &[], b"")).await;
        let code = (said.status >= 400).then(|| said.problem().1);
        assert_ne!(code.as_deref(), Some("not_found"), "{verb} {path}");
        assert_ne!(said.status, 405, "{verb} {path}");
        let said = say(served.connect().await, &request("PUT", &path, &[], b"")).await;
        assert_eq!(said.problem(), (405, "method_not_allowed".to_owned()));
        assert!(said.header("allow").unwrap().split(", ").any(|allowed| allowed == verb));
    }
    for path in ["/", "/v1", "/v1/sendx", "/v1/outbox/a/b", "/v1/outbox/", "/v2/send"] {
        assert_eq!(served.get(path).await.problem(), (404, "not_found".to_owned()), "{path}");
    }
    served.stop().await;
}

/// In a body `null` is absence, and the document says so; what is needed cannot be `null`.
#[tokio::test(flavor = "multi_thread")]
async fn what_may_be_missing_may_be_null() {
    let served = served().await;
    let document = served.get("/v1/openapi.json").await.json();
    let records = &document["components"]["schemas"];
    let fields = &records["SendRequest"]["properties"];
    assert_eq!(fields["to"]["type"], "string");
    assert_eq!(fields["message"]["type"], json!(["string", "null"]));
    let words = json!({"$ref": "#/components/schemas/SendRequestPriority"});
    assert_eq!(fields["priority"]["anyOf"], json!([words, {"type": "null"}]));
    let words = json!({"type": "string", "enum": ["now", "next", "low"]});
    assert_eq!(records["SendRequestPriority"], words);
    let mut body = json!({"to": "#a", "message": "x"});
    for (field, schema) in fields.as_object().unwrap() {
        if schema["type"][1] == "null" || schema["anyOf"].is_array() {
            body.as_object_mut().unwrap().entry(field).or_insert(Value::Null);
        }
    }
    assert_eq!(served.post("/v1/send", &body).await.status, 202, "{body}");
    body["to"] = Value::Null;
    assert_eq!(served.post("/v1/send", &body).await.problem().1, "missing_field");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_daemon_says_of_itself() {
    let served = served().await;
    served.post("/v1/send", &json!({"to": "#a", "message": "x", "client_message_id": "1"})).await;
    served.post("/v1/send", &json!({"to": "#a", "message": "x", "client_message_id": "1"})).await;
    served.arrive(1, &["one", "two"]).await;
    served.arrive(2, &["two"]).await;
    let health = served.get("/v1/health").await.json();
    assert_eq!(health["queue_depth"], 1);
    let version = served.get("/v1/version").await.json();
    assert_eq!(version["mesh"], "local");
    assert_eq!(version["broker_features_negotiated"], json!({}));
    assert_eq!(served.get("/v1/compat").await.status, 200);
    let said = served.get("/v1/metrics").await;
    let text = String::from_utf8(said.body.clone()).unwrap();
    for line in [
        "semel_daemon_connected 0",
        r#"semel_daemon_outbox_depth{status="pending"} 1"#,
        r#"semel_daemon_send_total{kind="topic",status="queued"} 1"#,
        r#"semel_daemon_send_total{kind="topic",status="duplicate"} 1"#,
        r#"semel_daemon_dedupe_total{direction="out"} 1"#,
        r#"semel_daemon_dedupe_total{direction="in"} 1"#,
        r#"semel_daemon_recv_total{kind="topic"} 2"#,
        r#"semel_daemon_reconnects_total{reason="gone"} 0"#,
        r#"semel_daemon_disk_pct{kind="outbox"} 0"#,
        r#"semel_daemon_disk_pct{kind="disk"} "#,
        "semel_daemon_local_token_rotations_total 0",
        r#"semel_daemon_ipc_request_total{endpoint="/v1/send",status="202",transport="socket"} 2"#,
        "semel_daemon_ipc_duration_seconds_count",
        "# EOF",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_problem_is_in_the_document_of_its_call() {
    let served = served().await;
    let document: Value = served.get("/v1/openapi.json").await.json();
    served.stop().await;
    for route in ROUTES {
        let verb = route.verb.as_str().to_lowercase();
        let responses = &document["paths"][route.path][verb.as_str()]["responses"];
        for code in route.problems {
            assert!(responses[code.http().to_string()].is_object(), "{} {code}", route.path);
        }
    }
}
