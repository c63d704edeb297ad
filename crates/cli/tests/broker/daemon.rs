//! A daemon's side of the protocol, as far as these tests need it: one connection at a time, many
//! sends in flight, everything unanswered sent again on the next connection.

use futures_util::{SinkExt, StreamExt};
use semel_core::clock::{Clock, SystemClock};
use semel_core::envelope::{Destination, DestinationKind, Envelope, Priority};
use semel_core::fingerprint::Fingerprint;
use semel_core::hex::Hex;
use semel_core::id::{ClientMessageId, InstanceId, UuidId};
use semel_crypto::hello::{HelloClaim, sign};
use semel_crypto::keys::KeyPair;
use semel_wire::features::Feature;
use semel_wire::frame::{FeatureNegotiationRequest, FromBroker, FromDaemon, Hello, SendFrame};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

pub(crate) const MESH: &str = "test";

/// A key pair by number.
pub(crate) fn keys(number: u8) -> KeyPair {
    KeyPair::from_secret(&[number; 32])
}

pub(crate) fn pubkey(number: u8) -> String {
    keys(number).public().to_hex().to_string()
}

pub(crate) struct Daemon<S = MaybeTlsStream<TcpStream>> {
    socket: WebSocketStream<S>,
}

impl Daemon {
    /// Connects and is welcomed; `None` when the broker is not there or goes away.
    pub(crate) async fn connect(url: &str, number: u8) -> Option<Self> {
        Self::connect_to(url, MESH, number).await
    }

    /// The same in another mesh.
    pub(crate) async fn connect_to(url: &str, mesh: &str, number: u8) -> Option<Self> {
        let (socket, _) = tokio_tungstenite::connect_async(url).await.ok()?;
        Self::greet_in(mesh, socket, number).await
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Daemon<S> {
    /// Is welcomed over a connection that is there already.
    pub(crate) async fn greet(socket: WebSocketStream<S>, number: u8) -> Option<Self> {
        Self::greet_in(MESH, socket, number).await
    }

    async fn greet_in(mesh: &str, socket: WebSocketStream<S>, number: u8) -> Option<Self> {
        let mut daemon = Self { socket };
        let FromBroker::Challenge(challenge) = daemon.next().await? else { panic!("challenge") };
        let instance_id: InstanceId = UuidId::new(uuid::Uuid::from_u128(u128::from(number)));
        let mut hello = Hello {
            mesh: mesh.to_owned(),
            pubkey: keys(number).public().to_hex(),
            key_id: "any".to_owned(),
            instance_id,
            host_fingerprint: None,
            version: "0.1.0".to_owned(),
            time: SystemClock::new().wall(),
            nonce: Hex(*uuid::Uuid::new_v4().as_bytes()),
            retire: Vec::new(),
            signature: Hex([0; 64]),
        };
        let claim = HelloClaim {
            broker_id: challenge.broker_id,
            broker_nonce: challenge.nonce,
            mesh,
            key_id: &hello.key_id,
            instance_id,
            host_fingerprint: None,
            hello_nonce: hello.nonce,
            time: hello.time,
            retire: &[],
        };
        hello.signature = sign(&keys(number), &claim);
        daemon.say(&FromDaemon::Hello(hello)).await?;
        match daemon.next().await? {
            FromBroker::HelloAck(_) => {
                let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
                let (require, optional) = (names(Feature::REQUIRED), names(Feature::OPTIONAL));
                let request = FeatureNegotiationRequest { require, optional };
                daemon.say(&FromDaemon::FeatureNegotiationRequest(request)).await?;
                Some(daemon)
            }
            FromBroker::CloseReason(_) => None,
            other => panic!("{other:?}"),
        }
    }

    /// `None` when the connection is gone.
    pub(crate) async fn say(&mut self, frame: &FromDaemon) -> Option<()> {
        self.socket.send(Message::text(frame.encode())).await.ok()
    }

    /// The next frame that matters here; `None` when the connection is gone.
    pub(crate) async fn next(&mut self) -> Option<FromBroker> {
        loop {
            match self.socket.next().await?.ok()? {
                Message::Text(text) => {
                    match FromBroker::decode(text.as_bytes(), 16 << 20).unwrap() {
                        FromBroker::FeatureNegotiationResponse(_)
                        | FromBroker::Presence(_)
                        | FromBroker::PresenceCount(_) => {}
                        frame => return Some(frame),
                    }
                }
                Message::Close(_) => return None,
                _ => {}
            }
        }
    }
}

/// A dm with the right fingerprint.
pub(crate) fn dm(id: &str, to: &str, body: &str) -> SendFrame {
    let destination = Destination::new(DestinationKind::Dm, to).unwrap();
    let envelope = Envelope::new(destination, body.into()).unwrap();
    SendFrame {
        client_message_id: ClientMessageId::parse(id).unwrap(),
        destination_kind: DestinationKind::Dm,
        destination_ref: to.to_owned(),
        reply_to_id: None,
        priority: Priority::Next,
        meta: String::new(),
        body: body.into(),
        request_fingerprint: Fingerprint::of(&envelope),
        body_commitment: None,
        enqueued_at: SystemClock::new().wall(),
    }
}
