//! Limits: sizes, calls under way, rates, streams, and readers that stand still.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use semel_testkit::http::{PATIENCE, request, say};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::support::{Listening, Served, TOKEN, engine_options, options, served, served_with};
use crate::engine::EngineOptions;

#[tokio::test(flavor = "multi_thread")]
async fn a_body_has_a_size() {
    let served = served().await;
    let fits = |bytes: usize| {
        let frame = json!({"to": "#a", "message": ""}).to_string().len();
        json!({"to": "#a", "message": "x".repeat(bytes - frame)}).to_string()
    };
    let said = served.post_with("/v1/send", &[], fits(1 << 20).as_bytes()).await;
    assert_eq!(said.status, 202, "{said:?}");
    // The largest body of all fits in base64, and no byte more.
    let of = |bytes: usize| STANDARD.encode(vec![7; bytes]);
    for (path, name) in [("/v1/send", "to"), ("/v1/topic/post", "topic")] {
        let said = served.post(path, &json!({name: "#a", "body_base64": of(1 << 20)})).await;
        assert_eq!(said.status, 202, "{path}: {said:?}");
        let said = served.post(path, &json!({name: "#a", "body_base64": of((1 << 20) + 1)})).await;
        assert_eq!(said.problem(), (413, "payload_too_large".to_owned()), "{path}");
    }
    for bytes in [5 << 20, 20 << 20] {
        let said = served.post_with("/v1/send", &[], fits(bytes).as_bytes()).await;
        assert_eq!(said.problem(), (413, "payload_too_large".to_owned()), "{bytes}");
    }
    // Also when nobody says beforehand how much it will be.
    let mut chunked = b"POST /v1/send HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                        Transfer-Encoding: chunked\r\n\r\n"
        .to_vec();
    for _ in 0..40 {
        chunked.extend_from_slice(b"10000\r\n");
        chunked.extend_from_slice(&[b'x'; 0x10000]);
        chunked.extend_from_slice(b"\r\n");
    }
    chunked.extend_from_slice(b"0\r\n\r\n");
    let said = say(served.connect().await, &chunked).await;
    assert_eq!(said.problem().0, 413);
    served.stop().await;
}

