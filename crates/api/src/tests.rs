//! Two parts under one API, over its real doors.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use semel_core::code::Code;
use semel_testkit::clock::SimClock;
use semel_testkit::http::{PATIENCE, Said, request, say};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::access::Tokens;
use crate::door::{Listener, bind_socket, serve};
use crate::events::{AFTER, LAST_EVENT_ID, Opening, Tail, write_event};
use crate::field::{Field, Kind};
use crate::part::{Part, State};
use crate::problem::Problem;
use crate::route::{Answer, Call, Reply, Route, Verb};
use crate::schema::{any_object, named, record, text};
use crate::{Api, ApiOptions};

const SMALL: usize = 100;
const CALLS: usize = 40;

/// Keeps nothing, and tells what it was given.
struct Echo {
    held: AtomicBool,
    /// What `wait` waits for.
    go: Semaphore,
}

impl State for Echo {
    fn gate(&self, verb: Verb) -> Option<Problem> {
        let held = verb != Verb::Get && self.held.load(Ordering::Relaxed);
        held.then(|| Problem::new(Code::Overloaded, "not now").with("held_by", "a test"))
    }

    fn problem_fields() -> Vec<(&'static str, Value)> {
        vec![("held_by?", text())]
    }
}

fn said() -> Value {
    let plan = named("Plan", any_object());
    record("Said", &[("verb", text()), ("id", text()), ("plan", plan)])
}

fn reply(verb: &str, call: &Call<Echo>, plan: Option<Value>) -> Reply {
    Reply::value(&json!({"verb": verb, "id": call.id, "plan": plan.unwrap_or_default()}))
}

const ECHO: &[Route<Echo>] = &[
    Route {
        answers: &[Answer::json(200, "looked", said)],
        ..Route::get("/v1/echo/{id}", "Looks", |call| {
            Box::pin(async move {
                if call.id == "wait" {
                    call.state.go.acquire().await.expect("it stays").forget();
                }
                Ok(reply("GET", &call, None))
            })
        })
    },
    Route {
        answers: &[Answer::empty(204, "gone")],
        ..Route::delete("/v1/echo/{id}", "Takes away", |_| {
            Box::pin(async { Ok(Reply::empty(204)) })
        })
    },
    Route {
        body: &[Field::needed("plan", Kind::Any, "any document")],
        answers: &[Answer::json(200, "done", said)],
        ..Route::post("/v1/echo", "Does", |mut call| {
            Box::pin(async move {
                let plan = call.body.value("plan");
                Ok(reply("POST", &call, plan))
            })
        })
    },
    Route {
        body: &[Field::needed("plan", Kind::Any, "any document")],
        name: "echo_large",
        body_bytes_max: Some(1 << 10),
        answers: &[Answer::json(200, "done", said)],
        ..Route::post("/v1/echo/large", "Does more", |mut call| {
            Box::pin(async move {
                let plan = call.body.value("plan");
                Ok(reply("POST", &call, plan))
            })
        })
    },
];

/// Counts up.
struct Ticks(watch::Sender<u64>);

impl State for Ticks {}

struct Ticking(watch::Receiver<u64>);

impl Tail for Ticking {
    type Event = i64;

    async fn read(&mut self, after: i64, max: i64) -> Result<Vec<i64>, Problem> {
        let newest = i64::try_from(*self.0.borrow()).unwrap_or(i64::MAX);
        Ok((after + 1..=newest.min(after + max)).collect())
    }

    fn number(event: &i64) -> i64 {
        *event
    }

    fn write(&self, event: &i64, out: &mut Vec<u8>) {
        write_event(*event, "tick", out, |out| out.extend_from_slice(b"{}"));
    }

    fn is_last(event: &i64) -> bool {
        *event == 5
    }
}

