//! What a user does from the command line, and what the command line says.

use serde_json::{Value, json};

use crate::process::{MESH, Mesh, Process, arrived, fails, semel, succeeds};
use semel_client::Client;

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
    let subscribed = |host: &crate::process::Host| {
        let list = host.run_json(&["topic", "list"])["items"].clone();
        let found = list.as_array().unwrap().iter().find(|topic| topic["name"] == name).cloned();
        found.unwrap()["subscribed"].clone()
    };
    assert_eq!((subscribed(&alice), subscribed(&bob)), (json!(true), json!(false)));
    bob.run(&["topic", "subscribe", name]);
    assert_eq!(subscribed(&bob), true);
    alice.run(&["send", &format!("#{name}"), "green", "--wait"]);
    let arrived = || bob.run_json(&["inbox", "list", "--topic", name])["items"].clone();
    while arrived() == json!([]) {
        std::thread::yield_now();
    }
    let mentions =
        || bob.run_json(&["inbox", "list", "--mentions", "--limit", "1"])["items"].clone();
    assert_eq!(mentions(), json!([]));
    alice.run(&["topic", "post", name, "for bob", "--mentions", "@bob"]);
    while mentions() == json!([]) {
        std::thread::yield_now();
    }
    alice.run(&["topic", "post", name, "for nobody"]);
    let found = mentions();
    assert_eq!((&found[0]["body"], found.as_array().unwrap().len()), (&json!("for bob"), 1));
    alice.run(&["queue", "create", "work"]);
    alice.run(&["send", "queue:work", "job 1", "--wait"]);
    let taken = bob.run_json(&["queue", "take", "work"]);
    assert_eq!(taken["items"][0]["body"], "job 1");
    let seq = taken["items"][0]["seq"].to_string();
    assert_eq!(bob.run_json(&["queue", "take", "work"])["items"], json!([]), "it is leased");
    let acked = bob.run_json(&["queue", "ack", "work", &seq]);
    assert_eq!(acked["acked"].to_string(), format!("[{seq}]"));
    let (code, text) = fails(&["queue", "ack", "work", &seq, "--home", &bob.home()]);
    assert!(code == 3 && text.contains("done already"), "{code}: {text}");
    let (code, text) = fails(&["mesh", "invite", "--home", &alice.home()]);
    assert!(code == 1 && text.contains("owner_needed"), "{code}: {text}");
    let invite = bob.run(&["mesh", "invite", "--uses", "2"]);
    assert!(invite.starts_with("semel://join/"), "{invite}");
    // Who is thrown out ends, and is told why.
    let pubkey = one.ready["pubkey"].as_str().unwrap().to_owned();
    let (code, text) = fails(&["member", "revoke", "@stranger", "--home", &bob.home()]);
    assert!(code == 3 && text.contains("there is no member"), "{code}: {text}");
    let peers = bob.run_json(&["peers"])["items"].clone();
    let peer = |name: &str| {
        let found = peers.as_array().unwrap().iter().find(|peer| peer["name"] == name);
        found.unwrap()["pubkey"].clone()
    };
    assert_eq!(peer("alice"), pubkey.as_str());
    bob.run(&["member", "revoke", "@alice"]);
    assert_eq!(one.ends(), Some(1));
}

#[test]
fn a_row_is_requeued_under_a_key_that_is_made_or_given() {
    let mut mesh = Mesh::new();
    let alice = mesh.join("alice", "member");
    mesh.broker.take().unwrap().kill();
    let daemon = alice.up();
    let to = daemon.ready["pubkey"].as_str().unwrap();
    alice.run(&["send", to, "hello", "--key", "first"]);
    let made = alice.run_json(&["outbox", "requeue", "--id", "first", "--auto"]);
    let key = made["client_message_id"].as_str().unwrap();
    assert!(made["status"] == "queued" && key != "first", "{made}");
    let given = alice.run_json(&["outbox", "requeue", "--id", key, "--new-client-id", "third"]);
    assert_eq!(given["client_message_id"], "third");
    let row = alice.run_json(&["outbox", "inspect", "first"]);
    assert_eq!((&row["status"], &row["aborted_by"]), (&json!("aborted"), &json!("operator")));
}

