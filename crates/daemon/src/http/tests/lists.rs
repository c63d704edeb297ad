//! Lists and what is done to their items.

use semel_core::id::OutboxId;
use semel_core::outbox::Outcome;
use serde_json::{Value, json};

use super::support::{Served, arrived, served};
use crate::store::inbox::Way;
use crate::store::outbox::{outbox_claim_in_tx, outbox_permanent_in_tx};
use crate::store::peer::Peer;

async fn seqs_of(served: &Served, path: &str) -> Vec<i64> {
    let said = served.get(path).await;
    assert_eq!(said.status, 200, "{said:?}");
    let page = said.json();
    page["items"].as_array().unwrap().iter().map(|item| item["seq"].as_i64().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_inbox_is_paged_filtered_and_searched() {
    let served = served().await;
    served.arrive(1, &["apple", "pear tree", "plum", "apple tree", "fig"]).await;
    served.clock.advance(std::time::Duration::from_secs(1));
    served.arrive(6, &["six"]).await;
    let item = served.get("/v1/inbox?limit=1").await.json();
    let expected = json!({
        "id": 1, "client_message_id": "m-1",
        "broker_message_id": "00000000-0000-0000-0000-000000000001", "seq": 1,
        "destination_kind": "topic", "topic": "odd",
        "sender_member_id": "00000000-0000-0000-0000-00000000004d",
        "sender_pubkey": "cd".repeat(32), "sender_name": "ada", "priority": "next",
        "body": "apple", "meta": {"a": 1}, "accepted_at": "2027-01-15T08:00:00.000Z",
        "received_at": "2027-01-15T08:00:00.000Z", "reply_to_id": null,
    });
    assert_eq!(item["items"], json!([expected]));
    assert_eq!(item["next"], "/v1/inbox?after=1&limit=1");

    let mut path = "/v1/inbox?limit=2&topic=%23odd".to_owned();
    let mut pages = Vec::new();
    loop {
        let page = served.get(&path).await.json();
        let seqs = page["items"].as_array().unwrap().iter().map(|i| i["seq"].as_i64().unwrap());
        pages.push(seqs.collect::<Vec<_>>());
        match page["next"].as_str() {
            Some(next) => path = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(pages, [vec![1, 3], vec![5]]);
    assert_eq!(seqs_of(&served, "/v1/inbox?since=2027-01-15T08:00:01Z").await, [6]);
    assert_eq!(seqs_of(&served, &format!("/v1/inbox?from={}", "cd".repeat(32))).await.len(), 6);
    assert!(seqs_of(&served, &format!("/v1/inbox?from={}", "ee".repeat(32))).await.is_empty());
    assert_eq!(seqs_of(&served, "/v1/inbox/search?q=apple").await, [1, 4]);
    assert_eq!(seqs_of(&served, "/v1/inbox/search?q=tree+apple").await, [4]);
    assert_eq!(seqs_of(&served, "/v1/inbox/search?q=apple&after=1").await, [4]);
    assert!(seqs_of(&served, "/v1/inbox/search?q=%22*+OR+NEAR(").await.is_empty());
    for path in [
        "/v1/inbox?limit=0",
        "/v1/inbox?limit=501",
        "/v1/inbox?since=today",
        "/v1/inbox?after=x",
        "/v1/inbox?limit=1&limit=2",
        "/v1/inbox?topic=%ff",
    ] {
        assert_eq!(served.get(path).await.problem().0, 400, "{path}");
    }
    assert_eq!(served.get("/v1/inbox/search").await.problem().1, "missing_field");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_text_come_in_base64() {
    let served = served().await;
    let mut message = arrived(1, "");
    message.body = vec![0xff, 0x00];
    served.engine.inbox.receive([message].into(), Way::Live).await.unwrap();
    let item = served.get("/v1/inbox").await.json()["items"][0].clone();
    assert_eq!((&item["body"], &item["body_base64"]), (&Value::Null, &json!("/wA=")));
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_goes_on_where_it_was_and_never_back() {
    let served = served().await;
    served.arrive(1, &["a", "b", "c"]).await;
    let ack = |id: i64| json!({"reader": "cron", "id": id});
    assert_eq!(served.post("/v1/inbox/ack", &ack(2)).await.json(), ack(2));
    assert_eq!(seqs_of(&served, "/v1/inbox?reader=cron").await, [3]);
    assert_eq!(seqs_of(&served, "/v1/inbox?reader=other").await, [1, 2, 3]);
    assert_eq!(served.post("/v1/inbox/ack", &ack(1)).await.json(), ack(2));
    assert_eq!(served.post("/v1/inbox/ack", &json!({"id": 1})).await.problem().0, 400);
    // What has not come is not read: it would never be seen.
    assert_eq!(served.post("/v1/inbox/ack", &ack(4)).await.problem().1, "invalid_field");
    served.arrive(4, &["d"]).await;
    assert_eq!(seqs_of(&served, "/v1/inbox?reader=cron").await, [3, 4]);
    assert_eq!(served.post("/v1/inbox/ack", &ack(4)).await.json(), ack(4));
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_could_not_be_taken_is_kept_shown_and_dropped() {
    let served = served().await;
    let refused = json!({"reason": "no plan", "message": "{\"request\":1}", "seq": 7});
    for _ in 0..2 {
        assert_eq!(served.post("/v1/inbox/aside", &refused).await.status, 200);
    }
    assert_eq!(served.get("/v1/health").await.json()["set_aside"], 1, "once");
    let metrics = String::from_utf8(served.get("/v1/metrics").await.body).unwrap();
    assert!(metrics.contains("semel_daemon_invalid_inbound_total 1"), "{metrics}");
    let item = served.get("/v1/inbox/aside").await.json()["items"][0].clone();
    assert_eq!((&item["source"], &item["reason"]), (&json!("jobs"), &json!("no plan")));
    assert_eq!((&item["seq"], &item["body"]), (&json!(7), &refused["message"]));
    let drop = format!("/v1/inbox/aside/{}/drop", item["id"]);
    assert_eq!(served.post(&drop, &json!({})).await.json(), json!({"dropped": true}));
    assert_eq!(served.post(&drop, &json!({})).await.json(), json!({"dropped": false}));
    assert_eq!(served.get("/v1/inbox/aside").await.json()["items"], json!([]));
    served.stop().await;
}

async fn send(served: &Served, id: &str) -> OutboxId {
    let body = json!({"to": "#a", "message": "x", "client_message_id": id});
    let said = served.post("/v1/send", &body).await;
    OutboxId::parse(said.json()["outbox_id"].as_str().unwrap()).unwrap()
}

async fn kill(served: &Served, id: OutboxId, outcome: Outcome) {
    let sqlite = &served.engine.outbox.sqlite;
    sqlite.write(move |tx| outbox_claim_in_tx(tx, id)).await.unwrap();
    sqlite.write(move |tx| outbox_permanent_in_tx(tx, id, "no", outcome)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_outbox_is_listed_inspected_and_requeued() {
    let served = served().await;
    for number in 0..5 {
        send(&served, &format!("r-{number}")).await;
    }
    let dead = send(&served, "dead").await;
    kill(&served, dead, Outcome::Refused).await;
    let page = served.get("/v1/outbox?limit=4").await.json();
    assert_eq!(page["items"].as_array().unwrap().len(), 4);
    let rest = served.get(page["next"].as_str().unwrap()).await.json();
    assert_eq!(rest["items"].as_array().unwrap().len(), 2);
    assert_eq!(rest["next"], Value::Null);
    let failed = served.get("/v1/outbox?failed=true").await.json();
    assert_eq!(failed["items"][0]["client_message_id"], "dead");
    assert_eq!(failed["items"][0]["last_error"], "no");
    assert_eq!(failed["items"].as_array().unwrap().len(), 1);

    let path = format!("/v1/outbox/{dead}/requeue");
    let said = served.post(&path, &json!({"client_message_id": "r-0"})).await;
    assert_eq!(said.problem(), (409, "client_message_id_taken".to_owned()));
    let said = served.post(&path, &json!({"client_message_id": "anew", "message": "y"})).await;
    assert_eq!(said.status, 202, "{said:?}");
    assert_eq!(said.json()["supersedes"], dead.to_string());
    let said = served.post(&path, &json!({})).await;
    assert_eq!(said.problem(), (409, "requeue_not_possible".to_owned()));
    assert_eq!(said.json()["outbox_status"], "aborted");
    // Once more, from the row that took its place.
    assert_eq!(served.post("/v1/outbox/anew/requeue", &json!({})).await.status, 202);
    let row = served.get("/v1/outbox/dead").await.json();
    assert_eq!(row["status"], "aborted");
    let chain = row["chain"].as_array().unwrap();
    assert_eq!(chain.len(), 2);
    assert_eq!((&chain[0]["status"], &chain[1]["status"]), (&json!("aborted"), &json!("pending")));
    assert_eq!(served.get(&format!("/v1/outbox/{dead}")).await.json(), row);
    for path in ["/v1/outbox/nobody", "/v1/outbox/%20"] {
        assert_eq!(served.get(path).await.problem(), (404, "outbox_row_not_found".to_owned()));
    }
    assert_eq!(served.get("/v1/outbox?after=x").await.problem().0, 400);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_have_been_delivered_is_not_sent_again_unasked() {
    let served = served().await;
    let id = send(&served, "unknown").await;
    kill(&served, id, Outcome::Unknown).await;
    let path = "/v1/outbox/unknown/requeue";
    let said = served.post(path, &json!({})).await;
    assert_eq!(said.problem(), (409, "requeue_outcome_unknown".to_owned()));
    let said = served.post(path, &json!({"even_if_delivered": true})).await;
    assert_eq!(said.status, 202, "{said:?}");
    let said = served.post("/v1/outbox/prune", &json!({"older_than_days": 7})).await;
    assert_eq!(said.json(), json!({"pruned": 0}));
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_are_paged() {
    let served = served().await;
    let peer = |number: u8| Peer {
        member_id: semel_core::id::UuidId::new(uuid::Uuid::from_u128(number.into())),
        name: format!("n{number}"),
        pubkey: format!("{number:02x}").repeat(32),
        role: "member".to_owned(),
        profile: r#"{"summary":"x"}"#.to_owned(),
    };
    served.engine.outbox.peers_replace((1..=5).map(peer).collect()).await.unwrap();
    let page = served.get("/v1/peers?limit=3").await.json();
    assert_eq!(page["items"].as_array().unwrap().len(), 3);
    assert_eq!(
        page["items"][0],
        json!({
            "member_id": "00000000-0000-0000-0000-000000000001", "name": "n1",
            "pubkey": "01".repeat(32), "role": "member", "profile": {"summary": "x"},
            "online": false,
        })
    );
    let rest = served.get(page["next"].as_str().unwrap()).await.json();
    assert_eq!(rest["items"].as_array().unwrap().len(), 2);
    assert_eq!(rest["next"], Value::Null);
    served.stop().await;
}