const TICKS: &[Route<Ticks>] = &[Route {
    headers: &[LAST_EVENT_ID],
    query: &[AFTER],
    answers: &[Answer::events("ticks")],
    problems: &[Code::TooManyStreams],
    ..Route::get("/v1/ticks", "Streams ticks", |mut call| {
        Box::pin(async move {
            let opening = Opening::new(&mut call)?;
            let changes = call.state.0.subscribe();
            let after = opening.after(i64::try_from(*changes.borrow()).unwrap_or(0));
            Ok(opening.stream(after, changes.clone(), Ticking(changes)))
        })
    })
}];

/// A file that is larger than what waits between two programs.
struct Page(PathBuf);

const PAGE_BYTES: usize = 4 << 20;

impl State for Page {}

const PAGES: &[Route<Page>] = &[Route {
    answers: &[Answer::file("the page")],
    problems: &[Code::TooManyStreams],
    ..Route::get("/v1/page/{id}", "Gives so many bytes of a page", |call| {
        Box::pin(async move {
            let page = std::fs::File::open(&call.state.0).expect("a page");
            crate::file::reply(&call, page, call.id.parse().expect("a number"))
        })
    })
}];

fn page() -> Vec<u8> {
    (0..PAGE_BYTES).map(|number| u8::try_from(number % 251).expect("a byte")).collect()
}

struct NoToken;

impl Tokens for NoToken {
    fn number_of(&self, presented: &str) -> Option<u64> {
        (presented == "t").then_some(1)
    }
}

struct Served {
    api: Arc<Api>,
    echo: Arc<Echo>,
    ticks: Arc<Ticks>,
    socket: PathBuf,
    tcp: std::net::SocketAddr,
    stop: watch::Sender<bool>,
    doors: Vec<JoinHandle<std::io::Result<()>>>,
    _folder: TempDir,
}

async fn served() -> Served {
    let folder = tempfile::tempdir().expect("a folder");
    let echo = Arc::new(Echo { held: AtomicBool::new(false), go: Semaphore::new(0) });
    let ticks = Arc::new(Ticks(watch::channel(0).0));
    let path = folder.path().join("page");
    std::fs::write(&path, page()).expect("a page");
    let parts = vec![
        Part::new(Arc::clone(&echo), ECHO),
        Part::new(Arc::clone(&ticks), TICKS),
        Part::new(Arc::new(Page(path)), PAGES),
    ];
    let options =
        ApiOptions { body_bytes_max: SMALL, max_inflight: CALLS, ..ApiOptions::default() };
    let clock = Arc::new(SimClock::at_ms(0));
    let api = Api::new(options, Arc::new(NoToken), clock, parts);
    let socket = folder.path().join("sock");
    let listeners = [
        Listener::Socket(bind_socket(&socket).expect("a socket")),
        Listener::Tcp(TcpListener::bind("127.0.0.1:0").await.expect("a port")),
    ];
    let tcp = match &listeners[1] {
        Listener::Tcp(tcp) => tcp.local_addr().expect("an address"),
        Listener::Socket(_) => panic!("the second is TCP"),
    };
    let (stop, stopping) = watch::channel(false);
    let doors = listeners.map(|listener| {
        let (api, mut stopping) = (Arc::clone(&api), stopping.clone());
        let stopped = async move { drop(stopping.wait_for(|stop| *stop).await) };
        tokio::spawn(serve(api, listener, stopped))
    });
    Served { api, echo, ticks, socket, tcp, stop, doors: doors.into(), _folder: folder }
}

impl Served {
    async fn ask(&self, verb: &str, path: &str, body: &[u8]) -> Said {
        let stream = UnixStream::connect(&self.socket).await.expect("it listens");
        say(stream, &request(verb, path, &[], body)).await
    }

