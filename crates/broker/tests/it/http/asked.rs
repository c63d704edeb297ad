//! What every route is for, and whom it refuses.

use semel_broker::limits::{HEARTBEAT_INTERVAL, SESSIONS_INTERVAL};
use semel_core::id::MemberId;
use semel_wire::frame::FromBroker;
use serde_json::json;

use super::{Asking, ask, store};
use crate::client::{Daemon, Served};
use crate::support::{keys, pubkey};

const M: &str = "/v1/meshes/test";

pub(super) async fn meshes(served: &Served) {
    let body = json!({"slug": "o'brien'); --", "owner_name": "ada", "owner_pubkey": pubkey(9)});
    let create = Asking::new("POST", "/v1/meshes", &body.to_string());
    let made = create.clone().admin().send(served).await;
    assert_eq!((made.status, &made.body["slug"]), (201, &"o'brien'); --".into()), "{made:?}");
    assert!(MemberId::parse(made.body["member_id"].as_str().unwrap()).is_some());
    assert_eq!(create.clone().admin().send(served).await.code(), (409, "mesh_exists"));
    for spoiled in [
        create.clone(),
        create.clone().header("Authorization", "Bearer x"),
        create.clone().header("Authorization", "Basic x"),
        create.clone().admin().admin(),
        create.clone().signed(&keys(0)),
    ] {
        assert_eq!(spoiled.send(served).await.code(), (401, "unauthorised"));
    }
    let weak = body.to_string().replace(&pubkey(9), &"0".repeat(64));
    let weak = Asking::new("POST", "/v1/meshes", &weak).admin().send(served).await;
    assert_eq!(
        (weak.code(), &weak.body["pointer"]),
        ((400, "invalid_field"), &"/owner_pubkey".into())
    );

    let shown = ask(served, 2, "GET", M, "").await;
    assert_eq!((shown.status, &shown.body["dedupe_retention_days"]), (200, &365.into()));
    assert!(shown.head.contains("cache-control: no-store"), "{}", shown.head);
    // In the mesh whose name looks like SQL, its owner and nobody else is known.
    let path = "/v1/meshes/o%27brien%27%29%3B%20--";
    for (member, status) in [(9, 200), (0, 401)] {
        let asked = Asking::new("GET", path, "");
        let nonce = semel_core::hex::Hex([u8::try_from(member).unwrap(); 16]);
        let asked = asked.signed_as(&keys(member), "o'brien'); --", crate::support::NOW, nonce);
        assert_eq!(asked.send(served).await.status, status);
    }
}

pub(super) async fn members(served: &Served) {
    let profile = json!({"summary": "builds \"things\"", "status": "busy"});
    let path = format!("{M}/profile");
    assert_eq!(ask(served, 1, "POST", &path, &profile.to_string()).await.status, 204);
    for wrong in ["mood", "visible"] {
        let body = json!({wrong: true}).to_string();
        let refused = ask(served, 1, "POST", &path, &body).await;
        let pointer = format!("/{wrong}");
        assert_eq!(
            (refused.code(), &refused.body["pointer"]),
            ((400, "unknown_field"), &pointer.into())
        );
    }
    let listed = ask(served, 2, "GET", &format!("{M}/members"), "").await;
    let items = listed.items();
    assert_eq!((items.len(), &listed.body["next"]), (3, &json!(null)));
    assert_eq!((&items[1]["profile"], &items[1]["pubkey"]), (&profile, &pubkey(1).into()));
    assert_eq!((&items[0]["role"], &items[0]["status"]), (&"owner".into(), &"active".into()));
    assert_eq!(items[0]["joined_at"], "2027-01-15T08:00:00.000Z");

    let revoke = format!("{M}/members/{}/revoke", served.fixture.members[1]);
    assert_eq!(ask(served, 2, "POST", &revoke, "").await.code(), (403, "owner_needed"));
    assert_eq!(ask(served, 0, "POST", &revoke, "").await.status, 204);
    assert_eq!(ask(served, 0, "POST", &revoke, "").await.code(), (404, "member_not_found"));
    assert_eq!(ask(served, 1, "GET", M, "").await.code(), (403, "member_inactive"));
    let nobody = format!("{M}/members/o'brien/revoke");
    assert_eq!(ask(served, 0, "POST", &nobody, "").await.code(), (404, "member_not_found"));
    assert_eq!(ask(served, 2, "POST", &format!("{M}/leave"), "").await.status, 204);
    assert_eq!(
        ask(served, 2, "POST", &format!("{M}/leave"), "").await.code(),
        (403, "member_inactive")
    );
    let listed = ask(served, 0, "GET", &format!("{M}/members"), "").await;
    let statuses: Vec<_> = listed.items().iter().map(|item| &item["status"]).collect();
    assert_eq!(statuses, ["active", "revoked", "left"]);
}

