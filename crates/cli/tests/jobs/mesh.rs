//! Steps that send, and messages that are jobs: killed in between, each is there once.

use serde_json::{Value, json};

use crate::process::{Home, Lottery, up};
use crate::relay::{Cut, Relay};
use crate::world::World;

fn bodies(inbox: &Value) -> Vec<&str> {
    inbox["items"].as_array().unwrap().iter().map(|item| item["body"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_sent_once_although_nobody_saw_that_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let (daemon, ready) = up(folder.path(), &["--no-jobs"]);
    let to = ready["pubkey"].as_str().unwrap();
    for cut in [Cut::After, Cut::Before] {
        let mut home = Home::new();
        let relay = Relay::start(home.path(), ready["socket"].as_str().unwrap());
        relay.cut(Some(("/v1/send", cut)));
        home.through(relay.socket.clone());
        let mut engine = home.serve();
        let text = format!("hello {cut:?}");
        let params = json!({"to": to, "message": text});
        let send = json!({"id": "tell", "gear": "mesh", "action": "send", "params": params});
        let id = engine.run(&[send]).await;
        relay.saw("/v1/send", true).await;
        engine.kill();
        relay.cut(None);
        let engine = home.serve();
        assert_eq!(engine.ended(&id).await["status"], "completed");
        let inbox = daemon.look("/v1/inbox?limit=500", |all| bodies(all).contains(&&*text)).await;
        assert_eq!(bodies(&inbox).iter().filter(|body| **body == text).count(), 1);
        let key = inbox["items"].as_array().unwrap().last().unwrap()["client_message_id"].clone();
        assert_eq!(key, format!("{id}:tell"));
    }
    let inbox = daemon.get("/v1/inbox?limit=500").await;
    assert_eq!(bodies(&inbox).len(), 2, "{inbox:#}");
}

/// Everything in one process, killed at any moment: the message, the job and its end.
#[tokio::test(flavor = "multi_thread")]
async fn everything_in_one_is_killed_while_it_sends() {
    let (home, world) = (Home::new(), World::start().await);
    let (mut all, ready) = up(home.path(), &[]);
    let to = ready["pubkey"].as_str().unwrap();
    let mut lottery = Lottery(7);
    let mut sent = Vec::new();
    for number in 0..6 {
        let text = format!("message {number}");
        let params = json!({"to": to, "message": text});
        let send = json!({"id": "tell", "gear": "mesh", "action": "send", "params": params});
        let id = all.run(&[send]).await;
        world.pass(std::time::Duration::from_millis(lottery.below(40))).await;
        all.kill();
        all = up(home.path(), &[]).0;
        assert_eq!(all.ended(&id).await["status"], "completed");
        sent.push(text);
    }
    let inbox = all.look("/v1/inbox?limit=500", |all| bodies(all).len() >= sent.len()).await;
    assert_eq!(bodies(&inbox), sent);
}

async fn becomes_one_job(place: &'static str, ack: &'static str) {
    let world = World::start().await;
    let folder = tempfile::tempdir().unwrap();
    let (daemon, ready) = up(folder.path(), &["--no-jobs"]);
    let (kind, body) = match place.strip_prefix("queue:") {
        Some(name) => ("queue", json!({"queue": name})),
        None => ("topic", json!({"topic": place.trim_start_matches('#')})),
    };
    let made = daemon.post(&format!("/v1/{kind}/create"), &body).await;
    assert!(made.is_success(), "{made:?}");
    if kind == "topic" {
        let subscribed = daemon.post("/v1/topic/subscribe", &body).await;
        assert!(subscribed.is_success(), "{subscribed:?}");
    }
    let mut home = Home::with(&format!("from = [\"{place}\"]\n"));
    let relay = Relay::start(home.path(), ready["socket"].as_str().unwrap());
    home.through(relay.socket.clone());
    relay.cut(Some((ack, Cut::Before)));
    let mut engine = home.serve();
    let job = json!({"plan": {"steps": [world.step("work", "POST")]}}).to_string();
    let sent = daemon.post("/v1/send", &json!({"to": place, "message": job})).await;
    assert!(sent.is_success(), "{sent:?}");
    relay.saw(ack, true).await;
    world.answered("work", 1).await;
    let jobs = engine.look("/v1/jobs?status=completed", |jobs| jobs["items"][0].is_object()).await;
    engine.kill();
    relay.cut(None);
    let engine = home.serve();
    // It comes back, is known, and is given back.
    relay.saw(ack, false).await;
    let now = engine.get("/v1/jobs").await;
    assert_eq!(now["items"].as_array().unwrap().len(), 1, "{now:#}");
    assert_eq!(now["items"][0]["id"], jobs["items"][0]["id"]);
    assert_eq!(now["items"][0]["source"], "mesh");
    assert_eq!(world.count("work"), 1);
}

/// Acknowledged, and yet not lost: its operator finds it, and why it is no job.
async fn is_kept_aside(place: &'static str, ack: &'static str) {
    let folder = tempfile::tempdir().unwrap();
    let (daemon, ready) = up(folder.path(), &["--no-jobs"]);
    let (kind, body) = match place.strip_prefix("queue:") {
        Some(name) => ("queue", json!({"queue": name})),
        None => ("topic", json!({"topic": place.trim_start_matches('#')})),
    };
    daemon.post(&format!("/v1/{kind}/create"), &body).await;
    if kind == "topic" {
        daemon.post("/v1/topic/subscribe", &body).await;
    }
    let mut home = Home::with(&format!("from = [\"{place}\"]\n"));
    let relay = Relay::start(home.path(), ready["socket"].as_str().unwrap());
    home.through(relay.socket.clone());
    let _engine = home.serve();
    let sent = daemon.post("/v1/send", &json!({"to": place, "message": "no job at all"})).await;
    assert!(sent.is_success(), "{sent:?}");
    relay.saw(ack, false).await;
    let aside = daemon.get("/v1/inbox/aside").await;
    let item = &aside["items"][0];
    assert_eq!(item["source"], "jobs", "{aside:#}");
    assert!(item["body"].as_str().unwrap().contains("no job at all"), "{aside:#}");
    assert_eq!(daemon.get("/v1/health").await["set_aside"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_a_topic_that_is_no_job_is_kept_aside() {
    is_kept_aside("#work", "/v1/inbox/ack").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_a_queue_that_is_no_job_is_kept_aside() {
    is_kept_aside("queue:work", "/v1/queue/ack").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_a_topic_is_one_job() {
    becomes_one_job("#work", "/v1/inbox/ack").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_a_queue_is_one_job() {
    becomes_one_job("queue:work", "/v1/queue/ack").await;
}
