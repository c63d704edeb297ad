//! What a user does from the command line, and what the command line says.

use serde_json::json;

use crate::process::{MESH, Mesh, fails, succeeds};

#[test]
fn a_message_is_sent_once() {
    let mesh = Mesh::new();
    let (alice, bob) = (mesh.join("alice", "member"), mesh.join("bob", "owner"));
    let (_one, _two) = (alice.up(), bob.up());
    // Names are known once the broker has been asked.
    let known = || alice.run_json(&["peers"])["items"].as_array().unwrap().len();
    while known() < 3 {
        std::thread::yield_now();
    }
    let sent = alice.run_json(&["send", "@bob", "hello", "--key", "k-1", "--wait"]);
    assert_eq!(sent["status"], "done");
    let again = alice.run_json(&["send", "@bob", "hello", "--key", "k-1"]);
    assert_eq!(again["duplicate"], true);
    assert_eq!(again["broker_message_id"], sent["broker_message_id"]);
    let home = alice.home();
    let (code, text) = fails(&["send", "@bob", "other", "--key", "k-1", "--home", &home]);
    assert_eq!(code, 4);
    assert!(text.contains("outbox_done_fingerprint_mismatch"), "{text}");
    let (code, text) = fails(&["send", "@stranger", "hello", "--home", &home]);
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("recipient_not_found"), "{text}");
    let messages = bob.run_json(&["inbox", "list"]);
    assert_eq!(messages["items"].as_array().unwrap().len(), 1);
    assert_eq!(messages["items"][0]["body"], "hello");
    assert_eq!(messages["items"][0]["sender_name"], "alice");
    let found = bob.run_json(&["inbox", "search", "hello"]);
    assert_eq!(found["items"].as_array().unwrap().len(), 1);
}

#[test]
fn topics_queues_and_invites() {
    let mesh = Mesh::new();
    let (alice, bob) = (mesh.join("alice", "member"), mesh.join("bob", "owner"));
    let (mut one, _two) = (alice.up(), bob.up());
    let name = "o'brien'); --";
    alice.run(&["topic", "create", name]);
    bob.run(&["topic", "subscribe", name]);
    alice.run(&["send", &format!("#{name}"), "green", "--wait"]);
    let arrived = || bob.run_json(&["inbox", "list", "--topic", name])["items"].clone();
    while arrived() == json!([]) {
        std::thread::yield_now();
    }
    alice.run(&["queue", "create", "work"]);
    alice.run(&["send", "queue:work", "job 1", "--wait"]);
    let taken = bob.run_json(&["queue", "take", "work"]);
    assert_eq!(taken["items"][0]["body"], "job 1");
    let seq = taken["items"][0]["seq"].to_string();
    assert_eq!(bob.run_json(&["queue", "take", "work"])["items"], json!([]), "it is leased");
    let acked = bob.run_json(&["queue", "ack", "work", &seq]);
    assert_eq!(acked["acked"].to_string(), format!("[{seq}]"));
    let (code, text) = fails(&["mesh", "invite", "--home", &alice.home()]);
    assert!(code == 1 && text.contains("owner_needed"), "{code}: {text}");
    let invite = bob.run(&["mesh", "invite", "--uses", "2"]);
    assert!(invite.starts_with("semel://join/"), "{invite}");
    // Who is thrown out ends, and is told why.
    let pubkey = one.ready["pubkey"].as_str().unwrap().to_owned();
    bob.run(&["member", "revoke", &pubkey]);
    assert_eq!(one.ends(), Some(1));
}

#[test]
fn a_folder_has_one_daemon_and_without_one_nothing_is_done() {
    let mesh = Mesh::new();
    let alice = mesh.join("alice", "member");
    let home = alice.home();
    let (code, text) = fails(&["send", "@bob", "hello", "--home", &home]);
    assert_eq!(code, 5, "{text}");
    assert!(text.contains("semel daemon up"), "{text}");
    let _one = alice.up();
    let (code, text) = fails(&["daemon", "up", "--home", &home]);
    assert_eq!(code, 78);
    assert!(text.contains("a daemon runs there already"), "{text}");
    assert_eq!(alice.run(&["daemon", "down"]), "the daemon has stopped");
    assert_eq!(alice.run(&["daemon", "down"]), format!("no daemon runs for the mesh {MESH}"));
    // In the background, restarted, and stopped.
    alice.run(&["daemon", "up", "--detach", "--no-tcp"]);
    assert_eq!(alice.run_json(&["daemon", "status"])["mesh"], MESH);
    alice.run(&["daemon", "restart"]);
    alice.run(&["daemon", "down"]);
    assert!(alice.run(&["daemon", "logs"]).contains("connected to the broker"));
    let (code, text) = fails(&["mesh", "join", &mesh.invite("member"), "--home", &home]);
    assert_eq!(code, 4, "{text}");
    let (code, text) = fails(&["mesh", "join", "semel://join/nonsense", "--home", &home]);
    assert_eq!(code, 2, "{text}");
}

#[test]
fn damaged_and_newer_files_are_refused_with_a_way_out() {
    let mesh = Mesh::new();
    let alice = mesh.join("alice", "member");
    std::fs::write(alice.folder().join("outbox.db"), vec![0x5a; 8192]).unwrap();
    let (code, text) = fails(&["daemon", "up", "--no-tcp", "--home", &alice.home()]);
    assert_eq!(code, 78);
    assert!(text.contains("outbox.db") && text.contains("semel daemon recover"), "{text}");
    std::fs::remove_file(alice.folder().join("outbox.db")).unwrap();
    std::fs::write(alice.folder().join("config.toml"), "[outbox]\nwindo = 3\n").unwrap();
    let (code, text) = fails(&["daemon", "up", "--no-tcp", "--home", &alice.home()]);
    assert_eq!(code, 78);
    assert!(text.contains("windo"), "{text}");
    std::fs::remove_file(alice.folder().join("config.toml")).unwrap();
    let _one = alice.up();
    let listed = succeeds(&["mesh", "list", "--json", "--home", &alice.home()]);
    assert!(listed.contains("\"joined\""), "{listed}");
}
