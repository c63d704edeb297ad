//! A daemon on a disk that is full: it refuses, loses nothing, and goes on once there is room.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use semel_client::Client;
use serde_json::{Value, json};

use crate::process::{Host, Mesh, PATIENCE, arrived};

const FOLDER_VARIABLE: &str = "SEMEL_LIMITED_FOLDER";
const DISK_BYTES: usize = 12_000_000;

/// Runs this test again with a small disk of its own at `folder`; `false` in that second run.
fn with_a_small_disk(test: &str, folder: &Path) -> bool {
    if std::env::var_os(FOLDER_VARIABLE).is_some() {
        return false;
    }
    let shell =
        format!(r#"mount -t tmpfs -o size={DISK_BYTES} none "$SEMEL_LIMITED_FOLDER"; exec "$@""#);
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-euc", &shell, "limited"])
        .arg(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(FOLDER_VARIABLE, folder)
        .output()
        .expect("util-linux's unshare starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}\n{errors}");
    true
}

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

/// Writes until nothing more fits.
fn fill(path: &Path) {
    let mut file = std::fs::File::create(path).unwrap();
    for size in [1 << 16, 1 << 12, 1] {
        while file.write_all(&vec![1; size]).is_ok() {}
    }
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
            if health["queue_depth"] == 0 && health["inflight"] == 0 {
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
    let folder = tempfile::tempdir().unwrap();
    let test = "full_disk::a_full_disk_refuses_sends_loses_nothing_and_goes_on_once_there_is_room";
    if with_a_small_disk(test, folder.path()) {
        return;
    }
    let disk = PathBuf::from(std::env::var_os(FOLDER_VARIABLE).unwrap());
    let mut mesh = Mesh::new();
    let (alice, bob) = (mesh.join_in(&disk, "alice", "member"), mesh.join("bob", "member"));
    let config = "[disk]\nreserved_bytes = 4_000_000\n";
    std::fs::write(alice.folder().join("config.toml"), config).unwrap();
    let (one, two) = (alice.up(), bob.up());
    let (to_alice, to_bob) = (one.ready["pubkey"].clone(), two.ready["pubkey"].clone());
    let (to_alice, to_bob) = (to_alice.as_str().unwrap(), to_bob.as_str().unwrap());
    let (from_alice, from_bob) = (alice.client(), bob.client());
    let ballast = disk.join("ballast");
    std::fs::write(&ballast, vec![1; 2_000_000]).unwrap();

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
