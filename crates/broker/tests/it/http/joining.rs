//! Invites, and who joins by them.

use std::time::Duration;

use futures_util::future::join_all;
use semel_broker::store::{NewMember, Role};
use semel_core::hex::Hex;
use semel_core::id::UuidId;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Asking, Response, ask, store};
use crate::client::Served;
use crate::support::{NOW, keys, pubkey};

const INVITES: &str = "/v1/meshes/test/invites";
const JOIN: &str = "/v1/meshes/test/join";

/// The key with this number joins.
pub(super) async fn join(served: &Served, number: usize, token: &str) -> Response {
    join_as(served, number, token, &format!("joined-{number}")).await
}

async fn join_as(served: &Served, number: usize, token: &str, key_id: &str) -> Response {
    called(served, number, token, (key_id, &format!("called {number}"))).await
}

async fn called(
    served: &Served,
    number: usize,
    token: &str,
    (key_id, name): (&str, &str),
) -> Response {
    let body = json!({"token": token, "name": name, "key_id": key_id}).to_string();
    Asking::new("POST", JOIN, &body).signed(&keys(number)).send(served).await
}

async fn invite(served: &Served, body: &str) -> String {
    let made = ask(served, 0, "POST", INVITES, body).await;
    assert_eq!(made.status, 201, "{made:?}");
    made.body["token"].as_str().unwrap().to_owned()
}

