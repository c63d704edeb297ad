//! Requests to servers that answer by a script, on loopback.

use std::path::Path;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::super::super::{Allowed, Output, Report, SubJob, SubJobEnded};
use super::*;
use crate::limits::INLINE_BYTES_MAX;

struct Nobody;

impl Desk for Nobody {
    fn report(&self, _report: Report) {}

    fn sub_job(&self, _asked: SubJob) -> Later<'_, SubJobEnded> {
        Box::pin(async { SubJobEnded::Completed(Value::Null) })
    }
}

/// Answers one connection after the other with these bytes, and gives back what was asked.
async fn server(answers: Vec<String>) -> (u16, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let serving = tokio::spawn(async move {
        let mut asked = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut request = Vec::new();
            let mut piece = [0; 4096];
            while !is_whole(&request) {
                let read = stream.read(&mut piece).await.expect("a request");
                assert!(read > 0, "cut off");
                request.extend_from_slice(&piece[..read]);
            }
            asked.push(String::from_utf8(request).expect("text"));
            let answer = answer.replace("PORT", &port.to_string());
            stream.write_all(answer.as_bytes()).await.expect("a reader");
        }
        asked
    });
    (port, serving)
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_ascii_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
    length.is_none_or(|length| length.parse() == Ok(body.len()))
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\n\r\n{body}")
}

async fn request(params: Value) -> Ended {
    run(loopback(), params).await
}

fn loopback() -> HttpSettings {
    let private_hosts = Hosts::new(["127.0.0.1".to_owned()]);
    HttpSettings { private_hosts, ..HttpSettings::default() }
}

async fn run(settings: HttpSettings, params: Value) -> Ended {
    let folder = tempfile::tempdir().expect("a folder");
    run_step(settings, "step", params, folder.path()).await
}

async fn run_step(settings: HttpSettings, step: &str, params: Value, workspace: &Path) -> Ended {
    run_allowed(settings, step, params, workspace, Allowed::all()).await
}

async fn run_allowed(
    settings: HttpSettings,
    step: &str,
    params: Value,
    workspace: &Path,
    allowed: Allowed,
) -> Ended {
    let call = Call {
        execution_id: format!("job:{step}"),
        attempt: 1,
        action: "request".to_owned(),
        params,
        workspace: workspace.to_owned(),
        timeout: Duration::from_secs(10),
        via: None,
        allowed,
    };
    let (_switch, stop) = Stop::channel();
    Http::new(settings).run(call, Arc::new(Nobody), stop).await
}

#[tokio::test]
async fn a_request_carries_the_execution_and_gives_the_answer() {
    let (port, serving) = server(vec![answer("200 OK", "x-a: 1\r\nx-a: 2\r\n", "fine")]).await;
    let url = format!("http://127.0.0.1:{port}/a?b=c#d");
    let body = json!({"n": 1});
    let ended = request(json!({"method": "POST", "url": url, "body": body,
        "headers": {"X-Mine": "yes"}}))
    .await;
    let Ended::Done(Output::Value(value)) = ended else { panic!("{ended:?}") };
    assert_eq!((&value["status"], &value["body"]), (&json!(200), &json!("fine")));
    assert_eq!(value["headers"]["x-a"], "1, 2");
    let asked = &serving.await.expect("served")[0];
    assert!(asked.starts_with("POST /a?b=c HTTP/1.1\r\n"), "{asked}");
    let lower = asked.to_ascii_lowercase();
    for line in [
        "idempotency-key: job:step",
        "content-type: application/json",
        "x-mine: yes",
        &format!("host: 127.0.0.1:{port}"),
    ] {
        assert!(lower.contains(line), "{line}: {asked}");
    }
    assert!(asked.ends_with("{\"n\":1}"));
}

