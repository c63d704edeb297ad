//! A broker on a real port, and a daemon's side of the protocol by hand.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use semel_broker::connection::Broker;
use semel_broker::hints::Hints;
use semel_broker::http::AdminToken;
use semel_broker::hub::Hub;
use semel_broker::life::StoreLife;
use semel_broker::limiter::Limiter;
use semel_broker::limits::Timings;
use semel_broker::pipeline::Pipeline;
use semel_broker::roster::Rosters;
use semel_broker::server;
use semel_core::clock::{Clock, UnixMs};
use semel_core::envelope::{Destination, DestinationKind, Envelope, Priority};
use semel_core::fingerprint::{BodyHash, Fingerprint};
use semel_core::hex::Hex;
use semel_core::id::{BrokerId, ClientMessageId, InstanceId, UuidId};
use semel_crypto::hello::{HelloClaim, sign};
use semel_crypto::keys::KeyPair;
use semel_testkit::clock::SimClock;
use semel_wire::features::Feature;
use semel_wire::frame::{
    Ack, Challenge, FeatureNegotiationRequest, FromBroker, FromDaemon, Hello, HelloAck, Push,
    SendFrame, SendResult,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::support::{self, Fixture, NOW};

/// Long enough for a loaded machine; only a failure waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The operator of every broker here.
pub(crate) const ADMIN_TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A fixture's store, served.
pub(crate) struct Served {
    pub(crate) fixture: Fixture,
    pub(crate) address: SocketAddr,
    pub(crate) clock: SimClock,
    pub(crate) hub: Arc<Hub>,
    pub(crate) broker: Arc<Broker>,
    pub(crate) hints: Option<Hints>,
    pub(crate) stop: Option<oneshot::Sender<()>>,
    pub(crate) stopped: tokio::task::JoinHandle<std::io::Result<()>>,
}

/// The key pair of a member, by number. The fixture knows the members by these keys.
pub(crate) fn keys(number: usize) -> KeyPair {
    support::keys(number)
}

/// A broker that is alone.
pub(crate) async fn serve(fixture: Fixture) -> Served {
    serve_as(fixture, 7, false).await
}

/// One of several brokers, by number; `hinted` ones tell each other of commits.
pub(crate) async fn serve_as(fixture: Fixture, number: u128, hinted: bool) -> Served {
    serve_with(fixture, number, hinted, server::Options::default(), Timings::default()).await
}

/// A broker that is alone, with a door of its own kind.
pub(crate) async fn serve_behind(fixture: Fixture, options: server::Options) -> Served {
    serve_with(fixture, 7, false, options, Timings::default()).await
}

/// A broker whose waits are others.
pub(crate) async fn serve_timed(
    fixture: Fixture,
    number: u128,
    hinted: bool,
    timings: Timings,
) -> Served {
    serve_with(fixture, number, hinted, server::Options::default(), timings).await
}

async fn serve_with(
    fixture: Fixture,
    number: u128,
    hinted: bool,
    options: server::Options,
    timings: Timings,
) -> Served {
    let broker_id = BrokerId::new(uuid::Uuid::from_u128(number));
    let clock = SimClock::at_ms(NOW.0);
    let hub = Arc::new(Hub::default());
    let shared: Arc<dyn Clock> = Arc::new(clock.clone());
    let limiter = Limiter::memory(Arc::clone(&shared));
    let store = fixture.store.clone();
    let (to, time) = (Arc::clone(&hub), Arc::clone(&shared));
    let mut hints = None;
    let life = StoreLife::new(store.store_epoch().await.unwrap());
    let pipeline = if hinted {
        let (hinter, service) = Hints::over(&store, broker_id, Arc::clone(&hub)).unwrap().unwrap();
        drop(tokio::spawn(service.run()));
        hints = Some(hinter);
        Pipeline::with_hints(store.clone(), life.clone(), limiter, time, to, hints.clone())
    } else {
        Pipeline::new(store.clone(), life.clone(), limiter, time, to)
    };
    let broker = Arc::new(Broker {
        hints: hints.clone(),
        rosters: Rosters::default(),
        life,
        timings,
        broker_id,
        store,
        pipeline,
        hub: Arc::clone(&hub),
        clock: shared,
        mint: support::mint(number),
        nonces: Arc::new(|| uuid_bytes(uuid::Uuid::new_v4())),
        admin_token: Some(AdminToken::parse(ADMIN_TOKEN).unwrap()),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, wait) = oneshot::channel();
    let shutdown = async move {
        let _ = wait.await;
    };
    let serving = server::serve_with(options, Arc::clone(&broker), listener, shutdown);
    let stopped = tokio::spawn(serving);
    Served { fixture, address, clock, hub, broker, hints, stop: Some(stop), stopped }
}

/// What the broker answers to a request: the status, and the body.
pub(crate) async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    get_over(TcpStream::connect(address).await.unwrap(), path).await
}

/// The same over a stream that is there already.
pub(crate) async fn get_over<S>(mut stream: S, path: &str) -> (u16, String)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let request = format!("GET {path} HTTP/1.1\r\nHost: broker\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    // Who speaks TLS may leave without a word.
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Waits until it is so.
pub(crate) async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !is_so().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("it comes to be so");
}

fn uuid_bytes(uuid: uuid::Uuid) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(uuid.as_bytes());
    bytes
}

