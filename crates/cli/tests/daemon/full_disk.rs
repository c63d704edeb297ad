//! A daemon on a disk that is full: it refuses, loses nothing, and goes on once there is room.

use semel_client::Client;
use semel_testkit::disk::{fill, with_a_small_disk};
use serde_json::{Value, json};

use crate::process::{Host, Mesh, PATIENCE, arrived};

const DISK_BYTES: usize = 14_000_000;

/// Sends under this key, and says what was answered.
async fn send(client: &Client, to: &str, key: &str, message: &str) -> (u16, Option<String>) {
    let body = json!({"to": to, "message": message});
    let answer = client.post("/v1/send", &body, Some(key)).await.unwrap();
    (answer.status, answer.code().map(str::to_owned))
}

/// Sends under this key until it is accepted.
async fn accepted(client: &Client, to: &str, key: &str) {
    let accepted = async { while send(client, to, key, key).await.0 != 202 {} };
    tokio::time::timeout(PATIENCE, accepted).await.expect("it is accepted");
}

fn bodies(messages: &[Value]) -> Vec<&str> {
    let body = |message: &Value| message["body"].as_str().unwrap().len();
    assert!(messages.iter().all(|message| body(message) > 0));
    messages.iter().map(|message| message["client_message_id"].as_str().unwrap()).collect()
}

/// All that a row of the outbox can still wait for is over.
async fn settled(host: &Host) {
    let client = host.client();
    let settled = async {
        loop {
            let health = client.get("/v1/health").await.unwrap().body;
            // What was answered is marked as done a moment later, by a write of its own.
            let rows = client.get("/v1/outbox?limit=500").await.unwrap().body;
            let mut rows = rows["items"].as_array().unwrap().iter();
            let all_done = rows.all(|row| row["status"] == "done");
            if health["queue_depth"] == 0 && health["inflight"] == 0 && all_done {
                assert_eq!(health["dead"], 0, "{health}");
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, settled).await.expect("nothing waits any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_sends_loses_nothing_and_goes_on_once_there_is_room() {
    let test = "full_disk::a_full_disk_refuses_sends_loses_nothing_and_goes_on_once_there_is_room";
    let Some(disk) = with_a_small_disk(test, DISK_BYTES) else { return };
    let mut mesh = Mesh::new();
    let (alice, bob) = (mesh.join_in(&disk, "alice", "member"), mesh.join("bob", "member"));
    let config = "[disk]\nreserved_bytes = 4_000_000\n";
    std::fs::write(alice.folder().join("config.toml"), config).unwrap();
    let (one, two) = (alice.up(), bob.up());
    let (to_alice, to_bob) = (one.ready["pubkey"].clone(), two.ready["pubkey"].clone());
    let (to_alice, to_bob) = (to_alice.as_str().unwrap(), to_bob.as_str().unwrap());
    let (from_alice, from_bob) = (alice.client(), bob.client());
    let ballast = disk.join("ballast");
    std::fs::write(&ballast, vec![1; 4_000_000]).unwrap();

    // With the broker away, up to what is reserved.
    mesh.broker.take().unwrap().kill();
    let mut keys = Vec::new();
    let text = "x".repeat(20_000);
    let refused = loop {
        let key = format!("alice-{}", keys.len());
        match send(&from_alice, to_bob, &key, &text).await {
            (202, _) => keys.push(key),
            other => break other,
        }
        assert!(keys.len() < 600, "nothing was ever refused");
    };
    assert_eq!(refused, (507, Some("insufficient_storage".to_owned())));
    // What arrives has the reserved room.
    mesh.serve();
    accepted(&from_bob, to_alice, "bob-0").await;
    assert_eq!(bodies(&arrived(&alice, 1).await), ["bob-0"]);
    assert_eq!(bodies(&arrived(&bob, keys.len()).await), keys, "each once, in order");

    // Not one byte is left: what arrives waits at the broker.
    settled(&alice).await;
    fill(&disk.join("filled"));
    assert_eq!(send(&from_alice, to_bob, "full", "full").await.0, 507);
    accepted(&from_bob, to_alice, "bob-1").await;
    settled(&bob).await;
    assert_eq!(send(&from_alice, to_bob, "full", "full").await.0, 507);
    assert_eq!(from_alice.get("/v1/health").await.unwrap().body["outbox_pressure"], "degraded");
    // Nobody new is told what happens; who was accepted before is told so.
    let said = from_alice.get("/v1/events").await.unwrap();
    assert_eq!((said.status, said.code()), (507, Some("insufficient_storage")));
    assert_eq!(send(&from_alice, to_bob, &keys[0], &text).await.0, 200);

    // There is room again.
    std::fs::remove_file(disk.join("filled")).unwrap();
    std::fs::remove_file(&ballast).unwrap();
    from_alice.post("/v1/outbox/prune", &json!({"older_than_days": 0}), None).await.unwrap();
    accepted(&from_alice, to_bob, "after").await;
    keys.push("after".to_owned());
    assert_eq!(bodies(&arrived(&bob, keys.len()).await), keys, "what was refused is not there");
    assert_eq!(bodies(&arrived(&alice, 2).await), ["bob-0", "bob-1"]);
    settled(&alice).await;
}
