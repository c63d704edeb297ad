//! Names belong to one: of members while they are there, of topics and queues until they are
//! deleted.

use serde_json::Value;

use super::process::{MESH, Mesh, Process, arrived, fails, succeeds};

/// The names of active members.
fn active(mesh: &Mesh) -> Vec<String> {
    let listed = mesh.broker(&["member", "list", MESH, "--json"]);
    let members = listed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut names: Vec<String> = members
        .filter(|member| member["status"] == "active" && member["name"] != "nobody")
        .map(|member| member["name"].as_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn a_stranger_cannot_take_a_name_that_somebody_has() {
    let mesh = Mesh::new();
    let owner = mesh.join("owner", "owner");
    let (other, invite) = (mesh.host("other"), mesh.invite("member"));
    let join = ["mesh", "join", &invite, "--home", &other.home()];
    let (code, text) = fails(&[&join[..], &["--name", "owner"]].concat());
    assert!(code == 4 && text.contains("name_taken"), "{code}: {text}");
    // Nor one that looks like it.
    for name in ["owner ", " owner", "owner\u{a0}", "@owner", " "] {
        let (_, text) = fails(&[&join[..], &["--name", name]].concat());
        assert!(text.contains("no blanks at its"), "{name:?}: {text}");
    }
    // The invite was not used, and the same host may join by another name.
    succeeds(&[&join[..], &["--name", "bob"]].concat());
    let (_owner, _bob) = (owner.up(), other.up());
    other.run(&["send", "@owner", "hello", "--wait"]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let message = runtime.block_on(arrived(&owner, 1)).remove(0);
    assert_eq!(message["sender_name"], "bob");
    assert_eq!(active(&mesh), ["bob", "owner"]);
}

#[test]
fn without_a_name_hosts_and_ephemeral_members_are_told_apart() {
    let mesh = Mesh::new();
    for home in ["one", "two"] {
        let home = mesh.host(home).home();
        succeeds(&["mesh", "join", &mesh.invite("member"), "--home", &home]);
    }
    let names = active(&mesh);
    let [first, second] = &names[..] else { panic!("{names:?}") };
    let digits = second.strip_prefix(&format!("{first}-")).expect("its key's digits");
    assert!(digits.len() == 8 && digits.bytes().all(|b| b.is_ascii_hexdigit()), "{names:?}");
    // A runner that was killed is still there; the next one of that name starts all the same.
    let start = |home: &str| {
        let (host, invite) = (mesh.host(home), mesh.invite("member"));
        let up = ["daemon", "up", "--json", "--no-tcp", "--ephemeral", "--invite", &invite];
        Process::start(&[&up, &["--name", "ci", "--home", &host.home()][..]].concat())
    };
    let mut killed = start("runner-1");
    killed.kill();
    let mut second = start("runner-2");
    let called = format!("ci-{}", &second.ready["pubkey"].as_str().unwrap()[..8]);
    assert!(active(&mesh).contains(&called), "{:?}", active(&mesh));
    second.terminate();
    assert!(!active(&mesh).contains(&called));
    let killed = killed.ready["pubkey"].as_str().unwrap().to_owned();
    mesh.broker(&["member", "revoke", MESH, &killed]);
    let mut third = start("runner-3");
    assert!(active(&mesh).contains(&"ci".to_owned()), "the name is free again");
    third.terminate();
}

#[test]
fn whoever_made_a_topic_or_a_queue_deletes_it_and_nothing_is_lost_unasked() {
    let mesh = Mesh::new();
    let (alice, bob) = (mesh.join("alice", "member"), mesh.join("bob", "member"));
    let (_alice, _bob) = (alice.up(), bob.up());
    let home = bob.home();
    alice.run(&["topic", "create", "builds"]);
    bob.run(&["topic", "subscribe", "builds"]);
    alice.run(&["topic", "post", "builds", "green"]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(arrived(&bob, 1));
    let (code, text) = fails(&["topic", "delete", "builds", "--home", &home]);
    assert!(text.contains("owner_needed"), "{code}: {text}");
    let (code, text) = fails(&["topic", "delete", "#builds", "--home", &alice.home()]);
    assert!(code == 4 && text.contains("in_use"), "{code}: {text}");
    assert_eq!(alice.run(&["topic", "delete", "builds", "--confirm"]), "#builds is deleted");
    assert!(!alice.run(&["topic", "list"]).contains("builds"));
    alice.run(&["queue", "create", "work"]);
    alice.run(&["send", "queue:work", "do it", "--wait"]);
    let (code, text) = fails(&["queue", "delete", "work", "--home", &alice.home()]);
    assert!(code == 4 && text.contains("in_use"), "{code}: {text}");
    let taken = bob.run_json(&["queue", "take", "work"]);
    let seq = taken["items"][0]["seq"].to_string();
    bob.run(&["queue", "ack", "work", &seq]);
    assert_eq!(alice.run(&["queue", "delete", "work"]), "queue:work is deleted");
    alice.run(&["queue", "create", "again"]);
    alice.run(&["send", "queue:again", "never done", "--wait"]);
    assert_eq!(alice.run(&["queue", "delete", "again", "--discard"]), "queue:again is deleted");
    let (code, text) = fails(&["queue", "take", "again", "--home", &home]);
    assert!(text.contains("queue_not_found"), "{code}: {text}");
}