#[tokio::test]
async fn what_an_answer_means() {
    for (status, method, class, definite) in [
        ("401 Unauthorized", "GET", FailureClass::UserError, true),
        ("403 Forbidden", "POST", FailureClass::UserError, true),
        ("404 Not Found", "GET", FailureClass::UserError, true),
        ("409 Conflict", "PATCH", FailureClass::UserError, true),
        ("408 Timeout", "GET", FailureClass::Transient, true),
        ("408 Timeout", "POST", FailureClass::Transient, false),
        ("425 Early", "POST", FailureClass::Transient, true),
        ("429 Slow", "POST", FailureClass::Transient, true),
        ("500 Broken", "GET", FailureClass::Transient, true),
        ("500 Broken", "HEAD", FailureClass::Transient, true),
        ("500 Broken", "PUT", FailureClass::Transient, false),
        ("500 Broken", "DELETE", FailureClass::Transient, false),
        ("500 Broken", "POST", FailureClass::Transient, false),
        ("501 Not Implemented", "POST", FailureClass::Transient, false),
        ("502 Gateway", "GET", FailureClass::Transient, true),
        ("502 Gateway", "POST", FailureClass::Transient, false),
        ("503 Later", "POST", FailureClass::Transient, false),
        ("503 Later", "PATCH", FailureClass::Transient, false),
        ("504 Gateway", "PATCH", FailureClass::Transient, false),
        ("599 Odd", "POST", FailureClass::Transient, false),
    ] {
        let (port, serving) = server(vec![answer(status, "retry-after: 7\r\n", "")]).await;
        let url = format!("http://127.0.0.1:{port}/");
        let ended = request(json!({"method": method, "url": url})).await;
        let (failure, found) = match ended {
            Ended::Failed(failure) => (failure, true),
            Ended::Uncertain(failure) => (failure, false),
            Ended::Done(output) => panic!("{status}: {output:?}"),
        };
        assert_eq!((failure.class, found), (class, definite), "{method} {status}");
        assert_eq!(failure.code, format!("http_{}", &status[..3]));
        assert_eq!(failure.retry_after, Some(Duration::from_secs(7)));
        serving.await.expect("served");
    }
}

#[test]
fn a_wait_may_be_said_as_a_date() {
    let said = |pairs: &[(&'static str, &'static str)]| {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.insert(*name, hyper::header::HeaderValue::from_static(value));
        }
        retry_after(&headers)
    };
    let (date, later) = ("Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:51:07 GMT");
    let wait = said(&[("date", date), ("retry-after", later)]);
    assert_eq!(wait, Some(Duration::from_secs(90)));
    // The two older ways to write one.
    let wait = said(&[("date", date), ("retry-after", "Sunday, 06-Nov-94 08:49:38 GMT")]);
    assert_eq!(wait, Some(Duration::from_secs(1)));
    let wait = said(&[("date", date), ("retry-after", "Sun Nov  6 08:49:39 1994")]);
    assert_eq!(wait, Some(Duration::from_secs(2)));
    assert_eq!(said(&[("date", later), ("retry-after", date)]), Some(Duration::ZERO));
    assert_eq!(said(&[("retry-after", later)]), None, "nobody knows when that is");
    assert_eq!(said(&[("date", date), ("retry-after", "soon")]), None);
}

#[tokio::test]
async fn nothing_sent_is_definite_and_a_cut_answer_is_not() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    drop(listener);
    let refused = request(json!({"method": "POST", "url": format!("http://127.0.0.1:{port}/")}));
    let Ended::Failed(failure) = refused.await else { panic!("sent to nobody") };
    assert_eq!((failure.class, failure.code.as_str()), (FailureClass::Transient, "unreachable"));
    for cut in
        ["", "HTTP/1.1 200 OK\r\ncontent-le", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx"]
    {
        let (port, serving) = server(vec![cut.to_owned()]).await;
        let url = format!("http://127.0.0.1:{port}/");
        let ended = request(json!({"method": "POST", "url": url})).await;
        let Ended::Uncertain(failure) = ended else { panic!("{cut:?}: {ended:?}") };
        assert_eq!(failure.code, "connection_cut");
        serving.await.expect("served");
    }
}

#[tokio::test]
async fn addresses_that_are_not_public_are_refused_on_every_hop() {
    let refused = run(HttpSettings::default(), json!({"url": "http://localhost:1/"})).await;
    let Ended::Failed(failure) = refused else { panic!("reached") };
    assert_eq!(failure.code, "address_refused");
    for hop in ["http://localhost:PORT/", "//[::1]:PORT/", "http://169.254.169.254/"] {
        let moved = answer("302 Found", &format!("location: {hop}\r\n"), "");
        let (port, serving) = server(vec![moved]).await;
        let ended = request(json!({"url": format!("http://127.0.0.1:{port}/")})).await;
        let Ended::Failed(failure) = ended else { panic!("{hop}: {ended:?}") };
        assert_eq!(failure.code, "address_refused", "{hop}");
        serving.await.expect("served");
    }
}

#[tokio::test]
async fn redirects_are_followed_so_often_and_no_more() {
    let next = answer("302 Found", "location: next\r\n", "");
    let (port, serving) = server(vec![next.clone(), answer("200 OK", "", "there")]).await;
    let url = format!("http://127.0.0.1:{port}/folder/first?x");
    let ended = request(json!({"method": "POST", "url": url, "body": "b"})).await;
    assert!(matches!(ended, Ended::Done(_)), "{ended:?}");
    let asked = serving.await.expect("served");
    assert!(asked[1].starts_with("GET /folder/next HTTP/1.1"), "{}", asked[1]);
    let (port, _serving) = server(vec![next; 20]).await;
    let ended = request(json!({"url": format!("http://127.0.0.1:{port}/")})).await;
    let Ended::Failed(failure) = ended else { panic!("{ended:?}") };
    assert_eq!(failure.code, "too_many_redirects");
}