#[test]
fn a_folder_has_one_daemon_and_without_one_nothing_is_done() {
    let mesh = Mesh::new();
    let alice = mesh.join("alice", "member");
    let home = alice.home();
    let (code, text) = fails(&["send", "@bob", "hello", "--home", &home]);
    assert_eq!(code, 5, "{text}");
    let start = format!("semel daemon up --mesh {MESH} --home {home}");
    assert!(text.contains(&format!("to start it: {start}\n")), "{text}");
    let _one = alice.up();
    let (code, text) = fails(&["daemon", "up", "--home", &home]);
    assert_eq!(code, 78);
    assert!(text.contains("a daemon runs there already"), "{text}");
    assert_eq!(alice.run(&["daemon", "down"]), "the daemon has stopped");
    assert_eq!(alice.run(&["daemon", "down"]), format!("no daemon runs for the mesh {MESH}"));
    let nobody = json!({"mesh": MESH, "stopped": false});
    assert_eq!(alice.run_json(&["daemon", "down"]), nobody);
    // An address in plain text is allowed for an invite that names one.
    let (code, text) = fails(&["mesh", "invite", "--insecure-allow-plain", "--home", &home]);
    assert!(code == 2 && text.contains("--broker-url"), "{text}");
    // One key is made or given.
    let both = ["outbox", "requeue", "--id", "x", "--auto", "--new-client-id", "y"];
    let (code, text) = fails(&[&both[..], &["--home", &home]].concat());
    assert!(code == 2 && text.contains("--auto"), "{text}");
    // In the background, restarted, and stopped.
    alice.run(&["daemon", "up", "--detach", "--no-tcp"]);
    assert_eq!(alice.run_json(&["daemon", "status"])["mesh"], MESH);
    let restarted = alice.run_json(&["daemon", "restart"]);
    assert_eq!((&restarted["event"], &restarted["mesh"]), (&json!("ready"), &json!(MESH)));
    let port = alice.folder().join("http.port");
    assert!(!port.exists(), "it is restarted as it was started");
    succeeds(&["daemon", "restart", "--home", &home, "--", "--api-listen", "127.0.0.1:0"]);
    assert!(port.exists(), "what is said now wins");
    let stopped = alice.run_json(&["daemon", "down"]);
    assert_eq!(stopped, json!({"mesh": MESH, "stopped": true}));
    // Its lines are JSON whatever is said.
    let (code, text) = fails(&["daemon", "logs", "--json", "--home", &home]);
    assert!(code == 2 && text.contains("--json"), "{text}");
    assert!(alice.run(&["daemon", "logs"]).contains("connected to the broker"));
    let (code, text) = fails(&["mesh", "join", &mesh.invite("member"), "--home", &home]);
    assert_eq!(code, 4, "{text}");
    assert!(text.contains(&format!("to start its daemon: {start}\n")), "{text}");
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
    // The way out that it names: look, decide, begin anew.
    let recover = ["daemon", "recover", "--json", "--home", &alice.home()];
    let output = semel(&recover);
    assert_eq!(output.status.code(), Some(1));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["files"][0]["state"], "damaged", "{found}");
    assert_eq!(found["files"][1]["state"], "sound", "made before: {found}");
    let fresh = [&recover[..], &["--start-fresh", "outbox"]].concat();
    let (code, text) = fails(&fresh);
    assert!(code == 4 && text.contains("are lost") && text.contains("--confirm"), "{text}");
    assert_eq!(std::fs::read(alice.folder().join("outbox.db")).unwrap(), vec![0x5a; 8192]);
    let done: Value =
        serde_json::from_str(&succeeds(&[&fresh[..], &["--confirm"]].concat())).unwrap();
    let aside = done["files"][0]["set_aside"].as_str().unwrap();
    assert!(aside.contains("outbox.db.corrupt-"), "{aside}");
    assert_eq!(std::fs::read(aside).unwrap(), vec![0x5a; 8192]);
    assert!(!alice.folder().join("outbox.db").exists());
    std::fs::write(alice.folder().join("config.toml"), "[outbox]\nwindo = 3\n").unwrap();
    let (code, text) = fails(&["daemon", "up", "--no-tcp", "--home", &alice.home()]);
    assert_eq!(code, 78);
    assert!(text.contains("windo"), "{text}");
    std::fs::remove_file(alice.folder().join("config.toml")).unwrap();
    let _one = alice.up();
    let listed = succeeds(&["mesh", "list", "--json", "--home", &alice.home()]);
    assert!(listed.contains("\"joined\""), "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inbox_that_is_damaged_inside_is_found_set_aside_and_rebuilt() {
    let mesh = Mesh::new();
    let (alice, bob) = (mesh.join("alice", "member"), mesh.join("bob", "member"));
    let (one, mut two) = (alice.up(), bob.up());
    let to = two.ready["pubkey"].as_str().unwrap().to_owned();
    for number in 0..40 {
        alice.run(&["send", &to, &format!("{number}: {}", "x".repeat(2000))]);
    }
    let before = arrived(&bob, 40).await;
    let recover = ["daemon", "recover", "--json", "--home", &bob.home()];
    let (code, text) = fails(&recover);
    assert!(code == 78 && text.contains("a daemon runs there already"), "{code}: {text}");
    two.terminate();
    let sound: Value = serde_json::from_str(&succeeds(&recover)).unwrap();
    assert_eq!(sound["files"][1]["state"], "sound", "{sound}");
    let (code, text) = fails(&[&recover[..], &["--start-fresh", "inbox", "--confirm"]].concat());
    assert!(code == 4 && text.contains("nothing was done"), "{text}");
    // Some page in the middle, which opening the file does not read.
    let path = bob.folder().join("inbox.db");
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2 / 4096 * 4096;
    bytes[middle..middle + 4096].fill(0x5a);
    std::fs::write(&path, bytes).unwrap();
    let (code, text) = fails(&recover);
    assert!(code == 1 && text.contains("--start-fresh inbox"), "{text}");
    succeeds(&[&recover[..], &["--start-fresh", "inbox", "--confirm"]].concat());
    let _two = bob.up();
    // What the broker had not heard to be stored comes at once, what is older by the catch-up.
    let bodies = |messages: &[Value]| -> Vec<Value> {
        let mut messages = messages.to_vec();
        messages.sort_by_key(|message| message["seq"].as_i64());
        messages.iter().map(|message| message["body"].clone()).collect()
    };
    assert_eq!(bodies(&arrived(&bob, 40).await), bodies(&before), "rebuilt, each once");
    drop(one);
}