pub(super) async fn ended(served: &Served) {
    let mut revoked = Daemon::welcomed(served.address, 1).await;
    let mut left = Daemon::welcomed(served.address, 2).await;
    let quiet = SESSIONS_INTERVAL * 4;
    // What their own coming has touched must not be what finds their end.
    while tokio::time::timeout(quiet, served.hub.touched_sessions()).await.is_ok() {}
    let revoke = format!("{M}/members/{}/revoke", served.fixture.members[1]);
    assert_eq!(ask(served, 0, "POST", &revoke, "").await.status, 204);
    assert_eq!(ask(served, 2, "POST", &format!("{M}/leave"), "").await.status, 204);
    for daemon in [&mut revoked, &mut left] {
        // Not by the next heartbeat.
        let told = tokio::time::timeout(HEARTBEAT_INTERVAL / 2, daemon.next()).await;
        assert!(matches!(told, Ok(Ok(FromBroker::MemberRevoked(_)))), "{told:?}");
        assert_eq!(daemon.closed().await.code, 4005);
    }
    let trail = store(served).audit_list(served.fixture.mesh_id, 10).await.unwrap();
    let kinds: Vec<&str> = trail.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, ["member_left", "member_revoked"]);
}

pub(super) async fn last_owner(served: &Served) {
    let revoke = format!("{M}/members/{}/revoke", served.fixture.members[0]);
    assert_eq!(ask(served, 0, "POST", &format!("{M}/leave"), "").await.code(), (409, "last_owner"));
    assert_eq!(ask(served, 0, "POST", &revoke, "").await.code(), (409, "last_owner"));
    let operator = Asking::new("POST", &revoke, "").admin();
    assert_eq!(operator.send(served).await.code(), (409, "last_owner"));
    // With a second one they may end each other, but not both at once.
    let invite = ask(served, 0, "POST", &format!("{M}/invites"), r#"{"role":"owner"}"#).await;
    let joined = super::joining::join(served, 9, invite.body["token"].as_str().unwrap()).await;
    let other = format!("{M}/members/{}/revoke", joined.body["member_id"].as_str().unwrap());
    let (one, two) =
        tokio::join!(ask(served, 0, "POST", &other, ""), ask(served, 9, "POST", &revoke, ""));
    let mut statuses = [one.status, two.status];
    statuses.sort_unstable();
    assert!(matches!(statuses, [204, 403 | 409]), "{one:?} {two:?}");
}

pub(super) async fn names(served: &Served) {
    for kind in ["topics", "queues"] {
        let path = format!("{M}/{kind}");
        for name in ["o'brien'); --", "a/b", "..", "ü %", "\\", "*"] {
            let body = json!({"name": name}).to_string();
            let made = ask(served, 2, "POST", &path, &body).await;
            assert_eq!((made.status, &made.body["name"]), (201, &name.into()), "{made:?}");
            assert_eq!(ask(served, 1, "POST", &path, &body).await.status, 200, "it is there");
        }
        for bad in [json!({"name": ""}), json!({"name": "a\0b"}), json!({"name": "x".repeat(256)})]
        {
            let refused = ask(served, 2, "POST", &path, &bad.to_string()).await;
            assert_eq!(
                (refused.code(), &refused.body["pointer"]),
                ((400, "invalid_field"), &"/name".into())
            );
        }
        let listed = ask(served, 0, "GET", &path, "").await;
        assert_eq!(listed.items().len(), 7, "{listed:?}");
    }
    for verb in ["subscribe", "subscribe", "unsubscribe", "unsubscribe"] {
        let path = format!("{M}/topics/o%27brien%27%29%3B%20--/{verb}");
        assert_eq!(ask(served, 2, "POST", &path, "").await.status, 204, "{verb}");
        let path = format!("{M}/topics/a%2Fb/{verb}");
        assert_eq!(ask(served, 2, "POST", &path, "").await.status, 204, "{verb}");
        for (member, is) in [(2, verb == "subscribe"), (0, false)] {
            let listed = ask(served, member, "GET", &format!("{M}/topics"), "").await;
            let topic = listed.items().iter().find(|item| item["name"] == "a/b").cloned();
            assert_eq!(topic.expect("it is listed")["subscribed"], is, "{verb} {member}");
        }
        let path = format!("{M}/topics/none/{verb}");
        assert_eq!(ask(served, 2, "POST", &path, "").await.code(), (404, "topic_not_found"));
    }
}

pub(super) async fn paging(served: &Served) {
    for number in 0..5 {
        let body = json!({"name": format!("t{number} /&")}).to_string();
        assert_eq!(ask(served, 0, "POST", &format!("{M}/topics"), &body).await.status, 201);
    }
    for (kind, key, all) in [("topics", "name", 6), ("members", "member_id", 3)] {
        let mut next = format!("{M}/{kind}?limit=2");
        let mut seen = Vec::new();
        for _ in 0..all {
            let page = ask(served, 1, "GET", &next, "").await;
            assert!(page.items().len() <= 2);
            seen.extend(page.items().iter().map(|item| item[key].clone()));
            let Some(link) = page.body["next"].as_str() else { break };
            assert_eq!(page.items().len(), 2);
            next = link.to_owned();
        }
        assert_eq!(seen.len(), all, "{seen:?}");
        let mut sorted: Vec<String> = seen.iter().map(ToString::to_string).collect();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), all, "each once");
    }
    for query in ["limit=0", "limit=501", "after=%00", "limit=1&limit=2", "page=2", "after=x"] {
        let refused = ask(served, 1, "GET", &format!("{M}/members?{query}"), "").await;
        assert_eq!(refused.status, 400, "{query}: {refused:?}");
    }
}

