//! Requests that a server sends on to another place: the policy is asked about each of them.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;

use semel_jobs::life::JobStatus;
use semel_jobs::policy::{Policy, Rule, Verdict};
use serde_json::json;

use crate::support::Setup;

/// Answers one request with these bytes.
fn answers(listener: &TcpListener, answer: &str) {
    let (mut stream, _) = listener.accept().expect("a request");
    let (mut asked, mut piece) = (Vec::new(), [0; 1024]);
    while !asked.ends_with(b"\r\n\r\n") {
        let read = stream.read(&mut piece).expect("a request");
        asked.extend_from_slice(&piece[..read]);
    }
    stream.write_all(answer.as_bytes()).expect("a reader");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_not_sent_on_to_what_a_rule_rejects() {
    let rule = |rule: Rule| Rule { verdict: Some(Verdict::Reject), ..rule };
    let policy = Policy {
        rules: vec![
            rule(Rule { host: Some("127.0.0.2".to_owned()), ..Rule::default() }),
            rule(Rule { path: Some("/secret".to_owned()), ..Rule::default() }),
        ],
    };
    let bench = Setup { policy, ..Setup::default() }.open().await;
    for (to, forbidden) in [("http://127.0.0.2:PORT/fine", true), ("/secret/x", true), ("/", false)]
    {
        let first = TcpListener::bind("127.0.0.1:0").expect("a port");
        let other = TcpListener::bind("127.0.0.2:0").expect("a port");
        let port = |listener: &TcpListener| listener.local_addr().expect("an address").port();
        let (url, to) = (format!("http://127.0.0.1:{}/a", port(&first)), to.to_owned());
        let to = to.replace("PORT", &port(&other).to_string());
        let sent_on = format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n");
        let fine = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine";
        let (asked, was_asked) = mpsc::channel();
        std::thread::spawn(move || {
            answers(&first, &sent_on);
            asked.send(()).expect("somebody waits");
            // Should it be sent on, then to a server that is content.
            answers(&first, fine);
        });
        std::thread::spawn(move || answers(&other, fine));
        let steps = json!([{"id": "get", "gear": "http", "action": "request",
            "params": {"url": url}}]);
        let kept = bench.ended(bench.submit(steps).await).await;
        was_asked.recv().expect("it was asked");
        let error = kept.job.state.error.unwrap_or_default();
        let status = kept.job.state.status;
        match forbidden {
            true => {
                assert_eq!(status, JobStatus::Failed, "{to}");
                assert!(error.contains("bad_redirect"), "{to}: {error}");
            }
            false => assert_eq!(status, JobStatus::Completed, "{to}: {error}"),
        }
    }
}
