//! A daemon's side of a connection, as cheap as it can be.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use futures_util::{SinkExt, StreamExt};
use semel_core::clock::{Clock, SystemClock};
use semel_core::envelope::{Destination, DestinationKind, Envelope, Priority};
use semel_core::fingerprint::Fingerprint;
use semel_core::hex::Hex;
use semel_core::id::{ClientMessageId, UuidId};
use semel_crypto::hello::{HelloClaim, sign};
use semel_wire::features::Feature;
use semel_wire::frame::{FeatureNegotiationRequest, FromBroker, FromDaemon, Hello, SendFrame};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};
use uuid::Uuid;

use super::served::{MESH, keys};

const FRAME_BYTES_MAX: usize = 16 << 20;

/// A daemon that was welcomed.
pub(crate) struct Daemon {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

impl Daemon {
    pub(crate) async fn connect(address: SocketAddr, number: usize) -> Result<Self> {
        let url = format!("ws://{address}/v1/mesh");
        let (socket, _) = tokio_tungstenite::connect_async(url).await?;
        let mut daemon = Self { socket };
        let FromBroker::Challenge(challenge) = daemon.decoded().await? else {
            bail!("no challenge");
        };
        let mut hello = Hello {
            mesh: MESH.to_owned(),
            pubkey: keys(number).public().to_hex(),
            key_id: format!("key-{number}"),
            instance_id: UuidId::new(Uuid::new_v4()),
            host_fingerprint: None,
            version: "0.1.0".to_owned(),
            time: SystemClock::new().wall(),
            nonce: Hex(*Uuid::new_v4().as_bytes()),
            retire: Vec::new(),
            signature: Hex([0; 64]),
        };
        let claim = HelloClaim {
            broker_id: challenge.broker_id,
            broker_nonce: challenge.nonce,
            mesh: &hello.mesh,
            key_id: &hello.key_id,
            instance_id: hello.instance_id,
            host_fingerprint: None,
            hello_nonce: hello.nonce,
            time: hello.time,
            retire: &hello.retire,
        };
        hello.signature = sign(&keys(number), &claim);
        daemon.say(FromDaemon::Hello(hello).encode()).await?;
        let FromBroker::HelloAck(_) = daemon.decoded().await? else { bail!("not welcome") };
        let names = |features: &[&str]| features.iter().map(|f| (*f).to_owned()).collect();
        let (require, optional) = (names(Feature::REQUIRED), names(Feature::OPTIONAL));
        let request = FeatureNegotiationRequest { require, optional };
        daemon.say(FromDaemon::FeatureNegotiationRequest(request).encode()).await?;
        Ok(daemon)
    }

    pub(crate) async fn say(&mut self, text: String) -> Result<()> {
        Ok(self.socket.send(Message::text(text)).await?)
    }

    /// The next frame as text.
    pub(crate) async fn heard(&mut self) -> Result<Utf8Bytes> {
        loop {
            match self.socket.next().await.context("the broker has gone")?? {
                Message::Text(text) => return Ok(text),
                Message::Close(frame) => bail!("closed: {frame:?}"),
                Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    }

    async fn decoded(&mut self) -> Result<FromBroker> {
        let text = self.heard().await?;
        let frame = FromBroker::decode(text.as_bytes(), FRAME_BYTES_MAX);
        frame.map_err(|refusal| anyhow::anyhow!("{refusal}"))
    }

    /// Sends, and says what that was answered with.
    pub(super) async fn send(&mut self, frame: SendFrame) -> Result<u16> {
        self.say(FromDaemon::Send(frame).encode()).await?;
        self.answer().await
    }

    /// The status of the next answer.
    pub(crate) async fn answer(&mut self) -> Result<u16> {
        loop {
            let text = self.heard().await?;
            if text.starts_with("{\"type\":\"send_result\"") {
                let frame = FromBroker::decode(text.as_bytes(), FRAME_BYTES_MAX);
                if let Ok(FromBroker::SendResult(result)) = frame {
                    return Ok(result.status);
                }
                bail!("not an answer: {text}");
            }
        }
    }
}

/// What is sent, by its number.
pub(crate) fn message(id: String, to: Destination) -> Result<SendFrame> {
    let body = vec![0x5a; 256];
    let (kind, reference) = (to.kind(), to.reference().to_owned());
    let envelope = Envelope::new(to, body.clone())?;
    Ok(SendFrame {
        client_message_id: ClientMessageId::parse(&id)?,
        destination_kind: kind,
        destination_ref: reference,
        reply_to_id: None,
        priority: Priority::Next,
        meta: String::new(),
        body,
        request_fingerprint: Fingerprint::of(&envelope),
        body_commitment: None,
        enqueued_at: SystemClock::new().wall(),
    })
}

pub(super) fn to_topic(name: &str) -> Result<Destination> {
    Ok(Destination::new(DestinationKind::Topic, name)?)
}

pub(crate) fn to_member(number: usize) -> Result<Destination> {
    Ok(Destination::new(DestinationKind::Dm, keys(number).public().to_hex().to_string())?)
}