pub(super) async fn history(served: &Served) {
    let f = &served.fixture;
    f.accept_one(f.item(0, "a", ("topic", "builds"), "to builds")).await;
    f.accept_one(f.item(0, "b", ("dm", &pubkey(2)), "to two")).await;
    f.accept_one(f.item(0, "c", ("topic", "builds"), "more")).await;
    let bodies = async |member: usize| {
        let page = ask(served, member, "GET", &format!("{M}/history"), "").await;
        assert_eq!(page.body["next"], json!(null));
        page.items()
            .iter()
            .map(|item| item["body"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(bodies(1).await, ["dG8gYnVpbGRz", "bW9yZQ=="]);
    assert_eq!(bodies(2).await, ["dG8gdHdv"]);
    let page = ask(served, 1, "GET", &format!("{M}/history?limit=1"), "").await;
    let item = &page.items()[0];
    assert_eq!((&item["seq"], &item["destination_ref"]), (&1.into(), &"builds".into()));
    assert_eq!(page.body["next"], format!("{M}/history?after=1&limit=1"));
    let rest = ask(served, 1, "GET", page.body["next"].as_str().unwrap(), "").await;
    assert_eq!(rest.items()[0]["client_message_id"], "c");
    for after in ["-1", "x", "99999999999999999999"] {
        let path = format!("{M}/history?after={after}");
        assert_eq!(ask(served, 1, "GET", &path, "").await.code(), (400, "invalid_field"));
    }
}
