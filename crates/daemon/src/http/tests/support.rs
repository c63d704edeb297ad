//! A daemon whose broker is away, its two doors, and a client.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use semel_api::access::Tokens;
use semel_api::door::{Listener, bind_socket, serve};
use semel_api::{Api, ApiOptions};
use semel_core::clock::{Clock, UnixMs};
use semel_core::envelope::{DestinationKind, Priority};
use semel_core::id::{BrokerMessageId, ClientMessageId, InstanceId, MemberId, UuidId};
use semel_core::mint::IdMint;
use semel_core::plausible::SweepClock;
use semel_crypto::keys::KeyPair;
use semel_store::StoreError;
use semel_testkit::clock::SimClock;
use semel_testkit::http::{PATIENCE, Said, request, say};
use semel_wire::place::{BrokerPlace, Plain};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use uuid::Uuid;

use crate::dial::Dialler;
use crate::engine::{Engine, EngineOptions};
use crate::http::{Member, part};
use crate::link::{LinkOptions, stopped};
use crate::remote::Remote;
use crate::store::inbox::{Arrived, Way};

pub(super) const TOKEN: &str = "correct-horse-battery-staple";
pub(super) const NOW: i64 = 1_800_000_000_000;

struct OneToken;

impl Tokens for OneToken {
    fn number_of(&self, presented: &str) -> Option<u64> {
        (presented == TOKEN).then_some(1)
    }
}

pub(super) struct Served {
    pub(super) folder: PathBuf,
    pub(super) engine: Arc<Engine>,
    pub(super) clock: SimClock,
    pub(super) address: SocketAddr,
    stop: watch::Sender<bool>,
    doors: Vec<JoinHandle<std::io::Result<()>>>,
    _folder: Option<TempDir>,
}

pub(super) fn options() -> ApiOptions {
    ApiOptions::default()
}

pub(super) fn engine_options(outbox_bytes_max: u64) -> EngineOptions {
    EngineOptions {
        outbox_bytes_max,
        reserved_bytes: 0,
        inbox_kept: Duration::from_secs(30 * 86_400),
        inbox_bytes_max: u64::MAX,
    }
}

pub(super) fn member() -> Member {
    let (mesh, version) = ("local".to_owned(), "0.1.0-test".to_owned());
    Member { mesh, pubkey: "ab".repeat(32), version }
}

pub(super) async fn served() -> Served {
    served_with(options(), None).await
}

pub(super) async fn served_with(options: ApiOptions, remote: Option<Arc<dyn Remote>>) -> Served {
    let folder = tempfile::tempdir().unwrap();
    let mut served = served_in(folder.path(), options, remote, u64::MAX).await;
    served._folder = Some(folder);
    served
}

pub(super) async fn served_in(
    folder: &Path,
    options: ApiOptions,
    remote: Option<Arc<dyn Remote>>,
    outbox_bytes_max: u64,
) -> Served {
    let clock = SimClock::at_ms(NOW);
    let shared: Arc<dyn Clock> = Arc::new(clock.clone());
    let mut drawn = 0_u128;
    let entropy = Box::new(move || {
        drawn += 1;
        drawn << 20
    });
    let mint = Arc::new(IdMint::new(Arc::clone(&shared), entropy));
    // Nobody is there.
    let place = BrokerPlace::parse("ws://127.0.0.1:1/v1/mesh").unwrap();
    let link = LinkOptions {
        broker: Dialler::new(place, Plain::LoopbackOnly, None),
        mesh: "local".to_owned(),
        key_id: "k1".to_owned(),
        keys: Arc::new(KeyPair::from_secret(&[7; 32])),
        instance_id: InstanceId::new(Uuid::from_u128(1)),
        version: "test".to_owned(),
        require: Vec::new(),
        optional: crate::config::Features::default().optional,
        window: LinkOptions::WINDOW,
        max_age_hours_override: None,
        answer_timeout: LinkOptions::ANSWER_TIMEOUT,
        expire_interval: LinkOptions::EXPIRE_INTERVAL,
        steady_after: LinkOptions::STEADY_AFTER,
        sweep_clock: SweepClock::new(),
        random: Arc::new(|| 5),
    };
    let on_uncertain = Arc::new(|error: &StoreError| panic!("{error}"));
    let time = Arc::clone(&shared);
    let engine =
        Engine::start(folder, engine_options(outbox_bytes_max), link, mint, time, on_uncertain);
    let engine = Arc::new(engine.await.unwrap());
    let part = part(Arc::clone(&engine), member(), remote, Arc::clone(&shared));
    let api = Api::new(options, Arc::new(OneToken), shared, vec![part]);
    let socket = bind_socket(&folder.join("sock")).unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = tcp.local_addr().unwrap();
    let (stop, stopping) = watch::channel(false);
    let doors = [Listener::Socket(socket), Listener::Tcp(tcp)].map(|listener| {
        let (api, mut stopping) = (Arc::clone(&api), stopping.clone());
        tokio::spawn(async move { serve(api, listener, stopped(&mut stopping)).await })
    });
    let (folder, doors) = (folder.to_owned(), doors.into());
    Served { folder, engine, clock, address, stop, doors, _folder: None }
}

