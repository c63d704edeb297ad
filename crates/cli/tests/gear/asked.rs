//! What a gear has done in the operator's name: nothing that it does not declare, and what it
//! declares is shown before it is installed.

use std::fs;

use semel_jobs::gear::groups;
use semel_jobs::gear::sandbox::count::Processes;
use serde_json::{Value, json};

use crate::world::{Up, World};

fn declaring(permissions: &str) -> World {
    let permissions = format!("secrets = []\n{permissions}");
    World::with(|manifest| manifest.replace("secrets = []", &permissions))
}

fn step(gear: &str, action: &str, params: Value) -> Value {
    json!({"id": action, "gear": gear, "action": action, "params": params})
}

/// Asks for this sub-job; gives how the job stands in the end.
fn has_done(up: &Up<'_>, asked: &Value) -> Value {
    up.ended(&up.submit(&json!([step("hostile", "has_done", json!({"asked": asked}))])))
}

/// Nobody has sent anything, and nothing has come.
fn nothing_was_sent(up: &Up<'_>) {
    for list in [["outbox", "list"], ["inbox", "list"], ["queue", "list"]] {
        assert_eq!(up.asked(&list)["items"], json!([]), "{list:?}");
    }
}

fn refused(up: &Up<'_>, asked: &Value, code: &str) {
    let job = has_done(up, asked);
    assert_eq!(job["status"], "failed", "{asked}: {job:#}");
    assert!(job.to_string().contains(code), "{asked}: {job:#}");
    nothing_was_sent(up);
}

fn tells(to: &str) -> Value {
    json!({"plan": {"steps": [step("mesh", "send", json!({"to": to, "message": "stolen"}))]}})
}

#[test]
fn what_declares_nothing_sends_nothing_and_uses_nobody() {
    let world = World::new();
    let up = Up::start(&world);
    let text = world.succeeds(&["gear", "install", "hostile"], "");
    assert!(!text.contains("in your name"), "{text}");
    let post = json!({"topic": "builds", "message": "stolen"});
    let own = [step("hostile", "gives", json!({"value": "of its own"}))];
    for asked in [
        tells("@me"),
        tells("queue:work"),
        json!({"plan": {"steps": [step("mesh", "post", post)]}}),
        json!({"plan": {"steps": [step("shell", "run", json!({"command": "true"}))]}}),
        json!({"plan": {"steps": own}}),
        json!({"request": "send a message"}),
    ] {
        refused(&up, &asked, "sub_job_not_allowed");
    }
    let jobs = up.asked(&["job", "list"]);
    assert_eq!(jobs["items"].as_array().unwrap().len(), 6, "no other was made: {jobs:#}");
}

#[test]
fn who_may_use_an_action_may_not_send_to_everybody_by_it() {
    for permissions in [
        "sub_jobs = [\"mesh.send\", \"hostile.gives\"]",
        "sub_jobs = [\"mesh.*\", \"hostile.gives\"]\npublish = [\"#me\", \"@m\", \"@other\"]",
        "sub_jobs = [\"*\"]\npublish = [\"#builds\"]",
    ] {
        let world = declaring(permissions);
        let up = Up::start(&world);
        world.succeeds(&["gear", "install", "hostile"], "");
        refused(&up, &tells("@me"), "permission_missing");
        // What is named by an earlier step is judged when it is known.
        let mut later = step("mesh", "send", json!({"to": "REF:step:gives", "message": "stolen"}));
        later["depends_on"] = json!(["gives"]);
        let earlier = step("hostile", "gives", json!({"value": "@me"}));
        refused(&up, &json!({"plan": {"steps": [earlier, later]}}), "permission_missing");
    }
}

