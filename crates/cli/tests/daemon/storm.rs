//! A daemon that is started and stopped again and again, in order and not, while sends are queued.

use serde_json::{Value, json};

use crate::process::{MESH, Mesh, arrived, until};

const STARTS: usize = 30;

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_restarts_leaves_no_row_no_lock_and_no_socket_behind() {
    let mut mesh = Mesh::new();
    mesh.broker(&["mesh", "set", MESH, "rate_limit=1000000"]);
    let (one, two) = (mesh.join("one", "member"), mesh.join("two", "member"));
    let receiving = two.up();
    let to = receiving.ready["pubkey"].as_str().unwrap().to_owned();
    let (client, instance) = (one.client(), one.folder().join("instance_id"));
    let mut keys = Vec::new();
    let mut instances = Vec::new();
    for start in 0..STARTS {
        // For a third of the time everything is queued only.
        if start == STARTS / 3 {
            mesh.broker.take().unwrap().kill();
        }
        if start == 2 * STARTS / 3 {
            mesh.serve();
        }
        let mut daemon = one.up();
        let frozen = mesh.broker.as_ref().filter(|_| start % 3 == 1);
        if let Some(broker) = frozen {
            until(&client, "/v1/health", |health| health["connected"] == true).await;
            broker.signal("-STOP");
        }
        instances.push(std::fs::read_to_string(&instance).unwrap());
        for number in 0..5 {
            let key = format!("{start}-{number}");
            let body = json!({"to": to, "message": key});
            let answer = client.post("/v1/send", &body, Some(&key)).await.unwrap();
            assert_eq!(answer.status, 202, "{answer:?}");
            keys.push(key);
        }
        match start % 3 {
            0 => daemon.terminate(),
            1 => {
                // With rows on the wire that nobody answers.
                if let Some(broker) = frozen {
                    let path = format!("/v1/outbox/{start}-4");
                    until(&client, &path, |row| row["status"] == "inflight").await;
                    daemon.kill();
                    broker.signal("-CONT");
                } else {
                    daemon.kill();
                }
            }
            _ => {
                daemon.kill();
                // As soon as it can be, and gone again.
                one.up().kill();
            }
        }
    }
    instances.dedup();
    assert_eq!(instances.len(), 1, "it is the same daemon all along");
    let mut daemon = one.up();
    let messages = arrived(&two, keys.len()).await;
    let bodies: Vec<&str> =
        messages.iter().map(|message| message["body"].as_str().unwrap()).collect();
    assert_eq!(bodies, keys, "each once, in the order of accept");
    let is_done = |row: &Value| row["status"] == "done";
    let all_done = |page: &Value| page["items"].as_array().unwrap().iter().all(is_done);
    let rows = until(&client, "/v1/outbox?limit=500", all_done).await;
    assert_eq!(rows["items"].as_array().unwrap().len(), keys.len());
    daemon.terminate();
    for file in ["sock", "sock.new", "pid", "outbox.db-wal", "inbox.db-wal"] {
        assert!(!one.folder().join(file).exists(), "{file} is left behind");
    }
    // The lock is free.
    one.up().terminate();
}