/// A rule on where requests go is of no use if any server can send them on.
#[tokio::test]
async fn a_redirect_leads_only_where_the_policy_lets_it() {
    let (other, serving) = server(vec![answer("200 OK", "", "there")]).await;
    let there = format!("http://localhost:{other}/secret");
    for (status, method) in [("302 Found", "GET"), ("307 Temporary Redirect", "POST")] {
        let location = format!("location: {there}\r\n");
        let (port, first) = server(vec![answer(status, &location, "")]).await;
        let settings = HttpSettings {
            private_hosts: Hosts::new(["127.0.0.1".to_owned(), "localhost".to_owned()]),
            ..HttpSettings::default()
        };
        let asked = there.clone();
        let allowed = Allowed::by(move |with, url| (with, url) != (method, &asked));
        let folder = tempfile::tempdir().expect("a folder");
        let params = json!({"method": method, "url": format!("http://127.0.0.1:{port}/")});
        let ended = run_allowed(settings, "step", params, folder.path(), allowed).await;
        let Ended::Failed(failure) = ended else { panic!("{ended:?}") };
        assert_eq!(
            (failure.code.as_str(), first.await.expect("served").len()),
            ("bad_redirect", 1)
        );
    }
    assert!(!serving.is_finished(), "somebody was sent there");
}

#[tokio::test]
async fn what_a_plan_says_to_one_server_no_other_hears() {
    let (other, serving) = server(vec![answer("200 OK", "", "there")]).await;
    let location = format!("location: http://localhost:{other}/\r\n");
    let (port, first) = server(vec![answer("307 Temporary Redirect", &location, "")]).await;
    let settings = HttpSettings {
        private_hosts: Hosts::new(["127.0.0.1".to_owned(), "localhost".to_owned()]),
        ..HttpSettings::default()
    };
    let params = json!({"method": "PUT", "url": format!("http://127.0.0.1:{port}/"), "body": {},
        "headers": {"X-Api-Key": "s3cret", "Authorization": "s3cret", "Cookie": "a=s3cret",
            "Accept": "text/plain"}});
    let ended = run(settings, params).await;
    assert!(matches!(ended, Ended::Done(_)), "{ended:?}");
    assert_eq!(first.await.expect("served")[0].matches("s3cret").count(), 3);
    let sent_on = serving.await.expect("served")[0].to_ascii_lowercase();
    for line in
        ["accept: text/plain", "content-type: application/json", "idempotency-key: job:step"]
    {
        assert!(sent_on.contains(line), "{sent_on}");
    }
    assert!(!sent_on.contains("s3cret"), "{sent_on}");
}

/// What was done before a redirect is not undone by what it leads to.
#[tokio::test]
async fn a_refusal_behind_a_redirect_says_nothing_of_what_led_there() {
    let seen = answer("303 See Other", "location: /seen\r\n", "");
    let moved = answer("307 Moved", "location: /there\r\n", "");
    for (method, first, then, definite) in [
        ("POST", &seen, "404 Not Found", false),
        ("POST", &seen, "429 Slow", false),
        ("POST", &seen, "500 Broken", false),
        ("PUT", &seen, "404 Not Found", false),
        ("GET", &seen, "404 Not Found", true),
        // Who says "not here" has not done it.
        ("POST", &moved, "422 Unfit", true),
        ("POST", &moved, "500 Broken", false),
    ] {
        let (port, serving) = server(vec![first.clone(), answer(then, "", "")]).await;
        let url = format!("http://127.0.0.1:{port}/");
        let ended = request(json!({"method": method, "url": url})).await;
        let found = match &ended {
            Ended::Failed(_) => true,
            Ended::Uncertain(_) => false,
            Ended::Done(output) => panic!("{output:?}"),
        };
        assert_eq!(found, definite, "{method} {then}: {ended:?}");
        serving.await.expect("served");
    }
}

/// A server that is known to keep the key does a request once, however often it is sent.
#[tokio::test]
async fn a_request_to_who_keeps_its_key_may_be_sent_again() {
    let keyed = |hosts: &[&str]| {
        let mut settings = loopback();
        settings.keyed_hosts = Hosts::new(hosts.iter().map(|host| (*host).to_owned()));
        settings
    };
    let post = |url: &str| json!({"method": "POST", "url": url});
    let http = Http::new(keyed(&["Pay.example", "shop.example:8443"]));
    for (url, recovery) in [
        ("https://pay.example/charges", Recovery::Idempotent),
        ("https://PAY.example.:444/charges", Recovery::Idempotent),
        ("https://shop.example:8443/", Recovery::Idempotent),
        ("https://shop.example/", Recovery::Ask),
        ("https://not-pay.example/", Recovery::Ask),
        ("nothing", Recovery::Ask),
    ] {
        assert_eq!(http.recovery("request", &post(url)), recovery, "{url}");
    }
    // It is not taken for granted of where a redirect leads.
    let away = answer("307 Moved", "location: http://127.0.0.1:PORT/\r\n", "");
    let (port, serving) = server(vec![away.replace("127.0.0.1", "localhost")]).await;
    let settings = keyed(&["127.0.0.1"]);
    let ended = run(settings, post(&format!("http://127.0.0.1:{port}/"))).await;
    let Ended::Failed(failure) = ended else { panic!("{ended:?}") };
    assert_eq!(failure.code, "bad_redirect");
    serving.await.expect("served");
}