/// How a connection ended: the close code, and what the reason frame before it said.
#[derive(Debug)]
pub(crate) struct Closed {
    pub(crate) code: u16,
    pub(crate) reason: Option<semel_wire::frame::CloseReason>,
}

/// A daemon's connection.
pub(crate) struct Daemon {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    pub(crate) challenge: Challenge,
    /// Whether the features were asked for; the first send does it where nobody has.
    pub(crate) features: Features,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Features {
    Unasked,
    /// By the way: neither the answer nor who is present is shown.
    Agreed,
    /// By the test, which wants to see both.
    Shown,
}

impl Daemon {
    /// Connects and reads the challenge.
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let url = format!("ws://{address}/v1/mesh");
        let (socket, _) = tokio_tungstenite::connect_async(url).await.unwrap();
        let mut daemon = Self {
            socket,
            challenge: Challenge {
                nonce: Hex([0; 32]),
                broker_id: BrokerId::new(uuid::Uuid::nil()),
                time: UnixMs(0),
            },
            features: Features::Unasked,
        };
        match daemon.next().await {
            Ok(FromBroker::Challenge(challenge)) => daemon.challenge = challenge,
            other => panic!("{other:?}"),
        }
        daemon
    }

    /// A hello as this member would say it.
    pub(crate) fn hello(&self, number: usize) -> Hello {
        let instance_id: InstanceId = UuidId::new(uuid::Uuid::from_u128(100 + number as u128));
        let mut hello = Hello {
            mesh: "test".to_owned(),
            pubkey: keys(number).public().to_hex(),
            key_id: format!("key-{number}"),
            instance_id,
            host_fingerprint: None,
            version: "0.1.0".to_owned(),
            time: NOW,
            nonce: Hex(*uuid::Uuid::new_v4().as_bytes()),
            retire: Vec::new(),
            signature: Hex([0; 64]),
        };
        self.sign(number, &mut hello);
        hello
    }

    /// Signs what the hello says now.
    pub(crate) fn sign(&self, number: usize, hello: &mut Hello) {
        let claim = HelloClaim {
            broker_id: self.challenge.broker_id,
            broker_nonce: self.challenge.nonce,
            mesh: &hello.mesh,
            key_id: &hello.key_id,
            instance_id: hello.instance_id,
            host_fingerprint: hello.host_fingerprint,
            hello_nonce: hello.nonce,
            time: hello.time,
            retire: &hello.retire,
        };
        let signature = sign(&keys(number), &claim);
        hello.signature = signature;
    }

    /// Connects and is welcomed.
    pub(crate) async fn welcomed(address: SocketAddr, number: usize) -> Self {
        Self::greeted(address, number).await.0
    }

