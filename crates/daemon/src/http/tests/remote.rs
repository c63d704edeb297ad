//! What the broker is asked: it is away, or it says yes or no.

use std::sync::Arc;

use semel_core::clock::UnixMs;
use semel_core::code::Code;
use semel_core::id::UuidId;
use semel_core::refusal::Refusal;
use serde_json::{Value, json};
use uuid::Uuid;

use super::support::{NOW, options, served, served_with};
use crate::remote::{Anyway, Asking, Invite, Profile, Queue, Remote, RemoteError, Topic};
use crate::store::peer::Peer;

fn calls() -> Vec<(&'static str, Option<Value>)> {
    let topic = || Some(json!({"topic": "#builds"}));
    vec![
        ("/v1/topic/create", topic()),
        ("/v1/topic/subscribe", topic()),
        ("/v1/topic/unsubscribe", topic()),
        ("/v1/topic/delete", Some(json!({"topic": "#builds", "confirm": true}))),
        ("/v1/topic/list", None),
        ("/v1/queue/create", Some(json!({"queue": "work"}))),
        ("/v1/queue/delete", Some(json!({"queue": "work"}))),
        ("/v1/queue/list", None),
        ("/v1/peers/refresh", Some(json!({}))),
        ("/v1/profile", Some(json!({"summary": "x", "status": "y"}))),
        ("/v1/mesh/invite", Some(json!({"uses": 2}))),
        ("/v1/mesh/leave", Some(json!({}))),
        ("/v1/member/revoke", Some(json!({"pubkey": "ab"}))),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_broker_nothing_is_promised() {
    let served = served().await;
    let queues = [
        ("/v1/queue/take", Some(json!({"queue": "work", "max": 3}))),
        ("/v1/queue/ack", Some(json!({"queue": "work", "seqs": [1, 2]}))),
    ];
    for (path, body) in calls().into_iter().chain(queues) {
        let said = match body {
            Some(body) => served.post(path, &body).await,
            None => served.get(path).await,
        };
        assert_eq!(said.problem(), (503, "broker_unavailable".to_owned()), "{path}");
    }
    let health = served.get("/v1/health").await.json();
    assert_eq!(health["connected"], false);
    assert_eq!(health["mesh"], "local");
    assert_eq!(served.post("/v1/heartbeat", &json!({})).await.json()["status"], "ok");
    served.stop().await;
}

/// A broker that says yes to all but one.
struct Kind;

fn answer<'a, T: Send + 'a>(answer: T) -> Asking<'a, T> {
    Box::pin(async move { Ok(answer) })
}

impl Remote for Kind {
    fn topic_create(&self, name: String) -> Asking<'_, Topic> {
        answer(Topic { name, subscribed: Some(true), created_at: Some(UnixMs(NOW)) })
    }
    fn topic_subscribe(&self, name: String) -> Asking<'_, Topic> {
        answer(Topic { name, subscribed: Some(true), created_at: None })
    }
    fn topic_unsubscribe(&self, _: String) -> Asking<'_, Topic> {
        let refusal = Refusal::new(Code::TopicNotFound, "there is no such topic");
        Box::pin(async move { Err(RemoteError::Refused(refusal)) })
    }
    fn topic_list(&self, after: Option<String>, limit: i64) -> Asking<'_, Vec<Topic>> {
        let names = (0..5).map(|n| format!("t{n}"));
        let names = names.filter(|name| after.as_ref().is_none_or(|after| name > after));
        let topic = |name| Topic { name, subscribed: Some(false), created_at: None };
        answer(names.take(usize::try_from(limit).unwrap()).map(topic).collect())
    }
    fn topic_delete(&self, name: String, anyway: Anyway) -> Asking<'_, ()> {
        assert_eq!((name.as_str(), anyway), ("builds", Anyway::Yes));
        answer(())
    }
    fn queue_delete(&self, name: String, anyway: Anyway) -> Asking<'_, ()> {
        assert_eq!((name.as_str(), anyway), ("work", Anyway::No));
        answer(())
    }
    fn queue_create(&self, name: String) -> Asking<'_, Queue> {
        answer(Queue { name, waiting: Some(0) })
    }
    fn queue_list(&self, _: Option<String>, _: i64) -> Asking<'_, Vec<Queue>> {
        answer(Vec::new())
    }
    fn members(&self) -> Asking<'_, Vec<Peer>> {
        answer(vec![Peer {
            member_id: UuidId::new(Uuid::from_u128(9)),
            name: "ada".to_owned(),
            pubkey: "09".repeat(32),
            role: "owner".to_owned(),
            profile: "{}".to_owned(),
        }])
    }
    fn profile_set(&self, profile: Profile) -> Asking<'_, ()> {
        assert_eq!((profile.summary.as_deref(), profile.status.as_deref()), (Some("x"), Some("y")));
        answer(())
    }
    fn invite_create(&self, uses: u64, ttl_s: u64) -> Asking<'_, Invite> {
        assert_eq!(ttl_s, 86_400);
        let expires_at = UnixMs(NOW);
        answer(Invite { invite: "semel://join/x".to_owned(), uses, expires_at })
    }
    fn member_revoke(&self, _: String) -> Asking<'_, ()> {
        answer(())
    }
    fn leave(&self) -> Asking<'_, ()> {
        answer(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_brokers_answers_are_passed_on() {
    let served = served_with(options(), Some(Arc::new(Kind))).await;
    for (path, body) in calls() {
        let said = match body {
            Some(body) => served.post(path, &body).await,
            None => served.get(path).await,
        };
        if path == "/v1/topic/unsubscribe" {
            assert_eq!(said.problem(), (404, "topic_not_found".to_owned()));
        } else {
            assert_eq!(said.status, 200, "{path}: {said:?}");
        }
    }
    let page = served.get("/v1/topic/list?limit=3").await.json();
    assert_eq!(page["next"], "/v1/topic/list?after=t2&limit=3");
    let rest = served.get("/v1/topic/list?after=t2&limit=3").await.json();
    assert_eq!((rest["items"].as_array().unwrap().len(), &rest["next"]), (2, &Value::Null));
    // The refresh is what names are resolved by.
    assert_eq!(served.post("/v1/send", &json!({"to": "@ada", "message": "x"})).await.status, 202);
    served.stop().await;
}
