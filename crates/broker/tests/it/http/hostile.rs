//! Requests that are not what they should be.

use std::time::Duration;

use futures_util::future::join_all;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use semel_core::clock::UnixMs;
use semel_core::hex::Hex;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::{Asking, ask, exchange, store};
use crate::client::Served;
use crate::support::{NOW, keys};

const TOPICS: &str = "/v1/meshes/test/topics";

pub(super) async fn signatures(served: &Served) {
    let good = Asking::new("POST", TOPICS, r#"{"name":"a"}"#);
    let signed = |asking: &Asking| asking.clone().signed(&keys(1));
    let mut spoiled = vec![good.clone()];
    let mut other = signed(&good);
    other.body = br#"{"name":"b"}"#.to_vec();
    spoiled.push(other);
    let mut other = signed(&good);
    other.target = "/v1/meshes/test/queues".to_owned();
    spoiled.push(other);
    let mut other = signed(&good);
    other.target = format!("{TOPICS}?");
    spoiled.push(other);
    let mut other = signed(&Asking::new("GET", TOPICS, r#"{"name":"a"}"#));
    other.method = "POST".to_owned();
    spoiled.push(other);
    spoiled.push(good.clone().signed_as(&keys(1), "other", NOW, Hex([1; 16])));
    spoiled.push(good.clone().signed(&keys(77)));
    for missing in 0..4 {
        let mut other = signed(&good);
        other.headers.remove(missing);
        spoiled.push(other);
        let mut twice = signed(&good);
        let again = twice.headers[missing].clone();
        twice.headers.push(again);
        spoiled.push(twice);
        let mut broken = signed(&good);
        broken.headers[missing].1.push('0');
        spoiled.push(broken);
    }
    let nowhere = Asking::new("GET", "/v1/meshes/none", "");
    spoiled.push(nowhere.signed_as(&keys(1), "none", NOW, Hex([2; 16])));
    for (number, asking) in spoiled.iter().enumerate() {
        let refused = asking.send(served).await;
        assert_eq!(refused.code(), (401, "unauthorised"), "{number}: {refused:?}");
        assert!(refused.head.contains("www-authenticate: "), "{}", refused.head);
        assert!(refused.head.contains("application/problem+json"), "{}", refused.head);
        assert_eq!(refused.body["type"], "urn:semel:error:unauthorised");
    }
    for (ms, code) in [(300_001, "clock_skew"), (-300_001, "clock_skew"), (300_000, "")] {
        let time = UnixMs(NOW.0 + ms);
        let nonce = Hex(*uuid::Uuid::new_v4().as_bytes());
        let asked = Asking::new("GET", TOPICS, "").signed_as(&keys(1), "test", time, nonce);
        assert_eq!(asked.send(served).await.body["code"].as_str().unwrap_or_default(), code);
    }
    let listed = ask(served, 1, "GET", TOPICS, "").await;
    assert_eq!(listed.items().len(), 1, "nothing of it was done");
}

pub(super) async fn nonces(served: &Served) {
    let once = Asking::new("POST", TOPICS, r#"{"name":"a"}"#).signed(&keys(1));
    assert_eq!(once.send(served).await.status, 201);
    assert_eq!(once.send(served).await.code(), (401, "nonce_reused"));
    // Another request under the same nonce, and the nonce of somebody else.
    let nonce = Hex([5; 16]);
    let get = |member| Asking::new("GET", TOPICS, "").signed_as(&keys(member), "test", NOW, nonce);
    assert_eq!(get(1).send(served).await.status, 200);
    let other = Asking::new("GET", "/v1/meshes/test/queues", "");
    let other = other.signed_as(&keys(1), "test", NOW, nonce).send(served).await;
    assert_eq!(other.code(), (401, "nonce_reused"));
    assert_eq!(get(2).send(served).await.status, 200);
    for _ in 0..5 {
        let one = Asking::new("GET", TOPICS, "").signed(&keys(1));
        let answers = join_all((0..4).map(|_| one.send(served))).await;
        let served_once = answers.iter().filter(|answer| answer.status == 200).count();
        let refused = answers.iter().filter(|answer| answer.code() == (401, "nonce_reused"));
        assert_eq!((served_once, refused.count()), (1, 3), "{answers:?}");
    }
    // It is remembered for as long as its time could pass, and not for ever.
    served.clock.advance(Duration::from_secs(5 * 60));
    assert_eq!(get(1).send(served).await.code(), (401, "nonce_reused"));
    served.clock.advance(Duration::from_millis(1));
    assert_eq!(get(1).send(served).await.code(), (401, "clock_skew"));
    let later = |minutes: i64| UnixMs(NOW.0 + minutes * 60_000);
    assert_eq!(store(served).nonce_sweep(later(9), 100).await.unwrap(), 0);
    assert_eq!(store(served).nonce_sweep(later(10), 100).await.unwrap(), 8);
}

pub(super) async fn shapes(served: &Served) {
    for path in ["/", "/v1", "/v1/meshes/", "/v1/meshes/test/", "/v1/meshes/test/none", "/v2/x"] {
        let missing = Asking::new("GET", path, "").send(served).await;
        assert_eq!(missing.code(), (404, "not_found"), "{path}");
        assert_eq!(missing.body["type"], "urn:semel:error:not_found");
    }
    let wrong = Asking::new("DELETE", TOPICS, "").send(served).await;
    assert_eq!(wrong.code(), (405, "method_not_allowed"));
    assert!(wrong.head.contains("allow: get, post"), "{}", wrong.head);
    let large = "x".repeat((64 << 10) + 1);
    let refused = Asking::new("POST", TOPICS, &large).signed(&keys(1)).send(served).await;
    assert_eq!(refused.code(), (413, "payload_too_large"));
    let most = format!(r#"{{"name":"room"}}{}"#, " ".repeat((64 << 10) - 15));
    assert_eq!(ask(served, 1, "POST", TOPICS, &most).await.status, 201);
    for name in ["bob\u{202e}", "\u{200b}bob", "b\u{2066}ob", "b\u{feff}ob", "b\u{e0041}ob"] {
        let body = format!(r#"{{"name":"{name}"}}"#);
        for path in [TOPICS, "/v1/meshes/test/queues"] {
            let refused = ask(served, 1, "POST", path, &body).await;
            assert_eq!(refused.code(), (400, "invalid_field"), "{name:?}");
            assert_eq!(refused.body["pointer"], "/name");
        }
    }
    // Something that has such a name already could be found.
    let path = format!("{TOPICS}/bob%E2%80%AE/subscribe");
    assert_eq!(ask(served, 1, "POST", &path, "").await.status, 404);
    for name in ["%", "%zz", "%00", "%ff"] {
        let path = format!("{TOPICS}/{name}/subscribe");
        assert_eq!(ask(served, 1, "POST", &path, "").await.code(), (400, "invalid_field"));
    }
}

/// More bodies that do not come than there are places for requests.
pub(super) async fn slow_bodies(served: &Served) {
    let half = format!("POST {TOPICS} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{{");
    let mut halves = Vec::new();
    for _ in 0..300 {
        let mut socket = TcpStream::connect(served.address).await.unwrap();
        let _ = socket.write_all(half.as_bytes()).await;
        halves.push(socket);
    }
    for _ in 0..5 {
        assert_eq!(ask(served, 1, "GET", TOPICS, "").await.status, 200);
    }
}

/// Bodies, headers, paths and queries at random: a refusal always, never a failure.
pub(super) async fn malformed(served: &Served) {
    let mut runner = TestRunner::deterministic();
    let segment = "[a-z]{1,8}|(%[0-9a-fA-F]{2}){1,4}|[!-\"$-.0->@-~]{1,12}|test|topics|members";
    let body = r#"\PC{0,40}|\{"name":("[a-z%]{0,8}"|1|null|\[\[\]\])\}|\{\{\{|(\[){40}"#;
    let strategy = (
        prop_oneof![Just("GET"), Just("POST"), Just("PUT"), Just("HEAD")],
        proptest::collection::vec(segment, 0..5),
        "(after|limit|x)?(=)?([0-9]{1,20}|%[0-9a-f]{2}|[a-z]{0,8})?(&limit=[0-9]{1,4})?",
        body,
        "[ -~]{0,140}",
        0..4_usize,
    );
    for number in 0..300 {
        let drawn = strategy.new_tree(&mut runner).unwrap().current();
        let (method, segments, query, body, header, kind) = drawn;
        let target = format!("/v1/meshes/test/{}?{query}", segments.join("/"));
        let asking = Asking::new(method, &target, &body);
        let asking = match kind {
            0 => asking.header("Semel-Key", header.trim()).header("Semel-Time", "1"),
            1 => asking.header("Authorization", format!("Bearer {}", header.trim())),
            2 => asking.admin(),
            _ => asking.signed(&keys(0)),
        };
        let answer = asking.send(served).await;
        assert!(answer.status < 500, "{number}: {method} {target} {body:?}: {answer:?}");
    }
    for bytes in [&b"GET / HTTP/1.1\r\n\xff\xfe: x\r\n\r\n"[..], b"\0\0\r\n\r\n", b"GET\r\n\r\n"] {
        assert!(exchange(served, bytes).await.status < 500);
    }
    assert_eq!(ask(served, 0, "GET", TOPICS, "").await.status, 200, "it serves");
}
