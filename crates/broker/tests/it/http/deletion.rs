//! The end of topics and queues, and how many of them one member makes.

use futures_util::future::join_all;
use semel_broker::accept::Verdict;
use semel_broker::limits::{QUEUE_DISCARD_ROWS, QUEUES_OF_MEMBER_MAX, TOPICS_OF_MEMBER_MAX};
use semel_broker::store::{Made, Take, Taken};
use semel_core::code::Code;
use serde_json::json;
use std::time::Duration;

use super::{Asking, ask, store};
use crate::client::Served;
use crate::support::{NOW, at};

const M: &str = "/v1/meshes/test";

async fn delete(served: &Served, member: usize, path: &str) -> (u16, String) {
    let said = ask(served, member, "DELETE", &format!("{M}{path}"), "").await;
    (said.status, said.code().1.to_owned())
}

fn code(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

pub(super) async fn whose(served: &Served) {
    for kind in ["topics", "queues"] {
        let missing = format!("{}_not_found", kind.trim_end_matches('s'));
        for name in ["one", "two", "three"] {
            let body = json!({"name": name}).to_string();
            let made = ask(served, 1, "POST", &format!("{M}/{kind}"), &body).await;
            assert_eq!(made.status, 201, "{made:?}");
        }
        let one = format!("/{kind}/one");
        assert_eq!(delete(served, 2, &one).await, code(403, "owner_needed"));
        assert_eq!(delete(served, 1, &format!("{one}?x=1")).await, code(400, "unknown_field"));
        assert_eq!(delete(served, 1, &one).await, code(204, ""));
        assert_eq!(delete(served, 1, &one).await, code(404, &missing));
        // An owner, and the operator, whoever made it.
        assert_eq!(delete(served, 0, &format!("/{kind}/two")).await, code(204, ""));
        let three = Asking::new("DELETE", &format!("{M}/{kind}/three"), "").admin();
        assert_eq!(three.send(served).await.status, 204);
    }
    let trail = store(served).audit_list(served.fixture.mesh_id, 10).await.unwrap();
    let count = |kind: &str| trail.iter().filter(|event| event.kind == kind).count();
    assert_eq!((count("topic_deleted"), count("queue_deleted")), (3, 3), "{trail:?}");
}

/// The fixture's members subscribe to `builds`.
pub(super) async fn topics(served: &Served) {
    let f = &served.fixture;
    let sent = f.accept_one(f.item(0, "before", ("topic", "builds"), "hi")).await;
    assert!(matches!(sent, Verdict::Accepted { .. }), "{sent:?}");
    let waiting = f.waiting(1).await;
    assert_eq!(waiting.len(), 1);
    assert_eq!(delete(served, 0, "/topics/builds").await, code(409, "in_use"));
    assert_eq!(delete(served, 0, "/topics/builds?anyway=true").await, code(204, ""));
    assert_eq!(f.waiting(1).await, waiting, "what was accepted is delivered");
    let late = f.accept_one(f.item(0, "late", ("topic", "builds"), "hi")).await;
    assert_eq!(late, Verdict::Refused(Code::TopicNotFound));
    // Another one of that name begins anew: nobody subscribes to it, and nothing was in it.
    let made = store(served).topic_create(f.mesh_id, "builds", None, NOW).await.unwrap();
    assert_eq!(made, Made::New);
    let unsubscribed = f.accept_one(f.item(1, "again", ("topic", "builds"), "hi")).await;
    assert_eq!(unsubscribed, Verdict::Refused(Code::NotSubscribed));
    assert!(store(served).topic_subscribe(f.mesh_id, "builds", f.members[1]).await.unwrap());
    let seen = store(served).history(f.mesh_id, f.members[1], 0, 10, usize::MAX).await.unwrap();
    assert!(seen.deliveries.is_empty(), "{seen:?}");
}

pub(super) async fn queues(served: &Served) {
    let f = &served.fixture;
    let many = usize::try_from(QUEUE_DISCARD_ROWS).unwrap() + 5;
    let item = |n: usize| f.item(0, &format!("w{n}"), ("queue", "work"), "do");
    for part in (0..many).collect::<Vec<_>>().chunks(300) {
        f.accept(part.iter().map(|n| item(*n)).collect()).await;
    }
    let lease = Duration::from_secs(60);
    let take = Take { taker: f.members[1], at: at(NOW), lease, max: 1, bytes_max: 1 << 20 };
    let taken = store(served).queue_take(f.mesh_id, "work", take).await.unwrap();
    assert!(matches!(&taken, Taken::Leased { taken, .. } if taken.len() == 1), "{taken:?}");
    assert_eq!(delete(served, 0, "/queues/work").await, code(409, "in_use"));
    let taken = store(served).queue_take(f.mesh_id, "work", take).await.unwrap();
    assert!(matches!(&taken, Taken::Leased { taken, .. } if taken.len() == 1), "{taken:?}");
    assert_eq!(delete(served, 0, "/queues/work?anyway=true").await, code(204, ""));
    let taken = store(served).queue_take(f.mesh_id, "work", take).await.unwrap();
    assert_eq!(taken, Taken::NoQueue);
    let late = f.accept_one(f.item(0, "late", ("queue", "work"), "do")).await;
    assert_eq!(late, Verdict::Refused(Code::QueueNotFound));
    // The ids stay taken: a retry is no new work.
    let again = f.accept_one(item(3)).await;
    assert!(matches!(again, Verdict::Duplicate(_)), "{again:?}");
    let mesh = store(served).mesh_find("test").await.unwrap().unwrap();
    let report = store(served).check(&mesh, NOW).await.unwrap();
    assert!(report.is_clean(), "{report:?}");
}

pub(super) async fn so_many(served: &Served) {
    let (f, store) = (&served.fixture, store(served));
    let (mesh, mine) = (f.mesh_id, Some(f.members[1]));
    for part in (0..TOPICS_OF_MEMBER_MAX).collect::<Vec<_>>().chunks(100) {
        let topics = part.iter().map(|n| {
            let name = format!("t{n}");
            async move { store.topic_create(mesh, &name, mine, NOW).await.unwrap() }
        });
        assert!(join_all(topics).await.iter().all(|made| *made == Made::New));
        let queues = part.iter().filter(|n| **n < QUEUES_OF_MEMBER_MAX).map(|n| {
            let (name, id) = (format!("q{n}"), f.mint.uuid());
            async move { store.queue_create(mesh, (&name, id), mine, NOW).await.unwrap() }
        });
        assert!(join_all(queues).await.iter().all(|made| *made == Made::New));
    }
    for kind in ["topics", "queues"] {
        let path = format!("{M}/{kind}");
        let more = r#"{"name":"more"}"#;
        assert_eq!(ask(served, 1, "POST", &path, more).await.code(), (409, "too_many"));
        let there = format!(r#"{{"name":"{}1"}}"#, &kind[..1]);
        assert_eq!(ask(served, 1, "POST", &path, &there).await.status, 200, "it is there");
        // Others have their own, and what is deleted makes room.
        assert_eq!(ask(served, 2, "POST", &path, more).await.status, 201);
        assert_eq!(delete(served, 1, &format!("/{kind}/{}1", &kind[..1])).await.0, 204);
        assert_eq!(ask(served, 1, "POST", &path, r#"{"name":"last"}"#).await.status, 201);
    }
}
