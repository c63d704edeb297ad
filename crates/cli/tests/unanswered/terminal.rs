//! A daemon, an engine, a broker that answers whatever can be answered with text that would move
//! the cursor, turn lines round or hide in them: none of it reaches a terminal as it is.

use std::path::Path;
use std::process::{Command, Output};

use semel_core::shown::shown;
use serde_json::{Value, json};

use crate::fake::{Asked, Fake, answer};
use crate::joined;

/// Runs a command whose standard output is a terminal, and passes on what it prints there.
const AT_A_TERMINAL: &str = "
import os, pty, subprocess, sys
ours, theirs = pty.openpty()
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=theirs)
os.close(theirs)
while True:
    try:
        said = os.read(ours, 65536)
    except OSError:
        break
    if not said:
        break
    os.write(1, said)
sys.exit(child.wait())
";

/// Clears a screen, sets a title, is a C1 sequence, turns the direction, goes back to the beginning
/// of the line, hides, and is long.
fn hostile() -> String {
    let begin = "a\u{1b}[2Jb\u{1b}]0;owned\u{7}c\u{9b}31m\u{202e}d\re\nf\u{200b}\u{7f}\u{e0041}";
    format!("{begin}{}", "x".repeat(10 << 10))
}

/// Every field that anybody shows.
const FIELDS: &[&str] = &[
    "id",
    "name",
    "member_id",
    "pubkey",
    "role",
    "status",
    "received_at",
    "sender_name",
    "topic",
    "at",
    "source",
    "reason",
    "body",
    "outbox_id",
    "client_message_id",
    "to",
    "outcome",
    "enqueued_at",
    "last_error",
    "state",
    "since",
    "outbox_pressure",
    "invite",
    "queue",
    "kind",
    "priority",
    "failure_class",
    "created_at",
    "conversation_id",
    "plan_hash",
    "held_by",
    "error",
    "question",
    "gear",
    "action",
    "class",
    "stopped_by",
    "nonce",
    "not_after",
    "event",
    "outcome",
    "logical_request_key",
    "attempt_id",
    "can_proceed",
    "gate",
    "detail",
    "title",
    "conflict",
    "pointer",
    "warning",
    "needs_restart",
    "acked",
    "stored_as",
    "broker",
    "grant",
    "step",
];

fn item() -> Value {
    let fields = FIELDS.iter().map(|field| ((*field).to_owned(), json!(hostile())));
    let mut item: serde_json::Map<String, Value> = fields.collect();
    item.insert("attempts".to_owned(), json!(1));
    item.insert("result".to_owned(), json!({hostile(): hostile()}));
    item.into()
}

fn document() -> Value {
    let mut document = item();
    document["items"] = json!([item()]);
    document["steps"] = json!([item()]);
    document["needs_restart"] = json!([hostile()]);
    document["acked"] = json!([1]);
    document["error"] = json!({"message": hostile(), "code": hostile(), "class": hostile()});
    document["mesh"] = "work".into();
    document
}

/// What happens, until a job has ended.
fn events() -> String {
    let mut text =
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\n\r\n"
            .to_owned();
    let end = json!({"status": "failed", "error": {"message": hostile()}});
    let kinds = [("log", item()), ("progress", item()), ("step_ended", item()), ("moved", end)];
    for (id, (kind, mut data)) in kinds.into_iter().enumerate() {
        data["message"] = hostile().into();
        text.push_str(&format!("id: {}\nevent: {kind}\ndata: {data}\n\n", id + 1));
    }
    text
}

fn well(asked: &Asked) -> Option<String> {
    match asked.path.as_str() {
        "/v1/version" => Some(answer(200, &json!({"mesh": "work"}))),
        path if path.contains("/events") => Some(events()),
        _ => Some(answer(200, &document())),
    }
}

fn badly(asked: &Asked) -> Option<String> {
    match asked.path.as_str() {
        "/v1/version" => Some(answer(200, &json!({"mesh": "work"}))),
        // Whether there are jobs.
        path if path.contains("limit=1") => Some(answer(200, &json!({"items": []}))),
        _ => Some(answer(409, &document())),
    }
}

const COMMANDS: &[&[&str]] = &[
    &["status"],
    &["daemon", "status"],
    &["daemon", "reload"],
    &["peers"],
    &["member", "list"],
    &["inbox", "list"],
    &["inbox", "search", "word"],
    &["inbox", "aside"],
    &["inbox", "aside", "--drop", "1"],
    &["inbox", "ack", "1"],
    &["outbox", "list"],
    &["outbox", "inspect", "one"],
    &["outbox", "requeue", "--id", "one"],
    &["topic", "list"],
    &["topic", "create", "builds"],
    &["topic", "post", "builds", "hello"],
    &["queue", "list"],
    &["queue", "take", "work"],
    &["queue", "ack", "work", "1"],
    &["send", "@me", "hello"],
    &["mesh", "invite"],
    &["job", "list"],
    &["job", "show", "one"],
    &["job", "watch", "one"],
    &["job", "submit", "--request", "please", "--wait"],
    &["job", "submit", "--request", "please"],
    &["job", "approve", "one"],
    &["job", "reject", "one"],
    &["job", "cancel", "one"],
    &["job", "retry", "one"],
    &["job", "retry", "--class", "transient"],
    &["job", "patterns"],
    &["grant", "list", "payments"],
    &["effect", "show", "key"],
    &["registrar", "gate", "show", "payments"],
    &["registrar", "audit", "attempts"],
    &["registrar", "audit", "failures"],
];

fn at_a_terminal(home: &Path, words: &[&str]) -> Output {
    let mut command = Command::new("python3");
    command.args(["-c", AT_A_TERMINAL, env!("CARGO_BIN_EXE_semel")]).args(words);
    command.arg("--home").arg(home).env_remove("SEMEL_HOME").env("NO_COLOR", "1");
    command.output().unwrap()
}

/// Also without any heading in colour: there is none in these tests.
fn is_plain(words: &[&str], what: &str, bytes: &[u8]) {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    // The terminal begins a line in this way.
    for line in text.replace("\r\n", "\n").split('\n') {
        assert_eq!(shown(line), line, "{words:?} on {what}");
    }
}

fn are_plain(reply: fn(&Asked) -> Option<String>, forms: &[&[&str]], are_shown: usize) {
    let folder = tempfile::tempdir().unwrap();
    let home = joined(folder.path());
    let _daemon = Fake::at_socket(&home.socket_path().unwrap(), reply);
    let mut shown = 0;
    for words in COMMANDS {
        for form in forms {
            let words = [*words, *form].concat();
            let output = at_a_terminal(folder.path(), &words);
            is_plain(&words, "stdout", &output.stdout);
            is_plain(&words, "stderr", &output.stderr);
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said).into_owned();
            shown += usize::from(said.contains("u{1b}[2J") || said.contains("u001b[2J"));
        }
    }
    // Otherwise there was nothing to be seen in these commands.
    assert!(shown >= are_shown, "{shown} have shown it");
}

#[test]
fn no_list_and_no_document_moves_the_cursor() {
    are_plain(well, &[&[], &["--json"]], 50);
}

#[test]
fn no_refusal_moves_the_cursor() {
    are_plain(badly, &[&[]], 30);
}
