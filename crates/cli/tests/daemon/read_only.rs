//! A daemon that only reads: what is left of damaged files is shown, and they stay as they are.

use serde_json::{Value, json};

use crate::process::{Mesh, arrived, fails};

#[tokio::test(flavor = "multi_thread")]
async fn what_can_be_read_of_a_damaged_outbox_is_shown_and_nothing_is_written() {
    let mut mesh = Mesh::new();
    let (alice, bob) = (mesh.join("alice", "member"), mesh.join("bob", "member"));
    let (mut one, two) = (alice.up(), bob.up());
    let (to, from) = (two.ready["pubkey"].clone(), one.ready["pubkey"].clone());
    bob.run(&["send", from.as_str().unwrap(), "before the accident", "--wait"]);
    arrived(&alice, 1).await;
    mesh.broker.take().unwrap().kill();
    for number in 0..20 {
        let body = format!("{number}: {}", "x".repeat(20_000));
        let message =
            json!({"to": to, "message": body, "client_message_id": format!("m-{number}")});
        let sent = alice.client().post("/v1/send", &message, None).await.unwrap();
        assert_eq!(sent.status, 202, "{:?}", sent.body);
    }
    // Whoever searches finds everything: what is not in the index yet is put there first.
    assert_eq!(alice.run_json(&["inbox", "search", "accident"])["items"][0]["id"], 1);
    one.terminate();
    // A page that is the middle of somebody's body, behind the number of the next.
    let path = alice.folder().join("outbox.db");
    let mut bytes = std::fs::read(&path).unwrap();
    let is_body = |page: &&mut [u8]| page[4..].iter().all(|byte| *byte == b'x');
    bytes.chunks_exact_mut(4096).find(is_body).unwrap().fill(0x5a);
    std::fs::write(&path, &bytes).unwrap();
    let inbox = std::fs::read(alice.folder().join("inbox.db")).unwrap();
    let (code, text) = fails(&["daemon", "recover", "--home", &alice.home()]);
    assert!(code == 1 && text.contains("--read-only"), "{code}: {text}");
    mesh.serve();
    let mut reading = alice.up_with(&["--read-only"]);
    let health = alice.client().get("/v1/health").await.unwrap().body;
    assert_eq!((&health["state"], &health["queue_depth"]), (&json!("ended"), &json!(20)));
    // The row that is hit, and those that are looked up past it, cannot be read. They take no
    // other with them, and not the daemon.
    let mut readable = 0;
    for number in 0..20 {
        let row = alice.client().get(&format!("/v1/outbox/m-{number}")).await.unwrap();
        match row.status {
            200 => readable += usize::from(row.body["status"] == "pending"),
            status => assert_eq!(status, 500, "{:?}", row.body),
        }
    }
    assert!((10..20).contains(&readable), "{readable} of 20 rows can be read");
    let messages = alice.run_json(&["inbox", "list"])["items"].clone();
    assert_eq!(messages[0]["body"], "before the accident");
    assert_eq!(alice.run_json(&["inbox", "search", "accident"])["items"], messages);
    for verb in [
        &["send", to.as_str().unwrap(), "hello"][..],
        &["outbox", "requeue", "--id", "m-19"],
        &["daemon", "rotate-token"],
        &["mesh", "leave", "--confirm"],
    ] {
        let (code, text) = fails(&[verb, &["--json", "--home", &alice.home()]].concat());
        let problem: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((code, &problem["code"]), (5, &json!("read_only")), "{verb:?}");
    }
    reading.terminate();
    assert!(std::fs::read(&path).unwrap() == bytes, "the outbox is as it was");
    let after = std::fs::read(alice.folder().join("inbox.db")).unwrap();
    assert!(after == inbox, "and so is the inbox");
    assert!(!alice.folder().join("outbox.db-wal").exists());
    let arrived = bob.run_json(&["inbox", "list"])["items"].as_array().unwrap().len();
    assert_eq!(arrived, 0, "nothing was sent");
}

/// One that was killed has a log, which belongs to what is read.
#[test]
fn the_log_of_a_killed_daemon_is_read_and_stays() {
    let mesh = Mesh::new();
    let alice = mesh.join("alice", "member");
    let mut one = alice.up();
    mesh.broker.as_ref().unwrap().signal("-STOP");
    let to = one.ready["pubkey"].as_str().unwrap().to_owned();
    alice.run(&["send", &to, "hello", "--key", "k-1"]);
    one.kill();
    let log = alice.folder().join("outbox.db-wal");
    let before = std::fs::read(&log).unwrap();
    let mut reading = alice.up_with(&["--read-only"]);
    assert_eq!(alice.run_json(&["outbox", "inspect", "k-1"])["client_message_id"], "k-1");
    reading.terminate();
    assert!(std::fs::read(&log).unwrap() == before, "the next daemon finds it as it was");
    mesh.broker.as_ref().unwrap().signal("-CONT");
    let _one = alice.up();
    while alice.run_json(&["outbox", "inspect", "k-1"])["status"] != "done" {
        std::thread::yield_now();
    }
}
