//! Members that ask and do not read, and are pushed to as well: what waits for them is bounded in
//! bytes, and everybody else is served.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use semel_client::Client;
use semel_core::clock::{Clock, SystemClock};
use semel_wire::frame::{FromDaemon, HistoryRequest};
use serde_json::{Value, json};

use crate::daemon::{Daemon, pubkey};
use crate::joined::{Serving, connected, json as asked, program};
use crate::process::succeeds;

/// The usual limit of open files.
const FILES: u64 = 1024;

/// Questions of each member.
const QUESTIONS: u64 = 1000;

/// Only a failure waits for it.
const PATIENCE: Duration = Duration::from_secs(120);

/// A line of `/proc/PID/status` that is a number of kB.
fn kb(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_matches([':', ' ', '\t']).trim_end_matches(" kB").parse().unwrap()
}

fn open_files(pid: u32) -> u64 {
    u64::try_from(std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()).unwrap()
}

/// `semel up` that may have only so many files open.
fn up(home: &Path) -> Serving {
    let wanted = program(&["up", "--name", "me", "--broker-listen", "127.0.0.1:0", "--json"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -n {FILES}; exec \"$@\""), "sh"]);
    shell.arg(wanted.get_program()).args(wanted.get_args());
    shell.args(["--api-listen", "127.0.0.1:0", "--home"]).arg(home);
    for (name, _) in wanted.get_envs() {
        shell.env_remove(name);
    }
    Serving::of(shell)
}

/// Posts so many, of so many bytes, and waits until the broker has them.
async fn post(client: &Client, name: &str, (count, bytes): (usize, usize)) {
    let body = "x".repeat(bytes);
    for number in 0..count {
        let message = json!({"topic": "flood", "message": format!("{name} {number} {body}")});
        let posted = client.post("/v1/topic/post", &message, None).await.unwrap();
        assert!(posted.is_success(), "{posted:?}");
    }
    let delivered = async {
        let nothing = |health: &Value| health["queue_depth"] == 0 && health["inflight"] == 0;
        while !nothing(&client.get("/v1/health").await.unwrap().body) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, delivered).await.unwrap();
}

/// More than a window has, each about as large as it may be.
#[tokio::test(flavor = "multi_thread")]
async fn three_members_that_ask_and_do_not_read_take_nothing_from_anybody() {
    nothing_is_taken("inline_bytes=65536", (300, 60 << 10), 150_000).await;
}

/// The same with the largest that a mesh can allow.
#[tokio::test(flavor = "multi_thread")]
async fn nor_do_they_where_messages_are_large() {
    nothing_is_taken("inline_bytes=1048576", (40, 1000 << 10), 200_000).await;
}

async fn nothing_is_taken(policy: &str, messages: (usize, usize), kb_max: u64) {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("one");
    // Its daemon is told what a message may have when it connects.
    assert_eq!(up(&home).stop(), Some(0));
    let store = format!("sqlite:{}", home.join("broker/broker.db").display());
    succeeds(&["broker", "mesh", "set", "local", policy, "--store", &store]);
    let up = up(&home);
    let (url, pid) = (up.ready["broker"].as_str().unwrap(), up.pid());
    let client = Client::socket(up.ready["socket"].as_str().unwrap());
    let made = client.post("/v1/topic/create", &json!({"topic": "flood"}), None).await.unwrap();
    assert!(made.is_success(), "{made:?}");
    for number in 1..=3 {
        let name = format!("silent{number}");
        let add = ["broker", "member", "add", "local", &name, &pubkey(number), "--store", &store];
        let member = succeeds(&add);
        succeeds(&["broker", "topic", "subscribe", "local", "flood", &member, "--store", &store]);
    }
    post(&client, "before", messages).await;
    let mut members = Vec::new();
    for number in 1..=3 {
        let mut member = Daemon::connect_to(url, "local", number).await.expect("it is let in");
        for request_id in 1..=QUESTIONS {
            let asks = HistoryRequest { request_id, after_seq: 0, limit: 64 };
            member.say(&FromDaemon::HistoryRequest(asks)).await.unwrap();
        }
        members.push(member);
    }
    post(&client, "after", messages).await;
    let (clock, mut worst, mut most_kb) = (SystemClock::new(), Duration::ZERO, 0);
    for number in 0..20 {
        let began = clock.monotonic();
        let note = json!({"to": "@me", "message": format!("note {number}")});
        let path = ["/v1/health", "/v1/send"][number % 2];
        let asking = async {
            match path {
                "/v1/send" => client.post(path, &note, None).await,
                _ => client.get(path).await,
            }
        };
        let answer = tokio::time::timeout(PATIENCE, asking).await.expect("its owner is answered");
        assert!(answer.unwrap().is_success());
        worst = worst.max(clock.monotonic() - began);
        most_kb = most_kb.max(kb(pid, "VmRSS"));
        assert!(open_files(pid) < FILES);
    }
    println!(
        "three that do not read, {policy}: the owner's worst answer {worst:?}, {most_kb} kB, \
         at the most {} \
         kB, {} open files",
        kb(pid, "VmHWM"),
        open_files(pid)
    );
    assert!(kb(pid, "VmHWM") < kb_max, "{} kB", kb(pid, "VmHWM"));
    // Somebody else joins, and is served.
    let (one, two) = (home.display().to_string(), folder.path().join("two").display().to_string());
    let invite = asked(&["mesh", "invite", "--json", "--home", &one])["invite"].clone();
    asked(&["mesh", "join", invite.as_str().unwrap(), "--name", "bob", "--home", &two, "--json"]);
    let daemon = ["daemon", "up", "--persistent", "--no-tcp", "--json", "--home", &two];
    let mut bob = Serving::start(&daemon);
    connected(&two);
    let sent = asked(&["send", "@me", "hello", "--wait", "--json", "--home", &two]);
    assert_eq!(sent["status"], "done");
    assert_eq!(bob.stop(), Some(0));
    drop(members);
}