#[test]
fn what_is_declared_is_shown_and_done() {
    let world =
        declaring("sub_jobs = [\"mesh.send\", \"wait.*\"]\npublish = [\"@me\", \"#builds\"]");
    let up = Up::start(&world);
    let text = world.succeeds(&["gear", "install", "hostile"], "");
    let bounded = groups::look();
    for line in [
        "  it may have these actions done in your name: mesh.send, wait.*\n",
        "  it may send messages in your name to: @me, #builds\n",
        &format!(
            "  it may run {}, each with 512 MB of memory, 5 s of processor and 64 open files, and \
             write 1024 MB in files of 8 MB\n",
            Processes::of(32, &bounded)
        ),
        // And what is not enforced on this host.
        &format!("  {}\n", groups::told(&bounded)),
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let again = world.succeeds(&["gear", "install", "hostile", "--json"], "");
    let again: Value = serde_json::from_str(&again).unwrap();
    assert_eq!(again["bounded"], groups::told(&bounded));
    let shown = world.succeeds(&["gear", "test", "hostile"], "");
    assert!(shown.contains("it may send messages in your name to: @me, #builds\n"), "{shown}");
    nothing_was_sent(&up);
    let job = has_done(&up, &tells("@me"));
    assert_eq!(job["status"], "completed", "{job:#}");
    assert_eq!(up.asked(&["outbox", "list"])["items"].as_array().unwrap().len(), 1);
}

#[test]
fn what_is_not_counted_is_said() {
    let world = World::new();
    let open = world.path().join("open").display().to_string();
    fs::create_dir(&open).unwrap();
    let manifest = fs::read_to_string(world.gear().join("gear.toml")).unwrap();
    let declared = format!("secrets = []\nwrite = [\"{open}/**\"]");
    fs::write(world.gear().join("gear.toml"), manifest.replace("secrets = []", &declared)).unwrap();
    let text = world.succeeds(&["gear", "install", "hostile"], "");
    let uses = format!(
        "write 1024 MB in files of 8 MB, and in {open} as many of these as there is room for\n"
    );
    assert!(text.contains(&uses), "{text}");
}

#[test]
fn everything_is_said_as_everything() {
    let world = declaring("sub_jobs = [\"*\"]\npublish = [\"*\"]");
    let text = world.succeeds(&["gear", "install", "hostile"], "");
    assert!(text.contains("in your name: every action of every gear\n"), "{text}");
    assert!(text.contains("in your name to: everybody\n"), "{text}");
}

/// A gear may say its secrets in every field that it has: none of them is shown, or written down.
#[test]
fn a_secret_is_not_in_what_a_job_leaves() {
    let secret = "s3cret-value-of-the-operator";
    let world = World::with(|manifest| {
        manifest.replace("secrets = []", "secrets = [\"token\"]\nsub_jobs = [\"*\"]")
    });
    world.succeeds(&["secret", "set", "token"], secret);
    let up = Up::start(&world);
    world.succeeds(&["gear", "install", "hostile"], "");
    let hows =
        ["problem", "class", "artifact", "file", "words", "plan", "resolved", "resolved file"];
    for how in hows {
        let id = up.submit(&json!([step("hostile", "betrays", json!({"how": how}))]));
        let job = up.ended(&id);
        if how == "resolved" {
            assert!(job.to_string().contains("[secret]"), "it was asked: {job:#}");
        }
        for words in [["job", "show"], ["job", "watch"]] {
            if words[1] == "watch" && job["status"] == "awaiting_approval" {
                // It would be watched until somebody answers.
                continue;
            }
            let output = world.semel(&[words[0], words[1], &id], "");
            let shown = format!("{output:?}");
            assert!(!shown.contains(secret), "{how}: {shown}");
        }
    }
    assert!(!up.asked(&["job", "list"]).to_string().contains(secret));
    drop(up);
    let mut left = vec![world.home()];
    let mut looked_at = 0;
    while let Some(path) = left.pop() {
        // A workspace is the gear's own.
        if path.ends_with("jobs/work") {
            continue;
        }
        if path.is_dir() && !path.is_symlink() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.is_file() {
            looked_at += 1;
            let bytes = fs::read(&path).unwrap();
            let found = bytes.windows(secret.len()).any(|piece| piece == secret.as_bytes());
            assert!(!found, "{}", path.display());
        }
    }
    assert!(looked_at > 5, "{looked_at} files");
}
