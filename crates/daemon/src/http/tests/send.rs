//! Sends: every row of the table of mesh.md §5, the id, the destination, and callers that race or
//! go away.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use semel_core::clock::UnixMs;
use semel_core::id::{BrokerMessageId, MemberId, OutboxId, UuidId};
use semel_core::outbox::{OutboxStatus, Outcome};
use semel_testkit::http::{PATIENCE, request, say};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;
use uuid::Uuid;

use super::support::{NOW, Served, options, served, served_in};
use crate::engine::{Requeue, Requeued};
use crate::store::outbox::{
    Delivery, Moved, outbox_accepted_in_tx, outbox_claim_in_tx, outbox_permanent_in_tx,
};
use crate::store::peer::Peer;
use crate::store::upkeep::payload;

const BROKER_ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

fn hello(id: &str) -> Value {
    json!({"to": "#builds", "message": "hello", "client_message_id": id})
}

/// Sends under this id and takes the row into this status.
async fn row_in(served: &Served, status: OutboxStatus, id: &str) -> Value {
    let said = served.post("/v1/send", &hello(id)).await;
    assert_eq!(said.status, 202, "{said:?}");
    let answer = said.json();
    let key = OutboxId::parse(answer["outbox_id"].as_str().unwrap()).unwrap();
    let moved = |moved: Moved| assert!(matches!(moved, Moved::To(_)), "{moved:?}");
    let sqlite = &served.engine.outbox.sqlite;
    let delivery = Delivery {
        broker_message_id: BrokerMessageId::parse(BROKER_ID).unwrap(),
        history_id: Some(7),
    };
    let claim = || sqlite.write(move |tx| outbox_claim_in_tx(tx, key));
    match status {
        OutboxStatus::Pending => {}
        OutboxStatus::Inflight => moved(claim().await.unwrap()),
        OutboxStatus::Done => {
            moved(claim().await.unwrap());
            let done =
                sqlite.write(move |tx| outbox_accepted_in_tx(tx, key, &delivery, UnixMs(NOW)));
            moved(done.await.unwrap());
        }
        OutboxStatus::Dead => {
            moved(claim().await.unwrap());
            let dead = sqlite
                .write(move |tx| outbox_permanent_in_tx(tx, key, "no entry", Outcome::Refused));
            moved(dead.await.unwrap());
        }
        OutboxStatus::Aborted => {
            let requeue =
                Requeue { id: key, client_message_id: None, body: None, even_if_delivered: false };
            let requeued = served.engine.requeue(requeue).await.unwrap();
            assert!(matches!(requeued, Requeued::Done { .. }), "{requeued:?}");
        }
    }
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn every_row_of_the_table() {
    let served = served().await;
    let word = |status: OutboxStatus| format!("outbox_{status}_fingerprint");
    for status in OutboxStatus::ALL.iter().copied() {
        let id = format!("row-{status}");
        let first = row_in(&served, status, &id).await;
        assert_eq!(first["status"], "queued");
        assert_eq!(first["client_message_id"], id.as_str());

        let same = served.post("/v1/send", &hello(&id)).await;
        match status {
            OutboxStatus::Pending => assert_eq!((same.status, same.json()), (202, first.clone())),
            OutboxStatus::Inflight => {
                let mut expected = first.clone();
                expected["status"] = "inflight".into();
                assert_eq!((same.status, same.json()), (202, expected));
            }
            OutboxStatus::Done => {
                let expected = json!({
                    "status": "done", "duplicate": true, "client_message_id": id,
                    "broker_message_id": BROKER_ID, "history_id": 7,
                    "request_fingerprint": first["request_fingerprint"],
                });
                assert_eq!((same.status, same.json()), (200, expected));
            }
            OutboxStatus::Dead | OutboxStatus::Aborted => {
                assert_eq!(same.problem(), (409, "idempotency_key_reused".to_owned()));
                let document = same.json();
                assert_eq!(document["conflict"], format!("{}_match", word(status)));
                let prefix = document["request_fingerprint_prefix"].as_str().unwrap();
                assert_eq!(prefix, &first["request_fingerprint"].as_str().unwrap()[..16]);
                let reason = document.get("reason").cloned();
                let expected = (status == OutboxStatus::Dead).then(|| json!("no entry"));
                assert_eq!(reason, expected);
            }
        }

        let mut other = hello(&id);
        other["message"] = "another".into();
        let differs = served.post("/v1/send", &other).await;
        assert_eq!(differs.problem(), (409, "idempotency_key_reused".to_owned()));
        let document = differs.json();
        assert_eq!(document["conflict"], format!("{}_mismatch", word(status)));
        let prefix = document["request_fingerprint_prefix"].as_str().unwrap();
        assert_eq!(prefix.len(), 16);
        assert_ne!(prefix, &first["request_fingerprint"].as_str().unwrap()[..16]);
        let known = document.get("broker_message_id").is_some();
        assert_eq!(known, status == OutboxStatus::Done, "{document}");
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn racers_with_one_request_get_one_row_and_equal_answers() {
    let served = served().await;
    let hello = hello("race");
    let answers = join_all((0..40).map(|_| served.post("/v1/send", &hello))).await;
    let bodies: BTreeSet<Vec<u8>> = answers.iter().map(|said| said.body.clone()).collect();
    assert!(answers.iter().all(|said| said.status == 202), "{answers:?}");
    assert_eq!(bodies.len(), 1, "all answers are equal");
    let rows = served.get("/v1/outbox").await.json();
    assert_eq!(rows["items"].as_array().unwrap().len(), 1);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn racers_with_different_requests_have_one_winner() {
    let served = served().await;
    let bodies: Vec<Value> = (0..40)
        .map(|n| json!({"to": "#builds", "message": n.to_string(), "client_message_id": "race"}))
        .collect();
    let answers = join_all(bodies.iter().map(|body| served.post("/v1/send", body))).await;
    let won: Vec<_> = answers.iter().filter(|said| said.status == 202).collect();
    assert_eq!(won.len(), 1);
    for lost in answers.iter().filter(|said| said.status != 202) {
        assert_eq!(lost.problem(), (409, "idempotency_key_reused".to_owned()));
        assert_eq!(lost.json()["conflict"], "outbox_pending_fingerprint_mismatch");
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_id_comes_from_the_head_or_the_body_or_is_made() {
    let served = served().await;
    let said = served.post("/v1/send", &json!({"to": "#a", "message": ""})).await;
    assert_eq!(said.status, 202);
    assert_eq!(said.json()["client_message_id"].as_str().unwrap().len(), 26);
    let send = |headers: Vec<(&'static str, &'static str)>, body: &'static str| {
        let served = &served;
        async move { served.post_with("/v1/send", &headers, body.as_bytes()).await }
    };
    let said = send(vec![("Idempotency-Key", "k1")], r##"{"to":"#a","message":"x"}"##).await;
    assert_eq!(said.json()["client_message_id"], "k1");
    let both = r##"{"to":"#a","message":"x","client_message_id":"k1"}"##;
    assert_eq!(send(vec![("Idempotency-Key", "k1")], both).await.status, 202);
    let said = send(vec![("Idempotency-Key", "k2")], both).await;
    assert_eq!(said.problem(), (400, "idempotency_key_conflict".to_owned()));
    let said = send(vec![("Idempotency-Key", "a"), ("Idempotency-Key", "b")], both).await;
    assert_eq!(said.problem().0, 400);
    for id in [" x".to_owned(), String::new(), "é".to_owned(), "x".repeat(256)] {
        let body = json!({"to": "#a", "message": "", "client_message_id": id});
        let said = served.post("/v1/send", &body).await;
        assert_eq!(said.problem(), (400, "invalid_client_message_id".to_owned()));
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_named_and_nothing_is_written() {
    let served = served().await;
    let (key, long) = ("AB".repeat(32), "x".repeat(256));
    let cases = [
        (json!({"message": "x"}), "missing_field", "/to"),
        (json!({"to": "#a"}), "missing_field", ""),
        (
            json!({"to": "#a", "message": "x", "body_base64": "eA=="}),
            "invalid_field",
            "/body_base64",
        ),
        (json!({"to": "#a", "body_base64": "%"}), "invalid_field", "/body_base64"),
        (json!({"to": "#a", "message": 7}), "invalid_field", "/message"),
        (json!({"to": "#a", "message": "x", "tto": 1}), "unknown_field", ""),
        (json!({"to": "a", "message": "x"}), "invalid_field", "/to"),
        (json!({"to": "#", "message": "x"}), "invalid_field", "/to"),
        (json!({"to": key, "message": "x"}), "invalid_field", "/to"),
        (json!({"to": format!("#{long}"), "message": "x"}), "invalid_field", "/to"),
        (json!({"to": "#a\u{0}", "message": "x"}), "nul_in_field", "/to"),
        (json!({"to": "#a", "message": "x", "priority": "urgent"}), "invalid_field", "/priority"),
        (json!({"to": "#a", "message": "x", "meta": []}), "invalid_field", "/meta"),
        (json!({"to": "#a", "message": "x", "reply_to_id": ""}), "invalid_field", "/reply_to_id"),
        (json!({"to": "#a", "message": "x", "mentions": ["ada"]}), "invalid_field", "/mentions/0"),
        (
            json!({"to": "#a", "message": "x", "meta": {"mentions": "ada"}}),
            "invalid_field",
            "/meta/mentions",
        ),
    ];
    for (body, code, pointer) in cases {
        let said = served.post("/v1/send", &body).await;
        assert_eq!(said.problem(), (400, code.to_owned()), "{body}");
        assert_eq!(said.json().get("pointer").and_then(Value::as_str).unwrap_or(""), pointer);
    }
    for (text, code) in [
        ("", "missing_field"),
        ("[]", "invalid_field"),
        ("{", "invalid_json"),
        (r##"{"to":"#a","to":"#b","message":""}"##, "duplicate_key"),
        (r##"{"to":"#a","message":"","meta":{"n":9007199254740993}}"##, "integer_out_of_range"),
    ] {
        let said = served.post_with("/v1/send", &[], text.as_bytes()).await;
        assert_eq!(said.problem(), (400, code.to_owned()), "{text}");
    }
    assert_eq!(served.get("/v1/outbox").await.json()["items"], json!([]));
    // The type of the content does not matter, its content does.
    let plain = [("Content-Type", "text/plain")];
    let said = served.post_with("/v1/send", &plain, br##"{"to":"#a","message":""}"##).await;
    assert_eq!(said.status, 202);
    served.stop().await;
}

fn peer(number: u8, name: &str) -> Peer {
    let member_id: MemberId = UuidId::new(Uuid::from_u128(number.into()));
    let pubkey = format!("{number:02x}").repeat(32);
    Peer { member_id, name: name.to_owned(), pubkey, role: "member".into(), profile: "{}".into() }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_resolved_once_and_never_guessed() {
    let served = served().await;
    let outbox = &served.engine.outbox;
    outbox.peers_replace(vec![peer(1, "ada"), peer(2, "bob"), peer(3, "bob")]).await.unwrap();
    let to_ada = json!({"to": "@ada", "message": "hi", "client_message_id": "to-ada"});
    let first = served.post("/v1/send", &to_ada).await;
    assert_eq!(first.status, 202);
    let row = served.get("/v1/outbox/to-ada").await.json();
    assert_eq!(row["destination_ref"], "01".repeat(32));
    assert_eq!(row["to"], "@ada");

    let said = served.post("/v1/send", &json!({"to": "@eve", "message": "hi"})).await;
    assert_eq!(said.problem(), (404, "recipient_not_found".to_owned()));
    let detail = said.json()["detail"].to_string();
    assert!(detail.contains("the broker cannot be asked now"), "{detail}");
    let said = served.post("/v1/send", &json!({"to": "@bob", "message": "hi"})).await;
    assert_eq!(said.problem(), (409, "ambiguous_name".to_owned()));
    let candidates = said.json()["candidates"].clone();
    let keys: Vec<_> = candidates.as_array().unwrap().iter().map(|c| &c["pubkey"]).collect();
    assert_eq!(keys, ["02".repeat(32).as_str(), "03".repeat(32).as_str()]);
    assert_eq!(served.get("/v1/outbox").await.json()["items"].as_array().unwrap().len(), 1);

    // A retry means what it meant the first time, whoever is called so now.
    for peers in [vec![], vec![peer(4, "ada")], vec![peer(4, "ada"), peer(5, "ada")]] {
        outbox.peers_replace(peers).await.unwrap();
        assert_eq!(served.post("/v1/send", &to_ada).await, first);
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mentions_are_keys_in_meta_sorted_and_once() {
    let served = served().await;
    served.engine.outbox.peers_replace(vec![peer(1, "ada"), peer(9, "bob")]).await.unwrap();
    let (ada, bob, eve) = ("01".repeat(32), "09".repeat(32), "05".repeat(32));
    let post = json!({
        "topic": "builds", "message": "x", "client_message_id": "m",
        "mentions": ["@bob", eve, "@ada", bob], "meta": {"b": 1, "mentions": [bob]},
    });
    let said = served.post("/v1/topic/post", &post).await;
    assert_eq!(said.status, 202, "{said:?}");
    let id = OutboxId::parse(said.json()["outbox_id"].as_str().unwrap()).unwrap();
    let read = served.engine.outbox.sqlite.read(move |connection| payload(connection, id));
    let meta = read.await.unwrap().unwrap().meta;
    let expected = json!({"b": 1, "mentions": [ada, eve, bob]});
    assert_eq!(serde_json::from_str::<Value>(&meta).unwrap(), expected);
    // The same send, spelt out.
    let spelt = json!({
        "to": "#builds", "message": "x", "client_message_id": "m",
        "meta": {"mentions": [ada, eve, bob], "b": 1},
    });
    assert_eq!(served.post("/v1/send", &spelt).await, said);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_in_mentions_are_resolved_once() {
    let served = served().await;
    let outbox = &served.engine.outbox;
    outbox.peers_replace(vec![peer(1, "ada"), peer(2, "bob")]).await.unwrap();
    let post = |id: &str, mentions: Value| {
        let meta = json!({"a": 1});
        json!({"topic": "builds", "message": "x", "client_message_id": id, "meta": meta,
               "mentions": mentions})
    };
    let first = served.post("/v1/topic/post", &post("m", json!(["@ada", "@bob"]))).await;
    assert_eq!(first.status, 202, "{first:?}");
    // A retry means what it meant the first time, in whatever order it says so.
    for peers in [vec![], vec![peer(4, "ada")], vec![peer(4, "ada"), peer(5, "ada")]] {
        outbox.peers_replace(peers).await.unwrap();
        for mentions in [json!(["@ada", "@bob"]), json!(["@bob", "@ada", "@bob"])] {
            assert_eq!(served.post("/v1/topic/post", &post("m", mentions)).await, first);
        }
        let other = served.post("/v1/topic/post", &post("m", json!(["@ada"]))).await;
        assert_eq!(other.problem(), (409, "idempotency_key_reused".to_owned()));
    }
    let keys = json!(["01".repeat(32), "02".repeat(32)]);
    assert_eq!(served.post("/v1/topic/post", &post("m", keys)).await, first, "spelt out");
    let mut other = post("m", json!(["@ada", "@bob"]));
    other["meta"]["a"] = 2.into();
    let other = served.post("/v1/topic/post", &other).await;
    assert_eq!(other.problem(), (409, "idempotency_key_reused".to_owned()));
    // What is new is not guessed, and leaves its id free.
    let said = served.post("/v1/topic/post", &post("new", json!(["@eve"]))).await;
    assert_eq!(said.problem(), (404, "recipient_not_found".to_owned()));
    assert_eq!(said.json()["pointer"], "/mentions/0", "{said:?}");
    let said = served.post("/v1/topic/post", &post("new", json!(["@ada"]))).await;
    assert_eq!(said.problem(), (409, "ambiguous_name".to_owned()));
    assert_eq!(said.json()["candidates"].as_array().unwrap().len(), 2, "{said:?}");
    assert_eq!(served.post("/v1/topic/post", &post("new", json!([]))).await.status, 202);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_begun_is_done_to_its_end_when_the_caller_goes_away() {
    let served = served().await;
    let outbox = &served.engine.outbox;
    // The writer stands still until we let it go.
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let (standing, stands) = tokio::sync::oneshot::channel::<()>();
    let mut standing = Some(standing);
    let blocked = outbox.sqlite.write(move |_| {
        drop(standing.take());
        let _ = gone.recv();
        Ok(())
    });
    let ask = async {
        // What comes from now on is not in the writer's hands yet.
        let _ = stands.await;
        let mut streams = Vec::new();
        for number in 0..30 {
            let body = hello(&format!("gone-{number}")).to_string();
            let mut stream = served.connect().await;
            stream.write_all(&request("POST", "/v1/send", &[], body.as_bytes())).await.unwrap();
            streams.push(stream);
        }
        let wait = async {
            while outbox.sqlite.queue_len() < 20 {
                served.get("/v1/version").await;
            }
        };
        timeout(PATIENCE, wait).await.expect("they wait for the writer");
        drop(streams);
        // Time for the door to notice.
        for _ in 0..50 {
            assert_eq!(served.get("/v1/version").await.status, 200);
        }
        go.send(()).unwrap();
    };
    let (unblocked, ()) = tokio::join!(blocked, ask);
    unblocked.unwrap();
    // Counted after the commit, and so only when an accept went on without its caller.
    let counted = async {
        loop {
            let list = served.get("/v1/outbox").await.json();
            let rows = list["items"].as_array().unwrap().len();
            if rows >= 15 && outbox.accepted() == rows as u64 {
                return;
            }
        }
    };
    timeout(PATIENCE, counted).await.expect("every accept went on");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_outbox_takes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let served = served_in(folder.path(), options(), None, 1).await;
    let said = served.post("/v1/send", &hello("full")).await;
    assert_eq!(said.problem(), (507, "insufficient_storage".to_owned()));
    let detail = said.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("outbox.db") && detail.contains("outbox.max_bytes"), "{detail}");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_outbox_still_answers_for_what_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let served = served_in(folder.path(), options(), None, u64::MAX).await;
    let waiting = row_in(&served, OutboxStatus::Pending, "waiting").await;
    row_in(&served, OutboxStatus::Done, "done").await;
    served.stop().await;
    let served = served_in(folder.path(), options(), None, 1).await;
    let said = served.post("/v1/send", &hello("waiting")).await;
    assert_eq!((said.status, said.json()), (202, waiting));
    let said = served.post("/v1/send", &hello("done")).await;
    assert_eq!((said.status, &said.json()["duplicate"]), (200, &json!(true)));
    let mut other = hello("done");
    other["message"] = "another".into();
    let said = served.post("/v1/send", &other).await;
    assert_eq!(said.problem(), (409, "idempotency_key_reused".to_owned()));
    let said = served.post("/v1/send", &hello("new")).await;
    assert_eq!(said.problem(), (507, "insufficient_storage".to_owned()));
    assert_eq!(served.get("/v1/outbox/new").await.status, 404, "nothing is written");
    // And no new streams.
    let said = served.get("/v1/events").await;
    assert_eq!(said.problem(), (507, "insufficient_storage".to_owned()));
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_is_kept_for_more_calls() {
    let served = served().await;
    let stream = served.connect().await;
    let mut both = Vec::new();
    for id in ["one", "two"] {
        let body = hello(id).to_string();
        let text = request("POST", "/v1/send", &[], body.as_bytes());
        let text = String::from_utf8(text).unwrap();
        let last = id == "two";
        both.extend(if last { text } else { text.replace("Connection: close\r\n", "") }.bytes());
    }
    let said = say(stream, &both).await;
    assert_eq!(String::from_utf8_lossy(&said.body).matches("HTTP/1.1 202").count(), 1);
    served.stop().await;
}
