//! What was said and got no answer may have been done, and is never told as undone: by the exit
//! code, and by the words.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod fake;
mod mesh;
mod terminal;

use std::path::Path;
use std::process::{Command, Output};

use semel_core::clock::UnixMs;
use semel_core::id::{MemberId, MeshId};
use semel_daemon::home::{Home, MeshSlug};
use semel_daemon::identity::Membership;
use semel_wire::link::JoinLink;
use semel_wire::place::Plain;
use serde_json::json;

use fake::{Fake, answer};

fn semel(home: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(arguments).arg("--home").arg(home).env_remove("SEMEL_HOME");
    command.output().unwrap()
}

fn says(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The home of a member, without a daemon.
fn joined(root: &Path) -> Home {
    let home = Home::at(root, &MeshSlug::parse("work").unwrap());
    let membership = Membership {
        broker: "ws://127.0.0.1:1/v1/mesh".to_owned(),
        mesh_id: MeshId::parse("01890a5d-ac96-774b-bcce-b302099a8057").unwrap(),
        member_id: MemberId::parse("01890a5d-ac96-774b-bcce-b302099a8058").unwrap(),
        name: "me".to_owned(),
        joined_at: UnixMs(1_700_000_000_000),
        plain: Plain::LoopbackOnly,
    };
    membership.write(&home.clone().lock().unwrap()).unwrap();
    home
}

#[test]
fn a_send_without_an_answer_is_not_known_and_names_the_key_that_is_safe() {
    let folder = tempfile::tempdir().unwrap();
    let home = joined(folder.path());
    let away = semel(folder.path(), &["send", "@me", "hello"]);
    assert_eq!(away.status.code(), Some(5), "it was not even said: {}", says(&away));
    let unknown = json!({"code": "outcome_unknown", "detail": "nobody can tell", "status": 503});
    let daemon = Fake::at_socket(&home.socket_path().unwrap(), move |asked| {
        match (asked.path.as_str(), asked.body.contains("answered")) {
            ("/v1/version", _) => Some(answer(200, &json!({"mesh": "work"}))),
            (_, true) => Some(answer(503, &unknown)),
            (_, false) => None,
        }
    });
    for (more, message) in [(&[][..], "hello"), (&["--key", "mine"], "hello"), (&[], "answered")] {
        let sent = semel(folder.path(), &[&["send", "@me", message], more].concat());
        let said = says(&sent);
        assert_eq!(sent.status.code(), Some(6), "{said}");
        let key = daemon.last().header("idempotency-key").unwrap();
        assert!(said.contains(&key), "the key {key:?} is named: {said}");
        assert!(more.is_empty() || key == "mine");
    }
}

#[test]
fn an_invite_without_an_answer_may_be_spent() {
    let folder = tempfile::tempdir().unwrap();
    let join = |broker_url: String| {
        let link = JoinLink { broker_url, mesh: "ops".to_owned(), token: "A".repeat(43) };
        semel(folder.path(), &["mesh", "join", &link.encode(), "--name", "me"])
    };
    let away = join("http://127.0.0.1:1".to_owned());
    assert_eq!(away.status.code(), Some(5), "{}", says(&away));
    assert!(says(&away).contains("the invite was not used"), "{}", says(&away));
    let replies: [fake::Reply; 4] = [
        Box::new(|_| None),
        Box::new(|_| Some("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n".to_owned())),
        Box::new(|_| Some(answer(201, &json!({"strange": true})))),
        Box::new(|_| {
            let text = "nobody can tell";
            let code = "outcome_unknown";
            let of = format!("urn:semel:error:{code}");
            let problem = json!({"type": of, "title": text, "status": 503, "code": code,
                "detail": text});
            Some(answer(503, &problem))
        }),
    ];
    for (number, reply) in replies.into_iter().enumerate() {
        let broker = Fake::at_port(reply);
        let unsure = join(broker.url());
        let said = says(&unsure);
        assert_eq!(unsure.status.code(), Some(6), "{number}: {said}");
        assert!(!said.contains("the invite was not used"), "{number}: {said}");
        assert!(broker.last().path.ends_with("/join"));
    }
}

#[test]
fn what_a_registrar_does_not_answer_is_not_known() {
    let folder = tempfile::tempdir().unwrap();
    let hold = ["registrar", "gate", "hold", "deploys", "--broker"];
    let show = ["registrar", "gate", "show", "deploys", "--broker"];
    let ask = |verb: &[&str], url: &str| semel(folder.path(), &[verb, &[url]].concat());
    let nobody = "http://127.0.0.1:1";
    assert_eq!(ask(&hold, nobody).status.code(), Some(5), "it was not even said");
    let problem = |status: u16, code: &'static str| -> fake::Reply {
        Box::new(move |_| Some(answer(status, &json!({"code": code, "detail": "?"}))))
    };
    let replies: [fake::Reply; 5] = [
        Box::new(|_| None),
        Box::new(|_| Some("HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n{}".to_owned())),
        Box::new(|_| Some("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n".to_owned())),
        problem(503, "outcome_unknown"),
        problem(409, "uncertain_commit"),
    ];
    for (number, reply) in replies.into_iter().enumerate() {
        let broker = Fake::at_port(reply);
        let unsure = ask(&hold, &broker.url());
        assert_eq!(unsure.status.code(), Some(6), "{number}: {}", says(&unsure));
        // Who only looks can look again.
        let looked = ask(&show, &broker.url()).status.code();
        assert!(number > 1 || looked == Some(5), "{number}: {looked:?}");
    }
    let busy = Fake::at_port(problem(503, "store_unavailable"));
    assert_eq!(ask(&hold, &busy.url()).status.code(), Some(5), "it was not done");
}

#[test]
fn a_stream_that_is_refused_for_good_ends_the_command_and_a_busy_one_is_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let home = joined(folder.path());
    let problem = |status: u16, code: &str| {
        let detail = format!("said with {status}");
        answer(status, &json!({"code": code, "detail": detail, "status": status}))
    };
    let tries = std::sync::atomic::AtomicUsize::new(0);
    let _daemon = Fake::at_socket(&home.socket_path().unwrap(), move |asked| {
        if asked.path == "/v1/version" {
            return Some(answer(200, &json!({"mesh": "work"})));
        }
        // Busy, away, and in the end a word that stays the same however often it is asked.
        let tried = tries.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Some(match (tried % 4, asked.path.contains("kinds=message")) {
            (0, _) => problem(429, "rate_limited"),
            (1, _) => problem(503, "store_unavailable"),
            (2, _) => "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_owned(),
            (_, true) => problem(404, "not_found"),
            (_, false) => problem(400, "invalid_field"),
        })
    });
    let refused = semel(folder.path(), &["events", "--kinds", "nonsense"]);
    let said = says(&refused);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("invalid_field") && said.contains("said with 400"), "{said}");
    let watched = semel(folder.path(), &["inbox", "watch", "--json"]);
    let said = says(&watched);
    assert_eq!(watched.status.code(), Some(3), "{said}");
    let document: serde_json::Value = serde_json::from_str(said.trim()).unwrap();
    assert_eq!(document["code"], "not_found", "{said}");
}