/// What opening does not read shows when something arrives: the way out is named then, too.
#[test]
fn an_inbox_that_opens_and_cannot_be_written_names_the_way_out() {
    let mesh = Mesh::new();
    let (alice, bob) = (mesh.join("alice", "member"), mesh.join("bob", "member"));
    let (_one, mut two) = (alice.up(), bob.up());
    let to = two.ready["pubkey"].as_str().unwrap().to_owned();
    two.terminate();
    let path = bob.folder().join("inbox.db");
    let file = semel_testkit::sqlite::open(&path).unwrap();
    let sql = "SELECT rootpage FROM sqlite_schema WHERE name = 'inbox_key'";
    let page: u32 = file.query_row(sql, [], |row| row.get(0)).unwrap();
    let page = page as usize;
    drop(file);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[(page - 1) * 4096..page * 4096].fill(0x5a);
    std::fs::write(&path, bytes).unwrap();
    alice.run(&["send", &to, "hello", "--wait"]);
    let (code, text) = fails(&["daemon", "up", "--no-tcp", "--home", &bob.home()]);
    assert_eq!(code, 5, "{text}");
    assert!(text.contains("semel daemon recover"), "{text}");
    let (code, text) = fails(&["daemon", "recover", "--home", &bob.home()]);
    assert!(code == 1 && text.contains("--start-fresh inbox"), "{code}: {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_in_which_nothing_had_happened_yet_goes_on_where_it_began() {
    let mesh = Mesh::new();
    let (alice, bob) = (mesh.join("alice", "member"), mesh.join("bob", "member"));
    let (_one, mut two) = (alice.up(), bob.up());
    let to = two.ready["pubkey"].as_str().unwrap().to_owned();
    let mut events = bob.client().events(None, &["message"]).await.unwrap();
    two.terminate();
    assert_eq!(events.next().await.ok().flatten(), None);
    let began = events.seen();
    assert!(began.is_some(), "it was told where it begins");
    let _two = bob.up();
    alice.run(&["send", &to, "meanwhile", "--wait"]);
    arrived(&bob, 1).await;
    let mut events = bob.client().events(began, &["message"]).await.unwrap();
    let event = events.next().await.unwrap().expect("an event");
    assert_eq!(event.data["body"], "meanwhile");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_is_replaced_over_the_socket_only() {
    let mesh = Mesh::new();
    let alice = mesh.join("alice", "member");
    let home = alice.home();
    let up = ["daemon", "up", "--json", "--api-listen", "127.0.0.1:0", "--home", &home];
    let mut daemon = Process::start(&up);
    let address = daemon.ready["api"].as_str().unwrap().trim_start_matches("http://").to_owned();
    let token = || std::fs::read_to_string(alice.folder().join("local_token")).unwrap();
    let old = token();
    let over_tcp = |token: &str| Client::tcp(address.parse().unwrap(), token.trim());
    let refused = over_tcp(&old).post("/v1/token/rotate", &json!({}), None).await.unwrap();
    assert_eq!((refused.status, refused.code()), (403, Some("socket_only")));
    assert_eq!(token(), old);
    let text = alice.run(&["daemon", "rotate-token"]);
    assert!(text.contains("60 s") && !text.contains(token().trim()), "{text}");
    let new = token();
    assert_ne!(new, old);
    for good in [&old, &new] {
        assert_eq!(over_tcp(good).get("/v1/health").await.unwrap().status, 200);
    }
    alice.run(&["daemon", "rotate-token"]);
    assert_eq!(over_tcp(&old).get("/v1/health").await.unwrap().status, 401, "its grace is over");
    assert_eq!(over_tcp(&new).get("/v1/health").await.unwrap().status, 200);
    // The folder is left in order all the same.
    daemon.terminate();
    assert!(!alice.folder().join("sock").exists());
}