pub(super) async fn invites(served: &Served) {
    let made = ask(served, 0, "POST", INVITES, r#"{"uses":2,"ttl_seconds":60}"#).await;
    assert_eq!((made.status, &made.body["uses"]), (201, &2.into()), "{made:?}");
    assert_eq!(made.body["expires_at"], "2027-01-15T08:01:00.000Z");
    let token = made.body["token"].as_str().unwrap();
    assert_eq!(ask(served, 1, "POST", INVITES, "{}").await.code(), (403, "owner_needed"));
    for wrong in [r#"{"uses":0}"#, r#"{"ttl_seconds":0}"#, r#"{"role":"god"}"#, "", "[]"] {
        assert_eq!(ask(served, 0, "POST", INVITES, wrong).await.status, 400, "{wrong}");
    }
    let operator = Asking::new("POST", INVITES, "{}").admin().send(served).await;
    assert_eq!(operator.status, 201, "{operator:?}");
    let nowhere = Asking::new("POST", "/v1/meshes/none/invites", "{}").admin();
    assert_eq!(nowhere.send(served).await.code(), (404, "mesh_not_found"));

    let first = join(served, 10, token).await;
    assert_eq!((first.status, &first.body["slug"]), (201, &"test".into()), "{first:?}");
    let again = join(served, 10, token).await;
    assert_eq!((again.status, &again.body), (200, &first.body), "the same member");
    assert_eq!(join(served, 11, token).await.status, 201, "and no use was spent");
    assert_eq!(join(served, 12, token).await.code(), (403, "invite_invalid"), "it is used up");
    assert_eq!(join(served, 10, token).await.status, 200, "also after it is used up");
    let members = ask(served, 10, "GET", "/v1/meshes/test/members", "").await;
    assert_eq!(members.items().len(), 5);
    assert_eq!(members.items()[3]["role"], "member");
}

pub(super) async fn ended(served: &Served) {
    let token = invite(served, r#"{"uses":5,"ttl_seconds":60}"#).await;
    let unknown = semel_wire::link::token(&[1; 32]);
    let none = join(served, 10, &unknown).await;
    assert_eq!(none.code(), (403, "invite_invalid"));
    served.clock.advance(Duration::from_secs(60));
    let late = join(served, 10, &token).await;
    assert_eq!(late.body, none.body, "the answer does not tell them apart");
    // The transaction of who came late may still hold it, and a sweep passes by what is held.
    served.fixture.plant("UPDATE mesh.invite SET expires_at = expires_at").await;
    let now = semel_core::clock::UnixMs(NOW.0 + 60_000);
    // By this sweep, or by one of the broker's own that came first.
    assert!(store(served).invite_sweep(now, 10).await.unwrap() <= 1);
    assert_eq!(served.fixture.plant("DELETE FROM mesh.invite").await, 0);
}

pub(super) async fn keys_once(served: &Served) {
    let token = invite(served, r#"{"uses":9}"#).await;
    assert_eq!(join(served, 1, &token).await.code(), (409, "already_member"));
    let taken = join_as(served, 10, &token, "key-1").await;
    assert_eq!(taken.code(), (409, "key_id_taken"));
    for (field, value) in [("name", ""), ("name", &"x".repeat(65)), ("key_id", ""), ("token", "x")]
    {
        let mut body: Value = json!({"token": token, "name": "n", "key_id": "k"});
        body[field] = value.into();
        let asked = Asking::new("POST", JOIN, &body.to_string()).signed(&keys(10));
        let refused = asked.send(served).await;
        assert_eq!(refused.body["pointer"], format!("/{field}"), "{refused:?}");
    }
    // A revoked key does not come back, nor does one that has left.
    let revoke = format!("/v1/meshes/test/members/{}/revoke", served.fixture.members[1]);
    assert_eq!(ask(served, 0, "POST", &revoke, "").await.status, 204);
    assert_eq!(join(served, 1, &token).await.code(), (403, "member_inactive"));
    assert_eq!(join(served, 10, &token).await.status, 201);
    assert_eq!(ask(served, 10, "POST", "/v1/meshes/test/leave", "").await.status, 204);
    assert_eq!(join(served, 10, &token).await.code(), (403, "member_inactive"));
    // Possession of the key is proven, for this mesh.
    let body = json!({"token": token, "name": "n", "key_id": "k"}).to_string();
    let asked = Asking::new("POST", JOIN, &body);
    assert_eq!(asked.send(served).await.code(), (401, "unauthorised"));
    let elsewhere = asked.signed_as(&keys(11), "other", NOW, Hex([1; 16]));
    assert_eq!(elsewhere.send(served).await.code(), (401, "unauthorised"));
}

pub(super) async fn racers(served: &Served) {
    for round in 0..4 {
        let token = invite(served, "{}").await;
        let numbers = (0..6).map(|number| 20 + round * 6 + number);
        let answers = join_all(numbers.map(|number| join(served, number, &token))).await;
        let won = answers.iter().filter(|answer| answer.status == 201).count();
        let lost = answers.iter().filter(|answer| answer.code() == (403, "invite_invalid")).count();
        assert_eq!((won, lost), (1, 5), "{answers:?}");
        // The same key with itself: one member, one use.
        let token = invite(served, "{}").await;
        let number = 60 + round;
        let answers = join_all((0..4).map(|_| join(served, number, &token))).await;
        let mut statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 200, 200, 201], "{answers:?}");
        assert!(answers.iter().all(|answer| answer.body == answers[0].body));
    }
}

pub(super) async fn names_once(served: &Served) {
    let token = invite(served, r#"{"uses":9}"#).await;
    let join_as = async |number: usize, name: &str| {
        called(served, number, &token, (&format!("k-{number}"), name)).await
    };
    // The names of members that were there, and of one that has joined.
    let there = ask(served, 0, "GET", "/v1/meshes/test/members", "").await;
    let there = there.items()[0]["name"].as_str().unwrap().to_owned();
    assert_eq!(join_as(10, &there).await.code(), (409, "name_taken"));
    assert_eq!(join_as(10, "ci").await.status, 201);
    assert_eq!(join_as(11, "ci").await.code(), (409, "name_taken"));
    // Joined again it keeps the name that it has, whatever it asks for.
    let again = join_as(10, &there).await;
    assert_eq!((again.status, &again.body["name"]), (200, &"ci".into()));
    // Who leaves gives the name back, and so does who is revoked.
    assert_eq!(ask(served, 10, "POST", "/v1/meshes/test/leave", "").await.status, 204);
    let second = join_as(11, "ci").await;
    assert_eq!((second.status, &second.body["name"]), (201, &"ci".into()));
    let revoke = second.body["member_id"].as_str().unwrap();
    let revoke = format!("/v1/meshes/test/members/{revoke}/revoke");
    assert_eq!(ask(served, 0, "POST", &revoke, "").await.status, 204);
    assert_eq!(join_as(12, "ci").await.status, 201);
    // Of many at once one gets it, and the others have spent nothing.
    let two = invite(served, r#"{"uses":2}"#).await;
    let answers = join_all((30..36).map(|number| {
        let two = &two;
        async move { called(served, number, two, (&format!("k-{number}"), "raced")).await }
    }));
    let answers = answers.await;
    let won = answers.iter().filter(|answer| answer.status == 201).count();
    let lost = answers.iter().filter(|answer| answer.code() == (409, "name_taken")).count();
    assert_eq!((won, lost), (1, 5), "{answers:?}");
    assert_eq!(called(served, 40, &two, ("k-40", "last")).await.status, 201);
    assert_eq!(called(served, 41, &two, ("k-41", "more")).await.code(), (403, "invite_invalid"));
    // Nor does an operator bring in a second one.
    let mut member = NewMember {
        member_id: UuidId::new(Uuid::from_u128(990)),
        name: "ci".to_owned(),
        role: Role::Member,
        key_id: "added".to_owned(),
        pubkey: pubkey(70),
    };
    let (store, mesh_id) = (store(served), served.fixture.mesh_id);
    assert!(!store.member_add(mesh_id, &member, NOW).await.unwrap());
    member.name = "other".to_owned();
    assert!(store.member_add(mesh_id, &member, NOW).await.unwrap());
}