#[tokio::test]
async fn a_large_body_is_a_file_of_its_step() {
    let folder = tempfile::tempdir().expect("a folder");
    // Nothing has made the workspace yet.
    let workspace = folder.path().join("not/yet");
    let bodies = ["a", "b"].map(|letter| letter.repeat(INLINE_BYTES_MAX + 1));
    let (port, serving) =
        server(bodies.iter().map(|body| answer("200 OK", "", body)).collect()).await;
    let mut files = Vec::new();
    for step in ["one", "two"] {
        let params = json!({"url": format!("http://127.0.0.1:{port}/")});
        let ended = run_step(loopback(), step, params, &workspace).await;
        let Ended::Done(Output::With { value, file }) = ended else { panic!("{ended:?}") };
        assert_eq!(value["status"], 200);
        files.push(file);
    }
    for (file, body) in files.iter().zip(&bodies) {
        let kept = std::fs::read_to_string(workspace.join(file)).expect("a file");
        assert!(kept == *body, "{} has another body", file.display());
    }
    serving.await.expect("served");
}

#[tokio::test]
async fn a_large_body_that_is_cut_off_leaves_no_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let body = "a".repeat(2 * INLINE_BYTES_MAX);
    let cut = answer("200 OK", "", &body).replace(
        &format!("content-length: {}", body.len()),
        &format!("content-length: {}", body.len() + 1),
    );
    let (port, serving) = server(vec![cut]).await;
    let params = json!({"url": format!("http://127.0.0.1:{port}/")});
    let ended = run_step(loopback(), "step", params, folder.path()).await;
    let Ended::Uncertain(failure) = ended else { panic!("{ended:?}") };
    assert_eq!(failure.code, "connection_cut");
    serving.await.expect("served");
    // Whoever writes ends by itself.
    let place = folder.path().join("http");
    let files = || std::fs::read_dir(&place).map_or(0, Iterator::count);
    let gone = async {
        while files() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await.expect("nothing is left");
}

#[tokio::test]
async fn a_large_refusal_is_not_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let body = "a".repeat(2 * INLINE_BYTES_MAX);
    let (port, serving) = server(vec![answer("404 Not Found", "", &body)]).await;
    let params = json!({"url": format!("http://127.0.0.1:{port}/")});
    let ended = run_step(loopback(), "step", params, folder.path()).await;
    let Ended::Failed(failure) = ended else { panic!("{ended:?}") };
    assert_eq!(failure.code, "http_404");
    serving.await.expect("served");
    assert!(!folder.path().join("http").exists());
}

#[tokio::test]
async fn what_is_not_a_request() {
    for params in [
        json!({"url": "file:///etc/passwd"}),
        json!({"url": "http://user:password@127.0.0.1/"}),
        json!({"url": "nothing"}),
        json!({"url": "http://127.0.0.1/", "headers": {"Host": "a"}}),
        json!({"url": "http://127.0.0.1/", "headers": {"Idempotency-Key": "a"}}),
        json!({"url": "http://127.0.0.1/", "headers": {"a": "b\r\nc: d"}}),
    ] {
        let ended = request(params.clone()).await;
        let Ended::Failed(failure) = ended else { panic!("{params}: {ended:?}") };
        assert_eq!(failure.code, "invalid_request", "{params}");
    }
}

#[test]
fn a_method_decides_what_follows_an_uncertain_attempt() {
    let http = Http::new(HttpSettings::default());
    for (method, recovery) in [
        ("GET", Recovery::Idempotent),
        ("HEAD", Recovery::Idempotent),
        ("PUT", Recovery::Idempotent),
        ("DELETE", Recovery::Idempotent),
        ("POST", Recovery::Ask),
        ("PATCH", Recovery::Ask),
        ("post", Recovery::Ask),
        ("BREW", Recovery::Ask),
    ] {
        assert_eq!(http.recovery("request", &json!({"method": method})), recovery, "{method}");
    }
    assert_eq!(http.recovery("request", &json!({})), Recovery::Idempotent);
}