impl Served {
    /// Stops in order, and gives the folder back.
    pub(super) async fn stop(self) -> Option<TempDir> {
        self.stop.send_replace(true);
        for door in self.doors {
            timeout(PATIENCE, door).await.expect("the door drains").unwrap().unwrap();
        }
        let engine = Arc::try_unwrap(self.engine).map_err(drop).expect("nobody holds it");
        engine.stop().await;
        self._folder
    }

    pub(super) async fn connect(&self) -> UnixStream {
        UnixStream::connect(self.folder.join("sock")).await.unwrap()
    }

    /// A call over the socket.
    pub(super) async fn get(&self, path: &str) -> Said {
        say(self.connect().await, &request("GET", path, &[], b"")).await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Said {
        self.post_with(path, &[], body.to_string().as_bytes()).await
    }

    pub(super) async fn post_with(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Said {
        say(self.connect().await, &request("POST", path, headers, body)).await
    }

    /// A call over TCP.
    pub(super) async fn tcp(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Said {
        let stream = TcpStream::connect(self.address).await.unwrap();
        say(stream, &request(method, path, headers, b"")).await
    }

    /// Messages arrive.
    pub(super) async fn arrive(&self, first: i64, bodies: &[&str]) {
        let arrived = bodies.iter().zip(first..).map(|(body, seq)| arrived(seq, body));
        self.engine.inbox.receive(arrived.collect(), Way::Live).await.unwrap();
    }
}

pub(super) fn arrived(seq: i64, body: &str) -> Arrived {
    let sender: MemberId = UuidId::new(Uuid::from_u128(77));
    Arrived {
        sender_member_id: sender,
        client_message_id: ClientMessageId::parse(&format!("m-{seq}")).unwrap(),
        broker_message_id: BrokerMessageId::new(Uuid::from_u128(seq.unsigned_abs().into())),
        seq,
        destination_kind: DestinationKind::Topic,
        topic: Some(if seq % 2 == 0 { "even" } else { "odd" }.to_owned()),
        sender_pubkey: "cd".repeat(32),
        sender_name: "ada".to_owned(),
        priority: Priority::Next,
        reply_to_id: None,
        meta: r#"{"a":1}"#.to_owned(),
        body: body.into(),
        accepted_at: UnixMs(NOW),
    }
}

/// An event of a stream.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Heard {
    pub(super) id: i64,
    pub(super) kind: String,
    pub(super) data: Value,
}

/// An open event stream.
pub(super) struct Listening {
    pub(super) lines: BufReader<UnixStream>,
    /// Events after this one are told.
    pub(super) began: i64,
}

impl Listening {
    pub(super) async fn to(served: &Served, path: &str, headers: &[(&str, &str)]) -> Self {
        let mut stream = served.connect().await;
        stream.write_all(&request("GET", path, headers, b"")).await.unwrap();
        let mut listening = Self { lines: BufReader::new(stream), began: 0 };
        let first = listening.line().await.unwrap();
        assert!(first.starts_with("HTTP/1.1 200"), "{first}");
        // The tail has begun when it has said how soon to come back.
        loop {
            let line = listening.line().await.unwrap();
            if let Some(id) = line.strip_prefix("id: ") {
                listening.began = id.parse().unwrap();
            }
            if line == "retry: 1000" {
                return listening;
            }
        }
    }

    /// The next line, or none at the end.
    pub(super) async fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = timeout(PATIENCE, self.lines.read_line(&mut line)).await.expect("in time");
        (read.unwrap_or(0) > 0).then(|| line.trim_end().to_owned())
    }

    /// The next event, or none at the end.
    pub(super) async fn event(&mut self) -> Option<Heard> {
        timeout(PATIENCE, self.next()).await.expect("an event in time")
    }

    /// Comments and the sizes of chunks are passed over.
    async fn next(&mut self) -> Option<Heard> {
        let (mut id, mut kind) = (0, String::new());
        loop {
            let line = self.line().await?;
            match line.split_once(": ") {
                Some(("id", value)) => id = value.parse().unwrap(),
                Some(("event", value)) => kind = value.to_owned(),
                Some(("data", value)) => {
                    return Some(Heard { id, kind, data: serde_json::from_str(value).unwrap() });
                }
                _ => {}
            }
        }
    }

    pub(super) async fn events(&mut self, count: usize) -> Vec<Heard> {
        let mut events = Vec::new();
        while events.len() < count {
            events.push(self.event().await.expect("another event"));
        }
        events
    }
}