    async fn stop(self) {
        self.stop.send_replace(true);
        for door in self.doors {
            let ended = timeout(PATIENCE, door).await.expect("the door drains");
            ended.expect("no panic").expect("no error");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn verbs_ids_and_documents_of_several_parts() {
    let served = served().await;
    let said = served.ask("GET", "/v1/echo/a%2Fb+c", b"").await;
    assert_eq!(said.json(), json!({"verb": "GET", "id": "a/b+c", "plan": null}));
    let said = served.ask("DELETE", "/v1/echo/x", b"").await;
    assert_eq!((said.status, said.body.len(), said.header("content-type")), (204, 0, None));
    for plan in [json!({"a": [1, {"b": null}]}), json!([1]), json!("text"), json!(1.5)] {
        let body = json!({"plan": plan}).to_string();
        let said = served.ask("POST", "/v1/echo", body.as_bytes()).await;
        assert_eq!(said.json()["plan"], plan);
    }
    let refused = served.ask("POST", "/v1/echo", br#"{"plan":null}"#).await;
    assert_eq!(refused.problem(), (400, "missing_field".to_owned()));
    // What is spelt out goes before `{id}`, unless only that has the verb.
    let said = served.ask("GET", "/v1/echo/large", b"").await;
    assert_eq!(said.json()["id"], "large");
    let said = served.ask("PUT", "/v1/echo/large", b"").await;
    assert_eq!(said.problem(), (405, "method_not_allowed".to_owned()));
    assert_eq!(said.header("allow"), Some("GET, POST, DELETE"));
    assert_eq!(served.ask("PUT", "/v1/echo", b"").await.header("allow"), Some("POST"));
    assert_eq!(served.ask("GET", "/v1/echo/a/b", b"").await.status, 404);
    let stream = TcpStream::connect(served.tcp).await.expect("it listens");
    let said = say(stream, &request("DELETE", "/v1/echo/x", &[], b"")).await;
    assert_eq!(said.problem(), (401, "unauthorised".to_owned()));
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_has_limits_and_a_gate_of_its_own() {
    let served = served().await;
    let body = |bytes: usize| json!({"plan": "x".repeat(bytes)}).to_string();
    let too_large = (413, "payload_too_large".to_owned());
    assert_eq!(served.ask("POST", "/v1/echo", body(SMALL).as_bytes()).await.problem(), too_large);
    assert_eq!(served.ask("POST", "/v1/echo/large", body(SMALL).as_bytes()).await.status, 200);
    let said = served.ask("POST", "/v1/echo/large", body(1 << 10).as_bytes()).await;
    assert_eq!(said.problem(), too_large);
    served.echo.held.store(true, Ordering::Relaxed);
    for (verb, path) in [("POST", "/v1/echo"), ("DELETE", "/v1/echo/x")] {
        let said = served.ask(verb, path, b"").await;
        assert_eq!(said.problem(), (503, "overloaded".to_owned()));
        assert_eq!(said.json()["held_by"], "a test");
    }
    assert_eq!(served.ask("GET", "/v1/echo/x", b"").await.status, 200);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_document_names_the_calls_of_all_parts() {
    let served = served().await;
    let document: Value = serde_json::from_str(served.api.openapi()).expect("JSON");
    let paths: Vec<&String> = document["paths"].as_object().expect("paths").keys().collect();
    assert_eq!(
        paths,
        ["/v1/echo", "/v1/echo/large", "/v1/echo/{id}", "/v1/page/{id}", "/v1/ticks"]
    );
    let problem = &document["components"]["schemas"]["Problem"];
    assert_eq!(problem["properties"]["held_by"]["type"], "string");
    assert!(!problem["required"].as_array().expect("names").contains(&json!("held_by")));
    let gone = &document["paths"]["/v1/echo/{id}"]["delete"];
    // A record is there once, under its name, and without one in the places where it is used.
    let records = &document["components"]["schemas"];
    let names: Vec<&String> = records.as_object().expect("records").keys().collect();
    let requests = ["EchoLargeRequest", "PostEchoRequest"];
    assert_eq!(names, [requests[0], "Plan", requests[1], "Problem", "Said"]);
    let at = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
    assert_eq!(records["Said"]["properties"]["plan"], at("Plan"));
    assert_eq!(records["Plan"], json!({"type": "object"}));
    let large = &document["paths"]["/v1/echo/large"]["post"];
    assert_eq!(large["operationId"], "echo_large");
    assert_eq!(large["requestBody"]["content"]["application/json"]["schema"], at(requests[0]));
    assert_eq!(large["responses"]["200"]["content"]["application/json"]["schema"], at("Said"));

    assert!(gone["requestBody"].is_null() && gone["responses"]["204"]["content"].is_null());
    let mut registry = prometheus_client::registry::Registry::default();
    served.ask("GET", "/v1/echo/secret", b"").await;
    served.ask("POST", "/v1/echo", br#"{"plan":"secret"}"#).await;
    served.api.register_metrics(&mut registry);
    let mut metrics = String::new();
    prometheus_client::encoding::text::encode(&mut metrics, &registry).expect("text");
    for path in ["/v1/echo/{id}", "/v1/echo"] {
        let labels = format!(r#"endpoint="{path}",status="200",transport="socket""#);
        let line = format!("ipc_request_total{{{labels}}} 1\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    assert!(!metrics.contains("secret"));
    served.stop().await;
}

#[test]
fn the_same_call_twice_is_a_mistake() {
    let echo =
        || Part::new(Arc::new(Echo { held: AtomicBool::new(false), go: Semaphore::new(0) }), ECHO);
    let twice = std::panic::catch_unwind(|| {
        let clock = Arc::new(SimClock::at_ms(0));
        Api::new(ApiOptions::default(), Arc::new(NoToken), clock, vec![echo(), echo()])
    });
    let Err(why) = twice else { panic!("it was put together") };
    let why = why.downcast_ref::<String>().expect("a sentence");
    assert_eq!(why, "GET /v1/echo/{id} is there twice");
}

async fn ids(served: &Served, path: &str, headers: &[(&str, &str)], count: usize) -> Vec<String> {
    let mut stream = UnixStream::connect(&served.socket).await.expect("it listens");
    stream.write_all(&request("GET", path, headers, b"")).await.expect("it reads");
    let mut lines = BufReader::new(stream).lines();
    let (mut ids, mut begun) = (Vec::new(), false);
    let reading = async {
        while let Ok(Some(line)) = lines.next_line().await {
            if line == "retry: 1000" {
                // Where it began is no event.
                assert_eq!(ids.len(), 1);
                ids.clear();
                begun = true;
                if served.ticks.0.borrow().eq(&0) {
                    served.ticks.0.send_replace(3);
                }
            }
            ids.extend(line.strip_prefix("id: ").map(str::to_owned));
            if begun && ids.len() == count {
                break;
            }
        }
    };
    timeout(PATIENCE, reading).await.expect("in time");
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_begins_now_resumes_and_ends_after_the_last() {
    let served = served().await;
    assert_eq!(ids(&served, "/v1/ticks", &[], 3).await, ["1", "2", "3"]);
    assert_eq!(ids(&served, "/v1/ticks?after=1", &[], 2).await, ["2", "3"]);
    let seen = [("Last-Event-ID", "2")];
    assert_eq!(ids(&served, "/v1/ticks?after=0", &seen, 1).await, ["3"]);
    served.ticks.0.send_replace(5);
    // More than there are: the end of the stream is what ends the reading.
    assert_eq!(ids(&served, "/v1/ticks?after=2", &[], 99).await, ["3", "4", "5"]);
    let said = served.ask("GET", "/v1/ticks?after=-1", b"").await;
    assert_eq!(said.problem(), (400, "invalid_field".to_owned()));
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_streams() {
    let served = served().await;
    let mut stream = UnixStream::connect(&served.socket).await.expect("it listens");
    stream.write_all(&request("GET", "/v1/ticks", &[], b"")).await.expect("it reads");
    let mut first = String::new();
    BufReader::new(&mut stream).read_line(&mut first).await.expect("an answer");
    assert!(first.starts_with("HTTP/1.1 200"), "{first}");
    timeout(Duration::from_secs(5), served.stop()).await.expect("sooner than a drain gives up");
}

/// Whoever is cut there would otherwise begin with what is new then, and miss what came between.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_stopped_at_once_has_said_where_it_begins() {
    let served = served().await;
    served.ticks.0.send_replace(4);
    served.api.stop();
    for _ in 0..32 {
        let said = served.ask("GET", "/v1/ticks", b"").await;
        let text = String::from_utf8_lossy(&said.body).into_owned();
        assert!(text.contains("id: 4\nretry: 1000\n\n"), "{text:?}");
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_sent_with_its_length_and_one_that_ends_early_is_cut() {
    let served = served().await;
    for bytes in [0, 1, PAGE_BYTES - 1, PAGE_BYTES] {
        let said = served.ask("GET", &format!("/v1/page/{bytes}"), b"").await;
        assert_eq!(said.header("content-length"), Some(bytes.to_string().as_str()));
        assert_eq!(said.header("content-type"), Some("application/octet-stream"));
        assert!(said.body == page()[..bytes], "{bytes}: {} came", said.body.len());
    }
    // Somebody has made it shorter after its length was told: the connection ends, and says so.
    let said = served.ask("GET", &format!("/v1/page/{}", PAGE_BYTES + 1), b"").await;
    assert_eq!(said.header("content-length"), Some((PAGE_BYTES + 1).to_string().as_str()));
    assert!(page().starts_with(&said.body), "{} came", said.body.len());
    served.stop().await;
}

/// Readers that stand still take places of streams, not of calls, and give them back.
#[tokio::test(flavor = "multi_thread")]
async fn files_have_places_among_the_streams() {
    let served = served().await;
    let path = format!("/v1/page/{PAGE_BYTES}");
    let mut slow = Vec::new();
    for _ in 0..ApiOptions::default().max_streams {
        let mut stream = UnixStream::connect(&served.socket).await.expect("it listens");
        stream.write_all(&request("GET", &path, &[], b"")).await.expect("it reads");
        let mut first = String::new();
        BufReader::new(&mut stream).read_line(&mut first).await.expect("an answer");
        assert!(first.starts_with("HTTP/1.1 200"), "{first}");
        slow.push(stream);
    }
    let refused = served.ask("GET", &path, b"").await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    assert_eq!(refused.problem().1, "too_many_streams");
    assert_eq!(served.ask("GET", "/v1/echo/x", b"").await.status, 200);
    drop(slow);
    let given_back = async {
        while served.ask("GET", &path, b"").await.status != 200 {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, given_back).await.expect("the places are free again");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn so_many_calls_and_no_more() {
    let served = served().await;
    let mut held = Vec::new();
    for _ in 0..CALLS {
        let mut stream = UnixStream::connect(&served.socket).await.expect("it listens");
        let asked = request("GET", "/v1/echo/wait", &[], b"");
        stream.write_all(&asked).await.expect("it is read");
        held.push(stream);
    }
    let busy = async {
        loop {
            let said = served.ask("GET", "/v1/echo/x", b"").await;
            if said.status == 429 {
                assert_eq!(said.problem(), (429, "daemon_busy".to_owned()));
                assert_eq!(said.header("retry-after"), Some("1"));
                return;
            }
        }
    };
    timeout(PATIENCE, busy).await.expect("all are inside");
    served.echo.go.add_permits(CALLS);
    let free = async { while served.ask("GET", "/v1/echo/x", b"").await.status != 200 {} };
    timeout(PATIENCE, free).await.expect("places become free");
    drop(held);
    served.stop().await;
}

/// A stop waits for calls, and a body that does not come is none.
#[tokio::test(flavor = "multi_thread")]
async fn half_a_body_holds_up_no_stop() {
    let served = served().await;
    let mut stream = UnixStream::connect(&served.socket).await.expect("it listens");
    let half = "POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{";
    stream.write_all(half.as_bytes()).await.expect("it is read");
    // Whoever is answered behind it shows that it was taken in.
    assert_eq!(served.ask("GET", "/v1/echo/x", b"").await.status, 200);
    let stopping = async move {
        served.stop().await;
    };
    timeout(crate::limits::DRAIN_MAX / 2, stopping).await.expect("nobody waits for it");
    let mut answer = String::new();
    let _ = tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut answer).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 429"), "{answer}");
}
