//! A step that sends, of which the first answer is lost, and what the daemon says the second time.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use semel_client::Client;
use serde_json::{Value, json};

use crate::fake::{Fake, answer};

/// An engine; killed when it is dropped.
struct Engine(Child);

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The job's end, when the row under its id stands like this the second time.
async fn ended(conflict: &'static str, row: Value) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let (home, socket) = (folder.path(), folder.path().join("daemon.sock"));
    let first = AtomicBool::new(true);
    let daemon = Fake::at_socket(&socket, move |asked| match asked.path.as_str() {
        "/v1/send" if first.swap(false, Ordering::SeqCst) => None,
        "/v1/send" => {
            let problem = json!({"code": "idempotency_key_reused", "detail": "given up",
                "conflict": conflict});
            Some(answer(409, &problem))
        }
        path if path.starts_with("/v1/outbox/") => Some(answer(200, &row)),
        _ => Some(answer(200, &json!({"mesh": "work", "member_pubkey": "ab".repeat(32)}))),
    });
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(["job", "serve", "--json", "--home"]).arg(home).arg("--daemon").arg(&socket);
    command.env_remove("SEMEL_HOME").stdout(Stdio::piped()).stderr(Stdio::null());
    let mut engine = Engine(command.spawn().unwrap());
    let mut ready = String::new();
    BufReader::new(engine.0.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let client = Client::socket(home.join("jobs/sock"));
    let params = json!({"to": "ab".repeat(32), "message": "hello"});
    let step = json!({"id": "tell", "gear": "mesh", "action": "send", "params": params});
    let job = client.post("/v1/jobs", &json!({"plan": {"steps": [step]}}), None).await.unwrap();
    let id = job.body["id"].as_str().unwrap_or_else(|| panic!("{job:?}")).to_owned();
    let mut story = client.stream(&format!("/v1/jobs/{id}/events")).await.unwrap();
    while let Ok(Some(event)) = story.next().await {
        let status = event.data["status"].as_str().unwrap_or_default();
        if event.kind == "moved" && ["failed", "awaiting_approval"].contains(&status) {
            break;
        }
    }
    assert!(daemon.last().header("host").is_some());
    client.get(&format!("/v1/jobs/{id}")).await.unwrap().body
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_was_given_up_or_retired_may_have_been_delivered() {
    let dead = "outbox_dead_fingerprint_match";
    for (conflict, row, certain) in [
        (dead, json!({"status": "dead", "outcome": "unknown"}), false),
        ("outbox_aborted_fingerprint_match", json!({"status": "aborted"}), false),
        (dead, json!({"status": "dead", "outcome": "refused"}), true),
        ("outbox_dead_fingerprint_mismatch", json!({"status": "dead"}), true),
    ] {
        let job = ended(conflict, row).await;
        let step = &job["steps"][0];
        assert_eq!(step["certain"], certain, "{conflict}: {job:#}");
        assert_ne!(step["status"], "completed");
    }
}
