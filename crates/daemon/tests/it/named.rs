//! Names over the local API, of members that the broker knows and this daemon was not told of.

use std::sync::Arc;

use semel_api::access::Tokens;
use semel_api::door::{Listener, bind_socket, serve};
use semel_api::{Api, ApiOptions};
use semel_broker::store::{NewMember, Role};
use semel_core::clock::{Clock, UnixMs};
use semel_core::id::UuidId;
use semel_daemon::http::{Member, part};
use semel_testkit::http::{Said, request, say};
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::support::{Host, Mesh, pubkey};

struct NoTokens;

impl Tokens for NoTokens {
    fn number_of(&self, _: &str) -> Option<u64> {
        None
    }
}

async fn joins(mesh: &Mesh, number: usize, name: &str) {
    let member = NewMember {
        member_id: UuidId::new(Uuid::new_v4()),
        name: name.to_owned(),
        role: Role::Member,
        key_id: format!("key-{name}"),
        pubkey: pubkey(number),
    };
    mesh.store().member_add(mesh.mesh_id, &member, UnixMs(1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_just_joined_can_be_sent_to_and_mentioned_by_name() {
    let mesh = Mesh::of(2).await;
    let host = Host::new(0, mesh.url());
    let engine = Arc::new(host.start().await);
    engine.outbox.peers_known().await.unwrap();
    let clock: Arc<dyn Clock> = Arc::new(host.clock.clone());
    let (name, version) = ("local".to_owned(), "test".to_owned());
    let member = Member { mesh: name, pubkey: pubkey(0), version };
    let part = part(Arc::clone(&engine), member, None, Arc::clone(&clock));
    let api = Api::new(ApiOptions::default(), Arc::new(NoTokens), clock, vec![part]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sock");
    let socket = Listener::Socket(bind_socket(&path).unwrap());
    let (stop, stopping) = oneshot::channel::<()>();
    let door = tokio::spawn(serve(api, socket, async { drop(stopping.await) }));
    let post = async |body: Value| -> Said {
        let request = request("POST", "/v1/send", &[], body.to_string().as_bytes());
        say(UnixStream::connect(&path).await.unwrap(), &request).await
    };

    let said = post(json!({"to": "@bob", "message": "hi"})).await;
    assert_eq!(said.problem(), (404, "recipient_not_found".to_owned()), "nobody is called so");
    joins(&mesh, 7, "bob").await;
    let said = post(json!({"to": "@bob", "message": "hi", "client_message_id": "dm"})).await;
    assert_eq!(said.status, 202, "{said:?}");
    let found = engine.outbox.find("dm").await.unwrap().unwrap();
    assert_eq!(found.destination.reference(), pubkey(7));

    joins(&mesh, 8, "eve").await;
    let said = post(json!({"to": "#builds", "message": "hi", "mentions": ["@eve"]})).await;
    assert_eq!(said.status, 202, "{said:?}");

    stop.send(()).unwrap();
    door.await.unwrap().unwrap();
    Arc::try_unwrap(engine).map_err(drop).expect("nobody holds it").stop().await;
}