    pub(crate) async fn greeted(address: SocketAddr, number: usize) -> (Self, HelloAck) {
        let mut daemon = Self::connect(address).await;
        let hello = daemon.hello(number);
        daemon.say(&FromDaemon::Hello(hello)).await;
        match daemon.next().await {
            Ok(FromBroker::HelloAck(ack)) => (daemon, ack),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn say(&mut self, frame: &FromDaemon) {
        if matches!(frame, FromDaemon::Send(_)) && self.features == Features::Unasked {
            self.features = Features::Agreed;
            self.say_text(&FromDaemon::FeatureNegotiationRequest(features()).encode()).await;
        }
        self.say_text(&frame.encode()).await;
    }

    /// Says something that may not be a frame at all. The broker may be gone already.
    pub(crate) async fn say_text(&mut self, text: &str) {
        let _ = self.socket.send(Message::text(text)).await;
    }

    /// The next frame, or how the connection ended.
    pub(crate) async fn next(&mut self) -> Result<FromBroker, Closed> {
        let mut reason = None;
        loop {
            let message = tokio::time::timeout(PATIENCE, self.socket.next()).await;
            match message.expect("the broker says something") {
                Some(Ok(Message::Text(text))) => {
                    match FromBroker::decode(text.as_bytes(), 16 << 20).unwrap() {
                        FromBroker::CloseReason(said) => reason = Some(said),
                        FromBroker::Ping(_) => {}
                        FromBroker::FeatureNegotiationResponse(_)
                        | FromBroker::Presence(_)
                        | FromBroker::PresenceCount(_)
                            if self.features == Features::Agreed => {}
                        frame => return Ok(frame),
                    }
                }
                Some(Ok(Message::Close(frame))) => {
                    let code = frame.map_or(1005, |frame| frame.code.into());
                    return Err(Closed { code, reason });
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Err(Closed { code: 1006, reason }),
            }
        }
    }

    pub(crate) async fn closed(&mut self) -> Closed {
        loop {
            if let Err(closed) = self.next().await {
                return closed;
            }
        }
    }

    pub(crate) async fn pushed(&mut self) -> Push {
        match self.next().await {
            Ok(FromBroker::Push(push)) => push,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn ack(&mut self, seq: i64) {
        self.say(&FromDaemon::Ack(Ack { seq })).await;
    }

    /// Sends, and reads frames up to the answer; pushes in between are dropped.
    pub(crate) async fn send(&mut self, frame: SendFrame) -> SendResult {
        let id = frame.client_message_id.clone();
        self.say(&FromDaemon::Send(frame)).await;
        let result = self.answer().await;
        assert_eq!(result.client_message_id, id);
        result
    }

    /// The next answer to a send; pushes before it are dropped.
    pub(crate) async fn answer(&mut self) -> SendResult {
        loop {
            match self.next().await.expect("an answer") {
                FromBroker::SendResult(result) => return result,
                FromBroker::Push(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Everything that there is.
pub(crate) fn features() -> FeatureNegotiationRequest {
    let names = |features: &[&str]| features.iter().map(|f| (*f).to_owned()).collect();
    let (require, optional) = (names(Feature::REQUIRED), names(Feature::OPTIONAL));
    FeatureNegotiationRequest { require, optional }
}

/// A send frame with the right fingerprint.
pub(crate) fn send_frame(id: &str, to: (&str, &str), body: &str) -> SendFrame {
    let kind = DestinationKind::parse(to.0).unwrap();
    let envelope = Envelope::new(Destination::new(kind, to.1).unwrap(), body.into()).unwrap();
    SendFrame {
        client_message_id: ClientMessageId::parse(id).unwrap(),
        destination_kind: kind,
        destination_ref: to.1.to_owned(),
        reply_to_id: None,
        priority: Priority::Next,
        meta: String::new(),
        body: body.into(),
        request_fingerprint: Fingerprint::with_body_hash(&envelope, BodyHash::of(body.as_bytes())),
        body_commitment: None,
        enqueued_at: NOW,
    }
}