/// Begins a call whose body does not come.
async fn half_a_call(served: &Served) -> tokio::net::UnixStream {
    let mut stream = served.connect().await;
    let head = "POST /v1/heartbeat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_bodies_take_nobodys_place() {
    let served = served().await;
    let mut halves = Vec::new();
    for _ in 0..300 {
        halves.push(half_a_call(&served).await);
    }
    for _ in 0..20 {
        assert_eq!(served.get("/v1/version").await.status, 200);
    }
    let said = served.post("/v1/heartbeat", &json!({"reader": "me"})).await;
    assert_ne!(said.status, 429, "{said:?}");
    // They are none the worse for it.
    let mut last = halves.pop().unwrap();
    last.write_all(b"{    ").await.unwrap();
    let mut answer = [0; 12];
    last.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 400");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_no_token_keeps_out_nobody() {
    let mut options = options();
    options.tcp_connections_max = 16;
    let served = served_with(options, None).await;
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(TcpStream::connect(served.address).await.unwrap());
    }
    assert_eq!(served.get("/v1/version").await.status, 200);
    let token = format!("Bearer {TOKEN}");
    let headers = [("Authorization", token.as_str())];
    let called = served.tcp("GET", "/v1/version", &headers);
    // Long before any of their time limits.
    let said = timeout(Duration::from_secs(10), called).await.expect("the oldest make room");
    assert_eq!(said.status, 200);
    let mut nothing = [0; 1];
    assert!(matches!(silent[0].read(&mut nothing).await, Ok(0) | Err(_)), "it was closed");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_has_a_rate_and_the_socket_has_none() {
    let mut options = options();
    options.calls_burst = 20;
    let served = served_with(options, None).await;
    let token = format!("Bearer {TOKEN}");
    let headers = [("Authorization", token.as_str())];
    for _ in 0..20 {
        assert_eq!(served.tcp("GET", "/v1/version", &headers).await.status, 200);
    }
    let said = served.tcp("GET", "/v1/version", &headers).await;
    assert_eq!(said.problem(), (429, "rate_limited".to_owned()));
    assert_eq!(said.header("retry-after"), Some("1"));
    // Who has no valid token uses up nothing of it, and gets nothing of it.
    assert_eq!(served.tcp("GET", "/v1/version", &[]).await.status, 401);
    assert_eq!(served.get("/v1/version").await.status, 200);
    served.clock.advance(Duration::from_millis(20));
    for expected in [200, 200, 429] {
        assert_eq!(served.tcp("GET", "/v1/version", &headers).await.status, expected);
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn so_many_streams_and_no_more() {
    let mut options = options();
    options.max_streams = 2;
    let served = served_with(options, None).await;
    let first = Listening::to(&served, "/v1/events", &[]).await;
    let _second = Listening::to(&served, "/v1/events", &[]).await;
    let said = served.get("/v1/events").await;
    assert_eq!(said.problem(), (429, "too_many_streams".to_owned()));
    drop(first);
    let free = async {
        loop {
            let mut stream = served.connect().await;
            stream.write_all(&request("GET", "/v1/events", &[], b"")).await.unwrap();
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).await.unwrap();
            if &answer == b"HTTP/1.1 200" {
                return;
            }
        }
    };
    timeout(PATIENCE, free).await.expect("its place becomes free");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_has_a_size_and_goes_on_under_its_cursor() {
    let served = served().await;
    let large = "y".repeat(900_000);
    let bodies: Vec<&str> = (0..25).map(|_| large.as_str()).collect();
    for (index, chunk) in bodies.chunks(5).enumerate() {
        served.arrive(i64::try_from(index * 5 + 1).unwrap(), chunk).await;
    }
    let mut path = "/v1/inbox?limit=500".to_owned();
    let (mut pages, mut seqs) = (0, Vec::new());
    loop {
        let said = served.get(&path).await;
        assert!(said.body.len() <= 10 << 20, "{}", said.body.len());
        let page = said.json();
        pages += 1;
        seqs.extend(page["items"].as_array().unwrap().iter().map(|i| i["seq"].as_i64().unwrap()));
        match page["next"].as_str() {
            Some(next) => path = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(seqs, (1..=25).collect::<Vec<_>>());
    assert!(pages >= 3, "{pages}");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inbox_that_is_full_lets_the_oldest_that_were_read_go_and_no_others() {
    let served = served().await;
    let large = "y".repeat(100_000);
    let bodies: Vec<&str> = (0..40).map(|_| large.as_str()).collect();
    served.arrive(1, &bodies).await;
    let seqs = async || -> Vec<i64> {
        let page = served.get("/v1/inbox?limit=100").await.json();
        page["items"].as_array().unwrap().iter().map(|it| it["seq"].as_i64().unwrap()).collect()
    };
    assert_eq!(seqs().await.len(), 40);
    let options = EngineOptions { inbox_bytes_max: 2_000_000, ..engine_options(u64::MAX) };
    served.engine.change(&options);
    // Nobody has read anything.
    let full =
        async { while served.get("/v1/health").await.json()["inbox_full"] != json!(true) {} };
    timeout(PATIENCE, full).await.expect("it says so");
    assert_eq!(seqs().await.len(), 40);
    let said = served.post("/v1/inbox/ack", &json!({"reader": "me", "id": 40})).await;
    assert_eq!(said.json()["id"], 40);
    let percent = async {
        loop {
            let metrics = served.get("/v1/metrics").await;
            let metrics = String::from_utf8(metrics.body).unwrap();
            let mut lines = metrics.lines();
            let line =
                lines.find_map(|it| it.strip_prefix("semel_daemon_disk_pct{kind=\"inbox\"} "));
            let percent: u64 = line.expect("the metric is there").parse().unwrap();
            if (1..=90).contains(&percent) {
                return percent;
            }
        }
    };
    let percent = timeout(PATIENCE, percent).await.expect("there is room again");
    assert_eq!(served.get("/v1/health").await.json()["inbox_full"], json!(false));
    let left = seqs().await;
    assert!((5..20).contains(&left.len()) && percent > 40, "{percent} % {left:?}");
    assert_eq!(left, (41 - i64::try_from(left.len()).unwrap()..=40).collect::<Vec<_>>());
    // What is gone is still known, and does not come again.
    served.arrive(1, &bodies[..1]).await;
    assert_eq!(seqs().await, left);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_stands_still_is_let_go_and_resumes() {
    let mut options = options();
    options.write_timeout = Duration::from_millis(200);
    options.max_streams = 1;
    let served = served_with(options, None).await;
    let mut still = Listening::to(&served, "/v1/events", &[]).await;
    let large = "z".repeat(500_000);
    let bodies: Vec<&str> = (0..20).map(|_| large.as_str()).collect();
    served.arrive(1, &bodies).await;
    // It reads nothing: its place becomes free, although it is still connected.
    let resume = async {
        loop {
            let mut stream = served.connect().await;
            stream.write_all(&request("GET", "/v1/events?after=0", &[], b"")).await.unwrap();
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).await.unwrap();
            if &answer == b"HTTP/1.1 200" {
                return Listening { lines: BufReader::new(stream), began: 0 };
            }
        }
    };
    let mut resumed = timeout(PATIENCE, resume).await.expect("its place becomes free");
    let seen = resumed.events(20).await;
    let seqs: Vec<_> = seen.iter().filter_map(|event| event.data["seq"].as_i64()).collect();
    assert_eq!(seqs[..15], (1..=15).collect::<Vec<_>>());
    // What was in the pipe is all that the first one gets: not everything, and then the end.
    let mut heard = 0;
    while let Some(line) = still.line().await {
        heard += usize::from(line.starts_with("event: message"));
    }
    assert!(heard < 20, "{heard}");
    served.stop().await;
}
